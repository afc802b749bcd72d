"""The outbox: dead letters until they are forwarded (docs/behaviours/dead-letters.md)."""

import pytest

from rewindmq.projections.machine.data.effects import DeadLetter
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.rules.dead_letters import waiting_letters
from rewindmq.schemas.events import DeadLettersForwarded, QueueDeleted, Tick
from rewindmq.schemas.values import Origin
from tests.support.events_for_tests import Bench, explain, policy
from tests.support.letters import message_of, one_by_one

AT_LEAST_ONCE: dict[str, object] = {
    "dead_letter_exchange": "dlx",
    "dead_letter_strategy": "at-least-once",
    "overflow": "reject-publish",
}


def letters(bench: Bench) -> list[tuple[int, str, int]]:
    found = [letter for e in bench.effects if isinstance(e, DeadLetter) for letter in one_by_one(e)]
    return [(message_of(e), e.reason, e.sequence) for e in found]


def test_s155_the_four_reasons() -> None:
    bench = Bench()
    bench.declare(type="quorum", dead_letter_exchange="dlx", delivery_limit=0, max_length=2)
    consumer = bench.attach(prefetch=1)
    a = bench.publish()
    bench.nack(consumer, a, requeue=False)
    assert letters(bench) == [(a, "rejected", 1)]
    b = bench.publish()
    bench.nack(consumer, b)
    assert letters(bench) == [(b, "delivery_limit", 2)]
    bench.publish()
    c = bench.publish(expiration=10)
    d, _e = bench.publish(), bench.publish()
    assert letters(bench) == [(c, "maxlen", 3)]
    assert d in bench.ready()
    bench.declare("t", message_ttl=5, dead_letter_exchange="")
    f = bench.publish("t")
    bench.now_ms += 5
    bench.do(Tick())
    assert letters(bench) == [(f, "expired", 1)]


def test_what_waits_in_the_outbox_is_told_as_when_it_got_there() -> None:
    """Runs of rejected and dropped letters, in turn; the first ones are forwarded."""
    bench = Bench()
    queue = bench.declare(dead_letter_exchange="dlx", max_length=1)
    consumer = bench.attach(prefetch=1)
    told: list[tuple[int, str, int]] = []
    for _ in range(2):
        held = bench.publish()
        for _ in range(3):
            bench.publish()
            told += letters(bench)
        bench.nack(consumer, held, requeue=False)
        told += letters(bench)
    assert [reason for _, reason, _ in told][:4] == ["maxlen", "maxlen", "rejected", "maxlen"]
    assert told_of_outbox(queue) == told
    bench.do(DeadLettersForwarded("/", "q", queue.queue_id, 2))
    assert told_of_outbox(queue) == told[2:]


def told_of_outbox(queue: Queue) -> list[tuple[int, str, int]]:
    return [(message_of(e), e.reason, e.sequence) for run in waiting_letters(queue) for e in one_by_one(run)]


def test_without_an_exchange_nothing_is_kept() -> None:
    bench = Bench()
    queue = bench.declare(policy=policy("p", dead_letter_routing_key="k"))
    bench.get(no_ack=False)
    message = bench.publish()
    bench.get(no_ack=False)
    assert bench.nack(50, message, requeue=False) == [("forget", "q", message, "rejected", 50)]
    assert list(queue.outbox) == []


def test_argument_before_policy_for_exchange_and_key() -> None:
    bench = Bench()
    given = policy("p", dead_letter_exchange="px", dead_letter_routing_key="pk")
    queue = bench.declare(policy=given, dead_letter_exchange="ax", message_ttl=0)
    bench.publish()
    letter = next(e for e in bench.effects if isinstance(e, DeadLetter))
    assert (letter.exchange, letter.routing_key) == ("ax", "pk")
    assert [each.exchange for each in queue.outbox.values()] == ["ax"]


def test_b07_the_outbox_is_emptied_by_the_forwards() -> None:
    bench = Bench()
    queue = bench.declare(message_ttl=0, dead_letter_exchange="dlx")
    ids = [bench.publish() for _ in range(3)]
    assert list(queue.outbox) == [1, 2, 3]
    told = bench.do(DeadLettersForwarded("/", "q", queue.queue_id, 2))
    assert told == [("release", "q", ids[0]), ("release", "q", ids[1])]
    assert list(queue.outbox) == [3]
    assert bench.do(DeadLettersForwarded("/", "q", queue.queue_id, 2)) == []
    assert bench.do(DeadLettersForwarded("/", "q", queue.queue_id + 1, 3)) == [("quarantine",)]


def test_numbers_that_a_target_has_seen_are_passed_over() -> None:
    """A recovery may lack the deaths of letters that a target has: the next letters must not look like repeats."""
    bench = Bench()
    queue = bench.declare(message_ttl=0, dead_letter_exchange="dlx")
    bench.publish()
    assert bench.do(DeadLettersForwarded("/", "q", queue.queue_id, 0, taken=4)) == []
    assert list(queue.outbox) == [1], "it has not arrived"
    bench.publish()
    assert bench.do(DeadLettersForwarded("/", "q", queue.queue_id, 0, taken=2)) == []
    bench.publish()
    assert list(queue.outbox) == [1, 5, 6]


def test_b07_a_target_takes_a_letter_in_once() -> None:
    bench = Bench()
    queue = bench.declare()

    def forward(sequence: int, queue_id: int = 5) -> list[tuple[object, ...]]:
        bench.publish(origin=Origin("/", "source", queue_id, 99, "expired", sequence))
        return explain(bench.effects)

    assert forward(1)[0][0] == "keep"
    assert forward(2)[0][0] == "keep"
    assert forward(2)[0][0] == forward(1)[0][0] == "duplicate"
    assert forward(1, queue_id=6)[0][0] == "keep"  # another incarnation of the source
    assert (queue.messages_ready, queue.counters["duplicates"]) == (3, 2)


def test_a_refused_letter_was_not_taken_in_and_may_be_tried_again() -> None:
    bench = Bench()
    bench.declare(max_length=1, overflow="reject-publish")
    bench.publish()
    origin = Origin("/", "source", 5, 99, "expired", 1)
    bench.publish(origin=origin)
    assert explain(bench.effects)[0][0] == "refuse"
    bench.get()
    bench.publish(origin=origin)
    assert explain(bench.effects)[0][0] == "keep"


@pytest.mark.parametrize(
    ("type", "keys", "expected"),
    [
        ("quorum", AT_LEAST_ONCE, True),
        ("quorum", AT_LEAST_ONCE | {"overflow": "drop-head"}, False),  # S-147
        ("quorum", {k: v for k, v in AT_LEAST_ONCE.items() if k != "dead_letter_exchange"}, False),
        ("quorum", {"dead_letter_exchange": "dlx", "overflow": "reject-publish"}, False),
        ("classic", AT_LEAST_ONCE, False),  # S-146
    ],
)
def test_s145_s146_s147_when_it_is_at_least_once(type: str, keys: dict[str, object], expected: bool) -> None:
    bench = Bench()
    queue = bench.declare(type=type, policy=policy("p", **keys))
    assert queue.settings.at_least_once is expected


def test_s149_s153_held_until_forwarded_or_the_strategy_changes() -> None:
    bench = Bench()
    queue = bench.declare(type="quorum", policy=policy("p", **AT_LEAST_ONCE))
    message = bench.publish(size=7)
    bench.get(no_ack=False)
    bench.nack(50, message, requeue=False)
    assert (queue.messages_dlx, queue.message_bytes_dlx) == (1, 7)
    bench.apply_policy(policy("p", dead_letter_exchange="dlx"))
    assert explain(bench.effects) == [("release", "q", message)]
    assert (queue.messages_dlx, list(queue.outbox)) == (0, [])


def test_a_queue_that_is_gone_is_kept_until_its_letters_are_forwarded() -> None:
    bench = Bench()
    queue = bench.declare(message_ttl=0, dead_letter_exchange="dlx")
    message = bench.publish()
    bench.do(QueueDeleted("/", "q", False, False))
    assert bench.machine.queue("/", "q") is None
    assert list(bench.machine.outboxes()) == [queue]
    again = bench.declare()  # another incarnation under the same name
    assert again.queue_id != queue.queue_id
    told = bench.do(DeadLettersForwarded("/", "q", queue.queue_id, 1))
    assert told == [("release", "q", message)]
    assert list(bench.machine.outboxes()) == []
    assert bench.machine.take_dirty().gone == [queue.queue_id]
