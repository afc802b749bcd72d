"""An archive of a history in which partitions came later: a fork has those that were there at its moment."""

from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.embedded.directory import read_layout
from rewindmq.engine.rewind.queue_at import queue_at
from rewindmq.projections.rewind import At, format_time
from tests.support.archiving import archive_all
from tests.support.moved_queue import AFTER, BEFORE, QUEUE, write_moved


@pytest.mark.parametrize("mark", [False, True])
def test_a_fork_has_the_partitions_of_its_moment(tmp_path: Path, mark: bool) -> None:
    moved = write_moved(tmp_path / "data")
    archive = archive_all(moved.data, str(tmp_path / "archive"))
    for at, partitions, partition in (
        ("mark:before" if mark else format_time(moved.before_ms), BEFORE, moved.old),
        ("mark:moved" if mark else format_time(moved.after_ms), AFTER, moved.now),
    ):
        data = tmp_path / f"fork-{partitions}"
        recover(archive, data, at=at)
        assert read_layout(data) == partitions
        end_ms = moved.before_ms if partitions == BEFORE else moved.after_ms
        past = queue_at(InDirectory(data), "/", QUEUE, At(time_ms=end_ms), 0, 10)
        assert past.partition == partition
        assert [each.published.body for each in past.messages] == [b"second", b"third"]
