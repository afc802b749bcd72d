"""The lookahead of a consumer (projections/machine/events/lookahead.py)."""

from typing import Any

import pytest

from rewindmq.projections.machine.data.effects import Deliver, Quarantine, Requeue
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import ConsumerCancelled, Credited
from tests.support.events_for_tests import VHOST, Bench

TYPES = pytest.mark.parametrize("type", ["classic", "quorum"])


def credit(bench: Bench, consumer: int, credit: int) -> list[tuple[object, ...]]:
    return bench.do(Credited(VHOST, "q", consumer, credit))


def give_back(bench: Bench, consumer: int, first: int) -> list[tuple[object, ...]]:
    """Give the messages back that were not sent, from this one on."""
    return credit(bench, consumer, -1 - first)


def delivered(bench: Bench) -> list[tuple[int, bool, int]]:
    """(message, redelivered, delivery count) of the last event's deliveries."""
    return [
        (message_id, e.redelivered, e.delivery_count)
        for e in bench.effects
        if isinstance(e, Deliver)
        for message_id in e.message_ids
    ]


def with_lookahead(type: str, prefetch: int = 2, lookahead: int = 3, messages: int = 8) -> tuple[Bench, int, list[int]]:
    bench = Bench()
    bench.declare(type=type)
    consumer = bench.attach(prefetch=prefetch)
    credit(bench, consumer, lookahead)
    return bench, consumer, [bench.publish() for _ in range(messages)]


def plain(ids: list[int]) -> list[tuple[int, bool, int]]:
    return [(message_id, False, 0) for message_id in ids]


@TYPES
def test_a_consumer_that_is_alone_holds_its_prefetch_and_its_lookahead(type: str) -> None:
    bench, consumer, ids = with_lookahead(type)
    queue = bench.queue()
    assert list(queue.holders[consumer].held) == ids[:5]
    bench.ack(consumer, ids[0])
    assert delivered(bench) == plain([ids[5]])
    credit(bench, consumer, 4)
    assert delivered(bench) == plain([ids[6]])
    loaded = Machine.load("queues-0", bench.machine.head(), [piece[1:] for piece in bench.machine.pieces()])
    assert loaded.digest() == bench.machine.digest()
    loaded.validate()


@TYPES
def test_what_was_not_sent_comes_back_unchanged_and_first(type: str) -> None:
    bench, consumer, ids = with_lookahead(type)
    credit(bench, consumer, 0)
    give_back(bench, consumer, ids[2])
    (back,) = [effect for effect in bench.effects if isinstance(effect, Requeue)]
    assert (list(back.message_ids), back.reason) == (ids[2:5], "unsent")
    assert list(bench.queue().ready_ids()) == ids[2:]
    bench.ack(consumer, ids[0], ids[1])
    assert delivered(bench) == plain(ids[2:4])


@TYPES
def test_with_the_end_of_a_session_what_was_sent_comes_back_before_it(type: str) -> None:
    bench, consumer, ids = with_lookahead(type)
    give_back(bench, consumer, ids[2])
    bench.close(1)
    bench.attach(prefetch=20, session=2)
    count = 1 if type == "quorum" else 0
    assert delivered(bench) == [(ids[0], True, count), (ids[1], True, count), *plain(ids[2:])]


@TYPES
def test_a_cancelled_consumer_gives_its_lookahead_back(type: str) -> None:
    bench, consumer, ids = with_lookahead(type)
    bench.do(ConsumerCancelled(VHOST, "q", consumer))
    give_back(bench, consumer, ids[2])
    assert list(bench.queue().holders[consumer].held) == ids[:2]
    other = bench.attach(prefetch=3, session=2)
    assert delivered(bench) == plain(ids[2:5])
    assert other in bench.queue().holders


@TYPES
def test_another_consumer_ends_the_lookahead_and_gets_what_was_in_it(type: str) -> None:
    bench, consumer, ids = with_lookahead(type, messages=5)
    other = bench.attach(prefetch=2, session=2)
    assert delivered(bench) == []
    bench.ack(consumer, ids[0])
    give_back(bench, consumer, ids[2])
    got = [(e.consumer, each) for e in bench.effects if isinstance(e, Deliver) for each in e.message_ids]
    assert [message_id for _, message_id in got] == ids[2:5]
    assert [who for who, _ in got].count(other) == 2
    credit(bench, consumer, 3)
    assert bench.queue().holders[consumer].lookahead == 0, "it is not alone"


@pytest.mark.parametrize(
    ("type", "semantics", "keys"),
    [
        ("classic", "rabbitmq-3.13", {"max_priority": 5}),
        ("quorum", "rabbitmq-4.3", {}),
        ("quorum", "rabbitmq-3.13", {"single_active_consumer": True}),
    ],
)
def test_queues_with_priorities_or_one_active_consumer_have_none(
    type: str, semantics: str, keys: dict[str, Any]
) -> None:
    bench = Bench()
    bench.declare(type=type, semantics=semantics, **keys)
    consumer = bench.attach(prefetch=2)
    credit(bench, consumer, 3)
    ids = [bench.publish() for _ in range(4)]
    assert list(bench.queue().holders[consumer].held) == ids[:2]


def test_a_shared_limit_ends_the_lookahead() -> None:
    bench, consumer, ids = with_lookahead("classic")
    bench.qos(4)
    assert bench.queue().holders[consumer].lookahead == 0
    give_back(bench, consumer, ids[2])
    assert list(bench.queue().holders[consumer].held) == ids[:2]


@TYPES
def test_nonsense_is_quarantined(type: str) -> None:
    bench, consumer, ids = with_lookahead(type)
    give_back(bench, consumer, ids[7])
    assert [each.__class__ for each in bench.effects] == [Quarantine]
    bench.do(ConsumerCancelled(VHOST, "q", consumer))
    credit(bench, consumer, 1)
    assert [each.__class__ for each in bench.effects] == [Quarantine]


@pytest.mark.long
def test_many_come_back_before_many_that_wait() -> None:
    bench, consumer, ids = with_lookahead("quorum", prefetch=10, lookahead=3_000, messages=5_000)
    give_back(bench, consumer, ids[10])
    assert list(bench.queue().ready_ids()) == ids[10:]
