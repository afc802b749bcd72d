"""The values by which a listing of queues is sorted and filtered, read without a whole view, are those of the view."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rewindmq.engine.http.resources.queues import FIELDS
from rewindmq.engine.http.shapes.queues import QueueView
from tests.support.broker_harness import Client, Harness, args


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=2) as harness:
        yield harness


def test_values_without_a_view_are_those_of_the_view(h: Harness) -> None:
    session = h.session()
    for name, arguments in (("plain", ()), ("quorum", args(x_queue_type="quorum")), ("empty", ())):
        h.declare(session, name, arguments)
    client = Client()
    h.consume(session, "plain", client, prefetch=1)
    for name in ("plain", "plain", "plain", "quorum"):
        h.publish(session, "", name, b"m")
    h.settle()
    seen = set()
    for name in ("plain", "quorum", "empty"):
        pair = h.broker.queues.partition_for("/", name), h.queue(name)
        view = h.in_loop(partial(QueueView.shown, h.broker._broker, *pair, False))
        values = {field: value(pair) for field, value in FIELDS.items()}
        assert values == {field: view.__dict__[field] for field in FIELDS}
        seen.add(tuple(values.values()))
    assert len(seen) == 3
    plain = h.broker.queues.partition_for("/", "plain"), h.queue("plain")
    assert (FIELDS["messages_ready"](plain), FIELDS["messages_unacknowledged"](plain)) == (2, 1)
