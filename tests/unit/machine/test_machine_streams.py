"""Streams (S-071, S-072; contract of x-max-age and x-max-length-bytes: RabbitMQ's stream documentation)."""

import random
from typing import Any

from rewindmq.projections.machine.data import stream
from rewindmq.projections.machine.data.effects import Forget
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.legal_values import age_ms
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    Credited,
    Fetched,
    PolicyApplied,
    Published,
    Purged,
    QueueDeleted,
    SessionClosed,
    Tick,
)
from rewindmq.schemas.values import Actor, Origin
from tests.support.events_for_tests import START_MS, VHOST, Bench, arguments, attached, declared, explain, policy, route


def stream_bench(**keys: Any) -> Bench:
    bench = Bench()
    bench.declare(type="stream", **keys)
    return bench


def numbers(bench: Bench) -> list[int]:
    """Of the messages that are there."""
    queue = bench.queue()
    first = stream.first_number(queue)
    return list(range(first, first + queue.messages_ready))


def test_consumers_take_nothing_and_are_counted() -> None:
    bench = stream_bench()
    first = bench.publish(expiration=0)
    consumer = bench.attach(prefetch=10)
    assert bench.effects == []
    second = bench.publish(persistent=False)
    assert explain(bench.effects) == [("keep", "q", second)]
    assert bench.queue().consumer_count() == 1
    assert bench.ready() == [first, second]
    for nonsense in (
        Acked(VHOST, "q", consumer, ((first, first),)),
        Credited(VHOST, "q", consumer, 5),
        Fetched(VHOST, "q", 7, 1, True),
        Purged(VHOST, "q"),
    ):
        assert bench.do(nonsense) == [("quarantine",)]
    bench.now_ms += 10**9
    assert bench.do(Tick()) == []
    bench.do(BrokerStarted("n", "1", 1, after_crash=True), 0)
    assert [(m.message_id, m.redelivered) for m in bench.queue().messages()] == [(first, False), (second, False)]
    assert bench.queue().consumer_count() == 0


def test_several_consumers_at_once_an_exclusive_one_among_them() -> None:
    bench = stream_bench()
    bench.do(attached(VHOST, "q", 7, channel=1, tag="c", exclusive=True, prefetch=1))
    bench.attach(prefetch=1)
    assert bench.queue().consumer_count() == 2
    bench.do(SessionClosed(1, 0))
    assert bench.queue().consumer_count() == 0


def test_a_deleted_stream_cancels_its_consumers() -> None:
    bench = stream_bench()
    message = bench.publish()
    consumer = bench.attach(prefetch=1)
    assert bench.do(QueueDeleted(VHOST, "q", False, False)) == [
        ("forget", "q", message, "deleted", 0),
        ("cancel", "q", consumer),
        ("gone", "q", "deleted", 1),
    ]


def test_max_length_bytes_cuts_the_head_and_keeps_the_newest() -> None:
    bench = stream_bench(max_length_bytes=10)
    ids = [bench.publish(size=4) for _ in range(3)]
    assert bench.ready() == ids[1:]
    assert numbers(bench) == [1, 2]
    assert [e.rule for e in bench.effects if isinstance(e, Forget)] == ["argument x-max-length-bytes"]
    large = bench.publish(size=100)
    assert bench.ready() == [large]
    assert numbers(bench) == [3]
    assert bench.queue().counters["maxlen"] == 3


def test_max_age_cuts_to_the_second_that_follows() -> None:
    bench = stream_bench(max_age="2s")
    bench.now_ms += 1_500
    old = bench.publish()
    bench.now_ms += 600
    young = bench.publish()
    assert bench.machine.deadline_ms() == START_MS + 4_000
    bench.now_ms = START_MS + 3_999
    assert bench.do(Tick()) == []
    bench.now_ms += 1
    assert bench.do(Tick()) == [("forget", "q", old, "expired", 0)]
    assert [e.rule for e in bench.effects if isinstance(e, Forget)] == ["argument x-max-age"]
    bench.now_ms = START_MS + 5_000
    assert bench.do(Tick()) == [("forget", "q", young, "expired", 0)]
    assert numbers(bench) == []
    assert stream.first_number(bench.queue()) == 2
    assert bench.machine.deadline_ms() is None


def test_a_policy_wins_and_cuts_at_once() -> None:
    bench = stream_bench(max_length_bytes=3, max_age="1s")
    bench.do(PolicyApplied(VHOST, "q", policy("keep", max_length_bytes=100, max_age="1D"), None))
    for _ in range(5):
        bench.publish()
        bench.now_ms += 1_000
    assert numbers(bench) == [0, 1, 2, 3, 4]
    assert bench.queue().settings.max_age_rule == "policy keep.max-age"
    bench.do(PolicyApplied(VHOST, "q", policy("less", max_age="2s"), None))
    assert numbers(bench) == [3, 4]
    bench.do(PolicyApplied(VHOST, "q", None, None))
    assert numbers(bench) == [4]


def test_what_other_queues_have_a_stream_has_not() -> None:
    bench = stream_bench(message_ttl=1, expires=1, max_length=1, dead_letter_exchange="x", overflow="reject-publish")
    first, second = bench.publish(), bench.publish()
    bench.now_ms += 10_000
    assert bench.do(Tick()) == []
    assert bench.ready() == [first, second]


def test_a_dead_letter_comes_once() -> None:
    bench = stream_bench()
    origin = Origin(VHOST, "x", 7, 70, "expired", 1)
    first = bench.publish(origin=origin)
    bench.publish(origin=origin)
    assert bench.ready() == [first]


def test_numbers_ids_and_times_over_many_chunks_and_after_loading() -> None:
    seeded = random.Random(7)
    bench = stream_bench()
    ids: list[int] = []
    times: list[int] = []
    for _ in range(5_000):
        bench.now_ms += seeded.choice([0, 0, 100, 900])
        bench.machine.apply(bench.offset, bench.now_ms, *publish_of_one_byte(), bench.effects)
        ids.append(bench.offset)
        times.append((bench.now_ms - START_MS) // 1000)
        bench.offset += 1
    bench.do(PolicyApplied(VHOST, "q", policy("less", max_length_bytes=3_300), None))
    pieces = [(meta, chunks) for _, meta, chunks in bench.machine.pieces()]
    for machine in (bench.machine, Machine.load("queues-0", bench.machine.head(), pieces)):
        machine.validate()
        queue = machine.queue(VHOST, "q")
        assert queue is not None
        assert stream.first_number(queue) == 1_700
        assert [stream.id_of(queue, number) for number in range(1_700, 5_000)] == ids[1_700:]
        for at in (0, START_MS, START_MS + times[2_000] * 1000, START_MS + times[4_000] * 1000 + 999, 10**12):
            expected = next((n for n in range(1_700, 5_000) if times[n] >= (at - START_MS) // 1000), 5_000)
            assert stream.number_from(queue, at) == expected


def publish_of_one_byte() -> tuple[Actor, Published]:
    return Actor("guest", 1), Published(route("q"), b"", persistent=True, body=b"", body_size=1)


def test_ages() -> None:
    assert [age_ms(text) for text in ("7D", "1h", "2m", "3s", "1M", "1Y")] == [
        604_800_000,
        3_600_000,
        120_000,
        3_000,
        2_592_000_000,
        31_536_000_000,
    ]
    assert [age_ms(text) for text in ("", "7", "D", "0s", "1A", "1 h", "-1s", "1D2h", "9" * 20 + "s")] == [None] * 9
    bench = Bench()
    bench.do(declared(VHOST, "q", type="stream", durable=True, arguments=arguments({"max_age": "soon"})))
    assert bench.queue().settings.max_age_ms is None
