"""`fromCheckpoint`: lets a fold begin at exactly the named snapshot, and go on from there.

    {"queues-0": 400}      the snapshot of queues-0 at offset 400; for partitions that are not named, the nearest

It is like `snapshotStartBatchId` of Spark's state source: it shows the state to which one snapshot leads, whatever
others say. Elsewhere a snapshot only saves time, and a damaged one is skipped; here it is an error.
"""

from collections.abc import Iterable, Sequence

from rewindmq.projections.store.snapshots import SnapshotSet
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange, parse_offsets

_LISTED = 20


def parse_checkpoints(text: str | None, ranges: Iterable[OffsetRange], snapshots: SnapshotSet | None) -> dict[str, int]:
    """Return the checkpoint of each partition that `text` names.

    Raises BadRequest when there is no such snapshot, or when it lies beyond the end of the partition's range."""
    ends = {offset_range.partition: offset_range.end for offset_range in ranges}
    named = {} if text is None else parse_offsets(text, ends, "fromCheckpoint")
    for name, at in named.items():
        there = [] if snapshots is None else snapshots.offsets(name)
        if at not in there:
            raise BadRequest(f"fromCheckpoint: {name} has no snapshot at {at}; {_listed(there, at)}")
        if at > ends[name]:
            raise BadRequest(f"fromCheckpoint: {name} at {at} lies beyond the moment asked for, offset {ends[name]}")
    return named


def _listed(there: Sequence[int], at: int) -> str:
    """Return a text that lists the snapshots; the nearest ones when there are many."""
    if not there:
        return "it has none"
    nearest = sorted(sorted(there, key=lambda offset: abs(offset - at))[:_LISTED])
    more = f" and {len(there) - _LISTED} further away" if len(there) > _LISTED else ""
    return f"there are {', '.join(map(str, nearest))}{more}"
