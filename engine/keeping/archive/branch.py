"""Finds where a fork branches from an archived history: a moment becomes an offset of each partition.

    branch = branch_at(metadata, queues, identity, identity.history, "mark:before-release")
    branch.ends["queues-0"]        the offset after the last record that both histories share

- A time: a partition ends at the first offset whose time is greater, so a time after the archived end means the end.
- A mark: a queue partition ends at the position in the mark, the metadata log after the event that set it.
- Events of the same millisecond in two partitions may be torn apart, as by a crash. A broker's start repairs that
  (engine/embedded/start.py).
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rewindmq.engine.keeping.archive.identity import HistoryIdentity
from rewindmq.engine.keeping.archive.reader import ArchivedPartition
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.projections.floors import explained
from rewindmq.projections.marks import NoSuchMark, name_in, topology_of
from rewindmq.projections.replay import PartitionLog, events_of
from rewindmq.projections.rewind import (
    BelowFloor,
    OutsideHistory,
    begin_ms,
    format_time,
    parse_time,
    require_above_floor,
    require_in_history,
)
from rewindmq.schemas.metadata_events import HistoryForked, MarkDeleted, MarkSet
from rewindmq.schemas.placement_events import PartitionsAdded


@dataclass(frozen=True, slots=True)
class Branch:
    """A fork, and its branching point.

    `asked`: the moment as given to the command. `moment`: the same, but `-10m` as a time. `parent` and `identity`: the
    two histories. `ends`: by partition, the offset after their last shared record."""

    asked: str
    moment: str
    parent: str
    identity: str
    ends: dict[str, int]

    def event(self, source: str) -> HistoryForked:
        """Return the event with which the fork begins."""
        positions = tuple((name, end) for name, end in self.ends.items() if name != METADATA)
        return HistoryForked(self.parent, self.identity, self.moment, positions, source)


def branch_at(
    metadata: ArchivedPartition,
    queues: Sequence[ArchivedPartition],
    archived: HistoryIdentity,
    begun_as: str,
    asked: str,
) -> Branch:
    """Find the branching point of a fork at this moment. It gets a random identity, and no partition added later.

    `begun_as`: the identity with which the metadata log begins. Raises UnreadableTime, NoSuchMark; OutsideHistory for
    a moment before the history or below a floor, a time in the future, a mark after the archived end; CorruptObject,
    ArchiveError, NoAnswer."""
    name = name_in(asked)
    if name is not None:
        moment, ends = asked.strip(), _ends_of_mark(metadata, queues, name)
    else:
        time_ms = parse_time(asked)
        moment, ends = format_time(time_ms), _ends_at(metadata, queues, time_ms)
    for later in list(ends)[1 + partitions_until(metadata, ends[METADATA], archived.begun_with) :]:
        if ends.pop(later) > 0:
            raise OutsideHistory(f"{asked}: nodes began to use {later} at that time: give an earlier or a later one")
    parent = begun_as if begun_as == archived.history else identity_in(metadata, begun_as, ends[METADATA])
    return Branch(asked, moment, parent, secrets.token_hex(32), ends)


def partitions_until(metadata: PartitionLog, end: int, made_with: int) -> int:
    """Return the number of the log's queue partitions at offset `end` of its metadata log.

    `made_with`: the number if none were ever added. Raises CorruptLog, LogError."""
    found = made_with
    for offset, _, _, event in events_of(metadata):
        if isinstance(event, PartitionsAdded):
            if offset >= end:
                return event.before
            found = event.partitions
    return found


def identity_in(metadata: PartitionLog, begun_as: str, end: int | None = None) -> str:
    """Return the identity of the history up to offset `end` of its metadata log (None: its end).

    The last HistoryForked decides. Raises CorruptLog, LogError."""
    identity = begun_as
    for offset, _, _, event in events_of(metadata):
        if end is not None and offset >= end:
            break
        if isinstance(event, HistoryForked):
            identity = event.identity
    return identity


def _ends_at(metadata: ArchivedPartition, queues: Sequence[ArchivedPartition], time_ms: int) -> dict[str, int]:
    partitions = [metadata, *queues]
    require_in_history(partitions, time_ms)
    for partition in queues:
        try:
            require_above_floor(partition, time_ms)
        except BelowFloor as error:
            raise explained(error, topology_of(metadata).history.floors) from None
    newest_ms = max(segment.max_timestamp_ms for partition in partitions for segment in partition.segments)
    if time_ms > max(newest_ms, time.time_ns() // 1_000_000):
        raise OutsideHistory(f"{format_time(time_ms)} is in the future: there is no history of it yet")
    ends = {partition.name: partition.offset_at(time_ms) for partition in partitions}
    if not ends[METADATA]:
        begin = format_time(begin_ms(metadata) or 0)
        raise OutsideHistory(f"{format_time(time_ms)} is before the history, which begins {begin}")
    return ends


def _ends_of_mark(metadata: ArchivedPartition, queues: Sequence[ArchivedPartition], name: str) -> dict[str, int]:
    marks: dict[str, tuple[int, MarkSet]] = {}
    for offset, _, _, event in events_of(metadata):
        if isinstance(event, MarkSet):
            marks[event.name] = offset, event
        elif isinstance(event, MarkDeleted):
            marks.pop(event.name, None)
    if name not in marks:
        known = ", ".join(sorted(marks)) or "none"
        raise NoSuchMark(f"there is no mark {name!r} in the archive (its marks: {known})")
    set_at, mark = marks[name]
    positions = dict(mark.positions)
    ends = {METADATA: set_at + 1}
    for partition in queues[: partitions_until(metadata, set_at, len(queues))]:
        if partition.name not in positions:
            raise NoSuchMark(f"mark {name!r} has no position in {partition.name}")
        ends[partition.name] = positions[partition.name]
        if ends[partition.name] < partition.start_offset:
            what = f"mark {name!r} is at offset {ends[partition.name]} of {partition.name}"
            begins = f"the history begins at offset {partition.start_offset}"
            error = BelowFloor(partition.name, partition.start_offset, f"{what}, and {begins}")
            raise explained(error, topology_of(metadata).history.floors)
        if ends[partition.name] > partition.next_offset:
            raise OutsideHistory(
                f"mark {name!r} is after the archived end: it is at offset {ends[partition.name]} of"
                f" {partition.name}, which is archived up to offset {partition.next_offset}: archive the newer records"
            )
    return ends
