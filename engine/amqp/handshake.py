"""The handshake of an AMQP connection: login, negotiation of limits, and the vhost.

Each method here is a step of the diagram in connection_state.py: it judges what the client has sent, and keeps what
both have agreed on. The connection moves from state to state, and sends the answers. It refuses a login or a vhost only
once this node has read to the end of the log (engine/partition/certainty.py).
"""

import logging
from collections.abc import Callable
from typing import Final

from rewindmq.engine.amqp import sasl
from rewindmq.engine.amqp.connection_state import ConnectionState
from rewindmq.engine.amqp.erlang import describe
from rewindmq.engine.amqp.frames import BODY, FRAME_MIN_SIZE, HEADER, HEARTBEAT, METHOD
from rewindmq.engine.amqp.methods import Method
from rewindmq.engine.broker import limits
from rewindmq.engine.broker.access_log import Arrival
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import RABBITMQ_VERSION, VERSION
from rewindmq.engine.errors import (
    AccessRefused,
    AmqpError,
    ChannelError,
    CommandInvalid,
    FrameError,
    LoginsBraked,
    NotAllowed,
    UnexpectedFrame,
    refusal,
)
from rewindmq.engine.identity.grants import Grant, TokenRefused
from rewindmq.engine.identity.tokens import MOST_BYTES
from rewindmq.engine.partition.sessions import ConnectionStatus, Session
from rewindmq.engine.tls import TlsPeer
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import PropertyError

log = logging.getLogger("rewindmq.amqp")

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
PROTOCOL_HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"
START_OK: Final = 10 << 16 | 11
TUNE: Final = 10 << 16 | 30
OPEN: Final = 10 << 16 | 40
CLOSE: Final = 10 << 16 | 50
STEPS: Final = {
    ConnectionState.STARTING: START_OK,
    ConnectionState.TUNING: 10 << 16 | 31,
    ConnectionState.OPENING: OPEN,
}  # the methods that may come
MOST_EARLY_HEARTBEATS: Final = 30  # three a second of HANDSHAKE_SECONDS (server.py)
MOST_PROPERTIES: Final = 4_096  # bytes of a client's properties that the history keeps
MOST_START: Final = FRAME_MIN_SIZE + MOST_BYTES  # of connection.start-ok with a token, which comes before the tuning
CAPABILITIES: Final = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


class OutOfStep(Exception):
    """A frame came that is not the next step of the handshake; `error` goes to the client."""

    def __init__(self, error: AmqpError) -> None:
        super().__init__(error.text)
        self.error = error


class Handshake:
    """The terms of a connection: who the client is, and the limits that both have agreed on.

    `loopback`: the client is on this machine, where `guest` may log in, and came through no balancer."""

    def __init__(self, broker: Broker, arrival: Arrival, loopback: bool, tls: TlsPeer | None) -> None:
        self._broker = broker
        self._arrival = arrival
        self._loopback = loopback
        self._tls = tls
        self.user = ""
        self.grant: Grant | None = None  # of the token that the client logged in with
        self.mechanism = ""
        self.client_properties: dict[str, object] = {}
        self._raw_properties = b""  # the same as the client sent them, until the vhost is open
        self._capabilities: dict[str, object] = {}
        self.channel_max = 0
        self.frame_max = FRAME_MIN_SIZE
        self.heartbeat_seconds = 0
        self._early_heartbeats = 0  # that came before the vhost was open

    def can(self, capability: str) -> bool:
        """Return True if the client has stated this capability."""
        return self._capabilities.get(capability) is True

    def require_step(self, state: ConnectionState, kind: int, number: int, payload: bytes) -> None:
        """Raise OutOfStep unless the frame is the next method of the handshake, connection.close, or one of the few
        heartbeats that some clients send from tune-ok on (Java's begins its timer there)."""
        if number == 0 and kind == METHOD:
            index = int.from_bytes(payload[:4], "big")
            if index not in (STEPS[state], CLOSE):
                raise OutOfStep(ChannelError(f"unexpected method in connection state {state.value}"))
        elif number == 0 and kind == HEARTBEAT and not payload and state is ConnectionState.OPENING:
            self._early_heartbeats += 1
            if self._early_heartbeats > MOST_EARLY_HEARTBEATS:
                raise OutOfStep(UnexpectedFrame(f"more than {MOST_EARLY_HEARTBEATS} heartbeats before connection.open"))
        elif kind in (METHOD, HEADER, BODY, HEARTBEAT):
            raise OutOfStep(UnexpectedFrame(describe(kind, payload)))
        else:
            raise OutOfStep(FrameError(describe(kind, payload) + ": unknown_frame"))

    @property
    def most_start(self) -> int:
        """Return the largest payload of a frame before the tuning: connection.start-ok may hold a token."""
        return FRAME_MIN_SIZE if self._broker.access.tokens.settings is None else MOST_START

    def start(self) -> dict[str, int | str | bytes]:
        """Return the fields of connection.start."""
        properties = {
            "capabilities": CAPABILITIES,
            "cluster_name": self._broker.parameters.cluster_name,
            "product": "RabbitMQ",
            "version": RABBITMQ_VERSION,
            "platform": f"RewindMQ {VERSION}",
            "rewindmq_version": VERSION,
            "rewindmq_atomic_commits": not self._broker.nodes.reads_back,
            "information": f"RewindMQ {VERSION}, compatible with RabbitMQ {RABBITMQ_VERSION}",
        }
        return {
            "version_major": 0,
            "version_minor": 9,
            "server_properties": tables.encode(properties),
            "mechanisms": " ".join(sasl.offered(self._tls)),
            "locales": "en_US",
        }

    def start_ok(self, method: Method) -> sasl.SaslLogin:
        """Take what the client says of itself, and return its login. CommandInvalid: the mechanism was not offered."""
        try:
            self._raw_properties = method.raw("client_properties")
            self.client_properties = tables.mapping(self._raw_properties)
        except PropertyError as error:
            raise refusal(error) from None
        capabilities = self.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self._capabilities = capabilities
        self.mechanism = method.text("mechanism")
        if self.mechanism not in sasl.offered(self._tls):
            raise CommandInvalid(f"unknown authentication mechanism '{self.mechanism}'")
        return sasl.decode(self.mechanism, method.raw("response"), self._tls)

    async def identify(self, login: sasl.SaslLogin) -> None:
        """Set the user. AccessRefused, also for a user who may log in from this machine only."""
        access = self._broker.access.control
        if login.password is None:
            who = access.identify(login.user)
        else:
            who = await access.authenticate(login.user, login.password, self._arrival.host)
        self.user, self.grant = who.user, who.grant
        if self.user in self._broker.config.loopback_users and not self._loopback:
            raise AccessRefused(f"user '{self.user}' can only connect via localhost")

    def login_refused(self, login: sasl.SaslLogin, error: AccessRefused) -> AccessRefused | None:
        """Enter the refusal into the history, and return the error for the client; None: it has not asked for one
        (capability authentication_failure_close). The client gets RabbitMQ's words, which send it to the broker's log.
        Only how long it has to wait is said to the client itself."""
        user = (error.user if isinstance(error, TokenRefused) else "") or login.user
        log.warning("%s: login of '%s' refused: %s", self._arrival.address, user, error.text)
        self._broker.access.log.login_refused(self._arrival, user, self.mechanism, error.text)
        if not self.can("authentication_failure_close"):
            return None
        refused = f"Login was refused using authentication mechanism {self.mechanism}."
        details = error.text if isinstance(error, LoginsBraked) else "For details see the broker logfile."
        return AccessRefused(f"{refused} {details}")

    def tune(self) -> dict[str, int]:
        """Return the fields of connection.tune, the limits that the broker offers."""
        config = self._broker.config
        return {
            "channel_max": config.channel_max,
            "frame_max": config.frame_max,
            "heartbeat": config.heartbeat_seconds,
        }

    def tune_ok(self, method: Method) -> None:
        """Take the limits that the client chose. NotAllowed: they were not offered."""
        config = self._broker.config
        frame_max, channel_max = method.number("frame_max"), method.number("channel_max")
        negotiated("frame_max", frame_max, FRAME_MIN_SIZE, config.frame_max)
        negotiated("channel_max", channel_max, 1, config.channel_max)
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.heartbeat_seconds = method.number("heartbeat")

    def vhost_refused(self, error: NotAllowed) -> None:
        """Enter the refusal of the vhost into the history."""
        self._broker.access.log.login_refused(self._arrival, self.user, self.mechanism, error.text)

    def open(
        self, vhost: str, link: ConnectionStatus, admit: Callable[[], None], force_close: Callable[[str], None]
    ) -> Session:
        """Open the session in the broker. `admit`: takes a place in the quota.

        Raises NotAllowed (530), and ResourceError (506) where memory is used up."""
        broker = self._broker
        broker.host.memory.check()
        limits.check_connection(broker.topology, broker.sessions.by_id.values(), self.user, vhost)
        admit()
        session = broker.sessions.open(
            self.user, vhost, self._arrival.address, self.client_properties, link, force_close, grant=self.grant
        )
        link.auth_mechanism, link.heartbeat_seconds = self.mechanism, self.heartbeat_seconds
        link.channel_max, link.frame_max = self.channel_max, self.frame_max
        return session

    def opened(self, session: Session) -> None:
        """Enter the session into the history."""
        properties = tables.first_arguments(self._raw_properties, MOST_PROPERTIES)
        self._raw_properties = b""
        mechanism = self.mechanism if self.grant is None else f"{self.mechanism} with a token"
        self._broker.access.log.opened(session, self._arrival, mechanism, self._tls, properties)


def negotiated(field: str, value: int, least: int, most: int) -> None:
    """Raise NotAllowed (530) for a value of tune-ok that connection.tune did not offer."""
    detail = " (no limit)" if field == "channel_max" and value == 0 else ""
    if value and value < least:
        raise NotAllowed(f"negotiated {field} = {value}{detail} is lower than the minimum allowed value ({least})")
    if most and (value == 0 or value > most):
        raise NotAllowed(f"negotiated {field} = {value}{detail} is higher than the maximum allowed value ({most})")
