"""Connections of clients to nodes: what each publishes, and what is answered; what each consumer is given."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session, Subscription
from rewindmq.projections.machine.data.effects import Deliver, FetchReply
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import Credited, Published
from tests.simulation.nodes_world import Life
from tests.simulation.witness import EffectRow, received_row
from tests.support.consumers import NeverCongested


@dataclass(eq=False)
class Client:
    life: Life
    session: Session
    asking: bool = False  # it waits for an answer
    closed: bool = False

    def ends(self) -> None:
        """Its connection is gone: what is still said to it nobody hears."""
        if not self.closed:
            self.closed = True
            assert self.life.broker is not None
            self.life.broker.sessions.close(self.session)


@dataclass(eq=False)
class Publish:
    body: bytes
    client: Client
    at_ms: int = 0  # when it was asked for, by the log's clock
    places: list[int] = field(default_factory=list)  # partitions
    answers: dict[int, bool] = field(default_factory=dict)  # by place: was it refused?


class Answer:
    """One who waits for the confirm of a publish in one place."""

    def __init__(self, publish: Publish, place: int) -> None:
        self.publish = publish
        self.place = place

    def confirm(self, sequence: int, refused: bool) -> None:
        assert self.place not in self.publish.answers, "confirmed twice"
        if not self.publish.client.closed and not self.publish.client.life.ended:
            self.publish.answers[self.place] = refused


class RunAnswer:
    """One who waits for the confirms of publishes that were logged together, in one place."""

    def __init__(self, publishes: Sequence[Publish], place: int) -> None:
        self.answers = [Answer(publish, place) for publish in publishes]

    def confirm(self, sequence: int, refused: bool) -> None:
        self.answers[sequence].confirm(sequence, refused)

    def confirm_run(self, first: int, count: int) -> None:
        for sequence in range(first, first + count):
            self.confirm(sequence, False)


class Taker(NeverCongested):
    """A consumer, or one basic.get: what it was given, and what of that it has not settled yet."""

    def __init__(self, client: Client, channel: int, windowed: bool) -> None:
        self.client = client
        self.channel = channel
        self.windowed = windowed
        self.attached = False
        self.consumes = False  # it is no basic.get
        self.prefetch = 0
        self.credited_at = -1  # the append position of its last Credited
        self.cut = False  # it may have missed the last of it
        self.leaves = False  # its queue moves: it asks for nothing more
        self.told = False  # that it is cancelled
        self.successor: Taker | None = None  # in the partition to which its queue has moved
        self.outstanding: list[int] = []
        self.rows: list[EffectRow] = []
        self.bodies: list[tuple[int, bytes]] = []
        self.partition: Partition | None = None
        self.queue: Queue | None = None
        self.consumer_id = 0
        self.tag = ""

    def belongs(self, partition: Partition, queue: Queue, consumer_id: int) -> None:
        self.partition, self.queue, self.consumer_id = partition, queue, consumer_id
        self.attached = True

    @property
    def may_settle(self) -> bool:
        return not self.client.closed and not self.client.life.ended and self.queue is not None and not self.cut

    @property
    def queue_is_there(self) -> bool:
        assert self.partition is not None
        assert self.queue is not None
        return self.partition.machine.queue(self.queue.vhost, self.queue.name) is self.queue

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        if message is None:
            message = partition.message(effect.queue.queue_id, message_id)
        self._given(effect, message_id, message)

    def fetched(self, partition: Partition, effect: FetchReply, message: Published | None) -> None:
        assert (message is None) == (effect.message_id < 0)
        self._given(effect, effect.message_id, message)

    def _given(self, effect: Deliver | FetchReply, message_id: int, message: Published | None) -> None:
        self.rows.append(received_row(effect, message_id))
        if message is not None:
            self.bodies.append((message_id, message.body))
            if not effect.final:
                self.outstanding.append(message_id)

    def cancelled(self) -> None:
        self.attached = False
        self.told = True


class Following:
    """A consumer whose queue may move, as its client has it: another taker goes on, and the first keeps what it holds.

    Implements `rewindmq.engine.partition.sessions.MovableConsumer`. `takers` is where the other one is written."""

    def __init__(self, takers: list[Taker], taker: Taker, settings: Subscription) -> None:
        self.takers = takers
        self.target = taker
        self.subscription = replace(settings, movable=self)

    def attached(self, partition: Partition, queue: Queue, consumer_id: int) -> None:
        self.target.belongs(partition, queue, consumer_id)

    def leave(self) -> None:
        self.target.leaves = True

    def give_back(self) -> None:
        """As engine/amqp/lookahead.py does it. What the taker has beyond its prefetch is taken as not sent."""
        taker = self.target
        queue, partition = taker.queue, taker.partition
        assert queue is not None
        assert partition is not None
        holder = queue.holders.get(taker.consumer_id)
        if holder is None or not holder.lookahead or not taker.may_settle or not taker.queue_is_there:
            return
        unsent = taker.outstanding[holder.prefetch :]
        if unsent:
            del taker.outstanding[holder.prefetch :]
            event = Credited(queue.vhost, queue.name, taker.consumer_id, -1 - unsent[0])
            partition.append(taker.client.session.actor, event)

    def cancelled(self) -> None:
        self.target.cancelled()

    def successor(self) -> Subscription | None:
        taker = self.target
        if not taker.attached or not taker.may_settle:
            return None
        taker.attached = False
        taker.successor = other = Taker(taker.client, taker.channel, taker.windowed)
        other.consumes, other.prefetch, other.tag = True, taker.prefetch, taker.tag
        self.takers.append(other)
        return Following(self.takers, other, self.subscription).subscription
