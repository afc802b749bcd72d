"""The projector beside a live machine: what it holds, what it writes, what comes back
(docs/design.md#the-journey-of-a-message, docs/design.md#views)."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.projections.store import keys
from rewindmq.projections.store.bodies import TODAY, is_shared, size_of
from rewindmq.projections.store.holders import SharedBodies
from rewindmq.projections.store.projector import (
    FRESH_BYTES,
    LEAVING_OVERHEAD_BYTES,
    READ_AHEAD_BYTES,
    READ_AHEAD_MESSAGES,
)
from rewindmq.projections.store.store import Projector, StateStore
from rewindmq.schemas.events import Acked, Published, Purged, QueueDeleted
from rewindmq.schemas.values import Route
from tests.support.events_for_tests import attached
from tests.support.traffic import ANN, START_MS, Traffic, live_messages, published, queue_declared, record

PREFIX = keys.partition_prefix("queues-0")
ROUTE = Route("/", "", "q", ("q",))


def stored_messages(store: StateStore) -> set[tuple[int, int]]:
    return {(keys.queue_id_of(key, PREFIX), keys.message_id_of(key)) for key, _ in store.scan(PREFIX + b"M")}


def home_of(message: Published, queue_id: int) -> int:
    return keys.SHARED if is_shared(message) else queue_id


def holders(store: StateStore) -> dict[int, int]:
    """The number of queues that hold each shared message, as it is stored."""
    pages = [(keys.message_id_of(key), packed) for key, packed in store.scan(PREFIX + b"S")]
    return dict(SharedBodies(pages).counts())


def write(projector: Projector) -> None:
    projector.write(projector.prepare())


class HalfStored(Traffic):
    """Traffic with half of the unshared messages in the form in which RocksDB has them, as in replay."""

    def end_turn(self) -> None:
        for message_id, message in self.bodies.items():
            if message_id in self.fresh and message_id % 2 and not is_shared(message):
                self.fresh[message_id] = TODAY.of(message)
        super().end_turn()


def assert_memory_is_needed_and_counted(projector: Projector, machine: Machine, traffic: Traffic) -> None:
    """Each body in memory is that of a live message, and `pending_bytes` is exact.

    A deleted queue whose outbox still had letters keeps its bodies until the batch after the last of them."""
    homes = {
        (home_of(traffic.bodies[message_id], queue_id), message_id) for queue_id, message_id in live_messages(machine)
    }
    existing = {queue.queue_id for queue in machine.by_id.values() if not queue.gone} | {keys.SHARED}
    held = {(queue_id, message_id) for queue_id, message_id, _ in projector.in_memory()}
    assert {pair for pair in held if pair[0] in existing} <= homes
    fresh = size_of(body for bodies in projector._fresh.values() for body in bodies.values())
    assert projector.pending_bytes == fresh + LEAVING_OVERHEAD_BYTES * sum(map(len, projector._leaving.values()))


def one_queue(projector: Projector, machine: Machine, messages: int, body: bytes = b"x" * 100) -> Traffic:
    """A queue `q` with messages 1..n, observed."""
    traffic = Traffic.__new__(Traffic)
    Traffic.__init__(traffic, 0, machine, projector)
    traffic.append(ANN, queue_declared("q"))
    for _ in range(messages):
        traffic.append(ANN, published(ROUTE, body))
    traffic.end_turn()
    return traffic


@pytest.mark.parametrize("seed", range(12))
def test_exactly_the_live_messages_are_held_however_batches_are_written(tmp_path: Path, seed: int) -> None:
    """The rule for bodies, against the machine's own view of what is in queues and outboxes."""
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = HalfStored(seed, machine, projector)
    waiting = []
    for _ in range(40):
        traffic.run(12)
        assert_memory_is_needed_and_counted(projector, machine, traffic)
        pick = traffic.random.random()
        if pick < 0.5:
            waiting.append(projector.prepare())
        elif waiting and pick < 0.8:
            projector.write(waiting.pop(0))
        for queue_id, message_id in live_messages(machine):
            assert record(projector.message(queue_id, message_id)) == record(traffic.bodies[message_id])
    waiting.append(projector.prepare())
    for batch in waiting:
        projector.write(batch)
    gone = {queue.queue_id for queue in machine.by_id.values() if queue.gone}
    stored = {pair for pair in stored_messages(store) if pair[0] not in gone}
    homes = {(home_of(traffic.bodies[pair[1]], pair[0]), pair[1]) for pair in live_messages(machine)}
    assert stored == {pair for pair in homes if pair[0] not in gone}
    assert homes <= stored_messages(store)
    assert holders(store) == Counter(
        message_id for _, message_id in live_messages(machine) if is_shared(traffic.bodies[message_id])
    )
    digest = machine.digest()
    store.close()

    reopened = StateStore.open(tmp_path)
    loaded, again = reopened.open_partition("queues-0")
    loaded.validate()
    assert loaded.digest() == digest
    assert loaded.next_offset == traffic.log.next_offset
    for queue_id, message_id in live_messages(loaded):
        assert record(again.message(queue_id, message_id)) == record(traffic.bodies[message_id])
    reopened.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_lost_its_last_batches_folds_to_the_same_state(tmp_path: Path, seed: int) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = Traffic(seed, machine, projector)
    traffic.run(200)
    write(projector)
    offset = machine.next_offset
    traffic.run(100)
    projector.prepare()  # and never written
    store.close()

    reopened = StateStore.open(tmp_path)
    loaded = reopened.load("queues-0")
    assert loaded.next_offset == offset
    fold(loaded, traffic.log)
    assert loaded.digest() == machine.digest()
    reopened.close()


def test_a_message_that_lives_between_two_batches_never_reaches_rocksdb(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 0)
    traffic.append(ANN, attached("/", "q", 1, channel=1, tag="c", prefetch=100))
    write(projector)
    first = traffic.log.next_offset
    for _ in range(50):
        traffic.append(ANN, published(ROUTE, b"short-lived"))
    traffic.append(ANN, Acked("/", "q", 1, ((first, first + 49),)))
    traffic.end_turn()
    batch = projector.prepare()
    assert len(batch.changes) < 10  # head, the queue's own state, the offset: nothing for each message
    store.close()


def test_a_message_forgotten_before_the_write_goes_with_the_next_batch(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 3)
    queue = machine.queue("/", "q")
    assert queue is not None
    batch = projector.prepare()
    traffic.append(ANN, Purged("/", "q"))
    traffic.end_turn()
    projector.write(batch)
    ids = list(traffic.bodies)
    assert stored_messages(store) == {(queue.queue_id, message_id) for message_id in ids}
    assert projector.cache.used_bytes == 0
    write(projector)
    assert stored_messages(store) == set()
    with pytest.raises(KeyError, match=r"queues-0 message queue_id=\d+ id="):
        projector.message(queue.queue_id, ids[0])
    store.close()


@pytest.mark.parametrize("step", [1, 2])
def test_a_mass_that_left_is_deleted_in_few_steps_where_no_id_is_missing(tmp_path: Path, step: int) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 400)
    traffic.append(ANN, attached("/", "q", 1, channel=1, tag="c", prefetch=400))
    traffic.end_turn()
    write(projector)
    ids = list(traffic.bodies)
    acked = ids[50:350:step]
    traffic.append(ANN, Acked("/", "q", 1, tuple((each, each) for each in acked)))
    traffic.end_turn()
    batch = projector.prepare()
    assert len(batch.changes) < 10 if step == 1 else len(batch.changes) > len(acked)
    projector.write(batch)
    assert {message_id for _, message_id in stored_messages(store)} == set(ids).difference(acked)
    store.close()


def test_a_message_that_left_leaves_the_read_ahead_cache_too(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 300)
    queue = machine.queue("/", "q")
    assert queue is not None
    write(projector)
    projector.cache.drop_queue(queue.queue_id)
    ids = list(queue.ready_ids())
    projector.message(queue.queue_id, ids[0])
    ahead = [message_id for message_id in ids if projector.cache.get(queue.queue_id, message_id) is not None]
    assert ahead == ids[:READ_AHEAD_MESSAGES]
    traffic.append(ANN, Purged("/", "q"))
    traffic.end_turn()
    assert projector.cache.used_bytes == 0
    write(projector)
    with pytest.raises(KeyError):
        projector.message(queue.queue_id, ids[0])
    store.close()


def test_a_deleted_queue_takes_everything_of_it_along(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 3_000, b"")
    queue = machine.queue("/", "q")
    assert queue is not None
    write(projector)
    assert any(keys.queue_id_of(key, PREFIX) == queue.queue_id for key, _ in store.scan(PREFIX + b"C"))
    first = min(traffic.bodies)
    traffic.append(ANN, attached("/", "q", 1, channel=1, tag="c", prefetch=1))
    traffic.append(ANN, Acked("/", "q", 1, ((first, first),)))
    traffic.append(ANN, published(ROUTE, b"in memory"))
    traffic.end_turn()
    assert projector.leaving(queue.queue_id) == {first}
    traffic.append(ANN, QueueDeleted("/", "q", False, False))
    traffic.end_turn()
    assert (projector.pending_bytes, list(projector.in_memory())) == (0, [])
    write(projector)
    for kind in (b"C", b"M", b"Q"):
        assert not any(keys.queue_id_of(key, PREFIX) == queue.queue_id for key, _ in store.scan(PREFIX + kind))
    store.close()


def test_batches_are_written_once_and_in_order(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    _, projector = store.open_partition("queues-0")
    first, second = projector.prepare(), projector.prepare()
    with pytest.raises(RuntimeError, match="order"):
        projector.write(second)
    projector.write(first)
    with pytest.raises(RuntimeError, match="once"):
        projector.write(first)
    store.close()


def test_memory_stays_bounded_however_long_the_queue(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    projector.cache.limit_bytes = 200_000
    traffic = one_queue(projector, machine, 0)
    queue = machine.queue("/", "q")
    assert queue is not None
    turns = 0
    for _ in range(30):
        for _ in range(1_000):
            traffic.append(ANN, published(ROUTE, b"x" * 1_000))
        traffic.end_turn()
        assert projector.pending_bytes < FRESH_BYTES + 2_000 * 1_000
        if projector.wants_write:
            turns += 1
            write(projector)
            assert projector.pending_bytes == 0
    assert 4 <= turns <= 20
    write(projector)
    for message_id in queue.ready_ids():
        assert len(projector.message(queue.queue_id, message_id).body) == 1_000
        assert projector.cache.used_bytes <= max(projector.cache.limit_bytes, READ_AHEAD_MESSAGES * 1_500)
    store.close()


def test_a_body_larger_than_the_cache_can_be_read(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    projector.cache.limit_bytes = 10_000
    traffic = one_queue(projector, machine, 3, b"x" * 3_000_000)
    write(projector)
    queue = machine.queue("/", "q")
    assert queue is not None
    for message_id in queue.ready_ids():
        assert projector.message(queue.queue_id, message_id).body_size == 3_000_000
        assert projector.cache.used_bytes < 3_100_000  # one at a time
    assert traffic.now_ms == START_MS
    store.close()


@pytest.mark.parametrize(("room", "read"), [(1, 2), (0, 1)])
def test_reading_ahead_ends_where_its_bytes_end(tmp_path: Path, room: int, read: int) -> None:
    """The first of two messages leaves this many bytes of room for the second."""
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    besides = len(TODAY.of(published(ROUTE, bytes(READ_AHEAD_BYTES - 1_000)))) - (READ_AHEAD_BYTES - 1_000)
    traffic = one_queue(projector, machine, 2, bytes(READ_AHEAD_BYTES - besides - room))
    write(projector)
    queue = machine.queue("/", "q")
    assert queue is not None
    sizes = [len(value) for _, value in store.scan(keys.messages(PREFIX, queue.queue_id))]
    assert sizes == [READ_AHEAD_BYTES - room] * 2
    projector.cache.drop_queue(queue.queue_id)
    projector.message(queue.queue_id, min(traffic.bodies))
    assert len(projector.cache.queues[queue.queue_id]) == read
    store.close()


def test_written_bodies_are_cached_while_there_is_room(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 2)
    queue = machine.queue("/", "q")
    assert queue is not None
    projector.cache.limit_bytes = size_of(traffic.bodies.values())
    write(projector)
    traffic.append(ANN, published(ROUTE, b""))
    traffic.end_turn()
    write(projector)
    *first, last = traffic.bodies
    assert all(projector.cache.get(queue.queue_id, message_id) is traffic.bodies[message_id] for message_id in first)
    assert projector.cache.get(queue.queue_id, last) is None
    assert projector.message(queue.queue_id, last).body_size == 0
    store.close()


def test_a_projector_has_a_body_until_its_message_leaves(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 3)
    queue = machine.queue("/", "q")
    assert queue is not None
    left, *others = traffic.bodies
    never = max(traffic.bodies) + 1

    def had() -> list[int]:
        return [each for each in (left, *others, never) if projector.has(queue.queue_id, each)]

    assert had() == [left, *others]
    batch = projector.prepare()
    assert had() == [left, *others]
    projector.write(batch)
    assert had() == [left, *others]
    traffic.append(ANN, attached("/", "q", 1, channel=1, tag="c", prefetch=3))
    traffic.append(ANN, Acked("/", "q", 1, ((left, left),)))
    traffic.end_turn()
    assert had() == others
    assert (queue.queue_id, left) in stored_messages(store)
    write(projector)
    assert had() == others
    store.close()


class Flushes:
    """A RocksDB, and how it was flushed: True if the flush was waited for."""

    def __init__(self, rocks: Any) -> None:
        self._rocks = rocks
        self.waited: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rocks, name)

    def flush(self, wait: bool) -> None:
        self.waited.append(wait)
        self._rocks.flush(wait)


def test_rocksdb_is_flushed_after_so_many_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many since the last flush, whatever asked for that."""
    monkeypatch.setattr("rewindmq.projections.store.projector.PERSIST_EVENTS", 100)
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 0)
    write(projector)
    projector.persist()
    flushes = store._db.rocks = Flushes(store._db.rocks)  # type: ignore[assignment]

    def writes(*batches: int) -> list[bool]:
        flushes.waited.clear()
        for events in batches:
            for _ in range(events):
                traffic.append(ANN, published(ROUTE, b""))
            traffic.end_turn()
            write(projector)
        return flushes.waited

    assert writes(50, 49) == []
    assert writes(1) == [False]
    assert writes(99) == []
    projector.persist()
    assert flushes.waited == [True]
    assert writes(99) == []
    assert writes(1) == [False]
    store.close()


def test_a_store_that_is_made_anew_counts_the_bodies_that_it_lacks(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-0")
    traffic = one_queue(projector, machine, 5)
    projector.quarantined(1, "Acked", "no such queue")
    write(projector)
    queue = machine.queue("/", "q")
    assert queue is not None
    assert projector.missing == 0
    for message_id in list(traffic.bodies)[:2]:
        store._db.rocks.delete(keys.message(PREFIX, queue.queue_id, message_id))  # type: ignore[union-attr]
    for _ in range(2):  # the second time lacks the same ones
        projector.changed = {queue.queue_id}
        assert store.make_anew([projector]) == (3, 2)
        assert projector.missing == 2
        assert not projector.changed, "unknown which ones"
        assert store.quarantined("queues-0") == projector.quarantine
        assert store.load("queues-0").digest() == machine.digest()
    assert projector.quarantine_count == 1
    store.close()


def test_partitions_of_a_store_are_apart_and_share_its_cache(tmp_path: Path) -> None:
    store = StateStore.open(tmp_path)
    machine, projector = store.open_partition("queues-1")
    alone = projector.cache.limit_bytes
    traffic = one_queue(projector, machine, 5, b"of queues-1")
    write(projector)
    other_machine, other = store.open_partition("queues-10")
    assert projector.cache.limit_bytes == other.cache.limit_bytes == alone // 2
    one_queue(other, other_machine, 5, b"of queues-10")
    write(other)
    store.close()

    reopened = StateStore.open(tmp_path)
    for name, body in (("queues-1", b"of queues-1"), ("queues-10", b"of queues-10")):
        machine, projector = reopened.open_partition(name)
        assert machine.partition == name
        queue = machine.queue("/", "q")
        assert queue is not None
        ids = list(queue.ready_ids())
        assert ids == list(traffic.bodies)
        assert {projector.message(queue.queue_id, message_id).body for message_id in ids} == {body}
    assert reopened.applied_offset("queues-10") == traffic.log.next_offset
    assert reopened.applied_offset("queues-2") == 0
    assert reopened.load("queues-2").next_offset == 0
    reopened.close()
