"""An audit from ledger to ledger says what one of the whole says, and trusts no ledger that it does not arrive at."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.events import Checkpointed
from rewindmq.schemas.values import BROKER
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.file_format import StoredAudit, packed, unpacked
from rewindmq.spark_replay.snapshots.build import cut
from tests.support.spark.forging import write_sound
from tests.support.spark.histories import Recorder, random_history
from tests.support.spark.ledgers import failed_checks, findings_of_events, ledger_offsets

pytestmark = pytest.mark.long

EVERY = 150


def lied_to(data: Path) -> tuple[Path, int]:
    """A history with a false claim in its middle, and more than one chunk on either side."""
    told = Recorder(data)
    random_history(told, 7, 700)
    end = told.log.queues[0].next_offset
    lie = told.append(0, BROKER, Checkpointed(end - 1, "no digest"))
    random_history(told, 8, 700)
    told.close()
    return data, lie


def test_chunks_say_what_the_whole_says(spark: SparkSession, busy: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    cut(spark, str(busy), EVERY, own)
    whole = audit(spark, str(busy))
    assert failed_checks(whole) == []
    [counted] = [each for each in whole if each.check == "publishes"]
    for chunks in (1, 4):  # the first audit leaves the ledgers, the second goes from one to the next
        found = audit(spark, str(busy), own)
        assert failed_checks(found) == []
        assert findings_of_events(found) == findings_of_events(whole)
        assert [each for each in found if each.check == "publishes"] == [counted]
        [of_ledgers] = [each for each in found if each.check == "ledgers" and each.partition == "queues-0"]
        assert (f"in {chunks} chunk" in of_ledgers.detail) == (chunks == 1)
        assert ledger_offsets(own) == {name: Snapshots(own).offsets(name) for name in ledger_offsets(own)}
    assert len(ledger_offsets(own)["queues-0"]) > 3
    since = audit(spark, str(busy), own, since_last=True)
    assert findings_of_events(since) == findings_of_events(whole)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=own, check=True, capture_output=True)


def test_an_audit_that_was_cut_short_goes_on(spark: SparkSession, busy: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    cut(spark, str(busy), EVERY, own)
    audit(spark, str(busy), own)
    all_kept = ledger_offsets(own)
    for name, offsets in all_kept.items():
        for offset in offsets[2:]:
            (own / name / f"{offset:020d}.ledger").unlink()
    found = audit(spark, str(busy), own)
    assert failed_checks(found) == []
    assert [each.detail.rpartition(" in ")[2] for each in found if each.check == "ledgers"] == ["3 chunks"] * 2
    assert ledger_offsets(own) == all_kept


@pytest.mark.rare
def test_dead_letters_are_joined_with_those_of_earlier_audits(spark: SparkSession, tmp_path: Path) -> None:
    told = write_sound(tmp_path / "data")
    own = tmp_path / "own"
    cut(spark, str(told.data), 5, own)
    whole = audit(spark, str(told.data))
    audit(spark, str(told.data), own)
    for since_last in (False, True):
        found = audit(spark, str(told.data), own, since_last)
        assert findings_of_events(found) == findings_of_events(whole)
        [arrivals] = [each for each in found if each.check == "arrivals"]
        assert arrivals.ok
        assert not arrivals.detail.startswith("0 ")


def test_what_is_found_is_found_once_and_not_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    data, lie = lied_to(tmp_path / "data")
    own = tmp_path / "own"
    cut(spark, str(data), EVERY, own)
    assert (
        failed_checks(audit(spark, str(data), own))
        == failed_checks(audit(spark, str(data), own))
        == [("claims", "queues-0", lie)]
    )
    since = audit(spark, str(data), own, since_last=True)
    assert failed_checks(since) == [("claims", "queues-0", None)]
    [finding] = [each for each in since if not each.ok]
    assert finding.detail.startswith("1 found before offset ")
    arguments = ["audit", "--data", str(data), "--snapshots", str(own)]
    assert cli.run([*arguments, "--since-last"]) == 1


def raise_a_count(ledger: StoredAudit) -> StoredAudit:
    ledger.beliefs.events += 1
    return ledger


def forget_a_letter(ledger: StoredAudit) -> StoredAudit:
    ledger.beliefs.letters = {1: 99}
    return ledger


def other_machine(ledger: StoredAudit) -> StoredAudit:
    return replace(ledger, digest="0" * 64)


@pytest.mark.rare(forge=[forget_a_letter, other_machine])
@pytest.mark.parametrize("forge", [raise_a_count, forget_a_letter, other_machine, None])
def test_a_forged_ledger_is_a_finding_whatever_its_checksum(
    spark: SparkSession, busy: Path, tmp_path: Path, forge: Callable[[StoredAudit], StoredAudit] | None
) -> None:
    own = tmp_path / "own"
    cut(spark, str(busy), EVERY, own)
    whole = audit(spark, str(busy), own)
    offset = ledger_offsets(own)["queues-0"][1]
    path = own / "queues-0" / f"{offset:020d}.ledger"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] if forge is None else packed(forge(unpacked(path))))
    assert path.read_bytes() != sound
    found = audit(spark, str(busy), own)
    assert set(failed_checks(found)) == {("ledgers", "queues-0", offset)}
    assert findings_of_events(found) == findings_of_events(whole)


@pytest.mark.rare
def test_a_snapshot_of_another_state_is_a_finding(spark: SparkSession, busy: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    cut(spark, str(busy), EVERY, own)
    audit(spark, str(busy), own)
    first, second = ledger_offsets(own)["queues-0"][:2]
    shutil.copy(own / "queues-0" / f"{first:020d}.snapshot", own / "queues-0" / f"{second:020d}.snapshot")
    found = audit(spark, str(busy), own)
    assert {(check, partition) for check, partition, _ in failed_checks(found)} >= {("snapshots", "queues-0")}
    assert {check for check, _, _ in failed_checks(found)} <= {"snapshots", "ledgers"}


@pytest.mark.rare
def test_since_last_needs_a_directory_of_ledgers(
    spark: SparkSession, busy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["audit", "--data", str(busy), "--since-last"]) == 64
    assert "with --snapshots" in capsys.readouterr().err
    own = tmp_path / "own"
    cut(spark, str(busy), EVERY, own)
    command = ["audit", "--data", str(busy), "--snapshots", str(own), "--format", "json"]
    assert cli.run([*command, "--since-last", "--progress"]) == 0
    told = capsys.readouterr()
    assert {row["ok"] for row in json.loads(told.out)} == {True}
    assert " tasks done, " in told.err
    assert re.search(r"audit: \d+ s, .*\d+ ledgers kept", told.err)
    assert cli.run(command) == 0
    assert capsys.readouterr().err == ""  # it is no terminal
