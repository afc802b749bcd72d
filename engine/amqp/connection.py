"""One AMQP 0-9-1 connection, sans I/O: bytes in by `receive`, bytes out by `output`, calls into the broker between.

    header -> starting -> securing -> tuning -> opening -> running -> closing -> closed
      AMQP0091  start-ok    secure-ok   tune-ok   open       ...      close sent

    closing     connection.close was sent: everything but close and close-ok is ignored
    finished    nothing more will be said; the server closes the socket once the output is written
    left        the client has closed, and was told close-ok: closing the socket is left to it, for a while

An error closes the channel or the connection, by its class (engine/errors.py). Before `running` RabbitMQ mostly drops
the socket without a word; here the client is told why, except that a failed login is told only to clients that ask
for it (capability authentication_failure_close), as RabbitMQ does.
"""

import asyncio
import logging
from collections.abc import Callable

from rewindmq.engine.amqp import channel_methods, handshake, methods
from rewindmq.engine.amqp import consumer_timeout as overdue
from rewindmq.engine.amqp.channel import Channel
from rewindmq.engine.amqp.erlang import describe
from rewindmq.engine.amqp.frames import (
    BODY,
    FANNED_OUT,
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PUBLISH,
)
from rewindmq.engine.amqp.method_fields import DEFINITIONS
from rewindmq.engine.amqp.methods import Method, short_reply_text
from rewindmq.engine.amqp.output import ChannelOutput, Output, do_nothing
from rewindmq.engine.amqp.publish_hold import HeldBack
from rewindmq.engine.amqp.publishing import PutOff
from rewindmq.engine.broker import limits
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import (
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
from rewindmq.engine.runtime.eager import begin
from rewindmq.engine.runtime.sessions import Session
from rewindmq.engine.tls import TlsPeer
from rewindmq.schemas.events import Credited

log = logging.getLogger("rewindmq.amqp")

# Heartbeats are looked after twice an interval; after this many looks without a byte the peer is dead (two missed).
MISSED_LOOKS = 4


class Connection(HeldBack):
    """`peer` is "address:port" for people; `loopback`: it is this machine, where `guest` may log in; `tls`: what is
    known of a client over TLS."""

    def __init__(self, broker: Broker, peer: str, loopback: bool, tls: TlsPeer | None = None) -> None:
        super().__init__(broker, tls)
        self.peer = peer
        self.loopback = loopback
        self.tls = tls
        self.output = Output()
        self.state = "header"
        self.finished = False
        self.left = False
        self.error: AmqpError | None = None  # why it was closed from here
        self.session: Session | None = None
        self.user = ""
        self.mechanism = ""
        self.client_properties: dict[str, object] = {}
        self.channel_max = 0
        self.frame_max = FRAME_MIN_SIZE
        self.heartbeat_seconds = 0
        self.received = False  # something came since the last look
        self.silent_looks = 0
        self.overdue_look = False  # for overdue deliveries is due: it waits, too, while `waiting`
        self.let_in: Callable[[], None] = do_nothing  # a vhost is about to be opened: NotAllowed refuses
        self.on_open: Callable[[], None] = do_nothing  # the handshake is done

    # -- bytes in -----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """One socket read. The caller then calls `broker.turns.end()`."""
        self.received = True
        if self.discarding:
            return
        if self.shared is not None and data:
            self.shared.heard = self.broker.certainty.begun
        if self.waiting:
            self.rest += data
            self.on_throttle()
            return
        if self.state == "header":
            self.rest += data
            if len(self.rest) < 8:
                return
            data, self.rest = self.rest[8:], self.rest[:8]
            if not handshake.protocol_header(self, self.rest):
                return
            self.rest = b""
        try:
            self.parse(data)
        except Exception:  # a defect of ours must not take the other connections down with it
            log.exception("%s: while reading", self.peer)
            self.discarding = True
            self.close(InternalError("an error in the broker, see its log"))
        shared = self.shared
        if shared is not None:
            for channel in shared.settling:
                channel.end_of_read()
            shared.settling.clear()
            shared.fanned_out = 0

    def frame(self, kind: int, number: int, payload: bytes) -> None:
        index = 0
        channel = self.channels.get(number)
        publishing = channel is not None and channel.publishing is not None
        try:
            if kind == METHOD:
                if len(payload) < 4:
                    raise FrameError(describe(kind, payload) + ": unknown_frame")
                index = int.from_bytes(payload[:4], "big")
            if number == 0:
                self.connection_frame(kind, index, payload)
            elif self.state == "running":
                self.channel_frame(channel, kind, number, index, payload)
            elif self.state != "closing":
                self.close(UnexpectedFrame(describe(kind, payload)))
        except AmqpError as error:
            self.refuse(number, PUBLISH if publishing else index, error)
        except PutOff as put_off:
            assert channel is not None
            self.put_off(channel, put_off)

    def connection_frame(self, kind: int, index: int, payload: bytes) -> None:
        if self.state == "closing" and kind != METHOD:
            return
        if kind == METHOD:
            method = methods.decode(index, payload[4:])
            handler = HANDLERS.get((self.state, method.name)) or HANDLERS.get(("", method.name))
            if handler is not None:
                handler(self, method)
            elif self.state != "closing":
                raise ChannelError(f"unexpected method in connection state {self.state}")
        elif kind == HEARTBEAT and not payload:
            return
        elif kind in (HEADER, BODY):
            raise UnexpectedFrame(describe(kind, payload))
        else:
            raise FrameError(describe(kind, payload) + ": unknown_frame")

    def channel_frame(self, channel: Channel | None, kind: int, number: int, index: int, payload: bytes) -> None:
        if kind == METHOD:
            self.channel_method(channel, number, index, payload)
        elif (kind == HEADER and len(payload) >= 14) or kind == BODY:
            if channel is None:
                raise UnexpectedFrame("expected method frame, got non method frame instead")
            if channel.closing:
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
        if channel is None:
            method = methods.decode(index, payload[4:])
            if method.name != "Channel.Open":
                raise ChannelError("expected 'channel.open'")
            self.open_channel(number)
            return
        if channel.closing:
            self.closing_channel_method(number, index)
            return
        if channel.publishing is not None:
            raise channel.out_of_place()
        if index == PUBLISH:
            self.throttle()
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
                self.wait_for(begin(work), number, index)

    def wait_for(self, task: "asyncio.Task[None] | None", number: int, index: int) -> None:
        """Nothing more is read from this connection until the method is done: what it declares is there for what comes
        after it. (With an embedded log only a login, a commit and a subject's first message ever have to.)"""
        if task is not None:
            self.waiting = True
            task.add_done_callback(lambda done: self.go_on(done, number, index))

    def put_off(self, channel: Channel, put_off: PutOff) -> None:
        channel.shared.fanned_out = FANNED_OUT  # the turn is over, and messages that are not put off need not be asked
        self.wait_for(begin(channel.publish_later(put_off)), channel.number, PUBLISH)

    def go_on(self, done: "asyncio.Task[None]", number: int, index: int) -> None:
        self.waiting = False
        error = None if done.cancelled() else done.exception()
        if self.discarding:
            return
        if isinstance(error, AmqpError):
            self.refuse(number, index, error)
        elif error is not None:
            log.error("%s: in a method of channel %d", self.peer, number, exc_info=error)
            self.close(InternalError("an error in the broker, see its log"))
        self.on_throttle()
        self.waited()
        self.receive(b"")
        self.broker.turns.end()

    def give_way(self) -> None:
        """So consumers get what was published, and make room, before there is more."""
        if self.waiting:
            return
        self.waiting = True
        asyncio.get_running_loop().call_soon(self.have_turn)

    def held_back(self) -> bool:
        """An alarm (publish_hold.py), or flow control of connections that publish (engine/runtime/flow_control.py)."""
        if self.throttled:
            return True
        flow = self.broker.keeper.flow
        if flow is None or not flow.full or not any(channel.publishings for channel in self.channels.values()):
            return False
        self.waiting = self.link.in_flow = True
        self.throttle()
        flow.wait(self.let_on)
        return True

    def let_on(self) -> None:
        self.link.in_flow = False
        self.have_turn()

    def have_turn(self) -> None:
        self.waiting = False
        if self.discarding:
            return
        self.waited()
        self.receive(b"")
        self.on_throttle()
        self.broker.turns.end()

    def waited(self) -> None:
        """Nothing is under way. What stood in line for that comes before what the client has sent meanwhile, or who
        always waits would never be looked at."""
        if self.overdue_look:
            self.look_for_overdue(asyncio.get_running_loop().time())

    def closing_channel_method(self, number: int, index: int) -> None:
        name = DEFINITIONS.get(index, ("", ()))[0]
        if name == "Channel.CloseOk":
            self.channels.pop(number, None)
        elif name == "Channel.Close":
            self.output.write(methods.encode(number, "Channel.CloseOk"))

    def open_channel(self, number: int) -> None:
        assert self.shared is not None
        count, most = len(self.channels), self.channel_max
        try:
            self.broker.memory.check()
            if 0 < most <= count:
                raise NotAllowed(f"number of channels opened ({count}) has reached the negotiated channel_max ({most})")
            limits.check_channel(self.broker.topology, self.broker.sessions.by_id.values(), self.user)
        except (NotAllowed, ResourceError) as error:
            self.close(error)
            return
        output = ChannelOutput(self.output, number, self.frame_max - FRAME_OVERHEAD)
        self.channels[number] = Channel(self.shared, output)
        output.write(methods.encode(number, "Channel.OpenOk"))
        self.broker.counters["channels_opened_total"] += 1

    # -- errors and closing -------------------------------------------------------------------------------------------

    def refuse(self, number: int, index: int, error: AmqpError) -> None:
        channel = self.channels.get(number)
        if error.closes_connection or channel is None:
            self.close(error, index)
            return
        log.warning("%s: channel %d: %s", self.peer, number, error.reply_text)
        self.forget_channel(channel)
        channel.output.write(close_frame(number, "Channel.Close", error, index))

    def forget_channel(self, channel: Channel) -> None:
        """Its consumers go, what it holds returns. Settled but not logged yet comes first."""
        channel.shut()
        if self.session is not None:
            self.session.channels.pop(channel.number, None)
            self.broker.sessions.close_channel(self.session, channel.number)
            self.broker.counters["channels_closed_total"] += 1

    def frame_error(self, number: int, error: AmqpError) -> None:
        self.close(error, 0)

    def close(self, error: AmqpError, index: int = 0, logged: bool = False) -> None:
        """Close from this side: connection.close, then nothing but close-ok is listened to. `logged`: the log has the
        reason already."""
        if self.state in ("closing", "closed"):
            return
        if not logged:
            log.warning("%s: %s", self.peer, error.reply_text)
        self.error = error
        tell = self.state != "header"
        self.end_session()
        self.state = "closing"
        if tell:
            self.output.write(close_frame(0, "Connection.Close", error, index))
        else:
            self.finish()

    def force_close(self, reason: str) -> None:
        """Close the connection with 320 and `reason`, word for word: the broker stops, or an operator asked for it."""
        self.close(ConnectionForced(reason))

    def end_session(self) -> None:
        """Consumers, unacked messages and exclusive queues go; nothing held back is said any more."""
        for channel in self.channels.values():
            if not channel.closing:
                channel.shut()
                self.broker.counters["channels_closed_total"] += 1
        self.channels.clear()
        if self.shared is not None:
            self.shared.settling.clear()
            self.shared.confirming.clear()
            self.shared.creditors.clear()
        session = self.session
        if session is not None:
            self.session = None
            session.channels.clear()
            self.broker.sessions.close(session)

    def finish(self) -> None:
        self.state = "closed"
        self.discarding = True
        self.finished = True
        self.output.closed = True
        self.output.let_in()
        if not self.output.scheduled:
            self.output.schedule()

    def lost(self) -> None:
        """The socket is gone."""
        self.end_session()
        self.state = "closed"
        self.discarding = True
        self.finished = True
        self.output.closed = True
        self.output.let_in()

    # -- bytes out ----------------------------------------------------------------------------------------------------

    def say(self, name: str, **values: int | bool | str | bytes) -> None:
        self.output.write(methods.encode(0, name, **values))

    def take_output(self) -> list[bytes]:
        """What is to be written at the end of the loop's turn. May log credit for consumers: the caller then calls
        `broker.turns.end()` when `asked_credit` says so."""
        shared = self.shared
        if shared is not None and shared.confirming:
            for confirms in shared.confirming:
                confirms.flush()
            shared.confirming.clear()
        return self.output.take()

    def grant_credit(self) -> bool:
        """Consumers on credit get more, unless the socket is congested. True: events were logged."""
        shared = self.shared
        if shared is None or not shared.creditors or self.output.congested or self.session is None:
            return False
        creditors = shared.creditors[:]
        shared.creditors.clear()
        low, granted = self.broker.memory.high, False
        for consumer in creditors:
            if low and consumer.holds_much:
                shared.creditors.append(consumer)
                continue
            granted = True
            partition, queue = consumer.partition, consumer.queue
            missing = consumer.more_credit()
            if missing and partition is not None and queue is not None and not consumer.detached:
                partition.append(self.session.actor, Credited(queue.vhost, queue.name, consumer.consumer_id, missing))
        return granted

    # -- time ---------------------------------------------------------------------------------------------------------

    def look(self, wrote: bool) -> bool:
        """Twice a heartbeat interval: send a heartbeat if nothing was written since the last look (`wrote`), and tell
        whether the peer is alive (False: it missed two)."""
        if self.received or self.throttled or self.waiting:
            self.received = False
            self.silent_looks = 0
        else:
            self.silent_looks += 1
            if self.silent_looks > MISSED_LOOKS:
                log.warning("%s: missed heartbeats, timeout: %ds", self.peer, self.heartbeat_seconds)
                return False
        if not wrote:
            self.output.write(HEARTBEAT_FRAME)
        return True

    def look_for_overdue(self, now: float) -> None:
        """Now and then: see to deliveries that are unacked for too long. `now`: seconds of the loop's clock. What is
        under way on a channel must not meet its end: then the look is taken as soon as that is done."""
        self.overdue_look = False
        for number, channel in list(self.channels.items()):
            if self.waiting:
                self.overdue_look = True
                return
            if channel.closing:
                continue
            try:
                self.wait_for(begin(overdue.look_after(channel, now)), number, 0)
            except PreconditionFailed as error:
                self.refuse(number, 0, error)

    # -- methods of channel 0 (those of the handshake: handshake.py) ---------------------------------------------------

    def client_close(self, method: Method) -> None:
        self.end_session()
        self.say("Connection.CloseOk")
        self.left = True
        self.finish()

    def close_ok(self, method: Method) -> None:
        self.finish()

    def update_secret(self, method: Method) -> None:
        """There is nothing to renew: passwords do not expire here."""
        self.say("Connection.UpdateSecretOk")


def close_frame(number: int, name: str, error: AmqpError, index: int) -> bytes:
    return methods.encode(
        number,
        name,
        reply_code=error.reply_code,
        reply_text=short_reply_text(error.reply_text),
        class_id=index >> 16,
        method_id=index & 0xFFFF,
    )


# By state ("" : any) and method.
HANDLERS: dict[tuple[str, str], Callable[[Connection, Method], None]] = {
    ("starting", "Connection.StartOk"): handshake.start_ok,
    ("tuning", "Connection.TuneOk"): handshake.tune_ok,
    ("opening", "Connection.Open"): handshake.open_vhost,
    ("running", "Connection.UpdateSecret"): Connection.update_secret,
    ("closing", "Connection.CloseOk"): Connection.close_ok,
    ("", "Connection.Close"): Connection.client_close,
}
