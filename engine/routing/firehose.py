"""The firehose: copies of the messages that are published and delivered in a vhost.

The copies go to the queues that are bound to amq.rabbitmq.trace (rabbit_trace.erl of RabbitMQ 3.13).

    rewindmq trace_on -p VHOST       bind a queue to amq.rabbitmq.trace with publish.# or deliver.#, and consume

    publish.{exchange}   a client published, routed or not     deliver.{queue}   a client was given a message

Rules of this file
- It is off when a node starts, each node has its own, and it costs nothing while it is off: publishes take the long way
  only in a vhost that is traced (basic_publish.py), and the consumers of such a vhost are wrapped (`TappedConsumer`).
- Copies are messages like others: they are in the log, and limits of their queues hold. They are transient. They are
  not traced themselves.
- While the log has little room left, copies are dropped and counted: a trace must not take the room of acks. So are
  copies for a queue that moves to another partition: nothing holds them meanwhile.
- The body of a copy stays encrypted under its subject's key, so an erasure covers it too.
- Deliveries to consumers of streams and of the past are not traced.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rewindmq.engine.config import Config
from rewindmq.engine.partition.counters import FIREHOSE_COPIES_DROPPED
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.partition import DeliveryTarget, FetchTarget, Partition
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.routing.router import Router, cut_key
from rewindmq.projections.machine.data.effects import Deliver, FetchReply
from rewindmq.projections.topology.topology import TRACE_EXCHANGE
from rewindmq.schemas.amqp.properties import (
    HEADERS,
    KINDS,
    NAMES,
    OCTET,
    TABLE,
    TIMESTAMP,
    copies_of,
    join,
    join_headers,
    split,
    split_headers,
    without_blind_copies,
)
from rewindmq.schemas.amqp.tables import array, longstr, with_length
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import BROKER, Encryption

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)


class Firehose:
    """The firehose of a node. `vhosts`: the vhosts that are traced."""

    def __init__(
        self,
        config: Config,
        router: Router,
        sessions: "Mapping[int, Session]",
        keeper: Keeper,
        counters: dict[str, int],
    ) -> None:
        self.vhosts: set[str] = set()
        self._config = config
        self._router = router
        self._sessions = sessions
        self._keeper = keeper
        self._counters = counters
        self._dropped = 0  # copies, since the log had room for one

    def switch(self, vhost: str, on: bool) -> None:
        """Begin or end to trace a vhost, with the consumers that it has."""
        if on == (vhost in self.vhosts):
            return
        if on:
            self.vhosts.add(vhost)
        else:
            self.vhosts.discard(vhost)
        for session in self._sessions.values():
            if session.vhost == vhost:
                self._tap_session(session)
        self._router.invalidate()

    def _tap_session(self, session: Session) -> None:
        for channel, attached in session.attached.items():
            for partition, consumer_ids in attached.items():
                for consumer_id in consumer_ids:
                    consumer = partition.deliveries.consumers.get(consumer_id)
                    getter = partition.deliveries.getters.get(consumer_id)
                    if consumer is not None:
                        partition.deliveries.attach(consumer_id, self.tapped(session, channel, consumer))
                    elif getter is not None:
                        partition.deliveries.attach_getter(consumer_id, self.tapped_getter(session, channel, getter))

    def tapped(self, session: Session, channel: int, consumer: DeliveryTarget) -> DeliveryTarget:
        """Return the consumer as it is attached to a partition: wrapped in a traced vhost, otherwise itself."""
        if isinstance(consumer, TappedConsumer):
            consumer = consumer.consumer
        return TappedConsumer(self, session, channel, consumer) if session.vhost in self.vhosts else consumer

    def tapped_getter(self, session: Session, channel: int, getter: FetchTarget) -> FetchTarget:
        """Return a holder of basic.get, wrapped as `tapped` wraps a consumer."""
        if isinstance(getter, TappedGetter):
            getter = getter.getter
        return TappedGetter(self, session, channel, getter) if session.vhost in self.vhosts else getter

    def published(
        self,
        session: Session,
        channel: int,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        encryption: Encryption | None,
        queues: Iterable[str],
    ) -> None:
        """Copy a publish of a client to these queues. `body`: as it is logged."""
        if exchange != TRACE_EXCHANGE:
            routed = array([longstr(queue) for queue in queues])
            self._copy(
                cut_key(f"publish.{exchange}"),
                session,
                channel,
                exchange,
                routing_key,
                properties,
                body,
                encryption,
                {"routed_queues": routed},
            )

    def delivered(self, session: Session, channel: int, effect: Deliver | FetchReply, message: Published) -> None:
        """Copy a message that a client was given."""
        route = message.route
        if route.exchange != TRACE_EXCHANGE:
            self._copy(
                cut_key(f"deliver.{effect.queue.name}"),
                session,
                channel,
                route.exchange,
                route.routing_key,
                message.properties,
                message.body,
                message.encryption,
                {"redelivered": signedint(effect.redelivered)},
            )

    def _has_room(self, size: int) -> bool:
        """Return True if the log has room for copies of this size. Otherwise count them as dropped."""
        flow = self._keeper.flow
        if flow.crowded or not flow.has_room(size):
            if self._dropped == 0:
                logger.warning("copies for the firehose are dropped until the disk has room for them")
            self._dropped += 1
            self._counters[FIREHOSE_COPIES_DROPPED] += 1
            return False
        if self._dropped:
            logger.warning("%d copies for the firehose were dropped", self._dropped)
            self._dropped = 0
        return True

    def _copy(
        self,
        key: str,
        session: Session,
        channel: int,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        encryption: Encryption | None,
        more: dict[str, bytes],
    ) -> None:
        destinations = self._router.route(session.vhost, TRACE_EXCHANGE, key, None)
        if not destinations or not self._has_room(len(body) * len(destinations)):
            return
        if self._router.first_held(destinations) is not None:
            self._counters[FIREHOSE_COPIES_DROPPED] += 1  # nothing holds it while the queue moves
            return
        try:
            fields = split(without_blind_copies(properties))
            copies = carbon_copies(properties)
        except ValueError:  # a service appended it to the log itself, with bytes that are not properties
            fields, copies = {}, []
        keys = (routing_key, *copies)
        copied = join(
            {
                HEADERS: join_headers(
                    {
                        "exchange_name": longstr(exchange),
                        "routing_keys": array([longstr(each) for each in keys]),
                        "properties": b"F"
                        + join_headers({NAMES[bit]: as_header(bit, raw) for bit, raw in fields.items()}),
                        "node": longstr(self._config.node),
                        "vhost": longstr(session.vhost),
                        "connection": longstr(self._config.both_ends(session.peer)),
                        "channel": signedint(channel),
                        "user": longstr(session.user),
                        **more,
                    }
                )
            }
        )
        size = len(body) if encryption is None else encryption.plain_size
        for to in destinations:
            to.partition.publish(BROKER, Published(to.route, copied, encryption=encryption, body=body, body_size=size))


class TappedConsumer:
    """A consumer whose deliveries are copied. A `DeliveryTarget` of rewindmq.engine.partition.partition."""

    def __init__(self, firehose: Firehose, session: Session, channel: int, consumer: DeliveryTarget) -> None:
        self.firehose = firehose
        self.session = session
        self.channel = channel
        self.consumer = consumer

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        if message is None:
            message = partition.message(effect.queue.queue_id, message_id)
        self.consumer.deliver(partition, effect, message_id, message)
        self.firehose.delivered(self.session, self.channel, effect, message)

    def cancelled(self) -> None:
        self.consumer.cancelled()


class TappedGetter:
    """A holder of basic.get whose answers are copied. A `FetchTarget` of rewindmq.engine.partition.partition."""

    def __init__(self, firehose: Firehose, session: Session, channel: int, getter: FetchTarget) -> None:
        self.firehose = firehose
        self.session = session
        self.channel = channel
        self.getter = getter

    def fetched(self, partition: Partition, effect: FetchReply, message: Published | None) -> None:
        self.getter.fetched(partition, effect, message)
        if message is not None:
            self.firehose.delivered(self.session, self.channel, effect, message)


def carbon_copies(properties: bytes) -> list[str]:
    """Return the routing keys in the headers CC and BCC. Raises ValueError if the bytes are not properties."""
    fields = split(properties)
    headers = split_headers(fields)
    return copies_of(headers.get("CC")) + copies_of(headers.get("BCC"))


def as_header(bit: int, raw: bytes) -> bytes:
    """Return a property as a field of a table: longstr, signedint or, of a timestamp, long."""
    kind = KINDS[bit]
    if kind == TABLE:
        return b"F" + raw
    if kind == OCTET:
        return signedint(raw[0])
    if kind == TIMESTAMP:
        return b"l" + raw
    return b"S" + with_length(raw[1:])


def signedint(value: int) -> bytes:
    return b"I" + value.to_bytes(4, "big", signed=True)
