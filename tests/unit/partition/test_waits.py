"""Waits (B-79): times of the log, ages, and samples of what deliveries and acks waited for."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.partition import waits
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.partition.waits import BOUNDS_MS, Histogram, LogTimes
from rewindmq.schemas.events import Published
from tests.support.broker_harness import PERSISTENT, Client, Harness, args

DAY_MS = 86_400_000


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=1) as harness:
        yield harness


def counts_of(*lengths: int) -> list[int]:
    """Count waits one by one."""
    return [
        sum(above < each <= bound for each in lengths)
        for above, bound in zip((-1, *BOUNDS_MS), (*BOUNDS_MS, 1 << 60), strict=True)
    ]


def shown(histogram: Histogram) -> tuple[list[int], int]:
    return histogram.counts, histogram.sum_ms


def samples(*lengths: int) -> tuple[list[int], int]:
    return counts_of(*lengths), sum(lengths)


def publish(h: Harness, session: Session, queue: str, priority: int = 0) -> None:
    (destination,) = h.broker.exchanges.route(session, "", queue, None)
    message = Published(destination.route, PERSISTENT, persistent=True, body=b"x", body_size=1, priority=priority)
    destination.partition.publish(session.actor, message)


def test_b79_a_histogram_counts_each_wait_at_its_bound() -> None:
    lengths = [0, 1, 2, 5, 6, 25, 1_000, 1_001, 3_600_000, 3_600_001, DAY_MS]
    histogram = Histogram()
    for each in lengths:
        histogram.add(each)
    assert shown(histogram) == samples(*lengths)


def test_b79_times_are_right_to_a_16th_of_their_age() -> None:
    dice = random.Random(34)
    times, exact = LogTimes(7, 1_000_000), list[tuple[int, int]]()
    offset, now_ms = 7, 1_000_000
    for _ in range(60_000):
        now_ms += dice.choice((1, 1, 1, 2, 700, 40_000))
        exact.append((offset, now_ms))
        offset += dice.randrange(1, 50)
        times.note(offset, now_ms)
    assert len(times.times) < waits.MOST_TIMES
    for at, time_ms in dice.sample(exact, 2_000):
        found = times.at(at)
        assert found is not None
        assert 0 <= found - time_ms <= (now_ms - time_ms) // waits.PRECISION
    assert times.at(6) is None
    assert times.at(offset + 7) == now_ms


def test_b79_a_sample_for_each_run_of_deliveries(h: Harness) -> None:
    session, client = h.session(), Client()
    for name in ("a", "b", "c"):
        h.declare(session, name)
        for _ in range(3):
            publish(h, session, name)
            h.settle()
            h.now_ms += 1_000
    for name in ("a", "b", "c"):  # "c" comes too soon
        h.consume(session, name, client)
        h.settle()
        h.now_ms += waits.SAMPLED_EACH_MS if name == "a" else waits.SAMPLED_EACH_MS - 1
    (partition,) = h.broker.partitions
    assert len(client.deliveries) == 9
    assert shown(partition.deliveries.delivery_waits) == samples(9_000, 6_010)
    served = partition.served[h.queue("b")]
    assert (served.delivery_waits, served.delivery_wait_ms) == (1, 6_010)


def test_b79_a_redelivery_and_an_empty_get_are_not_counted(h: Harness) -> None:
    session, client = h.session(), Client()
    h.declare(session, "q")
    h.fetch(session, "q")
    h.publish(session, "", "q", b"x")
    consumer = h.consume(session, "q", client, prefetch=1)
    h.settle()
    h.now_ms += 40
    (message,) = [each[1] for each in client.deliveries]
    h.nack(session, consumer, message, requeue=True)
    h.settle()
    assert len(client.deliveries) == 2
    (partition,) = h.broker.partitions
    assert shown(partition.deliveries.delivery_waits) == samples(0)


def test_b79_one_message_of_a_consumer_is_timed_until_its_ack(h: Harness) -> None:
    session, client = h.session(), Client()
    h.declare(session, "q")
    for _ in range(5):
        h.publish(session, "", "q", b"x")
    consumer = h.consume(session, "q", client, prefetch=3)
    h.settle()
    (partition,) = h.broker.partitions
    ids = [each[1] for each in client.deliveries]
    h.now_ms += 100
    h.ack(session, consumer, ids[1])  # it is not the timed one; message 3 takes its place
    h.settle()
    assert shown(partition.deliveries.ack_waits) == samples()
    h.now_ms += 100
    h.ack(session, consumer, ids[0])  # message 4 takes its place, and is timed
    h.settle()
    assert shown(partition.deliveries.ack_waits) == samples(200)
    h.now_ms += 7
    ids = [each[1] for each in client.deliveries]
    h.ack(session, consumer, ids[2], ids[3], ids[4])
    h.settle()
    assert shown(partition.deliveries.ack_waits) == samples(200, 7)
    served = partition.served[h.queue("q")]
    assert (served.ack_waits, served.ack_wait_ms) == (2, 207)


@pytest.mark.parametrize("requeue", [True, False])
def test_b79_a_delivery_that_ends_without_an_ack_is_not_counted(h: Harness, requeue: bool) -> None:
    session, client = h.session(), Client()
    h.declare(session, "q")
    for _ in range(2):
        h.publish(session, "", "q", b"x")
    consumer = h.consume(session, "q", client, prefetch=1)
    h.settle()
    h.now_ms += 100
    h.nack(session, consumer, client.deliveries[-1][1], requeue=requeue)
    h.settle()
    h.now_ms += 30
    h.ack(session, consumer, client.deliveries[-1][1])
    h.settle()
    (partition,) = h.broker.partitions
    assert shown(partition.deliveries.ack_waits) == samples(30)
    h.in_loop(lambda: h.broker.sessions.close(session))
    h.settle()
    assert partition.deliveries.timed == {}


def test_b79_after_a_restart_ages_are_those_of_the_log(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    for _ in range(50):
        h.publish(session, "", "q", b"x")
        h.settle()
        h.now_ms += 60_000
    h.restart()
    (partition,) = h.broker.partitions
    assert partition.oldest_age_ms(h.queue("q")) == 50 * 60_000
    session, client = h.session(), Client()
    h.consume(session, "q", client, prefetch=3)
    h.settle()
    assert partition.oldest_age_ms(h.queue("q")) == 47 * 60_000
    assert shown(partition.deliveries.delivery_waits) == samples()  # they were published before the start


def test_b79_the_oldest_of_all_priorities_counts(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q", args(x_max_priority=5))
    (partition,) = h.broker.partitions
    assert partition.oldest_age_ms(h.queue("q")) is None
    for priority in (0, 5):
        publish(h, session, "q", priority)
        h.settle()
        h.now_ms += 1_000
    assert partition.oldest_age_ms(h.queue("q")) == 2_000
    h.fetch(session, "q")
    assert partition.oldest_age_ms(h.queue("q")) == 2_000
    h.fetch(session, "q")
    assert partition.oldest_age_ms(h.queue("q")) is None
