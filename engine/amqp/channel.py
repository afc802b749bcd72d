"""One channel, sans I/O: what its methods do, and what it remembers between them.

    ready                a method frame may come (the channel is open, no content is under way), and it is not
                         transactional: frames.py may take publishes and acks in one piece
    publishing           a basic.publish whose header (`size` < 0) or body frames are still to come
    closing              channel.close was sent: everything but close and close-ok is ignored

Method names are those of AMQP 0-9-1, their errors and texts those of RabbitMQ
(docs/behaviours/queues.md, docs/behaviours/consumers.md). A method that fails
raises AmqpError; the connection turns it into channel.close or connection.close.
"""

from functools import partial

from rewindmq.engine.amqp import methods
from rewindmq.engine.amqp.confirms import Confirmations
from rewindmq.engine.amqp.consumer import Consumer, content
from rewindmq.engine.amqp.consumer_timeout import Looks
from rewindmq.engine.amqp.output import ChannelOutput
from rewindmq.engine.amqp.publishing import (
    ALWAYS,
    FAN_OUT,
    TRANSIENT,
    Placing,
    Publishing,
    PutOff,
    message,
    prompt,
    route_by_content,
)
from rewindmq.engine.amqp.publishing import decode as decode_publish
from rewindmq.engine.amqp.settlement import Settlement, Verdict
from rewindmq.engine.amqp.transactions import Transaction
from rewindmq.engine.broker import direct_reply
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import MAX_MESSAGE_SIZE
from rewindmq.engine.erasure.encryption import NoKeyYet
from rewindmq.engine.errors import FrameError, PreconditionFailed, UnexpectedFrame, refusal
from rewindmq.engine.routing.router import Destination
from rewindmq.engine.runtime.certainty import REFUSALS
from rewindmq.engine.runtime.counters import Tally
from rewindmq.engine.runtime.memory import Kind
from rewindmq.engine.runtime.sessions import ChannelStatus, Session
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.properties import Parsed, parse, with_reply_to
from rewindmq.schemas.events import Encryption, Published

# Distinct method frames and content properties that a channel remembers; beyond that it starts over.
MEMO_SIZE = 512
MEMO_BYTES = 512  # longer properties are seldom seen twice

NO_ROUTE = 312
PSEUDO_QUEUE = direct_reply.PSEUDO_QUEUE.encode()


class ConnectionState:
    """What the channels of one connection share."""

    def __init__(self, broker: Broker, session: Session, cancel_notify: bool) -> None:
        self.broker = broker
        self.session = session
        self.cancel_notify = cancel_notify
        self.confirming: list[Confirmations] = []  # channels with something to confirm
        self.creditors: list[Consumer] = []  # consumers that want credit
        self.settling: list[Channel] = []  # channels whose settlements gather
        self.heard = 0  # how many readings of the log had begun when the last bytes came (engine/runtime/certainty.py)
        self.fanned_out = 0  # messages into queues, by publishes that go to many, since the read began


class Channel:
    """An open channel (the connection makes it when channel.open comes)."""

    def __init__(self, shared: ConnectionState, output: ChannelOutput) -> None:
        self.shared = shared
        self.broker = shared.broker
        self.session = shared.session
        self.actor = shared.session.actor
        self.output = output
        self.number = output.number
        self.ready = True
        self.closing = False
        self.publishings: dict[bytes, Publishing] = {}
        self.parsed: dict[bytes, Parsed] = {}
        self.publishing: Publishing | None = None
        self.transaction: Transaction | None = None
        self.size = -1
        self.properties = b""
        self.gathered = bytearray()  # of the body, while more is to come
        self.confirming = False
        self.tally = Tally()
        self.confirms = Confirmations(output, shared.confirming, self.tally)
        self.settlement = Settlement(shared.session.actor)
        self.looks = Looks(self.settlement)
        self.settling = False  # listed in shared.settling
        self.consumers: dict[str, Consumer] = {}
        self.gone: list[Consumer] = []  # cancelled by the broker
        self.prefetch = 0
        self.global_prefetch = 0
        self.reply_queue = ""  # of the consumer of direct replies, its tag
        self.reply_tag = ""
        self.last_queue = ""  # most recently declared: what an empty name means
        self.status = ChannelStatus(self.number, self.tally, self.settlement)
        self.session.channels[self.number] = self.status

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, publishing: Publishing, raw: bytes, body: bytes) -> None:
        """A complete basic.publish (hot). PutOff: `publish_later`, before anything else of this connection."""
        if publishing.version != self.broker.router.version:
            self.resolve(publishing, raw, body)
        parsed = self.parsed.get(raw)
        if parsed is None:
            parsed = self.parse_properties(raw)
        if self.settlement.pending:
            self.settlement.flush()
        tally = self.tally
        if len(body) != tally.size:
            tally.another_size(len(body))
        route = publishing.route
        partition = publishing.partition
        if route is None or partition is None or parsed.by_hand:
            self.publish_anywhere(publishing, parsed, body)
            return
        tally.received += 1
        tally.routed += publishing.queues
        offset = partition.publish(
            self.actor,
            Published(
                route, parsed.raw, parsed.expiration_ms, parsed.priority, parsed.persistent, None, None, body, len(body)
            ),
        )
        if self.confirming:
            tally.received_confirm += 1
            confirms = self.confirms
            sequence = confirms.published + 1
            confirms.published = sequence
            if publishing.prompt and (publishing.prompt == ALWAYS or not parsed.persistent):
                partition.await_folded(offset, confirms, sequence)
            else:
                partition.await_durable(offset, confirms, sequence)

    def publish_anywhere(self, publishing: Publishing, parsed: Parsed, body: bytes) -> None:
        """A publish to many queues, to several partitions, to none, one that is routed by its content or to carbon
        copies, a mandatory one on a log that is read back, one in a vhost that is traced, or one whose body is
        encrypted."""
        destinations = self.destinations(publishing, parsed)
        logged, encryption = body, None
        if not destinations:
            self.make_sure(publishing, parsed.raw, body)
        if destinations or publishing.traced:
            try:
                logged, encryption = self.logged(parsed, body)
            except NoKeyYet as missing:
                make_key = partial(self.broker.subjects.make_key, missing.subject)
                raise PutOff(make_key, publishing, parsed.raw, body) from None
        tally = self.tally
        tally.received += 1
        routed = tally.routed
        sequence = 0
        if self.confirming:
            tally.received_confirm += 1
            sequence = self.confirms.published + 1
            self.confirms.published = sequence
        if publishing.traced:
            self.trace(publishing, parsed, logged, encryption, destinations)
        if not destinations:
            self.unroutable(publishing, parsed.raw, body)
            if sequence:
                self.confirms.confirm(sequence, False)
            return
        if sequence and len(destinations) > 1:
            self.confirms.expect(sequence, len(destinations))
        placing = self.placing(publishing, destinations, parsed.raw, body)
        for destination in destinations:
            mark = self.publish_to(destination, parsed, logged, encryption, placing)
            if sequence:
                found = prompt(destination)
                if found == ALWAYS or (found == TRANSIENT and not parsed.persistent):
                    destination.partition.await_folded(mark, self.confirms, sequence)
                else:
                    destination.partition.await_durable(mark, self.confirms, sequence)
        if tally.routed - routed >= FAN_OUT:
            self.shared.fanned_out += tally.routed - routed
        if publishing.returned:
            self.return_message(publishing, parsed.raw, body)

    def trace(
        self,
        publishing: Publishing,
        parsed: Parsed,
        body: bytes,
        encryption: Encryption | None,
        destinations: tuple[Destination, ...],
    ) -> None:
        queues = [queue for destination in destinations for queue in destination.route.queues]
        self.broker.firehose.published(
            self.session, self.number, publishing.exchange, publishing.routing_key, parsed.raw, body, encryption, queues
        )

    async def publish_later(self, put_off: PutOff) -> None:
        """What was put off, once it need not wait any more. ResourceError (506) when its subject can't be given a
        key."""
        while True:
            await put_off.wait()
            if self.closing:  # with its connection: nothing may follow its end
                return
            try:
                self.take(put_off.publishing, put_off.properties, put_off.body)
            except PutOff as again:  # there is something else to wait for; or its key was erased just now
                put_off = again
                continue
            return

    def resolve(self, publishing: Publishing, properties: bytes, body: bytes) -> None:
        """As `Publishing.resolve`. PutOff: what it is refused for may be known only to another node."""
        try:
            publishing.resolve(self.broker, self.session)
        except REFUSALS:
            self.make_sure(publishing, properties, body)
            raise

    def make_sure(self, publishing: Publishing, properties: bytes, body: bytes) -> None:
        """There is nowhere for it to go. PutOff, unless that was so when it came."""
        certainty = self.broker.certainty
        if not certainty.covers(self.shared.heard):
            raise PutOff(certainty.wait, publishing, properties, body)

    def destinations(self, publishing: Publishing, parsed: Parsed) -> tuple[Destination, ...]:
        if publishing.needs_content or parsed.sender_selected:
            return route_by_content(publishing, parsed, self.broker, self.session)
        return publishing.destinations

    def unroutable(self, publishing: Publishing, properties: bytes, body: bytes) -> None:
        if publishing.mandatory:
            self.tally.unroutable_returned += 1
            self.return_message(publishing, properties, body)
        else:
            self.tally.unroutable_dropped += 1

    def placing(
        self, publishing: Publishing, destinations: tuple[Destination, ...], properties: bytes, body: bytes
    ) -> Placing | None:
        """For a mandatory publish whose queues may be gone when it gets there."""
        if not publishing.placed:
            return None

        def nowhere() -> None:
            if not self.closing:
                self.unroutable(publishing, properties, body)

        return Placing(len(destinations), nowhere)

    def logged(self, parsed: Parsed, body: bytes) -> tuple[bytes, Encryption | None]:
        """The body as it gets into the log. When it is to be encrypted: NoKeyYet, ResourceError (506)."""
        return (body, None) if parsed.subject is None else self.broker.subjects.sealed(parsed.subject, body)

    def publish_to(
        self, to: Destination, parsed: Parsed, body: bytes, encryption: Encryption | None, placing: Placing | None
    ) -> int:
        """The mark of the message in the partition."""
        self.tally.routed += len(to.route.queues)
        published = message(to, parsed, body, encryption)
        if placing is not None:
            return placing.publish(to, self.actor, published)
        return to.partition.publish(self.actor, published)

    def parse_properties(self, raw: bytes) -> Parsed:
        """MalformedFrame (502), PreconditionFailed (406)."""
        try:
            parsed = parse(raw)
            if parsed.reply_to == PSEUDO_QUEUE:
                if not self.reply_queue:
                    raise PreconditionFailed("fast reply consumer does not exist")
                parsed = parse(with_reply_to(parsed, self.reply_queue))
            self.broker.subjects.look_at(parsed)
        except PropertyError as error:
            raise refusal(error) from None
        claimed, user = parsed.user_id, self.session.user
        if claimed is not None and claimed != user:
            if "impersonator" not in self.broker.topology.users[user].tags:
                raise PreconditionFailed(f"user_id property set to '{claimed}' but authenticated user was '{user}'")
        elif len(raw) <= MEMO_BYTES:  # an impersonator may lose that tag
            if len(self.parsed) >= MEMO_SIZE:
                self.parsed.clear()
            self.parsed[raw] = parsed
        return parsed

    def return_message(self, publishing: Publishing, properties: bytes, body: bytes) -> None:
        frame = methods.encode(
            self.number,
            "Basic.Return",
            reply_code=NO_ROUTE,
            reply_text="NO_ROUTE",
            exchange=publishing.exchange,
            routing_key=publishing.routing_key,
        )
        content(self.output, frame, properties, body)

    def begin_publish(self, payload: bytes) -> None:
        """A method frame of basic.publish whose content did not come with it."""
        self.publishing = self.publishings.get(payload) or self.learn(payload)
        self.size = -1
        self.ready = False

    def learn(self, payload: bytes) -> Publishing:
        """Read the fields of a method frame that is not in the memo."""
        publishing = decode_publish(payload)
        if len(self.publishings) >= MEMO_SIZE:
            self.publishings.clear()
        self.publishings[payload] = publishing
        return publishing

    def header(self, class_id: int, weight: int, size: int, properties: bytes) -> None:
        """A content header. The size is judged here, so that no body is gathered in vain."""
        publishing = self.expect_content()
        if self.size >= 0:
            raise self.out_of_place()
        if weight != 0:
            raise self.out_of_place()
        if class_id != 60:
            raise UnexpectedFrame(f"expected content header for class 60, got one for class {class_id} instead")
        limit = self.broker.config.max_message_size
        if size > limit:
            configured = "" if limit == MAX_MESSAGE_SIZE else "configured "
            raise PreconditionFailed(f"message size {size} is larger than {configured}max size {limit}")
        if size == 0:
            self.end_content()
            self.take(publishing, properties, b"")
            return
        self.size = size
        self.properties = properties

    def body(self, piece: bytes) -> None:
        publishing = self.expect_content()
        if self.size < 0:
            raise self.out_of_place()
        received = len(self.gathered) + len(piece)
        if received > self.size:
            raise FrameError(f"content body of {received} bytes where {self.size} were announced")
        body = piece
        if received < self.size or self.gathered:
            self.gathered += piece  # one buffer: a list of frames of a byte each would be many times their size
            self.broker.memory.take(Kind.BODY, len(piece))
            if received < self.size:
                return
            body = bytes(self.gathered)
        self.end_content()
        self.take(publishing, self.properties, body)

    def take(self, publishing: Publishing, properties: bytes, body: bytes) -> None:
        """A publish that came frame by frame."""
        if self.transaction is None:
            self.publish(publishing, properties, body)
        else:
            self.transaction.publish(publishing, properties, body)

    def forget_gathered(self) -> None:
        self.broker.memory.give_back(Kind.BODY, len(self.gathered))
        self.gathered = bytearray()

    @property
    def kept_bytes(self) -> int:
        """Of publishes that have not come whole, or wait for tx.commit."""
        return len(self.gathered) + (0 if self.transaction is None else self.transaction.size)

    def expect_content(self) -> Publishing:
        if self.publishing is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        return self.publishing

    def out_of_place(self) -> UnexpectedFrame:
        """Content is under way, and something else came."""
        if self.size < 0:
            return UnexpectedFrame("expected content header for class 60, got non content header frame instead")
        return UnexpectedFrame("expected content body, got non content body frame instead")

    def end_content(self) -> None:
        self.publishing = None
        self.size = -1
        if self.gathered:
            self.forget_gathered()
        self.ready = self.transaction is None

    # -- settling -----------------------------------------------------------------------------------------------------

    def ack(self, tag: int, multiple: bool) -> None:
        """basic.ack (hot)."""
        if not self.settling:
            self.settling = True
            self.shared.settling.append(self)
        self.settlement.settle(tag, multiple, None)

    def settle(self, tag: int, multiple: bool, verdict: Verdict) -> None:
        """Any other settlement, or one that does not come by the hot path."""
        if self.transaction is not None:
            self.transaction.settle(tag, multiple, verdict)
            return
        if not self.settling:
            self.settling = True
            self.shared.settling.append(self)
        self.settlement.settle(tag, multiple, verdict)

    def end_of_read(self) -> None:
        """The socket read is done: log what was settled in it."""
        self.settling = False
        self.settlement.flush()

    def reply_to(self, queue: str, tag: str) -> None:
        """Direct replies come to this queue from now on ("": there are none). Properties that name it are made anew."""
        self.reply_queue, self.reply_tag = queue, tag
        self.parsed.clear()

    def forget_gone(self) -> None:
        """Consumers that the broker cancelled: their tags are free again."""
        for consumer in self.gone:
            if self.consumers.get(consumer.tag) is consumer:
                del self.consumers[consumer.tag]
        self.gone.clear()

    def shut(self) -> None:
        """The channel closes: what was settled is logged, what was due is confirmed, consumers get nothing more."""
        self.settlement.flush()
        self.settlement.closed = True
        self.confirms.flush()
        self.confirms.closed = True
        self.tally.settle(self.broker.counters)
        for consumer in self.consumers.values():
            consumer.detached = True
        self.closing = True
        self.ready = False
        self.publishing = None
        self.forget_gathered()
        if self.transaction is not None:
            self.transaction.forget()
