"""Quorum queues of profile rabbitmq-4.3 (docs/behaviours/profiles.md, S-100, S-105, S-108, S-160), event by event.
What is not obvious was measured on RabbitMQ 4.3.6 (tests/clients/scenarios_priority.py)."""

from typing import Any

import pytest

from rewindmq.projections.machine.data.effects import Deliver, FetchReply
from rewindmq.projections.machine.data.message_word import (
    ACQUIRED_MAX_4_3,
    DELIVERIES_MAX_4_3,
    counts_of,
    returned_or_failed,
)
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import BrokerStarted, Nacked, NodeLost, Purged
from tests.support.events_for_tests import VHOST, Bench, explain


def later(**keys: Any) -> Bench:
    bench = Bench()
    bench.declare(type="quorum", semantics="rabbitmq-4.3", **keys)
    return bench


def counts(bench: Bench) -> tuple[int, int]:
    """Delivery count and acquired count of the last delivery."""
    given = [effect for effect in bench.effects if isinstance(effect, Deliver | FetchReply)]
    return given[-1].delivery_count, given[-1].acquired_count


def give_back(bench: Bench, consumer: int, message_id: int, method: str) -> None:
    bench.do(Nacked(VHOST, "q", consumer, ((message_id, message_id),), True, method))


def test_s100_failures_alone_raise_the_delivery_count() -> None:
    bench = later()
    message_id = bench.publish()
    consumer = bench.attach(prefetch=1)
    told = [counts(bench)]
    for method in ("nack", "reject", "recover", "timeout", "reject"):
        give_back(bench, consumer, message_id, method)
        told.append(counts(bench))
    assert told == [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (2, 5)]


@pytest.mark.parametrize(
    ("event", "count"),
    [(BrokerStarted("n", "1", 2), 1), (NodeLost("n", 5, "lapsed"), 0)],
)
def test_s100_a_crash_is_a_failure_and_a_lost_node_is_none(event: BrokerStarted | NodeLost, count: int) -> None:
    bench = later()
    bench.publish()
    bench.attach(prefetch=1, session=5 << 24 | 1)
    bench.do(event, 0)
    bench.get()
    assert counts(bench) == (count, 1)


def test_s100_a_closed_channel_is_a_failure() -> None:
    bench = later()
    bench.publish()
    bench.attach(prefetch=1)
    bench.close(1, 1)
    bench.get()
    assert counts(bench) == (1, 1)


def test_of_the_former_profile_every_return_counts_and_nothing_is_acquired() -> None:
    bench = Bench()
    bench.declare(type="quorum")
    message_id = bench.publish()
    consumer = bench.attach(prefetch=1)
    give_back(bench, consumer, message_id, "nack")
    assert counts(bench) == (1, 0)


def test_s160_the_limit_is_20_unless_somebody_says() -> None:
    bench = later()
    message_id = bench.publish()
    consumer = bench.attach(prefetch=1)
    for _ in range(20):
        give_back(bench, consumer, message_id, "reject")
        assert bench.delivered() == [message_id]
    give_back(bench, consumer, message_id, "reject")
    assert explain(bench.effects) == [("forget", "q", message_id, "delivery_limit", consumer)]


def test_a_message_that_never_fails_never_dies() -> None:
    bench = later(delivery_limit=0)
    message_id = bench.publish()
    consumer = bench.attach(prefetch=1)
    for _ in range(30):
        give_back(bench, consumer, message_id, "nack")
    assert counts(bench) == (0, 30)


def test_without_a_limit_nothing_goes_behind() -> None:
    bench = later(delivery_limit=-1)
    assert bench.queue().settings.delivery_limit is None
    first, second, third = bench.publish(), bench.publish(), bench.publish()
    assert [bench.get(no_ack=False, consumer=c) for c in (51, 52)] == [first, second]
    give_back(bench, 52, second, "nack")
    give_back(bench, 51, first, "reject")
    assert bench.ready() == [second, first, third]
    assert [view.delivery_count for view in bench.queue().messages()] == [0, 1, 0]


def test_s105_s108_32_strict_priorities_and_returns_without() -> None:
    bench = later()
    ids = {priority: bench.publish(priority=priority) for priority in (0, 3, None, 4, 31, 200, 5)}
    assert bench.ready() == [ids[31], ids[200], ids[5], ids[None], ids[4], ids[3], ids[0]]
    taken = [bench.get(no_ack=False, consumer=c) for c in (51, 52, 53)]
    give_back(bench, 53, taken[2], "nack")
    give_back(bench, 51, taken[0], "nack")
    top = bench.publish(priority=31)
    assert bench.ready() == [taken[2], taken[0], top, ids[None], ids[4], ids[3], ids[0]]


def test_s050_the_head_of_every_level_expires_in_time() -> None:
    bench = later()
    high = bench.publish(priority=9)
    low, behind = bench.publish(priority=1, expiration=10), bench.publish(priority=1, expiration=5)
    assert bench.machine.deadline_ms() == bench.now_ms + 10
    bench.now_ms += 10
    bench.do(Purged(VHOST, "other"))
    assert [told[2] for told in explain(bench.effects)[:2]] == [low, behind]
    assert bench.ready() == [high]


def test_what_came_back_expires_before_what_is_above_it() -> None:
    bench = later(dead_letter_exchange="dlx")
    back = bench.publish(priority=1, expiration=10)
    bench.get(no_ack=False)
    level = bench.publish(priority=9, expiration=10)
    bench.close(1)
    bench.now_ms += 10
    bench.do(Purged(VHOST, "other"))
    assert [entry.message_id for entry in bench.queue().outbox.values()] == [back, level]


def test_drop_head_drops_what_is_served_next() -> None:
    bench = later(max_length=2)
    low, high = bench.publish(priority=1), bench.publish(priority=9)
    other = bench.publish()
    assert ("forget", "q", high, "maxlen", 0) in explain(bench.effects)
    assert bench.ready() == [other, low]


def test_counts_stop_at_their_largest() -> None:
    word = 0
    for _ in range(5000):
        word = returned_or_failed(word, True)
    assert counts_of(word) == (DELIVERIES_MAX_4_3, ACQUIRED_MAX_4_3)
    assert word < 1 << 63


def test_a_message_that_goes_on_failing_dies_whatever_the_limit() -> None:
    bench = later(delivery_limit=1_000_000)
    message_id = bench.publish()
    consumer = bench.attach(prefetch=1)
    for _ in range(DELIVERIES_MAX_4_3):
        give_back(bench, consumer, message_id, "reject")
    assert bench.queue().counters["delivery_limit"] == 1


def test_stored_and_loaded() -> None:
    bench = later(delayed_retry_type="all", delayed_retry_min=50)
    for priority in (1, 9, None, 31):
        bench.publish(priority=priority, expiration=1000)
    consumer = bench.attach(prefetch=2)
    give_back(bench, consumer, bench.delivered()[0], "reject")
    machine = bench.machine
    loaded = Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    loaded.validate()
    assert loaded.digest() == machine.digest()
    assert list(bench.queue().messages()) == [view for queue in loaded.queues() for view in queue.messages()]
    bench.do(Purged(VHOST, "q"))
    assert loaded.digest() != machine.digest()
