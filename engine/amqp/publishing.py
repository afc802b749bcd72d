"""basic.publish, resolved once per distinct method frame of a channel: exchange, routing key, flags, and where it goes.

A `Publishing` stays in the channel's memo under the bytes of its method frame. Where it goes holds as long as
`broker.routing_version` stands; routing that looks at headers, or at CC and BCC, is resolved per message.
"""

from engine.amqp import tables
from engine.amqp.erlang import erlang_binary
from engine.amqp.properties import Parsed, carbon_copies
from engine.broker import Broker, Destination, Session
from engine.errors import FrameError, NotImplementedByBroker
from engine.partition import Partition
from schemas.events import Route


class Publishing:
    """What a method frame said. `partition` and `route` are set when there is exactly one destination."""

    def __init__(self, exchange: str, routing_key: str, mandatory: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.version = -1  # of the routing that `destinations` was resolved under
        self.needs_headers = False
        self.destinations: tuple[Destination, ...] = ()
        self.partition: Partition | None = None
        self.route: Route | None = None
        self.queues = 0  # in that route

    def resolve(self, broker: Broker, session: Session) -> None:
        """NotFound, AccessRefused as `Broker.route`."""
        self.needs_headers = broker.needs_headers(session.vhost, self.exchange)
        if self.needs_headers:
            broker.route(session, self.exchange, self.routing_key, {})  # for its refusals
            self.destinations = ()
        else:
            self.destinations = broker.route(session, self.exchange, self.routing_key, None)
        self.partition = None
        self.route = None
        if len(self.destinations) == 1:
            self.partition = self.destinations[0].partition
            self.route = self.destinations[0].route
            self.queues = len(self.route.queues)
        self.version = broker.routing_version


def decode(payload: bytes) -> Publishing:
    """The fields of a basic.publish frame behind its method id. NotImplementedByBroker (540) for immediate (S-040)."""
    # ticket (2) | exchange | routing key | bits: mandatory, immediate
    try:
        pos = 3 + payload[2]
        exchange = payload[3:pos].decode()
        end = pos + 1 + payload[pos]
        routing_key = payload[pos + 1 : end].decode()
        bits = payload[end]
    except IndexError:
        raise FrameError(f"cannot decode {erlang_binary(payload)}") from None
    except UnicodeDecodeError:
        raise FrameError("Malformed UTF-8 in shortstr") from None
    if bits & 2:
        raise NotImplementedByBroker("immediate=true")
    return Publishing(exchange, routing_key, bits & 1 == 1)


def route_by_content(
    publishing: Publishing, parsed: Parsed, broker: Broker, session: Session
) -> tuple[tuple[Destination, ...], bytes]:
    """Where a message goes that is routed by its headers or to carbon copies, and its properties (without BCC)."""
    headers = tables.mapping(parsed.header_table()) if publishing.needs_headers else None
    destinations = broker.route(session, publishing.exchange, publishing.routing_key, headers)
    if not parsed.sender_selected:
        return destinations, parsed.raw
    copies, properties = carbon_copies(parsed)
    for key in copies:
        destinations = union(destinations, broker.route(session, publishing.exchange, key, headers), publishing)
    return destinations, properties


def union(
    left: tuple[Destination, ...], right: tuple[Destination, ...], publishing: Publishing
) -> tuple[Destination, ...]:
    """One destination a partition, with the queues of both; the message keeps its own routing key."""
    if not left and not right:
        return ()
    queues: dict[int, list[str]] = {}
    partitions: dict[int, Partition] = {}
    for destination in left + right:
        index = destination.partition.index
        partitions[index] = destination.partition
        names = queues.setdefault(index, [])
        names += [name for name in destination.route.queues if name not in names]
    vhost = (left + right)[0].route.vhost
    return tuple(
        Destination(partition, Route(vhost, publishing.exchange, publishing.routing_key, tuple(queues[index])))
        for index, partition in partitions.items()
    )
