"""A commit follows the load, and the clients that wait for it. In virtual time.

The disk takes DISK_US for a commit. Clients append records in the loop, and may wait until these are durable."""

import heapq
from collections.abc import Callable, Iterator
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import pytest

from rewindmq.engine.log.embedded.commit import BUSY_RECORDS, Committer
from tests.simulation.virtual import Handle

DISK_US = 300
AWAITED_US = 1_000
INTERVAL_US = 5_000
TURN_US = 100  # between two turns of a client that sends


class Loop:
    """A loop in virtual microseconds, as uvloop's: its clock and its timers have whole milliseconds."""

    def __init__(self) -> None:
        self.now_us = 0
        self.landed: SimpleQueue[tuple[Any, ...]] = SimpleQueue()  # from the thread of commits
        self._waiting: list[tuple[int, int, Handle]] = []
        self._count = 0

    def time(self) -> float:
        return self.now_us // 1_000 / 1_000

    def call_later(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> Handle:
        milliseconds = round(seconds * 1_000)
        assert milliseconds, "uvloop calls this back at once: the loop would not rest until its clock has moved"
        return self.after((self.now_us // 1_000 + milliseconds) * 1_000 - self.now_us, callback, *arguments)

    def after(self, us: int, callback: Callable[..., object], *arguments: Any) -> Handle:
        """Call back in exactly this time."""
        handle = Handle(callback, arguments)
        self._count += 1
        heapq.heappush(self._waiting, (self.now_us + us, self._count, handle))
        return handle

    def call_soon_threadsafe(self, callback: Any, *arguments: Any) -> None:
        self.landed.put((callback, arguments))

    def run(self, us: int) -> None:
        """Let this much time pass."""
        end = self.now_us + us
        while self._waiting and self._waiting[0][0] <= end:
            self.now_us, _, handle = heapq.heappop(self._waiting)
            if handle.callback is not None:
                handle.callback(*handle.arguments)
        self.now_us = end


class Disk:
    """The only partition of a log, and the listener of the log. `commits`: when they began, and their records."""

    def __init__(self, loop: Loop, interval_us: int = INTERVAL_US) -> None:
        self.loop = loop
        self.us = DISK_US
        self.awaits_log = True
        self.in_thread = True  # the thread writes
        self.error: OSError | None = None
        self.failures = 0
        self.waiters: list[Callable[[], object]] = []  # called when more is durable
        self.next_offset = 0
        self.durable_offset = 0
        self.commits: list[tuple[int, int]] = []
        self._end = 0
        self.committer = Committer([self], interval_us / 1_000_000)
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
            if self.in_thread:
                self.loop.after(self.us, self._call_back)
        return records

    def _call_back(self) -> None:
        callback, arguments = self.loop.landed.get(timeout=60)
        callback(*arguments)

    def write_closed(self) -> None:
        """Fail, or do nothing: the disk's time passes in the loop."""
        if self.error is not None:
            raise self.error

    def land(self) -> bool:
        if self.error is not None:
            return False
        moved = self.durable_offset < self._end
        self.durable_offset = self._end
        return moved

    def durable(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()

    def commit_failed(self, error: Exception) -> None:
        self.failures += 1

    @property
    def gaps(self) -> list[int]:
        """The times between the beginnings of successive commits."""
        times = [at for at, _ in self.commits]
        return [later - earlier for earlier, later in pairwise(times)]


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


def send_steadily(disk: Disk, records: int) -> None:
    """Append this many records in each turn, whatever is durable."""
    disk.append(records)
    disk.loop.after(TURN_US, send_steadily, disk, records)


def send_windows(disk: Disk, window: int) -> None:
    """Append a window of publishes, and the next one when they are durable."""
    disk.append(window)
    disk.waiters.append(lambda: disk.loop.after(TURN_US, send_windows, disk, window))


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


def test_commits_are_a_millisecond_apart_under_load(loop: Loop, disk: Disk) -> None:
    send_steadily(disk, 10)
    loop.run(1_000_000)
    assert set(disk.gaps[10:]) == {AWAITED_US}


@pytest.mark.parametrize("window", [BUSY_RECORDS, 50, 500])
def test_clients_that_wait_for_their_confirms_wait_for_no_others(loop: Loop, disk: Disk, window: int) -> None:
    send_windows(disk, window)
    loop.run(1_000_000)
    assert {records for _, records in disk.commits} == {window}
    assert set(disk.gaps) == {AWAITED_US}


def test_commits_that_nobody_waits_for_are_an_interval_apart(loop: Loop, disk: Disk) -> None:
    disk.awaits_log = False
    send_steadily(disk, 10)
    loop.run(1_000_000)
    assert set(disk.gaps) == {INTERVAL_US}


def test_the_first_record_after_a_rest_does_not_wait(loop: Loop, disk: Disk) -> None:
    disk.awaits_log = False
    for _ in range(10):
        disk.append(1)
        assert disk.commits[-1] == (loop.now_us, 1)
        loop.run(INTERVAL_US)


def test_a_client_that_begins_to_wait_ends_the_interval(loop: Loop, disk: Disk) -> None:
    """For example with a declaration, beside publishes without confirms."""
    disk.awaits_log = False
    disk.append(BUSY_RECORDS - 1)
    loop.run(DISK_US)
    disk.append(1)
    assert len(disk.commits) == 1
    disk.awaits_log = True
    disk.append(1)
    assert disk.commits[1:] == [(loop.now_us, 2)]
    loop.run(1_000_000)
    assert len(disk.commits) == 2


@pytest.mark.parametrize("after_us", range(500, INTERVAL_US, 1_000))
def test_a_client_that_begins_to_wait_under_load_waits_as_beside_others(loop: Loop, disk: Disk, after_us: int) -> None:
    disk.awaits_log = False
    send_steadily(disk, 10)
    loop.run(10 * INTERVAL_US + after_us)
    disk.awaits_log = True
    loop.run(INTERVAL_US)
    longest = max(AWAITED_US, -(-after_us // AWAITED_US) * AWAITED_US)
    assert disk.gaps[:10] == [INTERVAL_US] * 10
    assert AWAITED_US <= disk.gaps[10] <= longest
    assert set(disk.gaps[12:]) == {AWAITED_US}  # the loop's clock shows whole milliseconds


@pytest.mark.parametrize("awaits_log", [False, True])
def test_without_an_interval_commits_are_as_fast_as_the_disk(loop: Loop, awaits_log: bool) -> None:
    disk = Disk(loop, interval_us=0)
    disk.awaits_log = awaits_log
    send_steadily(disk, 10)
    loop.run(100_000)
    assert set(disk.gaps) == {DISK_US}
    disk.committer.close()


@pytest.mark.parametrize("awaits_log", [False, True])
def test_a_slow_disk_adds_to_no_interval(loop: Loop, disk: Disk, awaits_log: bool) -> None:
    disk.us = 20_000
    disk.awaits_log = awaits_log
    send_steadily(disk, 10)
    loop.run(1_000_000)
    assert set(disk.gaps) == {disk.us}


def test_what_is_made_durable_at_once_is_not_committed_again(loop: Loop, disk: Disk) -> None:
    disk.awaits_log = False
    disk.append(BUSY_RECORDS)
    loop.run(DISK_US)
    disk.append(5)  # they wait for the end of the interval
    disk.in_thread = False
    disk.committer.commit_and_wait()
    disk.in_thread = True
    assert disk.durable_offset == BUSY_RECORDS + 5
    disk.commits.clear()
    loop.run(1_000_000)
    assert disk.commits == []


@pytest.mark.parametrize("awaits_log", [False, True])
def test_a_failed_commit_is_tried_again_after_a_second(loop: Loop, disk: Disk, awaits_log: bool) -> None:
    disk.error = OSError(28, "No space left on device")
    disk.awaits_log = awaits_log
    send_steadily(disk, 10)
    loop.run(3_500_000)
    assert disk.failures == 4
    disk.error = None
    loop.run(1_000_000)
    assert disk.failures == 4
    assert disk.durable_offset >= disk.next_offset - (INTERVAL_US + DISK_US) / TURN_US * 10


def test_a_closed_committer_begins_no_commit(loop: Loop, disk: Disk) -> None:
    disk.awaits_log = False
    disk.append(1)
    loop.run(DISK_US)
    disk.append(1)
    disk.committer.close()
    loop.run(1_000_000)
    assert len(disk.commits) == 1
