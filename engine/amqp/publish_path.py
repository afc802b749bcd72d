"""The publishes of one channel: judged, routed, logged, confirmed and returned.

`Channel` adds how a publish arrives (frame by frame) and all that is not a publish; a transaction (transactions.py)
takes the path step by step, because it logs at commit.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from rewindmq.engine.amqp import methods
from rewindmq.engine.amqp.basic_publish import (
    EARLY_ALWAYS,
    EARLY_IF_TRANSIENT,
    FAN_OUT,
    BasicPublish,
    PublishPostponed,
    PublishProperties,
    RouteCheck,
    held_name,
    homes_of,
    message,
    reaches_none,
    route_by_content,
)
from rewindmq.engine.amqp.confirms import Confirmations
from rewindmq.engine.amqp.consumer import AmqpConsumer, content
from rewindmq.engine.amqp.output import ChannelOutput
from rewindmq.engine.amqp.settlement import Settlement
from rewindmq.engine.broker import direct_reply
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.erasure.encryption import NoKeyYet
from rewindmq.engine.errors import PreconditionFailed, refusal
from rewindmq.engine.host.memory import MemoryKind
from rewindmq.engine.partition.certainty import REFUSALS
from rewindmq.engine.partition.counters import Tally
from rewindmq.engine.partition.flow_control import no_room
from rewindmq.engine.partition.sessions import ChannelStatus, Session
from rewindmq.engine.routing.portions import RouteTakesLong, Search, in_turns
from rewindmq.engine.routing.router import Destination
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.properties import parse, with_reply_to
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Encryption, Route

# Distinct method frames and content properties that a channel remembers; beyond that it starts over.
MEMO_SIZE: Final = 512
MEMO_QUEUES: Final = 100_000  # in the routes of all remembered publishes together
MEMO_BYTES: Final = 512  # longer properties are seldom seen twice

# A read may hold a thousand publishes that go to many queues each. This number of messages into queues ends the
# connection's turn.
FANNED_OUT: Final = 2_000

NO_ROUTE: Final = 312
PSEUDO_QUEUE: Final = direct_reply.PSEUDO_QUEUE.encode()

T = TypeVar("T")


def plain_message(route: Route, properties: PublishProperties, body: bytes) -> Published:
    """Return a message that is logged as it came (hot)."""
    return Published(  # by position: keywords take twice as long here (schemas/events.py)
        route,
        properties.raw,
        properties.expiration_ms,
        properties.priority,
        properties.persistent,
        None,
        None,
        body,
        len(body),
    )


class SharedState:
    """State that the channels of one connection share. `yield_turn`: ends the connection's turn in the loop. `hold`:
    called with the reason when a message begins to wait for room on the disk, and with None when the wait ends."""

    def __init__(
        self,
        broker: Broker,
        session: Session,
        cancel_notify: bool,
        yield_turn: Callable[[], None],
        hold: Callable[[str | None], None],
    ) -> None:
        self.broker = broker
        self.session = session
        self.cancel_notify = cancel_notify
        self.yield_turn = yield_turn
        self.hold = hold
        self.confirming: list[Confirmations] = []  # channels with something to confirm
        self.creditors: list[AmqpConsumer] = []  # consumers that want credit
        self.settling: list[PublishPath] = []  # channels whose acks gather until the end of the read
        self.heard = 0  # `Certainty.begun` when the last bytes came (engine/partition/certainty.py)
        self.fanned_out = 0  # messages into queues, by publishes that go to many, since the read began


class PublishPath:
    """The publishing side of a channel; the end of the channel closes it."""

    def __init__(self, shared: SharedState, output: ChannelOutput) -> None:
        self.shared = shared
        self.broker = shared.broker
        self.router = shared.broker.router
        self.session = shared.session
        self.actor = shared.session.actor
        self.counts = shared.session.publishes
        self.output = output
        self.number = output.number
        self.closing = False
        self.publish_memo: dict[bytes, BasicPublish] = {}  # by method frame
        self.parsed: dict[bytes, PublishProperties] = {}  # by the properties' bytes
        self.waiting_bytes = 0  # of publishes that came whole, and wait
        # The routes of the postponed publish that took long: by its routing key alone (True), and by all of it.
        self.found: dict[bool, tuple[Destination, ...]] = {}
        self.end: asyncio.Future[None] | None = None  # of the channel, while a publish waits for room
        self.confirming = False
        self.tally = Tally()
        self.confirms = Confirmations(output, shared.confirming, self.tally)
        self.settlement = Settlement(shared.session.actor)
        self.settling = False  # listed in shared.settling
        self.reply_queue = ""  # of the consumer of direct replies, its tag
        self.status = ChannelStatus(self.number, self.tally, self.settlement)
        self.session.channels[self.number] = self.status

    def publish(self, publish: BasicPublish, raw: bytes, body: bytes) -> None:
        """Take a complete basic.publish (hot). `raw`: its properties. PublishPostponed: nothing else of this connection
        may be done before `publish_later` has ended."""
        if publish.version != self.router.version:
            self.resolve(publish, raw, body)
        properties = self.parsed.get(raw)
        if properties is None:
            properties = self.parse_properties(raw)
        if self.settlement.pending:
            self.settlement.flush()
        tally = self.tally
        if len(body) != tally.size:
            tally.another_size(len(body))
        route = publish.route
        partition = publish.partition
        if route is None or partition is None or not properties.plain:
            self.publish_anywhere(publish, properties, body)
            return
        tally.received += 1
        if publish.queues:
            tally.routed += publish.queues
        else:
            self.count_unrouted(publish, 1)
        offset = partition.publish(self.actor, plain_message(route, properties, body))
        self.counts.logged(partition)
        if self.confirming:
            tally.received_confirm += 1
            confirms = self.confirms
            sequence = confirms.published + 1
            confirms.published = sequence
            if publish.early_confirm and (publish.early_confirm == EARLY_ALWAYS or not properties.persistent):
                partition.await_folded(offset, confirms, sequence)
            else:
                partition.await_durable(offset, confirms, sequence)

    def takes_runs(self, publish: BasicPublish, raw: bytes) -> bool:
        """Return True if `publish_run` may take publishes of this kind now, all at once (hot)."""
        partition, properties = publish.partition, self.parsed.get(raw)
        return (
            partition is not None
            and partition.takes_runs
            and properties is not None
            and properties.plain
            and publish.route is not None
            and publish.version == self.router.version
        )

    def publish_run(self, publish: BasicPublish, raw: bytes, bodies: list[bytes]) -> None:
        """Take publishes that differ in their bodies alone (hot). `takes_runs` is true of them."""
        properties, route, partition, count = self.parsed[raw], publish.route, publish.partition, len(bodies)
        assert route is not None
        assert partition is not None
        if self.settlement.pending:
            self.settlement.flush()
        tally = self.tally
        for body in bodies:
            if len(body) != tally.size:
                tally.another_size(len(body))
            tally.received += 1
        if publish.queues:
            tally.routed += count * publish.queues
        else:
            self.count_unrouted(publish, count)
        before = partition.append_position
        try:
            last = partition.publish_run(self.actor, [plain_message(route, properties, body) for body in bodies])
        except PreconditionFailed:  # one is too large for the log
            done = partition.append_position - before
            self.counts.logged(partition, done)
            self.counts.after_error += count - done - 1
            raise
        self.counts.logged(partition, count)
        if self.confirming:
            tally.received_confirm += count
            confirms = self.confirms
            first = confirms.published + 1
            confirms.published += count
            if publish.early_confirm and (publish.early_confirm == EARLY_ALWAYS or not properties.persistent):
                for at in range(count):
                    partition.await_folded(last - count + 1 + at, confirms, first + at)
            else:
                partition.await_run_durable(last, confirms, first, count)

    def publish_anywhere(self, publish: BasicPublish, properties: PublishProperties, body: bytes) -> None:
        """Take a publish that the hot path does not: it goes to many queues, to several partitions or to none; it is
        routed by its content or to carbon copies; it is mandatory on a log that is read back; its vhost is traced; or
        its body is encrypted."""
        destinations = self.destinations(publish, properties, body)
        unroutable = reaches_none(destinations)
        logged, encryption = body, None
        if self.broker.homes.names_wait:
            self.require_free(publish, destinations, properties, body)
        self.require_folds(publish, destinations, properties.raw, body)
        if unroutable:
            self.require_certainty(publish, properties.raw, body)
        if destinations or publish.traced:
            try:
                logged, encryption = self.broker.subjects.logged(properties.subject, body)
            except NoKeyYet as missing:
                make_key = partial(self.broker.subjects.make_key, missing.subject)
                raise PublishPostponed(make_key, publish, properties.raw, body) from None
        tally = self.tally
        tally.received += 1
        routed = tally.routed
        sequence = 0
        if self.confirming:
            tally.received_confirm += 1
            sequence = self.confirms.published + 1
            self.confirms.published = sequence
        if publish.traced:
            self.trace(publish, properties, logged, encryption, destinations)
        if unroutable:
            self.unroutable(publish, properties.raw, body, bool(destinations))
        if not destinations:
            self.counts.grouped += 1
            if sequence:
                self.confirms.confirm(sequence, False)
            return
        if sequence and len(destinations) > 1:
            self.confirms.expect(sequence, len(destinations))
        check = self.route_check(publish, destinations, properties.raw, body)
        for destination in destinations:
            position = self.publish_to(destination, properties, logged, encryption, check)
            if sequence:
                found = publish.prompt_of(destination)
                if found == EARLY_ALWAYS or (found == EARLY_IF_TRANSIENT and not properties.persistent):
                    destination.partition.await_folded(position, self.confirms, sequence)
                else:
                    destination.partition.await_durable(position, self.confirms, sequence)
        self.counts.copies -= 1  # one of them is the publish itself
        self.count_fan_out(tally.routed - routed)
        if publish.returned and not unroutable:
            self.return_message(publish, properties.raw, body)

    def count_fan_out(self, queues: int) -> None:
        """Count the queues that a message went to, and end the connection's turn when that was enough work for one."""
        if queues >= FAN_OUT:
            self.shared.fanned_out += queues
            if self.shared.fanned_out >= FANNED_OUT:
                self.shared.yield_turn()

    def trace(
        self,
        publish: BasicPublish,
        properties: PublishProperties,
        body: bytes,
        encryption: Encryption | None,
        destinations: tuple[Destination, ...],
    ) -> None:
        """Give the firehose a copy. `body`: as it is logged."""
        queues = [queue for destination in destinations for queue in destination.route.queues]
        self.broker.firehose.published(
            self.session, self.number, publish.exchange, publish.routing_key, properties.raw, body, encryption, queues
        )

    async def find_in_turns(self, search: Search[tuple[Destination, ...]], by_key: bool) -> None:
        """Find a route of the postponed publish in slices, unless the channel is closed meanwhile."""
        self.found[by_key] = await in_turns(search, self.router.share, lambda: not self.closing) or ()

    def resolve(self, publish: BasicPublish, raw: bytes, body: bytes) -> None:
        """Find the publish's route again. Raises as `BasicPublish.resolve`. PublishPostponed: another node may know
        more, or the route takes long."""
        try:
            publish.resolve(self.broker, self.session, self.found.get(True))
        except RouteTakesLong as long:
            raise PublishPostponed(partial(self.find_in_turns, long.search, True), publish, raw, body) from None
        except REFUSALS:
            self.require_certainty(publish, raw, body)
            raise
        queues = sum(len(to.route.queues) for to in publish.destinations)
        if len(self.publish_memo) * queues > MEMO_QUEUES:
            self.publish_memo.clear()
        if self.broker.homes.names_wait:
            properties = self.parsed.get(raw) or self.parse_properties(raw)
            self.require_free(publish, publish.destinations, properties, body)
        self.require_folds(publish, publish.destinations, raw, body)

    def require_free(
        self, publish: BasicPublish, destinations: tuple[Destination, ...], properties: PublishProperties, body: bytes
    ) -> None:
        """Raise PublishPostponed if a queue of the publish is on its way to another partition."""
        homes, vhost = self.broker.homes, self.session.vhost
        held = held_name(publish, destinations, properties.parsed, self.broker, vhost)
        if held is not None:
            publish.version = -1  # its route is found again in any case
            wait = partial(homes.wait_until_free, vhost, held, lambda: self.closing, self.session.session_id)
            raise PublishPostponed(wait, publish, properties.raw, body)

    def require_folds(
        self, publish: BasicPublish, destinations: tuple[Destination, ...], raw: bytes, body: bytes
    ) -> None:
        """Raise PublishPostponed if only the fold of a partition has the client's answer, and this node has paused
        it."""
        for to in destinations:
            checked = publish.route_checked and to.route.unrouted is None
            if not to.partition.current and (checked or to.partition.needs_fold(to.route)):
                raise PublishPostponed(to.partition.enter, publish, raw, body)

    def require_certainty(self, publish: BasicPublish, raw: bytes, body: bytes) -> None:
        """Raise PublishPostponed unless this node is sure that the publish goes nowhere: it has read all that was in
        the log when the publish came, and folds the partitions that the queues would be in."""
        if publish.exchange == "":
            properties = self.parsed.get(raw) or self.parse_properties(raw)
            for home in homes_of(publish, properties.parsed, self.broker, self.session.vhost):
                if not home.current:
                    raise PublishPostponed(home.enter, publish, raw, body)
        certainty = self.broker.certainty
        if not certainty.covers(self.shared.heard):
            raise PublishPostponed(certainty.wait, publish, raw, body)

    def destinations(
        self, publish: BasicPublish, properties: PublishProperties, body: bytes
    ) -> tuple[Destination, ...]:
        """Return the partitions and queues that a message goes to. PublishPostponed: the route takes long."""
        if not (publish.needs_content or properties.parsed.sender_selected):
            return publish.destinations
        if False in self.found:
            return self.router.returned(self.found[False]) if publish.mandatory else self.found[False]
        try:
            return route_by_content(publish, properties.parsed, self.broker, self.session)
        except RouteTakesLong as long:
            wait = partial(self.find_in_turns, long.search, False)
            raise PublishPostponed(wait, publish, properties.raw, body) from None

    def count_unrouted(self, publish: BasicPublish, count: int) -> None:
        """Count publishes of the hot path that no queue takes. Each is an event."""
        self.tally.unroutable_dropped += count
        self.broker.exchanges.count_unrouted(self.session.vhost, publish.exchange, count)

    def unroutable(self, publish: BasicPublish, raw: bytes, body: bytes, logged: bool) -> None:
        """Return a message that goes to no queue, or drop it. `logged`: it is an event of its own."""
        exchanges, vhost = self.broker.exchanges, self.session.vhost
        exchanges.count_unrouted(vhost, publish.exchange, 1)
        if not logged:
            exchanges.group_unrouted(self.actor, vhost, publish.exchange, publish.routing_key, raw)
        if publish.mandatory:
            self.tally.unroutable_returned += 1
            self.return_message(publish, raw, body)
        else:
            self.tally.unroutable_dropped += 1

    def route_check(
        self, publish: BasicPublish, destinations: tuple[Destination, ...], raw: bytes, body: bytes
    ) -> RouteCheck | None:
        """Return a check for a mandatory publish whose queues may be gone when it gets there; None: it needs none."""
        if not publish.route_checked or reaches_none(destinations):
            return None

        def nowhere() -> None:
            if not self.closing:
                self.unroutable(publish, raw, body, logged=True)

        return RouteCheck(len(destinations), nowhere)

    def publish_to(
        self,
        to: Destination,
        properties: PublishProperties,
        body: bytes,
        encryption: Encryption | None,
        check: RouteCheck | None,
    ) -> int:
        """Append the message to one partition, and return its append position there. The caller reduces `copies` by 1
        when it is in all partitions."""
        self.tally.routed += len(to.route.queues)
        published = message(to, properties.parsed, body, encryption)
        if check is not None:
            position = check.publish(to, self.actor, published)
        else:
            position = to.partition.publish(self.actor, published)
        self.counts.logged_copy(to.partition)
        return position

    def parse_properties(self, raw: bytes) -> PublishProperties:
        """Judge and remember the properties of a publish. MalformedFrame (502), PreconditionFailed (406)."""
        subjects = self.broker.subjects
        try:
            parsed = parse(raw)
            if parsed.reply_to == PSEUDO_QUEUE:
                if not self.reply_queue:
                    raise PreconditionFailed("fast reply consumer does not exist")
                parsed = parse(with_reply_to(parsed, self.reply_queue))
            properties = PublishProperties(parsed, subjects.subject_of(parsed), subjects.every_body)
        except PropertyError as error:
            raise refusal(error) from None
        claimed, user = parsed.user_id, self.session.user
        if claimed is not None and claimed != user:
            if "impersonator" not in self.broker.access.control.tags(self.session):
                raise PreconditionFailed(f"user_id property set to '{claimed}' but authenticated user was '{user}'")
        elif len(raw) <= MEMO_BYTES:  # an impersonator may lose that tag
            if len(self.parsed) >= MEMO_SIZE:
                self.parsed.clear()
            self.parsed[raw] = properties
        return properties

    def return_message(self, publish: BasicPublish, raw: bytes, body: bytes) -> None:
        """Send basic.return."""
        frame = methods.encode(
            self.number,
            "Basic.Return",
            reply_code=NO_ROUTE,
            reply_text="NO_ROUTE",
            exchange=publish.exchange,
            routing_key=publish.routing_key,
        )
        content(self.output, frame, raw, body)

    async def wait_keeping(self, size: int, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait for something, and count `size` bytes of bodies as held in memory meanwhile."""
        self.waiting_bytes += size
        self.broker.host.memory.take(MemoryKind.BODY, size)
        try:
            return await wait()
        finally:
            self.broker.host.memory.give_back(MemoryKind.BODY, size)
            self.waiting_bytes -= size

    async def wait_for_room(self, size: int) -> bool:
        """Wait for the publish's turn, and until the log has room for `size` bytes, or until the channel is closed.
        Returns whether it waited."""
        flow = self.broker.keeper.flow
        has_turn = flow.has_turn(size)
        if has_turn and flow.has_room(size):
            return False
        self.end = asyncio.get_running_loop().create_future()
        try:
            if not has_turn:
                await flow.turn(size, self.end)
            if has_turn or not (self.end.done() or flow.has_room(size)):
                self.shared.hold(no_room(size))
                await flow.room(size, self.end)
        finally:
            self.end = None
            self.shared.hold(None)
        return True

    def end_of_read(self) -> None:
        """Log what was settled in the socket read, which is done."""
        self.settling = False
        self.settlement.flush()
