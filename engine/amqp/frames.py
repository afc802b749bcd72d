"""Frames, parsed in place: one pass over each socket read, no object per frame.

    type (1) | channel (2) | payload length (4) | payload | 0xCE        type: 1 method, 2 header, 3 body, 8 heartbeat

Two things are hot and taken out of the stream right here: basic.ack, and a basic.publish whose three frames lie in the
read completely. Its method frame is looked up whole in the channel's memo, so exchange, routing key and route cost one
dictionary access; and when it begins with the very bytes of the two before it (all but the body), one comparison does
for everything. Whatever else comes, or comes in pieces, goes frame by frame through `frame`, which knows all the rules.
All ways give the same result for any chunking of the stream.

A frame that is too large or has no end marker means that the place in the stream is lost: FrameError (501), and
nothing after it is read.
"""

import struct
from abc import ABC, abstractmethod

from rewindmq.engine.amqp.channel import Channel, ConnectionState
from rewindmq.engine.amqp.erlang import describe
from rewindmq.engine.amqp.publishing import Publishing, PutOff
from rewindmq.engine.errors import AmqpError, FrameError

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
FRAME_OVERHEAD = 8  # bytes of a frame around its payload
FRAME_MIN_SIZE = 4096  # AMQP 0-9-1: both peers must accept this much; the limit before tuning
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

PUBLISH = 60 << 16 | 40
ACK = 60 << 16 | 80
HOT = (PUBLISH, ACK)
CONTENT = 60 << 16  # class basic, weight 0: how a content header begins

unpack_start = struct.Struct(">BHII").unpack_from  # type, channel, length, first four bytes of the payload
unpack_frame = struct.Struct(">BHI").unpack_from
unpack_content = struct.Struct(">BHIIQ").unpack_from  # a header frame up to its properties
unpack_ack = struct.Struct(">QB").unpack_from
PADDING = b"\x00\x00\x00"
# So many messages into queues, by publishes that go to many each, are one turn's work: a read may hold a thousand. The
# channels count them (`publish_anywhere`), however a publish came.
FANNED_OUT = 2_000
LOOK_BYTES = 8_192  # of a read, between two looks at what is on its way into the log


class Repeat:
    """A publish as it came twice in a row: what the next one begins with if it is the same but for its body."""

    def __init__(self, prefix: bytes, channel: Channel, publishing: Publishing, properties: bytes, size: int) -> None:
        self.prefix = prefix  # method frame, header frame, and the start of the body frame
        self.length = len(prefix)
        self.channel = channel
        self.publishing = publishing
        self.properties = properties
        self.size = size


class FrameReader(ABC):
    """Bytes in. `Connection` extends it with what the frames mean."""

    def __init__(self) -> None:
        self.channels: dict[int, Channel] = {}
        self.rest = b""  # a frame that is not complete yet
        # RabbitMQ lets clients exceed frame_max by the size of an empty frame, since quite a few get it wrong.
        self.max_payload = FRAME_MIN_SIZE
        self.max_content = 0  # larger bodies are not taken here
        self.discarding = False  # after a fatal error: whatever comes is ignored
        self.waiting = False  # for the answer to a method: what comes after it is kept until then
        self.throttled = False  # publishing is held back: nothing is read or parsed until that ends
        self.repeat: Repeat | None = None
        self.shared: ConnectionState | None = None
        self.last: tuple[Publishing, bytes, int] | None = None  # the last publish: properties, body size

    @abstractmethod
    def give_way(self) -> None:
        """Others have their turn (`waiting`) before more of what came is parsed."""

    @abstractmethod
    def held_back(self) -> bool:
        """Whether no more is parsed for now (`waiting`): enough that was published is still on its way into the log."""

    @abstractmethod
    def put_off(self, channel: Channel, put_off: PutOff) -> None:
        """A publish waits (`waiting`), and what comes after it for that."""

    @abstractmethod
    def frame(self, kind: int, number: int, payload: bytes) -> None:
        """A frame that `parse` did not take. Must not raise AmqpError."""

    @abstractmethod
    def refuse(self, number: int, index: int, error: AmqpError) -> None:
        """Method `index` on channel `number` failed: close the channel or the connection."""

    def parse(self, data: bytes) -> None:
        """Take the frames out of `data`, keep an incomplete one for the next read."""
        if self.rest:
            data = self.rest + data
            self.rest = b""
        pos = 0
        size = len(data)
        repeat = self.repeat
        look_at = 0
        while size - pos >= FRAME_OVERHEAD:
            if pos >= look_at:
                if self.held_back():
                    break
                look_at = pos + LOOK_BYTES
            if repeat is not None and data.startswith(repeat.prefix, pos):
                body = pos + repeat.length
                end = body + repeat.size
                channel = repeat.channel
                if end < size and data[end] == FRAME_END and channel.ready:
                    pos = end + 1
                    try:
                        channel.publish(repeat.publishing, repeat.properties, data[body:end])
                    except AmqpError as error:
                        self.refuse(channel.number, PUBLISH, error)
                    except PutOff as put_off:
                        self.put_off(channel, put_off)
                    if channel.shared.fanned_out >= FANNED_OUT:
                        self.give_way()
                        break
                    continue
            kind, number, length, index = unpack_start(data if size - pos >= 11 else data + PADDING, pos)
            end = pos + 7 + length
            limit = self.max_payload
            if length > limit:
                self.lose_place(kind, number, b"", f"{{frame_too_large,{length},{limit - FRAME_OVERHEAD}}}")
                return
            if end >= size:
                break
            if data[end] != FRAME_END:
                self.lose_place(kind, number, data[pos + 7 : end], f"{{invalid_frame_end_marker,{data[end]}}}")
                return
            start = pos
            pos = end + 1
            if kind == METHOD and index in HOT:
                hot = self.channels.get(number)
                if hot is not None and hot.ready:
                    if index == PUBLISH:
                        after = self.whole_publish(hot, data, start, pos)
                        if after:
                            pos = after
                            repeat = self.repeat
                            if hot.shared.fanned_out >= FANNED_OUT:
                                self.give_way()
                                break
                            continue
                    elif length == 13:
                        tag, bits = unpack_ack(data, start + 11)
                        try:
                            hot.ack(tag, bits & 1 == 1)
                        except AmqpError as error:
                            self.refuse(number, ACK, error)
                        continue
            self.frame(kind, number, data[start + 7 : end])
            if self.discarding:
                return
            if self.turn_is_over():
                break
            repeat = self.repeat
        self.rest = data[pos:]

    def turn_is_over(self) -> bool:
        if self.shared is not None and self.shared.fanned_out >= FANNED_OUT:
            self.give_way()
        return self.waiting or self.throttled

    def whole_publish(self, channel: Channel, data: bytes, start: int, pos: int) -> int:
        """A basic.publish whose method frame lies at `start` and ends before `pos`: take it if its content is here, in
        one body frame at most. The position behind it, or 0."""
        size = len(data)
        kind: int
        number: int
        length: int
        content: int
        body_size: int
        if size - pos < 22:
            return 0
        kind, number, length, content, body_size = unpack_content(data, pos)
        end = pos + 7 + length
        if (
            kind != HEADER
            or number != channel.number
            or content != CONTENT
            or length > self.max_payload
            or end >= size
            or data[end] != FRAME_END
        ):
            return 0
        properties = data[pos + 19 : end]
        body = b""
        if body_size:
            at = end + 8
            end = at + body_size
            if (
                body_size > self.max_content
                or end >= size
                or data[end] != FRAME_END
                or unpack_frame(data, at - 7) != (BODY, number, body_size)
            ):
                return 0
            body = data[at:end]
        payload = data[start + 11 : pos - 1]
        publishing = channel.publishings.get(payload)
        if publishing is None:
            if channel.broker.turns.blocked is not None:
                return 0  # publishers that are held back go the long way
            try:
                publishing = channel.learn(payload)
            except AmqpError as error:
                self.refuse(number, PUBLISH, error)
                return end + 1
        if body_size:
            last = self.last
            if last is not None and last[0] is publishing and last[2] == body_size and last[1] == properties:
                self.repeat = Repeat(data[start:at], channel, publishing, properties, body_size)
            else:
                self.last = (publishing, properties, body_size)
        try:
            channel.publish(publishing, properties, body)
        except AmqpError as error:
            self.refuse(number, PUBLISH, error)
        except PutOff as put_off:
            self.put_off(channel, put_off)
        return end + 1

    def lose_place(self, kind: int, number: int, payload: bytes, why: str) -> None:
        """The place in the stream is lost: tell the client (501) and read nothing more."""
        self.discarding = True
        self.frame_error(number, FrameError(describe(kind, payload) + ": " + why))

    @abstractmethod
    def frame_error(self, number: int, error: AmqpError) -> None:
        """A frame makes no sense where it stands: tell the client, and end what it was on."""
