"""A publish over HTTP is refused if the disk has no room for it (docs/operators/full-disk.md)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.resources.exchanges import send
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reserve import Reserve
from tests.support.broker_harness import PERSISTENT, Harness

MEGABYTE = 1_048_576


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=2) as harness:
        yield harness


def test_room_is_needed_in_each_partition_that_logs_the_body(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reserve, "has_room_beside", lambda _, needed_bytes: needed_bytes <= 20 * MEGABYTE)
    session = h.session()
    names = {h.broker.queues.partition_for("/", f"q{number}").name: f"q{number}" for number in range(20)}
    here, there = names.values()
    for name in (here, there):
        h.declare(session, name)
        h.bind(session, "amq.fanout", name)
    body = bytes(12 * MEGABYTE)

    def publish() -> None:
        h.loop.run_until_complete(send(h.broker._broker, session, "amq.fanout", "", PERSISTENT, body))
        h.settle()

    with pytest.raises(ApiError, match=f"the disk has no room for {24 * MEGABYTE} bytes") as refused:
        publish()
    assert refused.value.status == 400
    assert (h.queue(here).messages_ready, h.queue(there).messages_ready) == (0, 0)
    h.broker.queues.delete(session, there, False, False)
    publish()
    assert h.queue(here).messages_ready == 1


def test_a_small_publish_needs_no_room(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a flood waits for a full disk, too: as over AMQP."""
    monkeypatch.setattr(EmbeddedLog, "has_room", lambda *_: False)
    session = h.session()
    h.declare(session, "q")
    h.loop.run_until_complete(send(h.broker._broker, session, "", "q", PERSISTENT, b"small"))
    h.settle()
    assert h.ready("q") == [b"small"]


def test_a_publish_is_not_refused_because_others_wait_for_their_turn(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over AMQP large publishes take turns. The disk has room for all of them."""
    monkeypatch.setattr(EmbeddedLog, "waiting_large_bytes", property(lambda _: 50 * MEGABYTE))
    session = h.session()
    h.declare(session, "q")
    h.loop.run_until_complete(send(h.broker._broker, session, "", "q", PERSISTENT, bytes(2 * MEGABYTE)))
    h.settle()
    assert h.queue("q").messages_ready == 1
