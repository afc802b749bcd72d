"""Spark reads the archive of a history that was trimmed with it: from the floor on as before, and below it an error."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.local_space import SpaceLimits, keep_local
from rewindmq.engine.keeping.location import InArchive, InDirectory, Location
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.projections.rewind import BelowFloor, format_time
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import biography, history
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.log import in_archive
from tests.support.records import SCHEMA_BYTES
from tests.support.spark.histories import START_MS, Recorder, random_history

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, InArchive, dict[str, int], int]:
    """The whole history; then the one that was cut here and trimmed, its archive, the floors, and a later time."""
    directory = tmp_path_factory.mktemp("trimmed")
    whole, data = directory / "whole", directory / "data"
    recorded = Recorder(whole, segment_bytes=SCHEMA_BYTES + 3_400)
    for queue in ("rest", "calm"):
        recorded.declare(queue)
        recorded.publish(queue, b"left")
        del recorded.definitions[queue]  # the traffic leaves it alone
    random_history(recorded, 21, 1_200)
    recorded.purge("calm")  # above the floor, of a message below it
    recorded.close()
    close_segments(whole)
    shutil.copytree(whole, data)
    objects = open_objects(str(directory / "archive"), make=True)
    Archiver(objects, data).run()
    note_archive(data, objects.url)
    keep_local(data, objects, SpaceLimits(size_bytes=1))
    before_ms = START_MS + (recorded.now_ms - START_MS) // 2
    reports = trim_directory(
        data, TrimRequest(before_ms=before_ms, reason="a test", accept_findings=True), wall_ms=recorded.now_ms
    )
    floors = {report.partition: report.offset for report in reports}
    assert all(floors.values())
    assert all(PartitionReader(data / "log" / name).start_offset > floor for name, floor in floors.items())
    close_segments(data)
    Archiver(objects, data).run()  # of the HistoryTrimmed, too
    return whole, data, in_archive(objects.url), floors, before_ms


@pytest.mark.rare
def test_b26_from_the_floor_on_all_is_as_before(
    spark: SparkSession, trimmed: tuple[Path, Path, InArchive, dict[str, int], int]
) -> None:
    whole, data, archive, floors, before_ms = trimmed
    above = " or ".join(f"(partition = '{name}' and offset >= {floor})" for name, floor in floors.items())
    wanted = history(spark, str(whole)).where(above).collect()
    one = state_at(spark, str(whole), format_time(before_ms))
    locations: list[Location] = [archive, InDirectory(data)]
    for location in locations:
        assert history(spark, location).collect() == wanted
        other = state_at(spark, location, format_time(before_ms))
        assert other.queues.collect() == one.queues.collect()
        assert other.messages.collect() == one.messages.collect()
        assert any(row.message_id < floors[row.partition] for row in other.messages.collect())
        older = next(row for row in wanted if row.message_id is not None and row.message_id < floors[row.partition])
        assert biography(spark, location, f"{older.partition}:{older.message_id}").count() > 0
        assert not [finding for finding in audit(spark, location) if not finding.ok]
        with pytest.raises(
            BelowFloor, match=r"begins at offset \d+, .* is before it; an operator .* trimmed .*: a test"
        ):
            state_at(spark, location, format_time(START_MS + 1_000))
