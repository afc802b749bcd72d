"""Begins a new segment in a partition when the last one is older than --segment-age, so that it can be archived.

    checks once a second    last segment not empty, its first record older than the age -> a new segment with the next
                            group commit

- A segment's age counts from its first record by the monotonic clock, so setting the wall clock ends no segment.
- The age of a segment that exists at the start is taken once from log time, which continues where the log ended.
- Segments of many partitions come of age together. A few are ended at each check, so that publishers hardly notice.
- A step of a repartition ends all of them at once (`end_all`), because messages moved between partitions, and the
  archive should have both sides.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from rewindmq.engine.log.embedded.log import EmbeddedLog, EmbeddedPartition
from rewindmq.engine.log.embedded.segments import record_timestamp
from rewindmq.engine.partition.log_clock import NS, LogClock

LOOK_SECONDS: Final = 1.0
AT_ONCE: Final = 4  # new segments at one check
AGAIN_NS: Final = 60_000 * NS  # after the disk refused a new segment


class SegmentAge:
    """The last segment of one partition. Times in nanoseconds of the monotonic clock."""

    def __init__(self, partition: EmbeddedPartition) -> None:
        self.partition = partition
        self._base = partition.last_base
        self._since: int | None = None  # the time of its first record; None: it has none
        self._asked: int | None = None  # the time of the last request for a new segment

    def found_at_start(self, now_ms: int, now_ns: int) -> None:
        """Take the age of a segment found at the start from its first record's log time."""
        for block in self.partition.read(self._base, self._base + 1):
            age_ms = max(0, now_ms - record_timestamp(block.records[self._base - block.first_offset]))
            self._since = now_ns - age_ms * NS
            return

    def is_due(self, now_ns: int, age_ns: int) -> bool:
        """Return True if a new segment should begin now."""
        base = self.partition.last_base
        if base != self._base:
            self._base, self._since, self._asked = base, None, None
        if self._since is None and self.partition.durable_offset > base:
            self._since = now_ns
        old = self._since is not None and now_ns - self._since >= age_ns
        return old and (self._asked is None or now_ns - self._asked >= AGAIN_NS)

    def end(self, now_ns: int) -> None:
        """Let the partition begin a new segment."""
        self._asked = now_ns
        self.partition.roll_soon()


class SegmentAges:
    """The last segments of a log, and their age limit."""

    def __init__(self, log: EmbeddedLog, clock: LogClock, age_ms: int) -> None:
        self._log = log
        self._clock = clock
        self._age_ns = age_ms * NS
        self._ages: Sequence[SegmentAge] = [SegmentAge(partition) for partition in log.partitions]
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check once a second from now on."""
        now_ms, now_ns = self._clock.now_ms(), self._clock.elapsed_ns()
        for age in self._ages:
            age.found_at_start(now_ms, now_ns)
        self.look()

    def look(self) -> None:
        """End the first few due segments."""
        now_ns = self._clock.elapsed_ns()
        due = [age for age in self._ages if age.is_due(now_ns, self._age_ns)][:AT_ONCE]
        for age in due:
            age.end(now_ns)
        if due:
            self._log.commit()
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.look)

    def end_all(self) -> None:
        """Begin a new segment in every partition whose last one has a record."""
        for partition in self._log.partitions:
            partition.roll_soon()
        self._log.commit()

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
