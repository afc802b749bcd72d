"""The handshake of an AMQP connection: protocol header, login, negotiation, and the vhost.

Each function here is a step of the diagram in connection_state.py. A login and a vhost are refused only when this node
has read to the end of the log (engine/runtime/certainty.py).
"""

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from rewindmq.engine.amqp import credentials, publish_hold, sasl
from rewindmq.engine.amqp.connection_state import State
from rewindmq.engine.amqp.erlang import describe
from rewindmq.engine.amqp.frames import BODY, FRAME_MIN_SIZE, HEADER, HEARTBEAT, METHOD
from rewindmq.engine.amqp.methods import Method
from rewindmq.engine.amqp.publish_path import SharedState
from rewindmq.engine.broker import limits
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
from rewindmq.engine.identity.grants import TokenRefused
from rewindmq.engine.identity.tokens import MOST_BYTES
from rewindmq.engine.runtime.eager import begin
from rewindmq.engine.runtime.flow_control import LARGE_BYTES
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import PropertyError

if TYPE_CHECKING:
    from rewindmq.engine.amqp.connection import Connection

log = logging.getLogger("rewindmq.amqp")

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
START_OK: Final = 10 << 16 | 11
TUNE: Final = 10 << 16 | 30
OPEN: Final = 10 << 16 | 40
CLOSE: Final = 10 << 16 | 50
STEPS: Final = {State.STARTING: START_OK, State.TUNING: 10 << 16 | 31, State.OPENING: OPEN}  # the methods that may come
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
    """A frame came that is not the next step of the handshake; `error` is what the client is told."""

    def __init__(self, error: AmqpError) -> None:
        super().__init__(error.text)
        self.error = error


def require_step(connection: "Connection", kind: int, number: int, payload: bytes) -> None:
    """Raise OutOfStep unless the frame is the next method of the handshake, connection.close, or one of the few
    heartbeats that some clients send from tune-ok on (Java's begins its timer there)."""
    if number == 0 and kind == METHOD:
        index = int.from_bytes(payload[:4], "big")
        if index not in (STEPS[connection.state], CLOSE):
            raise OutOfStep(ChannelError(f"unexpected method in connection state {connection.state.value}"))
    elif number == 0 and kind == HEARTBEAT and not payload and connection.state is State.OPENING:
        connection.early_heartbeats += 1
        if connection.early_heartbeats > MOST_EARLY_HEARTBEATS:
            raise OutOfStep(UnexpectedFrame(f"more than {MOST_EARLY_HEARTBEATS} heartbeats before connection.open"))
    elif kind in (METHOD, HEADER, BODY, HEARTBEAT):
        raise OutOfStep(UnexpectedFrame(describe(kind, payload)))
    else:
        raise OutOfStep(FrameError(describe(kind, payload) + ": unknown_frame"))


def take_header(connection: "Connection", data: bytes) -> bytes:
    """Take the protocol header once its eight bytes are there, and return what follows it."""
    parser = connection.parser
    came, parser.rest = parser.rest + data, b""
    if len(came) < len(PROTOCOL_HEADER):
        parser.rest = came
        return b""
    protocol_header(connection, came[: len(PROTOCOL_HEADER)])
    return came[len(PROTOCOL_HEADER) :]


def protocol_header(connection: "Connection", header: bytes) -> None:
    """Begin the handshake. A client of another protocol than AMQP 0-9-1 (or 0-9, which is the same on the wire) is sent
    the header of the one that is spoken here, and the connection is closed."""
    if header not in (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"):
        log.warning("%s: protocol header %r refused", connection.peer, header)
        connection.output.write(PROTOCOL_HEADER)
        connection.finish()
        return
    connection.state = State.STARTING
    if connection.broker.tokens.settings is not None:
        connection.parser.max_payload = MOST_START
    properties = tables.encode(
        {
            "capabilities": CAPABILITIES,
            "cluster_name": connection.broker.parameters.cluster_name,
            "product": "RabbitMQ",
            "version": RABBITMQ_VERSION,
            "platform": f"RewindMQ {VERSION}",
            "rewindmq_version": VERSION,
            "rewindmq_atomic_commits": not connection.broker.keeper.reads_back,
            "information": f"RewindMQ {VERSION}, compatible with RabbitMQ {RABBITMQ_VERSION}",
        }
    )
    connection.send(
        "Connection.Start",
        version_major=0,
        version_minor=9,
        server_properties=properties,
        mechanisms=" ".join(sasl.offered(connection.tls)),
        locales="en_US",
    )


def start_ok(connection: "Connection", method: Method) -> None:
    """Log the client in. CommandInvalid for a mechanism that was not offered."""
    try:
        connection.raw_properties = method.raw("client_properties")
        connection.client_properties = tables.mapping(connection.raw_properties)
    except PropertyError as error:
        raise refusal(error) from None
    capabilities = connection.client_properties.get("capabilities")
    if isinstance(capabilities, dict):
        connection.capabilities = capabilities
    connection.mechanism = method.text("mechanism")
    if connection.mechanism not in sasl.offered(connection.tls):
        raise CommandInvalid(f"unknown authentication mechanism '{connection.mechanism}'")
    login = sasl.decode(connection.mechanism, method.raw("response"), connection.tls)
    connection.await_work(begin(log_in(connection, login)), 0, START_OK)


async def log_in(connection: "Connection", login: sasl.Login) -> None:
    """Check the login, then offer limits to the client (connection.tune)."""
    refusal = None
    try:
        await connection.broker.certainty.assured(lambda: identify(connection, login), connection.broker.certainty.wait)
    except AccessRefused as error:
        refusal = error
    if connection.state is not State.STARTING:  # closed meanwhile
        return
    if refusal is not None:
        named = refusal.user if isinstance(refusal, TokenRefused) else ""
        login_refused(connection, named or login.user, refusal)
        return
    config = connection.broker.config
    connection.state = State.TUNING
    connection.send(
        "Connection.Tune",
        channel_max=config.channel_max,
        frame_max=config.frame_max,
        heartbeat=config.heartbeat_seconds,
    )


async def identify(connection: "Connection", login: sasl.Login) -> None:
    """Set the connection's user. AccessRefused, also for a user who may log in from this machine only."""
    access = connection.broker.access
    if login.password is None:
        who = access.identify(login.user)
    else:
        who = await access.authenticate(login.user, login.password, connection.arrival.host)
    connection.user, connection.grant = who.user, who.grant
    if connection.user in connection.broker.config.loopback_users and not connection.loopback:
        raise AccessRefused(f"user '{connection.user}' can only connect via localhost")


def login_refused(connection: "Connection", user: str, error: AccessRefused) -> None:
    """Log the reason. The client gets RabbitMQ's words, which send it to the broker's log. Only how long it has to wait
    is said to the client itself."""
    log.warning("%s: login of '%s' refused: %s", connection.peer, user, error.text)
    connection.broker.access_log.login_refused(connection.arrival, user, connection.mechanism, error.text)
    if connection.capabilities.get("authentication_failure_close") is True:
        refused = f"Login was refused using authentication mechanism {connection.mechanism}."
        details = error.text if isinstance(error, LoginsBraked) else "For details see the broker logfile."
        connection.close(AccessRefused(f"{refused} {details}"), logged=True)
    else:
        connection.finish()


def tune_ok(connection: "Connection", method: Method) -> None:
    """Take the limits that the client chose."""
    config = connection.broker.config
    frame_max, channel_max = method.number("frame_max"), method.number("channel_max")
    try:
        negotiated("frame_max", frame_max, FRAME_MIN_SIZE, config.frame_max)
        negotiated("channel_max", channel_max, 1, config.channel_max)
    except NotAllowed as error:
        connection.close(error, TUNE)
        return
    connection.frame_max = frame_max
    connection.channel_max = channel_max
    connection.heartbeat_seconds = method.number("heartbeat")
    connection.state = State.OPENING


def open_vhost(connection: "Connection", method: Method) -> None:
    """Open the vhost. The answer waits until this node has read all that the log says about the vhost."""
    vhost = method.text("virtual_host")
    connection.await_work(begin(let_in(connection, vhost)), 0, OPEN)


async def let_in(connection: "Connection", vhost: str) -> None:
    """Open the vhost. Errors as `enter`, once this node has read to the end; a NotAllowed is in the history then."""
    certainty = connection.broker.certainty
    try:
        await certainty.assured(lambda: enter(connection, vhost), certainty.wait)
    except NotAllowed as error:
        access_log = connection.broker.access_log
        access_log.login_refused(connection.arrival, connection.user, connection.mechanism, error.text)
        raise


async def enter(connection: "Connection", vhost: str) -> None:
    """Open the session in the broker. NotAllowed (530). ResourceError (506): memory is used up."""
    if connection.state is not State.OPENING:  # closed meanwhile
        return
    connection.broker.memory.check()
    limits.check_connection(
        connection.broker.topology, connection.broker.sessions.by_id.values(), connection.user, vhost
    )
    connection.socket.admit()
    link = connection.link
    grant = connection.grant
    session = connection.broker.sessions.open(
        connection.user,
        vhost,
        connection.peer,
        connection.client_properties,
        link,
        connection.force_close,
        grant=grant,
    )
    link.auth_mechanism, link.heartbeat_seconds = connection.mechanism, connection.heartbeat_seconds
    link.channel_max, link.frame_max = connection.channel_max, connection.frame_max
    connection.session = session
    properties, connection.raw_properties = tables.first_arguments(connection.raw_properties, MOST_PROPERTIES), b""
    mechanism = connection.mechanism if grant is None else f"{connection.mechanism} with a token"
    connection.broker.access_log.opened(session, connection.arrival, mechanism, connection.tls, properties)
    notify = connection.capabilities.get("consumer_cancel_notify") is True
    hold = partial(publish_hold.wait_for_room, connection)
    connection.shared = SharedState(connection.broker, session, notify, connection.yield_turn, hold)
    connection.state = State.RUNNING
    parser = connection.parser
    parser.max_payload = connection.frame_max  # not from tune-ok on: nothing large comes before the vhost is open
    # a large publish may have to wait for room in the log: `Channel.take` sees to that
    parser.max_content = min(connection.frame_max, connection.broker.config.max_message_size, LARGE_BYTES - 1)
    credentials.await_expiry(connection)
    connection.send("Connection.OpenOk")
    connection.socket.opened()
    log.info("%s: user '%s' connected to vhost '%s'", connection.peer, connection.user, session.vhost)


def negotiated(field: str, value: int, least: int, most: int) -> None:
    """Raise NotAllowed (530) for a value of tune-ok that connection.tune did not offer."""
    detail = " (no limit)" if field == "channel_max" and value == 0 else ""
    if value and value < least:
        raise NotAllowed(f"negotiated {field} = {value}{detail} is lower than the minimum allowed value ({least})")
    if most and (value == 0 or value > most):
        raise NotAllowed(f"negotiated {field} = {value}{detail} is higher than the maximum allowed value ({most})")
