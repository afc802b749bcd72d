"""Readers of streams and of the past, in the broker: bounded, paced, and without a trace in the present."""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.rewind.reader import SHARE, SHARE_BYTES
from rewindmq.engine.rewind.stream_consumers import ROUND
from rewindmq.projections.replay import decoder_for
from rewindmq.schemas.events import PastRead, Published
from tests.support.broker_harness import Harness, ReadingClient, args


def turns(h: Harness, count: int, look: Callable[[], int]) -> list[int]:
    """Call `look` after each of `count` turns of the loop, and return its results."""

    async def turn() -> list[int]:
        seen = []
        for _ in range(count):
            await asyncio.sleep(0)
            seen.append(look())
        return seen

    return h.loop.run_until_complete(turn())


def read(h: Harness, queue: str, prefetch: int = 1000, **arguments: Any) -> ReadingClient:
    client = ReadingClient()
    h.in_loop(lambda: h.consume(h.session(), queue, client, prefetch, arguments=args(**arguments)))
    return client


def stream_of(h: Harness, count: int, size: int = 1, **arguments: Any) -> None:
    session = h.session()
    h.declare(session, "s", args(x_queue_type="stream", **arguments))
    for _ in range(count):
        h.publish(session, "", "s", b"x" * size)
    h.settle()


def test_a_stream_is_read_a_share_at_a_time_and_all_have_their_turn(h: Harness) -> None:
    stream_of(h, 2_000)
    readers = [read(h, "s", x_stream_offset="first") for _ in range(8)]
    seen = turns(h, 10, lambda: sum(len(reader.numbers) for reader in readers))
    assert max(after - before for before, after in pairwise(seen)) == ROUND
    assert all(len(reader.numbers) > 0 for reader in readers)
    h.until(lambda: all(reader.numbers == list(range(1_000)) for reader in readers))


def test_large_messages_are_read_one_by_one(h: Harness) -> None:
    stream_of(h, 20, SHARE_BYTES)
    readers = [read(h, "s", x_stream_offset="first") for _ in range(6)]
    seen = turns(h, 50, lambda: sum(len(reader.numbers) for reader in readers))
    assert max(after - before for before, after in pairwise(seen)) == ROUND // SHARE
    assert seen[-1] == 120


def test_nothing_is_read_for_a_client_that_takes_no_more(h: Harness) -> None:
    stream_of(h, 1_000)
    reader = read(h, "s", x_stream_offset="first")
    reader.congested = True
    taken = len(reader.numbers)
    assert turns(h, 50, lambda: len(reader.numbers))[-1] - taken <= SHARE
    reader.congested = False
    h.in_loop(lambda: [callback() for callback in reader.relief])
    h.until(lambda: len(reader.numbers) == 1_000)


def test_only_what_is_durable_is_read(h: Harness) -> None:
    stream_of(h, 1)
    reader = read(h, "s", x_stream_offset="first")
    h.until(lambda: reader.numbers == [0])
    partition = h.broker.queues.partition_for("/", "s")
    ahead = []

    def look(*_: object) -> None:
        ahead.append(max(id for _, id, _, _, _ in reader.deliveries) < partition.durable_offset)

    session = h.session()
    for _ in range(50):
        h.publish(session, "", "s", b"x")
        h.in_loop(h.broker.turns.end)
        look()
    h.settle()
    h.until(lambda: len(reader.numbers) == 51)
    assert all(ahead)


def test_retention_overtakes_a_slow_reader(h: Harness) -> None:
    stream_of(h, 10, x_max_length_bytes=10)
    reader = read(h, "s", prefetch=2, x_stream_offset="first")
    h.until(lambda: reader.numbers == [0, 1])
    session = h.session()
    for _ in range(5):
        h.publish(session, "", "s", b"x")
    h.settle()
    h.in_loop(lambda: reader.ack(2))
    h.until(lambda: len(reader.numbers) == 4)
    assert reader.numbers == [0, 1, 5, 6]


def test_a_reader_ends_when_its_stream_cannot_be_read(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    stream_of(h, 3)
    partition = h.broker.queues.partition_for("/", "s")

    def broken(queue_id: int, message_id: int) -> Published:
        raise OSError("the disk is gone")

    monkeypatch.setattr(partition, "message", broken)
    reader = read(h, "s", x_stream_offset="first")
    h.until(lambda: reader.cancellations == 1)
    h.settle()
    assert h.queue("s").consumer_count() == 0


def test_s071_an_embedded_broker_starts_again_with_its_streams(h: Harness) -> None:
    stream_of(h, 100, x_max_length_bytes=30)
    digests = h.digests()
    h.restart()
    reader = read(h, "s", x_stream_offset="first")
    h.until(lambda: reader.numbers == list(range(70, 100)))
    assert len(h.digests()) == len(digests)
    assert h.queue("s").counters["maxlen"] == 70


# -- the past ----------------------------------------------------------------------------------------------------------


def test_history_says_who_read_the_past(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    h.publish(session, "", "q", b"a")
    h.settle()
    reader = read(h, "q", x_stream_offset="first")
    h.until(lambda: reader.bodies == [b"a"])
    h.settle()
    partition = h.broker.queues.partition_for("/", "q")
    decoder = decoder_for(partition.log)
    events = [decoder.decode(record) for block in partition.log.read() for record in block.records]
    [(actor, event)] = [(actor, event) for _, actor, event in events if isinstance(event, PastRead)]
    assert (actor.user, event.queue, event.tag) == ("guest", "q", "tag")
    assert [(argument.name, argument.value) for argument in event.arguments] == [("x-stream-offset", "first")]


def test_the_past_is_read_on_as_it_goes_on(h: Harness) -> None:
    """Also when most of what is published goes elsewhere, and when a publish is refused or comes in many pieces."""
    session = h.session()
    h.declare(session, "q", args(x_max_length=2, x_overflow="reject-publish"))
    h.declare(session, "other")
    reader = read(h, "q", x_stream_offset="next")
    for number in range(1_000):
        h.publish(session, "", "other", b"x" * 300)
        if number % 100 == 0:
            h.publish(session, "", "q", b"%d" % number)
    h.settle()
    h.until(lambda: len(reader.numbers) == 10)
    assert reader.bodies == [b"%d" % number for number in range(0, 1_000, 100)]
    h.publish(session, "", "q", b"more")
    h.settle()
    h.until(lambda: reader.bodies[-1] == b"more")


def test_a_broker_stops_while_the_past_is_read(tmp_path: Path) -> None:
    with Harness(tmp_path) as h:
        session = h.session()
        h.declare(session, "q")
        for _ in range(3_000):
            h.publish(session, "", "q", b"x")
        h.settle()
        readers = [read(h, "q", prefetch=65_535, x_stream_offset="first") for _ in range(5)]
        assert turns(h, 3, lambda: len(readers[0].numbers))[-1] < 3_000


@pytest.mark.parametrize("on_at_first", [False, True])
def test_a_reader_reads_on_when_tracing_begins_and_ends(h: Harness, on_at_first: bool) -> None:
    stream_of(h, 3)
    if on_at_first:
        h.in_loop(lambda: h.broker.firehose.switch("/", True))
    reader = read(h, "s", x_stream_offset="first")
    h.until(lambda: reader.numbers == [0, 1, 2])
    for count, on in ((4, not on_at_first), (5, on_at_first)):
        h.in_loop(partial(h.broker.firehose.switch, "/", on))
        h.publish(h.session(), "", "s", b"x")
        h.settle()
        h.until(partial(lambda count: len(reader.numbers) == count, count))
    assert reader.cancellations == 0
