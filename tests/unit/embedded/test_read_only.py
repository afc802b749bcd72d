"""A read-only broker: the state at the end of the log, standing time, a directory that stays as it is (B-20)."""

import asyncio
import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import Config
from rewindmq.engine.errors import ReadOnly
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.process import open_read_only
from rewindmq.projections.machine.describe import queue_line
from rewindmq.projections.store.quarantine import Quarantined
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.events import Acked, Tick
from rewindmq.schemas.values import BROKER
from tests.support.broker_harness import Client, Harness, args
from tests.support.queues import queue_of

T = TypeVar("T")


def looked_at(data: Path, look: Callable[[Broker], T]) -> T:
    """Return the result of `look` in a read-only broker on this directory, which has to stay unchanged."""

    async def run() -> T:
        broker = open_read_only(Config(data=data, read_only=True))
        try:
            found = look(broker)
            broker.turns.end()
            await asyncio.sleep(0.05)  # for timers, if there were any
            return found
        finally:
            broker.close()

    before = tree(data)
    found = asyncio.run(run())
    assert tree(data) == before
    return found


def tree(data: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
        for path in sorted([data, *data.rglob("*")])
    }


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, list[str], str]:
    """The directory of a killed broker, the digests of its partitions, and the queue in words."""
    with Harness(tmp_path / "data", partitions=2) as harness:
        session = harness.session()
        harness.declare(session, "brief", args(x_message_ttl=50))
        for number in range(5):
            harness.publish(session, "", "brief", b"%d" % number)
        harness.consume(session, "brief", Client(), prefetch=2)
        harness.settle()
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
        return tmp_path / "killed", harness.digests(), queue_line(harness.queue("brief"))


def test_the_state_is_that_at_the_end_of_the_log_and_time_stands_still(killed: tuple[Path, list[str], str]) -> None:
    data, digests, line = killed

    def look(broker: Broker) -> tuple[list[str], str, list[bytes], list[int | None]]:
        queue = queue_of(broker, "brief", "/")
        partition = broker.queues.partition_for("/", "brief")
        bodies = [partition.message(queue.queue_id, view.message_id).body for view in queue.messages()]
        return (
            [each.machine.digest() for each in broker.partitions],
            queue_line(queue),
            sorted(bodies),
            [each.due_ms() for each in broker.partitions],
        )

    assert looked_at(data, look) == (digests, line, [b"0", b"1", b"2", b"3", b"4"], [None, None])


def test_quarantined_records_are_listed_from_the_stored_state_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def listed(broker: Broker) -> tuple[int, list[Quarantined]]:
        report = broker.quarantined["queues-0"]
        return report.count, report.newest()

    with Harness(tmp_path / "data", partitions=1, snapshot_events=20) as harness:
        session = harness.session()
        harness.declare(session, "q")

        def wrong(count: int) -> None:
            for number in range(30):
                harness.publish(session, "", "q", b"%d" % number)
            harness.settle()
            for number in range(count):
                harness.broker.partitions[0].append(session.actor, Acked("/", "q", 12345, ((number, number),)))
            harness.settle()

        wrong(3)
        harness.restart()
        session = harness.session()
        wrong(2)
        expected = listed(harness.broker)
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    assert expected[0] == 5
    assert looked_at(tmp_path / "killed", listed) == expected
    assert looked_at(tmp_path / "data", listed) == expected
    caplog.set_level(logging.INFO)
    shutil.rmtree(tmp_path / "killed" / "state")
    newest = Snapshots(tmp_path / "killed" / "snapshots").offsets("queues-0")[-1]
    behind = [each for each in expected[1] if each.offset >= newest]
    assert 0 < len(behind) < 5
    assert looked_at(tmp_path / "killed", listed) == (len(behind), behind)
    assert f"quarantined records before offset {newest} are not listed" in caplog.text


def test_nothing_can_be_appended(killed: tuple[Path, list[str], str]) -> None:
    def look(broker: Broker) -> None:
        for partition in broker.partitions:
            with pytest.raises(ReadOnly, match="this broker is read-only"):
                partition.append(BROKER, Tick())
        with pytest.raises(ReadOnly):
            broker.metadata.append(BROKER, Tick())  # type: ignore[arg-type]

    looked_at(killed[0], look)


def test_half_a_block_at_the_end_stays_where_it_is(killed: tuple[Path, list[str], str]) -> None:
    data, digests, _ = killed
    for name in ("metadata-0", "queues-0", "queues-1"):
        with segment_files(data / "log" / name)[-1].open("ab") as file:
            file.write(b"\x02\x90\x01half a block")
    assert looked_at(data, lambda broker: [each.machine.digest() for each in broker.partitions]) == digests


def test_a_directory_without_a_log_is_refused_and_not_made(tmp_path: Path) -> None:
    async def run() -> None:
        open_read_only(Config(data=tmp_path / "none", read_only=True))

    with pytest.raises(LogError, match="no RewindMQ log is here"):
        asyncio.run(run())
    assert not (tmp_path / "none").exists()
