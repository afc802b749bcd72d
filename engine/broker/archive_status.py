"""The state of a running broker's archive, for `status`, the overview and metrics.

    archiver process -> archive_supervisor.py -> ArchiveStatus -> engine/http

Lag is the history that would be lost with the disk: all records that are not in the archive, including those of the
open segments. So it is up to --segment-age and --archive-lag while all is well.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from rewindmq.engine.keeping.archive.progress import PartitionProgress

Item = dict[str, object]


class LogEnd(Protocol):
    """A partition of the log, as far as the lag is concerned."""

    @property
    def name(self) -> str: ...
    @property
    def durable_offset(self) -> int: ...


class ArchiveStatus:
    """The archiver's last report. `url`: without a login. `clock`: log time in ms; `monotonic`: seconds.

    `in_kafka`: told the bytes of each partition that Kafka has, where the log is there."""

    def __init__(
        self,
        url: str,
        partitions: Sequence[LogEnd],
        clock: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        in_kafka: Callable[[dict[str, int]], None] = lambda sizes: None,
    ) -> None:
        self.url = url
        self.failures = 0  # passes that failed, and archivers that ended
        self.error: str | None = None  # why the last pass failed
        self.freed_bytes = 0  # of archived segments that were removed here
        self.stays: str | None = None  # why segments that are due to be removed here are not
        self.retention: str | None = None  # what a person has to do about Kafka's own
        self.archived: dict[str, PartitionProgress] = {}  # by partition; empty: not known yet
        self._in_kafka = in_kafka
        self._partitions = partitions
        self._clock = clock
        self._monotonic = monotonic
        self._looked = monotonic()  # when the end of the archive was last known
        self._looked_ms = clock()

    def told(self, archived: Sequence[PartitionProgress]) -> None:
        """Take how far the partitions are archived."""
        if archived:
            self.archived = {each.partition: each for each in archived}
            self._looked, self._looked_ms = self._monotonic(), self._clock()
            sizes = {each.partition: each.in_topic.size_bytes for each in archived if each.in_topic is not None}
            if sizes:
                self._in_kafka(sizes)

    def cut(self, freed_bytes: int, stays: str | None) -> None:
        """Take what was removed here since the last report, and why other segments that were due stay."""
        self.freed_bytes += freed_bytes
        self.stays = stays

    @property
    def archived_bytes(self) -> int:
        """Size of all objects."""
        return sum(each.archived_bytes for each in self.archived.values())

    @property
    def archived_until_ms(self) -> int | None:
        """Every record before this time is archived, in all partitions; None: not known yet."""
        if not self.archived:
            return None
        waiting = [
            self._looked_ms if known.oldest_waiting_ms is None else known.oldest_waiting_ms
            for known in self.archived.values()
        ]
        return min(waiting, default=None)

    def lag_records(self, partition: LogEnd) -> int:
        """Return the number of the partition's durable records that are not archived."""
        known = self.archived.get(partition.name)
        return partition.durable_offset - (known.archived_end if known is not None else 0)

    def lag_seconds(self, partition: LogEnd) -> float:
        """Return the age of the partition's oldest record that is not archived; 0 if all records are archived."""
        known = self.archived.get(partition.name)
        if known is None or not self.lag_records(partition):
            return 0.0
        if known.oldest_waiting_ms is None:  # the first came after the last look
            return self._monotonic() - self._looked
        return max(0, self._clock() - known.oldest_waiting_ms) / 1_000

    def lags(self) -> list[tuple[LogEnd, int, int, float]]:
        """The records, bytes and seconds that are not archived, for each partition that the archiver knows."""
        return [
            (each, self.lag_records(each), self.archived[each.name].waiting_bytes, self.lag_seconds(each))
            for each in self._partitions
            if each.name in self.archived
        ]

    def lost(self) -> dict[str, tuple[int, int]]:
        """By partition: the first offset that Kafka removed and that is not archived, and the one behind the last."""
        return {
            name: each.in_topic.lost
            for name, each in self.archived.items()
            if each.in_topic is not None and each.in_topic.lost is not None
        }
