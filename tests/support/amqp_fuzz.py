"""Damaged streams of AMQP frames, for a broker without sockets.

A stream is a handshake and some tens of frames that mean something, in an order that mostly makes sense; then some of
them are damaged, repeated, left out, exchanged or moved to another channel, and the whole is cut into reads anywhere.
`Target.feed` has the conditions that hold for every stream.
"""

import asyncio
import logging
import random
import struct
from typing import Any

from pamqp import frame
from pamqp.exceptions import UnmarshalingException

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.amqp.publish_path import MEMO_SIZE
from rewindmq.engine.broker.broker import Broker
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.values import Actor
from tests.support.amqp_wire import (
    HANDSHAKE,
    HEADER,
    IdleSocket,
    Said,
    connection_open,
    decoded,
    header_frame,
    method,
    properties,
    publish,
    raw_frame,
    start_ok,
    tune_ok,
)

# The codes for a client that breaks the protocol, or asks for things that it may not have. Never 541: a defect of ours.
CHANNEL_CODES = {403, 404, 405, 406}
CONNECTION_CODES = {320, 402, 403, 501, 502, 503, 504, 505, 506, 530, 540}
CHANNELS = (1, 1, 1, 2, 3)
QUEUES = ("a", "b", "c", "lazy", "full")
EXCHANGES = ("", "", "", "amq.topic", "amq.headers", "amq.fanout", "x", "nope")
ARGUMENTS: tuple[dict[str, object], ...] = (
    {},
    {},
    {},
    {"x-max-length": 3},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-message-ttl": 0},
    {"x-queue-type": "quorum"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"},
    {"x-expires": "no"},
    {"x-match": "any", "h": 1},
    {"x-priority": 3},
    {"nested": {"a": [1, "x", {"b": None}]}, "f": 1.5, "t": True},
)
PROPERTIES = (
    properties(),
    properties(delivery_mode=2),
    properties(headers={"h": 1, "CC": ["b"], "BCC": ["c"]}),
    properties(expiration="1", priority=9),
    properties(expiration="x"),
    properties(user_id="guest"),
    properties(user_id="other"),
    properties(reply_to="amq.rabbitmq.reply-to", correlation_id="1"),
    properties(headers={"deep": {"a": {"b": {"c": [1, 2, 3]}}}}, content_type="t", timestamp=None, app_id="a"),
)
SETTLING = ("Basic.Ack", "Basic.Nack", "Basic.Reject")
OTHERS: tuple[tuple[str, dict[str, object]], ...] = (
    ("Basic.Qos", {"prefetch_count": 2}),
    ("Basic.Qos", {"prefetch_count": 5, "global_": True}),
    ("Basic.Recover", {"requeue": True}),
    ("Basic.RecoverAsync", {"requeue": True}),
    ("Channel.Flow", {"active": True}),
    ("Confirm.Select", {}),
    ("Tx.Select", {}),
    ("Tx.Commit", {}),
    ("Tx.Rollback", {}),
    ("Basic.Cancel", {"consumer_tag": "t"}),
    ("Channel.CloseOk", {}),
    ("Channel.Open", {}),
    ("Channel.Close", {"reply_code": 200}),
    ("Basic.Deliver", {"consumer_tag": "t"}),
    ("Queue.PurgeOk", {}),
    ("Exchange.Declare", {"exchange": "x", "exchange_type": "topic"}),
    ("Exchange.Delete", {"exchange": "x"}),
    ("Exchange.Declare", {"exchange": "x", "exchange_type": "nope"}),
    ("Exchange.Bind", {"source": "amq.topic", "destination": "x", "routing_key": "#"}),
    ("Exchange.Unbind", {"source": "amq.topic", "destination": "x", "routing_key": "#"}),
    ("Basic.Consume", {"queue": "amq.rabbitmq.reply-to", "no_ack": True, "consumer_tag": "r"}),
)


class Streams:
    """The streams of one seed, always the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.frames = 0  # number of streams so far

    def next(self) -> list[bytes]:
        """A stream, cut into reads."""
        pick = self.random
        frames = self.handshake() + [method(number, "Channel.Open") for number in (1, 2, 3)]
        frames += [self.frame() for _ in range(pick.randrange(5, 60))]
        if pick.random() < 0.9:
            for _ in range(pick.choice((1, 1, 2, 5))):
                self.damage(frames)
        self.frames += len(frames)
        data = b"".join(frames)
        cuts = sorted(pick.randrange(len(data) + 1) for _ in range(pick.choice((0, 0, 1, 3, 20))))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def handshake(self) -> list[bytes]:
        if self.random.random() < 0.9:
            return [HANDSHAKE]
        return [HEADER, start_ok(), tune_ok(self.random.choice((0, 2, 2047)), 4096), connection_open()]

    def frame(self) -> bytes:
        """One frame, or a few that belong together."""
        pick = self.random
        channel, queue = pick.choice(CHANNELS), pick.choice(QUEUES)
        kind = pick.randrange(12)
        if kind < 4:
            body = pick.randbytes(pick.choice((0, 1, 10, 300, 5000)))
            frames = publish(
                channel,
                pick.choice(EXCHANGES),
                queue,
                body,
                pick.random() < 0.2,
                pick.random() < 0.02,
                pick.choice(PROPERTIES),
                pick.choice((10, 4000)),
            )
            return frames * pick.choice((1, 1, 1, 4))
        if kind == 4:
            return method(
                channel,
                "Queue.Declare",
                queue=queue,
                durable=pick.random() < 0.8,
                passive=pick.random() < 0.2,
                exclusive=pick.random() < 0.1,
                auto_delete=pick.random() < 0.2,
                nowait=pick.random() < 0.2,
                arguments=pick.choice(ARGUMENTS),
            )
        if kind == 5:
            name = pick.choice(("Queue.Bind", "Queue.Unbind"))
            return method(
                channel,
                name,
                queue=queue,
                exchange=pick.choice(EXCHANGES),
                routing_key=pick.choice(("#", "a.*", "b")),
                arguments=pick.choice(ARGUMENTS),
            )
        if kind == 6:
            return method(channel, pick.choice(("Queue.Purge", "Queue.Delete")), queue=queue)
        if kind == 7:
            return method(
                channel,
                "Basic.Consume",
                queue=queue,
                consumer_tag=pick.choice(("t", "u", "")),
                no_ack=pick.random() < 0.3,
                exclusive=pick.random() < 0.1,
                arguments=pick.choice(ARGUMENTS),
            )
        if kind == 8:
            return method(channel, "Basic.Get", queue=queue, no_ack=pick.random() < 0.5)
        if kind == 9:
            return method(
                channel,
                pick.choice(SETTLING),
                delivery_tag=pick.choice((0, 1, 2, 3, 2**63)),
                multiple=pick.random() < 0.4,
                requeue=pick.random() < 0.5,
            )
        if kind == 10:
            return raw_frame(8, 0, b"")
        name, fields = pick.choice(OTHERS)
        return method(channel, name, **fields)

    def damage(self, frames: list[bytes]) -> None:
        """Damage one of the frames."""
        pick = self.random
        at = pick.randrange(len(frames))
        frame = bytearray(frames[at] or self.noise() or b"x")  # the stream may have lost all its frames
        kind = pick.randrange(10)
        if kind == 0:
            for _ in range(pick.choice((1, 1, 3))):
                frame[pick.randrange(len(frame))] ^= 1 << pick.randrange(8)
        elif kind == 1:
            frame[pick.randrange(len(frame))] = pick.choice((0, 1, 0x7F, 0x80, 0xCE, 0xFF))
        elif kind == 2:
            where = pick.randrange(len(frame))
            frame[where:where] = pick.randbytes(pick.choice((1, 4, 40)))
        elif kind == 3:
            where = pick.randrange(len(frame))
            del frame[where : where + pick.choice((1, 2, 30))]
        elif kind == 4:
            frames[at:at] = [self.noise()]
            return
        elif kind == 5:
            other = pick.randrange(len(frames))
            frames[at], frames[other] = frames[other], frames[at]
            return
        elif kind == 6:
            del frames[at]
            return
        elif kind == 7:
            frame[1:3] = struct.pack(">H", pick.choice((0, 2, 4, 0xFFFF)))
        elif kind == 8 and len(frame) > 7:
            frame[3:7] = struct.pack(">I", pick.choice((0, 1, len(frame), 4096, 131_073, 2**31, 2**32 - 1)))
        else:
            frame = bytearray(self.payload_damaged(bytes(frame)))
        frames[at] = bytes(frame)

    def noise(self) -> bytes:
        """A frame that is no frame, or does not belong here."""
        pick = self.random
        payload = pick.randbytes(pick.choice((0, 1, 4, 20)))
        return pick.choice(
            (
                pick.randbytes(pick.choice((1, 8, 100))),
                raw_frame(pick.randrange(10), pick.randrange(4), payload),
                raw_frame(
                    1, 1, struct.pack(">HH", pick.choice((10, 20, 40, 50, 60, 85)), pick.randrange(130)) + payload
                ),
                header_frame(
                    1, pick.choice((0, 5, 2**40, 2**64 - 1)), pick.choice(PROPERTIES), pick.choice((60, 60, 10))
                ),
                raw_frame(3, pick.choice(CHANNELS), payload),
                HEADER,
                HANDSHAKE,
                method(1, "Queue.Declare", queue="t", arguments=tables.encode({"n": 1})[:-2]),
                method(1, "Queue.Declare", queue="t", arguments=b"\x01aF" * 60),
                method(0, "Connection.Close", reply_code=200),
            )
        )

    def payload_damaged(self, frame: bytes) -> bytes:
        """The frame with a damaged payload. Its length and its end stay right."""
        length = int.from_bytes(frame[3:7], "big")
        if len(frame) < 8 or length == 0 or len(frame) < length + 8:
            return frame
        payload = bytearray(frame[7 : 7 + length])
        for _ in range(self.random.choice((1, 2, 5))):
            payload[self.random.randrange(len(payload))] = self.random.randrange(256)
        return raw_frame(frame[0], int.from_bytes(frame[1:3], "big"), bytes(payload)) + frame[8 + length :]


class Defects(logging.Handler):
    """The log lines with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


class Target:
    """A broker that streams are fed to, one connection each. Call in its loop."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.closes: dict[int, int] = {}  # how many streams ended with which code (0: none)

    async def feed(self, reads: list[bytes]) -> list[Said]:
        """Feed a stream and check the answers.

        For every stream: the answers are AMQP; a connection is closed at most once, by a code of the protocol; nothing
        that has no bound is kept; and nothing of the connection is left when it is gone."""
        broker = self.broker
        connection = Connection(broker, "fuzz:1", True, IdleSocket())
        raw = b""
        for data in reads:
            connection.receive(data)
            broker.turns.end()
            while connection.gate.waiting:
                await asyncio.sleep(0)
            raw += self.said(connection)
            self.check_bounds(connection)
        await self.durable()
        raw += self.said(connection)
        connection.lost()
        broker.turns.end()
        assert connection.session is None
        assert broker.sessions.by_id == {}
        said = decoded(methods_of(raw)) if not raw.endswith(HEADER) else []
        self.check_closes(said)
        return said

    def said(self, connection: Connection) -> bytes:
        raw = b"".join(connection.take_output())
        while connection.grant_credit():
            self.broker.turns.end()
            raw += b"".join(connection.take_output())
        return raw

    async def durable(self) -> None:
        done = asyncio.get_running_loop().create_future()
        self.broker.turns.end()
        self.broker.turns.when_durable(lambda: done.set_result(None))
        await done

    def check_bounds(self, connection: Connection) -> None:
        assert connection.parser.deaf or len(connection.parser.rest) <= connection.parser.max_payload + 8
        for channel in connection.channels.values():
            assert len(channel.publish_memo) <= MEMO_SIZE
            assert len(channel.parsed) <= MEMO_SIZE
            assert channel.gathered_bytes <= max(channel.size, 0)

    def check_closes(self, said: list[Said]) -> None:
        closes = [each for each in said if each.name == "Connection.Close"]
        assert len(closes) <= 1, closes
        assert all(each.reply_code in CONNECTION_CODES for each in closes), closes
        channels = [each for each in said if each.name == "Channel.Close"]
        assert all(each.reply_code in CHANNEL_CODES for each in channels), channels
        code = closes[0].reply_code if closes else 0
        self.closes[code] = self.closes.get(code, 0) + 1

    async def clear(self) -> None:
        """Delete all that streams have declared, so that a long run does not grow by it."""
        await self.broker.vhosts.delete_queues(Actor("", 0), "/")
        await self.durable()


def methods_of(raw: bytes) -> bytes:
    """The method frames, but access.request-ok, which pamqp does not know.

    Every frame is one. Content properties are as pamqp reads them, but for names and short strings that are not UTF-8:
    those go to consumers as they came, as at RabbitMQ."""
    frames, pos = [], 0
    while pos < len(raw):
        end = pos + 8 + int.from_bytes(raw[pos + 3 : pos + 7], "big")
        assert raw[end - 1] == 0xCE
        if raw[pos] == 2:
            try:
                frame.unmarshal(raw[pos:end])
            except UnmarshalingException as error:
                if "codec can't decode" not in str(error):
                    raise
        elif raw[pos] == 1 and raw[pos + 7 : pos + 11] != b"\x00\x1e\x00\x0b":
            frames.append(raw[pos:end])
        pos = end
    return b"".join(frames)


async def run(broker: Broker, seed: int, frames: int) -> dict[int, int]:
    """Feed at least so many frames. Returns the codes by which connections ended."""
    defects = Defects()
    logging.getLogger().addHandler(defects)
    target, streams = Target(broker), Streams(seed)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.found.append(repr(context)))
    count = 0
    try:
        while streams.frames < frames:
            reads = streams.next()
            try:
                await target.feed(reads)
            except Exception as error:
                raise AssertionError(f"seed {seed}, stream {count}: {reads!r}") from error
            assert not defects.found, (seed, count, defects.found, reads)
            count += 1
            if count % 200 == 0:
                await target.clear()
    finally:
        logging.getLogger().removeHandler(defects)
    return target.closes


def summary(closes: dict[int, int]) -> str:
    total = sum(closes.values())
    return f"{total} streams; closed by: " + ", ".join(f"{code} {n}" for code, n in sorted(closes.items()))


def expect(said: list[Said], code: int) -> Any:
    """The one close of the connection."""
    (close,) = [each for each in said if each.name == "Connection.Close"]
    assert close.reply_code == code, close
    return close
