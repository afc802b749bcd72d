"""The steady time follows the newest log time at twice the speed of the monotonic clock, from run to run."""

from pathlib import Path

import pytest

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.steady_time import newest_ms_of, steady_ms, steady_now
from tests.support.records import record

NEWEST = 1_000_000


def test_the_first_run_notes_a_beginning(tmp_path: Path) -> None:
    assert steady_now(tmp_path / "note", NEWEST, 400_000, 1_000.0) is None
    assert steady_now(tmp_path / "note", NEWEST, 7, 1_040.0) == 480_000


def test_a_run_that_follows_too_soon_notes_nothing(tmp_path: Path) -> None:
    steady_now(tmp_path / "note", NEWEST, 400_000, 1_000.0)
    assert steady_now(tmp_path / "note", NEWEST, 7, 1_029.9) is None
    assert steady_now(tmp_path / "note", NEWEST, 7, 1_030.0) == 460_000


def test_each_run_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    steady_now(tmp_path / "note", NEWEST, 400_000, 1_000.0)
    assert steady_now(tmp_path / "note", NEWEST, 7, 1_100.0) == 600_000
    assert steady_now(tmp_path / "note", NEWEST, 7, 1_200.0) == 800_000
    assert steady_now(tmp_path / "note", NEWEST, 7, 1_301.0) == NEWEST


def test_after_a_boot_the_time_since_then_has_passed(tmp_path: Path) -> None:
    steady_now(tmp_path / "note", NEWEST, 400_000, 1_000.0)
    assert steady_now(tmp_path / "note", NEWEST, 7, 29.0) is None
    assert steady_now(tmp_path / "note", NEWEST, 7, 50.0) == 500_000


@pytest.mark.parametrize(("elapsed", "steady"), [(0.0, 10), (0.5, 1_010), (1.0, 2_010), (1.5, 2_500)])
def test_it_is_at_most_twice_as_fast(elapsed: float, steady: int) -> None:
    assert steady_ms(10, elapsed, 2_500) == steady


def test_the_newest_time_is_that_of_the_last_records(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path, 2)
    directories = [tmp_path / "log" / partition.name for partition in log.partitions]
    assert (newest_ms_of([]), newest_ms_of(directories)) == (0, 0)
    for partition, time_ms in zip(log.partitions, (5, 9, 7), strict=True):
        partition.append(1, record(0, 1))
        partition.append(time_ms, record(1, time_ms))
    log.commit_and_wait()
    assert newest_ms_of(directories) == 9
    log.close()
