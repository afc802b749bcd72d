"""Makes the directory of an old leader a copy of the new one: it goes back to where the history branched.

    way = way_back(data_dir, leader)        None: the directory is a beginning of the leader's log already
    go_back(data_dir, way)                  {"queues-0": 12}: 12 records are kept in DIR/aside/<identity>/queues-0

A promotion is a HistoryForked in the metadata log. The leader says where each of its own branched, with the hash chain
there. The old leader's log has the same chain at these places, or it is refused. What it has behind them is in no other
log: it was never acknowledged by the follower that was promoted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rewindmq.engine.broker.followers import JoinRequest, branching_of
from rewindmq.engine.keeping.cut_back import cut_back
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition, read_layout
from rewindmq.engine.log.embedded.ends import End
from rewindmq.engine.log.embedded.raw_blocks import chain_at, end_at
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.roles import FENCED, FOLLOWER, read_note, write_note
from rewindmq.engine.log.embedded.root import root_of
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.standby.client import Leader
from rewindmq.projections.marks import topology_of
from rewindmq.projections.topology.about_history import Fork

ASIDE = "aside"


@dataclass(frozen=True, slots=True)
class Return:
    """The way back to the history with this identity: where each partition that continues after it has to end."""

    identity: str
    ends: dict[str, End]


def way_back(data_dir: Path, leader: Leader) -> Return | None:
    """Return the way back to the place where the leader's history branched; None if the directory need not go back.

    Raises LogError, CorruptLog."""
    ours = [fork.event.identity for fork in forks_of(data_dir)]
    theirs = [each.identity for each in leader.branches]
    if theirs[: len(ours)] != ours or len(theirs) == len(ours):
        return None
    branched = leader.branches[len(ours)]
    ends: dict[str, End] = {}
    for name in partitions_of(data_dir):
        directory = partition_directory(data_dir, name)
        end = PartitionReader(directory).next_offset if segment_files(directory) else 0
        offset, chain = branched.positions.get(name, (-1, b""))
        if offset >= 0 and end <= offset:
            continue  # this is a copy that ends before it: the join compares its end
        found = end_at(directory, offset) if offset > 0 else None
        if found is None or found.chain != chain:
            raise LogError(
                f"{data_dir}: {name} does not go back to the place where the leader's history branched (offset"
                f" {offset}): it is of another history, or that place was trimmed; begin anew in an empty directory"
            )
        ends[name] = found
    return Return(branched.identity, ends) if ends else None


def go_back(data_dir: Path, way: Return) -> dict[str, int]:
    """Go back. Returns how many records of each partition are kept aside. No broker starts here from now on.

    Raises LogError, CorruptLog, StoreError, OSError."""
    if read_note(data_dir / FOLLOWER) is None:
        write_note(data_dir / FENCED, {"promoted": way.identity})
    aside = data_dir / ASIDE / way.identity[:16]
    return {name: cut_back(data_dir, name, end, aside) for name, end in way.ends.items()}


def asked_of(data_dir: Path, instance: str, ends: Mapping[str, End] | None = None) -> JoinRequest:
    """Return the question with which a directory joins. `ends`: those of its partitions; None: they are looked up.

    Raises LogError, CorruptLog."""
    forks = forks_of(data_dir)
    places = ends_of(data_dir) if ends is None else {name: (end.offset, end.chain) for name, end in ends.items()}
    known = {name: End(0, 0, offset, chain) for name, (offset, chain) in places.items()}
    root = root_of(data_dir) if places[METADATA][0] else None
    newer = tuple(branching_of(data_dir, fork, known) for fork in forks)
    return JoinRequest(instance, root, tuple(fork.event.identity for fork in forks), places, newer)


def partitions_of(data_dir: Path) -> list[str]:
    """Return the partitions of a log. Raises LogError."""
    return [METADATA, *map(queue_partition, range(read_layout(data_dir)))]


def forks_of(data_dir: Path) -> list[Fork]:
    """Return the forks in a log, in order. Raises LogError, CorruptLog."""
    directory = partition_directory(data_dir, METADATA)
    return topology_of(PartitionReader(directory)).history.forks if segment_files(directory) else []


def ends_of(data_dir: Path) -> dict[str, tuple[int, bytes]]:
    """Offset and hash chain of the end of each partition. Raises LogError, CorruptLog."""
    found = {}
    for name in partitions_of(data_dir):
        directory = partition_directory(data_dir, name)
        offset = PartitionReader(directory).next_offset if segment_files(directory) else 0
        chain = chain_at(directory, offset, End(0, 0, 1 << 62, b"")) if offset else b""
        found[name] = offset, chain or b""
    return found
