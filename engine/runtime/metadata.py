"""The metadata log, live: append an event, fold it into the topology, and tell who keeps things derived from it.

As with queue partitions there are two kinds: `SoleWriterMetadata` folds what it appends at once, `ReadBackMetadata` (a
log that many nodes share) folds what comes back, in the order in which it does.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.log.contract import LogError, LogPartition
from rewindmq.engine.log.shared_contract import Arrived, RecordTooLarge, SharedPartition
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.replay import PartitionLog as ReadableLog
from rewindmq.projections.replay import decoder_for
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.codec import Encoder, UndecodableRecord
from rewindmq.schemas.events import Event, MetadataEvent, NodeLost
from rewindmq.schemas.metadata_events import Bound, ExchangeDeleted, NodeJoined, Unbound
from rewindmq.schemas.single_object import FramedDecoder, FramedEncoder
from rewindmq.schemas.values import Actor

NOT_RECORDED = -1  # the incarnation of a queue, in a binding of before it was recorded

logger = logging.getLogger(__name__)


class MetadataListener(Protocol):
    """The broker, as the metadata log knows it."""

    def metadata_changed(self, event: Event) -> None:
        """The event was folded into the topology."""


class Metadata(ABC):
    """`quarantine`: records that made no sense and were skipped. It is not stored: the log is folded from its beginning
    at each start."""

    def __init__(self, log: ReadableLog, clock: Callable[[], int]) -> None:
        self.name = log.name
        self.topology = Topology()
        self.quarantine = QuarantineReport()
        self.clock_ms = 0  # the largest timestamp in the log, since the clock was set
        self._readable = log
        self._clock = clock

    def start(self, listener: MetadataListener) -> None:
        """Tell the listener from now on what changes. It is no argument of the constructor: the broker is made with
        the topology, and so after it."""
        self._listener = listener

    def fold(self) -> int:
        """From the beginning of the log: it is small. Where it ended. UndecodableRecord and CorruptLog of an embedded
        log as they come: a broker must not run with half of its users and bindings. In a shared log, which others may
        write to, every node quarantines what cannot be decoded. LogError when the beginning is gone."""
        if self._readable.start_offset > 0:
            raise LogError(
                f"{self.name} begins at offset {self._readable.start_offset}: users, exchanges and bindings of before"
                " are gone; put back a backup of it"
            )
        decoder = decoder_for(self._readable)
        end = 0
        for block in self._readable.read():
            for index, record in enumerate(block.records):
                offset = block.first_offset + index
                try:
                    timestamp_ms, actor, event = decoder.decode(record)
                except UndecodableRecord as error:
                    if not self._readable.framed:
                        raise
                    self._quarantine(offset, "", str(error))
                    continue
                if block.timestamps_ms is not None:
                    timestamp_ms = block.timestamps_ms[index]
                self._apply(offset, timestamp_ms, actor, event)
            end = block.first_offset + len(block.records)
        return end

    @property
    @abstractmethod
    def append_position(self) -> int:
        """The append position of the next event that this broker appends."""

    @property
    @abstractmethod
    def durable_position(self) -> int:
        """Every event that this broker appended at a lower position is durable, and folded."""

    @abstractmethod
    def append(self, actor: Actor, event: MetadataEvent) -> None:
        """Log an event; folded at once where this broker is the sole writer, else when it is read back."""

    @abstractmethod
    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        """Log an event and wait until it is folded: its offset. With a sole writer it never waits."""

    def _fold(self, offset: int, timestamp_ms: int, actor: Actor, event: Event) -> None:
        if self._apply(offset, timestamp_ms, actor, event):
            self._listener.metadata_changed(event)

    def _apply(self, offset: int, timestamp_ms: int, actor: Actor, event: Event) -> bool:
        """False for an event that makes no sense, and so has changed nothing."""
        self.clock_ms = timestamp_ms if isinstance(event, ClockSet) else max(self.clock_ms, timestamp_ms)
        problem = self.topology.apply(offset, timestamp_ms, actor, event)
        if problem:
            self._quarantine(offset, type(event).__name__, problem)
        return not problem

    def _quarantine(self, offset: int, event_type: str, reason: str) -> None:
        self.quarantine.add(offset, event_type, reason)
        logger.error("%s: record %d is skipped: %s", self.name, offset, reason)

    # -- bindings, with what follows from them -------------------------------------------------------------------------

    async def bind(self, actor: Actor, bound: Bound) -> None:
        if not self.topology.is_bound(bound):
            await self.ask(actor, bound)

    async def unbind(self, actor: Actor, bound: Bound) -> None:
        if self.topology.is_bound(bound):
            await self.ask(actor, unbound(bound))

    async def delete_exchange(self, actor: Actor, vhost: str, exchange: str) -> None:
        await self.ask(actor, ExchangeDeleted(vhost, exchange))

    def unbind_queue(self, actor: Actor, queue: Queue) -> None:
        """The queue is gone, and its bindings with it; not those of another that has its name by now."""
        for bound in self.topology.bindings_to(queue.vhost, "queue", queue.name):
            if bound.queue_id in (queue.queue_id, NOT_RECORDED):
                self.append(actor, unbound(bound))


class SoleWriterMetadata(Metadata):
    """The metadata log of a broker with an embedded log. An append position is the event's offset."""

    def __init__(self, log: LogPartition, clock: Callable[[], int]) -> None:
        super().__init__(log, clock)
        self._log = log
        self._encoder = Encoder()

    @property
    def append_position(self) -> int:
        return self._log.next_offset

    @property
    def durable_position(self) -> int:
        return self._log.durable_offset

    def append(self, actor: Actor, event: MetadataEvent) -> None:
        self.append_now(actor, event)

    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        return self.append_now(actor, event)

    def set_clock(self, first_ms: int, actor: Actor, event: ClockSet) -> None:
        """Timestamps go on from another time; that of the event itself is `first_ms`."""
        if first_ms < self.clock_ms:
            self._log.begin_time_anew()
        self._append_at(first_ms, actor, event)

    def append_now(self, actor: Actor, event: MetadataEvent) -> int:
        return self._append_at(max(self.clock_ms, self._clock()), actor, event)

    def _append_at(self, now: int, actor: Actor, event: MetadataEvent) -> int:
        offset = self._log.append(now, self._encoder.encode(self._encoder.prefix(now, actor), event))
        self._fold(offset, now, actor, event)
        return offset


class ReadBackMetadata(Metadata):
    """The metadata log that many nodes share.

    An append position counts what this node appended. Own records are known by their bytes, as in
    engine/cluster/partition.py. `nodes_changed()`: a node joined, or was lost."""

    def __init__(self, log: SharedPartition, clock: Callable[[], int], nodes_changed: Callable[[], None]) -> None:
        super().__init__(log, clock)
        self._nodes_changed = nodes_changed
        self._log = log
        self._encoder = FramedEncoder()
        self._decoder = FramedDecoder()
        self._sent: deque[tuple[bytes, asyncio.Future[int] | None]] = deque()
        self._append_position = 0
        self._durable_position = 0

    @property
    def append_position(self) -> int:
        return self._append_position

    @property
    def durable_position(self) -> int:
        return self._durable_position

    def append(self, actor: Actor, event: MetadataEvent) -> None:
        self._send(actor, event, None)

    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._send(actor, event, answer)
        return await answer

    def _send(self, actor: Actor, event: MetadataEvent, answer: "asyncio.Future[int] | None") -> None:
        value = self._encoder.encode(self._encoder.prefix(self._clock(), actor), event)
        try:
            self._log.append(b"", value)  # first: what the log refuses never comes back
        except RecordTooLarge as error:
            raise PreconditionFailed(str(error)) from None
        self._sent.append((value, answer))
        self._append_position += 1

    def read_back(self, arrived: Arrived) -> None:
        for offset, timestamp_ms, value in zip(arrived.offsets, arrived.timestamps_ms, arrived.values, strict=True):
            answer = None
            if self._sent and self._sent[0][0] == value:
                answer = self._sent.popleft()[1]
                self._durable_position += 1
            try:
                _, actor, event = self._decoder.decode(value)
            except UndecodableRecord as error:
                self._quarantine(offset, "", str(error))
                continue
            self._fold(offset, timestamp_ms, actor, event)
            if isinstance(event, NodeJoined | NodeLost):
                self._nodes_changed()
            if answer is not None and not answer.done():
                answer.set_result(offset)


def unbound(bound: Bound) -> Unbound:
    return Unbound(
        bound.vhost,
        bound.source,
        bound.destination_type,
        bound.destination,
        bound.routing_key,
        bound.arguments,
        bound.queue_id,
    )
