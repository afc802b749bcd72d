"""Who reads the past, in a process of its own, changes nothing of the present."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.partition.sessions import Subscription
from tests.support.broker_harness import Client, Harness, ReadingClient, args


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path) as harness:
        yield harness


@pytest.mark.parametrize("arguments", [{"x_stream_offset": "first"}, {"x_stream_offset": "last"}, {"x_rewind_to": 12}])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_b01_who_reads_the_past_changes_nothing_of_the_present(
    h: Harness, kind: str, arguments: dict[str, Any]
) -> None:
    """The state, with every queue, consumer and counter, has the same digest before, while and after it is read."""
    session = h.session()
    h.declare(session, "q", args(x_queue_type=kind, x_max_length=20))
    holder = Client()
    consumer = h.consume(session, "q", holder, prefetch=3)
    for number in range(30):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    h.ack(session, consumer, holder.deliveries[0][1])
    h.settle()
    before = h.digests()
    delivered = list(holder.deliveries)
    asking = h.session()
    client = ReadingClient()

    async def ask() -> None:
        broker = h.broker._broker
        subscription = Subscription(asking, 1, "tag", prefetch=1000, arguments=args(**arguments))
        await broker.consumers.consume("q", subscription, client, lambda *_: None)

    h.loop.run_until_complete(ask())
    h.until(lambda: len(client.numbers) > 0)
    h.settle()
    assert h.digests() == before
    h.in_loop(lambda: client.ack(len(client.numbers)))
    h.in_loop(lambda: h.broker.sessions.close_channel(asking, 1))
    h.in_loop(lambda: h.broker.sessions.close(asking))
    h.settle()
    assert h.digests() == before
    assert holder.deliveries == delivered
