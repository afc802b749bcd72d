"""Events of the metadata log about logins, their addresses, and refusals, and about what became of their publishes.

They concern connections and requests, never single messages. The fold ignores them, because they change no queue and no
exchange. The end of a session is a `SessionClosed` of channel 0. Rules as in `events.py`.
"""

from dataclasses import dataclass

from rewindmq.schemas.values import Argument, CountedPartition


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A client was let in: an AMQP connection, or a user of the HTTP API from one address. The actor is its session.

    `protocol`: amqp or http. `address`: the client's host and port. `listener`: the host and port that it connected to.
    `proxy`: the balancer's address, if one spoke for the client. `mechanism`: of its authentication, such as PLAIN.
    `certificate`: the subject of the client's TLS certificate. Texts without a value are empty."""

    session: int
    vhost: str
    protocol: str
    address: str
    listener: str
    proxy: str
    mechanism: str
    tls: str
    certificate: str
    client_properties: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class LoginRefused:
    """Clients were not let in: `count` logins of one user name from one host, since `first_ms`.

    The first one is logged at once; the following ones are counted, and logged together later. `user`: the name as
    given, at most 255 bytes. `host`: without the port; empty if hosts could not be told apart. `reason`: of the last
    one."""

    user: str
    host: str
    listener: str
    protocol: str
    mechanism: str
    reason: str
    count: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class AccessRefused:
    """A session was refused something, `count` times since `first_ms`. The actor is the session.

    `operation`: an AMQP method (queue.declare) or an HTTP request (PUT /api/policies). `kind` and `name`: of the
    resource, such as queue and orders. `reason`: the text that the client got."""

    operation: str
    vhost: str
    kind: str
    name: str
    reason: str
    count: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class UnroutedCounted:
    """No queue took `count` messages of a user since `first_ms`, and the exchange's policy has them counted only.

    `message_ids`: the property of the first ones that have it. The actor is the session of the last one."""

    vhost: str
    exchange: str
    routing_key: str
    message_ids: tuple[str, ...]
    count: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class SessionCounted:
    """The fates of the publishes of a session, from its beginning to this count. The events of `partitions` are
    durable when this is logged. A correct broker's count satisfies

        received + copies = refused + unknown_exchange + after_error + unfinished + grouped + events of all partitions

    `received`: publishes whose frames all came. `after_error`: on a channel that the broker had closed. `unfinished`:
    of transactions that were not committed, and those that waited. `grouped`: in `UnroutedCounted` events. `copies`:
    events in excess of one for each publish, as one to queues in several partitions is an event in each."""

    session: int
    received: int
    refused: int
    unknown_exchange: int
    after_error: int
    unfinished: int
    grouped: int
    copies: int
    partitions: tuple[CountedPartition, ...]


AccessEvent = SessionOpened | LoginRefused | AccessRefused | UnroutedCounted | SessionCounted
