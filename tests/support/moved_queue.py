"""A history in which a queue moves to a partition that came later: `orders`, from one of two partitions to one of four.

moved = write_moved(data)      # its fields are ids of messages and times; the log is closed

declared, bound        three messages, `first` is acked          mark:before
partitions added, the placement changes
the queue moves        `second` and `third` go along, `held` stays with its consumer
after the move         `new` is published, `second` is acked, `third` is purged with it    mark:after

back = write_back(data)        # a queue that goes from queues-0 to queues-2, back to queues-0, and to queues-4
"""

from dataclasses import dataclass, field
from pathlib import Path

from rewindmq.projections.machine.data.effects import DeadLetter, Effect
from rewindmq.projections.machine.events.relocation import moved_from
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.placement import Placement
from rewindmq.schemas.events import (
    Acked,
    DeadLettersForwarded,
    Event,
    MetadataEvent,
    Published,
    QueueDeleted,
    QueueDrained,
    Tick,
)
from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared
from rewindmq.schemas.placement_events import (
    NamesHeld,
    PartitionsAdded,
    PlacementChanged,
    PlacementEvent,
    QueueMoveBegan,
    QueueMoveEnded,
    QueueName,
    QueuesStay,
)
from rewindmq.schemas.values import BROKER, Actor, Origin, Route
from tests.support.events_for_tests import declared
from tests.support.letters import message_of, one_by_one
from tests.support.spark.histories import ANN, Recorder

BEFORE, AFTER = 2, 4
QUEUE = next(f"orders{n}" for n in range(99) if partition_of("/", f"orders{n}", AFTER) >= BEFORE)
STAYING = next(f"stays{n}" for n in range(99) if partition_of("/", f"stays{n}", AFTER) < BEFORE)

BACK_AND_FORTH = next(
    f"back{n}" for n in range(9_999) if [partition_of("/", f"back{n}", count) for count in (2, 3, 4, 5)] == [0, 2, 0, 4]
)


class MovingRecorder(Recorder):
    """A recorder whose partitions behind the first two come later, and whose queues move."""

    def __init__(self, data: Path, most: int = AFTER) -> None:
        self.placement = Placement()
        self.new: list[DeadLetter] = []  # messages of the queue that moves, since they were last taken
        super().__init__(data, most)
        for index in range(BEFORE):
            self.append(index, BROKER, Tick())

    def partition(self, queue: str) -> int:
        return self.placement.home("/", queue, BEFORE)

    def append(self, index: int, actor: Actor, event: Event) -> int:
        if index >= max(BEFORE, self.placement.wanted):
            return -1  # what is appended to all partitions at the beginning: these are not there yet
        return super().append(index, actor, event)

    def metadata(self, event: MetadataEvent, actor: Actor = BROKER) -> int:
        offset = super().metadata(event, actor)
        if isinstance(event, PlacementEvent):
            self.placement.apply(self.now_ms, event)
        return offset

    def follow(self, effects: list[Effect]) -> None:
        super().follow(effects)
        for each in effects:
            if isinstance(each, DeadLetter) and each.reason == "relocated":
                self.new += one_by_one(each)

    def repartition(self, *staying: str, count: int = AFTER) -> None:
        """Add partitions, and place new queues by them."""
        before = self.placement.count or BEFORE
        self.metadata(PartitionsAdded(before, count))
        for index in range(before, count):
            self.append(index, BROKER, Tick())
        self.metadata(NamesHeld(count))
        for queue in staying:
            self.metadata(QueuesStay(self.partition(queue), (QueueName("/", queue),)))
        self.metadata(PlacementChanged(count))

    def begin_move(self, queue: str) -> int:
        """Declare the queue in its new partition. Returns its incarnation there."""
        source, target = self.partition(queue), partition_of("/", queue, self.placement.count)
        old = self.machines[source].queue("/", queue)
        assert old is not None
        self.metadata(QueueMoveBegan("/", queue, old.queue_id, target))
        carried = moved_from(source, old)
        event = declared(
            "/",
            queue,
            type=old.type,
            durable=True,
            arguments=old.arguments,
            semantics=old.semantics,
            moved_from=carried,
        )
        return self.append(target, BROKER, event)

    def drain(self, queue: str, source: int, queue_id: int, bodies: dict[int, bytes]) -> dict[int, int]:
        """Let the ready messages follow. Returns their new ids by the old ones."""
        self.new = []
        self.append(source, BROKER, QueueDrained("/", queue, queue_id, 1_000))
        came, letters = {}, self.new
        for letter in letters:
            (carried,), message_id = letter.carried, message_of(letter)
            origin = Origin(
                "/",
                queue,
                queue_id=queue_id,
                message_id=message_id,
                reason="relocated",
                sequence=letter.sequence,
                restore="",
                delivery_count=carried.delivery_count,
                redelivered=carried.redelivered,
                acquired_count=carried.acquired_count,
                partition=self.placement.as_origin("/", queue, source),
            )
            body = bodies[message_id]
            route = Route("/", "", queue, (queue,))
            event = Published(route, b"\x10\x00\x02", persistent=True, origin=origin, body=body, body_size=len(body))
            came[message_id] = self.append(self.placement.home("/", queue, 0), BROKER, event)
        self.append(source, BROKER, DeadLettersForwarded("/", queue, queue_id, letters[-1].sequence, True))
        return came


@dataclass
class Moved:
    """Ids of messages before and after the move, and times. `source`, `target`: numbers of partitions."""

    data: Path
    source: int = 0
    target: int = 0
    old_id: int = 0
    new_id: int = 0
    first: int = 0
    second: int = 0
    third: int = 0
    held: int = 0
    new: int = 0
    came: dict[int, int] = field(default_factory=dict)
    published_ms: int = 0
    before_ms: int = 0
    during_ms: int = 0
    after_ms: int = 0
    end_ms: int = 0

    @property
    def old(self) -> str:
        return f"queues-{self.source}"

    @property
    def now(self) -> str:
        return f"queues-{self.target}"


def write_moved(data: Path, hold: bool = False, ends: bool = True) -> Moved:
    """`hold`: a consumer holds a message when the queue moves, and acks it afterwards; if not `ends`, never."""
    history, moved = MovingRecorder(data), Moved(data)
    moved.source, moved.target = history.partition(QUEUE), partition_of("/", QUEUE, AFTER)
    history.metadata(ExchangeDeclared("/", "sales", "direct", True, False, False))
    history.declare(STAYING)
    moved.old_id = history.declare(QUEUE)
    history.metadata(Bound("/", "sales", "queue", QUEUE, "new", (), moved.old_id))
    history.wait(1_000)
    moved.published_ms = history.now_ms
    moved.first = history.publish(QUEUE, b"first")
    history.get(QUEUE, 1)
    history.ack(QUEUE, 1, moved.first)
    if hold:
        moved.held = history.publish(QUEUE, b"held")
        history.get(QUEUE, 1)
    moved.second, moved.third = history.publish(QUEUE, b"second"), history.publish(QUEUE, b"third")
    bodies = {moved.second: b"second", moved.third: b"third"}
    history.mark("before")
    history.wait(1_000)
    moved.before_ms = history.now_ms
    history.wait(1_000)
    history.repartition(QUEUE)
    history.wait(1_000)
    moved.new_id = history.begin_move(QUEUE)
    history.wait(1_000)
    moved.during_ms = history.now_ms
    moved.came = history.drain(QUEUE, moved.source, moved.old_id, bodies)
    history.wait(1_000)
    if not hold:
        history.append(moved.source, BROKER, QueueDeleted("/", QUEUE, False, False))
    history.metadata(QueueMoveEnded("/", QUEUE, moved.new_id))
    history.mark("moved")
    history.wait(1_000)
    moved.after_ms = history.now_ms
    history.wait(1_000)
    moved.new = history.publish(QUEUE, b"new")
    history.get(QUEUE, 2)
    history.ack(QUEUE, 2, moved.came[moved.second])
    if hold and ends:
        history.append(moved.source, ANN, Acked("/", QUEUE, 1, ((moved.held, moved.held),)))
        history.append(moved.source, BROKER, QueueDeleted("/", QUEUE, False, False))
    history.wait(1_000)
    history.purge(QUEUE)
    history.mark("after")
    history.wait(1_000)
    moved.end_ms = history.now_ms
    history.tick(moved.target)
    history.close()
    return moved


@dataclass
class Back:
    """The names of messages by their bodies: all the (partition, id) that each had. `lives`: (partition, incarnation)
    of each stay."""

    data: Path
    lives: list[tuple[int, int]] = field(default_factory=list)
    names: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    ended_ms: list[int] = field(default_factory=list)


def write_back(data: Path) -> Back:
    """Messages `one` and `two` are published in the first stay, `three`, `four` and `five` in the following ones.

    A node that was lost publishes `late` to the first partition when the queue has left it. The first two incarnations
    have the same number."""
    history, back, queue = MovingRecorder(data, 5), Back(data), BACK_AND_FORTH

    def publish(body: bytes) -> None:
        back.names[body] = [(history.partition(queue), history.publish(queue, body))]

    def follow() -> None:
        index, queue_id = back.lives[-2] if len(back.lives) > 1 else back.lives[0]
        here = {at[-1][1]: body for body, at in back.names.items() if at[-1][0] == index}
        for was, now in history.drain(queue, index, queue_id, here).items():
            back.names[here[was]].append((history.partition(queue), now))

    back.lives.append((0, history.declare(queue)))
    history.wait(1_000)
    publish(b"one")
    publish(b"two")
    for count, body in ((3, b"three"), (4, b"four"), (5, b"five")):
        history.wait(1_000)
        history.repartition(queue, count=count)
        history.wait(1_000)
        if count == 3:
            history.tick(2)
        new = history.begin_move(queue)
        back.lives.append((history.partition(queue), new))
        follow()
        history.wait(1_000)
        history.metadata(QueueMoveEnded("/", queue, new))
        back.ended_ms.append(history.now_ms)
        history.wait(1_000)
        if count == 3:
            route = Route("/", "", queue, (queue,))
            event = Published(route, b"\x10\x00\x02", persistent=True, body=b"late", body_size=4)
            back.names[b"late"] = [(0, history.append(0, ANN, event))]
            follow()
            history.wait(1_000)
        history.append(back.lives[-2][0], BROKER, QueueDeleted("/", queue, False, False))
        publish(body)
    history.wait(1_000)
    assert back.lives[0][1] == back.lives[1][1]
    for index in range(5):
        history.tick(index)
    history.close()
    return back
