"""Frames, parsed in place: one pass over each socket read, no object per frame.

    type (1) | channel (2) | payload length (4) | payload | 0xCE        type: 1 method, 2 header, 3 body, 8 heartbeat

The parser knows where frames begin and end. What they mean it leaves to others: `HotChannel` and `FrameReceiver` are
all that it calls.

Two frames are hot and are given to their channel from here: a basic.ack, and a basic.publish whose three frames are in
the read completely. The publish's method frame is looked up whole in the channel's memo, so exchange, routing key and
route cost one dictionary access. Publishes that have the very bytes of the two before them, all but the size and the
body, are a run: two comparisons do for each (`Repeat`), and the channel takes them at once. It also takes acks that
follow each other at once. Any other frame, and a publish that comes in pieces, goes to `FrameReceiver.frame`, which
knows all the rules. All ways give the same result for any chunking of the stream.

A frame that is too large or has no end marker means that the place in the stream is lost: FrameError (501), and nothing
after it is read.
"""

import struct
from collections.abc import Mapping
from typing import Final, Generic, Protocol, TypeVar

from rewindmq.engine.amqp.erlang import describe
from rewindmq.engine.amqp.read_gate import ReadGate
from rewindmq.engine.errors import FrameError
from rewindmq.engine.partition.publish_counts import PublishCounts

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8  # bytes of a frame around its payload
ACK_SIZE: Final = 21  # bytes of a frame of basic.ack
FRAME_MIN_SIZE: Final = 4096  # AMQP 0-9-1: both peers must accept this much; the limit before tuning
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

PUBLISH: Final = 60 << 16 | 40
ACK: Final = 60 << 16 | 80
HOT: Final = (PUBLISH, ACK)
CONTENT: Final = 60 << 16  # class basic, weight 0: how a content header begins

unpack_start: Final = struct.Struct(">BHII").unpack_from  # type, channel, length, first four bytes of the payload
unpack_frame: Final = struct.Struct(">BHI").unpack_from
unpack_content: Final = struct.Struct(">BHIIQ").unpack_from  # a header frame up to its properties
unpack_ack: Final = struct.Struct(">QB").unpack_from
unpack_acks: Final = struct.Struct(">11sQBB").iter_unpack  # whole frames: all up to the tag, the tag, the bit, the end
PADDING: Final = b"\x00\x00\x00"
PAUSE_CHECK_BYTES: Final = 8_192  # of a read, between two questions to `FrameReceiver.must_pause`
FRAME_BYTES: Final = 512  # a frame that goes to `FrameReceiver.frame` counts as this many bytes more: it may be tiny

PublishT = TypeVar("PublishT")


class HotChannel(Protocol[PublishT]):
    """A channel that takes a whole basic.publish or basic.ack in one call. `PublishT`: what it knows of a method frame
    of basic.publish. Exceptions of its methods go to `FrameReceiver.failed`."""

    number: int
    ready: bool  # whole publishes and acks may come now
    publish_memo: dict[bytes, PublishT]  # by the method frame's payload, without its first four bytes

    def learn_whole(self, payload: bytes) -> PublishT | None:
        """Enter a method frame into the memo. None: the publish is to come frame by frame this time, as it must if the
        method frame is not valid."""

    def publish(self, publish: PublishT, raw: bytes, body: bytes) -> None:
        """Take a whole publish: what is known of its method frame, its properties and its body."""

    def takes_runs(self, publish: PublishT, raw: bytes) -> bool:
        """Return True if `publish_run` may take publishes with this method frame and these properties now."""

    def publish_run(self, publish: PublishT, raw: bytes, bodies: list[bytes]) -> None:
        """Take whole publishes that differ in their bodies alone, and have one."""

    def ack(self, tag: int, multiple: bool) -> None:
        """Take a basic.ack."""

    def ack_each(self, tags: list[int]) -> None:
        """Take a basic.ack of each tag, none of them multiple. An error ends the channel, so the tags behind it are
        ignored, as their frames would be."""


class FrameReceiver(Protocol):
    """The owner of the parser (connection.py)."""

    def must_pause(self) -> bool:
        """Return True if no further frame is parsed for now. The gate is closed then. Asked every
        `PAUSE_CHECK_BYTES`."""

    def frame(self, kind: int, number: int, payload: bytes) -> None:
        """Take a frame that the parser has not given to a channel itself. Must not raise AmqpError."""

    def failed(self, number: int, index: int, error: Exception) -> None:
        """Method `index` on channel `number`, an ack or a publish that came whole, raised `error`. It is handled, or
        raised again."""

    def frame_error(self, error: FrameError) -> None:
        """The place in the stream is lost. The parser is `deaf` from now on."""


class Repeat(Generic[PublishT]):
    """A publish that came twice in a row. The next one has the same bytes around the size of its body:

    front: method frame, header frame up to the size | size | middle: properties to the body frame's size | size | body
    """

    def __init__(
        self, front: bytes, middle: bytes, channel: HotChannel[PublishT], publish: PublishT, properties: bytes
    ) -> None:
        self.front = front
        self.middle = middle
        self.middle_at = len(front) + 4
        self.length = len(front) + 4 + len(middle) + 4
        self.channel = channel
        self.publish = publish
        self.properties = properties


class FrameParser(Generic[PublishT]):
    """Cuts one connection's bytes into frames. `channels`: those that are open, by number; the receiver keeps them."""

    def __init__(self, channels: Mapping[int, HotChannel[PublishT]], receiver: FrameReceiver, gate: ReadGate) -> None:
        self.channels = channels
        self.receiver = receiver
        self.gate = gate
        self.rest = b""  # bytes that are not parsed yet: an incomplete frame, or all that came while the gate is shut
        # RabbitMQ lets clients exceed frame_max by the size of an empty frame, since quite a few get it wrong.
        self.max_payload = FRAME_MIN_SIZE
        self.max_content = 0  # larger bodies are not taken whole
        self.counts = PublishCounts()  # of the session, once there is one
        self.deaf = False  # after a fatal error, or at the end: bytes that come are thrown away
        self.repeat: Repeat[PublishT] | None = None
        self.last: tuple[PublishT, bytes] | None = None  # the last whole publish with a body, and its properties

    def parse(self, data: bytes) -> None:
        """Take the frames out of `data` until the gate is shut; keep what is left for the next call.

        Hot. The three shortcuts are inline, and not in separate functions, because a call costs as much as the rest
        of a small publish's parsing."""
        if self.rest:
            data = self.rest + data
            self.rest = b""
        pos = 0
        size = len(data)
        repeat = self.repeat
        gate = self.gate
        check_at = 0
        while size - pos >= FRAME_OVERHEAD:
            if pos >= check_at:
                if self.receiver.must_pause():
                    break
                check_at = pos + PAUSE_CHECK_BYTES
            if repeat is not None and data.startswith(repeat.front, pos) and repeat.channel.ready:
                after = self.run(repeat, data, pos, check_at)
                if after:
                    pos = after
                    if gate.shut:
                        break
                    continue
            kind, number, length, index = unpack_start(data if size - pos >= 11 else data + PADDING, pos)
            end = pos + 7 + length
            limit = self.max_payload
            if length > limit:
                self.lose_place(kind, b"", f"{{frame_too_large,{length},{limit - FRAME_OVERHEAD}}}")
                return
            if end >= size:
                break
            if data[end] != FRAME_END:
                self.lose_place(kind, data[pos + 7 : end], f"{{invalid_frame_end_marker,{data[end]}}}")
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
                            if gate.shut:
                                break
                            continue
                    elif length == ACK_SIZE - FRAME_OVERHEAD:
                        tag, bits = unpack_ack(data, start + 11)
                        if bits & 1 == 0 and pos < size and data.startswith(data[start : start + 11], pos):
                            pos = self.acks(hot, data, start, check_at)
                            continue
                        try:
                            hot.ack(tag, bits & 1 == 1)
                        except Exception as error:
                            self.receiver.failed(number, ACK, error)
                        continue
            check_at -= FRAME_BYTES
            self.receiver.frame(kind, number, data[start + 7 : end])
            if self.deaf:
                return
            if gate.shut:
                break
            repeat = self.repeat
        self.rest = data[pos:]

    def run(self, repeat: Repeat[PublishT], data: bytes, pos: int, until: int) -> int:
        """Take the publishes from `pos` on that repeat: those that begin before `until`, or only the first one if its
        channel takes no runs. Returns the position behind them; 0: the first one is not here whole, or is no repeat."""
        front, middle, channel = repeat.front, repeat.middle, repeat.channel
        size, most = len(data), min(self.max_payload, self.max_content)
        several = channel.takes_runs(repeat.publish, repeat.properties)
        bodies: list[bytes] = []
        while pos < until and data.startswith(front, pos) and data.startswith(middle, pos + repeat.middle_at):
            at = pos + repeat.length
            if at >= size:
                break
            length = data[at - 4 : at]
            body_size = int.from_bytes(length, "big")
            end = at + body_size
            if end >= size or data[end] != FRAME_END or not 0 < body_size <= most:
                break
            if data[pos + repeat.middle_at - 4 : pos + repeat.middle_at] != length:
                break
            bodies.append(data[at:end])
            pos = end + 1
            if not several:
                break
        if not bodies:
            return 0
        self.counts.received += len(bodies)
        try:
            if len(bodies) == 1:
                channel.publish(repeat.publish, repeat.properties, bodies[0])
            else:
                channel.publish_run(repeat.publish, repeat.properties, bodies)
        except Exception as error:
            self.receiver.failed(channel.number, PUBLISH, error)
        return pos

    def whole_publish(self, channel: HotChannel[PublishT], data: bytes, start: int, pos: int) -> int:
        """Take the basic.publish whose method frame lies at `start` and ends before `pos`, if its content is here, in
        one body frame at most. Returns the position behind it, or 0 when it was not taken."""
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
        try:
            publish = channel.publish_memo.get(payload)
            if publish is None:
                publish = channel.learn_whole(payload)
                if publish is None:
                    return 0
            if body_size:
                last = self.last
                if last is not None and last[0] is publish and last[1] == properties:
                    self.repeat = Repeat(data[start : pos + 15], data[pos + 19 : at - 4], channel, publish, properties)
                else:
                    self.last = (publish, properties)
            self.counts.received += 1
            channel.publish(publish, properties, body)
        except Exception as error:
            self.receiver.failed(number, PUBLISH, error)
        return end + 1

    def acks(self, channel: HotChannel[PublishT], data: bytes, start: int, until: int) -> int:
        """Take the acks from `start` on that begin before `until`, are on this channel, and are not multiple. The
        first one is here whole. Returns the position behind them."""
        head = data[start : start + 11]
        count = (min(len(data), until + ACK_SIZE) - start) // ACK_SIZE
        tags: list[int] = []
        for begin, tag, bits, end in unpack_acks(data[start : start + count * ACK_SIZE]):
            if begin != head or bits & 1 or end != FRAME_END:
                break
            tags.append(tag)
        try:
            channel.ack_each(tags)
        except Exception as error:
            self.receiver.failed(channel.number, ACK, error)
        return start + len(tags) * ACK_SIZE

    def lose_place(self, kind: int, payload: bytes, why: str) -> None:
        """The place in the stream is lost: tell the receiver (501) and read nothing more."""
        self.deaf = True
        self.receiver.frame_error(FrameError(describe(kind, payload) + ": " + why))
