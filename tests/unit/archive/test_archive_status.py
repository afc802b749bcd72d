"""The broker reports the size and the lag of its archive (engine/broker/archive_status.py)."""

from dataclasses import dataclass

import pytest

from rewindmq.engine.broker.archive_status import ArchiveStatus
from rewindmq.engine.http.shapes.node import ArchiveView
from rewindmq.engine.keeping.archive.progress import PartitionProgress
from tests.support.records import START_MS


@dataclass
class End:
    """A partition of a log that ends somewhere."""

    name: str
    durable_offset: int


class Told:
    def __init__(self) -> None:
        self.now_ms = START_MS
        self.seconds = 0.0
        self.queues, self.metadata = End("queues-0", 100), End("metadata-0", 10)
        self.status = ArchiveStatus("s3://b/p", (self.metadata, self.queues), lambda: self.now_ms, lambda: self.seconds)

    def archived(self, queues: int, oldest_ms: int | None, metadata: int = 10) -> None:
        self.status.told(
            (
                PartitionProgress("metadata-0", metadata, 300, None, 0),
                PartitionProgress("queues-0", queues, 5_000, oldest_ms, 700),
            )
        )

    def pass_seconds(self, seconds: int) -> None:
        self.now_ms += seconds * 1_000
        self.seconds += seconds


@pytest.fixture
def told() -> Told:
    return Told()


def test_nothing_is_known_before_the_first_pass(told: Told) -> None:
    shown = ArchiveView.of(told.status)
    assert shown.url == "s3://b/p"
    assert [shown.archived_until, shown.archived_bytes, shown.lag_records, shown.lag_seconds] == [None] * 4


def test_lag_is_all_that_is_not_archived(told: Told) -> None:
    told.archived(60, START_MS - 30_000)
    shown = ArchiveView.of(told.status)
    assert (shown.lag_records, shown.lag_bytes, shown.lag_seconds) == (40, 700, 30.0)
    assert shown.archived_until == "2025-11-21T09:03:35.000+00:00"
    assert shown.archived_bytes == 5_300
    told.queues.durable_offset += 5
    told.pass_seconds(10)
    shown = ArchiveView.of(told.status)
    assert (shown.lag_records, shown.lag_seconds) == (45, 40.0)


def test_what_came_after_the_last_look(told: Told) -> None:
    """Nobody knows when, but it was after the look."""
    told.archived(100, None)
    told.pass_seconds(20)
    assert ArchiveView.of(told.status).lag_seconds == 0
    told.queues.durable_offset += 1
    assert ArchiveView.of(told.status).lag_seconds == 20.0
    assert ArchiveView.of(told.status).archived_until == "2025-11-21T09:04:05.000+00:00"


def test_log_time_that_was_set_back_makes_no_lag_negative(told: Told) -> None:
    told.archived(60, START_MS)
    told.now_ms -= 1_000_000
    assert ArchiveView.of(told.status).lag_seconds == 0
