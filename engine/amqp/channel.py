"""One channel without its socket: its methods, and its memory between them.

    ready           a method frame may come (the channel is open, no content is expected), and the channel is not
                    transactional: frames.py may give it publishes and acks that came whole
    content_of      the basic.publish whose header (`size` < 0) or body frames are still to come
    closing         channel.close was sent: everything but close and close-ok is ignored

Method names are those of AMQP 0-9-1, their errors and texts those of RabbitMQ (docs/behaviours/queues.md,
docs/behaviours/consumers.md). A method that fails raises AmqpError. The connection turns it into channel.close or
connection.close.
"""

from functools import partial
from io import BytesIO

from rewindmq.engine.amqp.basic_publish import (
    BasicPublish,
    PublishPostponed,
)
from rewindmq.engine.amqp.basic_publish import decode as decode_publish
from rewindmq.engine.amqp.consumer import AmqpConsumer
from rewindmq.engine.amqp.consumer_timeout import DeliveryAges
from rewindmq.engine.amqp.frames import HEADER
from rewindmq.engine.amqp.output import ChannelOutput
from rewindmq.engine.amqp.publish_path import MEMO_SIZE, PublishPath, SharedState
from rewindmq.engine.amqp.settlement import Verdict
from rewindmq.engine.amqp.transactions import Transaction
from rewindmq.engine.config import MAX_MESSAGE_SIZE
from rewindmq.engine.errors import AmqpError, FrameError, MessageTooLarge, UnexpectedFrame
from rewindmq.engine.host.memory import MemoryKind
from rewindmq.engine.partition.flow_control import LARGE_BYTES


class Channel(PublishPath):
    """An open channel (the connection makes it when channel.open comes)."""

    def __init__(self, shared: SharedState, output: ChannelOutput) -> None:
        super().__init__(shared, output)
        self.ready = True
        self.content_of: BasicPublish | None = None
        self.transaction: Transaction | None = None
        self.size = -1
        self.properties = b""
        self.gathered = BytesIO()  # the body so far
        self.gathered_bytes = 0
        self.skipped = 0  # bytes that are to come of the body of a publish that is ignored
        self.ages = DeliveryAges(self.settlement)
        self.consumers: dict[str, AmqpConsumer] = {}
        self.gone: list[AmqpConsumer] = []  # cancelled by the broker
        self.prefetch = 0
        self.global_prefetch = 0
        self.reply_tag = ""
        self.last_queue = ""  # most recently declared: an empty name means it

    # -- a publish that comes frame by frame --------------------------------------------------------------------------

    def begin_publish(self, payload: bytes) -> None:
        """Take a method frame of basic.publish whose content did not come with it."""
        self.content_of = self.publish_memo.get(payload) or self.learn(payload)
        self.size = -1
        self.ready = False

    def learn(self, payload: bytes) -> BasicPublish:
        """Decode a method frame and enter it into the memo."""
        publish = decode_publish(payload)
        if len(self.publish_memo) >= MEMO_SIZE:
            self.publish_memo.clear()
        self.publish_memo[payload] = publish
        return publish

    def learn_whole(self, payload: bytes) -> BasicPublish | None:
        """As `learn`, for a publish that came whole. None during an alarm, because frame by frame it holds the
        connection back, and for a method frame that is not valid."""
        if self.broker.turns.blocked is not None:
            return None
        try:
            return self.learn(payload)
        except AmqpError:
            return None

    def header(self, class_id: int, weight: int, size: int, properties: bytes) -> None:
        """Take a content header. Check the size here, so that no body is gathered for nothing."""
        publish = self.expect_content()
        if self.size >= 0:
            raise self.out_of_place()
        if weight != 0:
            raise self.out_of_place()
        if class_id != 60:
            raise UnexpectedFrame(f"expected content header for class 60, got one for class {class_id} instead")
        limit = self.broker.config.max_message_size
        if size > limit:
            raise MessageTooLarge(publish.exchange, size, limit, limit != MAX_MESSAGE_SIZE)
        if size == 0:
            self.end_content()
            self.take(publish, properties, b"")
            return
        self.size = size
        self.properties = properties

    def body(self, piece: bytes) -> None:
        """Take a body frame."""
        publish = self.expect_content()
        if self.size < 0:
            raise self.out_of_place()
        received = self.gathered_bytes + len(piece)
        if received > self.size:
            raise FrameError(f"content body of {received} bytes where {self.size} were announced")
        body = piece
        if received < self.size or self.gathered_bytes:
            self.gathered.write(piece)  # one buffer: a list of frames of a byte each would be many times their size
            self.gathered_bytes = received
            self.broker.host.memory.take(MemoryKind.BODY, len(piece))
            if received < self.size:
                return
            body = self.gathered.getvalue()  # not a copy: CPython hands out the buffer
        self.end_content()
        self.take(publish, self.properties, body)

    def take(self, publish: BasicPublish, properties: bytes, body: bytes) -> None:
        """Take a publish whose frames have all come. PublishPostponed as `publish`, and if the log has no room."""
        if self.transaction is not None:
            self.transaction.publish(publish, properties, body)
            return
        if len(body) >= LARGE_BYTES:
            if publish.version != self.router.version:  # a refusal need not wait
                self.resolve(publish, properties, body)
            known = self.parsed.get(properties) or self.parse_properties(properties)
            size = len(body) * len(self.destinations(publish, known, body))  # each partition logs it
            flow = self.broker.keeper.flow
            if not (flow.has_turn(size) and flow.has_room(size)):
                raise PublishPostponed(partial(self.wait_for_room, size), publish, properties, body)
        self.publish(publish, properties, body)

    async def publish_later(self, postponed: PublishPostponed) -> None:
        """Take a postponed publish once it no longer needs to wait. ResourceError (506): no key can be made for its
        subject."""
        self.counts.unfinished += 1
        try:
            while True:
                await self.wait_keeping(len(postponed.body), postponed.wait)
                if self.closing:  # with its connection: nothing may follow its end
                    return
                try:
                    self.take(postponed.publish, postponed.properties, postponed.body)
                    break
                except PublishPostponed as again:  # there is something else to wait for; or its key was erased just now
                    postponed = again
        except AmqpError as error:
            self.counts.unfinished -= 1
            self.counts.refuse(error)
            raise
        self.counts.unfinished -= 1
        self.found.clear()

    def skip(self, kind: int, payload: bytes) -> None:
        """Ignore a header or body frame, because the broker has closed the channel; count publishes that come whole."""
        if kind == HEADER:
            self.skipped = int.from_bytes(payload[4:12], "big")
        elif self.skipped > 0:
            self.skipped -= len(payload)
        else:
            return
        if self.skipped == 0:
            self.counts.received += 1
            self.counts.after_error += 1

    def forget_gathered(self) -> None:
        """Drop the body so far."""
        self.broker.host.memory.give_back(MemoryKind.BODY, self.gathered_bytes)
        self.gathered = BytesIO()
        self.gathered_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of publishes that have not come whole, wait for tx.commit, or were postponed."""
        return self.gathered_bytes + self.waiting_bytes + (0 if self.transaction is None else self.transaction.size)

    def expect_content(self) -> BasicPublish:
        """Return the publish that a content frame belongs to. UnexpectedFrame: there is none."""
        if self.content_of is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        return self.content_of

    def out_of_place(self) -> UnexpectedFrame:
        """Return the error for another frame than the content that is expected."""
        if self.size < 0:
            return UnexpectedFrame("expected content header for class 60, got non content header frame instead")
        return UnexpectedFrame("expected content body, got non content body frame instead")

    def end_content(self) -> None:
        """The content has come whole: method frames may come again."""
        self.counts.received += 1
        self.content_of = None
        self.size = -1
        if self.gathered_bytes:
            self.forget_gathered()
        self.ready = self.transaction is None

    # -- settling -----------------------------------------------------------------------------------------------------

    def ack(self, tag: int, multiple: bool) -> None:
        """Take a basic.ack (hot)."""
        if not self.settling:
            self.settling = True
            self.shared.settling.append(self)
        self.settlement.settle(tag, multiple, None)

    def ack_each(self, tags: list[int]) -> None:
        """Take a basic.ack of each tag (hot)."""
        if not self.settling:
            self.settling = True
            self.shared.settling.append(self)
        self.settlement.ack_each(tags)

    def settle(self, tag: int, multiple: bool, verdict: Verdict) -> None:
        """Take a basic.nack or basic.reject, or an ack that did not come by the hot path."""
        if self.transaction is not None:
            self.transaction.settle(tag, multiple, verdict)
            return
        if not self.settling:
            self.settling = True
            self.shared.settling.append(self)
        self.settlement.settle(tag, multiple, verdict)

    def reply_to(self, queue: str, tag: str) -> None:
        """Set the queue of direct replies, and its consumer's tag ("": there are none). Properties that name the queue
        are made anew."""
        self.reply_queue, self.reply_tag = queue, tag
        self.parsed.clear()

    def forget_gone(self) -> None:
        """Free the tags of consumers that the broker has cancelled."""
        for consumer in self.gone:
            self.session.attachments.pop(consumer.consumer_id, None)
            if self.consumers.get(consumer.tag) is consumer:
                del self.consumers[consumer.tag]
        self.gone.clear()

    def shut(self) -> None:
        """Close the channel: log what was settled, confirm what is due, and give consumers nothing more."""
        for consumer in self.consumers.values():
            consumer.detached = True
        self.settlement.flush()
        for consumer in self.consumers.values():
            consumer.give_back()
        self.settlement.closed = True
        self.confirms.flush()
        self.confirms.closed = True
        self.tally.merge_into(self.broker.counters)
        self.closing = True
        if self.end is not None and not self.end.done():
            self.end.set_result(None)
        self.ready = False
        self.content_of = None
        self.forget_gathered()
        if self.transaction is not None:
            self.transaction.forget()
