"""Deliveries to one consumer, and the answer to one basic.get. Hot.

    basic.deliver frame | header frame | body frames

The bytes between the delivery tag and the body are the same for all messages of one route with the same properties,
but for the size. So those of the last message are kept, and a delivery is: prefix + tag + middle + body + end. If the
size alone differs, `middle` is made of its kept parts: around | size | properties, the body's frame | size.

Properties are the same when they are one object. An encrypted message and a plain one never share that object: both
have it from what one publisher sent (the subject's header decides), or each from its own record. So no encrypted
message is taken for a plain one.

A consumer without prefetch, or with no_ack, lives on credit (docs/design.md#one-idea). It is attached with
CREDIT_WINDOW deliveries. When half of its window is used it gets more, unless the client's socket is congested, or
memory is low and the consumer does not ack. The window is as many messages like the last one as fit into WINDOW_BYTES,
so what is in flight stays bounded.

A prefetch has no such bound. So while a client has a mebibyte unread, a message that is only in the store stays there,
and a body of more than KEPT_BYTES is not kept for it: both are read when the client has taken what is before them
(`LaterDelivery`). So a consumer whose prefetch takes in a whole queue costs a turn a mebibyte of reading.

A message whose key a Vault has to open waits at its place in the output, and what comes behind it waits, too.
"""

import asyncio
import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from rewindmq.engine.amqp import methods
from rewindmq.engine.amqp.output import LARGE_BYTES, ChannelOutput, Piece
from rewindmq.engine.amqp.settlement import DeliveryHolder, Settlement
from rewindmq.engine.broker.consumers import CREDIT_WINDOW
from rewindmq.engine.erasure.key_content import NotAtHand
from rewindmq.engine.partition.partition import Partition
from rewindmq.projections.machine.data.effects import Deliver, FetchReply
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.amqp.properties import with_long, without_blind_copies
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Route

log = logging.getLogger("rewindmq.amqp")

pack_method_start: Final = struct.Struct(">BHII").pack
pack_header: Final = struct.Struct(">BHIIQ").pack
pack_frame: Final = struct.Struct(">BHI").pack
DELIVER: Final = 60 << 16 | 60
CONTENT: Final = 60 << 16
END: Final = b"\xce"
SIZE_AT: Final = 11  # of the body, in a header frame

MIN_WINDOW: Final = 16  # deliveries
MAX_WINDOW: Final = 2_000
SHARED_WINDOW: Final = 512  # while the loop is shared (loop_share.py): the deliveries of a window are one piece of work
WINDOW_BYTES: Final = 8_388_608


class AmqpConsumer(DeliveryHolder):
    """One basic.consume. Implements `rewindmq.engine.partition.partition.DeliveryTarget`."""

    def __init__(
        self,
        output: ChannelOutput,
        settlement: Settlement,
        tag: str,
        no_ack: bool,
        prefetch: int,
        notify: bool,
        gone: "list[AmqpConsumer]",
        creditors: "list[AmqpConsumer]",
    ) -> None:
        super().__init__()
        self.output = output
        self.settlement = settlement
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.notify = notify  # the client understands consumer cancel notification
        self.gone = gone  # the channel's list of consumers that the broker cancelled
        self.creditors = creditors  # the connection's list of consumers that want credit
        self.on_credit = no_ack or prefetch == 0
        self.credit = CREDIT_WINDOW
        self.low_credit = CREDIT_WINDOW // 2  # from there down it wants more
        self.wants_credit = False  # it is among the creditors
        self.detached = False  # cancelled, its channel is closed, or its queue moves
        self.followed_by: AmqpConsumer | None = None  # its successor where its queue has moved
        self.short_tag = short_string(tag)
        # parts of the frames of the message before this one
        self.route: Route | None = None
        self.properties = b""
        self.size = 0
        self.redelivered = False
        self.prefix = b""
        self.middle = b""
        self.around: tuple[bytes, bytes] = (b"", b"")  # of a message with one body frame: before the size, behind it

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        """Send basic.deliver (hot). `effect.final`: the message needs no ack. `message`: None while only the store has
        it."""
        output = self.output
        connection = output.connection
        if message is None and (effect.final or not connection.crowded):
            message = partition.message(effect.queue.queue_id, message_id)
            connection.unsent += len(message.body)
        settlement = self.settlement
        tag = settlement.last_tag + 1
        settlement.last_tag = tag
        if effect.final:
            settlement.delivered_no_ack += 1
        else:
            settlement.unacked[tag] = (self, message_id)
        redelivered = effect.redelivered
        if redelivered:
            settlement.redelivered += 1
        if message is None or (
            len(message.body) > output.kept_bytes and connection.crowded and not effect.final and self.reader is None
        ):
            output.parts.append(LaterDelivery(self, tag, partition, effect, message_id, None))
            connection.later += 1
        else:
            missing = ""  # the key that a Vault has to open
            if (
                message.route is not self.route
                or message.properties is not self.properties
                or redelivered is not self.redelivered
                or effect.delivery_count
                or effect.acquired_count
                or (len(message.body) != self.size and not self.resize(len(message.body)))
            ):
                if message.encryption is None:
                    self.prepare(effect, message)
                else:
                    try:
                        message = partition.decrypted(message)
                        self.prepare(effect, message)
                    except NotAtHand as error:
                        missing = error.key_id
                    self.route = None  # the next one may look the same, and has to be decrypted as well
            body = message.body
            if missing:
                kept = message if effect.final or self.reader is not None else None
                sealed = LaterDelivery(self, tag, partition, effect, message_id, kept)
                sealed.fetch(missing)
                output.parts.append(sealed)
                connection.later += 1
            elif len(body) <= output.kept_bytes:
                output.parts += (self.prefix, tag.to_bytes(8, "big"), self.middle, body, END)
            else:
                output.parts += (self.prefix, tag.to_bytes(8, "big"), self.middle)
                output.parts += body_pieces(output, body)
                connection.unsent += len(body)
        if not connection.scheduled:
            connection.schedule()
        if self.on_credit:
            self.credit -= 1
            if self.credit <= self.low_credit and not self.wants_credit:
                self.wants_credit = True
                self.creditors.append(self)

    def resize(self, size: int) -> bool:
        """Make `middle` for a message that differs from the last one in the size. False: that takes `prepare`."""
        if not 0 < size <= self.output.max_payload or not 0 < self.size <= self.output.max_payload:
            return False
        before, behind = self.around
        self.size = size
        self.middle = before + size.to_bytes(8, "big") + behind + size.to_bytes(4, "big")
        return True

    def prepare(self, effect: Deliver, message: Published) -> None:
        """Make `prefix` and `middle` for this message."""
        route = message.route
        rest = bytes((effect.redelivered,)) + short_string(route.exchange) + short_string(route.routing_key)
        number = self.output.number
        self.prefix = pack_method_start(1, number, 12 + len(self.short_tag) + len(rest), DELIVER) + self.short_tag
        properties = message.properties
        if effect.delivery_count or effect.acquired_count:
            properties = with_counts(properties, effect.delivery_count, effect.acquired_count)
            self.route = None  # made for this message alone
        else:
            self.route = route
        self.properties = message.properties
        self.size = len(message.body)
        self.redelivered = effect.redelivered
        header = header_frame(self.output, properties, self.size)
        self.middle = rest + END + header
        if 0 < self.size <= self.output.max_payload:
            self.around = rest + END + header[:SIZE_AT], header[SIZE_AT + 8 : -4]

    def cancelled(self) -> None:
        """Send basic.cancel to a client that understands it: the broker has cancelled the consumer."""
        if self.notify:
            frame = methods.encode(self.output.number, "Basic.Cancel", consumer_tag=self.tag, nowait=True)
            if self.output.cancels is None:
                self.output.write(frame)
            else:
                self.output.cancels.append(frame)
        self.detached = True
        self.gone.append(self)

    def give_back(self) -> None:
        """Give back the messages that were not sent to the client."""

    @property
    def congested(self) -> bool:
        """Return True if the client's socket takes no more for now."""
        return self.output.connection.congested

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once the client's socket takes more."""
        self.output.connection.relief.append(callback)

    @property
    def holds_much(self) -> bool:
        """Return True if more than a small window is unacked: such a consumer waits for its acks when memory is low."""
        return not self.no_ack and len(self.settlement.unacked) > SHARED_WINDOW

    def more_credit(self, shared: bool) -> int:
        """Fill the window up, which is smaller while the loop is `shared`. Return the number of deliveries that were
        missing (0 when the window shrank)."""
        self.wants_credit = False
        most = SHARED_WINDOW if shared else MAX_WINDOW
        window = max(MIN_WINDOW, min(most, WINDOW_BYTES // (self.size + 1)))
        self.low_credit = window // 2
        missing = max(0, window - self.credit)
        self.credit += missing
        return missing


class LaterMessage(ABC):
    """A message on its way to a client that is read when it can be written, and that may have to wait for its key.
    Implements `rewindmq.engine.amqp.output.Later`."""

    def __init__(
        self, output: ChannelOutput, partition: Partition, queue: Queue, message_id: int, message: Published | None
    ) -> None:
        self.output = output
        self.partition = partition
        self.queue = queue
        self.message_id = message_id
        self.message = message  # None: it is in the store, so its body need not be in memory
        self.fetching = False
        self.failed = False
        self.opened: Published | None = None

    def fetch(self, key_id: str) -> None:
        """Wait for a key."""
        self.fetching = True
        self.partition.fetch_key(key_id).add_done_callback(self.fetched)

    def fetched(self, future: "asyncio.Future[None]") -> None:
        """The key is here, or cannot be had."""
        self.fetching = False
        self.failed = future.cancelled() or future.exception() is not None
        self.output.connection.unblock()

    @property
    @abstractmethod
    def is_wanted(self) -> bool:
        """Return True if the client still waits for the message."""

    def ready(self) -> bool:
        """Return True if the message is decrypted, cannot be decrypted, or is no longer wanted."""
        if not self.is_wanted:
            return True
        if self.fetching:
            return False
        if self.failed:
            return True
        try:
            message = self.message
            if message is None:
                message = self.partition.message(self.queue.queue_id, self.message_id)
            self.opened = self.partition.decrypted(message)
        except NotAtHand as missing:
            self.fetch(missing.key_id)
            return False
        except Exception:  # as with any delivery
            log.exception("%s: message %d was not delivered", self.queue.name, self.message_id)
            self.failed = True
        return True


class LaterDelivery(LaterMessage):
    """A delivery to a client that has much unread, or that waits for its key. `message`: None if the store has it until
    the client settles it, so that its body need not be in memory."""

    def __init__(
        self,
        consumer: AmqpConsumer,
        tag: int,
        partition: Partition,
        effect: Deliver,
        message_id: int,
        message: Published | None,
    ) -> None:
        super().__init__(consumer.output, partition, effect.queue, message_id, message)
        self.consumer = consumer
        self.tag = tag
        self.effect = effect

    @property
    def is_wanted(self) -> bool:
        settlement = self.consumer.settlement
        if settlement.closed:
            return False
        return self.message is not None or (self.tag in settlement.unacked and not self.queue.gone)

    def frames(self) -> list[Piece]:
        """Return the frames; none when nobody waits for it any longer: the client has settled the delivery unseen, its
        channel is closed, or the queue is gone. A message that cannot be read closes the connection."""
        opened, consumer = self.opened, self.consumer
        if not self.is_wanted:
            return []
        if opened is None:
            self.partition.deliveries.undelivered(consumer.consumer_id)
            return []
        consumer.prepare(self.effect, opened)
        consumer.route = None
        head = [consumer.prefix, self.tag.to_bytes(8, "big"), consumer.middle]
        return [*head, *body_pieces(consumer.output, opened.body)]


class SealedAnswer(LaterMessage):
    """The answer to a basic.get that waits for its key."""

    def __init__(self, getter: "BasicGet", tag: int, partition: Partition, effect: FetchReply, message: Published):
        super().__init__(getter.output, partition, effect.queue, effect.message_id, message)
        self.getter = getter
        self.tag = tag
        self.effect = effect

    @property
    def is_wanted(self) -> bool:
        return not self.getter.settlement.closed

    def frames(self) -> list[Piece]:
        """Return the frames. Without its key the connection is closed."""
        if not self.is_wanted:
            return []
        if self.opened is None:
            self.partition.deliveries.undelivered(self.effect.consumer)
            return []
        return self.getter.frames(self.tag, self.effect, self.opened)


class BasicGet(DeliveryHolder):
    """One basic.get, until its message is settled. Implements `rewindmq.engine.partition.partition.FetchTarget`."""

    def __init__(self, output: ChannelOutput, settlement: Settlement) -> None:
        super().__init__()
        self.output = output
        self.settlement = settlement

    def fetched(self, partition: Partition, effect: FetchReply, message: Published | None) -> None:
        """Send basic.get-ok, or basic.get-empty."""
        output = self.output
        settlement = self.settlement
        if message is None:
            settlement.fetched_empty += 1
            output.write(methods.encode(output.number, "Basic.GetEmpty"))
            return
        tag = settlement.last_tag + 1
        settlement.last_tag = tag
        settlement.redelivered += effect.redelivered
        if effect.final:
            settlement.fetched_no_ack += 1
        else:
            settlement.fetched += 1
            settlement.unacked[tag] = (self, effect.message_id)
        try:
            opened = partition.decrypted(message)
        except NotAtHand as missing:
            sealed = SealedAnswer(self, tag, partition, effect, message)
            sealed.fetch(missing.key_id)
            output.parts.append(sealed)
            output.connection.later += 1
        else:
            output.connection.unsent += len(opened.body)
            output.parts += self.frames(tag, effect, opened)
        if not output.connection.scheduled:
            output.connection.schedule()

    def frames(self, tag: int, effect: FetchReply, message: Published) -> list[Piece]:
        """Return the frames of basic.get-ok."""
        route = message.route
        frame = methods.encode(
            self.output.number,
            "Basic.GetOk",
            delivery_tag=tag,
            redelivered=effect.redelivered,
            exchange=route.exchange,
            routing_key=route.routing_key,
            message_count=effect.messages_ready,
        )
        properties = with_counts(message.properties, effect.delivery_count, effect.acquired_count)
        return content_frames(self.output, frame, properties, message.body)


def with_counts(properties: bytes, delivery_count: int, acquired_count: int) -> bytes:
    """Return the properties with the header x-delivery-count (S-157), and x-acquired-count for profile rabbitmq-4.3. A
    count of 0 is left out."""
    if delivery_count:
        properties = with_long(properties, b"x-delivery-count", delivery_count)
    return with_long(properties, b"x-acquired-count", acquired_count) if acquired_count else properties


def header_frame(output: ChannelOutput, properties: bytes, size: int) -> bytes:
    """Return the header frame, without the header BCC, and the beginning of the body frame when there is just one: body
    and end follow. With an empty body the end of the header frame itself follows."""
    properties = without_blind_copies(properties)
    frame = pack_header(2, output.number, 12 + len(properties), CONTENT, size) + properties
    if size == 0:
        return frame
    return frame + END + (pack_frame(3, output.number, size) if size <= output.max_payload else b"")


def body_frames(output: ChannelOutput, body: bytes) -> list[Piece]:
    """Return the frames of a body that does not fit into one.

    They hold views of the body: a large one is not copied."""
    limit = output.max_payload
    frames: list[Piece] = []
    view = memoryview(body)
    if len(body) >= LARGE_BYTES:
        output.connection.has_large_body = True
    for start in range(0, len(body), limit):
        piece = view[start : start + limit]
        frames += (pack_frame(3, output.number, len(piece)), piece, END)
    return frames


def content_frames(output: ChannelOutput, method: bytes, properties: bytes, body: bytes) -> list[Piece]:
    """Return the frames of a method with content."""
    return [method, header_frame(output, properties, len(body)), *body_pieces(output, body)]


def body_pieces(output: ChannelOutput, body: bytes) -> list[Piece]:
    """Return the frames of a body, up to the end of the last one."""
    return [body, END] if len(body) <= output.max_payload else body_frames(output, body)


def content(output: ChannelOutput, method: bytes, properties: bytes, body: bytes) -> None:
    """Send a method with content (basic.return)."""
    output.parts += content_frames(output, method, properties, body)
    if not output.connection.scheduled:
        output.connection.schedule()


def short_string(text: str) -> bytes:
    """Return a short string of AMQP: its length in one byte, then its bytes."""
    data = text.encode()
    return bytes((len(data),)) + data
