"""Connections of clients to nodes: what each publishes, and what is answered; what each consumer is given."""

from dataclasses import dataclass, field

from rewindmq.engine.runtime.partition import Partition
from rewindmq.engine.runtime.sessions import Session
from rewindmq.projections.machine.data.effects import Deliver, FetchReply
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import (
    Published,
)
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
        self.outstanding: list[int] = []
        self.rows: list[EffectRow] = []
        self.bodies: list[tuple[int, bytes]] = []
        self.partition: Partition | None = None
        self.queue: Queue | None = None
        self.consumer_id = 0

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

    def deliver(self, partition: Partition, effect: Deliver, message: Published) -> None:
        self._given(effect, message)

    def fetched(self, partition: Partition, effect: FetchReply, message: Published | None) -> None:
        assert (message is None) == (effect.message_id < 0)
        self._given(effect, message)

    def _given(self, effect: Deliver | FetchReply, message: Published | None) -> None:
        self.rows.append(received_row(effect))
        if message is not None:
            self.bodies.append((effect.message_id, message.body))
            if not effect.final:
                self.outstanding.append(effect.message_id)

    def cancelled(self) -> None:
        self.attached = False
