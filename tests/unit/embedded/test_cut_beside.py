"""A broker that runs while its oldest segments go: bodies, repair and the past need nothing of them in the loop."""

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.archiver import Archiver
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.local_space import SpaceLimits, keep_local
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.engine.log.embedded import base_records
from rewindmq.engine.log.embedded.log import EmbeddedLog, EmbeddedPartition
from rewindmq.engine.log.embedded.log_start import base_at_start
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.projections.replay import recover
from rewindmq.projections.store.bases import Base
from rewindmq.projections.store.repair import mend
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.verify import verify_partition
from tests.support.archiving import objects as objects
from tests.support.broker_harness import Client, Harness, args
from tests.support.failpoints import armed
from tests.support.records import SCHEMA_BYTES, fill
from tests.support.traffic import Traffic


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=1, segment_bytes=SCHEMA_BYTES + 2_100) as harness:
        yield harness


def cut(h: Harness) -> int:
    """Cut the log of the broker; then the archive is away. Returns the new start."""
    archive = h.config.data.with_name("archive")
    objects: Objects = open_objects(str(archive), make=True)
    Archiver(objects, h.config.data).run()
    [done] = keep_local(h.config.data, objects, SpaceLimits(size_bytes=1)).partitions
    assert done.freed_bytes > 0
    archive.rename(archive.with_name("elsewhere"))
    return done.start_offset


def live(h: Harness) -> None:
    """Three messages stay in `old`; hundreds pass through `q`."""
    session = h.session()
    h.declare(session, "old")
    h.declare(session, "q", args(x_max_length=1))
    for number in range(3):
        h.publish(session, "", "old", b"old %d" % number)
    for number in range(300):
        h.publish(session, "", "q", b"x" * 200)
        if number % 10 == 9:
            h.settle()


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
    go_on = threading.Event()

    def slowly(directory: Path) -> Base | None:
        go_on.wait(30)
        return base_at_start(directory)

    monkeypatch.setattr(base_records, "base_at_start", slowly)
    monkeypatch.setattr(base_records, "WAIT_SECONDS", 0.05)
    lost = next(iter(partition.machine.queue("/", "old").ready_ids()))
    with pytest.raises(NoAnswer, match=f"the base at offset {start} is being read: try again"):
        partition.log.kept_record(lost)
    go_on.set()
    monkeypatch.setattr(base_records, "WAIT_SECONDS", 30)
    assert b"old 0" in partition.log.kept_record(lost)
    assert partition.log.kept_record(lost + 100) is None


def test_a_lost_body_is_read_while_another_process_cuts_the_log(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut comes between the look at the start and the reading; then it is half done."""
    live(h)
    directory = h.config.data / "log" / "queues-0"
    partition = h.broker.queues.partition_for("/", "old")
    lost = next(iter(partition.machine.queue("/", "old").ready_ids()))
    removed: list[Path] = []

    def half(path: Path) -> None:
        if path.suffix == ".avro":
            if len(removed) == 3:
                raise KeyboardInterrupt
            removed.append(path)

    with armed("cut.before_file", half), pytest.raises(KeyboardInterrupt):
        cut(h)
    assert base_offset_of(segment_files(directory)[0]) > lost
    stale = [0]
    with monkeypatch.context() as patched:
        now = property(lambda _: stale.pop() if stale else base_offset_of(segment_files(directory)[0]))
        patched.setattr(EmbeddedPartition, "start_offset", now)
        assert b"old 0" in partition._record(lost)
    assert not stale


def test_a_segment_that_another_process_removes_meanwhile_is_passed_over(h: Harness) -> None:
    """That of a broker that was killed, while the next one starts."""
    live(h)
    number = count()  # of three files for each segment

    def remove_every_second(path: Path) -> None:
        if next(number) % 2:
            path.unlink(missing_ok=True)

    with armed("cut.before_file", remove_every_second):
        assert cut(h) > 0


def test_a_broker_goes_on_and_starts_again_behind_a_cut(h: Harness) -> None:
    live(h)
    cut(h)
    session = h.session()
    h.publish(session, "", "q", b"after the cut")
    h.settle()
    h.restart()
    assert h.ready("old") == [b"old 0", b"old 1", b"old 2"]


def test_a_store_that_is_older_than_the_log_is_mended_with_the_base(tmp_path: Path, objects: Objects) -> None:
    data = tmp_path / "data"
    log = EmbeddedLog.open(data, 1, segment_bytes=4_000)
    fill(log.metadata, range(3))
    traffic = Traffic(5, log=log.queues[0])
    for _ in range(20):
        traffic.run(15)
        log.commit_and_wait()
    store = StateStore.open(data / "state")
    recovery = recover(log.queues[0], store)
    Archiver(objects, data).run()
    keep_local(data, objects, SpaceLimits(size_bytes=1))
    assert store.applied_offset("queues-0") < log.queues[0].start_offset
    mend(store, [(log.queues[0], recovery.projector)])
    assert store.load("queues-0").digest() == traffic.machine.digest()
    report = verify_partition(log.queues[0], store)
    assert (report.equal, report.messages > 0) == (True, True), report.differences
    store.close()
    log.close()
