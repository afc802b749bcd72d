"""The live metadata log: it appends events, folds them into the topology, and tells its listener.

As with queue partitions there are two kinds. `SoleWriterMetadata` folds an event when it appends it. `ReadBackMetadata`
(a log that many nodes share) folds events when they come back, in the order of the log.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.host.slices import in_slices
from rewindmq.engine.log.contract import LogError, LogPartition
from rewindmq.engine.log.shared_contract import Arrived, RecordTooLarge, SharedPartition
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.replay import PartitionLog as ReadableLog
from rewindmq.projections.store.metadata_snapshots import history_mark, mark_by, newest
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.codec import Encoder, UndecodableRecord
from rewindmq.schemas.events import Event, MachineUpgraded, MetadataEvent, NodeLost
from rewindmq.schemas.metadata_events import Bound, ExchangeDeleted, NodeJoined, Unbound
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import Actor

logger = logging.getLogger(__name__)


class MetadataListener(Protocol):
    """The part of the broker that the metadata log calls."""

    def metadata_changed(self, event: Event) -> None:
        """Take note of an event that was folded into the topology."""


class MetadataTap(Protocol):
    """A watcher of the events that this node appended (engine/routing/event_exchange.py)."""

    def describe(self, actor: Actor, event: Event) -> list[tuple[str, str, dict[str, object]]]:
        """Say what an event that is not folded yet will change: vhost, routing key, headers."""

    def changed(self, offset: int, timestamp_ms: int, described: Sequence[tuple[str, str, dict[str, object]]]) -> None:
        """Take note that this has happened."""


class Metadata(ABC):
    """The metadata log and its topology.

    `state` is the fold of the log; `topology` is its topology. `stored_offset`: the offset of the snapshot that `fold`
    began with. `replayed`: how many records it folded on top of that."""

    def __init__(self, log: ReadableLog, clock: Callable[[], int]) -> None:
        self.name = log.name
        self.state = MetadataFold()
        self.topology = self.state.topology
        self.stored_offset = 0
        self.replayed = 0
        self.tap: MetadataTap | None = None
        self._readable = log
        self._clock = clock

    @property
    def quarantine(self) -> QuarantineReport:
        """The skipped records, since the beginning of the log."""
        return self.state.quarantine

    @property
    def clock_ms(self) -> int:
        """The largest timestamp in the log since the clock was set."""
        return self.state.clock_ms

    def start(self, listener: MetadataListener) -> None:
        """Tell the listener from now on about changes.

        The constructor does not take the listener, because the broker is made after the topology."""
        self._listener = listener

    def fold(self, snapshots: Snapshots) -> int:
        """Fold the log, from the newest snapshot that can be used; return its end.

        Call it before other parts get the topology. An embedded log raises UndecodableRecord and CorruptLog: a broker
        must not run with half of its users and bindings. In a shared log, where others may write, every node
        quarantines undecodable records. LogError: the beginning is gone."""
        log = self._readable
        if log.start_offset > 0:
            raise LogError(
                f"{self.name} begins at offset {log.start_offset}: older users, exchanges and bindings are"
                " gone; restore a backup of it"
            )
        self.state = newest(snapshots, log)
        self.topology = self.state.topology
        self.stored_offset = self.state.next_offset
        self.replayed = fold_on(self.state, log, skipped=self._skipped, strict=not log.shared)
        if self.replayed:
            logger.info(
                "%s: %d events folded on top of the state at offset %d; %d quarantined since the log began",
                self.name,
                self.replayed,
                self.stored_offset,
                self.quarantine.count,
            )
        return self.state.next_offset

    @abstractmethod
    def history_mark(self) -> Callable[[], str]:
        """Return a function that finds the name of the history up to this moment, for a snapshot
        (projections/store/metadata_snapshots.py). Call the function when all records so far are durable.

        LogError: the log cannot be read."""

    @property
    @abstractmethod
    def append_position(self) -> int:
        """The append position of the next event that this broker appends."""

    @property
    @abstractmethod
    def durable_position(self) -> int:
        """Every event that this broker appended below this position is durable and folded."""

    @property
    @abstractmethod
    def durable_offset(self) -> int:
        """Every record below this offset is durable."""

    @abstractmethod
    def append(self, actor: Actor, event: MetadataEvent) -> None:
        """Log an event. A sole writer folds it at once; a shared log folds it when it is read back."""

    @abstractmethod
    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        """Log an event, wait until it is folded, and return its offset. A sole writer never waits."""

    def _fold(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, own: bool = True) -> None:
        """Fold an event. `own`: this node appended it."""
        described = self.tap.describe(actor, event) if own and self.tap is not None else ()
        problem = self.state.apply(offset, timestamp_ms, actor, event)
        if problem:
            self._skipped(offset, problem)
            return
        self._listener.metadata_changed(event)
        if described and self.tap is not None:
            self.tap.changed(offset, timestamp_ms, described)

    def _skipped(self, offset: int, reason: str) -> None:
        logger.error("%s: record %d is skipped: %s", self.name, offset, reason)

    # -- bindings and their consequences -------------------------------------------------------------------------------

    async def bind(self, actor: Actor, bound: Bound) -> None:
        """Log a binding if it does not exist yet."""
        if not self.topology.is_bound(bound):
            await self.ask(actor, bound)

    async def unbind(self, actor: Actor, bound: Bound) -> None:
        """Log the end of a binding if it exists."""
        if self.topology.is_bound(bound):
            await self.ask(actor, unbound(bound))

    async def delete_exchange(self, actor: Actor, vhost: str, exchange: str) -> None:
        """Log the end of an exchange."""
        await self.ask(actor, ExchangeDeleted(vhost, exchange))

    async def unbind_queue(self, actor: Actor, queue: Queue) -> None:
        """Log the end of all bindings of a queue that is gone, in slices.

        A newer queue of the same name keeps its bindings."""
        async for bound in in_slices(self.topology.bindings_to(queue.vhost, "queue", queue.name)):
            if bound.queue_id == queue.queue_id and self.topology.is_bound(bound):
                self.append(actor, unbound(bound))

    @abstractmethod
    async def until_unbound(self, actor: Actor, queue: Queue) -> None:
        """Wait until a queue that is gone has no bindings in what this node has folded.

        A sole writer never waits: it ends them when the end of the queue is durable, before a client hears so, or in
        the next slices if they are many. Nobody meets them meanwhile (`Router.is_live`)."""


class SoleWriterMetadata(Metadata):
    """The metadata log of a broker with an embedded log. An append position is the event's offset."""

    def __init__(self, log: LogPartition, clock: Callable[[], int]) -> None:
        super().__init__(log, clock)
        self._log = log
        self._encoder = encoder_under(log.schema)
        self._held_above: int | None = None

    def fold(self, snapshots: Snapshots) -> int:
        end = super().fold(snapshots)
        if end > 0:  # else it begins with this program's version
            self._write_under()
        return end

    def _write_under(self) -> None:
        """Write under the schema of the machine version that the history follows."""
        schema = schema_of(self.topology.machine_version)
        if schema != self._log.schema:
            self._log.write_under(schema)
            self._encoder = encoder_under(schema)

    def history_mark(self) -> Callable[[], str]:
        return partial(history_mark, self._log, self.state.next_offset)

    @property
    def append_position(self) -> int:
        return self._log.next_offset

    @property
    def durable_position(self) -> int:
        durable, held = self._log.durable_offset, self._held_above
        return durable if held is None or held > durable else held

    def hold_above(self, offset: int | None) -> None:
        """Let clients wait for what is above this offset, as SoleWriterPartition does."""
        self._held_above = offset

    @property
    def durable_offset(self) -> int:
        return self._log.durable_offset

    def append(self, actor: Actor, event: MetadataEvent) -> None:
        self.append_now(actor, event)

    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        return self.append_now(actor, event)

    async def until_unbound(self, actor: Actor, queue: Queue) -> None:
        """Return at once."""

    def set_clock(self, first_ms: int, actor: Actor, event: ClockSet) -> None:
        """Continue the timestamps from another time; `first_ms` is the timestamp of the event itself."""
        if first_ms < self.clock_ms:
            self._log.begin_time_anew()
        self._append_at(first_ms, actor, event)

    def append_now(self, actor: Actor, event: MetadataEvent) -> int:
        """Log and fold an event; return its offset."""
        return self._append_at(max(self.clock_ms, self._clock()), actor, event)

    def _append_at(self, now: int, actor: Actor, event: MetadataEvent) -> int:
        offset = self._log.append(now, self._encoder.encode(self._encoder.prefix(now, actor), event))
        self._fold(offset, now, actor, event)
        if isinstance(event, MachineUpgraded):
            self._write_under()
        return offset


class ReadBackMetadata(Metadata):
    """The metadata log that many nodes share.

    An append position counts this node's appends. The node knows its own records by their bytes, as in
    engine/cluster/partition.py. It calls `nodes_changed` when a node joined or was lost."""

    def __init__(self, log: SharedPartition, clock: Callable[[], int], nodes_changed: Callable[[], None]) -> None:
        super().__init__(log, clock)
        self._nodes_changed = nodes_changed
        self._log = log
        self._encoders: dict[str, Encoder] = {}  # by schema; one or two
        self._decoder = SharedDecoder()
        self._sent: deque[tuple[bytes, asyncio.Future[int] | None]] = deque()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()  # callers of `_folded`
        self._append_position = 0
        self._durable_position = 0

    def history_mark(self) -> Callable[[], str]:
        return partial(mark_by, self.state.last_record)

    @property
    def append_position(self) -> int:
        return self._append_position

    @property
    def durable_position(self) -> int:
        return self._durable_position

    @property
    def durable_offset(self) -> int:
        return self.state.next_offset

    def append(self, actor: Actor, event: MetadataEvent) -> None:
        self._send(actor, event, None)

    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._send(actor, event, answer)
        return await answer

    async def until_unbound(self, actor: Actor, queue: Queue) -> None:
        await self._folded()  # if this node owned the queue's partition at its end, it has ended the bindings
        await self.unbind_queue(actor, queue)  # else the owner does so some time later, or there is no owner
        await self._folded()

    async def _folded(self) -> None:
        """Wait until every event that this node has appended so far is folded."""
        if self._durable_position < self._append_position:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((self._append_position, done))
            await done

    def _send(self, actor: Actor, event: MetadataEvent, answer: "asyncio.Future[int] | None") -> None:
        value = self.encoded(actor, event)
        try:
            self._log.append(b"", value)  # first, because a refused record never comes back
        except RecordTooLarge as error:
            raise PreconditionFailed(str(error)) from None
        self._sent.append((value, answer))
        self._append_position += 1

    def encoded(self, actor: Actor, event: Event) -> bytes:
        """The event as a record, under the schema of the machine version that the history follows."""
        schema = schema_of(self.topology.machine_version)
        encoder = self._encoders.get(schema)
        if encoder is None:
            encoder = self._encoders[schema] = encoder_under(schema)
        return encoder.encode(encoder.prefix(self._clock(), actor), event)

    def read_back(self, arrived: Arrived) -> None:
        """Fold the records that came back from the log."""
        for offset, timestamp_ms, value in zip(arrived.offsets, arrived.timestamps_ms, arrived.values, strict=True):
            answer = None
            self.state.last_record = value
            own = bool(self._sent) and self._sent[0][0] == value
            if own:
                answer = self._sent.popleft()[1]
                self._durable_position += 1
            try:
                _, actor, event = self._decoder.decode(value)
            except UndecodableRecord as error:
                self.state.skip(offset, str(error))
                self._skipped(offset, str(error))
                continue
            self._fold(offset, timestamp_ms, actor, event, own)
            if isinstance(event, NodeJoined | NodeLost):
                self._nodes_changed()
            if answer is not None and not answer.done():
                answer.set_result(offset)
        while self._waiters and self._waiters[0][0] <= self._durable_position:
            done = self._waiters.popleft()[1]
            if not done.done():
                done.set_result(None)


def unbound(bound: Bound) -> Unbound:
    """Return the event that ends this binding."""
    return Unbound(
        bound.vhost,
        bound.source,
        bound.destination_type,
        bound.destination,
        bound.routing_key,
        bound.arguments,
        bound.queue_id,
    )
