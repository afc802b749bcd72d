"""A running broker leaves waypoints in its history, from which moments are found, and keeps few of them (B-44)."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.partition import waypoint_writer
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.snapshots import Snapshots
from tests.support.broker_harness import Harness

NAME = "queues-0"


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    every_20 = patch.object(waypoint_writer, "SECONDS_AN_EVENT", 1_000)
    with every_20, Harness(tmp_path / "data", partitions=1, waypoint_events=20) as harness:
        yield harness


def publish(h: Harness, count: int) -> None:
    """Publish, one turn a message; let the thread write."""
    session = h.session()
    if h.broker.queues.get("/", "q") is None:
        h.declare(session, "q")
    for number in range(count):
        h.publish(session, "", "q", b"%d" % number)
        h.settle()
        written(h)


def written(h: Harness) -> None:
    async def turn() -> None:
        async with asyncio.timeout(30):
            while h.broker.keeper._waypoints._under_way:
                await asyncio.sleep(0.001)

    h.loop.run_until_complete(turn())


def left(h: Harness) -> list[int]:
    return [offset for offset, _ in Snapshots(h.config.data / "snapshots").waypoints(NAME)]


def test_b44_a_broker_leaves_waypoints_that_equal_the_fold(h: Harness) -> None:
    publish(h, 110)
    data = h.config.data
    snapshots, log = Snapshots(data / "snapshots"), EmbeddedLogReader(data).queues[0]
    offsets = left(h)
    assert len(offsets) >= 4
    assert all(behind - before >= 20 for before, behind in pairwise(offsets))
    assert offsets[-1] <= log.durable_offset
    assert snapshots.offsets(NAME) == []  # they are no snapshots
    for offset in offsets:
        assert snapshots.nearest(NAME, offset + 3) == data / "snapshots" / NAME / f"{offset:020d}.waypoint"
        for at in (At(offset=offset), At(offset=offset + 3)):
            found, plain = state_at(log, snapshots, at), state_at(log, None, at)
            assert (found.head(), found.digest()) == (plain.head(), plain.digest())


def test_b44_a_damaged_waypoint_is_passed_over(h: Harness) -> None:
    publish(h, 70)
    data = h.config.data
    snapshots, log = Snapshots(data / "snapshots"), EmbeddedLogReader(data).queues[0]
    last, end = left(h)[-1], log.next_offset
    path = data / "snapshots" / NAME / f"{last:020d}.waypoint"
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole.replace(b'"guest"', b'"guess"')):
        path.write_bytes(damaged)
        assert state_at(log, snapshots, At(offset=end)).digest() == state_at(log, None, At(offset=end)).digest()


def test_b44_the_newest_waypoints_are_kept(h: Harness) -> None:
    with patch.object(waypoint_writer, "MOST_FILES", 2):
        publish(h, 130)
    kept = left(h)
    assert len(kept) == 2
    assert kept[0] > 80
    with patch.object(waypoint_writer, "MOST_BYTES", 1):
        publish(h, 30)
    assert len(left(h)) == 1
    h.restart()
    with patch.object(waypoint_writer, "MOST_FILES", 2):
        publish(h, 60)
    assert len(left(h)) == 2, "a start finds those of before"


def test_b44_a_large_state_leaves_waypoints_further_apart(h: Harness) -> None:
    with patch.object(waypoint_writer, "SECONDS_AN_EVENT", 1e-9):
        publish(h, 130)
    assert len(left(h)) == 1


def test_b44_a_state_that_takes_long_to_pack_is_tried_rarely(h: Harness) -> None:
    with patch.object(waypoint_writer, "PACK_SECONDS", -1.0), patch.object(waypoint_writer, "RARELY", 60):
        publish(h, 50)
        assert left(h) == []
    publish(h, 60)
    assert [offset // 80 for offset in left(h)[:1]] == [1]


def test_b44_waypoints_go_with_the_history_that_they_are_of(h: Harness) -> None:
    publish(h, 110)
    snapshots, offsets = Snapshots(h.config.data / "snapshots"), left(h)
    snapshots.discard_below(NAME, offsets[1])
    assert left(h) == offsets[1:]
    for path in snapshots.files_beyond(NAME, offsets[-1] - 1):
        path.unlink()
    assert left(h) == offsets[1:-1]


def test_b44_a_disk_that_takes_no_waypoint_stops_nothing(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    full = patch.object(Snapshots, "leave_waypoint", side_effect=OSError(28, "No space left on device"))
    with full, patch.object(waypoint_writer, "RARELY", 40):
        publish(h, 50)
    assert left(h) == []
    assert caplog.text.count("no waypoint could be written") == 1
    publish(h, 30)
    assert left(h)
    assert h.queue("q").messages_ready == 80
