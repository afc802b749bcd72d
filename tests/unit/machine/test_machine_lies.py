"""Every law that the audit checks, broken once by a machine that says something else than it did: found where it is,
with check, queue, message and offset (B-18). A row is a short history whose last step is the lie."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rewindmq.projections.machine.data.effects import (
    DeadLetter,
    Delay,
    Deliver,
    Duplicate,
    Effect,
    FetchReply,
    Forget,
    Refuse,
    Requeue,
)
from rewindmq.schemas.events import ConsumerCancelled, Event, Purged, QueueDrained
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused
from rewindmq.schemas.values import Actor, Origin
from rewindmq.spark_replay.audit.fold import AuditProduct
from tests.support.events_for_tests import Bench

Lie = Callable[[list[Effect]], None]


class Audited(Bench):
    """`lie` changes the effects of the next event, after the machine has applied it."""

    def __init__(self) -> None:
        self.product = AuditProduct("queues-0")
        self.lie: Lie | None = None
        self.lied_at = -1
        super().__init__()

    def do(self, event: Event, session: int = 1) -> list[tuple[object, ...]]:
        if self.offset == 0:
            self.product.begin(self.machine)
        told = super().do(event, session)
        if self.lie is not None:
            lie, self.lie, self.lied_at = self.lie, None, self.offset - 1
            before = repr(self.effects)
            lie(self.effects)
            assert repr(self.effects) != before, "nothing to lie about"
        self.product.event(self.offset - 1, self.now_ms, Actor("guest", session), event, self.effects)
        return told


def of(effects: list[Effect], *kinds: type) -> Any:
    return next(effect for effect in effects if isinstance(effect, kinds))


def changed(kind: type, **values: object) -> Lie:
    """The first effect of this kind says something else."""

    def lie(effects: list[Effect]) -> None:
        for name, value in values.items():
            setattr(of(effects, kind), name, value)

    return lie


def left_out(kind: type) -> Lie:
    return lambda effects: effects.remove(of(effects, kind))


def letter(number: int) -> Origin:
    return Origin("/", "source", 3, 40 + number, "rejected", number)


def restored(message_id: int) -> Origin:
    return Origin(
        "/", "source", queue_id=3, message_id=message_id, reason="restored", sequence=message_id + 1, restore="undo"
    )


def an_acked_message_is_still_there(b: Audited) -> tuple[str, int | None]:
    b.declare()
    m, c = b.publish(), b.attach(prefetch=1)
    b.lie = left_out(Forget)
    b.ack(c, m)
    return "conservation", None


def an_ack_takes_another_message(b: Audited) -> tuple[str, int | None]:
    b.declare()
    m, other, c = b.publish(), b.publish(), b.attach(prefetch=1)
    b.lie = changed(Forget, message_ids=[other])
    b.ack(c, m)
    return "settlement", other


def an_ack_of_one_takes_two(b: Audited) -> tuple[str, int | None]:
    b.declare()
    m, other, c = b.publish(), b.publish(), b.attach(prefetch=2)
    b.lie = changed(Forget, message_ids=[m, other])
    b.ack(c, m)
    return "settlement", None


def it_is_delivered_twice(b: Audited) -> tuple[str, int | None]:
    b.declare()
    m = b.publish()
    b.lie = lambda effects: effects.append(of(effects, Deliver))
    b.attach(prefetch=5)
    return "conservation", m


def it_is_delivered_after_its_expiry(b: Audited) -> tuple[str, int | None]:
    b.declare(message_ttl=10)
    m = b.publish()
    b.now_ms += 50

    def lie(effects: list[Effect]) -> None:
        expired = of(effects, Forget)
        effects.append(Deliver(expired.queue, (m,), b.consumer, False, 0, False))
        b.machine.due_effects = (-1, 0)  # the lie: no time passed
        effects.remove(expired)

    b.lie = lie
    b.attach(prefetch=1)
    return "ttl", m


def it_expires_too_early(b: Audited) -> tuple[str, int | None]:
    b.declare(max_length=1, message_ttl=1_000)
    m = b.publish()
    b.lie = changed(Forget, reason="expired")
    b.publish()
    return "ttl", m


def it_is_dropped_below_the_limit(b: Audited) -> tuple[str, int | None]:
    b.declare(message_ttl=10)
    m = b.publish()
    b.now_ms += 50
    b.lie = changed(Forget, reason="maxlen")
    b.publish()
    return "limits", m


def a_publish_is_refused_below_the_limit(b: Audited) -> tuple[str, int | None]:
    queue = b.declare(max_length=9, overflow="reject-publish")
    b.lie = lambda effects: effects.append(Refuse(queue, b.offset - 1, ""))
    return "limits", b.publish()


def a_refusal_is_hidden(b: Audited) -> tuple[str, int | None]:
    b.declare(max_length=1, overflow="reject-publish")
    b.publish()
    b.lie = left_out(Refuse)
    b.publish()
    return "conservation", None


def the_redelivered_flag_is_missing(b: Audited) -> tuple[str, int | None]:
    b.declare()
    m, c = b.publish(), b.attach(prefetch=1)
    b.lie = changed(Deliver, redelivered=False)
    b.nack(c, m)
    return "deliveries", m


def a_delivery_is_not_counted(b: Audited) -> tuple[str, int | None]:
    b.declare(type="quorum")
    m, c = b.publish(), b.attach(prefetch=1)
    b.lie = changed(Deliver, delivery_count=0)
    b.nack(c, m)
    return "deliveries", m


def it_comes_back_more_often_than_the_limit(b: Audited) -> tuple[str, int | None]:
    b.declare(type="quorum", delivery_limit=2)
    m, c = b.publish(), b.attach(prefetch=1)
    b.nack(c, m)
    b.nack(c, m)

    def lie(effects: list[Effect]) -> None:
        dead = of(effects, Forget)
        effects[effects.index(dead)] = Requeue(dead.queue, [m], c, "nack")

    b.lie = lie
    b.nack(c, m)
    return "deliveries", m


def the_delivery_limit_comes_too_early(b: Audited) -> tuple[str, int | None]:
    b.declare(type="quorum", delivery_limit=9)
    m, c = b.publish(), b.attach(prefetch=1)
    b.lie = changed(Forget, reason="delivery_limit")
    b.nack(c, m, requeue=False)
    return "deliveries", m


def a_later_message_comes_first(b: Audited) -> tuple[str, int | None]:
    b.declare()
    m, other = b.publish(), b.publish()

    def lie(effects: list[Effect]) -> None:
        [delivered] = (effect for effect in effects if isinstance(effect, Deliver))
        assert list(delivered.message_ids) == [m, other]
        delivered.message_ids = (other, m)

    b.lie = lie
    b.attach(prefetch=2)
    return "order", m


def a_lower_priority_comes_first(b: Audited) -> tuple[str, int | None]:
    b.declare(max_priority=9)
    m = b.publish(priority=1)
    b.publish(priority=5)
    b.lie = changed(Deliver, message_ids=(m,))
    b.attach(prefetch=1)
    return "order", m


def a_stream_cuts_for_its_age_what_is_young(b: Audited) -> tuple[str, int | None]:
    b.declare(type="stream", max_length_bytes=5, max_age="1h")
    m = b.publish(size=4)
    b.lie = changed(Forget, reason="expired")
    b.publish(size=4)
    return "ttl", m


def a_stream_cuts_in_the_wrong_order(b: Audited) -> tuple[str, int | None]:
    b.declare(type="stream", max_length_bytes=8)
    m, other = b.publish(size=4), b.publish(size=4)
    b.lie = lambda effects: effects.append(Forget(of(effects, Forget).queue, [m], "maxlen", 0, ""))
    b.product.accounts["/", "q"].last_cut = other  # it had cut the other before
    b.publish(size=4)
    return "order", m


def it_waits_too_long(b: Audited) -> tuple[str, int | None]:
    b.declare(type="quorum", semantics="rabbitmq-4.3", delayed_retry_type="all", delayed_retry_min=100)
    m, c = b.publish(), b.attach(prefetch=1)
    b.lie = changed(Delay, due_ms=b.now_ms + 101)
    b.nack(c, m)
    return "ttl", m


def a_consumer_gets_more_than_its_prefetch(b: Audited) -> tuple[str, int | None]:
    b.declare()
    b.attach(prefetch=1)
    second = b.attach(prefetch=1)
    b.publish()
    b.lie = changed(Deliver, consumer=second - 1)
    return "prefetch", b.publish()


def it_goes_to_a_consumer_that_left(b: Audited) -> tuple[str, int | None]:
    b.declare()
    gone = b.attach(prefetch=9)
    b.do(ConsumerCancelled("/", "q", gone))
    b.attach(prefetch=9)
    b.lie = changed(Deliver, consumer=gone)
    return "consumers", b.publish()


def it_goes_to_a_consumer_of_another_queue(b: Audited) -> tuple[str, int | None]:
    b.declare()
    b.declare("other")
    other = b.attach("other", prefetch=9)
    b.attach(prefetch=9)
    b.lie = changed(Deliver, consumer=other)
    return "consumers", b.publish()


def it_needs_no_ack_of_a_consumer_that_acks(b: Audited) -> tuple[str, int | None]:
    b.declare()
    b.attach(prefetch=9)
    b.lie = changed(Deliver, final=True)
    return "consumers", b.publish()


def a_second_consumer_is_active(b: Audited) -> tuple[str, int | None]:
    b.declare(single_active_consumer=True)
    b.attach(prefetch=9)
    waiting = b.attach(prefetch=9)
    b.publish()
    b.lie = changed(Deliver, consumer=waiting)
    return "consumers", b.publish()


def an_empty_get_of_what_is_ready(b: Audited) -> tuple[str, int | None]:
    b.declare()
    b.publish()
    b.lie = changed(FetchReply, message_id=-1)
    b.get()
    return "conservation", None


def a_purge_leaves_something(b: Audited) -> tuple[str, int | None]:
    b.declare()
    m, _ = b.publish(), b.publish()
    b.lie = changed(Forget, message_ids=[m])
    b.do(Purged("/", "q"))
    return "settlement", None


def removal(*ids: int, moved: bool = False) -> MessageRemoved:
    way = ("x", "k") if moved else ("", "")
    return MessageRemoved("/", "q", tuple((message_id, message_id) for message_id in ids), "", moved, *way)


def operated(b: Audited) -> int:
    """A queue with messages. Returns the first of them."""
    b.declare()
    first = b.publish()
    b.publish()
    return first


def an_operator_takes_another_message(b: Audited) -> tuple[str, int | None]:
    m = operated(b)
    b.lie = changed(Forget, message_ids=[m + 1])
    b.do(removal(m))
    return "settlement", m + 1


def an_operator_takes_nothing(b: Audited) -> tuple[str, int | None]:
    m = operated(b)
    b.lie = left_out(Forget)
    b.do(removal(m))
    return "settlement", m


def an_operator_moves_and_it_is_deleted(b: Audited) -> tuple[str, int | None]:
    m = operated(b)
    b.lie = changed(Forget, reason="removed")
    b.do(removal(m, moved=True))
    return "settlement", m


def an_operator_moves_into_nothing(b: Audited) -> tuple[str, int | None]:
    m = operated(b)
    b.lie = left_out(DeadLetter)
    b.do(removal(m, moved=True))
    return "dead letters", m


def an_operator_moves_elsewhere(b: Audited) -> tuple[str, int | None]:
    m = operated(b)
    b.lie = changed(DeadLetter, routing_key="elsewhere")
    b.do(removal(m, moved=True))
    return "dead letters", m


def drained(b: Audited) -> tuple[QueueDrained, int]:
    """A queue with two messages, the first of them came back; and the event that lets both leave."""
    queue = b.declare(type="quorum", message_ttl=1_000, delivery_limit=5)
    first = b.publish()
    consumer = b.attach(prefetch=1)
    b.publish()
    b.do(QueuePaused("/", "q", ""))
    b.nack(consumer, first)
    return QueueDrained("/", "q", queue.queue_id, 2), first


def a_message_moves_that_should_stay(b: Audited) -> tuple[str, int | None]:
    _, m = drained(b)
    b.lie = changed(Forget, reason="relocated")
    b.do(removal(m))
    return "settlement", m


def less_moves_than_should(b: Audited) -> tuple[str, int | None]:
    event, _ = drained(b)

    def lie(effects: list[Effect]) -> None:
        of(effects, Forget).message_ids.pop()
        effects.pop()

    b.lie = lie
    b.do(event, 0)
    return "settlement", None


def a_message_moves_into_nothing(b: Audited) -> tuple[str, int | None]:
    event, m = drained(b)
    b.lie = left_out(DeadLetter)
    b.do(event, 0)
    return "dead letters", m


def a_message_moves_without_its_count(b: Audited) -> tuple[str, int | None]:
    event, m = drained(b)

    def lie(effects: list[Effect]) -> None:
        letter = of(effects, DeadLetter)
        letter.carried = [replace(each, delivery_count=0) for each in letter.carried]

    b.lie = lie
    b.do(event, 0)
    return "dead letters", m


def a_message_moves_without_its_expiry(b: Audited) -> tuple[str, int | None]:
    event, m = drained(b)

    def lie(effects: list[Effect]) -> None:
        letter = of(effects, DeadLetter)
        letter.carried = [replace(each, expiry=-1) for each in letter.carried]

    b.lie = lie
    b.do(event, 0)
    return "dead letters", m


def a_message_that_moved_comes_without_its_flag(b: Audited) -> tuple[str, int | None]:
    b.declare(type="quorum")
    m = b.publish(
        origin=Origin(
            "/",
            "q",
            queue_id=3,
            message_id=40,
            reason="relocated",
            sequence=1,
            restore="",
            delivery_count=1,
            redelivered=True,
        )
    )
    b.lie = changed(Deliver, redelivered=False)
    b.attach(prefetch=1)
    return "deliveries", m


def a_message_that_moved_is_taken_in_again(b: Audited) -> tuple[str, int | None]:
    b.declare()
    for _ in range(2):
        m = b.offset
        b.lie = left_out(Duplicate) if m > 1 else None
        b.publish(origin=Origin("/", "q", 3, 40, "relocated", 1))
    return "dead letters", m


def a_paused_queue_delivers(b: Audited) -> tuple[str, int | None]:
    m = operated(b)
    b.do(QueuePaused("/", "q", ""))
    b.lie = changed(FetchReply, message_id=m)
    b.get()
    return "consumers", m


def what_a_consumer_held_is_lost(b: Audited) -> tuple[str, int | None]:
    b.declare()
    b.publish()
    b.attach(prefetch=1, session=7)
    b.lie = left_out(Requeue)
    b.close(7)
    return "conservation", None


def a_dead_letter_is_not_sent(b: Audited) -> tuple[str, int | None]:
    b.declare(dead_letter_exchange="dlx")
    m, c = b.publish(), b.attach(prefetch=1)
    b.lie = left_out(DeadLetter)
    b.nack(c, m, requeue=False)
    return "dead letters", m


def a_dead_letter_goes_to_another_exchange(b: Audited) -> tuple[str, int | None]:
    b.declare(dead_letter_exchange="dlx")
    m, c = b.publish(), b.attach(prefetch=1)
    b.lie = changed(DeadLetter, exchange="elsewhere")
    b.nack(c, m, requeue=False)
    return "dead letters", m


def a_number_of_a_dead_letter_is_left_out(b: Audited) -> tuple[str, int | None]:
    b.declare(dead_letter_exchange="dlx")
    m, c = b.publish(), b.attach(prefetch=1)
    b.lie = changed(DeadLetter, sequence=2)
    b.nack(c, m, requeue=False)
    return "dead letters", m


def a_dead_letter_is_taken_in_twice(b: Audited) -> tuple[str, int | None]:
    b.declare()
    b.publish(origin=letter(1))
    b.lie = left_out(Duplicate)
    return "dead letters", b.publish(origin=letter(1))


def a_new_dead_letter_is_taken_for_a_repeat(b: Audited) -> tuple[str, int | None]:
    queue = b.declare()
    b.publish(origin=letter(1))
    b.lie = lambda effects: effects.append(Duplicate(queue, b.offset - 1))
    return "dead letters", b.publish(origin=letter(2))


def a_message_is_restored_twice(b: Audited) -> tuple[str, int | None]:
    b.declare()
    b.publish(origin=restored(5))
    b.publish(origin=restored(4))
    b.lie = left_out(Duplicate)
    return "dead letters", b.publish(origin=restored(5))


Story = Callable[[Audited], tuple[str, int | None]]
LIES: list[Story] = [
    an_acked_message_is_still_there,
    an_ack_takes_another_message,
    an_ack_of_one_takes_two,
    it_is_delivered_twice,
    it_is_delivered_after_its_expiry,
    it_expires_too_early,
    it_is_dropped_below_the_limit,
    a_publish_is_refused_below_the_limit,
    a_refusal_is_hidden,
    the_redelivered_flag_is_missing,
    a_delivery_is_not_counted,
    it_comes_back_more_often_than_the_limit,
    the_delivery_limit_comes_too_early,
    a_later_message_comes_first,
    a_lower_priority_comes_first,
    a_stream_cuts_for_its_age_what_is_young,
    a_stream_cuts_in_the_wrong_order,
    it_waits_too_long,
    a_consumer_gets_more_than_its_prefetch,
    it_goes_to_a_consumer_that_left,
    it_goes_to_a_consumer_of_another_queue,
    it_needs_no_ack_of_a_consumer_that_acks,
    a_second_consumer_is_active,
    an_empty_get_of_what_is_ready,
    a_purge_leaves_something,
    an_operator_takes_another_message,
    an_operator_takes_nothing,
    an_operator_moves_and_it_is_deleted,
    an_operator_moves_into_nothing,
    an_operator_moves_elsewhere,
    a_message_moves_that_should_stay,
    less_moves_than_should,
    a_message_moves_into_nothing,
    a_message_moves_without_its_count,
    a_message_moves_without_its_expiry,
    a_message_that_moved_comes_without_its_flag,
    a_message_that_moved_is_taken_in_again,
    a_paused_queue_delivers,
    what_a_consumer_held_is_lost,
    a_dead_letter_is_not_sent,
    a_dead_letter_goes_to_another_exchange,
    a_number_of_a_dead_letter_is_left_out,
    a_dead_letter_is_taken_in_twice,
    a_new_dead_letter_is_taken_for_a_repeat,
    a_message_is_restored_twice,
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_b18_a_lie_is_found_with_check_queue_message_and_offset(lie: Story) -> None:
    bench = Audited()
    check, message_id = lie(bench)
    assert bench.lied_at == bench.offset - 1
    found = [(row[0], row[3], row[4], row[5]) for row in bench.product.rows]
    assert (check, bench.lied_at, "//q", message_id) in found, found
    assert {row[1] for row in found} == {bench.lied_at}, "nothing was found before the lie"


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_the_same_history_without_the_lie_has_no_finding(lie: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Audited()
    monkeypatch.setattr(Audited, "lie", property(lambda self: None, lambda self, value: None), raising=False)
    if lie is not a_stream_cuts_in_the_wrong_order:  # whose ledger is told a lie
        lie(bench)
        assert bench.product.rows == []


def test_every_check_of_the_fold_has_a_lie() -> None:
    from rewindmq.spark_replay.audit.checks import CHECKS

    found = set()
    for lie in LIES:
        bench = Audited()
        found.add(lie(bench)[0])
    # these are about records and brokers, not about the machine
    assert found == set(CHECKS) - {"claims", "records", "last words"}
