"""Length limits and overflow (docs/behaviours/limits.md)."""

import pytest

from rewindmq.projections.machine.data.effects import DeadLetter, Forget, Refuse
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import DeadLettersForwarded, Nacked, Purged
from tests.support.events_for_tests import VHOST, Bench, explain, policy


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_s001_s007_s022_drop_head_whichever_limit_is_hit_first(type: str) -> None:
    bench = Bench()
    bench.declare(type=type, max_length=3, max_length_bytes=10)
    a, b, c = (bench.publish(size=2) for _ in range(3))
    d = bench.publish(size=1)
    assert bench.ready() == [b, c, d]  # by number: the oldest went
    e = bench.publish(size=9)
    assert bench.ready() == [d, e]  # by bytes
    assert bench.queue().message_bytes_ready == 10
    dropped = [effect for effect in bench.effects if isinstance(effect, Forget)]
    assert [(tuple(f.message_ids), f.reason) for f in dropped] == [((b,), "maxlen"), ((c,), "maxlen")]
    assert dropped[0].rule == "argument x-max-length"
    assert dropped[1].rule == "argument x-max-length-bytes"
    assert bench.queue().counters["maxlen"] == 3
    assert a not in bench.ready()


def test_s022_no_more_is_dropped_than_must_be() -> None:
    """The returned message has exactly the bytes that are too many, so that those behind it stay."""
    bench = Bench()
    bench.declare(max_length_bytes=10)
    first = bench.publish(size=4)
    bench.get(no_ack=False)
    others = [bench.publish(size=size) for size in (4, 2, 4)]
    bench.do(Nacked(VHOST, "q", 50, ((first, first),), True, "nack"))
    last = bench.publish(size=0)
    assert bench.ready() == [*others, last]


def test_s002_bytes_are_those_of_bodies() -> None:
    bench = Bench()
    bench.declare(max_length_bytes=1)
    empty = [bench.publish(size=0) for _ in range(5)]
    assert bench.ready() == empty


def test_s003_s163_the_smaller_of_policy_and_argument() -> None:
    bench = Bench()
    queue = bench.declare(policy=policy("lim", max_length=2), max_length=5)
    assert queue.settings.max_length == 2
    for _ in range(3):
        bench.publish()
    assert queue.messages_ready == 2
    assert [e.rule for e in bench.effects if isinstance(e, Forget)] == ["policy lim.max-length"]
    bench.apply_policy(policy("lim", max_length=9))
    assert queue.settings.max_length == 5


def test_s004_s167_operator_policy_caps() -> None:
    bench = Bench()
    queue = bench.declare(policy=policy("lim", max_length=9), operator=policy("cap", max_length=1), max_length=5)
    assert queue.settings.max_length == 1
    bench.publish()
    bench.publish()
    assert [e.rule for e in bench.effects if isinstance(e, Forget)] == ["operator policy cap.max-length"]
    assert queue.shown_definition() == {"max-length": 1}


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_s005_only_ready_messages_count(type: str) -> None:
    bench = Bench()
    queue = bench.declare(type=type, max_length=1)
    bench.attach(prefetch=2)
    held = [bench.publish(), bench.publish()]
    ready = bench.publish()
    assert (queue.messages_unacked, bench.ready()) == (len(held), [ready])


def test_s008_s018_two_messages_rejects_publish() -> None:
    bench = Bench()
    bench.declare("two-messages", policy=policy("my-pol", max_length=2, overflow="reject-publish"))
    kept = [bench.publish("two-messages"), bench.publish("two-messages")]
    for _ in range(3):
        refused = bench.publish("two-messages")
        assert explain(bench.effects) == [("refuse", "two-messages", refused)]
    assert [e.rule for e in bench.effects if isinstance(e, Refuse)] == ["policy my-pol.max-length"]
    assert bench.ready("two-messages") == kept
    assert bench.get("two-messages") == kept[0]
    assert bench.publish("two-messages") in bench.ready("two-messages")


def test_s008_is_decided_before_the_enqueue_even_with_a_consumer_waiting() -> None:
    """Measured on 3.10.8: max-length 0 refuses although a consumer waits; drop-head delivers."""
    bench = Bench()
    bench.declare("refuses", max_length=0, overflow="reject-publish")
    bench.attach("refuses", no_ack=True, credit=10)
    refused = bench.publish("refuses")
    assert explain(bench.effects) == [("refuse", "refuses", refused)]
    bench.declare("drops", max_length=0)
    bench.attach("drops", no_ack=True, credit=1)
    assert bench.publish("drops") in bench.delivered()
    dropped = bench.publish("drops")
    assert ("forget", "drops", dropped, "maxlen", 0) in explain(bench.effects)


def test_s008_bytes_of_the_message_itself_count() -> None:
    bench = Bench()
    bench.declare(max_length_bytes=10, overflow="reject-publish")
    small = bench.publish(size=6)
    bench.publish(size=5)
    assert bench.ready() == [small]
    assert [e.rule for e in bench.effects if isinstance(e, Refuse)] == ["argument x-max-length-bytes"]
    assert bench.publish(size=4) in bench.ready()


def test_s010_s011_refused_by_one_enqueued_in_the_others() -> None:
    bench = Bench()
    bench.declare("full", max_length=0, overflow="reject-publish")
    bench.declare("open")
    message = bench.publish("full", "open")
    assert explain(bench.effects) == [("refuse", "full", message), ("keep", "open", message)]


def test_s012_reject_publish_dlx_dead_letters_what_it_refuses() -> None:
    bench = Bench()
    queue = bench.declare(max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="dlx")
    bench.publish()
    refused = bench.publish(size=4)
    assert explain(bench.effects) == [
        ("refuse", "q", refused),
        ("keep", "q", refused),
        ("dead letter", "q", refused, "maxlen", 1),
    ]
    letter = bench.effects[-1]
    assert isinstance(letter, DeadLetter)
    assert (letter.exchange, letter.refused, letter.at_least_once) == ("dlx", True, False)
    assert (queue.counters["published"], queue.counters["refused"]) == (1, 1)


def test_s025_quorum_takes_reject_publish_dlx_for_drop_head() -> None:
    bench = Bench()
    queue = bench.declare(type="quorum", max_length=1, overflow="reject-publish-dlx")
    bench.publish()
    last = bench.publish()
    assert (queue.settings.overflow, bench.ready()) == ("drop-head", [last])


def blocked(queue: Queue) -> bool:
    """It changes with the events that a test applies."""
    return queue.blocked


@pytest.mark.parametrize(("limit", "size"), [({"max_length": 10}, 1), ({"max_length_bytes": 1_000}, 100)])
def test_s026_s027_quorum_overshoots_by_one_then_blocks_until_80_percent(limit: dict[str, object], size: int) -> None:
    """Measured on 3.10.8: with a limit of 10 the 11th is still taken; open again when 8 are left."""
    bench = Bench()
    queue = bench.declare(type="quorum", overflow="reject-publish", **limit)  # type: ignore[arg-type]
    taken = []
    for _ in range(14):
        bench.publish(size=size)
        taken.append(not any(isinstance(e, Refuse) for e in bench.effects))
    assert taken == [True] * 11 + [False] * 3
    assert blocked(queue)
    for left in (10, 9):
        bench.get()
        assert queue.messages_ready == left
        bench.publish()
        assert any(isinstance(e, Refuse) for e in bench.effects)
    bench.get()
    assert not blocked(queue)
    bench.publish()
    assert queue.messages_ready == 9


def test_s027_purge_and_policy_unblock() -> None:
    bench = Bench()
    queue = bench.declare(type="quorum", max_length=1, overflow="reject-publish")
    bench.publish()
    bench.publish()
    assert blocked(queue)
    bench.do(Purged("/", "q"))
    assert not blocked(queue)
    queue = bench.declare("r", type="quorum", policy=policy("p", max_length=1, overflow="reject-publish"))
    bench.publish("r")
    bench.publish("r")
    assert blocked(queue)
    bench.apply_policy(None, queue="r")
    assert not blocked(queue)


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_s028_a_lower_limit_drops_at_once(type: str) -> None:
    bench = Bench()
    bench.declare(type=type)
    ids = [bench.publish() for _ in range(5)]
    bench.apply_policy(policy("lim", max_length=2))
    assert bench.ready() == ids[3:]
    assert [e.rule for e in bench.effects if isinstance(e, Forget)] == ["policy lim.max-length"]


def test_s028_switching_back_to_drop_head_drops_at_once() -> None:
    bench = Bench()
    bench.declare(policy=policy("a", overflow="reject-publish"))
    ids = [bench.publish() for _ in range(5)]
    bench.apply_policy(policy("b", overflow="reject-publish", max_length=2))
    assert bench.ready() == ids
    bench.apply_policy(policy("c", max_length=2))
    assert bench.ready() == ids[3:]


def test_s028_limit_with_reject_publish_drops_first_in_classic_only() -> None:
    """Measured on 3.10.8: the limit is set while the queue still drops from its head; a quorum queue keeps all."""
    for type, left in (("classic", 2), ("quorum", 5)):
        bench = Bench()
        bench.declare(type=type)
        for _ in range(5):
            bench.publish()
        bench.apply_policy(policy("p", max_length=2, overflow="reject-publish"))
        assert bench.queue().messages_ready == left


def test_s029_overflow_argument_wins_in_classic_policy_in_quorum() -> None:
    bench = Bench()
    given = policy("p", overflow="reject-publish")
    assert bench.declare("c", policy=given, overflow="drop-head").settings.overflow == "drop-head"
    assert bench.declare("k", type="quorum", policy=given, overflow="drop-head").settings.overflow == "reject-publish"


def test_s150_letters_held_for_at_least_once_count() -> None:
    bench = Bench()
    queue = bench.declare(
        type="quorum",
        max_length=2,
        overflow="reject-publish",
        dead_letter_exchange="dlx",
        dead_letter_strategy="at-least-once",
    )
    consumer = bench.attach(prefetch=9)
    for _ in range(3):
        bench.nack(consumer, bench.publish(size=2), requeue=False)
    assert (queue.messages_ready, queue.messages_dlx, queue.message_bytes_dlx) == (0, 3, 6)
    queue_full = bench.publish()
    assert queue.blocked or queue_full in queue.holders[consumer].held
    bench.publish()
    assert explain(bench.effects)[0][0] == "refuse"
    bench.do(DeadLettersForwarded("/", "q", queue.queue_id, 3))
    assert (queue.messages_dlx, queue.blocked) == (0, False)


def test_requeue_to_a_full_queue_classic_drops_before_it_delivers() -> None:
    """Measured on 3.10.8: A and B come back to a queue of one, a consumer waits; classic delivers B, quorum both."""
    for type, expected in (("classic", 1), ("quorum", 2)):
        bench = Bench()
        bench.declare(type=type, max_length=1)
        first = bench.attach(prefetch=2)
        ids = [bench.publish(), bench.publish()]
        bench.attach(prefetch=5, session=2)
        bench.close(1)
        assert bench.delivered() == ids[2 - expected :]
        assert first not in bench.queue().holders
