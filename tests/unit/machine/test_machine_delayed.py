"""Messages that wait: delayed retry of profile rabbitmq-4.3 (docs/behaviours/profiles.md), and the queue
of a delayed exchange."""

import random
from array import array
from typing import Any

import pytest

from rewindmq.projections.machine.data import message_order
from rewindmq.projections.machine.data.delayed_order import Timed, exchange_of, queue_of
from rewindmq.projections.machine.data.effects import DeadLetter, Keep, Release
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.profile import RABBITMQ_3_13, RABBITMQ_4_3
from rewindmq.projections.machine.rules.settings import resolve
from rewindmq.schemas.events import (
    BrokerStarted,
    DeadLettersForwarded,
    Nacked,
    Purged,
    QueueDeleted,
    Tick,
)
from tests.support.events_for_tests import VHOST, Bench, declared, explain, policy

QUEUE = queue_of("x")


def retrying(kind: str, least: int = 10, **keys: Any) -> Bench:
    bench = Bench()
    bench.declare(type="quorum", semantics="rabbitmq-4.3", delayed_retry_type=kind, delayed_retry_min=least, **keys)
    return bench


def give_back(bench: Bench, consumer: int, message_id: int, method: str) -> list[tuple[object, ...]]:
    return bench.do(Nacked(VHOST, "q", consumer, ((message_id, message_id),), True, method))


def delayed() -> Bench:
    bench = Bench()
    bench.declare(QUEUE, type="delayed")
    return bench


def waiting(bench: Bench, queue: str = "q") -> list[int]:
    return [view.message_id for view in bench.queue(queue).messages() if view.state == "delayed"]


# -- delayed retry -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "nacked", "rejected"),
    [("all", True, True), ("failed", False, True), ("returned", True, False), ("disabled", False, False)],
)
def test_which_messages_wait(kind: str, nacked: bool, rejected: bool) -> None:
    for method, waits in (("nack", nacked), ("reject", rejected)):
        bench = retrying(kind)
        message_id = bench.publish()
        bench.get(no_ack=False)
        told = give_back(bench, 50, message_id, method)
        if waits:
            assert told == [("delay", "q", message_id, 50, method, bench.now_ms + 10)]
            assert (bench.ready(), waiting(bench)) == ([], [message_id])
        else:
            assert told == [("requeue", "q", message_id, 50, method)]
            assert bench.ready() == [message_id]


def test_the_delay_grows_with_failures_up_to_the_maximum() -> None:
    bench = retrying("all", 10, delayed_retry_max=25)
    message_id = bench.publish()
    consumer = bench.attach(prefetch=1)
    delays = []
    for method in ("nack", "reject", "reject", "reject"):
        due_ms = give_back(bench, consumer, message_id, method)[0][5]
        assert isinstance(due_ms, int)
        delays.append(due_ms - bench.now_ms)
        bench.now_ms = due_ms
        again = bench.do(Tick())
        assert again[0] == ("requeue", "q", message_id, 0, "delayed")
        assert bench.delivered() == [message_id]
    assert delays == [10, 10, 20, 25]


def test_waiting_messages_are_served_by_time_after_returned_ones() -> None:
    bench = retrying("failed")
    a, b, c, d = (bench.publish() for _ in range(4))
    for consumer in (51, 52, 53):
        bench.get(no_ack=False, consumer=consumer)
    give_back(bench, 52, b, "reject")
    bench.now_ms += 1
    give_back(bench, 51, a, "reject")
    give_back(bench, 53, c, "nack")
    bench.now_ms += 20
    bench.do(Tick())
    assert bench.ready() == [c, b, a, d]


@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 4}])
def test_who_waits_counts_towards_limits_and_is_not_dropped(limit: dict[str, Any]) -> None:
    bench = retrying("all", **limit)
    first, second = bench.publish(size=2), bench.publish(size=2)
    bench.get(no_ack=False)
    give_back(bench, 50, first, "nack")
    third = bench.publish(size=2)
    assert ("forget", "q", second, "maxlen", 0) in explain(bench.effects)
    assert (bench.ready(), waiting(bench)) == ([third], [first])
    assert bench.queue().messages_delayed == 1


def test_who_waits_does_not_expire_before_his_time() -> None:
    bench = retrying("all", 50)
    message_id = bench.publish(expiration=20)
    bench.get(no_ack=False)
    give_back(bench, 50, message_id, "nack")
    bench.now_ms += 40
    assert bench.do(Tick()) == []
    bench.now_ms += 10
    assert bench.do(Tick()) == [("requeue", "q", message_id, 0, "delayed"), ("forget", "q", message_id, "expired", 0)]


def test_purged_and_deleted_with_the_others() -> None:
    for event, reason in ((Purged(VHOST, "q"), "purged"), (QueueDeleted(VHOST, "q", False, False), "deleted")):
        bench = retrying("all")
        first, second = bench.publish(expiration=100), bench.publish()
        bench.get(no_ack=False)
        give_back(bench, 50, first, "nack")
        told = bench.do(event)
        assert told[:2] == [("forget", "q", second, reason, 0), ("forget", "q", first, reason, 0)]
        bench.now_ms += 500
        assert bench.do(Tick()) == []


def test_without_a_limit_it_waits_as_well() -> None:
    bench = retrying("all", delivery_limit=-1)
    message_id = bench.publish()
    bench.get(no_ack=False)
    assert give_back(bench, 50, message_id, "nack")[0][0] == "delay"


def test_a_policy_may_say_it_and_an_operator_may_raise_the_minimum() -> None:
    given = policy("p", delayed_retry_type="all", delayed_retry_min=5, delayed_retry_max=100)
    above = policy("o", delayed_retry_type="failed", delayed_retry_min=20, delayed_retry_max=50)
    settings = resolve("quorum", (), given, above, RABBITMQ_4_3)
    assert (settings.retry, settings.retry_min_ms, settings.retry_max_ms) == ("failed", 20, 50)
    alone = resolve("quorum", (), policy("p", delayed_retry_type="all"), None, RABBITMQ_4_3)
    assert alone.retry == ""
    former = resolve("quorum", (), given, above, RABBITMQ_3_13)
    assert former.retry == ""


# -- the queue of a delayed exchange -----------------------------------------------------------------------------------


def test_names() -> None:
    assert exchange_of(queue_of("amq.delayed.of me")) == "amq.delayed.of me"


def test_a_message_leaves_for_its_exchange_when_it_is_due() -> None:
    bench = delayed()
    message_id = bench.publish(QUEUE, expiration=30, size=7)
    assert bench.effects == [Keep(bench.queue(QUEUE), (message_id,))]
    assert bench.machine.deadline_ms() == bench.now_ms + 30
    bench.now_ms += 30
    assert bench.do(Tick())[0] == ("forget", QUEUE, message_id, "delayed", 0)
    queue = bench.queue(QUEUE)
    assert bench.effects[1:] == [DeadLetter(queue, array("q", [message_id]), "delayed", 1, "x", None, False, False)]
    assert list(queue.outbox) == [1]
    bench.do(DeadLettersForwarded(VHOST, QUEUE, queue.queue_id, 1))
    assert bench.effects == [Release(queue, array("q", [message_id]))]
    assert queue.counters["delayed"] == 1


def test_in_the_order_of_due_times() -> None:
    bench = delayed()
    a, b, c, d = (bench.publish(QUEUE, expiration=delay) for delay in (30, 10, 20, 10))
    assert waiting(bench, QUEUE) == [b, d, c, a]
    bench.now_ms += 20
    bench.do(Tick())
    assert [entry.message_id for entry in bench.queue(QUEUE).outbox.values()] == [b, d, c]


@pytest.mark.parametrize("delay", [None, 0])
def test_without_a_delay_it_leaves_at_once(delay: int | None) -> None:
    bench = delayed()
    message_id = bench.publish(QUEUE, expiration=delay)
    assert [told[0] for told in explain(bench.effects)] == ["keep", "forget", "dead letter"]
    assert waiting(bench, QUEUE) == []
    assert [each.message_id for each in bench.queue(QUEUE).outbox.values()] == [message_id]


def test_nothing_else_touches_who_waits() -> None:
    bench = delayed()
    message_id = bench.publish(QUEUE, expiration=100, persistent=False)
    bench.apply_policy(policy("p", message_ttl=1, max_length=0, expires=1), queue=QUEUE)
    bench.attach(QUEUE, no_ack=True, credit=5)
    assert bench.get(QUEUE) == -1
    bench.do(BrokerStarted("n", "1", 2), 0)
    bench.now_ms += 50
    assert bench.do(Tick()) == []
    assert waiting(bench, QUEUE) == [message_id]


def test_deleted_with_its_exchange_what_is_due_still_leaves() -> None:
    bench = delayed()
    first, second = bench.publish(QUEUE, expiration=10), bench.publish(QUEUE, expiration=20)
    bench.now_ms += 10
    told = bench.do(QueueDeleted(VHOST, QUEUE, False, False))
    assert ("dead letter", QUEUE, first, "delayed", 1) in told
    assert ("forget", QUEUE, second, "deleted", 0) in told
    assert [list(queue.outbox) for queue in bench.machine.outboxes()] == [[1]]


def test_its_name_says_whose_it_is() -> None:
    bench = Bench()
    bench.do(declared(VHOST, "elsewhere", type="delayed", durable=True, semantics="rabbitmq-3.13"))
    assert explain(bench.effects) == [("quarantine",)]


# -- the order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_timed_is_a_sorted_list(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(message_order, "CHUNK", 3)
    dice = random.Random(seed)
    timed, model = Timed(), list[tuple[int, int]]()
    for message_id in range(500):
        if model and dice.random() < 0.45:
            due, first = model.pop(0)
            assert timed.first_expiry() == due
            assert timed.take() == (first, first * 3, due)
        else:
            due = dice.choice((dice.randrange(50), message_id))
            timed.append(message_id, message_id * 3, due)
            model.append((due, message_id))
            model.sort()
        assert [(expiry, each) for each, _, expiry in timed.items()] == model
        assert timed.count == timed.expiring == len(model)


@pytest.mark.parametrize("every", [1, 5, 50])
def test_stored_by_changes_and_loaded(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setattr(message_order, "CHUNK", 4)
    bench = delayed()
    dice = random.Random(every)
    stored: dict[int, bytes] = {}
    for number in range(200):
        bench.publish(QUEUE, expiration=dice.choice((dice.randrange(60), 40)))
        bench.now_ms += dice.choice((0, 0, 1, 2))
        if number % every == 0:
            dirty = bench.machine.take_dirty()
            for vanished in dirty.queues[0].vanished:
                del stored[vanished]
            stored |= dirty.queues[0].chunks
            loaded = Machine.load("queues-0", dirty.head, [(dirty.queues[0].meta, stored)])
            loaded.validate()
            assert loaded.digest() == bench.machine.digest()
            assert next(loaded.queues()).next_deadline_ms() == bench.queue(QUEUE).next_deadline_ms()
