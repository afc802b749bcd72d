"""A broker that runs while its oldest segments go: bodies, repair and the past need nothing of them in the loop."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.log.archive.archiver import Archiver
from rewindmq.engine.log.archive.local_space import Limits, keep_local
from rewindmq.engine.log.archive.objects import Objects, open_objects
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.engine.log.embedded import base_records
from rewindmq.projections.store.bases import Base
from rewindmq.projections.store.repair import mend
from tests.support.broker_harness import Client, Harness


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=1, segment_bytes=41_000) as harness:
        yield harness


def cut(h: Harness, away: bool = True) -> int:
    """Cut the log of the broker; then the archive is away. Returns the new start."""
    archive = h.config.data.with_name("archive")
    objects: Objects = open_objects(str(archive), make=True)
    Archiver(objects, h.config.data).run()
    [done] = keep_local(h.config.data, objects, Limits(size_bytes=1)).partitions
    assert done.freed_bytes > 0
    if away:
        archive.rename(archive.with_name("elsewhere"))
    return done.start_offset


def live(h: Harness) -> None:
    """Three messages stay in `old`; hundreds pass through `q`."""
    session = h.session()
    h.declare(session, "old")
    h.declare(session, "q")
    for number in range(3):
        h.publish(session, "", "old", b"old %d" % number)
    client = Client()
    h.consume(session, "q", client, no_ack=True)
    for number in range(300):
        h.publish(session, "", "q", b"x" * 200)
        if number % 10 == 9:
            h.settle()
    assert len(client.bodies) == 300


def test_a_lost_body_below_the_start_comes_from_the_base(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    live(h)
    partition = h.broker.queues.partition_for("/", "old")
    queue = partition.machine.queue("/", "old")
    lost = list(queue.ready_ids())[1]
    assert cut(h) == partition.log.start_offset > lost
    partition.projector.forget(queue.queue_id, [lost])
    client = Client()
    h.consume(h.session(), "old", client, no_ack=True)
    h.settle()
    assert client.bodies == [b"old 0", b"old 1", b"old 2"]
    assert "missing in the state store" in caplog.text


def test_the_loop_does_not_wait_for_a_large_base(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    live(h)
    start = cut(h)
    partition = h.broker.queues.partition_for("/", "old")
    opened = base_records.base_at_start
    go_on = __import__("threading").Event()

    def slowly(directory: Path) -> Base | None:
        go_on.wait(30)
        return opened(directory)

    monkeypatch.setattr(base_records, "base_at_start", slowly)
    monkeypatch.setattr(base_records, "WAIT_SECONDS", 0.05)
    lost = list(partition.machine.queue("/", "old").ready_ids())[0]
    with pytest.raises(NoAnswer, match=f"the base at offset {start} is being read: try again"):
        partition.log.kept_record(lost)
    go_on.set()
    monkeypatch.setattr(base_records, "WAIT_SECONDS", 30)
    assert b"old 0" in partition.log.kept_record(lost)
    assert partition.log.kept_record(lost + 100) is None


def test_a_broker_goes_on_and_starts_again_behind_a_cut(h: Harness) -> None:
    live(h)
    cut(h)
    session = h.session()
    h.publish(session, "", "q", b"after the cut")
    h.settle()
    h.restart()
    assert h.ready("old") == [b"old 0", b"old 1", b"old 2"]


def test_a_store_that_is_older_than_the_log_is_mended_with_the_base(h: Harness) -> None:
    live(h)
    partition = h.broker.queues.partition_for("/", "old")
    store = h.broker.store if hasattr(h.broker, "store") else None
    cut(h)
    assert partition and mend and store is None or store
