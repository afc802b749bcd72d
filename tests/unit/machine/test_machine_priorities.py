"""Classic queues with priorities (docs/behaviours/consumers.md), event by event. What is not obvious was measured on
RabbitMQ
3.10.8 (tests/clients/scenarios_priority.py)."""

from typing import Any

import pytest

from rewindmq.projections.machine.data import message_order
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import BrokerStarted, Tick
from tests.support.events_for_tests import VHOST, Bench, explain


def prioritized(highest: int = 5, **keys: Any) -> Bench:
    bench = Bench()
    bench.declare(max_priority=highest, **keys)
    return bench


def publish(bench: Bench, *priorities: int | None, expiration: int | None = None) -> list[int]:
    return [bench.publish(priority=priority, expiration=expiration) for priority in priorities]


def test_s101_the_highest_priority_is_served_first_and_within_it_the_oldest() -> None:
    """S-089."""
    bench = prioritized()
    a, b, c, d, e = publish(bench, 1, 3, None, 3, 0)
    assert bench.ready() == [b, d, a, c, e]
    assert [bench.get() for _ in range(5)] == [b, d, a, c, e]


@pytest.mark.parametrize(("highest", "levels"), [(0, (0, 1)), (1, (0, 1)), (255, (0, 255)), (1000, (0, 255))])
def test_s103_s105_the_maximum_is_clamped_and_so_are_messages(highest: int, levels: tuple[int, int]) -> None:
    """S-104."""
    bench = prioritized(highest)
    low, high = publish(bench, -1, 10_000)
    assert bench.ready() == [high, low]
    orders = bench.queue().prioritized
    assert orders is not None
    assert tuple(sorted(orders.levels)) == levels


def test_s106_a_policy_gives_no_priorities() -> None:
    bench = Bench()
    bench.declare()
    bench.apply_policy(None)
    assert bench.queue().prioritized is None
    first, second = publish(bench, 1, 9)
    assert bench.ready() == [first, second]


def test_a_quorum_queue_has_no_priorities_s107() -> None:
    bench = Bench()
    bench.declare(type="quorum", max_priority=5)
    first, second = publish(bench, 1, 5)
    assert bench.ready() == [first, second]


def test_what_comes_back_goes_to_its_place_in_its_level() -> None:
    bench = prioritized()
    a, b, c, d = publish(bench, 2, 2, 4, 4)
    consumer = bench.attach(prefetch=3)
    assert bench.delivered() == [c, d, a]
    back, again = bench.nack(consumer, c)
    assert back == ("requeue", "q", c, consumer, "nack")
    assert again == ("deliver", "q", c, consumer, True, 0, False)
    bench.close(1)
    assert bench.ready() == [c, d, a, b]
    assert [view.redelivered for view in bench.queue().messages()] == [True, True, True, False]
    assert {view.delivery_count for view in bench.queue().messages()} == {0}


def test_s030_the_limit_drops_the_highest_priority_first() -> None:
    bench = prioritized(max_length=2)
    low, high = publish(bench, 0, 5)
    middle = bench.publish(priority=1)
    assert explain(bench.effects) == [("keep", "q", middle), ("forget", "q", high, "maxlen", 0)]
    assert bench.ready() == [middle, low]


def test_s050_only_the_next_message_expires() -> None:
    bench = prioritized()
    (low,) = publish(bench, 1, expiration=10)
    (high,) = publish(bench, 4)
    bench.now_ms += 50
    bench.do(Tick())
    assert bench.ready() == [high, low]  # it is dead, and counted
    assert bench.get() == high
    assert explain(bench.effects)[1:] == [("forget", "q", low, "expired", 0)]
    assert bench.ready() == []


def test_a_message_on_top_expires_in_time() -> None:
    """RabbitMQ looks at it only when something else happens: its timer is not set anew for a message that comes to the
    head of a longer queue (rabbit_amqqueue_process.erl deliver_or_enqueue)."""
    bench = prioritized()
    (low,) = publish(bench, 1)
    publish(bench, 4, expiration=10)
    assert bench.machine.deadline_ms() == bench.now_ms + 10
    bench.now_ms += 10
    assert bench.get() == low


def test_dead_letters_of_one_reject_go_by_priority() -> None:
    bench = prioritized(dead_letter_exchange="dlx")
    consumer = bench.attach(prefetch=5)
    a, b, c, d = publish(bench, 1, 4, 4, 0)
    bench.nack(consumer, a, b, c, d, requeue=False)
    assert [entry.message_id for entry in bench.queue().outbox.values()] == [b, c, a, d]


def test_transient_messages_go_with_the_broker() -> None:
    bench = prioritized()
    bench.publish(priority=3, persistent=False)
    kept = bench.publish(priority=1)
    bench.publish(priority=1, persistent=False)
    bench.do(BrokerStarted("n", "1", 2), 0)
    assert bench.ready() == [kept]


@pytest.mark.parametrize("chunk", [2, 1024])
def test_stored_and_loaded(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(message_order, "CHUNK", chunk)
    bench = prioritized(7)
    ids = publish(bench, *(number * 5 % 11 for number in range(40)))
    consumer = bench.attach(prefetch=9)
    bench.nack(consumer, *bench.delivered()[::2])
    machine = bench.machine
    pieces = [(meta, chunks) for _, meta, chunks in machine.pieces()]
    loaded = Machine.load("queues-0", machine.head(), pieces)
    loaded.validate()
    assert loaded.digest() == machine.digest()
    queue = loaded.queue(VHOST, "q")
    assert queue is not None
    assert list(queue.ready_ids()) == bench.ready()
    assert len(bench.ready()) == len(ids) - 9
    dirty = machine.take_dirty()
    again = Machine.load("queues-0", dirty.head, [(q.meta, q.chunks) for q in dirty.queues])
    assert again.digest() == machine.digest()
