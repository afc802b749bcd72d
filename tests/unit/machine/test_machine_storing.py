"""Pieces, chunks and memory: what is stored, what is written again, how much a ready message costs."""

import gc
import random
import sys

import pytest

from rewindmq.projections.machine.data import message_order
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.message_order import CHUNK, NONE, SPACE_SHIFT, Order, space_of
from rewindmq.projections.machine.data.message_word import PERSISTENT, SIZE_MASK
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.serialization import changes
from rewindmq.schemas.events import Acked, ConsumerAttached, Fetched, Published, Purged, QueueDeclared
from rewindmq.schemas.values import BROKER, Argument
from tests.support.events_for_tests import VHOST, Bench, policy, route


def filled(count: int, expiration: int | None = None) -> Machine:
    machine = Machine("queues-0")
    machine.apply(
        0,
        1000,
        BROKER,
        QueueDeclared(
            VHOST,
            "q",
            type="classic",
            durable=True,
            exclusive=False,
            auto_delete=False,
            owner=0,
            arguments=(),
            semantics="",
        ),
        [],
    )
    event = Published(route("q"), b"\x00\x00", expiration_ms=expiration, persistent=True, body=b"", body_size=100)
    effects: list[Effect] = []
    for offset in range(1, count + 1):
        machine.apply(offset, 1000, BROKER, event, effects)
        effects.clear()
    return machine


def array_bytes(order: Order) -> int:
    total = 0
    for chunk in order.chunks:
        total += sys.getsizeof(chunk) + sys.getsizeof(getattr(chunk, "__dict__", None)) + sys.getsizeof(chunk.number)
        total += sys.getsizeof(chunk.ids) + sys.getsizeof(chunk.words)
        total += 0 if chunk.expiries is None else sys.getsizeof(chunk.expiries)
    return total + sys.getsizeof(order.chunks)


@pytest.mark.parametrize(("expiration", "most"), [(None, 18.5), (60_000, 27.0)])
def test_s137_a_ready_message_costs_less_than_32_bytes(expiration: int | None, most: float) -> None:
    count = 100_000
    gc.collect()
    before = len(gc.get_objects())
    machine = filled(count, expiration)
    gc.collect()
    assert len(gc.get_objects()) - before < count / 100, "Python objects per ready message"
    queue = machine.queue(VHOST, "q")
    assert queue is not None
    assert queue.messages_ready == count
    assert (array_bytes(queue.arrived) + array_bytes(queue.returned)) / count < most < 32


def test_a_long_queue_writes_little_when_it_changes_little() -> None:
    machine = filled(10 * CHUNK)
    first = machine.take_dirty().queues[0]
    assert sorted(first.chunks) == list(range(10))
    assert machine.take_dirty().queues == []
    event = Published(route("q"), b"\x00\x00", persistent=True, body=b"", body_size=100)
    machine.apply(20_000, 1000, BROKER, event, [])
    second = machine.take_dirty().queues[0]
    assert (list(second.chunks), second.vanished) == ([10], [])
    for offset in range(20_001, 20_001 + CHUNK - 1):  # taking from the head rewrites no chunk
        machine.apply(offset, 1000, BROKER, Fetched(VHOST, "q", 5, 1, True), [])
    third = machine.take_dirty().queues[0]
    assert (third.chunks, third.vanished) == ({}, [])
    assert len(third.meta) < 1000
    machine.apply(30_000, 1000, BROKER, Fetched(VHOST, "q", 5, 1, True), [])
    assert machine.take_dirty().queues[0].vanished == [0]
    machine.apply(30_001, 1000, BROKER, Purged(VHOST, "q"), [])
    assert machine.take_dirty().queues[0].vanished == list(range(1, 11))


def test_returned_messages_stay_compact_and_sorted() -> None:
    """A consumer held everything and is gone; some of it goes out again and comes back in the middle."""
    machine = filled(6 * CHUNK)
    attached = ConsumerAttached(
        VHOST,
        "q",
        9,
        channel=1,
        tag="t",
        no_ack=False,
        exclusive=False,
        prefetch=0,
        credit=10**9,
        global_prefetch=0,
        priority=0,
        arguments=(),
    )
    machine.apply(10_000, 1000, BROKER, attached, [])
    queue = machine.queue(VHOST, "q")
    assert queue is not None
    assert queue.messages_unacked == 6 * CHUNK
    odd = [message_id for message_id in queue.holders[9].held if message_id % 2]
    give_back(machine, 10_001, odd)
    machine.validate()
    assert queue.returned.count + queue.messages_unacked == 6 * CHUNK
    assert array_bytes(queue.returned) / max(1, queue.returned.count) < 40
    loaded = Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    loaded.validate()
    assert loaded.digest() == machine.digest()


def give_back(machine: Machine, offset: int, ids: list[int]) -> None:
    """Cancel consumer 9, then return `ids` from the last to the first, then all the others."""
    from rewindmq.schemas.events import ConsumerCancelled, Nacked

    machine.apply(offset, 1000, BROKER, ConsumerCancelled(VHOST, "q", 9), [])
    rest = [i for i in range(1, 6 * CHUNK + 1) if i not in set(ids)]
    for message_id in [*reversed(ids), *rest[: len(rest) // 2]]:
        offset += 1
        event = Nacked(VHOST, "q", 9, ((message_id, message_id),), True, "nack")
        machine.apply(offset, 1000, BROKER, event, [])


@pytest.mark.parametrize("seed", range(20))
def test_an_order_is_a_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appending, taking, inserting by id, over chunk boundaries and splits, beside a plain sorted list."""
    monkeypatch.setattr(message_order, "CHUNK", 3)
    dice = random.Random(seed)
    order = Order(True)
    plain: list[tuple[int, int, int]] = []
    for step in range(600):
        if plain and dice.random() < 0.48:
            assert order.take() == plain.pop(0)
        else:
            top = plain[dice.randrange(len(plain))][0] if plain and dice.random() < 0.9 else 1000 * step
            word = dice.randrange(SIZE_MASK) | (PERSISTENT if dice.random() < 0.9 else 0) | dice.randrange(9) << 33
            message = (top + dice.choice((-1, 1)) * dice.randint(1, 400), word, dice.choice((NONE, NONE, step)))
            if message[0] not in [m[0] for m in plain]:
                order.insert(*message)
                plain = sorted([*plain, message])
        assert list(order.items()) == plain
        assert (order.count, order.expiring) == (len(plain), sum(m[2] != NONE for m in plain))
        assert order.start < max(1, len(order.head.ids))
        numbers = [chunk.number for chunk in order.chunks]
        assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))
        persistent = all(m[1] & PERSISTENT for m in plain)
        assert order.has_transient() == (not persistent)
        assert order.recount() == sum(m[1] & SIZE_MASK for m in plain)
        assert (order.count, order.expiring) == (len(plain), sum(m[2] != NONE for m in plain))
        if plain:
            assert order.first_expiry() == plain[0][2]
    assert len(order.chunks) > 1


@pytest.mark.parametrize("space", [0, 3])
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_store_has_the_chunks_of_an_order(
    seed: int, returned: bool, space: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store writes what changed and deletes what vanished: then its numbers give the order again, whatever happened.

    It writes only now and then, and an unchanged chunk is not written."""
    monkeypatch.setattr(message_order, "CHUNK", 3)
    dice = random.Random(seed)
    order, stored = Order(returned, space), dict[int, list[int]]()
    first = -1 - (space << SPACE_SHIFT) if returned else space << SPACE_SHIFT
    last_id, most = 10_000, 0
    for _ in range(400):
        ready = list(order.ids())
        what = dice.randrange(9)
        if what < 3:
            last_id += 10
            order.append(last_id, 1, NONE)
        elif what < 5 and ready:
            if (between := dice.choice(ready) - dice.randint(1, 9)) not in ready:
                order.insert(between, 1, NONE)
        elif what == 5 and ready:
            order.put_first(ready[0] - 1, 1, NONE)
        elif what == 6 and ready:
            order.take()
        elif what == 7 and ready:
            order.remove(dice.sample(ready, min(len(ready), 4)), scan=False)
        elif what == 8 and ready and dice.random() < 0.1:
            assert [message_id for ids in order.clear() for message_id in ids] == ready
        if dice.random() < 0.3:
            write_chunks(order, stored)
            kept = [message_id for number in sorted(stored, key=abs) for message_id in stored[number]]
            assert kept[order.start :] == list(order.ids())
            assert all(abs(number) >= abs(first) and space_of(number) == space for number in stored)
            most = max(most, len(stored))
    assert most > 3


def write_chunks(order: Order, stored: dict[int, list[int]]) -> None:
    chunks, vanished = dict[int, bytes](), list[int]()
    changes._take_dirty_chunks(order, chunks, vanished)
    for number in vanished:
        if number not in chunks:
            del stored[number]
    stored.update({chunk.number: list(chunk.ids) for chunk in order.chunks if chunk.number in chunks})


def test_arguments_of_every_type_survive() -> None:
    values = (None, True, 5, -1, 1.5, "text \udcff é", b"\x00\xff")
    arguments = tuple(Argument(f"x-{n}", "longstr", value) for n, value in enumerate(values))
    machine = Machine("queues-0")
    declared = QueueDeclared(
        "vh/ö",
        "q",
        type="quorum",
        durable=True,
        exclusive=False,
        auto_delete=False,
        owner=0,
        arguments=arguments,
        semantics="s",
        policy=policy("p", a=1),
    )
    machine.apply(0, 5, BROKER, declared, [])
    loaded = Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    queue = loaded.queue("vh/ö", "q")
    assert queue is not None
    assert (queue.arguments, queue.policy) == (arguments, policy("p", a=1))
    assert loaded.digest() == machine.digest()


def test_pieces_of_different_states_are_refused() -> None:
    machine = filled(3 * CHUNK)
    _, meta, chunks = next(iter(machine.pieces()))
    del chunks[1]
    with pytest.raises(ValueError, match="messages in its chunks"):
        Machine.load("queues-0", machine.head(), [(meta, chunks)])
    chunks[1] = b"\x00" * 20
    with pytest.raises(ValueError, match="chunk 1"):
        Machine.load("queues-0", machine.head(), [(meta, chunks)])


def test_every_change_changes_the_digest() -> None:
    """The digest covers all state that decides the future: the turn in the round robin, a held letter, the lease ..."""
    bench = Bench()
    digests = [bench.machine.digest()]

    def changed() -> None:
        digests.append(bench.machine.digest())
        assert digests[-1] not in digests[:-1]

    bench.declare(expires=100_000)
    changed()
    one = bench.attach(prefetch=2)
    changed()
    bench.attach(prefetch=2)
    changed()
    message = bench.publish()
    changed()
    bench.do(Acked("/", "q", one, ((message, message),)))
    changed()  # the queue is empty again, but it is the other consumer's turn
    bench.close(1)
    changed()
    bench.now_ms += 5
    bench.get()
    changed()  # the lease
    bench.publish(expiration=5000)
    changed()
    bench.apply_policy(policy("p", max_length=5))
    changed()
