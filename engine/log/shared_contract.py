"""The contract of a log that several nodes append to, and whose server makes the order (Kafka).

A node applies only the records that it reads back. An appended record has no offset until it comes back to the node,
among the records of all others, in the one order that every node sees; a record that has come back is durable. So all
nodes fold the same states, and there is no protocol between them.

    log.follow({name: offset}, node)   from there on everything is read back, the node's own records too:
                                       node.arrived([Arrived, ...]), in the loop, ascending offsets in each partition
    partition.append(key, value)       fire: the order of one node's appends to one partition is kept, nothing is lost
                                       while the process lives, however long the log is away
    await log.read_to_end()            every record that was in the followed partitions at the call has arrived
    await log.pause("queues-1")        nothing of it arrives any more
    log.resume("queues-1", offset)     it is followed again, from there on
    log.states                         copies of snapshots, for a node that begins
    log.counters                       one topic's partition for each queue partition; empty where none is paused
    log.flush()                        the turn is over: appended records need not wait for others any longer

Values are Avro single objects (`rewindmq.schemas.single_object`), one event each; keys are `vhost/queue` (UTF-8), or
empty for events that concern the whole partition. An event's time is the log's own timestamp, given when it was
appended there (LogAppendTime), not the envelope's.

Besides history (`metadata`, `queues`) there is `nodes`: heartbeats (`NodeAlive` events), kept for an hour only and
never folded into a state. And `counters` of queues (partition/queue_counters.py): the log keeps the last record of each
key. A record without a value removes its key; it arrives as REMOVED and the key.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from rewindmq.engine.log.contract import Block, LogError

if TYPE_CHECKING:
    from rewindmq.projections.store.bases import Base

# The key of a filler: a record without a value that takes an offset at which the history has no record. Topics that are
# made from an archive have fillers, where transactions ended in the former ones. All readers skip them.
FILLER_KEY: Final = b"rewindmq.filler"


REMOVED: Final = b"\x00"


class RecordTooLarge(LogError):
    """The record is too large and was not appended."""


@dataclass(slots=True)
class Arrived:
    """Records of one partition that came back. Three lists of one length; offsets ascend and may have gaps."""

    partition: str  # the partition's name
    offsets: list[int]
    timestamps_ms: list[int]
    values: list[bytes]


class SharedPartition(Protocol):
    """One partition: `metadata-0`, `nodes-0`, `queues-0` .. as in the embedded log.

    The reading half of the contract is `rewindmq.engine.log.contract.LogPartition`'s. So recovery, rewinds, `verify`
    and Spark read both alike."""

    name: str
    shared: bool  # True (contract.py)

    @property
    def start_offset(self) -> int:
        """The offset of the oldest record kept. Asks the log."""

    @property
    def next_offset(self) -> int:
        """The high watermark: every offset below it can be read now. Asks the log."""

    def append(self, key: bytes, value: bytes) -> None:
        """Send a record to the log.

        Raises RecordTooLarge."""

    @property
    def all_reported(self) -> bool:
        """Return True once the delivery of every append has been reported to this program. Some reports arrive late."""

    def report(self, on: bool) -> None:
        """Tell the listener of each append when it is in the log (`SharedLogListener.delivered`), or stop doing so."""

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yields blocks (runs of consecutive offsets, with `timestamps_ms`) from `offset` up to `end`.

        `end`: exclusive; None: the end that can be read now. Blocks the caller: for start, rewinds and tools. Raises
        LogError when the log is away too long."""

    def record(self, offset: int, seconds: float) -> bytes | None:
        """The record at an offset below `next_offset`; None: the offset is a gap.

        Blocks the caller. Raises LogError when the log does not answer within `seconds`."""

    def offset_at(self, timestamp_ms: int) -> int:
        """The first offset whose timestamp is greater than `timestamp_ms`; `next_offset` when there is none."""

    def base(self) -> "Base | None":
        """The base with which the partition begins; None if it begins at offset 0, or keeps no bases."""


class CounterTopic(Protocol):
    """A partition of counters, `counters-0` ... Nothing waits for its records, and the log may lose them."""

    name: str
    opened_at: int  # behind the last record of when the log was opened

    @property
    def all_reported(self) -> bool:
        """Return True if every append so far is in the log or was refused."""

    def append(self, key: bytes, value: bytes | None) -> None:
        """Send a record to the log; None: the key has no value any more.

        Raises RecordTooLarge."""


@dataclass(frozen=True, slots=True)
class StateCopied:
    """A copy of a snapshot in a file. `offset`: that of the state. `claim`: that of the digest's claim, in the log."""

    offset: int
    claim: int
    path: Path


class WritingStopped(Exception):
    """The copy was given up because the node stops."""


class StateTopic(Protocol):
    """The place of a copy of the newest snapshot of each queue partition. Its methods block, so threads call them."""

    def write(self, number: int, offset: int, claim: int, file: BinaryIO, stopping: Callable[[], bool]) -> None:
        """Write a copy of a snapshot's file to partition `number`, and drop those before it.

        LogError: it was not taken. WritingStopped: `stopping` said so. OSError: the file cannot be read."""

    def newest(self, number: int, least: int, directory: Path) -> StateCopied | None:
        """Write the newest whole copy of partition `number` to a file in `directory`; None: there is none.

        `least`: a copy of an older state is of no use. LogError: no answer, or the copy is dropped meanwhile. OSError:
        the disk does not take it."""


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
        """Fold records that came back, in the order of each partition."""

    def trouble(self, why: str | None) -> None:
        """Appends do not get through; `why` is the reason, in words. None: they do again."""

    def delivered(self, name: str, offsets: list[int]) -> None:
        """The oldest own appends to a partition that were not told of yet are in the log, at these offsets.

        Called for every append to a queue partition whose `reports` are on."""

    def fail(self, error: Exception) -> None:
        """The log failed beyond repair: the node has to stop (it lost its place in the order)."""

    def duties_changed(self, names: frozenset[str]) -> None:
        """The node now has the duties of these partitions, by name, and of no others."""


class SharedLog(Protocol):
    """A log that several nodes append to. `identity`: of the history; no other one has it.

    `states` is None where the log keeps no copies of snapshots."""

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
        """Give the log so many queue partitions. Nodes that are started from then on find them.

        `only_ask`: find out whether that can be done. LogError: it cannot, or the log has more already."""

    def follow(self, offsets: Mapping[str, int], listener: SharedLogListener) -> None:
        """Begin to read back, each partition from its offset, and counters from their beginning.

        The node then also shares the duties of the queue partitions with the other nodes (Kafka's consumer group)."""

    async def pause(self, name: str) -> None:
        """Follow this queue partition no longer. When this returns, none of its records arrives."""

    def resume(self, name: str, offset: int) -> None:
        """Follow a paused queue partition again, from this offset. `read_to_end` does not wait for it yet."""

    async def extent(self, name: str) -> tuple[int, int]:
        """Return the offset of the oldest record of a partition that the log keeps, and the end of the partition.

        Raises NoAnswer."""

    async def catch_up(self, name: str) -> None:
        """Wait until every record of a resumed partition that was in the log at the call has arrived.

        Raises LogError as `read_to_end`."""

    def flush(self) -> None:
        """End a turn: appended records need not wait for further ones."""

    async def read_to_end(self) -> None:
        """Wait until every record of the followed partitions that was in the log at the call has arrived. Not counters.

        Raises LogError when the log does not say where its partitions end."""

    def ends(self) -> Mapping[str, int]:
        """The end of each partition, by name, as the log stated it with the last records that were read.

        Never waits."""

    def placement(self) -> Sequence[TopicPlacement]:
        """The places of the queue partitions, in their order; some seconds old at the most."""

    def close(self) -> None:
        """Wait for a limited time until every appended record is in the log.

        Raises LogError when some are still not in the log."""
