"""A basic.publish, resolved once per distinct method frame of a channel: exchange, routing key, flags, and its route.

A `BasicPublish` stays in the channel's memo under the bytes of its method frame. Its route holds as long as
`broker.router.version` stands. Routing by the content, or by CC and BCC, is resolved per message.

On a log that is read back, another node may have deleted the queue before the publish gets there. A mandatory message
is returned then (`RouteCheck`).
"""

from collections.abc import Awaitable, Callable
from typing import Final

from rewindmq.engine.amqp.erlang import erlang_binary
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import FrameError, NotImplementedByBroker, refusal
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.routing.content import NO_CONTENT, Content
from rewindmq.engine.routing.router import Destination
from rewindmq.projections.rules.internal_queues import is_reply_queue
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.properties import ParsedProperties, carbon_copies
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Encryption, Route

FAN_OUT: Final = 16  # a message to this number of queues counts as work of a turn (channel.py FANNED_OUT)

# Which messages are confirmed before they are durable (`early_confirm`).
EARLY_NEVER: Final = 0
EARLY_IF_TRANSIENT: Final = 1
EARLY_ALWAYS: Final = 2


def early_confirm(to: Destination) -> int:
    """Return which messages to these queues are confirmed without waiting for the disk: one of the numbers above.

    As in RabbitMQ (rabbit_amqqueue_process.erl `send_or_record_confirm/2`): transient ones in classic queues, and all
    in classic queues that are not durable. Quorum queues and streams keep what they confirm, so they wait. Without a
    queue, only the history keeps the message: it is confirmed as in a durable classic queue."""
    found = EARLY_ALWAYS if to.route.queues else EARLY_IF_TRANSIENT
    for name in to.route.queues:
        queue = to.partition.machine.queue(to.route.vhost, name)
        if queue is None or queue.type != "classic":
            return EARLY_NEVER
        if queue.durable:
            found = EARLY_IF_TRANSIENT
    return found


def reaches_none(destinations: tuple[Destination, ...]) -> bool:
    """Return True if a client's publish reaches no queue."""
    return not destinations or not destinations[0].route.queues


class PublishPostponed(Exception):
    """A complete publish has to wait: for the key of its subject, for room on the disk, for a queue that moves, or
    because it seems to go nowhere and this node has not read to the end of the log (engine/partition/certainty.py).
    Nothing was done. `wait` returns when it may be tried again."""

    def __init__(
        self, wait: Callable[[], Awaitable[object]], publish: "BasicPublish", properties: bytes, body: bytes
    ) -> None:
        super().__init__()
        self.wait = wait
        self.publish = publish
        self.properties = properties
        self.body = body


class RouteCheck:
    """Find out whether a mandatory publish to `partitions` partitions reaches a queue. If none of its queues exists
    when all partitions have folded it, `nowhere` is called, before the publish is confirmed."""

    def __init__(self, partitions: int, nowhere: Callable[[], None]) -> None:
        self.left = partitions
        self.nowhere = nowhere
        self.routed = False

    def publish(self, to: Destination, actor: Actor, message: Published) -> int:
        """Append the message to one of its partitions, and return its append position there."""
        return to.partition.publish_then(actor, message, lambda: self.folded(to))

    def folded(self, at: Destination) -> None:
        """The message is folded in a partition."""
        machine, route = at.partition.machine, at.route
        self.routed = self.routed or any(machine.queue(route.vhost, name) is not None for name in route.queues)
        self.left -= 1
        if self.left == 0 and not self.routed:
            self.nowhere()


class BasicPublish:
    """The fields of a method frame, and the route. `partition` and `route` are set if the hot path may take the
    publish: it goes to one partition, to few queues or (where this node alone writes the log) to none, and nobody asks
    what becomes of it."""

    def __init__(self, exchange: str, routing_key: str, mandatory: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.returned = mandatory and exchange == "" and is_reply_queue(routing_key)  # even when it is delivered
        self.route_checked = False  # by a `RouteCheck`
        self.traced = False  # the firehose gets a copy
        self.version = -1  # of the routing that `destinations` was resolved under
        self.needs_content = False
        self.destinations: tuple[Destination, ...] = ()
        self.partition: Partition | None = None
        self.route: Route | None = None
        self.queues = 0  # in that route
        self.early_confirm = EARLY_NEVER  # of that route
        self.early_confirms: dict[Destination, int] = {}  # of `destinations`

    def resolve(self, broker: Broker, session: Session, known: tuple[Destination, ...] | None) -> None:
        """Find the route again. `known`: the route of this publish, found in turns.

        NotFound, AccessRefused, RouteTakesLong as `Exchanges.route`."""
        self.needs_content = broker.router.needs_content(session.vhost, self.exchange)
        if self.needs_content:
            broker.exchanges.check_publish(session, self.exchange, self.routing_key)
            self.destinations = ()
        elif known is not None:
            self.destinations = known
        else:
            self.destinations = broker.exchanges.route(session, self.exchange, self.routing_key, None)
        if self.mandatory:
            self.destinations = broker.router.returned(self.destinations)
        self.route_checked = self.mandatory and not self.returned and broker.nodes.reads_back
        self.early_confirms = {to: early_confirm(to) for to in self.destinations}
        self.partition = None
        self.route = None
        self.traced = session.vhost in broker.firehose.vhosts
        asked_for = self.returned or self.route_checked or self.traced
        if reaches_none(self.destinations):  # and has to be told so, or to ask others
            asked_for = self.mandatory or self.traced or broker.nodes.reads_back
        if len(self.destinations) == 1 and not asked_for and len(self.destinations[0].route.queues) < FAN_OUT:
            self.partition = self.destinations[0].partition
            self.route = self.destinations[0].route
            self.queues = len(self.route.queues)
            self.early_confirm = self.early_confirms[self.destinations[0]]
        self.version = broker.router.version if known is None else -1  # what was found in turns serves once

    def prompt_of(self, to: Destination) -> int:
        """As `early_confirm`, which is slow for many queues, of one of the destinations of a message."""
        known = self.early_confirms.get(to)
        return early_confirm(to) if known is None else known


class PublishProperties:
    """The properties of a basic.publish, with what this broker makes of them. The fields of `parsed` that the hot path
    reads are copied. `subject`: the body is encrypted under this person's key. `every_body`: it is encrypted anyhow
    (engine/erasure/encryption.py)."""

    def __init__(self, parsed: ParsedProperties, subject: str | None, every_body: bool) -> None:
        self.parsed = parsed
        self.raw = parsed.raw
        self.expiration_ms = parsed.expiration_ms
        self.priority = parsed.priority
        self.persistent = parsed.persistent
        self.subject = subject
        self.plain = subject is None and not every_body and not parsed.sender_selected  # the hot path may take it


def decode(payload: bytes) -> BasicPublish:
    """Decode a basic.publish frame, from behind its method id. NotImplementedByBroker (540) for immediate (S-040)."""
    # ticket (2) | exchange | routing key | bits: mandatory, immediate
    try:
        pos = 3 + payload[2]
        exchange = payload[3:pos].decode()
        end = pos + 1 + payload[pos]
        routing_key = payload[pos + 1 : end].decode()
        (bits,) = payload[end:]
    except UnicodeDecodeError:
        raise FrameError("Malformed UTF-8 in shortstr") from None
    except (IndexError, ValueError):
        raise FrameError(f"cannot decode {erlang_binary(payload)}") from None
    if bits & 2:
        raise NotImplementedByBroker("immediate=true")
    return BasicPublish(exchange, routing_key, bits & 1 == 1)


def route_by_content(
    publish: BasicPublish, parsed: ParsedProperties, broker: Broker, session: Session
) -> tuple[Destination, ...]:
    """Return the destinations of a message that is routed by its content or to carbon copies. MalformedFrame (502) when
    a header's name is not UTF-8, PreconditionFailed (406) for carbon copies that are not an array."""
    content = Content(parsed.raw) if publish.needs_content else NO_CONTENT
    try:
        if parsed.sender_selected:
            keys = (publish.routing_key, *carbon_copies(parsed))
            found = broker.exchanges.route_by_keys(session, publish.exchange, keys, content)
        else:
            found = broker.exchanges.route(session, publish.exchange, publish.routing_key, content)
    except PropertyError as error:
        raise refusal(error) from None
    return broker.router.returned(found) if publish.mandatory else found


def homes_of(publish: BasicPublish, parsed: ParsedProperties, broker: Broker, vhost: str) -> list[Partition]:
    """Return the partitions in which the queues would be that a publish to the default exchange names."""
    return [broker.homes.of(vhost, key) for key in keys_of(publish, parsed)]


def keys_of(publish: BasicPublish, parsed: ParsedProperties) -> tuple[str, ...]:
    """Return the routing key of a publish, and those of its carbon copies."""
    copies = carbon_copies(parsed) if parsed.sender_selected else ()
    return (publish.routing_key, *copies)


def held_name(
    publish: BasicPublish, destinations: tuple[Destination, ...], parsed: ParsedProperties, broker: Broker, vhost: str
) -> str | None:
    """Return the first queue of a publish that waits on its way to another partition (engine/routing/homes.py)."""
    if not broker.homes.names_wait:
        return None
    names = [name for to in destinations for name in to.route.queues]
    if publish.exchange == "":  # a name without a queue may wait as well
        names += keys_of(publish, parsed)
    return broker.homes.first_held(vhost, names)


def message(to: Destination, parsed: ParsedProperties, body: bytes, encryption: Encryption | None = None) -> Published:
    """Return the event for one destination of a publish. It keeps the header BCC, which the broker needs to route the
    message once more (a delay, a dead letter). Consumers do not see that header (consumer.py `header_frame`)."""
    expiration_ms = parsed.expiration_ms if to.delay_ms is None else to.delay_ms
    return Published(
        to.route,
        parsed.raw,
        expiration_ms=expiration_ms,
        priority=parsed.priority,
        persistent=parsed.persistent,
        encryption=encryption,
        body=body,
        body_size=len(body) if encryption is None else encryption.plain_size,
    )
