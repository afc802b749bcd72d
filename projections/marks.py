"""Named moments: `mark:before-release` is accepted wherever a moment is given.

    at = moment("mark:before-release", "queues-0", lambda: topology.marks)     # At(offset=...) of that partition
    marks_of(log.metadata, snapshots)                                          # for tools that have no topology

A mark holds a position of every queue partition (`MarkSet`). The events below these positions had happened; the clock
of a partition is where the last of these events left it.
"""

from collections.abc import Callable, Mapping

from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rewind import At, RewindError, parse_time
from rewindmq.projections.store.metadata_snapshots import newest
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.metadata_fold import fold_on
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.metadata_events import MarkSet

PREFIX = "mark:"
Marks = Mapping[str, MarkSet]


class NoSuchMark(RewindError):
    """The mark was never set, or it was cleared."""


def name_in(text: str | None) -> str | None:
    """Return NAME of `mark:NAME`; None for any other text."""
    stripped = "" if text is None else text.strip()
    return stripped.removeprefix(PREFIX) if stripped.startswith(PREFIX) else None


def positions(marks: Marks, name: str) -> dict[str, int]:
    """Return the offsets of a mark, by partition.

    Raises NoSuchMark."""
    found = marks.get(name)
    if found is None:
        raise NoSuchMark(f"there is no mark {name!r}")
    return dict(found.positions)


def moment(text: str, partition: str, marks: Callable[[], Marks]) -> At:
    """Return the moment that a text names: a time, or a mark.

    `marks` is called for a mark only. Raises UnreadableTime, NoSuchMark."""
    name = name_in(text)
    if name is None:
        return At(time_ms=parse_time(text))
    found = positions(marks(), name)
    if partition not in found:
        raise NoSuchMark(f"mark {name!r} says nothing of {partition}")
    return At(offset=found[partition], partition=partition)


def marks_of(metadata: PartitionLog, snapshots: Snapshots | None = None) -> Marks:
    """Return the marks by name, as `topology_of`. Raises CorruptLog, LogError."""
    return topology_of(metadata, snapshots).marks


def topology_of(metadata: PartitionLog, snapshots: Snapshots | None = None) -> Topology:
    """Return the current topology, folded from the newest of these snapshots or from the beginning of the log.

    Raises CorruptLog, LogError."""
    fold = newest(snapshots, metadata)
    fold_on(fold, metadata)
    return fold.topology
