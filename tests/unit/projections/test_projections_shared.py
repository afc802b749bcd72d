"""Bodies that several queues share: stored once, counted, and gone when no queue holds them
(docs/decisions/0081-bodies-once-for-all-queues.md)."""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from rewindmq.projections.machine.data.effects import Deliver, Effect, Keep
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import recover
from rewindmq.projections.store import keys
from rewindmq.projections.store.bases import Bases, queued_offsets
from rewindmq.projections.store.bodies import is_shared
from rewindmq.projections.store.holders import PAGE, SharedBodies
from rewindmq.projections.store.projector import holds
from rewindmq.projections.store.repair import mend
from rewindmq.projections.store.store import Projector, StateStore
from rewindmq.projections.verify import verify_partition
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Acked, Published, Purged, QueueDeleted
from rewindmq.schemas.values import Route
from tests.support.events_for_tests import attached
from tests.support.traffic import ANN, QUEUES, ListLog, Traffic, live_messages, published, queue_declared, record

PREFIX = keys.partition_prefix("queues-0")


def stored_bodies(store: StateStore) -> Counter[int]:
    """The number of stored bodies, by the queue id or `SHARED`."""
    return Counter(keys.queue_id_of(key, PREFIX) for key, _ in store.scan(PREFIX + b"M"))


def write(projector: Projector) -> None:
    projector.write(projector.prepare())


def assert_whole(traffic: Traffic, machine: Machine, projector: Projector) -> None:
    for queue_id, message_id in live_messages(machine):
        assert record(projector.message(queue_id, message_id)) == record(traffic.bodies[message_id])


class FanOut(Traffic):
    """Traffic without the queues that drop messages by themselves; most messages go to several queues."""

    def __init__(self, queues: int, machine: Machine, projector: Projector) -> None:
        super().__init__(0, machine, projector)
        self.names = tuple(f"f{number}" for number in range(queues))
        for name in self.names:
            self.append(ANN, queue_declared(name))
        self.all = Route("/", "fan", "", self.names)

    def publish(self, messages: int, route: Route | None = None, body: bytes = b"x" * 100) -> list[int]:
        ids = [self.append(ANN, published(route or self.all, body)) for _ in range(messages)]
        self.end_turn()
        return ids


@pytest.fixture
def opened(tmp_path: Path) -> tuple[StateStore, Machine, Projector]:
    store = StateStore.open(tmp_path / "state")
    return (store, *store.open_partition("queues-0"))


# -- counts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_a_dictionary_in_memory_and_as_stored(seed: int) -> None:
    dice, counts, model, stored = random.Random(seed), SharedBodies(), Counter[int](), dict[int, bytes]()
    top = 0
    for _ in range(dice.choice((30, 60))):
        if dice.random() < 0.6:
            for _ in range(dice.choice((1, 40))):
                top += dice.choice((1, 1, 7, 300))
                for _ in range(dice.choice((1, 2, 5))):
                    counts.hold(top, 1)
                    model[top] += 1
        else:
            size = dice.choice((1, 3, 50, 700))
            some = set(dice.sample(range(top + 2), min(size, top + 2)))
            some |= set(dice.sample(sorted(model), len(model) // 3))
            gone, others = counts.release(some)
            assert sorted(others) == sorted(some - model.keys())
            model.subtract(some & model.keys())
            assert sorted(gone) == [each for each, held in sorted(model.items()) if held == 0]
            model = +model
        if dice.random() < 0.2:
            for first, packed in counts.packed():
                stored[first] = packed
            stored = {first: packed for first, packed in sorted(stored.items()) if packed}
            counts = dice.choice((counts, SharedBodies(stored.items())))
        assert dict(counts.counts()) == model
        assert counts.empty == (not model)
        asked = [*model, *dice.sample(range(top + 2), min(100, top + 2))]
        assert [each in counts for each in asked] == [each in model for each in asked]
        behind = [min((other for other in model if other > each), default=-1) for each in asked[-5:]]
        assert [counts.following(each) for each in asked[-5:]] == behind


def test_a_page_is_written_again_only_when_its_counts_changed() -> None:
    counts = SharedBodies()
    for message_id in range(3 * PAGE):
        counts.hold(message_id, 1)
    assert [first for first, _ in counts.packed()] == [0, PAGE, 2 * PAGE]
    assert list(counts.packed()) == []
    counts.release([PAGE + 3, 10_000])
    assert [first for first, _ in counts.packed()] == [PAGE]
    counts.release(range(PAGE))
    assert list(counts.packed()) == [(0, b"")]


# -- a body once -------------------------------------------------------------------------------------------------------


def test_a_body_is_stored_once_for_all_queues_without_their_names(
    opened: tuple[StateStore, Machine, Projector],
) -> None:
    store, machine, projector = opened
    traffic = FanOut(500, machine, projector)
    write(projector)
    ids = traffic.publish(20)
    assert projector.pending_bytes < 20 * 1_000
    batch = projector.prepare()
    projector.write(batch)
    assert stored_bodies(store) == {keys.SHARED: 20}
    values = [value for _, value in store.scan(keys.messages(PREFIX, keys.SHARED))]
    assert max(map(len, values)) < 100 + 50
    assert not any(b"f1" in value for value in values)
    traffic.publish(3, Route("/", "", "f1", ("f1",)))
    write(projector)
    queue = machine.queue("/", "f1")
    assert queue is not None
    assert stored_bodies(store) == {keys.SHARED: 20, queue.queue_id: 3}
    assert holds(queue, ids[0])
    assert not holds(queue, ids[-1] + 100)
    store.close()


def test_the_work_of_a_publish_grows_linearly_with_its_queues(
    opened: tuple[StateStore, Machine, Projector],
) -> None:
    store, machine, projector = opened
    traffic = FanOut(20_000, machine, projector)
    traffic.end_turn()
    began = time.thread_time()
    traffic.publish(1)
    assert time.thread_time() - began < 1, "six seconds where each queue is sought in a list"
    store.close()


def test_a_body_goes_with_its_last_queue_however_it_leaves(opened: tuple[StateStore, Machine, Projector]) -> None:
    store, machine, projector = opened
    traffic = FanOut(4, machine, projector)
    ids = traffic.publish(10)
    write(projector)
    traffic.append(ANN, attached("/", "f0", 100, channel=1, tag="c", prefetch=100))
    traffic.append(ANN, Acked("/", "f0", 100, ((ids[0], ids[-1]),)))
    traffic.append(ANN, attached("/", "f1", 101, channel=1, tag="d", no_ack=True, credit=100))
    traffic.append(ANN, Purged("/", "f2"))
    traffic.end_turn()
    write(projector)
    assert stored_bodies(store) == {keys.SHARED: 10}
    assert_whole(traffic, machine, projector)
    traffic.append(ANN, QueueDeleted("/", "f3", False, False))
    traffic.end_turn()
    write(projector)
    assert stored_bodies(store) == {}
    assert list(store.scan(PREFIX + b"S")) == []
    straight = traffic.publish(1)  # to the consumers of f0 and f1; f2 is left
    assert (stored_bodies(store), projector.message(machine.by_name["/", "f2"].queue_id, straight[0]).body_size) == (
        {},
        100,
    )
    traffic.append(ANN, Acked("/", "f0", 100, ((straight[0], straight[0]),)))
    traffic.append(ANN, Purged("/", "f2"))
    traffic.end_turn()
    assert projector.pending_bytes == 0
    batch = projector.prepare()
    assert not any(True for _ in projector.in_memory())
    projector.write(batch)
    assert stored_bodies(store) == {}
    store.close()


def test_a_message_straight_to_consumers_that_do_not_ack_is_not_kept(
    opened: tuple[StateStore, Machine, Projector],
) -> None:
    store, machine, projector = opened
    traffic = FanOut(2, machine, projector)
    for number, name in enumerate(traffic.names):
        traffic.append(ANN, attached("/", name, 100 + number, channel=1, tag=name, no_ack=True, credit=100))
    traffic.end_turn()
    effects: list[Effect] = traffic.effects
    traffic.append(ANN, published(Route("/", "", "f0", ("f0",)), b"x"))
    traffic.append(ANN, published(traffic.all, b"x"))
    assert [effect.passed for effect in effects if isinstance(effect, Deliver)] == [True, True, True]
    assert not any(isinstance(effect, Keep) for effect in effects)
    traffic.end_turn()
    assert (projector.pending_bytes, list(projector.in_memory())) == (0, [])
    store.close()


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_after_each_crash_exactly_the_live_messages_are_stored(tmp_path: Path, seed: int) -> None:
    dice, log = random.Random(seed), ListLog()
    traffic: Traffic | None = None
    for _ in range(8):
        store = StateStore.open(tmp_path)
        recovery = recover(log, store)
        machine, projector = recovery.machine, recovery.projector
        if traffic is None:
            traffic = Traffic(seed, machine, projector, log=log)
        traffic.machine, traffic.projector = machine, projector
        assert_whole(traffic, machine, projector)
        if dice.random() < 0.5:
            write(projector)
            report = verify_partition(log, store)
            assert (report.differences, report.stored) == ([], True)
            live = {message_id for _, message_id in live_messages(machine) if is_shared(traffic.bodies[message_id])}
            shared = keys.messages(PREFIX, keys.SHARED)
            assert {keys.message_id_of(key) for key, _ in store.scan(shared)} == live
        in_flight = []
        for _ in range(dice.randrange(1, 12)):
            traffic.run(dice.randrange(1, 25))
            if dice.random() < 0.5:
                in_flight.append(projector.prepare())
            if in_flight and dice.random() < 0.5:
                projector.write(in_flight.pop(0))
            assert_whole(traffic, machine, projector)
        if dice.random() < 0.3:
            for name in dice.sample(sorted(QUEUES), 2):
                traffic.append(ANN, QueueDeleted("/", name, False, False))
                traffic.append(ANN, queue_declared(name, QUEUES[name]))
            traffic.end_turn()
        store.close()  # batches that were not written are lost


# -- a store that is made anew -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["mended", "made anew", "from a base"])
def test_a_repaired_store_has_each_shared_body_once_and_its_count(tmp_path: Path, way: str) -> None:
    store, log = StateStore.open(tmp_path / "state"), ListLog()
    machine, projector = store.open_partition("queues-0")
    traffic = Traffic(5, machine, projector, log=log)
    traffic.run(150)
    write(projector)
    projector.persist()
    traffic.run(150)
    if way == "mended":
        projector.prepare()  # it fails
        mend(store, [(log, projector)])
    elif way == "made anew":
        write(projector)
        store.make_anew([projector])
    else:
        records = [(offset, log.records[offset]) for offset in queued_offsets(machine)]
        Bases(tmp_path / "bases").write(machine, bytes(32), records)
        store.forget(projector)
        store.begin(Bases(tmp_path / "bases").open("queues-0", machine.next_offset), Decoder())
        machine, projector = store.open_partition("queues-0")
        traffic.machine, traffic.projector = machine, projector
    assert_whole(traffic, machine, projector)
    assert any(is_shared(traffic.bodies[each]) for _, each in live_messages(machine))
    for _ in range(2):
        differences = [each.key for each in verify_partition(log, store).differences]
        assert differences == (["queues-0 quarantined records"] if way == "from a base" else [])  # it has none
        traffic.run(200)
        assert_whole(traffic, machine, projector)
        write(projector)
    store.close()


# -- verification ------------------------------------------------------------------------------------------------------


def test_a_lost_or_leftover_shared_body_and_a_wrong_count_are_reported(
    opened: tuple[StateStore, Machine, Projector],
) -> None:
    store, machine, projector = opened
    traffic = FanOut(3, machine, projector)
    first, second, third = traffic.publish(3)
    projector._shared.hold(second, 1)
    write(projector)
    lost, leftover = keys.message(PREFIX, keys.SHARED, third), keys.message(PREFIX, keys.SHARED, first - 1)
    store._db.put(leftover, b"x")
    store._db.rocks.delete(lost)  # type: ignore[union-attr]
    report = verify_partition(traffic.listed, store)
    found = [(each.key, each.what) for each in report.differences]
    assert found == [
        (f"queues-0 message shared id={third}", "is missing"),
        (f"queues-0 message shared id={second}", "+1 holders counted"),
        (f"queues-0 message shared id={first - 1}", "should not be there"),
    ]
    assert report.messages == 9
    store._db.put(keys.shared(PREFIX, first), b"xyz")
    what = [each.what for each in verify_partition(traffic.listed, store).differences]
    assert any(each.startswith("cannot be read") for each in what)
    store.close()


# -- reading -----------------------------------------------------------------------------------------------------------


def test_shared_bodies_are_read_ahead_as_long_as_they_are_read_in_order(
    opened: tuple[StateStore, Machine, Projector],
) -> None:
    store, machine, projector = opened
    traffic = FanOut(2, machine, projector)
    ids = traffic.publish(400)
    write(projector)
    queue_id = machine.by_name["/", "f0"].queue_id

    def cached() -> int:
        return len(projector.cache.queues.get(keys.SHARED, ()))

    projector.cache.drop_queue(keys.SHARED)
    sizes = []
    for message_id in ids:
        assert projector.message(queue_id, message_id).body_size == 100
        sizes.append(cached())
    assert sorted(set(sizes)) == [1, 3, 7, 15, 31, 63, 127, 255, 400]
    projector.cache.drop_queue(keys.SHARED)
    for message_id in ids[::-7]:
        assert isinstance(projector.message(queue_id, message_id), Published)
    assert cached() == len(ids[::-7])
    store.close()
