"""Where queues are: the fold of the events of placement against a model that replays them, and its stored form."""

import random
from dataclasses import dataclass, field

import pytest

from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.fold_image import image_of, restored
from rewindmq.projections.topology.json_texts import Nonsense
from rewindmq.projections.topology.metadata_fold import MetadataFold
from rewindmq.projections.topology.placement import Move, Moving, Placement
from rewindmq.schemas.metadata_events import Bound
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
from rewindmq.schemas.values import BROKER, Argument

MADE_WITH = 2
NAMES = [("/", f"q{number}") for number in range(8)]


@dataclass
class Naive:
    """The rules as the module says them, and for each event where every name was behind it."""

    count: int = 0
    wanted: int = 0
    held: bool = False
    staying: dict[tuple[str, str], int] = field(default_factory=dict)
    listed: dict[tuple[str, str], int] = field(default_factory=dict)
    moving: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)  # source, id, target
    done: list[tuple[tuple[str, str], int, int, int, int]] = field(default_factory=list)  # name, source, id, target, id
    was: list[tuple[int, dict[tuple[str, str], int], set[tuple[str, str]]]] = field(default_factory=list)

    def leads_to(self, name: tuple[str, str]) -> int:
        if name in self.moving:
            return self.moving[name][2]
        return self.staying.get(name, partition_of(*name, self.count or MADE_WITH))

    def holds(self, name: tuple[str, str]) -> int:
        return self.moving[name][0] if name in self.moving else self.leads_to(name)

    def apply(self, time_ms: int, event: PlacementEvent) -> bool:
        """Apply an event, and return True if it made sense."""
        done = self.change(event)
        if done:
            self.was.append((time_ms, {name: self.holds(name) for name in NAMES}, set(self.moving)))
        return done

    def change(self, event: PlacementEvent) -> bool:
        if isinstance(event, PartitionsAdded):
            known = self.count in (0, event.before) and self.wanted in (0, self.count, event.partitions)
            if not known or not 0 < event.before < event.partitions:
                return False
            self.count, self.wanted = event.before, event.partitions
        elif isinstance(event, NamesHeld):
            if self.moving or event.partitions != self.wanted or self.wanted == self.count:
                return False
            if not self.held:
                self.held, self.listed = True, {}
        elif isinstance(event, QueuesStay):
            if not self.held or not 0 <= event.partition < self.wanted:
                return False
            for each in event.queues:
                if partition_of(each.vhost, each.queue, self.wanted) != event.partition:
                    self.listed[each.vhost, each.queue] = event.partition
        elif isinstance(event, PlacementChanged):
            if not self.held or event.partitions != self.wanted:
                return False
            self.count, self.staying, self.listed, self.held = self.wanted, self.listed, {}, False
        elif isinstance(event, QueueMoveBegan):
            name = (event.vhost, event.queue)
            home = partition_of(*name, self.count) if self.count else -1
            if name in self.moving and event.partition == self.moving[name][0]:
                self.give_up(name)
                return True
            if self.held or name not in self.staying or event.partition != home:
                return False
            queue_id = max(event.queue_id, self.moving[name][1]) if name in self.moving else event.queue_id
            self.moving[name] = (self.staying[name], queue_id, event.partition)
        else:
            name = (event.vhost, event.queue)
            if name not in self.moving:
                return False
            source, from_id, target = self.moving.pop(name)
            del self.staying[name]
            self.done.append((name, source, from_id, target, event.queue_id))
        return True

    def give_up(self, name: tuple[str, str]) -> None:
        """The queue stays where it is, as if it had not begun to move."""
        del self.moving[name]
        for _, _, moving in reversed(self.was):
            if name not in moving:
                break
            moving.remove(name)

    def at(self, name: tuple[str, str], time_ms: int) -> tuple[int, bool]:
        """Where the queue was at this time, and whether it moved."""
        found = partition_of(*name, MADE_WITH), False
        for changed_ms, homes, moving in self.was:
            if changed_ms <= time_ms:
                found = homes[name], name in moving
        return found


def any_event(dice: random.Random, naive: Naive) -> PlacementEvent:
    """An event, which mostly makes sense."""
    name = dice.choice(list(naive.moving) or NAMES) if dice.random() < 0.5 else dice.choice(NAMES)
    number = dice.choice((naive.wanted, naive.wanted, naive.count, dice.randint(0, 9)))
    throw = dice.random()
    if throw < 0.12:
        before = dice.choice((naive.count or MADE_WITH, naive.count or MADE_WITH, dice.randint(0, 4)))
        return PartitionsAdded(MADE_WITH if not naive.count else before, before + dice.randint(0, 3))
    if throw < 0.25:
        return NamesHeld(number)
    if throw < 0.4:
        # Queues that exist and are elsewhere, mostly; sometimes anything.
        partition = dice.randint(-1, max(0, naive.wanted))
        named = [each for each in NAMES if naive.leads_to(each) == partition] if dice.random() < 0.9 else NAMES[:2]
        return QueuesStay(partition, tuple(QueueName(*each) for each in named))
    if throw < 0.5:
        return PlacementChanged(number)
    if throw < 0.75:
        waiting = [each for each in naive.staying if each not in naive.moving] or NAMES
        chosen = dice.choice(waiting)
        if naive.moving and dice.random() < 0.3:  # once more, or given up
            chosen = dice.choice(list(naive.moving))
            return QueueMoveBegan(*chosen, dice.randint(-1, 99), naive.moving[chosen][dice.choice((0, 2))])
        home = partition_of(*chosen, naive.count) if naive.count and dice.random() < 0.9 else dice.randint(0, 9)
        return QueueMoveBegan(*chosen, dice.choice((-1, 5, 7, dice.randint(0, 99))), home)
    return QueueMoveEnded(*name, dice.choice((-1, 5, 7, dice.randint(0, 99))))


def again(fold: MetadataFold) -> MetadataFold:
    return restored(image_of(fold).pieces())


def test_any_course_is_that_of_the_model() -> None:
    made: set[str] = set()
    refused: set[str] = set()
    for seed in range(40):
        dice, naive, fold = random.Random(seed), Naive(), MetadataFold()
        time_ms = 1_000
        for offset in range(80):
            time_ms += dice.choice((0, 1, 10))
            event = any_event(dice, naive)
            said = fold.topology.apply(offset, time_ms, BROKER, event)
            assert naive.apply(time_ms, event) == (said == ""), (seed, offset, event, said)
            (made if said == "" else refused).add(type(event).__name__)
            if offset % 40 == 39:
                loaded = again(fold)
                assert vars(loaded.topology.placement) == vars(fold.topology.placement)
                assert loaded.topology.digest() == fold.topology.digest()
                fold = loaded
        check(dice, naive, fold.topology.placement, time_ms)
    assert len(made) == len(refused) == 6, "the events were not of every kind"


def check(dice: random.Random, naive: Naive, placement: Placement, end_ms: int) -> None:
    for name in NAMES:
        assert placement.home(*name, MADE_WITH) == naive.leads_to(name)
        for _ in range(10):
            time_ms = dice.randint(990, end_ms + 10)
            home, moved = naive.at(name, time_ms)
            assert placement.home_at(*name, time_ms, MADE_WITH) == home, (name, time_ms)
            found = placement.moves_at(*name, time_ms)
            assert (found is not None) == moved, (name, time_ms)
            assert found is None or found.source == home
        first = partition_of(*name, MADE_WITH)
        expected = {partition: -1 if partition == first else partition for partition in range(9)}
        assert {each: placement.as_origin(*name, each) for each in range(9)} == (
            expected if naive.count else dict.fromkeys(range(9), -1)
        )
        for start in range(9):
            at, queue_id = start, 5
            for moved_name, source, from_id, target, to_id in naive.done:
                if (moved_name, source, from_id) == (name, at, queue_id):
                    at, queue_id = target, to_id
            assert placement.followed(*name, start, 5) == queue_id
    left = {(source, name, from_id) for name, source, from_id, _, _ in naive.done if from_id != -1}
    left |= {(moved[0], name, moved[1]) for name, moved in naive.moving.items() if moved[1] != -1}
    assert set(placement.strays()) == left


def placed(*events: PlacementEvent) -> Placement:
    placement = Placement()
    for time_ms, event in enumerate(events):
        placement.apply(time_ms, event)
    return placement


def test_a_log_that_nobody_repartitioned_is_as_before() -> None:
    """Neither its digest nor the homes of its queues know of placement."""
    placement = Placement()
    assert placement.for_digest() == {}
    assert [placement.home(*name, 6) for name in NAMES] == [partition_of(*name, 6) for name in NAMES]
    assert [placement.home_at(*name, 7, 6) for name in NAMES] == [partition_of(*name, 6) for name in NAMES]
    assert not placement.goes_elsewhere(*NAMES[0])


def elsewhere(before: int, partitions: int) -> tuple[str, str]:
    return next(name for name in NAMES if partition_of(*name, before) != partition_of(*name, partitions))


def test_names_wait_that_the_new_number_places_elsewhere() -> None:
    name = elsewhere(2, 6)
    placement = placed(PartitionsAdded(2, 6))
    assert placement.goes_elsewhere(*name)
    assert not placement.held
    stays = next(name for name in NAMES if partition_of(*name, 2) == partition_of(*name, 6))
    assert not placement.goes_elsewhere(*stays)
    placement.apply(1, NamesHeld(6))
    placement.apply(2, PlacementChanged(6))
    assert not placement.goes_elsewhere(*name)
    assert placement.home(*name, 2) == partition_of(*name, 6), "no queue of this name stayed"


def test_a_queue_moves() -> None:
    name = elsewhere(2, 6)
    source, target = partition_of(*name, 2), partition_of(*name, 6)
    course: tuple[PlacementEvent, ...] = (
        PartitionsAdded(2, 6),
        NamesHeld(6),
        QueuesStay(source, (QueueName(*name),)),
        PlacementChanged(6),
        QueueMoveBegan(*name, 12, target),
    )
    assert placed(*course[:4]).home(*name, 2) == source
    moving = placed(*course)
    assert (moving.home(*name, 2), moving.home_at(*name, 9, 2)) == (target, source)
    assert moving.moves_at(*name, 9) == Moving(source, 12, target, 4)
    assert moving.moves_at(*name, 3) is None
    moved = placed(*course, QueueMoveEnded(*name, 4))
    assert moved.moves[name] == [Move(source, 12, target, 4, 4, 5)]
    assert [moved.home_at(*name, time_ms, 2) for time_ms in (-1, 3, 4, 5)] == [source, source, source, target]
    assert moved.followed(*name, source, 12) == 4
    assert moved.followed(*name, target, 12) == 12, "another queue of the same number, in another partition"


def test_nothing_moves_while_names_are_held() -> None:
    """Else a queue on its way would stand in no list of those that stay."""
    name = elsewhere(2, 6)
    source = partition_of(*name, 2)
    placement = placed(
        PartitionsAdded(2, 6), NamesHeld(6), QueuesStay(source, (QueueName(*name),)), PlacementChanged(6)
    )
    placement.apply(5, QueueMoveBegan(*name, 12, partition_of(*name, 6)))
    placement.apply(6, PartitionsAdded(6, 8))
    with pytest.raises(Nonsense, match="a queue is on its way"):
        placement.apply(7, NamesHeld(8))
    placement.apply(8, QueueMoveEnded(*name, 4))
    placement.apply(9, NamesHeld(8))
    with pytest.raises(Nonsense, match="does not wait to go there"):
        placement.apply(10, QueueMoveBegan(*name, 4, partition_of(*name, 6)))


def test_bindings_follow_their_queue() -> None:
    """A binding names an incarnation. Those of the queue that moved name the new one from then on, and no others do."""
    name = elsewhere(2, 6)
    source, target = partition_of(*name, 2), partition_of(*name, 6)
    fold = MetadataFold()
    bound = Bound(name[0], "amq.topic", "queue", name[1], "k", (Argument("n", "long", 7),), 12)
    earlier = Bound(name[0], "amq.topic", "queue", name[1], "k", (), 3)
    other = Bound(name[0], "amq.topic", "queue", "another", "k", (), 12)
    course: list[Bound | PlacementEvent] = [
        bound,
        earlier,
        other,
        PartitionsAdded(2, 6),
        NamesHeld(6),
        QueuesStay(source, (QueueName(*name),)),
        PlacementChanged(6),
        QueueMoveBegan(*name, 12, target),
        QueueMoveEnded(*name, 40),
    ]
    for offset, event in enumerate(course):
        assert fold.topology.apply(offset, offset, BROKER, event) == ""
    moved = Bound(name[0], "amq.topic", "queue", name[1], "k", bound.arguments, 40)
    for topology in (fold.topology, again(fold).topology):
        assert set(topology.bindings_to(name[0], "queue", name[1])) == {earlier, moved}
        assert set(topology.bindings_from("/", "amq.topic")) == {earlier, moved, other}
        assert set(topology.bindings_in_order()) == {earlier, moved, other}
        assert topology.is_bound(moved)
        assert not topology.is_bound(bound)


def test_the_bindings_of_a_name_without_a_queue_stay_as_they_are() -> None:
    name = elsewhere(2, 6)
    source, target = partition_of(*name, 2), partition_of(*name, 6)
    for from_id, to_id in ((-1, 40), (12, -1)):
        fold = MetadataFold()
        bounds = [Bound(name[0], "amq.topic", "queue", name[1], "k", (), queue_id) for queue_id in (-1, 12)]
        course: list[Bound | PlacementEvent] = [
            *bounds,
            PartitionsAdded(2, 6),
            NamesHeld(6),
            QueuesStay(source, (QueueName(*name),)),
            PlacementChanged(6),
            QueueMoveBegan(*name, from_id, target),
            QueueMoveEnded(*name, to_id),
        ]
        for offset, event in enumerate(course):
            assert fold.topology.apply(offset, offset, BROKER, event) == ""
        assert set(fold.topology.bindings_to(name[0], "queue", name[1])) == set(bounds)
