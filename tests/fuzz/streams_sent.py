"""AMQP from a client that means no good: streams of tests/support/amqp_fuzz.py over sockets, with hostile tables and
many channels besides, each on a connection of its own."""

import asyncio
import random
import struct
from collections import Counter

from tests.support.amqp_fuzz import QUEUES, Streams
from tests.support.amqp_wire import HANDSHAKE, HEADER, header_frame, method, publish, raw_frame

ANSWER_SECONDS = 0.3  # a stream may end within a frame: nothing comes then
CLOSE = struct.pack(">HH", 10, 50)
CHANNEL_CLOSE = struct.pack(">HH", 20, 40)
NUMBERS = (0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
NAMES = (
    b"x-max-length",
    b"x-max-length-bytes",
    b"x-message-ttl",
    b"x-expires",
    b"x-max-priority",
    b"x-queue-type",
    b"x-overflow",
    b"x-dead-letter-exchange",
    b"x-dead-letter-routing-key",
    b"x-delivery-limit",
    b"x-single-active-consumer",
    b"x-stream-offset",
    b"x-rewind-to",
    b"x-max-age",
    b"x-queue-mode",
    b"x-consumer-timeout",
    b"x-match",
    b"x-priority",
    b"x-delayed-type",
    b"x-delay",
    b"alternate-exchange",
    b"x-stream-filter",
    b"x-cancel-on-ha-failover",
    b"CC",
    b"BCC",
    b"x-death",
    b"",
    b"\xff",
    b"a" * 255,
)
TEXTS = (
    b"",
    b"quorum",
    b"stream",
    b"classic",
    b"reject-publish",
    b"last",
    b"next",
    b"first",
    b"1D",
    b"topic",
    b"fanout",
    b"all",
    b"9" * 400,
    b"\xff\xfe",
    b"\x00",
    "\u202e".encode(),
    b"2026-11-22T00:00:00Z",
    b"mark:none",
    b"-1",
    b"1e999",
    b"a" * 70_000,
)
SIZED = {b"b": 1, b"B": 1, b"t": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"f": 4, b"l": 8, b"L": 8, b"d": 8, b"T": 8}


class HostileStreams(Streams):
    def frame(self) -> bytes:
        pick = self.random
        if pick.random() < 0.8:
            return super().frame()
        channel, queue, table = pick.choice((1, 2, 3)), pick.choice(QUEUES), self.table(0)
        kind = pick.randrange(8)
        if kind == 0:
            name = pick.choice((queue, "", "q" * 255, "é\u202e\n"))
            return method(channel, "Queue.Declare", queue=name, durable=pick.random() < 0.5, arguments=table)
        if kind == 1:
            kind_of = pick.choice(("topic", "headers", "x-delayed-message", "x-consistent-hash"))
            name = pick.choice(("x", "y", "z"))
            return method(channel, "Exchange.Declare", exchange=name, exchange_type=kind_of, arguments=table)
        if kind == 2:
            return method(
                channel,
                "Queue.Bind",
                queue=queue,
                exchange=pick.choice(("amq.headers", "amq.topic", "x")),
                routing_key=pick.choice(("#", "", "*.#.*", "k" * 255)),
                arguments=table,
            )
        if kind == 3:
            return method(channel, "Basic.Consume", queue=queue, consumer_tag=str(pick.randrange(9)), arguments=table)
        if kind == 4:
            headers = b"\x20\x00" + len(table).to_bytes(4, "big") + table
            exchange = pick.choice(("", "amq.headers", "x", "y"))
            return publish(channel, exchange, queue, pick.randbytes(9), raw=headers)
        if kind == 5:
            return b"".join(method(number, "Channel.Open") for number in pick.sample(range(1, 2047), 20))
        if kind == 6:
            return method(channel, "Basic.Publish", routing_key=queue) + header_frame(channel, pick.choice(NUMBERS))
        return raw_frame(1, channel, pick.choice((b"\x00\x32\x00\x0a", b"\x00\x3c\x00\x14")) + pick.randbytes(12))

    def table(self, depth: int) -> bytes:
        """The entries of a table; its names and values are what somebody might try."""
        return b"".join(
            bytes((len(name),)) + name + self.value(depth)
            for name in (self.random.choice(NAMES) for _ in range(self.random.choice((1, 1, 2, 5))))
        )

    def value(self, depth: int) -> bytes:
        pick = self.random
        kind = pick.choice((*SIZED, b"S", b"S", b"x", b"V", b"D", b"F", b"A"))
        if kind in SIZED:
            return kind + (pick.choice(NUMBERS) % (1 << 8 * SIZED[kind])).to_bytes(SIZED[kind], "big")
        if kind in b"Sx":
            text = pick.choice(TEXTS)
            length = pick.choice((len(text), len(text), len(text), 2**32 - 1))
            return kind + length.to_bytes(4, "big") + text
        if kind == b"V":
            return kind
        if kind == b"D":
            return kind + pick.randbytes(5)
        deep = pick.choice((1, 1, 1, 40))
        inner = b"" if depth > 3 else self.table(depth + 1) if kind == b"F" else self.value(depth + 1)
        for _ in range(deep):
            inner = (b"\x01a" if kind == b"F" else b"") + kind + len(inner).to_bytes(4, "big") + inner
        return inner[2:] if kind == b"F" else inner


async def attack(port: int, seed: int, frames: int, told: Counter[str], found: list[str]) -> None:
    """Send at least so many frames. `told`: what was answered, by code; `found`: streams that met a defect."""
    streams = HostileStreams(seed)
    number = 0
    while streams.frames < frames:
        before = streams.frames
        data = b"".join(streams.next())
        codes = await connected(port, data, random.Random(f"{seed} {number}"))
        told.update(codes)
        told["streams"] += 1
        told["frames"] = told["frames"] + streams.frames - before
        if "541" in codes:
            found.append(f"541: seed {seed}, stream {number}: {data[len(HANDSHAKE) :][:2_000]!r}")
        number += 1


async def connected(port: int, data: bytes, pick: random.Random) -> list[str]:
    """The codes by which the broker closed the connection or channels of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        while data:
            size = pick.choice((1, 7, 100, 4_096, 65_536, 1_000_000))
            writer.write(data[:size])
            data = data[size:]
            await writer.drain()
        writer.write(method(0, "Connection.Close", reply_code=200, reply_text="", class_id=0, method_id=0))
        if pick.random() < 0.1:
            writer.transport.abort()  # without a word
        while piece := await asyncio.wait_for(reader.read(1_000_000), ANSWER_SECONDS):
            answer += piece
            if CLOSE in piece:
                writer.write(method(0, "Connection.CloseOk"))
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    return codes_in(answer)


def codes_in(answer: bytes) -> list[str]:
    codes, pos = [], 0
    while pos + 7 <= len(answer) and answer[pos : pos + 4] != HEADER[:4]:
        end = pos + 8 + int.from_bytes(answer[pos + 3 : pos + 7], "big")
        if answer[pos] == 1 and answer[pos + 7 : pos + 11] in (CLOSE, CHANNEL_CLOSE):
            codes.append(str(int.from_bytes(answer[pos + 11 : pos + 13], "big")))
        pos = end
    return codes
