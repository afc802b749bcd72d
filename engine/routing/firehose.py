"""The firehose: copies of what is published and delivered in a vhost, for the queues that are bound to
amq.rabbitmq.trace (rabbit_trace.erl of RabbitMQ 3.13).

    rewindmq trace_on -p VHOST       bind a queue to amq.rabbitmq.trace with publish.# or deliver.#, and consume

    publish.{exchange}   a client published, routed or not     deliver.{queue}   a client was given a message

Rules of this file
- It is off when a node starts, it is the node's own, and it costs nothing while it is off: publishes take the long way
  only in a vhost that is traced (basic_publish.py), and the consumers of such a vhost are wrapped (`Tapped`).
- Copies are messages like others: they are in the log, and limits of their queues hold. They are transient, and are not
  traced themselves.
- The body of a copy stays encrypted under its subject's key, so an erasure covers it too.
- What readers of streams and of the past are given is not traced.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rewindmq.engine.config import Config
from rewindmq.engine.routing.router import Router
from rewindmq.engine.runtime.partition import DeliveryTarget, Partition
from rewindmq.engine.runtime.sessions import Session
from rewindmq.projections.machine.data.queue import Queue
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
from rewindmq.schemas.events import BROKER, Encryption, Published

if TYPE_CHECKING:
    from collections.abc import Mapping


class Firehose:
    """`vhosts`: those that are traced. `changed` is called when they change, so that routes are resolved anew."""

    def __init__(
        self, config: Config, router: Router, sessions: "Mapping[int, Session]", changed: Callable[[], None]
    ) -> None:
        self.vhosts: set[str] = set()
        self._config = config
        self._router = router
        self._sessions = sessions
        self._changed = changed

    def switch(self, vhost: str, on: bool) -> None:
        """Begin or end to trace a vhost, consumers that are there included."""
        if on == (vhost in self.vhosts):
            return
        if on:
            self.vhosts.add(vhost)
        else:
            self.vhosts.discard(vhost)
        for session in self._sessions.values():
            if session.vhost == vhost:
                self._tap_session(session)
        self._changed()

    def _tap_session(self, session: Session) -> None:
        for channel, attached in session.attached.items():
            for partition, consumer_ids in attached.items():
                for consumer_id in consumer_ids:
                    consumer = partition.consumers.get(consumer_id)
                    if consumer is not None:
                        partition.attach(consumer_id, self.tapped(session, channel, consumer))

    def tapped(self, session: Session, channel: int, consumer: DeliveryTarget) -> DeliveryTarget:
        """The consumer as a partition is to know it: wrapped in a vhost that is traced, else itself."""
        if isinstance(consumer, Tapped):
            consumer = consumer.consumer
        return Tapped(self, session, channel, consumer) if session.vhost in self.vhosts else consumer

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
        """A client published this to these queues; `body` as it is logged."""
        if exchange != TRACE_EXCHANGE:
            routed = array([longstr(queue) for queue in queues])
            self._copy(
                f"publish.{exchange}",
                session,
                channel,
                exchange,
                routing_key,
                properties,
                body,
                encryption,
                {"routed_queues": routed},
            )

    def delivered(self, session: Session, channel: int, queue: str, message: Published, redelivered: bool) -> None:
        route = message.route
        if route.exchange != TRACE_EXCHANGE:
            self._copy(
                f"deliver.{queue}",
                session,
                channel,
                route.exchange,
                route.routing_key,
                message.properties,
                message.body,
                message.encryption,
                {"redelivered": signedint(redelivered)},
            )

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
        if not destinations:
            return
        try:
            fields = split(without_blind_copies(properties))
            copies = carbon_copies(properties)
        except ValueError:  # a service appended it to the log itself, with bytes that are no properties
            fields, copies = {}, []
        keys = (routing_key, *copies)
        told = join(
            {
                HEADERS: join_headers(
                    {
                        "exchange_name": longstr(exchange),
                        "routing_keys": array([longstr(each) for each in keys]),
                        "properties": b"F"
                        + join_headers({NAMES[bit]: as_header(bit, raw) for bit, raw in fields.items()}),
                        "node": longstr(self._config.node),
                        "vhost": longstr(session.vhost),
                        "connection": longstr(self._config.connection_name(session.peer)),
                        "channel": signedint(channel),
                        "user": longstr(session.user),
                        **more,
                    }
                )
            }
        )
        size = len(body) if encryption is None else encryption.plain_size
        for to in destinations:
            to.partition.publish(BROKER, Published(to.route, told, None, None, False, None, encryption, body, size))


class Tapped:
    """A consumer, or a holder of basic.get, whose deliveries are copied. A `DeliveryTarget` of
    rewindmq.engine.runtime.partition."""

    def __init__(self, firehose: Firehose, session: Session, channel: int, consumer: DeliveryTarget) -> None:
        self.firehose = firehose
        self.session = session
        self.channel = channel
        self.consumer = consumer

    def deliver(
        self,
        partition: Partition,
        queue: Queue,
        message_id: int,
        message: Published,
        redelivered: bool,
        delivery_count: int,
        final: bool,
        acquired_count: int = 0,
    ) -> None:
        self.consumer.deliver(partition, queue, message_id, message, redelivered, delivery_count, final, acquired_count)
        self.firehose.delivered(self.session, self.channel, queue.name, message, redelivered)

    def fetched(
        self,
        partition: Partition,
        queue: Queue,
        message_id: int,
        message: Published | None,
        redelivered: bool,
        delivery_count: int,
        final: bool,
        messages_ready: int,
        acquired_count: int = 0,
    ) -> None:
        self.consumer.fetched(
            partition, queue, message_id, message, redelivered, delivery_count, final, messages_ready, acquired_count
        )
        if message is not None:
            self.firehose.delivered(self.session, self.channel, queue.name, message, redelivered)

    def cancelled(self) -> None:
        self.consumer.cancelled()


def carbon_copies(properties: bytes) -> list[str]:
    """The routing keys in the headers CC and BCC. ValueError: the bytes are no properties."""
    fields = split(properties)
    headers = split_headers(fields)
    return copies_of(headers.get("CC")) + copies_of(headers.get("BCC"))


def as_header(bit: int, raw: bytes) -> bytes:
    """A property as a field of a table: longstr, signedint or, of a timestamp, long."""
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
