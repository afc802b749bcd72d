"""How long a group gathers before its commit. In virtual time: the disk takes DISK_US for a commit."""

import heapq
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from rewindmq.engine.log.embedded.commit import BUSY_RECORDS, Committer

DISK_US = 300


class Loop:
    """A loop in virtual microseconds, as uvloop's: its clock and its timers have whole milliseconds."""

    def __init__(self) -> None:
        self.now_us = 0
        self.landed: SimpleQueue[tuple[Any, ...]] = SimpleQueue()  # from the thread of commits
        self._waiting: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def time(self) -> float:
        return self.now_us // 1_000 / 1_000

    def call_later(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> None:
        milliseconds = round(seconds * 1_000)
        assert milliseconds, "uvloop calls this back at once: the loop would not rest until its clock has moved"
        self.after((self.now_us // 1_000 + milliseconds) * 1_000 - self.now_us, callback, *arguments)

    def after(self, us: int, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back in exactly this time."""
        self._count += 1
        heapq.heappush(self._waiting, (self.now_us + us, self._count, callback, arguments))

    def call_soon_threadsafe(self, callback: Any, *arguments: Any) -> None:
        self.landed.put((callback, arguments))

    def run(self, us: int) -> None:
        """Let this much time pass."""
        end = self.now_us + us
        while self._waiting and self._waiting[0][0] <= end:
            self.now_us, _, callback, arguments = heapq.heappop(self._waiting)
            callback(*arguments)
        self.now_us = end


class Disk:
    """The only partition of a log, and the listener of the log. `commits`: when they began, and their records."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.next_offset = 0
        self.durable_offset = 0
        self.commits: list[tuple[int, int]] = []
        self._end = 0
        self.committer = Committer([self])
        self.committer.start(self)

    def append(self, records: int) -> None:
        """Append in a turn of work, which ends with a commit."""
        self.next_offset += records
        self.committer.commit()

    def close_group(self) -> int:
        records = self.next_offset - self.durable_offset
        if records:
            self._end = self.next_offset
            self.commits.append((self.loop.now_us, records))
            self.loop.after(DISK_US, self._call_back)
        return records

    def _call_back(self) -> None:
        callback, arguments = self.loop.landed.get(timeout=60)
        callback(*arguments)

    def write_closed(self) -> None:
        """Do nothing: the disk's time passes in the loop."""

    def land(self) -> bool:
        moved = self.durable_offset < self._end
        self.durable_offset = self._end
        return moved

    def durable(self) -> None:
        """Do nothing: no client waits."""

    def commit_failed(self, error: Exception) -> None:
        raise error


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    made.now_us = 91_527_000_000
    monkeypatch.setattr("asyncio.get_running_loop", lambda: made)
    return made


@pytest.fixture
def disk(loop: Loop) -> Iterator[Disk]:
    made = Disk(loop)
    yield made
    made.committer.close()


def test_a_small_commit_is_followed_by_the_next_at_once(loop: Loop, disk: Disk) -> None:
    """At a thousand messages a second each one's commit begins in the turn that appended it."""
    for records in [1] * 200 + [BUSY_RECORDS - 1] * 200:
        disk.append(records)
        assert disk.commits[-1] == (loop.now_us, records)
        loop.run(1_000 if records == 1 else DISK_US + 10)


def test_the_interval_after_a_busy_commit_ends_by_one_timer(loop: Loop, disk: Disk) -> None:
    """The times of uvloop's clock are floats, so two of them may differ by a little less than a whole millisecond."""
    for number in range(1, 200):
        disk.append(BUSY_RECORDS)
        loop.run(1_000)
        assert len(disk.commits) == number
