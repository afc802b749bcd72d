"""basic.publish, resolved once per distinct method frame of a channel: exchange, routing key, flags, and where it goes.

A `Publishing` stays in the channel's memo under the bytes of its method frame. Where it goes holds as long as
`broker.router.version` stands; routing that looks at the content, or at CC and BCC, is resolved per message.

On a log that is read back, another node may have deleted the queue before the publish gets there: a mandatory one is
returned then (`Placing`).
"""

from collections.abc import Awaitable, Callable

from rewindmq.engine.amqp.erlang import erlang_binary
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import FrameError, NotImplementedByBroker, refusal
from rewindmq.engine.routing.content import NO_CONTENT, Content
from rewindmq.engine.routing.router import Destination
from rewindmq.engine.runtime.partition import Partition
from rewindmq.engine.runtime.sessions import Session
from rewindmq.projections.rules.internal_queues import is_reply_queue
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.properties import Parsed, carbon_copies
from rewindmq.schemas.events import Actor, Encryption, Published, Route

FAN_OUT = 16  # queues that one message goes to, from which on they are counted (frames.py FANNED_OUT)


NEVER, TRANSIENT, ALWAYS = range(3)


def prompt(to: Destination) -> int:
    """Which messages are confirmed when these queues have them, and need not wait for the disk. As RabbitMQ has it
    (rabbit_amqqueue_process.erl `send_or_record_confirm/2`): transient ones in classic queues, all in classic queues
    that are not durable. Quorum queues and streams promise to keep whatever they confirm."""
    found = ALWAYS
    for name in to.route.queues:
        queue = to.partition.machine.queue(to.route.vhost, name)
        if queue is None or queue.type != "classic":
            return NEVER
        if queue.durable:
            found = TRANSIENT
    return found


class PutOff(Exception):
    """A complete publish that has to wait: for the key of its subject, or because it seems to go nowhere and this node
    has not read to the end of the log (engine/runtime/certainty.py). Nothing was done."""

    def __init__(
        self, wait: Callable[[], Awaitable[None]], publishing: "Publishing", properties: bytes, body: bytes
    ) -> None:
        super().__init__()
        self.wait = wait
        self.publishing = publishing
        self.properties = properties
        self.body = body


class Placing:
    """A mandatory publish on its way to `partitions`. `nowhere` is called if it was folded in the last of them and no
    queue of its route was there any more in any: before it is confirmed."""

    def __init__(self, partitions: int, nowhere: Callable[[], None]) -> None:
        self.left = partitions
        self.nowhere = nowhere
        self.routed = False

    def publish(self, to: Destination, actor: Actor, message: Published) -> int:
        """Its mark in that partition."""
        return to.partition.publish_told(actor, message, lambda: self.folded(to))

    def folded(self, at: Destination) -> None:
        machine, route = at.partition.machine, at.route
        self.routed = self.routed or any(machine.queue(route.vhost, name) is not None for name in route.queues)
        self.left -= 1
        if self.left == 0 and not self.routed:
            self.nowhere()


class Publishing:
    """What a method frame said. `partition` and `route` are set when it goes to one partition, and to few queues."""

    def __init__(self, exchange: str, routing_key: str, mandatory: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.returned = mandatory and exchange == "" and is_reply_queue(routing_key)  # even when it is delivered
        self.placed = False  # it takes a `Placing` to know whether it was routed
        self.traced = False  # the firehose gets a copy
        self.version = -1  # of the routing that `destinations` was resolved under
        self.needs_content = False
        self.destinations: tuple[Destination, ...] = ()
        self.partition: Partition | None = None
        self.route: Route | None = None
        self.queues = 0  # in that route
        self.prompt = NEVER  # of that route

    def resolve(self, broker: Broker, session: Session) -> None:
        """NotFound, AccessRefused as `Exchanges.route`."""
        self.needs_content = broker.router.needs_content(session.vhost, self.exchange)
        if self.needs_content:
            broker.exchanges.route(session, self.exchange, self.routing_key, NO_CONTENT)  # for its refusals
            self.destinations = ()
        else:
            self.destinations = broker.exchanges.route(session, self.exchange, self.routing_key, None)
        self.placed = self.mandatory and not self.returned and broker.keeper.reads_back
        self.partition = None
        self.route = None
        self.traced = session.vhost in broker.firehose.vhosts
        by_hand = self.returned or self.placed or self.traced
        if len(self.destinations) == 1 and not by_hand and len(self.destinations[0].route.queues) < FAN_OUT:
            self.partition = self.destinations[0].partition
            self.route = self.destinations[0].route
            self.queues = len(self.route.queues)
            self.prompt = prompt(self.destinations[0])
        self.version = broker.router.version


def decode(payload: bytes) -> Publishing:
    """The fields of a basic.publish frame behind its method id. NotImplementedByBroker (540) for immediate (S-040)."""
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
    return Publishing(exchange, routing_key, bits & 1 == 1)


def route_by_content(
    publishing: Publishing, parsed: Parsed, broker: Broker, session: Session
) -> tuple[Destination, ...]:
    """Where a message goes that is routed by its content or to carbon copies. MalformedFrame (502) when a header's name
    is not UTF-8, PreconditionFailed (406) for carbon copies that are no array."""
    content = Content(parsed.raw) if publishing.needs_content else NO_CONTENT
    try:
        if parsed.sender_selected:
            keys = (publishing.routing_key, *carbon_copies(parsed))
            return broker.exchanges.route_by_keys(session, publishing.exchange, keys, content)
        return broker.exchanges.route(session, publishing.exchange, publishing.routing_key, content)
    except PropertyError as error:
        raise refusal(error) from None


def message(to: Destination, parsed: Parsed, body: bytes, encryption: Encryption | None = None) -> Published:
    """A publish as one of its destinations logs it. With its BCC header: who routes it once more (a delay, a dead
    letter) needs that, and who gets it does not see it (consumer.py `header_frame`)."""
    expiration_ms = parsed.expiration_ms if to.delay_ms is None else to.delay_ms
    return Published(
        to.route,
        parsed.raw,
        expiration_ms,
        parsed.priority,
        parsed.persistent,
        None,
        encryption,
        body,
        len(body) if encryption is None else encryption.plain_size,
    )
