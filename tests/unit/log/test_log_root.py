"""A note beside snapshots names their history, and they are refused beside another one."""

import os
from pathlib import Path

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.root import noted_history, require_own, root_of, write_note
from tests.support.records import fill


def begun(data: Path) -> Path:
    log = EmbeddedLog.open(data, 1)
    fill(log.metadata, range(3))
    log.close()
    return data


def test_a_note_is_written_into_an_absent_directory_and_anew(tmp_path: Path) -> None:
    snapshots = tmp_path / "deep" / "snapshots"
    assert noted_history(snapshots) == []
    write_note(snapshots, ["one"])
    write_note(snapshots, ["one", "two"])
    assert noted_history(snapshots) == ["one", "two"]


def test_snapshots_of_another_history_are_refused(tmp_path: Path) -> None:
    ours, other = begun(tmp_path / "ours"), begun(tmp_path / "other")
    snapshots = tmp_path / "snapshots"
    require_own(snapshots, ours)  # they note none
    write_note(snapshots, [root_of(ours), "a fork"])
    require_own(snapshots, ours)
    with pytest.raises(LogError, match="belongs to another history"):
        require_own(snapshots, other)


def test_its_identity_is_read_without_a_file_left_open(tmp_path: Path) -> None:
    data = begun(tmp_path)
    before = os.listdir("/dev/fd")
    assert root_of(data) == root_of(data)
    assert os.listdir("/dev/fd") == before


def test_a_history_without_a_beginning_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="is gone"):
        root_of(tmp_path)
    EmbeddedLog.open(tmp_path, 1).close()
    with pytest.raises(LogError, match="the log is empty"):
        root_of(tmp_path)
