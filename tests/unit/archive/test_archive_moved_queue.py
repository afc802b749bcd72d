"""An archive of a history in which partitions came later: a fork has those that were there at its moment."""

from pathlib import Path

import pytest

from rewindmq.engine.log.archive.manifest import OtherHistory
from rewindmq.engine.log.archive.reader import ArchivedPartition
from rewindmq.engine.log.archive.recovery import recover
from rewindmq.engine.log.archive.topic_archiver import require_no_repartition
from rewindmq.engine.log.embedded.directory import METADATA, read_layout
from rewindmq.engine.log.location import History
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
        past = queue_at(History(data), "/", QUEUE, At(time_ms=end_ms), 0, 10)
        assert past.partition == partition
        assert [each.published.body for each in past.messages] == [b"second", b"third"]


def test_an_archive_with_fewer_partitions_is_not_gone_on_with(tmp_path: Path) -> None:
    """It would say that it has the history, and lack the queues that have moved."""
    moved = write_moved(tmp_path / "data")
    archive = archive_all(moved.data, str(tmp_path / "archive"))
    metadata = ArchivedPartition(archive, METADATA)
    require_no_repartition(archive, AFTER, metadata)
    with pytest.raises(OtherHistory, match=f"begun with {BEFORE} queue partitions, and queues were repartitioned to"):
        require_no_repartition(archive, BEFORE, metadata)
