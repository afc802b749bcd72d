"""Spark reads an archive as it reads the data directory that was archived, without that directory, and proves it."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.archive.snapshots import ArchivedSnapshots
from rewindmq.engine.keeping.location import InArchive
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import decoder_for, drive, events_of
from rewindmq.projections.rewind import format_time
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots
from rewindmq.projections.what_if.alternative import Candidate
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.seals import check_seals
from rewindmq.spark_replay.fold import from_snapshot, log_groups
from rewindmq.spark_replay.history.diff import diff
from rewindmq.spark_replay.history.history import biography, history
from rewindmq.spark_replay.history.slo import slo
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.log import in_archive, partition_of
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.snapshots.verify import verify
from rewindmq.spark_replay.source.options import TableOptions
from rewindmq.spark_replay.what_if.candidates import candidate_without
from rewindmq.spark_replay.what_if.what_if import what_if
from tests.support.archiving import archive_all

pytestmark = pytest.mark.long

AT = 300  # the offset of the snapshots


@pytest.fixture(scope="module")
def snapped(busy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The busy history with a snapshot in each partition."""
    data = tmp_path_factory.mktemp("snapped") / "data"
    shutil.copytree(busy, data)
    for partition in EmbeddedLogReader(data).queues:
        machine = Machine(partition.name)
        drive(machine, log_groups(data, partition.name, 0, AT), decoder_for(partition))
        Snapshots(data / "snapshots").take(machine)
    return data


@pytest.fixture(scope="module")
def archive(snapped: Path, tmp_path_factory: pytest.TempPathFactory) -> InArchive:
    return in_archive(archive_all(snapped, str(tmp_path_factory.mktemp("archive"))).url)


def copied(archive: InArchive, directory: Path) -> InArchive:
    """A copy of the archive, to damage."""
    shutil.copytree(archive.url.removeprefix("file://"), directory)
    return in_archive(str(directory))


def snapshot_object(archive: InArchive, partition: str) -> Path:
    manifest = Manifest.load(open_objects(archive.url), partition)
    [entry] = manifest.snapshots
    return Path(archive.url.removeprefix("file://")) / manifest.key(entry, entry.object)


def test_the_products_are_those_of_the_directory(spark: SparkSession, snapped: Path, archive: InArchive) -> None:
    data = str(snapped)
    rows = history(spark, archive).collect()
    assert rows == history(spark, data).collect()
    assert len(rows) > 1_000
    for name in ("queues", "messages"):
        of_archive, of_data = (getattr(state_at(spark, where), name).collect() for where in (archive, data))
        assert sorted(of_archive) == sorted(of_data)
        assert of_archive
    start, end = '{"queues-0": 10, "queues-1": 10}', '{"queues-0": 400, "queues-1": 400}'
    assert sorted(diff(spark, archive, start, end).collect()) == sorted(diff(spark, data, start, end).collect())
    assert slo(spark, archive).collect() == slo(spark, data).collect()
    message = next(f"{row.partition}:{row.message_id}" for row in rows if row.outcome == "acked")
    assert biography(spark, archive, message).collect() == biography(spark, data, message).collect()


def test_verify_and_audit_prove_an_archive(spark: SparkSession, archive: InArchive) -> None:
    findings = verify(spark, archive)
    assert all(finding.ok for finding in findings)
    assert {finding.check for finding in findings} == {"chain", "snapshots", "claims", "state"}
    assert {each.partition for each in findings if each.check == "chain"} == {"metadata-0", "queues-0", "queues-1"}
    assert {each.detail for each in findings if each.check == "state"} == {"not checked: an archive has no RocksDB"}
    assert all(each.detail.startswith("1 snapshots") for each in findings if each.check == "snapshots")
    assert [finding for finding in audit(spark, archive) if not finding.ok] == []
    assert check_seals(spark, archive) == []


def test_verify_names_a_damaged_object(spark: SparkSession, archive: InArchive, tmp_path: Path) -> None:
    damaged = copied(archive, tmp_path / "archive")
    manifest = Manifest.load(open_objects(damaged.url), "queues-1")
    path = tmp_path / "archive" / manifest.key(manifest.segments[0], manifest.segments[0].avro)
    data = bytearray(path.read_bytes())
    data[50] ^= 1  # in the schema: a reader of ranges would not see it
    path.write_bytes(data)
    bad = [finding for finding in verify(spark, damaged) if not finding.ok]
    assert [(each.check, each.partition, each.corrupt) for each in bad] == [("chain", "queues-1", True)]
    assert f"{path}: damaged at byte 0" in bad[0].detail
    data[50] ^= 1
    data[-100] ^= 1  # in the records: no fold can read them
    path.write_bytes(data)
    for check in (verify, audit):
        bad = [finding for finding in check(spark, damaged) if not finding.ok]
        assert [(each.check, each.partition, each.corrupt) for each in bad] == [("chain", "queues-1", True)]
        assert f"{path}: damaged at byte " in bad[0].detail


def test_the_audit_of_a_recovered_directory_passes(spark: SparkSession, archive: InArchive, tmp_path: Path) -> None:
    recover(open_objects(archive.url), tmp_path / "recovered")
    assert [finding for finding in audit(spark, str(tmp_path / "recovered")) if not finding.ok] == []


def test_b19_spark_on_a_fork(spark: SparkSession, archive: InArchive, tmp_path: Path) -> None:
    """It has the history up to the moment, as a directory and as an archive, and says where it branched."""
    log = ArchivedLog(archive.url)
    middle = sorted(each[1] for each in events_of(log.queues[0]))[600]
    data = tmp_path / "fork"
    recover(open_objects(archive.url), data, at=str(middle))
    ends = {each.name: each.next_offset for each in EmbeddedLogReader(data).queues}
    assert all(0 < ends[each.name] < each.next_offset for each in log.queues)
    own = in_archive(archive_all(data, str(tmp_path / "own")).url)
    options = {"endingOffsets": json.dumps(ends)}
    rows = history(spark, archive, options).collect()
    assert len(rows) > 300
    for where in (str(data), own):
        assert history(spark, where).collect() == rows
        findings = audit(spark, where)
        assert [each for each in findings if not each.ok] == []
        [branched] = [each for each in findings if each.check == "fork"]
        assert f"as of {format_time(middle)}: it branched from {log.identity.history[:16]}" in branched.detail
        of_fork, of_archive = state_at(spark, where), state_at(spark, archive, offsets=json.dumps(ends))
        assert sorted(of_fork.queues.collect()) == sorted(of_archive.queues.collect())


def test_a_damaged_snapshot_is_skipped_and_convicted(
    spark: SparkSession, snapped: Path, archive: InArchive, tmp_path: Path
) -> None:
    damaged = copied(archive, tmp_path / "archive")
    path = snapshot_object(damaged, "queues-0")
    path.write_bytes(path.read_bytes()[:-1])
    snapshots, log = ArchivedSnapshots(damaged.url), partition_of(damaged, "queues-0")
    with pytest.raises(SnapshotError, match=rf"file://{path}: its SHA-256 is not the one in the manifest"):
        snapshots.load("queues-0", AT)
    assert from_snapshot(snapshots, log, AT + 10).next_offset == 0
    assert from_snapshot(ArchivedSnapshots(archive.url), log, AT + 10).next_offset == AT
    bad = [finding for finding in verify(spark, damaged) if not finding.ok]
    assert [(each.check, each.partition, each.offset) for each in bad] == [("snapshots", "queues-0", AT)]


@pytest.mark.rare
def test_the_data_source_reads_an_archive(spark: SparkSession, snapped: Path, archive: InArchive) -> None:
    from rewindmq.spark_replay.source.source import register

    register(spark)
    for options in ({}, {"view": "history"}, {"view": "queues"}, {"view": "partitions"}):
        of_archive = spark.read.format("rewindmq").option("archive", archive.url).options(**options).load()
        of_data = spark.read.format("rewindmq").option("path", str(snapped)).options(**options).load()
        assert sorted(of_archive.collect(), key=str) == sorted(of_data.collect(), key=str), options


def test_where_the_archive_is_must_be_one_place() -> None:
    with pytest.raises(BadRequest, match="where is the history: path or archive"):
        TableOptions({"path": "x", "archive": "y"})
    with pytest.raises(BadRequest, match="no credentials or options"):
        TableOptions({"archive": "s3://key:secret@bucket"})


@pytest.mark.rare
def test_the_command_line_reads_an_archive(archive: InArchive, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "spark_replay", *arguments],
            capture_output=True,
            text=True,
            cwd=Path(__file__).resolve().parents[3],
            env={**os.environ, "AWS_SECRET_ACCESS_KEY": "do-not-tell"},
        )

    done = run("verify", "--archive", archive.url.removeprefix("file://"))
    assert done.returncode == 0, done.stderr
    assert "not checked" in done.stdout
    assert "do-not-tell" not in done.stdout + done.stderr
    for arguments, status in (
        (("--archive", str(tmp_path / "nowhere")), 64),
        (("--archive", str(tmp_path)), 65),
        (("--archive", archive.url, "--data", str(tmp_path)), 64),
    ):
        done = run("verify", *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (status, 1), done.stderr


@pytest.mark.rare
def test_what_if_over_an_archive_is_that_of_the_directory(
    spark: SparkSession, snapped: Path, archive: InArchive
) -> None:
    """Other limits from a moment on, and a world without a user: its messages, and all that came of them."""
    user = Counter(row.user for row in history(spark, archive).collect() if row.user).most_common(1)[0][0]
    shorter = Candidate("shorter", ".", {"max-length": 2})
    candidates = [shorter, candidate_without([f"user={user}"])]
    of_archive, of_data = (what_if(spark, where, candidates, every_ms=50) for where in (archive, str(snapped)))
    for name in ("fates", "depth", "assumptions", "summary"):
        rows = sorted(getattr(of_archive, name).collect(), key=str)
        assert rows == sorted(getattr(of_data, name).collect(), key=str), name
        assert rows
    assert {row.candidate for row in of_archive.fates.collect()} == {each.name for each in candidates}


@pytest.mark.rare
def test_the_commands_of_what_if_read_an_archive(
    spark: SparkSession, archive: InArchive, snapped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = history(spark, archive).where("outcome = 'published' and partition = 'queues-0'").first()
    assert message is not None
    without = f"message=queues-0:{message.message_id}"
    candidate = '{"name": "shorter", "pattern": ".", "definition": {"max-length": 2}}'
    printed = []
    for where in (("--archive", archive.url), ("--data", str(snapped))):
        options = ("--candidate", candidate, "--without", without, "--show", "fates", "--format", "json")
        assert cli.run(["what-if", *where, *options]) == 0
        printed.append(capsys.readouterr().out)
    assert sorted(printed[0].splitlines()) == sorted(printed[1].splitlines())
    assert cli.run(["what-if", "--archive", archive.url, "--without", "message=queues-0:99999999"]) == 64
    assert "no message queues-0:99999999" in capsys.readouterr().err
