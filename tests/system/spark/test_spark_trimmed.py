"""Spark reads a history whose older part was trimmed: from the floor on as before, and below it an error."""

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.seals import sealer
from rewindmq.engine.keeping.seals.in_files import segmented
from rewindmq.engine.keeping.seals.seal import fingerprint
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.rewind import BelowFloor, format_time
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay.__main__ import run
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.ledger_files import Ledgers
from rewindmq.spark_replay.audit.seals import check_seals
from rewindmq.spark_replay.history.history import biography, history
from rewindmq.spark_replay.history.slo import slo
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.snapshots.build import cut
from rewindmq.spark_replay.snapshots.verify import verify
from tests.support.records import SCHEMA_BYTES
from tests.support.spark.forging import with_state
from tests.support.spark.histories import START_MS, Recorder, random_history

pytestmark = pytest.mark.long

KEY = Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, int], int]:
    """The history before and after it was trimmed, the floors, and the time before which it was trimmed."""
    whole, data = tmp_path_factory.mktemp("whole") / "data", tmp_path_factory.mktemp("trimmed") / "data"
    recorded = Recorder(whole, segment_bytes=SCHEMA_BYTES + 3_400)
    for queue in ("rest", "calm"):
        recorded.declare(queue)
        recorded.publish(queue, b"left")
        del recorded.definitions[queue]  # the traffic leaves it alone
    random_history(recorded, 20, 1_500)
    recorded.close()
    with_state(whole)
    for partition in segmented(whole):
        list(sealer.seal(partition, KEY, 5_000))
    shutil.copytree(whole, data)
    before_ms = START_MS + 3 * (recorded.now_ms - START_MS) // 4
    reports = trim_directory(
        data, TrimRequest(before_ms=before_ms, reason="a test", accept_findings=True), wall_ms=recorded.now_ms
    )
    floors = {report.partition: report.offset for report in reports}
    assert all(floors.values())
    return whole, data, floors, before_ms


Trimmed = tuple[Path, Path, dict[str, int], int]


def test_the_audit_and_the_checks_hold(spark: SparkSession, trimmed: Trimmed) -> None:
    data = trimmed[1]
    for findings in (audit(spark, str(data)), verify(spark, str(data))):
        assert not [finding for finding in findings if not finding.ok]
    findings = check_seals(spark, str(data), {fingerprint(KEY.public_key()): KEY.public_key()})
    assert not [finding for finding in findings if not finding.ok]
    assert any("is not checked: it was trimmed" in finding.detail for finding in findings)


def test_history_and_state_are_those_of_the_whole_from_the_floor_on(spark: SparkSession, trimmed: Trimmed) -> None:
    whole, data, floors, before_ms = trimmed
    above = " or ".join(f"(partition = '{name}' and offset >= {floor})" for name, floor in floors.items())
    rows = history(spark, str(data)).collect()
    assert rows == history(spark, str(whole)).where(above).collect()
    assert len(rows) > 100
    for time in (None, format_time(before_ms)):
        one, other = state_at(spark, str(data), time), state_at(spark, str(whole), time)
        assert one.queues.collect() == other.queues.collect()
        assert one.messages.collect() == other.messages.collect()
        assert any(row.message_id < floors[row.partition] for row in one.messages.collect())


def test_a_message_of_the_base_has_a_biography(spark: SparkSession, trimmed: Trimmed) -> None:
    _, data, floors, _ = trimmed
    rows = history(spark, str(data)).collect()
    older = next(row for row in rows if row.message_id is not None and row.message_id < floors[row.partition])
    assert biography(spark, str(data), f"{older.partition}:{older.message_id}").count() > 0
    with pytest.raises(BadRequest, match="no message queues-0:0 in the history"):
        biography(spark, str(data), "queues-0:0")
    assert slo(spark, str(data)).count() > 0


def test_below_the_floor_is_an_error_that_names_it(spark: SparkSession, trimmed: Trimmed) -> None:
    _, data, floors, _ = trimmed
    with pytest.raises(BelowFloor, match=r"begins at offset \d+, .* is before it; an operator .* trimmed .*: a test"):
        state_at(spark, str(data), format_time(START_MS + 1_000))
    assert EmbeddedLogReader(data).queues[0].start_offset == floors["queues-0"]


@pytest.mark.rare
def test_commands_say_where_a_trimmed_history_begins(
    spark: SparkSession, trimmed: Trimmed, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, data, floors, before_ms = trimmed
    lines = [f"{name} begins at offset {floor}: an operator" for name, floor in floors.items()]
    early, late = ["--from", format_time(START_MS + 1_000)], ["--from", format_time(before_ms + 1)]
    for command in (["history"], ["slo"], ["audit"]):
        assert run([*command, "--data", str(data)]) == 0
        told = capsys.readouterr().err.splitlines()
        assert [line[: len(begins)] for line, begins in zip(told, lines, strict=True)] == lines
        assert all(line.endswith(": a test") for line in told)
    for command in (["history", *late], ["slo", *late]):
        assert run([*command, "--data", str(data)]) == 0
        assert not capsys.readouterr().err
    assert run(["history", *early, "--data", str(whole)]) == 0
    assert not capsys.readouterr().err


@pytest.mark.rare
def test_b43_a_time_below_the_floor_is_an_error_that_names_it(
    spark: SparkSession, trimmed: Trimmed, capsys: pytest.CaptureFixture[str]
) -> None:
    data, floors = trimmed[1], trimmed[2]
    early, later = format_time(START_MS + 1_000), format_time(START_MS + 2_000)
    policy = '{"name": "p", "pattern": ".", "definition": {"max-length": 2}}'
    for command in (
        ["history", "--from", early],
        ["history", "--to", later],
        ["slo", "--from", early],
        ["diff", "--from", early],
        ["state-at", "--time", early],
        ["what-if", "--candidate", policy, "--from", early],
    ):
        assert run([*command, "--data", str(data)]) == 65, command
        printed = capsys.readouterr()
        assert printed.out == ""
        begins, why = f"queues-0 begins at offset {floors['queues-0']}, ", " is before it; an operator "
        assert printed.err.startswith(f"spark_replay: {begins}"), printed.err
        assert why in printed.err
        assert printed.err.endswith(": a test\n")
    read = spark.read.format("rewindmq").option("path", str(data))
    for view in ("history", "events"):
        with pytest.raises(Exception, match=r"is before it; an operator .*trimmed"):
            read.option("view", view).option("startingTimestamp", early).load().count()
    kept = read.option("view", "events").option("startingTimestamp", early).option("failOnDataLoss", "false").load()
    assert kept.count() == read.option("view", "events").load().count()


@pytest.mark.rare
def test_an_auditor_with_ledgers_goes_on_behind_a_trim(spark: SparkSession, tmp_path: Path, trimmed: Trimmed) -> None:
    """Ledgers and proven segments from before the trim: the audit goes on, in chunks, and since the last ledger."""
    whole, data, floors, _ = trimmed
    shutil.copytree(whole, tmp_path / "data")
    own = tmp_path / "own"
    cut(spark, str(tmp_path / "data"), 150, own)
    assert not [finding for finding in audit(spark, str(tmp_path / "data"), own) if not finding.ok]
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(data, tmp_path / "data")
    for since_last in (False, True, False):
        findings = audit(spark, str(tmp_path / "data"), own, since_last)
        assert not [finding for finding in findings if not finding.ok]
    fresh = tmp_path / "fresh"
    cut(spark, str(data), 150, fresh)
    for _ in range(2):
        assert not [finding for finding in audit(spark, str(data), fresh) if not finding.ok]
    assert min(Ledgers(Snapshots(fresh), "queues-0").offsets()) > floors["queues-0"]
