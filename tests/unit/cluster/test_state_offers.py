"""An owner copies snapshots one at a time, and after a large one seldom (B-65)."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from rewindmq.engine.cluster.snapshot_export import BYTES_AN_EVENT, SnapshotExports
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.shared_contract import StateCopied, WritingStopped
from rewindmq.projections.store.snapshots import Snapshots


class States:
    """A topic in memory. A copy waits until it may go on."""

    def __init__(self) -> None:
        self.copies: list[tuple[int, int, int, bytes]] = []
        self.may_go_on = threading.Event()
        self.begun = threading.Event()
        self.error: Exception | None = None

    def write(self, number: int, offset: int, claim: int, file: BinaryIO, stopping: Callable[[], bool]) -> None:
        self.begun.set()
        while not self.may_go_on.wait(0.01):
            if stopping():
                raise WritingStopped
        if self.error is not None:
            raise self.error
        self.copies.append((number, offset, claim, file.read()))

    def newest(self, number: int, least: int, directory: Path) -> StateCopied | None:
        raise AssertionError("an owner reads no copies")


def snapshot(snapshots: Snapshots, offset: int, size: int = 10) -> bytes:
    path = snapshots.path("queues-1", offset)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"%d" % offset * size)
    return path.read_bytes()


def test_b65_one_copy_at_a_time_and_then_the_newest_snapshot(tmp_path: Path) -> None:
    snapshots, states = Snapshots(tmp_path), States()
    offers = SnapshotExports(states, snapshots)
    first, _, third, fourth = (snapshot(snapshots, 1_000 * number) for number in range(1, 5))
    offers.claimed(1, "queues-1", 1_000, 1_003)
    states.begun.wait()
    for offset in (2_000, 3_000):  # while the first is under way
        offers.claimed(1, "queues-1", offset, offset + 1)
    states.may_go_on.set()
    offers.wait()
    offers.claimed(1, "queues-1", 4_000, 4_001)
    offers.wait()
    assert states.copies == [(1, 1_000, 1_003, first), (1, 3_000, 3_001, third), (1, 4_000, 4_001, fourth)]


def test_after_a_large_copy_the_next_one_comes_later(tmp_path: Path) -> None:
    snapshots, states = Snapshots(tmp_path), States()
    states.may_go_on.set()
    offers = SnapshotExports(states, snapshots)
    pause = len(snapshot(snapshots, 1_000, 2_500)) // BYTES_AN_EVENT
    assert pause > 1
    for offset in (1_000, 999 + pause, 1_000 + pause):
        if offset > 1_000:
            snapshot(snapshots, offset)
        offers.claimed(1, "queues-1", offset, offset)
        offers.wait()
    assert [offset for _, offset, _, _ in states.copies] == [1_000, 1_000 + pause]


def test_a_copy_that_fails_is_tried_again_with_the_next_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots, states = Snapshots(tmp_path), States()
    states.may_go_on.set()
    states.error = LogError("Kafka: no")
    offers = SnapshotExports(states, snapshots)
    snapshot(snapshots, 1_000)
    offers.claimed(1, "queues-1", 1_000, 1_000)
    offers.wait()
    states.error = None
    offers.claimed(1, "queues-1", 1_500, 1_500)  # a snapshot that is not there
    offers.wait()
    last = snapshot(snapshots, 2_000)
    offers.claimed(1, "queues-1", 2_000, 2_000)
    offers.wait()
    assert states.copies == [(1, 2_000, 2_000, last)]
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert said[0] == "queues-1: the state at offset 1000 could not be copied: Kafka: no"
    assert "offset 1500 could not be copied" in said[1]


def test_a_node_that_stops_gives_the_copy_up(tmp_path: Path) -> None:
    snapshots, states = Snapshots(tmp_path), States()
    offers = SnapshotExports(states, snapshots)
    snapshot(snapshots, 1_000)
    offers.claimed(1, "queues-1", 1_000, 1_000)
    states.begun.wait()
    offers.stop()
    offers.claimed(1, "queues-1", 2_000, 2_000)
    assert states.copies == []


def test_a_log_that_keeps_no_copies_gets_none(tmp_path: Path) -> None:
    offers = SnapshotExports(None, Snapshots(tmp_path))
    offers.claimed(1, "queues-1", 1_000, 1_000)
    offers.stop()
    assert list(tmp_path.iterdir()) == []
