"""One AMQP 0-9-1 connection without its socket: bytes in by `receive`, bytes out by `output`, calls into the broker
between.

    connection_state.py   the states, with a diagram
    read_gate.py          every reason why the connection is not read from
    handshake.py          what happens before the state RUNNING
    publish_hold.py       alarms
    credentials.py        the client's token: renewed, and expired

An error closes the channel or the connection, by its class (engine/errors.py). Before RUNNING RabbitMQ mostly drops the
socket without a word. This broker tells the client why, with one exception that RabbitMQ has too: a failed login is
told only to clients that ask for it (capability authentication_failure_close). A client that sends anything but the
next step of the handshake gets the reason, and is dropped at once.

A connection parses for as long as its share of the loop lasts (engine/host/loop_share.py). The rest of what was read
waits, and nothing more is read meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from rewindmq.engine.amqp import channel_methods, consumer_timeout, methods, sasl
from rewindmq.engine.amqp.basic_publish import BasicPublish, PublishPostponed
from rewindmq.engine.amqp.channel import Channel
from rewindmq.engine.amqp.connection_state import ENDING, FINISHED, ConnectionState
from rewindmq.engine.amqp.credentials import UPDATE_SECRET, Credentials
from rewindmq.engine.amqp.erlang import describe
from rewindmq.engine.amqp.frames import (
    BODY,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PUBLISH,
    FrameParser,
)
from rewindmq.engine.amqp.handshake import (
    OPEN,
    PROTOCOL_HEADER,
    PROTOCOL_HEADER_0_9,
    START_OK,
    STEPS,
    TUNE,
    Handshake,
    OutOfStep,
)
from rewindmq.engine.amqp.method_fields import DEFINITIONS
from rewindmq.engine.amqp.methods import Method, short_reply_text
from rewindmq.engine.amqp.output import ChannelOutput, Output, Piece
from rewindmq.engine.amqp.publish_hold import PublishHold
from rewindmq.engine.amqp.publish_path import SharedState
from rewindmq.engine.amqp.read_gate import Pause, ReadGate
from rewindmq.engine.broker import limits
from rewindmq.engine.broker.access_log import Arrival
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import (
    AccessRefused,
    AmqpError,
    ChannelError,
    ConnectionForced,
    FrameError,
    InternalError,
    NotAllowed,
    PreconditionFailed,
    ResourceError,
    UnexpectedFrame,
)
from rewindmq.engine.host.eager import begin
from rewindmq.engine.host.loop_share import LoopAccount
from rewindmq.engine.partition.flow_control import LARGE_BYTES
from rewindmq.engine.partition.sessions import ConnectionStatus, Session
from rewindmq.engine.tls import TlsPeer
from rewindmq.schemas.events import Credited

log = logging.getLogger("rewindmq.amqp")

GRANTED_AT_ONCE: Final = 1_000  # deliveries to consumers on credit; further consumers get theirs after the next write

# Heartbeats are checked twice an interval. After this number of checks without a byte the next one drops the peer:
# 2.5 to 3 intervals after its last byte.
MAX_SILENT_CHECKS: Final = 4


class ClientSocket(Protocol):
    """The socket of a connection, as the connection calls it (server.py `AmqpProtocol`)."""

    def wake(self) -> None:
        """There is something to write, and no write is scheduled: call `take_output` at the end of the loop's turn."""

    def reading_changed(self) -> None:
        """Pause or resume reading as `Connection.reads_socket` says."""

    def admit(self) -> None:
        """The client wants to open its vhost. NotAllowed: too many clients have."""

    def opened(self) -> None:
        """The handshake is done."""


class Connection:
    """`peer`: "address:port" for people. `loopback`: the client is on this machine, where `guest` may log in, and came
    through no balancer. `tls`: what is known of a client over TLS. `listener`: where it came in. `proxy`: the
    balancer's address, if one speaks for the client."""

    def __init__(
        self,
        broker: Broker,
        peer: str,
        loopback: bool,
        socket: ClientSocket,
        tls: TlsPeer | None = None,
        listener: str = "",
        proxy: str = "",
    ) -> None:
        self.broker = broker
        self.peer = peer
        self.socket = socket
        self.arrival = Arrival("amqp", peer, listener, proxy)
        self.link = ConnectionStatus(tls)
        self.output = Output(socket.wake)
        self.gate = ReadGate(socket.reading_changed)
        self.account = LoopAccount(broker.host.loop_share)
        self.channels: dict[int, Channel] = {}
        self.parser: FrameParser[BasicPublish] = FrameParser(self.channels, self, self.gate)
        self.state = ConnectionState.HEADER
        self.error: AmqpError | None = None  # the reason for which the broker closed the connection
        self.session: Session | None = None
        self.shared: SharedState | None = None  # from RUNNING on
        self.handshake = Handshake(broker, self.arrival, loopback, tls)
        self.credentials = Credentials(broker, self.arrival, self.token_expired)
        self.hold = PublishHold(broker.turns, self.gate, self.link, self.tell_blocked)
        self.received = False  # since the last heartbeat check
        self.silent_checks = 0
        self.timeout_check_due = False  # it is made when `gate.waiting` ends

    def __str__(self) -> str:
        return f"AMQP connection {self.peer}, user '{self.handshake.user}'"

    @property
    def finished(self) -> bool:
        """Nothing more is sent."""
        return self.state in FINISHED

    # -- bytes in -----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take one socket read, and parse it for as long as the connection's share of the loop lasts. The caller then
        calls `broker.turns.end()` and `account.pay()`."""
        self.received = True
        parser = self.parser
        if parser.deaf:
            return
        if self.shared is not None and data:
            self.shared.heard = self.broker.certainty.begun
        if self.gate.waiting or not self.account.begin(self):
            parser.rest += data
            self.yield_turn()
            self.socket.reading_changed()
            return
        self.parse(data)

    def parse(self, data: bytes) -> None:
        """Parse within the time that `account` has begun."""
        parser = self.parser
        try:
            if self.state is ConnectionState.HEADER:
                data = self.take_header(data)
            if not parser.deaf:
                parser.parse(data)
        except Exception:  # a defect of ours must not take the other connections down with it
            log.exception("%s: while reading", self.peer)
            parser.deaf = True
            self.close(InternalError("an error in the broker, see its log"))
        shared = self.shared
        if shared is not None:
            for channel in shared.settling:
                channel.end_of_read()
            shared.settling.clear()
            shared.fanned_out = 0

    def reads_socket(self) -> bool:
        """Return True if the socket is to be read."""
        if self.state is ConnectionState.LEFT:
            return Pause.READ not in self.gate.reasons
        return self.gate.reads_socket(bool(self.parser.rest))

    # -- frames (frames.py `FrameReceiver`) ---------------------------------------------------------------------------

    def frame(self, kind: int, number: int, payload: bytes) -> None:
        """Take a frame, by all the rules."""
        index, received = 0, self.parser.counts.received
        channel = self.channels.get(number)
        content_due = channel is not None and channel.content_of is not None
        try:
            if self.state in STEPS:
                self.handshake.require_step(self.state, kind, number, payload)
            if kind == METHOD:
                if len(payload) < 4:
                    raise FrameError(describe(kind, payload) + ": unknown_frame")
                index = int.from_bytes(payload[:4], "big")
            if number == 0:
                self.connection_frame(kind, index, payload)
            elif self.state is ConnectionState.RUNNING:
                self.channel_frame(channel, kind, number, index, payload)
        except OutOfStep as out:
            self.close(out.error)
            self.finish()  # do not wait for its close-ok: a client that floods the broker must not continue
        except (AmqpError, PublishPostponed) as error:
            if self.parser.counts.received > received:
                self.failed(number, PUBLISH, error)
            else:
                self.refuse_or_postpone(number, PUBLISH if content_due else index, error)

    def failed(self, number: int, index: int, error: Exception) -> None:
        """An ack, or a publish that came whole, raised `error` (frames.py `FrameReceiver`)."""
        if index == PUBLISH and isinstance(error, AmqpError):
            self.parser.counts.refuse(error)
        self.refuse_or_postpone(number, index, error)

    def refuse_or_postpone(self, number: int, index: int, error: Exception) -> None:
        """Method `index` on channel `number` raised `error`: refuse it, or postpone the publish. Raises what is neither
        an AmqpError nor a PublishPostponed."""
        if isinstance(error, AmqpError):
            self.refuse(number, index, error)
        elif isinstance(error, PublishPostponed):
            self.postpone(self.channels[number], error)
        else:
            raise error

    def frame_error(self, error: FrameError) -> None:
        """Close the connection: the place in the stream is lost."""
        self.close(error)

    def connection_frame(self, kind: int, index: int, payload: bytes) -> None:
        """Take a frame of channel 0."""
        if self.state is ConnectionState.CLOSING and kind != METHOD:
            return
        if kind == METHOD:
            method = methods.decode(index, payload[4:])
            handler = HANDLERS.get((self.state, method.name)) or HANDLERS.get((None, method.name))
            if handler is not None:
                handler(self, method)
            elif self.state is not ConnectionState.CLOSING:
                raise ChannelError(f"unexpected method in connection state {self.state.value}")
        elif kind == HEARTBEAT and not payload:
            return
        elif kind in (HEADER, BODY):
            raise UnexpectedFrame(describe(kind, payload))
        else:
            raise FrameError(describe(kind, payload) + ": unknown_frame")

    def channel_frame(self, channel: Channel | None, kind: int, number: int, index: int, payload: bytes) -> None:
        """Take a frame of any other channel; `channel` None: it is not open."""
        if kind == METHOD:
            self.channel_method(channel, number, index, payload)
        elif (kind == HEADER and len(payload) >= 14) or kind == BODY:
            if channel is None:
                raise UnexpectedFrame("expected method frame, got non method frame instead")
            if channel.closing:
                channel.skip(kind, payload)
                return
            if kind == BODY:
                channel.body(payload)
            else:
                class_id, weight = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
                channel.header(class_id, weight, int.from_bytes(payload[4:12], "big"), payload[12:])
        elif kind == HEARTBEAT and not payload:
            raise UnexpectedFrame(describe(kind, payload))
        else:
            raise FrameError(describe(kind, payload) + ": unknown_frame")

    def channel_method(self, channel: Channel | None, number: int, index: int, payload: bytes) -> None:
        """Take a method of a channel that the parser has not given to the channel itself."""
        if channel is None:
            method = methods.decode(index, payload[4:])
            if method.name != "Channel.Open":
                raise ChannelError("expected 'channel.open'")
            self.open_channel(number)
            return
        if channel.closing:
            self.closing_channel_method(number, index)
            return
        if channel.content_of is not None:
            raise channel.out_of_place()
        if index == PUBLISH:
            self.hold.take()
            channel.begin_publish(payload[4:])
            return
        method = methods.decode(index, payload[4:])
        if method.name == "Channel.Close":
            self.forget_channel(channel)
            self.channels.pop(number, None)
            channel.output.write(methods.encode(number, "Channel.CloseOk"))
        else:
            work = channel_methods.handle(channel, method)
            if work is not None:
                self.await_work(begin(work), number, index)

    # -- why nothing is parsed for a while (read_gate.py) -------------------------------------------------------------

    def await_work(self, task: "asyncio.Task[None] | None", number: int, index: int) -> None:
        """Parse nothing more until method `index` of channel `number` is done: what it declares is there for what comes
        after it. None: it is done. (With an embedded log only these wait: a login, a commit, a subject's first message,
        a large publish without room on the disk, and a basic.get of a client that does not read.)"""
        if task is not None:
            self.gate.close(Pause.METHOD)
            task.add_done_callback(lambda done: self.work_done(done, number, index))

    def work_done(self, done: "asyncio.Task[None]", number: int, index: int) -> None:
        """Continue: the method is done or has failed."""
        error = None if done.cancelled() else done.exception()
        if not self.parser.deaf:
            if isinstance(error, AmqpError):
                self.refuse(number, index, error)
            elif error is not None:
                log.error("%s: in a method of channel %d", self.peer, number, exc_info=error)
                self.close(InternalError("an error in the broker, see its log"))
        self.resume(Pause.METHOD)

    def postpone(self, channel: Channel, postponed: PublishPostponed) -> None:
        """Let a publish wait for what it needs, and what comes after it for the publish."""
        try:
            self.await_work(begin(channel.publish_later(postponed)), channel.number, PUBLISH)
        except AmqpError as error:  # there was nothing left to wait for
            self.refuse(channel.number, PUBLISH, error)
        self.yield_turn()  # publishes that need not wait come after the other connections' turn

    def yield_turn(self) -> None:
        """Parse nothing more in this turn of the loop, and queue for a slice: others have their turn, and
        consumers get what was published, and make room."""
        if not self.gate.waiting:
            self.gate.close(Pause.TURN)
            self.broker.host.loop_share.call(self.next_slice)

    def next_slice(self) -> None:
        """Go on with what was read: the connection has moved up in the line."""
        self.account.begin_in_line(self)
        self.go_on(Pause.TURN)

    def must_pause(self) -> bool:
        """Return True if an alarm, flow control or the end of the slice stops the parser here."""
        if self.gate.blocked:
            return True
        if self.account.due:
            self.yield_turn()
            return True
        flow = self.broker.keeper.flow
        if not flow.full or not any(channel.publish_memo for channel in self.channels.values()):
            return False
        self.link.in_flow = True
        self.gate.close(Pause.FLOW)
        self.hold.take()
        flow.wait(self.flow_ended)
        return True

    def flow_ended(self) -> None:
        """Flow control lets the connection publish again."""
        self.link.in_flow = False
        self.resume(Pause.FLOW)

    def resume(self, reason: Pause) -> None:
        """Continue after one of the waits has ended, or queue for a slice."""
        if self.account.begin(self):
            self.go_on(reason)
        else:
            self.gate.open(reason)
            self.yield_turn()

    def go_on(self, reason: Pause) -> None:
        """Open the gate, and parse what is there. An overdue check for timeouts comes first, since a connection that
        always waits would otherwise never be checked."""
        self.gate.open(reason)
        if self.parser.deaf:
            return
        if self.timeout_check_due:
            self.check_timeouts(asyncio.get_running_loop().time())
        if not self.gate.waiting:
            self.parse(b"")
        self.socket.reading_changed()
        self.broker.turns.end()
        self.account.pay()

    # -- channels -----------------------------------------------------------------------------------------------------

    def closing_channel_method(self, number: int, index: int) -> None:
        """Take a method of a channel that the broker has closed."""
        name = DEFINITIONS.get(index, ("", ()))[0]
        if name == "Channel.CloseOk":
            self.channels.pop(number, None)
        elif name == "Channel.Close":
            self.output.write(methods.encode(number, "Channel.CloseOk"))

    def open_channel(self, number: int) -> None:
        """Open a channel, or close the connection where there are too many."""
        assert self.shared is not None
        count, most = len(self.channels), self.handshake.channel_max
        try:
            self.broker.host.memory.check()
            if 0 < most <= count:
                raise NotAllowed(f"number of channels opened ({count}) has reached the negotiated channel_max ({most})")
            limits.check_channel(self.broker.topology, self.broker.sessions.by_id.values(), self.handshake.user)
        except (NotAllowed, ResourceError) as error:
            self.close(error)
            return
        output = ChannelOutput(self.output, number, self.handshake.frame_max - FRAME_OVERHEAD)
        self.channels[number] = Channel(self.shared, output)
        output.write(methods.encode(number, "Channel.OpenOk"))
        self.broker.counters["channels_opened_total"] += 1

    # -- errors and closing -------------------------------------------------------------------------------------------

    def refuse(self, number: int, index: int, error: AmqpError) -> None:
        """Close the channel or the connection over method `index`, as the error says."""
        if error.recorded is not None and self.session is not None:
            operation = DEFINITIONS[index][0].lower()
            session = self.session
            self.broker.access.log.access_refused(session.actor, session.vhost, operation, error.recorded, error.text)
        channel = self.channels.get(number)
        if error.closes_connection or channel is None:
            self.close(error, index)
            return
        log.warning("%s: channel %d: %s", self.peer, number, error.reply_text)
        self.forget_channel(channel)
        channel.output.write(close_frame(number, "Channel.Close", error, index))

    def forget_channel(self, channel: Channel) -> None:
        """End a channel in the broker: its consumers go, and its unacked messages return to their queues. What it has
        settled and not logged yet is logged first."""
        channel.shut()
        if self.session is not None:
            self.session.channels.pop(channel.number, None)
            self.broker.sessions.close_channel(self.session, channel.number)
            self.broker.counters["channels_closed_total"] += 1

    def close(self, error: AmqpError, index: int = 0, logged: bool = False) -> None:
        """Send connection.close over method `index`, and ignore everything but close and close-ok from now on.
        `logged`: the reason is in the broker's log already."""
        if self.state in ENDING:
            return
        if not logged:
            log.warning("%s: %s", self.peer, error.reply_text)
        self.error = error
        is_amqp = self.state is not ConnectionState.HEADER
        self.end_session()
        self.state = ConnectionState.CLOSING
        self.hold.release()
        if is_amqp:
            self.output.write(close_frame(0, "Connection.Close", error, index))
        else:
            self.finish()

    def force_close(self, reason: str) -> None:
        """Close the connection with 320 and `reason`, word for word. The broker stops, or an operator wants it."""
        self.close(ConnectionForced(reason))

    def end_session(self) -> None:
        """End the session in the broker, with its consumers and exclusive queues. Replies that are held back are
        dropped."""
        for channel in self.channels.values():
            if not channel.closing:
                channel.shut()
                self.broker.counters["channels_closed_total"] += 1
        self.channels.clear()
        self.credentials.forget_expiry()
        self.broker.keeper.flow.leave(self.flow_ended)
        if self.shared is not None:
            self.shared.settling.clear()
            self.shared.confirming.clear()
            self.shared.creditors.clear()
        session = self.session
        if session is not None:
            self.session = None
            session.channels.clear()
            self.broker.sessions.close(session)

    def finish(self, state: ConnectionState = ConnectionState.CLOSED) -> None:
        """Send nothing after what is in the output. `state`: LEFT where the client closes the socket."""
        self.end(state)
        if not self.output.scheduled:
            self.output.schedule()

    def lost(self) -> None:
        """The socket is gone: end the session."""
        self.end_session()
        self.end(ConnectionState.CLOSED)

    def end(self, state: ConnectionState) -> None:
        """Enter LEFT or CLOSED."""
        self.state = state
        self.parser.deaf = True
        self.output.closed = True
        self.output.wake_waiters()

    # -- bytes out ----------------------------------------------------------------------------------------------------

    def send(self, name: str, **values: int | bool | str | bytes) -> None:
        """Send a method of channel 0."""
        self.output.write(methods.encode(0, name, **values))

    def take_output(self) -> list[Piece]:
        """Take the bytes to write at the end of the loop's turn. The caller then calls `grant_credit`."""
        shared = self.shared
        if shared is not None and shared.confirming:
            for confirms in shared.confirming:
                confirms.flush()
            shared.confirming.clear()
        return self.output.take()

    def grant_credit(self) -> bool:
        """Give more to the consumers on credit, unless the socket is congested. True: events were logged, and the
        caller calls `broker.turns.end()`."""
        shared = self.shared
        if shared is None or not shared.creditors or self.output.congested or self.session is None:
            return False
        creditors = shared.creditors[:]
        shared.creditors.clear()
        low, granted = self.broker.host.memory.high, False
        most = GRANTED_AT_ONCE
        for consumer in creditors:
            if most <= 0:
                shared.creditors.append(consumer)
                if not self.output.scheduled:
                    self.output.schedule()
                continue
            if low and consumer.holds_much:
                shared.creditors.append(consumer)
                continue
            granted = True
            partition, queue = consumer.partition, consumer.queue
            missing = consumer.more_credit(self.broker.host.loop_share.shared)
            most -= missing
            if missing and partition is not None and queue is not None and not consumer.detached:
                partition.append(self.session.actor, Credited(queue.vhost, queue.name, consumer.consumer_id, missing))
        return granted

    # -- time ---------------------------------------------------------------------------------------------------------

    def check_heartbeat(self, wrote: bool) -> bool:
        """Send a heartbeat if nothing was written since the last check (`wrote`), and say whether the peer is alive.
        Called twice a heartbeat interval. False: the peer was silent for 2.5 intervals at least. A connection that is
        not read from is taken to be alive."""
        if self.received or self.gate.excuses_silence:
            self.received = False
            self.silent_checks = 0
        else:
            self.silent_checks += 1
            if self.silent_checks > MAX_SILENT_CHECKS:
                log.warning("%s: missed heartbeats, timeout: %ds", self.peer, self.handshake.heartbeat_seconds)
                return False
        if not wrote:
            self.output.write(HEARTBEAT_FRAME)
        return True

    def check_timeouts(self, now: float) -> None:
        """Time out deliveries that are unacked for too long. Called now and then. `now`: seconds of the loop's clock. A
        channel on which a method is under way is not closed: the check is then made as soon as the method is done."""
        self.timeout_check_due = False
        for number, channel in list(self.channels.items()):
            if self.gate.waiting:
                self.timeout_check_due = True
                return
            if channel.closing:
                continue
            try:
                self.await_work(begin(consumer_timeout.time_out_deliveries(channel, now)), number, 0)
            except PreconditionFailed as error:
                self.refuse(number, 0, error)

    # -- the handshake (handshake.py) ---------------------------------------------------------------------------------

    def take_header(self, data: bytes) -> bytes:
        """Take the protocol header once its eight bytes are there, and return what follows it. A client of another
        protocol than AMQP 0-9-1 (or 0-9, which is the same on the wire) gets the header of 0-9-1, and the connection is
        closed."""
        parser = self.parser
        came, parser.rest = parser.rest + data, b""
        if len(came) < len(PROTOCOL_HEADER):
            parser.rest = came
            return b""
        header = came[: len(PROTOCOL_HEADER)]
        if header in (PROTOCOL_HEADER, PROTOCOL_HEADER_0_9):
            self.state = ConnectionState.STARTING
            parser.max_payload = self.handshake.most_start
            self.send("Connection.Start", **self.handshake.start())
        else:
            log.warning("%s: protocol header %r refused", self.peer, header)
            self.output.write(PROTOCOL_HEADER)
            self.finish()
        return came[len(PROTOCOL_HEADER) :]

    def start_ok(self, method: Method) -> None:
        """Log the client in. CommandInvalid for a mechanism that was not offered."""
        self.await_work(begin(self.log_in(self.handshake.start_ok(method))), 0, START_OK)

    async def log_in(self, login: sasl.SaslLogin) -> None:
        """Check the login, then offer limits to the client (connection.tune)."""
        certainty, error = self.broker.certainty, None
        try:
            await certainty.assured(lambda: self.handshake.identify(login), certainty.wait)
        except AccessRefused as refused:
            error = refused
        if self.state is not ConnectionState.STARTING:  # closed meanwhile
            return
        if error is None:
            self.state = ConnectionState.TUNING
            self.send("Connection.Tune", **self.handshake.tune())
            return
        told = self.handshake.login_refused(login, error)
        if told is None:
            self.finish()
        else:
            self.close(told, logged=True)

    def tune_ok(self, method: Method) -> None:
        """Take the limits that the client chose."""
        try:
            self.handshake.tune_ok(method)
        except NotAllowed as error:
            self.close(error, TUNE)
        else:
            self.state = ConnectionState.OPENING

    def open_vhost(self, method: Method) -> None:
        """Open the vhost. The answer waits until this node has read all that the log says about the vhost."""
        self.await_work(begin(self.let_in(method.text("virtual_host"))), 0, OPEN)

    async def let_in(self, vhost: str) -> None:
        """Open the vhost. Errors as `enter`, once this node has read to the end; a NotAllowed enters the history."""
        certainty = self.broker.certainty
        try:
            await certainty.assured(lambda: self.enter(vhost), certainty.wait)
        except NotAllowed as error:
            self.handshake.vhost_refused(error)
            raise

    async def enter(self, vhost: str) -> None:
        """Open the session in the broker. Errors as `Handshake.open`."""
        if self.state is not ConnectionState.OPENING:  # closed meanwhile
            return
        terms = self.handshake
        self.session = session = terms.open(vhost, self.link, self.socket.admit, self.force_close)
        terms.opened(session)
        notify = terms.can("consumer_cancel_notify")
        self.shared = SharedState(self.broker, session, notify, self.yield_turn, self.wait_for_room)
        self.state = ConnectionState.RUNNING
        parser = self.parser
        parser.counts = session.publishes
        parser.max_payload = terms.frame_max  # not from tune-ok on: nothing large comes before the vhost is open
        # a large publish may have to wait for room in the log: `Channel.take` sees to that
        parser.max_content = min(terms.frame_max, self.broker.config.max_message_size, LARGE_BYTES - 1)
        self.credentials.await_expiry(terms.grant)
        self.send("Connection.OpenOk")
        self.socket.opened()
        log.info("%s: user '%s' connected to vhost '%s'", self.peer, session.user, session.vhost)

    # -- publishes that are held back (publish_hold.py) ---------------------------------------------------------------

    def tell_blocked(self, reason: str | None) -> None:
        """Send connection.blocked with the reason, or connection.unblocked (None), if the client understands it."""
        if not self.handshake.can("connection.blocked"):
            return
        if reason is None:
            self.send("Connection.Unblocked")
        else:
            self.send("Connection.Blocked", reason=short_reply_text(reason))

    def wait_for_room(self, reason: str | None) -> None:
        """A message of the connection waits for room on the disk, for this reason. None: the wait has ended."""
        if self.session is not None:  # else it closes, and was released
            self.hold.wait_for_room(reason)

    def alarm_changed(self) -> None:
        """Hold publishes back from now on, or take them again, as the broker says."""
        if self.session is None:  # it cannot publish
            return
        if self.broker.turns.blocked is not None:
            self.forget_publishes()
            under_way = any(channel.content_of is not None for channel in self.channels.values())
            if under_way or self.link.in_flow or self.hold.waits_for_room:  # its next publish is here already
                self.hold.take()
        elif self.hold.alarm_over() and self.parser.rest:
            self.yield_turn()

    def forget_publishes(self) -> None:
        """Empty all memos of publishes, which may hold a mebibyte a channel: the next publish is judged again."""
        for channel in self.channels.values():
            channel.publish_memo.clear()
            channel.parsed.clear()
        self.parser.repeat = None

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of the connection's publishes that have not come whole, or are not committed."""
        return sum(channel.kept_bytes for channel in self.channels.values())

    def close_for_memory(self) -> None:
        """Close the connection with 506: it holds more than others, and the memory alarm does not end."""
        kept = self.kept_bytes
        self.close(
            ResourceError(
                f"low on memory: {kept} bytes of messages that had not come whole, or were not committed, were dropped"
                if kept
                else "low on memory: the client does not read what was sent to it"
            )
        )

    # -- other methods of channel 0 -----------------------------------------------------------------------------------

    def update_secret(self, method: Method) -> None:
        """Replace the token that the client logged in with."""
        token = method.raw("new_secret").decode("utf-8", "replace")
        self.await_work(begin(self.renew(token)), 0, UPDATE_SECRET)

    async def renew(self, token: str) -> None:
        """Continue with the rights of a new token. After a login with a password there is nothing to renew, and any
        secret is accepted, as in RabbitMQ. NotAllowed as `Credentials.renewed`."""
        session = self.session
        if session is not None and session.grant is not None:
            grant = await self.credentials.renewed(session, token, self.consumed_queues)
            if self.session is not session:  # closed meanwhile
                return
            session.grant = grant
            self.forget_publishes()  # their routes were allowed by the old token
            self.credentials.await_expiry(grant)
            log.info("%s: user '%s' updated secret", self.peer, session.user)
        self.send("Connection.UpdateSecretOk")

    def consumed_queues(self) -> list[str]:
        """Return the queues of the connection's consumers."""
        consumers = [each for channel in self.channels.values() for each in channel.consumers.values()]
        return [each.queue.name for each in consumers if each.queue is not None]

    def token_expired(self) -> None:
        """Close the connection, whose token has expired."""
        self.close(ConnectionForced("credential expired"))  # RabbitMQ's words
        self.broker.turns.end()

    def client_close(self, method: Method) -> None:
        """The client closes the connection."""
        self.end_session()
        self.send("Connection.CloseOk")
        self.finish(ConnectionState.LEFT)

    def close_ok(self, method: Method) -> None:
        """The client has seen connection.close."""
        self.finish()


def close_frame(number: int, name: str, error: AmqpError, index: int) -> bytes:
    """Channel.close or connection.close, over method `index`."""
    return methods.encode(
        number,
        name,
        reply_code=error.reply_code,
        reply_text=short_reply_text(error.reply_text),
        class_id=index >> 16,
        method_id=index & 0xFFFF,
    )


# By state (None: any) and method.
HANDLERS: Final[dict[tuple[ConnectionState | None, str], Callable[[Connection, Method], None]]] = {
    (ConnectionState.STARTING, "Connection.StartOk"): Connection.start_ok,
    (ConnectionState.TUNING, "Connection.TuneOk"): Connection.tune_ok,
    (ConnectionState.OPENING, "Connection.Open"): Connection.open_vhost,
    (ConnectionState.RUNNING, "Connection.UpdateSecret"): Connection.update_secret,
    (ConnectionState.CLOSING, "Connection.CloseOk"): Connection.close_ok,
    (None, "Connection.Close"): Connection.client_close,
}
