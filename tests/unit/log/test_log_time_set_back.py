"""A log whose time was set back: where a moment is, with and without the index, and what a start makes of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.simulated.embedded import MemoryLog
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Tick
from rewindmq.schemas.values import BROKER

# Three stretches: honest time, ten thousand too much, and honest again from where the first had ended.
STRETCHES = (range(100, 200), range(10_150, 10_250), range(160, 400))
TIMES = [time for stretch in STRETCHES for time in stretch]


def fill(log: EmbeddedLog | MemoryLog) -> None:
    encoder = Encoder()
    for number, stretch in enumerate(STRETCHES):
        if number == 2:
            log.queues[0].begin_time_anew()
        for time in stretch:
            log.queues[0].append(time, encoder.encode(encoder.prefix(time, BROKER), Tick()))
            if time % 7 == 0:
                log.commit_and_wait()
    log.commit_and_wait()


def by_eye(time: int) -> int:
    """Where a moment is, as a person would look for it: in the last stretch that had begun by then."""
    ends = [0]
    for stretch in STRETCHES:
        ends.append(ends[-1] + len(stretch))
    for number in (2, 1, 0):
        if STRETCHES[number][0] <= time:
            return ends[number] + sum(each <= time for each in STRETCHES[number])
    return 0


MOMENTS = (0, 99, 100, 130, 159, 160, 161, 199, 200, 399, 400, 5_000, 10_149, 10_150, 10_200, 10_249, 20_000)


@pytest.mark.long(segment_bytes=[1, 400], lost=[("index",), ("index", "lengths")])
@pytest.mark.parametrize("segment_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize("lost", [(), ("index",), ("index", "lengths")])
def test_a_moment_is_found_in_the_last_stretch_that_had_it(
    tmp_path: Path, segment_bytes: int, lost: tuple[str, ...]
) -> None:
    async def write(check: Callable[[EmbeddedLog], None]) -> None:
        log = EmbeddedLog.open(tmp_path, 1, segment_bytes)
        check(log)
        log.close()

    asyncio.run(write(fill))
    for suffix in lost:
        for path in (tmp_path / "log" / "queues-0").glob(f"_*.{suffix}"):
            path.unlink()
    reader = EmbeddedLogReader(tmp_path).queues[0]
    assert [reader.offset_at(time) for time in MOMENTS] == [by_eye(time) for time in MOMENTS]

    def check(log: EmbeddedLog) -> None:  # a start makes the sidecars anew
        assert [log.queues[0].offset_at(time) for time in MOMENTS] == [by_eye(time) for time in MOMENTS]

    asyncio.run(write(check))
    for segment in reader.segments():  # within a file time never goes back
        times = TIMES[segment.base_offset : segment.next_offset]
        assert times == sorted(times)
        assert segment.max_timestamp_ms == times[-1]


def test_the_log_in_memory_finds_it_where_the_files_do() -> None:
    log = MemoryLog(1)
    fill(log)
    assert [log.queues[0].offset_at(time) for time in MOMENTS] == [by_eye(time) for time in MOMENTS]
