"""The live metadata log: it appends events, folds them into the topology, and tells its listener.

As with queue partitions there are kinds by the log: engine/embedded/metadata.py folds an event when it appends it,
engine/cluster/metadata.py when it comes back, in the order of a log that many nodes share.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from rewindmq.engine.host.slices import in_slices
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.replay import PartitionLog as ReadableLog
from rewindmq.projections.store.metadata_snapshots import newest
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from rewindmq.schemas.events import Event, MetadataEvent
from rewindmq.schemas.metadata_events import Bound, ExchangeDeleted, Unbound
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
    def append_position(self) -> int:
        """The append position of the next event that this broker appends."""
        return self.state.next_offset

    @property
    def durable_position(self) -> int:
        """Every event that this broker appended below this position is durable and folded."""
        return self.durable_offset

    @property
    def durable_offset(self) -> int:
        """Every record below this offset is durable."""
        return self.state.next_offset

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
