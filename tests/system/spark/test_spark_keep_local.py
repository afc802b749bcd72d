"""Spark with --data reads a log that was cut to its newest part, and below it the archive: as if nothing were cut."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.archive.archiver import Archiver
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.local_space import SpaceLimits, keep_local
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.rewind import format_time
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay.__main__ import run
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.ledger_files import Ledgers
from rewindmq.spark_replay.history.diff import diff
from rewindmq.spark_replay.history.history import biography, history
from rewindmq.spark_replay.history.slo import slo
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.snapshots.build import cut
from rewindmq.spark_replay.snapshots.verify import verify
from tests.support.records import SCHEMA_BYTES
from tests.support.spark.forging import with_state
from tests.support.spark.histories import START_MS, Recorder, random_history

pytestmark = pytest.mark.long


@dataclass(frozen=True, slots=True)
class Tiers:
    """A history whole, and cut with the rest in the archive. `starts`: where partitions begin locally."""

    whole: Path
    data: Path
    archive: Path
    starts: dict[str, int]
    early_ms: int  # before the local starts
    late_ms: int


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> Tiers:
    folder = tmp_path_factory.mktemp("tiers")
    recorded = Recorder(folder / "data", segment_bytes=SCHEMA_BYTES + 3_400)
    for queue in ("rest", "calm"):
        recorded.declare(queue)
        recorded.publish(queue, b"left")
        del recorded.definitions[queue]  # the traffic leaves it alone
    random_history(recorded, 20, 1_500)
    recorded.close()
    with_state(folder / "data")
    shutil.copytree(folder / "data", folder / "whole")
    objects = open_objects(str(folder / "archive"), make=True)
    Archiver(objects, folder / "data").run()
    assert keep_local(folder / "data", objects, SpaceLimits(size_bytes=1)).freed_bytes > 0
    starts = {log.name: log.start_offset for log in EmbeddedLogReader(folder / "data").queues}
    assert all(starts.values())
    early_ms = START_MS + (recorded.now_ms - START_MS) // 10
    return Tiers(folder / "whole", folder / "data", folder / "archive", starts, early_ms, recorded.now_ms)


@pytest.mark.rare
def test_history_and_state_are_those_of_the_whole(spark: SparkSession, tiers: Tiers) -> None:
    rows = history(spark, str(tiers.data)).collect()
    assert rows == history(spark, str(tiers.whole)).collect()
    assert any(row.offset < tiers.starts[row.partition] for row in rows)
    early = {"endingTimestamp": format_time(tiers.early_ms)}
    rows = history(spark, str(tiers.data), early).collect()
    assert rows == history(spark, str(tiers.whole), early).collect()
    assert rows
    assert all(row.offset < tiers.starts[row.partition] for row in rows)
    for time in (None, format_time(tiers.early_ms), format_time(tiers.late_ms)):
        one, other = state_at(spark, str(tiers.data), time), state_at(spark, str(tiers.whole), time)
        assert one.queues.collect() == other.queues.collect()
        messages = one.messages.collect()
        assert messages == other.messages.collect()
        assert any(row.message_id < tiers.starts[row.partition] for row in messages)


@pytest.mark.rare
def test_the_other_tables_are_those_of_the_whole(spark: SparkSession, tiers: Tiers) -> None:
    one, other = str(tiers.data), str(tiers.whole)
    assert slo(spark, one).collect() == slo(spark, other).collect()
    times = format_time(tiers.early_ms), format_time(tiers.late_ms)
    assert diff(spark, one, *times).collect() == diff(spark, other, *times).collect()
    older = next(row for row in history(spark, one).collect() if row.message_id is not None)
    message = f"{older.partition}:{older.message_id}"
    assert biography(spark, one, message).collect() == biography(spark, other, message).collect()


def test_the_audit_holds_and_looks_at_both_tiers(spark: SparkSession, tiers: Tiers, tmp_path: Path) -> None:
    whole, findings = audit(spark, str(tiers.whole)), audit(spark, str(tiers.data))
    assert [finding for finding in findings if not finding.ok] == []
    assert {each.check for each in findings} == {each.check for each in whole} | {"snapshots"}, "the cut took one"
    looked = {(each.check, each.partition): each.detail for each in whole if each.check == "conservation"}
    assert {(each.check, each.partition): each.detail for each in findings if each.check == "conservation"} == looked
    assert not [finding for finding in verify(spark, str(tiers.data)) if not finding.ok]
    own = tmp_path / "own"
    cut(spark, str(tiers.data), 150, own)
    for since_last in (False, True, False):
        assert not [finding for finding in audit(spark, str(tiers.data), own, since_last) if not finding.ok]
    assert min(Ledgers(Snapshots(own), "queues-0").offsets()) < tiers.starts["queues-0"]


@pytest.mark.rare
def test_an_audit_with_ledgers_goes_on_behind_a_cut(spark: SparkSession, tiers: Tiers, tmp_path: Path) -> None:
    data, own = tmp_path / "data", tmp_path / "own"
    shutil.copytree(tiers.whole, data)
    cut(spark, str(data), 150, own)
    assert not [finding for finding in audit(spark, str(data), own) if not finding.ok]
    shutil.rmtree(data)
    shutil.copytree(tiers.data, data)
    for since_last in (True, False):
        assert not [finding for finding in audit(spark, str(data), own, since_last) if not finding.ok]


@pytest.mark.rare
def test_without_the_archive_the_local_part_is_read_the_rest_an_error(
    spark: SparkSession, tiers: Tiers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiers.data, data)
    (data / "log" / "archive.json").write_text(f'{{"format": 1, "url": "file://{tmp_path}/away"}}')
    late = ["--from", format_time(tiers.late_ms)]
    for command in (["history"], ["audit"], ["state-at", "--time", format_time(tiers.early_ms)]):
        assert run([*command, "--data", str(data)]) in (65, 69), command
        assert "away" in capsys.readouterr().err
    capsys.readouterr()
    assert run(["state-at", "--messages", "--data", str(data), "--format", "json"]) == 0, capsys.readouterr().err
    assert run(["history", *late, "--data", str(data)]) == 0, capsys.readouterr().err
