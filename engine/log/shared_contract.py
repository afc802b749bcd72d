"""The contract of a log that several nodes append to, and in which another makes the order (Kafka).

A node applies only what it reads back. What it appends has no offset until it comes back to it, among the records of
all others, in the one order that every node sees; what has come back is durable. So all nodes fold the same states, and
there is no protocol between them.

    log.follow({name: offset}, node)   from there on everything is read back, one's own records too:
                                       node.arrived([Arrived, ...]), in the loop, ascending offsets in each partition
    partition.append(key, value)       fire: the order of one node's appends to one partition is kept, nothing is lost
                                       while the process lives, however long the log is away
    await log.read_to_end()            everything that is in the log now has arrived
    log.flush()                        the turn is over: what was appended need not wait for company any longer

Values are Avro single objects (`rewindmq.schemas.single_object`), one event each; keys are `vhost/queue` (UTF-8), or
empty for events that concern the whole partition. An event's time is the log's own timestamp, given when it was
appended there (LogAppendTime), not the envelope's.

Besides history (`metadata`, `queues`) there is `nodes`: heartbeats (`NodeAlive` events), kept for an hour only and
never folded into a state.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rewindmq.engine.log.contract import Block, LogError


class RecordTooLarge(LogError):
    """Nothing was appended."""


@dataclass(slots=True)
class Arrived:
    """Records of one partition, as they came back. Three lists of one length; offsets ascend and may have gaps."""

    partition: str  # its name
    offsets: list[int]
    timestamps_ms: list[int]
    values: list[bytes]


class SharedPartition(Protocol):
    """One partition: `metadata-0`, `nodes-0`, `queues-0` .. as in the embedded log. The reading half of the contract is
    `rewindmq.engine.log.contract.LogPartition`'s, so recovery, rewinds, `verify` and Spark read both alike."""

    name: str
    framed: bool  # True: records are Avro single objects (in the embedded log they are bare)

    @property
    def start_offset(self) -> int:
        """The oldest record kept. Asks the log."""

    @property
    def next_offset(self) -> int:
        """Everything below can be read now (the high watermark). Asks the log."""

    def append(self, key: bytes, value: bytes) -> None:
        """RecordTooLarge."""

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Blocks (runs of consecutive offsets, with `timestamps_ms`) from `offset` up to `end` (exclusive; None: what
        can be read now). Blocks the caller: for start, rewinds and tools. LogError when the log is away too long."""

    def record(self, offset: int, seconds: float) -> bytes | None:
        """The record at an offset below `next_offset`; None: it is a gap. Blocks the caller. LogError when the log does
        not say within `seconds`."""

    def offset_at(self, timestamp_ms: int) -> int:
        """The first offset whose timestamp is greater than `timestamp_ms`; `next_offset` when there is none."""


class Placement(Protocol):
    """Where a partition is: addresses of the log's own servers. `leader` is empty while there is none."""

    @property
    def partition(self) -> str: ...

    @property
    def leader(self) -> str: ...

    @property
    def replicas(self) -> tuple[str, ...]: ...

    @property
    def in_sync(self) -> tuple[str, ...]: ...


class Listener(Protocol):
    """The node that follows a log. All of it is called in the loop."""

    def arrived(self, batches: list[Arrived]) -> None: ...

    def trouble(self, why: str | None) -> None:
        """Why appends do not get through, in words; None: they do again."""

    def fail(self, error: Exception) -> None:
        """Never to be mended: the node has to stop (it lost its place in the order)."""

    def duties_changed(self, names: frozenset[str]) -> None:
        """The partitions whose duties are this node's now, by name."""


class SharedLog(Protocol):
    @property
    def metadata(self) -> SharedPartition: ...

    @property
    def nodes(self) -> SharedPartition: ...

    @property
    def queues(self) -> Sequence[SharedPartition]: ...

    def follow(self, offsets: Mapping[str, int], listener: Listener) -> None:
        """Begin to read back, each partition from its offset; and to share the duties of the queue partitions with the
        other nodes (Kafka's consumer group)."""

    def flush(self) -> None: ...

    async def read_to_end(self) -> None:
        """Wait until everything has arrived (`Listener.arrived`) that was in the log when this was called, of all
        partitions. LogError when the log does not say how far that is."""

    def ends(self) -> Mapping[str, int]:
        """How far each partition is, by name, as the log said when it last gave something to read. Never waits."""

    def placement(self) -> Sequence[Placement]:
        """Of the queue partitions, in their order; as it was some seconds ago at the most."""

    def close(self) -> None:
        """What was appended and is not in the log yet is waited for, but not for ever: then LogError."""
