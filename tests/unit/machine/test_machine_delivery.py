"""Ordering, consumers, requeue, delivery limit, sessions (docs/behaviours/consumers.md, queues.md, dead-letters.md)."""

from typing import Any

import pytest

from rewindmq.projections.machine.data.effects import DeadLetter, Deliver, FetchReply, Forget, Requeue
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    ConsumerCancelled,
    Credited,
    Fetched,
    Nacked,
    Purged,
    QueueDeleted,
    SessionClosed,
)
from tests.support.events_for_tests import Bench, explain, policy


def recipients(bench: Bench) -> list[tuple[int, int]]:
    """(message, consumer) of the last event's deliveries."""
    return [(each, e.consumer) for e in bench.effects if isinstance(e, Deliver) for each in e.message_ids]


def test_s061_first_in_first_out() -> None:
    bench = Bench()
    bench.declare()
    ids = [bench.publish() for _ in range(3)]
    assert [(view.message_id, view.position) for view in bench.queue().messages()] == [
        (id, at) for at, id in enumerate(ids)
    ]
    assert [bench.get() for _ in range(4)] == [*ids, -1]


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_s092_s093_s096_round_robin_prefetch_and_priority(type: str) -> None:
    """Measured on 3.10.8: three consumers with a prefetch of two, z of higher priority: z z, then x y x y; who acks
    goes to the end of the round, and z comes first again when it has room."""
    bench = Bench()
    bench.declare(type=type)
    x, y, z = bench.attach(prefetch=2), bench.attach(prefetch=2), bench.attach(prefetch=2, priority=5)
    ids: list[int] = []
    got: list[int] = []
    for _ in range(7):
        ids.append(bench.publish())
        got.extend(consumer for _, consumer in recipients(bench))
    assert got == [z, z, x, y, x, y]
    bench.ack(x, ids[2])
    assert recipients(bench) == [(ids[6], x)]
    bench.ack(z, ids[0])
    assert recipients(bench) == []
    last = bench.publish()
    assert recipients(bench) == [(last, z)]


@pytest.mark.parametrize(("type", "turn"), [("classic", 0), ("quorum", 1)])
def test_s092_a_consumer_that_was_full_when_its_turn_did_not_come(type: str, turn: int) -> None:
    """Measured on 3.10.8: A to x (now full), B to y; x acks. Classic: it is still x's turn; quorum: x is behind y."""
    bench = Bench()
    bench.declare(type=type)
    consumers = bench.attach(prefetch=1), bench.attach(prefetch=3)
    a = bench.publish()
    assert recipients(bench) == [(a, consumers[0])]
    b = bench.publish()
    assert recipients(bench) == [(b, consumers[1])]
    bench.ack(consumers[0], a)
    c = bench.publish()
    assert recipients(bench) == [(c, consumers[turn])]


def test_a_consumer_takes_what_waits_up_to_its_prefetch() -> None:
    bench = Bench()
    queue = bench.declare()
    ids = [bench.publish() for _ in range(5)]
    consumer = bench.attach(prefetch=3)
    assert bench.delivered() == ids[:3]
    assert (queue.messages_ready, queue.messages_unacked) == (2, 3)
    told = bench.do(Acked("/", "q", consumer, ((ids[0], ids[1]),)))
    assert told[:2] == [("forget", "q", i, "acked", consumer) for i in ids[:2]]
    assert bench.delivered() == ids[3:]


def test_credit_bounds_what_is_in_flight() -> None:
    bench = Bench()
    bench.declare()
    ids = [bench.publish() for _ in range(5)]
    consumer = bench.attach(no_ack=True, credit=2)
    assert bench.delivered() == ids[:2]
    assert all(e.final for e in bench.effects if isinstance(e, Deliver))
    bench.do(Credited("/", "q", consumer, 1))
    assert bench.delivered() == ids[2:3]
    assert bench.queue().counters["delivered"] == 3


def test_a_shared_limit_spans_queues() -> None:
    """basic.qos global: two consumers of a channel on two queues share two deliveries."""
    bench = Bench()
    bench.declare("a")
    bench.declare("b")
    one, two = bench.attach("a", shared=2, credit=9), bench.attach("b", shared=2, credit=9)
    first = bench.publish("a")
    second = bench.publish("b")
    third = bench.publish("b")
    assert bench.delivered() == []
    bench.ack(one, first, queue="a")
    assert recipients(bench) == [(third, two)]
    assert second in bench.queue("b").holders[two].held


def served(acks: int) -> list[str]:
    """The queues whose messages one channel acks, with three queues of ten messages and a shared limit of one."""
    bench = Bench()
    queues = ("a", "b", "c")
    for queue in queues:
        bench.declare(queue)
        for _ in range(10):
            bench.publish(queue)
    consumers = {bench.attach(queue, shared=1, credit=99): queue for queue in queues}
    order = []
    for _ in range(acks):
        held = [(number, *bench.queue(queue).holders[number].held) for number, queue in consumers.items()]
        ((number, message_id),) = [each for each in held if len(each) > 1]
        order.append(consumers[number])
        bench.ack(number, message_id, queue=consumers[number])
    return order


def test_a_shared_limit_serves_its_queues_in_turn() -> None:
    """No queue of a channel starves. RabbitMQ picks the next one by chance (rabbit_limiter.erl notify_queues): of 100
    messages in each of three queues 34, 36 and 30 were served first."""
    assert served(10) == ["a", *["a", "b", "c"] * 3]  # the first message was delivered before b had a consumer


def test_a_dry_queue_does_not_hold_up_the_others_of_a_shared_limit() -> None:
    assert served(30).count("c") == 10


def test_a_shared_limit_raised_lowered_and_lifted() -> None:
    """As rabbit_limiter.erl: raising lets waiting deliveries go out, lowering holds back until enough is acked."""
    bench = Bench()
    bench.declare()
    consumer = bench.attach(shared=1, credit=100)
    ids = [bench.publish() for _ in range(8)]
    assert bench.qos(3) == [("deliver", "q", i, consumer, False, 0, False) for i in ids[1:3]]
    assert bench.qos(1) == []
    for held in ids[:2]:
        bench.ack(consumer, held)
        assert bench.delivered() == []
    bench.ack(consumer, ids[2])
    assert bench.delivered() == ids[3:4]
    bench.qos(0)
    assert bench.delivered() == ids[4:]


def test_a_first_shared_limit_binds_those_attached_before() -> None:
    """Also what they hold counts, a cancelled one's too; what basic.get holds does not."""
    bench = Bench()
    bench.declare()
    ids = [bench.publish() for _ in range(4)]
    gone, stays = bench.attach(prefetch=1), bench.attach(prefetch=1)
    bench.do(ConsumerCancelled("/", "q", gone))
    assert bench.get(no_ack=False) == ids[2]
    bench.qos(2)
    late = bench.attach(prefetch=5, shared=2)
    assert bench.delivered() == []
    bench.ack(stays, ids[1])
    assert recipients(bench) == [(ids[3], late)] or recipients(bench) == [(ids[3], stays)]
    assert bench.qos(0) == []


def test_own_and_shared_limit_both_hold() -> None:
    bench = Bench()
    bench.declare("a")
    bench.declare("b")
    one, two = bench.attach("a", prefetch=2, shared=3), bench.attach("b", prefetch=2, shared=3)
    ids = [bench.publish(queue) for queue in "aaabbb"]
    assert list(bench.queue("a").holders[one].held) == ids[:2]
    assert list(bench.queue("b").holders[two].held) == ids[3:4]
    bench.ack(two, ids[3], queue="b")
    assert recipients(bench) == [(ids[4], two)]
    bench.ack(one, ids[0], queue="a")
    assert len(recipients(bench)) == 1


def test_the_shared_limit_holds_no_ack_back_and_does_not_count_it() -> None:
    """rabbit_limiter.erl can_send: asked for every delivery, counted with `ack_required` only."""
    bench = Bench()
    bench.declare("a")
    bench.declare("b")
    holder = bench.attach("a", prefetch=1)
    taker = bench.attach("b", no_ack=True, credit=9)
    bench.qos(1)
    [bench.publish("b") for _ in range(3)]
    assert bench.ready("b") == []
    held = bench.publish("a")
    waiting = bench.publish("b")
    assert bench.ready("b") == [waiting]
    bench.ack(holder, held, queue="a")
    assert recipients(bench) == [(waiting, taker)]


def test_s097_a_quorum_queue_knows_no_shared_limit() -> None:
    bench = Bench()
    bench.declare("quorum", type="quorum")
    consumer = bench.attach("quorum", prefetch=5)
    bench.qos(1)
    [bench.publish("quorum") for _ in range(3)]
    assert len(bench.queue("quorum").holders[consumer].held) == 3


def test_a_shared_limit_is_its_channels_alone() -> None:
    bench = Bench()
    bench.declare()
    mine, other, foreign = bench.attach(credit=9), bench.attach(credit=9, channel=2), bench.attach(credit=9, session=2)
    bench.qos(1)
    bench.qos(1, session=3)  # nobody there
    [bench.publish() for _ in range(5)]
    held = {consumer: len(bench.queue().holders[consumer].held) for consumer in (mine, other, foreign)}
    assert held == {mine: 1, other: 2, foreign: 2}
    assert len(bench.machine.limiters) == 1


def test_a_cancelled_consumer_keeps_what_it_holds() -> None:
    bench = Bench()
    queue = bench.declare()
    consumer = bench.attach(prefetch=5)
    message = bench.publish()
    bench.do(ConsumerCancelled("/", "q", consumer))
    waiting = bench.publish()
    assert (queue.consumer_count(), queue.messages_unacked, bench.ready()) == (0, 1, [waiting])
    bench.nack(consumer, message)
    assert bench.ready() == [message, waiting]
    assert queue.holders == {}


# -- where messages go that come back (S-095, measured on RabbitMQ 3.10.8 with pika) --------------------


@pytest.mark.parametrize(
    ("type", "limit", "how", "expected"),
    [
        ("classic", None, "nack", "ABCD"),
        ("classic", None, "reject B, then A", "ABCD"),
        ("classic", None, "channel closes", "ABCD"),
        ("quorum", None, "nack", "CDAB"),
        ("quorum", None, "reject B, then A", "CDBA"),
        ("quorum", None, "recover", "CDAB"),
        ("quorum", None, "channel closes", "ABCD"),
        ("quorum", 5, "nack", "ABCD"),
        ("quorum", 5, "reject B, then A", "BACD"),
        ("quorum", 5, "recover", "ABCD"),
        ("quorum", 5, "channel closes", "ABCD"),
    ],
)
def test_s095_where_a_requeued_message_goes(type: str, limit: int | None, how: str, expected: str) -> None:
    """A B C D are ready; A and B are fetched and come back."""
    bench = Bench()
    keys: dict[str, Any] = {} if limit is None else {"delivery_limit": limit}
    bench.declare("q", type, None, None, True, False, False, 0, **keys)
    ids = {name: bench.publish() for name in "ABCD"}
    for name in "AB":
        assert bench.get(no_ack=False) == ids[name]
    if how == "channel closes":
        bench.close(1, 1)
    elif how == "reject B, then A":
        bench.do(Nacked("/", "q", 50, ((ids["B"], ids["B"]),), True, "reject"))
        bench.do(Nacked("/", "q", 50, ((ids["A"], ids["A"]),), True, "reject"))
    else:
        bench.do(Nacked("/", "q", 50, ((ids["A"], ids["B"]),), True, how))
    names = {message_id: name for name, message_id in ids.items()}
    assert "".join(names[message_id] for message_id in bench.ready()) == expected
    views = {names[view.message_id]: view for view in bench.queue().messages()}
    assert [views[n].redelivered for n in "ABCD"] == [True, True, False, False]
    assert [views[n].delivery_count for n in "ABCD"] == ([1, 1, 0, 0] if type == "quorum" else [0] * 4)


def test_s095_s094_nacks_go_round_a_quorum_queue_without_a_limit() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (({}, "ABCABC"), ({"delivery_limit": 9}, "AAAAAA"))
    for keys, expected in cases:
        bench = Bench()
        bench.declare("q", "quorum", None, None, True, False, False, 0, **keys)
        names = {bench.publish(): name for name in "ABC"}
        consumer = bench.attach(prefetch=1)
        seen = bench.delivered()
        while len(seen) < 6:
            bench.nack(consumer, seen[-1])
            seen += bench.delivered()
        assert "".join(names[i] for i in seen) == expected


def test_quorum_takes_several_back_in_the_order_of_their_delivery() -> None:
    """Measured on 3.10.8: B A were delivered in this order, one nack for both: B A again; rejected: B A."""
    for requeue in (True, False):
        bench = Bench()
        bench.declare(type="quorum", dead_letter_exchange="dlx")
        a, b = bench.publish(), bench.publish()
        consumer = bench.attach(prefetch=1)
        bench.nack(consumer, a)
        bench.do(ConsumerCancelled("/", "q", consumer))
        bench.nack(consumer, b)
        assert bench.ready() == [a, b]
        assert [bench.get(no_ack=False), bench.get(no_ack=False)] == [a, b]
        bench.do(Nacked("/", "q", 50, ((b, b),), True, "nack"))
        bench.do(Nacked("/", "q", 50, ((a, a),), True, "nack"))
        assert [bench.get(no_ack=False), bench.get(no_ack=False)] == [b, a]
        bench.do(Nacked("/", "q", 50, ((a, b),), requeue, "nack"))
        if requeue:
            assert bench.ready() == [b, a]
        else:
            assert [list(e.message_ids) for e in bench.effects if isinstance(e, DeadLetter)] == [[b, a]]


# -- delivery limit -------------------------------------------------------------------------------------


def test_s157_s159_limit_n_allows_n_plus_1_deliveries() -> None:
    """Measured on 3.10.8: with limit 2 delivered with counts 0, 1, 2, then gone."""
    bench = Bench()
    queue = bench.declare(type="quorum", policy=policy("p", delivery_limit=2), dead_letter_exchange="dlx")
    message = bench.publish()
    counts = []
    while bench.get(no_ack=False) == message:
        reply = next(e for e in bench.effects if isinstance(e, FetchReply))
        counts.append((reply.delivery_count, reply.redelivered))
        bench.nack(50, message)
    assert counts == [(0, False), (1, True), (2, True)]
    assert queue.counters["delivery_limit"] == 1
    assert [e.reason for e in queue.outbox.values()] == ["delivery_limit"]


def test_s159_every_return_counts_in_3_13_also_a_lost_connection() -> None:
    bench = Bench()
    bench.declare(type="quorum", delivery_limit=1)
    message = bench.publish()
    bench.attach(prefetch=1, session=4)
    told = bench.do(SessionClosed(4, 0))
    assert told == [("requeue", "q", message, 101, "session_closed")]
    bench.attach(prefetch=1, session=5)
    told = bench.do(SessionClosed(5, 0))
    assert told == [("forget", "q", message, "delivery_limit", 102)]
    assert [e.rule for e in bench.effects if isinstance(e, Forget)] == ["argument x-delivery-limit"]


def test_s160_smaller_limit_and_default_none() -> None:
    bench = Bench()
    assert bench.declare("k", type="quorum").settings.delivery_limit is None
    queue = bench.declare("l", type="quorum", policy=policy("p", delivery_limit=3), delivery_limit=5)
    assert queue.settings.delivery_limit == 3


def test_s161_classic_queues_have_no_poison_handling() -> None:
    bench = Bench()
    bench.declare(policy=policy("p", delivery_limit=0))
    message = bench.publish()
    for _ in range(5):
        assert bench.get(no_ack=False) == message
        bench.nack(50, message)


# -- sessions, exclusive and auto-delete queues ---------------------------------------------------------


def test_s070_s088_auto_delete_when_the_last_consumer_goes() -> None:
    bench = Bench()
    bench.declare(auto_delete=True)
    bench.close(1)
    assert bench.machine.queue("/", "q") is not None  # never had one
    one, _two = bench.attach(prefetch=1, session=1), bench.attach(prefetch=1, session=2)
    message = bench.publish()
    bench.do(ConsumerCancelled("/", "q", one))
    assert bench.machine.queue("/", "q") is not None
    told = bench.do(SessionClosed(2, 0))
    assert told == [("forget", "q", message, "deleted", one), ("gone", "q", "auto_delete", 0)]


def test_s083_s084_an_exclusive_queue_goes_with_its_connection() -> None:
    bench = Bench()
    bench.declare(exclusive=True, owner=7)
    bench.publish()
    bench.attach(prefetch=1, session=7, channel=3)
    bench.close(7, 3)
    assert bench.machine.queue("/", "q") is not None
    assert bench.close(7)[-1] == ("gone", "q", "exclusive_owner_gone", 1)


def test_a_closed_channel_returns_only_its_own() -> None:
    bench = Bench()
    bench.declare()
    bench.attach(prefetch=1, channel=1)
    two = bench.attach(prefetch=1, channel=2)
    a, b = bench.publish(), bench.publish()
    bench.close(1, 1)
    assert bench.ready() == [a]
    assert list(bench.queue().holders[two].held) == [b]
    bench.ack(two, b)
    assert bench.delivered() == [a]
    assert [e.redelivered for e in bench.effects if isinstance(e, Deliver)] == [True]


def test_s074_s075_a_start_loses_what_is_transient() -> None:
    bench = Bench()
    bench.declare("transient", durable=False)
    bench.declare("durable")
    bench.declare("quorum", type="quorum")
    bench.declare("exclusive", exclusive=True, owner=1)
    bench.publish("transient", "durable", "quorum", persistent=False)
    kept = bench.publish("transient", "durable", "quorum")
    bench.attach("durable", prefetch=1)
    told = bench.do(BrokerStarted("n", "1", 1))
    assert {t[1]: t[2] for t in told if t[0] == "gone"} == {
        "transient": "transient",
        "exclusive": "exclusive_owner_gone",
    }
    assert bench.ready("durable") == [kept]
    assert len(bench.ready("quorum")) == 2
    assert bench.queue("durable").counters["transient"] == 1
    assert bench.queue("durable").consumers() == []


# -- get, purge, delete ---------------------------------------------------------------------------------


def test_get_holds_or_takes() -> None:
    bench = Bench()
    queue = bench.declare()
    a, b = bench.publish(), bench.publish()
    assert bench.do(Fetched("/", "q", 50, 1, False)) == [("get", "q", a, 50, False, 0, 1)]
    assert bench.do(Fetched("/", "q", 51, 1, True)) == [("get", "q", b, 51, False, 0, 0)]
    assert bench.do(Fetched("/", "q", 51, 1, True)) == [("get", "q", -1, 51, False, 0, 0)]
    assert (queue.messages_unacked, list(queue.holders), queue.consumer_count()) == (1, [50], 0)
    bench.ack(50, a)
    assert queue.holders == {}


def test_purge_drops_what_is_ready_and_nothing_else() -> None:
    bench = Bench()
    queue = bench.declare(dead_letter_exchange="dlx")
    bench.attach(prefetch=1)
    held = bench.publish()
    ready = [bench.publish() for _ in range(3)]
    assert bench.do(Purged("/", "q")) == [("forget", "q", i, "purged", 0) for i in ready]
    assert (queue.messages_ready, queue.messages_unacked, queue.counters["purged"]) == (0, 1, 3)
    assert held in queue.holders[101].held


def test_delete_tells_consumers_and_forgets_everything() -> None:
    bench = Bench()
    bench.declare()
    consumer = bench.attach(prefetch=1)
    held, ready = bench.publish(), bench.publish()
    assert bench.do(QueueDeleted("/", "q", True, False)) == []
    assert bench.do(QueueDeleted("/", "q", False, True)) == []
    assert bench.do(QueueDeleted("/", "q", False, False)) == [
        ("forget", "q", ready, "deleted", 0),
        ("cancel", "q", consumer),
        ("forget", "q", held, "deleted", consumer),
        ("gone", "q", "deleted", 1),
    ]
    assert bench.ack(consumer, held) == [("quarantine",)]


# -- nonsense is quarantined, the rest is done ----------------------------------------------------------


def test_an_ack_of_what_is_not_held_does_what_makes_sense() -> None:
    bench = Bench()
    queue = bench.declare()
    consumer = bench.attach(prefetch=9)
    a, b, c = (bench.publish() for _ in range(3))
    bench.ack(consumer, b)
    told = bench.do(Acked("/", "q", consumer, ((a, c + 10**15), (-5, -1))))
    assert told == [
        ("quarantine",),
        ("forget", "q", a, "acked", consumer),
        ("forget", "q", c, "acked", consumer),
        ("quarantine",),
    ]
    assert queue.counters["acked"] == 3


def test_nothing_that_is_not_there_is_touched() -> None:
    bench = Bench()
    before = bench.machine.digest()
    bench.publish("nowhere")
    assert explain(bench.effects) == [("quarantine",)]
    for event in (
        Acked("/", "q", 1, ((1, 1),)),
        Nacked("/", "q", 1, ((1, 1),), True, "nack"),
        Credited("/", "q", 1, 1),
        Fetched("/", "q", 1, 1, True),
        QueueDeleted("/", "q", False, False),
        Purged("/", "q"),
        ConsumerCancelled("/", "q", 1),
    ):
        assert bench.do(event) == [("quarantine",)]
    assert bench.machine.digest() == before


def test_effects_name_who_and_why() -> None:
    bench = Bench()
    bench.declare()
    consumer = bench.attach(prefetch=1)
    message = bench.publish()
    bench.do(Nacked("/", "q", consumer, ((message, message),), True, "reject"))
    requeue = next(e for e in bench.effects if isinstance(e, Requeue))
    assert (list(requeue.message_ids), requeue.consumer, requeue.reason) == ([message], consumer, "reject")
