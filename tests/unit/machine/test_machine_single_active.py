"""Single active consumer (S-109, S-110)."""

import pytest

from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import ConsumerCancelled, Fetched, Nacked, NodeLost, QueueDeclared
from rewindmq.schemas.values import Argument
from tests.support.events_for_tests import VHOST, Bench, attached

TYPES = ("classic", "quorum")
ASKED = Argument("x-single-active-consumer", "bool", True)


def single(type: str, asked: Argument = ASKED, auto_delete: bool = False, semantics: str = "rabbitmq-3.13") -> Bench:
    bench = Bench()
    bench.do(
        QueueDeclared(
            VHOST,
            "q",
            type=type,
            durable=True,
            exclusive=False,
            auto_delete=auto_delete,
            owner=0,
            arguments=(asked,),
            semantics=semantics,
        )
    )
    return bench


def cancel(bench: Bench, consumer: int) -> list[tuple[object, ...]]:
    return bench.do(ConsumerCancelled(VHOST, "q", consumer))


def statuses(queue: Queue) -> list[tuple[int, bool, str]]:
    return [(view.consumer, view.active, view.activity_status) for view in queue.consumers()]


@pytest.mark.parametrize("type", TYPES)
def test_s109_one_gets_all_and_the_others_wait(type: str) -> None:
    bench = single(type)
    first, second = bench.attach(credit=10), bench.attach(credit=10, priority=7)
    ids = [bench.publish() for _ in range(3)]
    assert bench.ready() == []
    assert list(bench.queue().holders[first].held) == ids
    assert statuses(bench.queue()) == [(first, True, "single_active"), (second, False, "waiting")]


@pytest.mark.parametrize("type", TYPES)
def test_s109_while_the_active_one_is_full_nobody_else_gets_anything(type: str) -> None:
    bench = single(type)
    first = bench.attach(prefetch=1)
    bench.attach(prefetch=1)
    one, two = bench.publish(), bench.publish()
    assert bench.ready() == [two]
    bench.ack(first, one)
    assert bench.delivered() == [two]
    assert list(bench.queue().holders[first].held) == [two]


@pytest.mark.parametrize(("type", "expected"), [("classic", 2), ("quorum", 1)])
def test_s110_who_takes_over_is_chosen_by_priority_in_classic_queues_only(type: str, expected: int) -> None:
    """Among equals who has waited longest, whatever the prefetch is."""
    bench = single(type)
    asked = ((0, 1), (1, 1), (5, 1), (5, 9))
    consumers = [bench.attach(prefetch=prefetch, priority=priority) for priority, prefetch in asked]
    one, two = bench.publish(), bench.publish()
    told = cancel(bench, consumers[0])
    assert told == [("deliver", "q", two, consumers[expected], False, 0, False)]
    assert list(bench.queue().holders[consumers[0]].held) == [one]  # the former one keeps what it holds


@pytest.mark.parametrize("type", TYPES)
def test_s109_a_closed_channel_hands_over_with_what_it_held(type: str) -> None:
    bench = single(type)
    bench.attach(prefetch=2, session=1, channel=1)
    bench.attach(prefetch=2, session=1, channel=1)  # goes with it, and is never active
    second = bench.attach(prefetch=2, session=1, channel=2)
    one, two = bench.publish(), bench.publish()
    bench.close(1, channel=1)
    assert list(bench.queue().holders[second].held) == [one, two]
    assert statuses(bench.queue()) == [(second, True, "single_active")]


@pytest.mark.parametrize("type", TYPES)
def test_s109_a_lost_node_hands_over(type: str) -> None:
    bench = single(type)
    bench.attach(prefetch=1, session=7 << 24 | 1)
    bench.attach(prefetch=1, session=7 << 24 | 2)
    other = bench.attach(prefetch=1, session=8 << 24 | 1)
    one = bench.publish()
    bench.do(NodeLost("n", 7, "lapsed"), 0)
    assert list(bench.queue().holders[other].held) == [one]


@pytest.mark.parametrize("type", TYPES)
def test_a_waiting_one_leaves_and_nothing_changes(type: str) -> None:
    bench = single(type)
    first, second = bench.attach(prefetch=1), bench.attach(prefetch=1)
    bench.publish()
    bench.publish()
    assert cancel(bench, second) == []
    assert statuses(bench.queue()) == [(first, True, "single_active")]


@pytest.mark.parametrize("type", TYPES)
def test_when_all_have_left_the_next_to_come_is_active(type: str) -> None:
    bench = single(type)
    first = bench.attach(prefetch=1)
    one, two = bench.publish(), bench.publish()
    cancel(bench, first)
    assert bench.ready() == [two]
    second = bench.attach(prefetch=1)
    assert bench.delivered() == [two]
    assert statuses(bench.queue()) == [(second, True, "single_active")]
    assert list(bench.queue().holders[first].held) == [one]


def test_what_the_former_one_gives_back_goes_to_the_active_one() -> None:
    bench = single("classic")
    first, second = bench.attach(prefetch=1), bench.attach(prefetch=5)
    one = bench.publish()
    cancel(bench, first)
    assert bench.nack(first, one) == [
        ("requeue", "q", one, first, "nack"),
        ("deliver", "q", one, second, True, 0, False),
    ]


@pytest.mark.parametrize("type", TYPES)
def test_s110_an_exclusive_consumer_is_refused_even_if_it_is_the_first(type: str) -> None:
    bench = single(type)
    event = attached(VHOST, "q", 5, channel=1, tag="t", exclusive=True, prefetch=1)
    assert bench.do(event) == [("quarantine",)]
    assert bench.queue().consumer_count() == 0


def test_s110_basic_get_of_classic_but_not_of_quorum_queues() -> None:
    for type, expected in (("classic", "get"), ("quorum", "quarantine")):
        bench = single(type)
        bench.publish()
        assert bench.do(Fetched(VHOST, "q", 50, 1, True))[0][0] == expected


def test_s070_auto_delete_goes_with_the_last_one_waiting_or_active() -> None:
    bench = single("classic", auto_delete=True)
    first, second = bench.attach(prefetch=1), bench.attach(prefetch=1)
    assert cancel(bench, first) == []
    assert cancel(bench, second) == [("gone", "q", "auto_delete", 0)]


def test_a_shared_limit_holds_for_the_active_one() -> None:
    """basic.qos global, which quorum queues do not know (S-097): who waits is not in the way."""
    bench = single("classic")
    first, second = bench.attach(credit=10, shared=1), bench.attach(credit=10, shared=1)
    one, two = bench.publish(), bench.publish()
    assert bench.ready() == [two]
    cancel(bench, first)
    assert bench.ready() == [two]  # what the former one holds still counts
    bench.ack(first, one)
    assert list(bench.queue().holders[second].held) == [two]


@pytest.mark.parametrize("type", TYPES)
def test_it_is_part_of_the_stored_state_and_its_digest(type: str) -> None:
    bench = single(type)
    for _ in range(3):
        bench.attach(prefetch=1)
    bench.publish()
    bench.publish()
    machine = bench.machine
    loaded = Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    loaded.validate()
    assert loaded.digest() == machine.digest()
    queue = loaded.queue(VHOST, "q")
    assert queue is not None
    assert statuses(queue) == statuses(bench.queue())
    before = machine.digest()
    second = list(queue.holders.values())[1]
    queue.active, second.waiting = second, True
    assert loaded.digest() != before


@pytest.mark.parametrize(
    "asked",
    [Argument("x-single-active-consumer", "bool", False), Argument("x-single-active-consumer", "long", 1)],
)
def test_else_all_consumers_get_messages(asked: Argument) -> None:
    bench = single("classic", asked)
    first, second = bench.attach(prefetch=1), bench.attach(prefetch=1)
    bench.publish()
    bench.publish()
    assert bench.ready() == []
    assert statuses(bench.queue()) == [(first, True, "up"), (second, True, "up")]


# -- profile rabbitmq-4.3: as a real 4.3.6 answered -------------------------------------------------------------------


def modern(type: str = "quorum") -> Bench:
    return single(type, semantics="rabbitmq-4.3")


def holds(bench: Bench, consumer: int) -> list[int]:
    return list(bench.queue().holders[consumer].held)


def test_s110_a_higher_priority_takes_over_at_once_from_an_idle_consumer() -> None:
    bench = modern()
    first, second = bench.attach(prefetch=2), bench.attach(prefetch=2, priority=5)
    one = bench.publish()
    assert (holds(bench, first), holds(bench, second)) == ([], [one])
    assert statuses(bench.queue()) == [(first, False, "waiting"), (second, True, "single_active")]


def test_s110_one_that_holds_messages_gives_way_when_all_are_settled() -> None:
    bench = modern()
    first = bench.attach(prefetch=2)
    ids = [bench.publish() for _ in range(4)]
    second = bench.attach(prefetch=2, priority=5)
    assert statuses(bench.queue()) == [(first, True, "single_active"), (second, False, "waiting")]
    bench.ack(first, ids[0])
    assert bench.delivered() == []
    bench.ack(first, ids[1])
    assert holds(bench, second) == ids[2:]
    assert statuses(bench.queue()) == [(first, False, "waiting"), (second, True, "single_active")]


def test_s110_what_it_gives_back_goes_to_the_higher_one() -> None:
    bench = modern()
    first = bench.attach(prefetch=1)
    one = bench.publish()
    second = bench.attach(prefetch=1, priority=5)
    bench.nack(first, one)
    assert holds(bench, second) == [one]


def test_one_that_gives_way_goes_on_when_the_higher_one_has_left() -> None:
    """Not before all is settled."""
    bench = modern()
    first = bench.attach(prefetch=2)
    ids = [bench.publish() for _ in range(4)]
    second = bench.attach(prefetch=2, priority=5)
    assert cancel(bench, second) == []
    bench.ack(first, ids[0])
    assert bench.delivered() == []
    bench.ack(first, ids[1])
    assert holds(bench, first) == ids[2:]


def test_s110_the_next_is_chosen_by_priority_then_prefetch_then_age() -> None:
    bench = modern()
    asked = ((0, 1), (3, 1), (5, 1), (5, 7), (5, 0))
    consumers = [bench.attach(prefetch=prefetch, priority=priority) for priority, prefetch in asked]
    order: list[int] = []
    while bench.queue().consumers():
        order += [view.consumer for view in bench.queue().consumers() if view.active]
        cancel(bench, order[-1])
    # The first of priority 5 has taken over from who came before it; then no prefetch at all counts as the largest.
    assert order == [consumers[index] for index in (2, 4, 3, 1, 0)]


def test_s110_after_a_timeout_the_highest_priority_is_next() -> None:
    """A consumer timeout is its cancellation, and then what it held comes back (engine/amqp/consumer_timeout.py)."""
    bench = modern()
    first = bench.attach(prefetch=1)
    one, two = bench.publish(), bench.publish()
    others = [bench.attach(prefetch=2, priority=priority) for priority in (1, 5, 3)]
    assert holds(bench, first) == [one]
    cancel(bench, first)
    bench.do(Nacked(VHOST, "q", first, ((one, one),), True, "timeout"))
    assert [holds(bench, other) for other in others] == [[], [two, one], []]


def test_s110_a_classic_queue_knows_nothing_of_it() -> None:
    bench = modern("classic")
    first, second = bench.attach(prefetch=2), bench.attach(prefetch=2, priority=5)
    assert statuses(bench.queue()) == [(first, True, "single_active"), (second, False, "waiting")]


def test_giving_way_is_part_of_the_stored_state() -> None:
    bench = modern()
    first = bench.attach(prefetch=2)
    bench.publish()
    before = bench.machine.digest()
    second = bench.attach(prefetch=2, priority=5)
    cancel(bench, second)
    assert bench.machine.digest() != before
    machine = bench.machine
    loaded = Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    loaded.validate()
    assert loaded.digest() == machine.digest()
    assert loaded.by_name[VHOST, "q"].holders[first].waiting
