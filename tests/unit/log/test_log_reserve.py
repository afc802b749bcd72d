"""The log's reserve for a full disk, and a segment that cannot be begun."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.log import WAITING_BYTES, EmbeddedLog
from rewindmq.engine.log.embedded.reserve import MARGIN_BYTES, RESERVE_BYTES, START_BYTES, STEP_BYTES, Reserve
from tests.support.records import fill, record, reopened

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def reserve(tmp_path: Path) -> Any:
    made = Reserve(tmp_path)
    yield made
    made.close()


def blocks(path: Path) -> int:
    """Bytes that the file system has allocated."""
    return path.stat().st_blocks * 512


def test_it_holds_allocated_blocks_and_gives_back_what_is_needed(reserve: Reserve) -> None:
    assert blocks(reserve.path) >= RESERVE_BYTES
    assert reserve.release(FULL, 100_000)
    assert blocks(reserve.path) <= RESERVE_BYTES - 100_000
    assert reserve.held_bytes == RESERVE_BYTES - 100_000 - STEP_BYTES
    assert not reserve.whole
    assert reserve.refill()
    assert blocks(reserve.path) >= RESERVE_BYTES


def test_the_last_of_it_is_kept_for_a_start(reserve: Reserve) -> None:
    reserve.keep_bytes = START_BYTES
    assert reserve.release(FULL, RESERVE_BYTES)
    assert reserve.held_bytes == START_BYTES
    assert not reserve.release(FULL, 1)
    reserve.keep_bytes = 0
    assert reserve.release(FULL, 1)


def test_an_error_that_room_does_not_cure_releases_nothing(reserve: Reserve) -> None:
    assert not reserve.release(OSError(errno.EIO, "Input/output error"), 1)
    assert reserve.whole


def test_what_is_left_of_it_is_there_after_a_restart(reserve: Reserve) -> None:
    reserve.release(FULL, 100_000)
    again = Reserve(reserve.path.parent)
    assert again.held_bytes == reserve.held_bytes
    again.close()


def test_a_log_that_is_not_opened_leaves_no_file_open(tmp_path: Path) -> None:
    EmbeddedLog.open(tmp_path, 1).close()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LogError, match="queue partition"):
        EmbeddedLog.open(tmp_path, 3)
    assert os.listdir("/proc/self/fd") == before


def test_it_is_not_taken_again_before_there_is_room_beside_it(
    reserve: Reserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve.release(FULL, 1)
    space = os.fstatvfs(0)
    missing = RESERVE_BYTES - reserve.held_bytes

    def free(size: int) -> None:
        figures = list(space)[:10]
        figures[1], figures[4] = 1, size  # f_frsize, f_bavail
        monkeypatch.setattr(os, "fstatvfs", lambda descriptor: os.statvfs_result(figures))

    free(missing + MARGIN_BYTES - 1)
    assert not reserve.refill()
    free(missing + MARGIN_BYTES)
    assert reserve.refill()


def test_a_segment_whose_index_cannot_be_made_leaves_the_old_one_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left just behind the new segment: what is written next goes where it belongs."""
    log = EmbeddedLog.open(tmp_path, 1, segment_bytes=1)
    fill(log.queues[0], range(3))
    log.commit_and_wait()
    opened = os.open

    def without_sidecars(path: Any, *arguments: Any) -> int:
        if str(path).endswith(".lengths"):
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *arguments)

    before = len(os.listdir("/proc/self/fd"))
    fill(log.queues[0], range(3, 6))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", without_sidecars)
        for _ in range(3):
            with pytest.raises(Exception, match="Too many open files"):
                log.commit_and_wait()
    assert len(os.listdir("/proc/self/fd")) == before
    log.commit_and_wait()
    log.close()
    assert reopened(tmp_path) == [record(number) for number in range(6)]


@pytest.mark.parametrize(("short", "crowded"), [(1, False), (0, True)])
def test_waiting_records_of_half_the_reserve_crowd_the_log(tmp_path: Path, short: int, crowded: bool) -> None:
    log = EmbeddedLog.open(tmp_path, 1)
    partition, most = log.queues[0], WAITING_BYTES - short
    some = record(0, body_bytes=50_000)
    while partition.waiting_bytes + 2 * len(some) < most:
        partition.append(0, some)
    rest = most - partition.waiting_bytes
    partition.append(0, record(0, body_bytes=50_000 + rest - len(some)))
    assert (partition.waiting_bytes, log.crowded) == (most, crowded)
    log.close()
