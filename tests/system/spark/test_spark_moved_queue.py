"""Spark reads a history in which partitions came later, and a queue moved to one of them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.location import InArchive, InDirectory, Location
from rewindmq.projections.rewind import format_time
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.diff import diff_frame, plan_moments
from rewindmq.spark_replay.history.history import biography, history_frame, plan_history
from rewindmq.spark_replay.history.slo import slo
from rewindmq.spark_replay.history.state import plan_state, state_frame
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.restore import find
from rewindmq.spark_replay.source.options import TableOptions
from rewindmq.spark_replay.source.stream_reader import LogStream
from tests.support.archiving import archive_all
from tests.support.moved_queue import BEFORE, QUEUE, Moved, write_back, write_moved
from tests.support.topic_archiving import archive_as_topics


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Moved:
    return write_moved(tmp_path_factory.mktemp("moved") / "data", hold=True)


def queues_at(spark: SparkSession, place: Location, moment: str) -> dict[str, tuple[int, int]]:
    """Ready and unacked messages of the queue at a moment, by partition."""
    rows = state_frame(spark, plan_state(place, time=moment), QUEUE).queues.collect()
    return {row.partition: (row.messages_ready, row.messages_unacknowledged) for row in rows}


def test_a_queue_that_moved(spark: SparkSession, moved: Moved) -> None:
    place = InDirectory(moved.data)
    before, after = format_time(moved.before_ms), format_time(moved.after_ms)
    assert queues_at(spark, place, before) == {moved.old: (2, 1)}
    assert queues_at(spark, place, "mark:before") == {moved.old: (2, 1)}
    # what a consumer holds stays where the queue was until it is settled
    assert queues_at(spark, place, after) == {moved.old: (0, 1), moved.now: (2, 0)}
    assert queues_at(spark, place, "mark:after") == {moved.now: (0, 0)}

    rows = history_frame(spark, place, plan_history(place, {}), QUEUE).collect()
    ends = {(row.partition, row.message_id): row.outcome for row in rows if row.final}
    assert ends[moved.old, moved.second] == ends[moved.old, moved.third] == "relocated"
    assert ends[moved.now, moved.came[moved.second]] == "acked"
    came = {row.message_id: row.origin for row in rows if row.outcome == "published" and row.origin is not None}
    assert {(here, origin.message_id, origin.reason) for here, origin in came.items()} == {
        (here, was, "relocated") for was, here in moved.came.items()
    }

    changed = diff_frame(spark, *plan_moments(place, "mark:before", "mark:after"), QUEUE).collect()
    assert sum(row.change for row in changed) == -3
    found = find(spark, place, "outcome = 'purged'", QUEUE)
    assert [(each.partition, each.ids) for each in found] == [(moved.now, (moved.came[moved.third], moved.new))]

    counts = slo(spark, place, queue=QUEUE).agg({"published": "sum", "ended": "sum"}).collect()[0]
    assert (counts["sum(published)"], counts["sum(ended)"]) == (5, 5)

    assert [str(each) for each in audit(spark, place) if not each.ok] == []


@pytest.mark.long
@pytest.mark.rare(archived=[archive_as_topics])
@pytest.mark.parametrize("archived", [archive_all, archive_as_topics])
def test_an_archive_that_has_grown_is_read_whole(
    spark: SparkSession, moved: Moved, archived: Callable[[Path, str, int], Objects], tmp_path: Path
) -> None:
    place, data = InArchive(archived(moved.data, str(tmp_path / "archive"), BEFORE).url), InDirectory(moved.data)
    assert ArchivedLog(place.url).identity.begun_with == BEFORE
    rows = history_frame(spark, place, plan_history(place, {}), QUEUE).collect()
    assert {row.partition for row in rows} == {moved.old, moved.now}
    assert sorted(rows, key=str) == sorted(history_frame(spark, data, plan_history(data, {}), QUEUE).collect(), key=str)
    assert queues_at(spark, place, format_time(moved.after_ms)) == {moved.old: (0, 1), moved.now: (2, 0)}
    assert [str(each) for each in audit(spark, place) if not each.ok] == []


def test_a_life_is_of_one_message_where_two_partitions_have_its_id(spark: SparkSession, tmp_path: Path) -> None:
    back = write_back(tmp_path / "data")
    ids = {number: {at[1] for names in back.names.values() for at in names if at[0] == number} for number in (0, 2)}
    twice = min(ids[0] & ids[2])
    for number in (0, 2):
        [names] = [names for names in back.names.values() if (number, twice) in names]
        rows = biography(spark, str(back.data), f"queues-{number}:{twice}").collect()
        told = [(row.partition, row.message_id) for row in rows if row.outcome == "published"]
        assert told == [(f"queues-{at}", message_id) for at, message_id in names[names.index((number, twice)) :]]


def test_a_stream_reads_partitions_that_came_later_from_their_beginning(moved: Moved) -> None:
    stream = LogStream(TableOptions({"data": str(moved.data), "view": "records"}))
    start, end = {"queues-0": 1, "queues-1": 2}, stream.latestOffset()
    ranges = [(each.value.partition, each.value.start) for each in stream.partitions(start, end)]
    assert ("queues-0", 1) in ranges
    assert {"queues-2", "queues-3"} <= {name for name, first in ranges if first == 0}
    with pytest.raises(BadRequest, match="the checkpoint of this query is of queues-1, but"):
        stream.partitions({"queues-1": 2}, end)


def test_a_stream_of_an_archive_goes_on_when_it_has_grown(moved: Moved, tmp_path: Path) -> None:
    """The archive has the new partitions a moment before the event that added them."""
    archive_all(moved.data, str(tmp_path / "archive"), BEFORE)
    [*_, segments] = sorted((tmp_path / "archive" / "metadata-0" / "manifest").iterdir())
    segments.unlink()
    for number in (2, 3):
        shutil.rmtree(tmp_path / "archive" / f"queues-{number}")
    stream = LogStream(TableOptions({"archive": str(tmp_path / "archive"), "view": "records"}))
    assert stream.partitions({"queues-0": 0, "queues-1": 0}, stream.latestOffset())
