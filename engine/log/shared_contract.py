"""The contract of a log that several nodes append to, and whose server decides the order (Kafka).

A node applies only the records that it reads back. An appended record has no offset until the node reads it back, among
the records of all others, in the one order that every node sees; a record that was read back is durable. So all nodes
fold the same states, without a protocol between them.

    log.follow({name: offset}, node)   from there on everything is read back, including the node's own records:
                                       node.arrived([Arrived, ...]), in the loop, ascending offsets in each partition
    partition.append(key, value)       fire: the order of one node's appends to one partition is kept, nothing is lost
                                       while the process lives, however long the log is unreachable
    await log.read_to_end()            every record in the followed partitions at the call has arrived
    await log.pause("queues-1")        no more of its records arrive
    log.resume("queues-1", offset)     it is followed again, from there on
    log.states                         copies of snapshots, for a starting node
    log.counters                       one topic's partition for each queue partition; empty if none may be paused
    log.flush()                        the turn is over: appended records need no longer wait for others

Values are Avro single objects (`rewindmq.schemas.single_object`), one event each; keys are `vhost/queue` (UTF-8), or
empty for events that concern the whole partition. An event's time is the log's own timestamp, given when it was
appended there (LogAppendTime), not the envelope's.

Besides history (`metadata`, `queues`) there are heartbeats in `nodes` (`NodeAlive` events), kept only for an hour and
never folded into a state, and `counters` of queues (partition/queue_counters.py). The log keeps the last record of each
counter's key. A record without a value removes its key; it arrives as REMOVED and the key.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from rewindmq.engine.log.contract import Block, LogError

if TYPE_CHECKING:
    from rewindmq.projections.store.bases import Base

# The key of a filler: a record without a value that takes an offset without a record of the history. Topics made from
# an archive have fillers where transactions ended in the former ones. All readers skip them.
FILLER_KEY: Final = b"rewindmq.filler"


REMOVED: Final = b"\x00"


class RecordTooLarge(LogError):
    """The record is too large and was not appended."""


@dataclass(slots=True)
class Arrived:
    """Records read back from one partition. Three lists of one length; offsets ascend and may have gaps."""

    partition: str  # the partition's name
    offsets: list[int]
    timestamps_ms: list[int]
    values: list[bytes]


class SharedPartition(Protocol):
    """One partition: `metadata-0`, `nodes-0`, `queues-0` .. as in the embedded log.

    The reading half of the contract is that of `rewindmq.engine.log.contract.LogPartition`, so that recovery, rewinds,
    `verify` and Spark read both alike."""

    name: str
    shared: bool  # True (contract.py)

    @property
    def start_offset(self) -> int:
        """Return the offset of the oldest retained record, by asking the log."""

    @property
    def next_offset(self) -> int:
        """Return the high watermark, below which every offset can now be read, by asking the log."""

    def append(self, key: bytes, value: bytes) -> None:
        """Send a record to the log.

        Raises RecordTooLarge."""

    @property
    def all_reported(self) -> bool:
        """Return True once the delivery of every append has been reported to this program. Some reports arrive late."""

    def report(self, on: bool) -> None:
        """Report each append to the listener once it is in the log (`SharedLogListener.delivered`), or stop that."""

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks (runs of consecutive offsets, with `timestamps_ms`) from `offset` up to `end`.

        `end`: exclusive; None: the current readable end. Blocks the caller, for start, rewinds and tools. Raises
        LogError if the log is unreachable for too long."""

    def record(self, offset: int, seconds: float) -> bytes | None:
        """Return the record at an offset below `next_offset`; None: the offset is a gap.

        Blocks the caller. Raises LogError when the log does not answer within `seconds`."""

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset whose timestamp is greater than `timestamp_ms`; `next_offset` when there is none."""

    def base(self) -> "Base | None":
        """Return the base with which the partition begins; None if it begins at offset 0, or keeps no bases."""


class CounterTopic(Protocol):
    """A partition of counters, `counters-0` ..., for whose records nothing waits, and which the log may lose."""

    name: str
    opened_at: int  # after the last record when the log was opened

    @property
    def all_reported(self) -> bool:
        """Return True if every append so far is in the log or was refused."""

    def append(self, key: bytes, value: bytes | None) -> None:
        """Send a record to the log; None: the key no longer has a value.

        Raises RecordTooLarge."""


@dataclass(frozen=True, slots=True)
class StateCopied:
    """A copy of a snapshot in a file. `offset`: of the state. `claim`: the offset of the digest's claim in the log."""

    offset: int
    claim: int
    path: Path


class WritingStopped(Exception):
    """The copy was abandoned because the node stops."""


class StateTopic(Protocol):
    """A store for a copy of each queue partition's newest snapshot. Its methods block, so threads call them."""

    def write(self, number: int, offset: int, claim: int, file: BinaryIO, stopping: Callable[[], bool]) -> None:
        """Write a copy of a snapshot's file to partition `number`, and drop earlier ones.

        Raises LogError if it was not accepted, WritingStopped after `stopping`, OSError if the file cannot be read."""

    def newest(self, number: int, least: int, directory: Path) -> StateCopied | None:
        """Write the newest whole copy of partition `number` to a file in `directory`; None: there is none.

        `least`: a copy of an older state is useless. Raises LogError if there is no answer, or if the copy is dropped
        in the meantime; OSError if the disk refuses."""


class TopicPlacement(Protocol):
    """The place of a partition: addresses of the log's own servers. `leader` is empty while there is none."""

    @property
    def partition(self) -> str: ...

    @property
    def leader(self) -> str: ...

    @property
    def replicas(self) -> tuple[str, ...]: ...

    @property
    def in_sync(self) -> tuple[str, ...]: ...


class SharedLogListener(Protocol):
    """The node that follows a log. The log calls its methods in the loop."""

    def arrived(self, batches: list[Arrived]) -> None:
        """Fold records that were read back, in the order of each partition."""

    def trouble(self, why: str | None) -> None:
        """Note that appends do not get through, for the reason `why`. None: they do again."""

    def delivered(self, name: str, offsets: list[int]) -> None:
        """Note that the oldest unreported own appends to a partition are in the log, at these offsets.

        Called for every append to a queue partition whose `reports` are on."""

    def fail(self, error: Exception) -> None:
        """Note that the log failed beyond repair, so the node must stop (it lost its place in the order)."""

    def duties_changed(self, names: frozenset[str]) -> None:
        """Note that the node now has the duties of exactly these partitions, by name."""


class SharedLog(Protocol):
    """A log that several nodes append to. `identity`: unique to the history.

    `states` is None if the log keeps no copies of snapshots."""

    @property
    def identity(self) -> str: ...

    @property
    def metadata(self) -> SharedPartition: ...

    @property
    def nodes(self) -> SharedPartition: ...

    @property
    def queues(self) -> Sequence[SharedPartition]: ...

    @property
    def counters(self) -> Sequence[CounterTopic]: ...

    @property
    def states(self) -> StateTopic | None: ...

    async def add_partitions(self, partitions: int, only_ask: bool) -> None:
        """Give the log this number of queue partitions. Nodes started from then on find them.

        `only_ask`: only find out whether it is possible. Raises LogError if not, or if the log already has more."""

    def follow(self, offsets: Mapping[str, int], listener: SharedLogListener) -> None:
        """Begin to read back, each partition from its offset, and counters from their beginning.

        The node then also shares the duties of the queue partitions with the other nodes (Kafka's consumer group)."""

    async def pause(self, name: str) -> None:
        """Stop following this queue partition. After this, none of its records arrives."""

    def resume(self, name: str, offset: int) -> None:
        """Follow a paused queue partition again, from this offset. `read_to_end` does not yet wait for it."""

    async def extent(self, name: str) -> tuple[int, int]:
        """Return the offset of a partition's oldest retained record, and the partition's end.

        Raises NoAnswer."""

    async def catch_up(self, name: str) -> None:
        """Wait until every record of a resumed partition in the log at the call has arrived.

        Raises LogError as `read_to_end`."""

    def flush(self) -> None:
        """End a turn, so that appended records need not wait for further ones."""

    async def read_to_end(self) -> None:
        """Wait until every record in the followed partitions at the call has arrived, except counters.

        Raises LogError if the log does not report the ends of its partitions."""

    def ends(self) -> Mapping[str, int]:
        """Return the end of each partition, by name, as the log stated it with the last records read.

        Never waits."""

    def placement(self) -> Sequence[TopicPlacement]:
        """Return the places of the queue partitions, in their order, at most some seconds old."""

    def close(self) -> None:
        """Wait for a limited time until every appended record is in the log.

        Raises LogError if some are still not in the log."""
