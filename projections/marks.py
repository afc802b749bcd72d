"""Moments with a name: `mark:before-release`, wherever a moment is given.

    at = moment("mark:before-release", "queues-0", lambda: topology.marks)     # At(offset=...) of that partition
    marks_of(log.metadata)                                                     # where no broker has the topology

A mark holds a position of every queue partition (`MarkSet`). What was logged below them had happened; the clock of a
partition stands where the last of it left it.
"""

from collections.abc import Callable, Mapping

from rewindmq.projections.replay import PartitionLog, events_of
from rewindmq.projections.rewind import At, RewindError, parse_time
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import MarkSet

PREFIX = "mark:"
Marks = Mapping[str, MarkSet]


class NoSuchMark(RewindError):
    """Nobody has set it, or it was cleared."""


def name_in(text: str | None) -> str | None:
    """NAME of `mark:NAME`; None of what is no mark."""
    stripped = "" if text is None else text.strip()
    return stripped.removeprefix(PREFIX) if stripped.startswith(PREFIX) else None


def positions(marks: Marks, name: str) -> dict[str, int]:
    """Offsets by partition. NoSuchMark."""
    found = marks.get(name)
    if found is None:
        raise NoSuchMark(f"there is no mark {name!r}")
    return dict(found.positions)


def moment(text: str, partition: str, marks: Callable[[], Marks]) -> At:
    """Of a time or a mark, as people write it. UnreadableTime, NoSuchMark."""
    name = name_in(text)
    if name is None:
        return At(time_ms=parse_time(text))
    found = positions(marks(), name)
    if partition not in found:
        raise NoSuchMark(f"mark {name!r} says nothing of {partition}")
    return At(offset=found[partition])


def marks_of(metadata: PartitionLog) -> Marks:
    return topology_of(metadata).marks


def topology_of(metadata: PartitionLog) -> Topology:
    """From the metadata log, as it is now. CorruptLog, LogError."""
    topology = Topology()
    for offset, timestamp_ms, actor, event in events_of(metadata):
        topology.apply(offset, timestamp_ms, actor, event)
    return topology
