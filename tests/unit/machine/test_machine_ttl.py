"""Message TTL and queue TTL (docs/behaviours/ttl.md)."""

from typing import Any

import pytest

from rewindmq.projections.machine.data.effects import Forget, QueueGone
from rewindmq.schemas.events import BrokerStarted, ConsumerCancelled, Nacked, Purged, QueueDeclared, QueueDeleted, Tick
from rewindmq.schemas.values import BROKER
from tests.support.events_for_tests import START_MS, Bench, arguments, declared, explain, policy


@pytest.mark.parametrize("ttl_ms", [1000, 60_000])
def test_s031_s035_s037_dead_after_its_ttl(ttl_ms: int) -> None:
    bench = Bench()
    bench.declare(message_ttl=ttl_ms)
    message = bench.publish()
    assert bench.machine.deadline_ms() == START_MS + ttl_ms
    bench.now_ms += ttl_ms - 1
    assert bench.do(Tick()) == []
    bench.now_ms += 1
    assert bench.do(Tick()) == [("forget", "q", message, "expired", 0)]
    assert [e.rule for e in bench.effects if isinstance(e, Forget)] == ["argument x-message-ttl"]
    assert bench.machine.deadline_ms() is None


def test_s032_dies_in_each_queue_at_its_own_time() -> None:
    bench = Bench()
    for name, ttl in (("short", 10), ("long", 20)):
        bench.declare(name, message_ttl=ttl)
    bench.declare("never")
    message = bench.publish("long", "never", "short")
    bench.now_ms += 10
    assert bench.do(Tick()) == [("forget", "short", message, "expired", 0)]
    bench.now_ms += 10
    assert bench.do(Tick()) == [("forget", "long", message, "expired", 0)]
    assert bench.ready("never") == [message]


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_s033_dead_before_it_can_be_delivered(type: str) -> None:
    """The time comes with the very event that would deliver: first time passes, then the event happens."""
    bench = Bench()
    bench.declare(type=type)
    dead, alive = bench.publish(expiration=10), bench.publish()
    bench.now_ms += 10
    bench.attach(prefetch=5)
    assert bench.delivered() == [alive]
    assert explain(bench.effects)[0] == ("forget", "q", dead, "expired", 0)


def test_s033_a_get_never_gives_a_dead_message() -> None:
    bench = Bench()
    bench.declare()
    bench.publish(expiration=10)
    bench.now_ms += 10
    assert bench.get() == -1


def test_s039_ttl_0_is_dead_unless_taken_at_once() -> None:
    bench = Bench()
    bench.declare(message_ttl=0)
    message = bench.publish()
    assert explain(bench.effects) == [("keep", "q", message), ("forget", "q", message, "expired", 0)]
    bench.attach(no_ack=True, credit=1)
    assert bench.publish() in bench.delivered()


def test_s039_quorum_gives_ttl_0_the_rest_of_its_millisecond() -> None:
    bench = Bench()
    bench.declare(type="quorum")
    message = bench.publish(expiration=0)
    assert bench.ready() == [message]
    bench.now_ms += 1
    assert bench.get() == -1


def test_s041_expired_is_the_reason_of_its_dead_letter() -> None:
    bench = Bench()
    bench.declare(message_ttl=0, dead_letter_exchange="dlx")
    message = bench.publish()
    assert ("dead letter", "q", message, "expired", 1) in explain(bench.effects)


@pytest.mark.parametrize(
    ("queue_ttl", "own", "lives", "rule"),
    [
        (50, None, 50, "argument x-message-ttl"),
        (None, 20, 20, "property expiration"),
        (50, 20, 20, "property expiration"),
        (20, 50, 20, "argument x-message-ttl"),
    ],
)
def test_s042_the_smaller_ttl(queue_ttl: int | None, own: int | None, lives: int, rule: str) -> None:
    bench = Bench()
    keys: dict[str, Any] = {} if queue_ttl is None else {"message_ttl": queue_ttl}
    bench.declare("q", "classic", None, None, True, False, False, 0, **keys)
    bench.publish(expiration=own)
    assert [m.expires_ms for m in bench.queue().messages()] == [START_MS + lives]
    bench.now_ms += lives
    bench.do(Tick())
    assert [e.rule for e in bench.effects if isinstance(e, Forget)] == [rule]


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_s044_s046_expires_only_at_the_head(type: str) -> None:
    """Measured on 3.10.8: the expired one behind still counts, and is never delivered. S-047."""
    bench = Bench()
    queue = bench.declare(type=type)
    alive, dead = bench.publish(), bench.publish(expiration=5)
    bench.now_ms += 100
    assert bench.do(Tick()) == []
    assert queue.messages_ready == 2
    assert bench.get() == alive
    assert ("forget", "q", dead, "expired", 0) in explain(bench.effects)
    assert queue.messages_ready == 0


def test_s051_a_new_ttl_leaves_what_is_queued_alone() -> None:
    bench = Bench()
    bench.declare(policy=policy("p", message_ttl=100))
    first = bench.publish()
    bench.apply_policy(policy("p", message_ttl=5))
    bench.now_ms += 50
    bench.do(Tick())
    assert bench.ready() == [first]
    second = bench.publish()
    bench.now_ms += 49
    bench.do(Tick())
    assert bench.ready() == [first, second]  # the second is dead but not at the head
    bench.now_ms += 1
    bench.do(Tick())
    assert bench.ready() == []


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_s051_a_requeued_message_keeps_its_expiry(type: str) -> None:
    bench = Bench()
    bench.declare(type=type)
    consumer = bench.attach(prefetch=1)
    message = bench.publish(expiration=10)
    bench.now_ms += 20
    bench.do(Tick())  # held: nothing happens
    assert bench.do(Nacked("/", "q", consumer, ((message, message),), True, "nack")) == [
        ("requeue", "q", message, consumer, "nack"),
        ("forget", "q", message, "expired", 0),
    ]


# -- queue TTL ---------------------------------------------------------------------------------------------------------


def gone(bench: Bench) -> list[tuple[str, str]]:
    return [(e.queue.name, e.reason) for e in bench.effects if isinstance(e, QueueGone)]


def test_s053_s058_unused_for_its_time() -> None:
    bench = Bench()
    bench.declare(expires=1000)
    bench.now_ms += 600
    bench.publish()  # not a use
    bench.now_ms += 399
    assert bench.do(Tick()) == []
    bench.now_ms += 1
    bench.do(Tick())
    assert gone(bench) == [("q", "expired")]
    assert bench.machine.queue("/", "q") is None


def test_s053_consumers_declarations_and_gets_are_uses() -> None:
    bench = Bench()
    queue = bench.declare(expires=1000)
    bench.now_ms += 900
    bench.declare(expires=1000)
    bench.now_ms += 900
    bench.get()
    bench.now_ms += 900
    consumer = bench.attach(prefetch=1)
    bench.now_ms += 5000
    bench.do(ConsumerCancelled("/", "q", consumer))
    bench.now_ms += 999
    bench.do(Tick())
    assert bench.queue() is queue
    bench.now_ms += 1
    bench.do(Tick())
    assert gone(bench) == [("q", "expired")]


def test_s053_a_message_held_by_get_keeps_a_quorum_queue_alive() -> None:
    """Measured on 3.10.8: a classic queue goes, a quorum queue stays while somebody holds a message of it."""
    bench = Bench()
    for name, type in (("c", "classic"), ("k", "quorum")):
        bench.declare(name, type=type, expires=1000)
        bench.publish(name)
        bench.get(name, no_ack=False)
    bench.now_ms += 9000
    bench.do(Tick())
    assert gone(bench) == [("c", "expired")]
    bench.close(1)
    bench.now_ms += 1000
    bench.do(Tick())
    assert gone(bench) == [("k", "expired")]


def test_s056_after_a_start_the_lease_begins_anew() -> None:
    bench = Bench()
    bench.declare(expires=1000)
    bench.now_ms += 900
    bench.do(BrokerStarted("n", "1", 1))
    bench.now_ms += 900
    bench.do(Purged("/", "q"))
    assert gone(bench) == []
    bench.now_ms += 100
    bench.do(Tick())
    assert gone(bench) == [("q", "expired")]


def test_s059_a_quorum_queue_is_not_renewed_by_declaring_it_again() -> None:
    bench = Bench()
    bench.declare(type="quorum", expires=1000)
    bench.now_ms += 900
    bench.declare(type="quorum", expires=1000)
    bench.now_ms += 100
    bench.do(Tick())
    assert gone(bench) == [("q", "expired")]


def test_s060_merging_and_no_dead_letters_of_an_expired_queue() -> None:
    bench = Bench()
    given = policy("p", expires=500, dead_letter_exchange="dlx")
    assert bench.declare("c", policy=given, expires=100).settings.expires_ms == 100
    assert bench.declare("k", type="quorum", policy=given, expires=100).settings.expires_ms == 500
    bench.publish("c")
    bench.now_ms += 100
    told = bench.do(Tick())
    assert [t[0] for t in told] == ["forget", "gone"]


def test_earliest_deadline_first_and_the_clock_stands_at_it() -> None:
    """One late tick is like ticks in time: what expires before its queue is dead-lettered, the other is not."""
    bench = Bench()
    bench.declare(expires=100, dead_letter_exchange="dlx")
    early, late = bench.publish(expiration=90), bench.publish(expiration=110)
    bench.now_ms += 1000
    assert bench.do(Tick()) == [
        ("forget", "q", early, "expired", 0),
        ("dead letter", "q", early, "expired", 1),
        ("forget", "q", late, "deleted", 0),
        ("gone", "q", "expired", 1),
    ]


def test_an_expiry_beyond_all_time_is_none() -> None:
    bench = Bench()
    bench.declare()
    message = bench.publish(expiration=1 << 62)
    assert bench.ready() == [message]
    assert bench.machine.deadline_ms() is None


def test_the_clock_does_not_run_back() -> None:
    bench = Bench()
    bench.declare(message_ttl=10)
    bench.now_ms -= 500
    bench.publish()
    assert bench.machine.clock_ms == START_MS
    assert [m.expires_ms for m in bench.queue().messages()] == [START_MS + 10]


def test_deadlines_of_queues_that_are_gone_do_not_pile_up() -> None:
    bench = Bench()
    for number in range(3000):
        bench.machine.apply(bench.offset, bench.now_ms, BROKER, short_lived(number), [])
        bench.machine.apply(bench.offset + 1, bench.now_ms, BROKER, QueueDeleted("/", f"q{number}", False, False), [])
        bench.offset += 2
    bench.declare("last", expires=1000)
    assert len(bench.machine.deadlines) <= 1010
    bench.now_ms += 1000
    bench.do(Tick())
    assert gone(bench) == [("last", "expired")]


def short_lived(number: int) -> QueueDeclared:
    lease = arguments({"expires": 1_800_000})
    return declared("/", f"q{number}", durable=True, arguments=lease)
