"""Events of the metadata log that say who came, from where, and what was refused.

They concern connections and requests, never messages. The fold ignores them: they change no queue and no exchange. The
end of a session is a `SessionClosed` of channel 0. Rules as in `events.py`.
"""

from dataclasses import dataclass

from rewindmq.schemas.values import Argument


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A client was let in: an AMQP connection, or a user of the HTTP API from one address. The actor is its session.

    `protocol`: amqp or http. `address`: the client's host and port. `listener`: the host and port where it came in.
    `proxy`: the balancer's address, if one spoke for the client. `mechanism`: how it proved who it is, such as PLAIN.
    `certificate`: the subject of the client's TLS certificate. Texts are empty where there is no such thing."""

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
    """Clients were not let in: so many logins (`count`) of one user name from one host, since `first_ms`.

    The first one is logged at once; those that follow are counted, and logged together later. `user`: the name as it
    was given, at most 255 bytes. `host`: without the port; empty for all that could not be told apart. `reason`: of the
    last one."""

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
    """A session was refused something: so many times (`count`) since `first_ms`. The actor is the session.

    `operation`: an AMQP method (queue.declare) or an HTTP request (PUT /api/policies). `kind` and `name`: of the
    resource, such as queue and orders. `reason`: the text that the client got."""

    operation: str
    vhost: str
    kind: str
    name: str
    reason: str
    count: int
    first_ms: int


AccessEvent = SessionOpened | LoginRefused | AccessRefused
