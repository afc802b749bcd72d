"""The metadata log, live: append an event, fold it into the topology, and tell who keeps things derived from it."""

from collections.abc import Callable

from engine.log.base import LogPartition
from projections.topology import Topology
from schemas.codec import Decoder, Encoder
from schemas.events import (
    Actor,
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    MetadataEvent,
    Unbound,
)


class Metadata:
    def __init__(self, log: LogPartition, encoder: Encoder, clock: Callable[[], int]) -> None:
        self.log = log
        self.topology = Topology()
        self.clock_ms = 0  # the largest timestamp in the log
        self.changed: Callable[[MetadataEvent], None] = _nobody_cares
        self._encoder = encoder
        self._clock = clock

    def fold(self) -> None:
        """From the beginning of the log: it is small. UndecodableRecord and CorruptLog as they come: a broker must not
        run with half of its users and bindings."""
        decoder = Decoder()
        for block in self.log.read():
            for index, record in enumerate(block.records):
                timestamp_ms, actor, event = decoder.decode(record)
                self.topology.apply(block.first_offset + index, timestamp_ms, actor, event)
                self.clock_ms = max(self.clock_ms, timestamp_ms)

    def append(self, actor: Actor, event: MetadataEvent) -> int:
        """Log and fold an event; its offset."""
        self.clock_ms = max(self.clock_ms, self._clock())
        offset = self.log.append(self.clock_ms, self._encoder.encode(self._encoder.prefix(self.clock_ms, actor), event))
        self.topology.apply(offset, self.clock_ms, actor, event)
        self.changed(event)
        return offset

    # -- bindings, with what follows from them -------------------------------------------------------------------------

    def bind(self, actor: Actor, bound: Bound) -> None:
        if not self.topology.is_bound(bound):
            self.append(actor, bound)

    def unbind(self, actor: Actor, bound: Bound) -> None:
        """Also deletes the source when it is an auto-delete exchange and this was its last binding."""
        if not self.topology.is_bound(bound):
            return
        self.append(actor, Unbound(
            bound.vhost, bound.source, bound.destination_type, bound.destination, bound.routing_key, bound.arguments
        ))  # fmt: skip
        self._delete_if_unbound(actor, bound.vhost, bound.source)

    def delete_exchange(self, actor: Actor, vhost: str, exchange: str) -> None:
        """With its bindings; exchanges bound to it may be auto-delete and go as well."""
        sources = [bound.source for bound in self.topology.bindings_to(vhost, "exchange", exchange)]
        self.append(actor, ExchangeDeleted(vhost, exchange))
        for source in dict.fromkeys(sources):
            self._delete_if_unbound(actor, vhost, source)

    def unbind_queue(self, actor: Actor, vhost: str, queue: str) -> None:
        """The queue is gone, and its bindings with it."""
        for bound in self.topology.bindings_to(vhost, "queue", queue):
            self.unbind(actor, bound)

    def _delete_if_unbound(self, actor: Actor, vhost: str, exchange: str) -> None:
        declared: ExchangeDeclared | None = self.topology.exchanges.get((vhost, exchange))
        if declared is not None and declared.auto_delete and not self.topology.bindings_from(vhost, exchange):
            self.delete_exchange(actor, vhost, exchange)


def _nobody_cares(event: MetadataEvent) -> None:
    """Until the broker stands, nothing is derived from the topology."""
