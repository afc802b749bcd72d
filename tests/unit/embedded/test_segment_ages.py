"""Segments that are old are closed, by the monotonic clock (engine/embedded/segment_ages.py, B-25)."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.embedded.segment_ages import AGAIN_NS, AT_ONCE, SegmentAges
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.engine.partition.log_clock import NS, LogClock
from tests.support.log_listener import Listener
from tests.support.records import START_MS, fill

HOUR_MS = 3_600_000


class Clocks:
    """A wall clock and a monotonic clock of a test. They stand still."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.elapsed_ns = 1_000 * NS

    def made(self) -> LogClock:
        return LogClock(lambda: self.wall_ms, lambda: self.elapsed_ns)

    def pass_ms(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.elapsed_ns += milliseconds * NS


class Aged:
    """A log whose segments may become an hour old."""

    def __init__(self, data: Path, clocks: Clocks, partitions: int = 1) -> None:
        self.data = data
        self.log = EmbeddedLog.open(data, partitions)
        self.ages = SegmentAges(self.log, clocks.made(), HOUR_MS)

    def bases(self, name: str = "queues-0") -> list[int]:
        return [base_offset_of(path) for path in segment_files(self.data / "log" / name)]

    async def look(self) -> None:
        """Commit, look once, and let that commit land."""
        self.log.commit_and_wait()
        self.ages.look()
        self.ages.stop()
        self.log.commit_and_wait()
        for _ in range(200):
            await asyncio.sleep(0.005)
            if not any(partition._roll_asked for partition in self.log.partitions):
                break
        await asyncio.sleep(0.02)


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """A test that runs in a loop, with clocks of its own."""

    def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(test(tmp_path, Clocks(), monkeypatch))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@in_loop
async def test_a_segment_is_closed_when_it_is_old_and_not_before(
    data: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged = Aged(data, clocks)
    aged.log.start(Listener())
    aged.ages.start()
    fill(aged.log.queues[0], range(5))
    await aged.look()
    clocks.pass_ms(HOUR_MS - 1)
    await aged.look()
    assert aged.bases() == [0]
    clocks.pass_ms(1)
    await aged.look()
    assert aged.bases() == [0, 5]
    assert aged.bases("metadata-0") == [0], "an empty segment stays"
    clocks.pass_ms(5 * HOUR_MS)
    await aged.look()
    assert aged.bases() == [0, 5], "the new one is empty"
    fill(aged.log.queues[0], range(5, 8))
    aged.log.commit_and_wait()
    await aged.look()
    assert aged.bases() == [0, 5], "its age counts from its first record"
    clocks.pass_ms(HOUR_MS)
    await aged.look()
    assert aged.bases() == [0, 5, 8]
    aged.log.close()
    reader = EmbeddedLogReader(data).queues[0]
    assert sum(len(block.records) for block in reader.read()) == 8


@in_loop
async def test_a_wall_clock_that_jumps_closes_nothing(
    data: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged = Aged(data, clocks)
    aged.log.start(Listener())
    aged.ages.start()
    fill(aged.log.queues[0], range(5))
    await aged.look()
    for jump_ms in (400 * 24 * HOUR_MS, -800 * 24 * HOUR_MS):
        clocks.wall_ms += jump_ms
        await aged.look()
        assert aged.bases() == [0]
    aged.log.close()


@in_loop
async def test_the_age_goes_on_over_a_restart(data: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Aged(data, clocks)
    fill(first.log.queues[0], range(5))  # by log time, at START_MS
    first.log.close()
    clocks.pass_ms(HOUR_MS // 2)
    second = Aged(data, clocks)
    second.log.start(Listener())
    second.ages.start()
    await second.look()
    assert second.bases() == [0]
    clocks.pass_ms(HOUR_MS // 2)
    await second.look()
    assert second.bases() == [0, 5]
    second.log.close()


@in_loop
async def test_few_segments_are_closed_at_once(data: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    aged = Aged(data, clocks, partitions=2 * AT_ONCE)
    aged.log.start(Listener())
    aged.ages.start()
    aged.ages.stop()
    for partition in aged.log.queues:
        fill(partition, range(3))
    await aged.look()
    clocks.pass_ms(HOUR_MS)
    for looks in (1, 2):
        await aged.look()
        closed = [each for each in range(2 * AT_ONCE) if aged.bases(f"queues-{each}") == [0, 3]]
        assert len(closed) == looks * AT_ONCE
    aged.log.close()


@in_loop
async def test_a_full_disk_delays_the_new_segment_and_loses_nothing(
    data: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged = Aged(data, clocks)
    failures: list[Exception] = []
    aged.log.start(Listener(commit_failed=failures.append))
    aged.ages.start()
    fill(aged.log.queues[0], range(5))
    await aged.look()
    clocks.pass_ms(HOUR_MS)
    rename = os.rename

    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refused)
    await aged.look()
    assert aged.bases() == [0]
    assert not failures, "no publisher waits for it"
    monkeypatch.setattr(os, "rename", rename)
    fill(aged.log.queues[0], range(5, 7))
    aged.log.commit_and_wait()
    assert aged.bases() == [0, 5], "the next block begins it"
    clocks.pass_ms(AGAIN_NS // NS)
    await aged.look()
    aged.log.close()
    reader = EmbeddedLogReader(data).queues[0]
    assert sum(len(block.records) for block in reader.read()) == 7
