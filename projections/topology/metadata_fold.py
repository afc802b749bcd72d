"""Folds the metadata log: the topology, the clock of the log, and the skipped records.

    fold = MetadataFold()
    fold_on(fold, log)                      # from `fold.next_offset` to the end of the log

A fold may continue from a stored state (fold_image.py, store/metadata_snapshots.py), with the same result as a fold
from the beginning.
"""

from bisect import bisect_left
from collections.abc import Callable

from rewindmq.projections.replay import PartitionLog, decoder_for, groups_of
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import Actor


class MetadataFold:
    """The folded state of the metadata log.

    `next_offset`: the offset after the last record. `clock_ms`: the largest timestamp since the clock was set.
    `latest_ms`: the largest timestamp of all. `last_record`: the record at `next_offset - 1`, if it was folded from a
    log; it is not part of the state."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.quarantine = QuarantineReport()
        self.next_offset = 0
        self.clock_ms = 0
        self.latest_ms = 0
        self.last_record = b""

    def apply(self, offset: int, timestamp_ms: int, actor: Actor, event: Event) -> str:
        """Apply an event. Return the reason if it is nonsense and was quarantined, otherwise ""."""
        self.next_offset = offset + 1
        self.clock_ms = timestamp_ms if isinstance(event, ClockSet) else max(self.clock_ms, timestamp_ms)
        if timestamp_ms > self.latest_ms:
            self.latest_ms = timestamp_ms
        problem = self.topology.apply(offset, timestamp_ms, actor, event)
        if problem:
            self.quarantine.add(offset, type(event).__name__, problem)
        return problem

    def skip(self, offset: int, reason: str) -> None:
        """Quarantine a record that cannot be decoded."""
        self.next_offset = offset + 1
        self.quarantine.note_undecodable(offset, reason)


def fold_on(
    fold: MetadataFold,
    log: PartitionLog,
    end: int | None = None,
    skipped: Callable[[int, str], None] | None = None,
    strict: bool = False,
) -> int:
    """Fold the log from `fold.next_offset` up to offset `end` (exclusive; None: the end of the log).

    Returns the number of records. `skipped` is called with offset and reason of each quarantined record. `strict`:
    raise UndecodableRecord, and quarantine no record that cannot be decoded. Raises CorruptLog, LogError."""
    decode = decoder_for(log).decode
    begin, count = fold.next_offset or log.start_offset, 0
    for offsets, records, times in groups_of(log, begin, end):
        behind = len(offsets) if end is None else bisect_left(offsets, end)
        for index in range(bisect_left(offsets, begin), behind):
            offset, record = offsets[index], records[index]
            fold.last_record = record
            count += 1
            try:
                timestamp_ms, actor, event = decode(record)
            except UndecodableRecord as error:
                if strict:
                    raise
                fold.skip(offset, str(error))
                problem = str(error)
            else:
                problem = fold.apply(offset, timestamp_ms if times is None else times[index], actor, event)
            if problem and skipped is not None:
                skipped(offset, problem)
    return count
