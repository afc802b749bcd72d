"""The contracts of engine/log/contract.py and shared.py, held against every implementation.

What all logs have in common (partitions, order, reading by offsets and times, records as they were) is held against
`History`, which appends and waits until it can be read; how a log that is the node's own numbers and commits, against
`Log`.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rewindmq.engine.log.contract import Log
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.simulated.embedded import Faults, MemoryLog
from rewindmq.projections.replay import PartitionLog
from tests.support.log_contract import (
    History,
    is_there_when_opened_again,
    test_a_time_leads_to_the_first_later_offset,
    test_all_partitions_are_there_and_empty,
    test_any_range_is_read,
    test_records_are_read_as_they_were_in_order_in_their_partition,
)
from tests.support.log_listener import Listener
from tests.support.records import START_MS, contents, expected, fill, record

__all__ = [
    "test_a_time_leads_to_the_first_later_offset",
    "test_all_partitions_are_there_and_empty",
    "test_any_range_is_read",
    "test_records_are_read_as_they_were_in_order_in_their_partition",
]
LOGS: dict[str, Callable[[Path], Log]] = {
    "embedded": lambda data: EmbeddedLog.open(data, 2),
    "embedded-small-segments": lambda data: EmbeddedLog.open(data, 2, segment_bytes=1),
    "memory": lambda data: MemoryLog(2),
    "memory-slow": lambda data: MemoryLog(2, Faults(seed=1, commit_delay_seconds=0.002)),
}


class OwnHistory:
    """A log of this node alone."""

    def __init__(self, open_log: Callable[[], Log]) -> None:
        self._open = open_log
        self._log = open_log()

    @property
    def partitions(self) -> Sequence[PartitionLog]:
        return [self._log.metadata, *self._log.queues]

    def append(self, partition: int, records: Sequence[bytes]) -> None:
        for each in records:
            [self._log.metadata, *self._log.queues][partition].append(int(time.time() * 1000), each)
        self._log.commit_and_wait()

    def reopen(self) -> None:
        self._log.close()
        self._log = self._open()

    def close(self) -> None:
        self._log.close()


@pytest.fixture(params=LOGS)
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[History]:
    opened = OwnHistory(lambda: LOGS[request.param](tmp_path))
    yield opened
    opened.close()


# tests/system/kafka/test_kafka_contract.py holds a log in Kafka to the five tests that follow.


@pytest.mark.parametrize("history", ["embedded", "embedded-small-segments"], indirect=True)
def test_what_was_appended_is_there_when_the_log_is_opened_again(history: History) -> None:
    """A log in memory ends with its process."""
    is_there_when_opened_again(history)


# A log that is the node's own numbers what is appended at once, and commits it in groups.


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    opened = LOGS[request.param](tmp_path)
    yield opened
    opened.close()


def test_partitions_are_named_and_begin_at_zero(log: Log) -> None:
    assert [log.metadata.name, *(queue.name for queue in log.queues)] == ["metadata-0", "queues-0", "queues-1"]
    for partition in (log.metadata, *log.queues):
        assert (partition.start_offset, partition.next_offset, partition.durable_offset) == (0, 0, 0)
        assert list(partition.read()) == []
        assert partition.offset_at(START_MS) == 0


def test_an_append_is_numbered_at_once_and_read_when_durable(log: Log) -> None:
    queue = log.queues[0]
    assert [queue.append(START_MS + n, record(n)) for n in range(5)] == [0, 1, 2, 3, 4]
    assert (queue.next_offset, queue.durable_offset) == (5, 0)
    assert contents(queue.read()) == contents(queue.read(0, 5)) == []
    log.commit_and_wait()
    assert (queue.next_offset, queue.durable_offset) == (5, 5)
    assert contents(queue.read()) == expected(5)
    assert contents(log.queues[1].read()) == contents(log.metadata.read()) == []


def test_a_range_is_read_by_whole_blocks(log: Log) -> None:
    queue = log.queues[1]
    for group in range(10):
        fill(queue, range(group * 10, group * 10 + 10))
        log.commit_and_wait()
    fill(queue, range(100, 105))  # not durable
    ranges = ((0, 1, 0, 10), (9, 11, 0, 20), (35, 36, 30, 40), (40, 50, 40, 50), (95, 999, 90, 100))
    for start, end, first, last in ranges:
        blocks = list(queue.read(start, end))
        assert blocks[0].first_offset == first
        assert contents(blocks) == expected(105)[first:last]
    assert list(queue.read(100)) == list(queue.read(50, 50)) == list(queue.read(50, 0)) == []
    chains = [block.chain for block in queue.read()]
    assert len(set(chains)) == 10
    assert all(len(chain) == 32 for chain in chains)


def test_offset_at_finds_the_first_later_record(log: Log) -> None:
    """State at T is the fold of everything below `offset_at(T)`; equal timestamps belong to it."""
    queue = log.queues[0]
    times = [10, 10, 20, 20, 20, 30, 30, 40, 60, 60]
    for at, time_ms in enumerate(times):
        queue.append(time_ms, record(at, time_ms))
        if at % 3 == 2:
            log.commit_and_wait()
    log.commit_and_wait()
    for moment in range(0, 70):
        assert queue.offset_at(moment) == sum(1 for other in times if other <= moment), moment


def test_offset_at_when_the_clock_ran_backwards(log: Log) -> None:
    """The largest time so far counts, so the answer is the first record later than T, wherever it stands."""
    queue = log.queues[0]
    times = [10, 50, 20, 30, 50, 55, 40, 60]
    for at, time_ms in enumerate(times):
        queue.append(time_ms, record(at, time_ms))
        log.commit_and_wait()
    assert [queue.offset_at(moment) for moment in (9, 10, 20, 49, 50, 55, 59, 60)] == [0, 1, 1, 1, 5, 7, 7, 8]


def test_commit_calls_back_in_the_loop_and_later_groups_follow(log: Log) -> None:
    """Each record is told durable once, in order, and what is appended during a commit needs no other kick."""
    queue = log.queues[0]

    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        seen: list[int] = []

        def durable() -> None:
            assert asyncio.get_running_loop() is loop
            seen.append(queue.durable_offset)
            if queue.durable_offset == 300:
                done.set()

        log.start(Listener(durable))
        log.commit()  # nothing waits
        for number in range(300):
            queue.append(START_MS + number, record(number))
            log.commit()
            log.commit()  # the second kick of a turn does nothing
            if number % 50 == 0:
                await asyncio.sleep(0.001)
        await asyncio.wait_for(done.wait(), 10)
        return seen

    seen = asyncio.run(run())
    assert seen == sorted(set(seen))
    assert contents(queue.read()) == expected(300)


def test_one_commit_covers_all_partitions(log: Log) -> None:
    async def run() -> int:
        calls = 0
        done = asyncio.Event()

        def durable() -> None:
            nonlocal calls
            calls += 1
            done.set()

        log.start(Listener(durable))
        for partition in (log.metadata, *log.queues):
            fill(partition, range(20))
        log.commit()
        await asyncio.wait_for(done.wait(), 10)
        await asyncio.sleep(0.01)
        return calls

    assert asyncio.run(run()) == 1
    for partition in (log.metadata, *log.queues):
        assert contents(partition.read()) == expected(20)


def test_commit_and_wait_tells_too(log: Log) -> None:
    told: list[int] = []
    log.start(Listener(lambda: told.append(log.metadata.durable_offset)))
    fill(log.metadata, range(3))
    log.commit_and_wait()
    log.commit_and_wait()
    assert told == [3]
