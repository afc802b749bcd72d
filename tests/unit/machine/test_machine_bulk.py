"""Many messages that leave or come back at once do so exactly as one by one, and in few effects."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from rewindmq.projections.machine import validation
from rewindmq.projections.machine.data import message_order
from rewindmq.projections.machine.data.effects import DeadLetter, Effect, Forget, Release, Requeue
from rewindmq.projections.machine.data.message_order import NONE, Order, stretch_of
from rewindmq.projections.machine.data.message_word import LEVEL_SHIFT
from rewindmq.projections.machine.data.outbox import Carried, LetterKind, Outbox, OutboxEntry
from rewindmq.projections.machine.data.priority_order import Prioritized
from rewindmq.schemas.events import DeadLettersForwarded, Nacked, QueueDeleted, SessionClosed, Tick
from tests.support.events_for_tests import Bench, explain, policy
from tests.support.letters import message_by_message
from tests.support.needs import require_patchable

MANY = 3_000
DYING: dict[str, object] = {"dead_letter_exchange": "dlx", "dead_letter_routing_key": "dead"}
Told = list[tuple[object, ...]]


# -- the orders of messages --------------------------------------------------------------------------------------------


@pytest.fixture(params=[2, 5, 1024])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_order, "CHUNK", request.param)


def orders(kind: str) -> Order:
    return Prioritized(3, 0) if kind == "prioritized" else Order(kind == "returned")


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("kind", ["arrived", "returned", "prioritized"])
@pytest.mark.parametrize("seed", range(8))
def test_an_order_takes_and_gives_many_as_one_by_one(seed: int, kind: str) -> None:
    dice = random.Random(seed)
    at_once, one_by_one = orders(kind), orders(kind)
    next_id = 0
    out: list[tuple[int, int, int]] = []
    for _ in range(60):
        what = dice.randrange(4)
        if what == 0:  # they come behind all others
            rows = []
            for _ in range(dice.randrange(1, 12)):
                next_id += dice.randrange(1, 4)
                level = dice.randrange(4) if kind == "prioritized" else 0
                expiry = dice.choice((NONE, NONE, next_id + 100))
                rows.append((next_id, level << LEVEL_SHIFT | dice.randrange(100), expiry))
            at_once.append_all(stretch_of(rows))
            for row in rows:
                one_by_one.append(*row)
        elif what == 1 and out and kind != "arrived":  # they come back
            back = sorted(dice.sample(out, dice.randrange(1, len(out) + 1)))
            out = [row for row in out if row not in back]
            at_once.insert_all(stretch_of(back))
            for row in back:
                one_by_one.insert(*row)
        elif one_by_one.count:
            count = dice.randrange(1, one_by_one.count + 3)
            taken = list(at_once.take_first(count).rows())
            assert taken == [one_by_one.take() for _ in range(min(count, one_by_one.count))]
            out += taken
        assert list(at_once.items()) == list(one_by_one.items())
        assert (at_once.count, at_once.expiring) == (one_by_one.count, one_by_one.expiring)
        for order in at_once.orders():
            validation._validate_order(order)


@pytest.mark.usefixtures("chunk")
def test_what_has_expired_and_what_reaches_a_size_is_found_from_the_head() -> None:
    order = Order(False)
    order.append_all(stretch_of([(number, 10, 50 if number < 20 else NONE) for number in range(30)]))
    order.take_first(3)
    assert (order.expired(49), order.expired(50)) == (0, 17)
    assert (order.reaching(1), order.reaching(10), order.reaching(11)) == ((1, 0), (1, 0), (2, 0))
    assert order.reaching(271) == (27, 1)


def test_an_outbox_is_like_a_dict_of_letters() -> None:
    dice = random.Random(1)
    outbox, expected, sequence = Outbox(), dict[int, OutboxEntry](), 1
    kinds: list[LetterKind] = [
        ("maxlen", "dlx", None, False, False),
        ("rejected", "dlx", "key", True, False),
        ("relocated", "", None, False, False),
    ]
    for _ in range(400):
        kind, count = dice.choice(kinds), dice.randrange(1, 9)
        if dice.random() < 0.6:
            for number in range(sequence, sequence + count):
                kept = Carried(number, 0, False, NONE) if kind[0] == "relocated" else None
                expected[number] = OutboxEntry(number, number * 10, number % 7, *kind, kept)
                if kept is not None:
                    outbox.carried[number] = kept
            numbers = range(sequence, sequence + count)
            outbox.add(sequence, [number * 10 for number in numbers], [number % 7 for number in numbers], kind)
            sequence += count
        else:
            below, relocated = dice.randrange(sequence), dice.random() < 0.5
            places = outbox.held() if dice.random() < 0.2 else outbox.up_to(below, relocated)
            leaving = [outbox.sequences[at] for at in places]
            gone = [expected.pop(number) for number in leaving]
            if gone:
                held = [each for each in gone if each.at_least_once]
                ids, held_count, held_bytes = outbox.remove(places)
                assert list(ids) == [each.message_id for each in gone]
                assert (held_count, held_bytes) == (len(held), sum(each.size for each in held))
        assert list(outbox.values()) == list(expected.values())
        assert list(outbox) == list(expected)
        assert len(outbox) == len(expected)
        assert outbox.first(-1) == next(iter(expected), -1)
        wanted = dice.randrange(sequence)
        assert (wanted in outbox) is (wanted in expected)
        again = Outbox()
        if expected:
            again.load(*outbox.packed())
        assert list(again.values()) == list(expected.values())


# -- the machine -------------------------------------------------------------------------------------------------------


def filled(bench: Bench, dice: random.Random, count: int, **keys: Any) -> None:
    kind = str(keys.pop("type", "classic"))
    bench.declare(type=kind, **keys)
    for _ in range(count):
        expiration = dice.choice((None, 10_000))
        bench.publish(size=dice.randrange(1, 9), priority=dice.choice((None, 1, 3)), expiration=expiration)


def pair(seed: int, **keys: object) -> tuple[Bench, Bench]:
    """Two machines in the same state."""
    found = Bench(), Bench()
    for bench in found:
        filled(bench, random.Random(seed), 40, **keys)
    return found


QUEUES: list[dict[str, object]] = [
    {},
    {"max_priority": 3},
    {"type": "quorum"},
    {"type": "quorum", "semantics": "rabbitmq-4.3"},
    {"type": "quorum", "delivery_limit": 1},
]


@pytest.mark.parametrize("limit", ["max_length", "max_length_bytes"])
@pytest.mark.parametrize("keys", QUEUES[:4], ids=str)
def test_a_limit_drops_many_as_one_by_one(keys: dict[str, object], limit: str) -> None:
    at_once, slowly = pair(1, **keys, **DYING)
    ready = at_once.queue().messages_ready
    most = ready if limit == "max_length" else at_once.queue().message_bytes_ready
    at_once.apply_policy(policy("lim", **{limit: 5}))
    told: Told = []
    for value in range(most, 4, -1):
        slowly.apply_policy(policy("lim", **{limit: value}))
        told += message_by_message(explain(slowly.effects))
    assert message_by_message(explain(at_once.effects)) == told
    assert at_once.machine.digest() == slowly.machine.digest()
    assert [type(effect) for effect in at_once.effects] == [Forget, DeadLetter]


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("keys", QUEUES, ids=str)
def test_many_come_back_as_one_by_one(keys: dict[str, object], requeue: bool) -> None:
    at_once, slowly = pair(2, **keys, **DYING)
    ids: list[int] = []
    for bench in (at_once, slowly):
        ids = [bench.get(no_ack=False) for _ in range(30)]
    if len(keys) > 1:  # of those that came back before, some die at the next return
        for bench in (at_once, slowly):
            bench.nack(50, *ids[::3])
            assert all(bench.get(no_ack=False) >= 0 for _ in ids[::3])
        ids = list(at_once.queue().holders[50].held)
    at_once.do(Nacked("/", "q", 50, tuple((each, each) for each in sorted(ids)), requeue, "nack"))
    told: Told = []
    if "max_priority" in keys and not requeue:  # the highest priority dies first
        held = slowly.queue().holders[50].held
        ids.sort(key=lambda each: held[each] >> LEVEL_SHIFT, reverse=True)
    for each in ids:
        slowly.nack(50, each, requeue=requeue)
        told += message_by_message(explain(slowly.effects))
    bulk = message_by_message(explain(at_once.effects))
    assert sorted(bulk, key=str) == sorted(told, key=str)
    assert at_once.ready() == slowly.ready()
    assert [type(effect) for effect in at_once.effects].count(DeadLetter) <= 1
    if "delivery_limit" not in keys:  # deaths come behind all returns
        assert bulk == told
        assert at_once.machine.digest() == slowly.machine.digest()


def kinds_of(effects: list[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


def many(keys: dict[str, object], expiration: int | None = None) -> Bench:
    """A queue with many messages. The steps are not validated: that takes a time for each message."""
    bench = Bench()
    bench.declare(**keys)  # type: ignore[arg-type]
    validate, bench.machine.validate = bench.machine.validate, lambda: None  # type: ignore[method-assign]
    for _ in range(MANY):
        bench.publish(expiration=expiration)
    bench.machine.validate = validate  # type: ignore[method-assign]
    return bench


def mass() -> Iterator[tuple[str, Bench, object, list[type[Effect]]]]:
    died: list[type[Effect]] = [Forget, DeadLetter]
    yield "limit", many(DYING), policy("lim", max_length=1), died
    yield "time", many({**DYING}, 1_000), Tick(), died
    yield "reject", many(DYING), Nacked("/", "q", 101, ((1, MANY),), False, "nack"), died
    yield "requeue", many(DYING), Nacked("/", "q", 101, ((1, MANY),), True, "nack"), [Requeue]
    yield "session", many(DYING), SessionClosed(1, 0), [Requeue]


@pytest.mark.parametrize("at", range(5), ids=("limit", "time", "reject", "requeue", "session"))
def test_the_effects_of_many_are_few(at: int) -> None:
    """A mass that leaves at once is one effect of each kind; its letters are released in one as well."""
    require_patchable("rewindmq.projections.machine.machine.Machine.validate")
    name, bench, event, kinds = list(mass())[at]
    if name == "limit":
        bench.apply_policy(event)  # type: ignore[arg-type]
    elif name == "time":
        bench.now_ms += 1_000
        bench.do(event)  # type: ignore[arg-type]
    else:
        bench.attach(credit=MANY)
        assert bench.queue().messages_unacked == MANY
        bench.do(event)  # type: ignore[arg-type]
    assert kinds_of(bench.effects) == kinds
    queue = bench.queue()
    if DeadLetter in kinds:
        letters = len(queue.outbox)
        assert letters in (MANY - 1, MANY)
        bench.do(DeadLettersForwarded("/", "q", queue.queue_id, letters - 10))
        assert kinds_of(bench.effects) == [Release]
        assert list(queue.outbox) == list(range(letters - 9, letters + 1))


def test_a_deleted_queue_forgets_only_messages_that_it_had() -> None:
    bench = Bench()
    bench.declare()
    consumer = bench.attach(prefetch=1)
    bench.do(QueueDeleted("/", "q", if_unused=False, if_empty=False))
    assert [type(effect).__name__ for effect in bench.effects] == ["CancelConsumer", "QueueGone"]
    assert bench.effects[0].consumer == consumer  # type: ignore[union-attr]
