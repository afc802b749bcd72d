"""Sizes of messages and deliveries by queue are counted in runs, and rates are calculated between samples."""

from hypothesis import given
from hypothesis import strategies as st

from rewindmq.engine.http.statistics import APART_SECONDS, FORGET_SECONDS, WINDOW_SECONDS, Rates
from rewindmq.engine.partition.counters import SIZE_BOUNDS, SIZES, SIZES_SUM, Tally, all_counters
from tests.support.broker_harness import Client, Harness


@given(st.lists(st.sampled_from((0, 1, 99, 100, 101, 5_000, 100_000_001)), max_size=30), st.data())
def test_sizes_are_those_of_all_messages_whenever_one_looks(sizes: list[int], data: st.DataObject) -> None:
    tally = Tally()
    for size in sizes:
        if size != tally.size:
            tally.another_size(size)
        tally.received += 1
        if data.draw(st.booleans()):
            list(tally.named())
    counters = all_counters()
    tally.merge_into(counters)
    assert (counters["global_messages_received_total"], counters[SIZES_SUM]) == (len(sizes), sum(sizes))
    bounds = (-1, *SIZE_BOUNDS, 1 << 62)
    for below, upto, name in zip(bounds[:-1], bounds[1:], SIZES, strict=True):
        assert counters[name] == sum(below < size <= upto for size in sizes), name
    assert (tally.received, tally.bytes) == (0, 0)


def test_deliveries_are_counted_by_queue_whatever_their_order(h: Harness) -> None:
    session = h.session()
    names = ("a", "b", "c", "d")
    queues = {name: h.declare(session, name) for name in names}
    clients = {name: Client() for name in names}
    consumers = {name: h.consume(session, name, clients[name], no_ack=name in "cd", prefetch=100) for name in "abc"}
    for number in range(20):
        for name in names[: 1 + number % 4]:
            h.publish(session, "", name, b"%d" % number)
    h.settle()
    h.broker.sessions.close_channel(session, 1)
    h.consume(session, "a", clients["a"], prefetch=100)
    h.settle()
    assert h.fetch(session, "d") is not None
    assert h.fetch(session, "c") is None
    served = {name: h.broker.queues.partition_for("/", name).served[queues[name]] for name in names}
    assert [served[name].deliver for name in names] == [40, 15, 0, 0]
    assert [served[name].deliver_no_ack for name in names] == [0, 0, 10, 0]
    assert [served[name].redeliver for name in names] == [20, 0, 0, 0]
    assert (served["d"].get + served["d"].get_no_ack, served["c"].get_empty) == (1, 1)
    assert len(consumers) == 3
    assert h.broker.counters["global_messages_delivered_total"] == 40 + 15 + 10 + 1
    assert h.broker.counters["global_messages_redelivered_total"] == 20


def test_a_queue_that_is_gone_is_not_counted_on(h: Harness) -> None:
    session = h.session()
    h.declare(session, "gone")
    h.publish(session, "", "gone", b"x")
    h.consume(session, "gone", Client())
    h.broker.queues.delete(session, "gone", False, False)
    h.settle()
    assert all(not partition.served for partition in h.broker.partitions)


def test_rates_are_between_samples_that_are_far_enough_apart() -> None:
    now = [100.0]
    rates = Rates(lambda: now[0])

    def rate(count: int) -> object:
        shown = rates.shown("q", {"publish": count})
        assert shown["publish"] == count
        return shown["publish_details"]

    assert rate(0) == {"rate": 0.0}
    now[0] += APART_SECONDS / 10
    assert rate(50) == {"rate": 0.0}, "too near to tell anything"
    now[0] = 102.0
    assert rate(100) == {"rate": 50.0}
    now[0] = 100.0 + WINDOW_SECONDS
    assert rate(100) == {"rate": 20.0}
    now[0] = 102.0 + WINDOW_SECONDS
    assert rate(100) == {"rate": 0.0}, "what was before the window does not count"
    now[0] += FORGET_SECONDS + 1
    rates.shown("other", {"publish": 1})
    assert list(rates.samples) == ["other"]
