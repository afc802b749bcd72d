"""The audit proves a log segment by segment, joins what the tasks say, and with --since-last reads only what is new."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.contract import CorruptLog
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit import log_bytes as audit_bytes
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.log_bytes import CHAIN, prove
from rewindmq.spark_replay.snapshots.build import cut
from tests.support.records import SCHEMA_BYTES
from tests.support.spark.histories import Recorder, random_history

pytestmark = pytest.mark.long

SEGMENT_BYTES = SCHEMA_BYTES + 5_100
NAMES = ("metadata-0", "queues-0", "queues-1")


def history(data: Path, seed: int, events: int) -> Path:
    told = Recorder(data, segment_bytes=SEGMENT_BYTES)
    random_history(told, seed, events)
    told.close()
    return data


@pytest.fixture(autouse=True, scope="module")
def a_task_a_segment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(audit_bytes, "TASK_BYTES", 1)
        yield


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of many segments."""
    return history(tmp_path_factory.mktemp("long") / "data", 31, 1_000)


def copied(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data, tmp_path / "data"))


def files_of(data: Path) -> list[Path]:
    return segment_files(data / "log" / "queues-0")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-300] ^= 4
    path.write_bytes(content)


def by_partition(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.partition: finding for finding in findings if finding.check == CHAIN}


def test_segments_say_what_the_whole_chain_says(spark: SparkSession, long: Path) -> None:
    assert len(files_of(long)) > 5
    found = by_partition(prove(spark, long, NAMES, None, False))
    for name in NAMES:
        segments = list(verify_chain(long / "log" / name))
        records, blocks = sum(each.records for each in segments), sum(each.blocks for each in segments)
        assert found[name].ok
        assert found[name].detail == f"{records} records in {blocks} blocks, chain {segments[-1].chain.hex()[:16]}"


@pytest.mark.parametrize(("task_bytes", "at_once"), [(1, 1), (150_000, 3), (1 << 30, 100)])
def test_small_segments_share_a_task(
    long: Path, monkeypatch: pytest.MonkeyPatch, task_bytes: int, at_once: int
) -> None:
    monkeypatch.setattr(audit_bytes, "TASK_BYTES", task_bytes)
    files = audit_bytes.segment_files_of(long, "queues-0")
    groups = list(audit_bytes.in_groups(files))
    assert [file for group in groups for file in group] == files
    assert max(map(len, groups)) == min(at_once, len(files))


def flip_two(data: Path) -> None:
    flip(files_of(data)[4])
    flip(files_of(data)[2])


def lose_one(data: Path) -> None:
    files_of(data)[3].unlink()


def lose_the_first(data: Path) -> None:
    files_of(data)[0].unlink()


def take_another(data: Path) -> None:
    """A segment that is sound in itself, of another history."""
    other = history(data.parent / "other", 32, 600)
    path = files_of(data)[2]
    like = min(files_of(other)[1:], key=lambda each: each.stat().st_size)
    shutil.copy(like, path)


def tear(data: Path) -> None:
    path = files_of(data)[-1]
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize("harm", [flip_two, lose_one, lose_the_first, take_another, tear])
def test_each_harm_is_located_as_by_one_that_reads_all_in_order(
    spark: SparkSession, long: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    data = copied(long, tmp_path)
    harm(data)
    with pytest.raises(CorruptLog) as refused:
        list(verify_chain(data / "log" / "queues-0"))
    found = by_partition(prove(spark, data, NAMES, None, False))
    bad = found["queues-0"]
    assert (bad.ok, bad.corrupt, bad.offset, bad.detail) == (False, True, refused.value.offset, str(refused.value))
    assert found["queues-1"].ok


# -- what is new -------------------------------------------------------------------------------------------------------


def grown(data: Path) -> None:
    """The log goes on, by the hand of another recorder: its events make no sense there, its bytes do."""
    told = Recorder(data, segment_bytes=SEGMENT_BYTES)
    random_history(told, 33, 300)
    told.close()


@pytest.fixture(scope="module")
def audited(spark: SparkSession, long: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An auditor's own directory, after an audit."""
    own = tmp_path_factory.mktemp("audited") / "own"
    cut(spark, str(long), 300, own)
    assert all(each.ok for each in audit(spark, str(long), own))
    return own


def since(spark: SparkSession, data: Path, audited: Path, tmp_path: Path, since_last: bool = True) -> Finding:
    own = shutil.copytree(audited, tmp_path / f"own-{since_last}", dirs_exist_ok=True)
    return by_partition(audit(spark, str(data), Path(own), since_last))["queues-0"]


def test_only_the_last_segment_and_new_ones_are_read_again(
    spark: SparkSession, long: Path, audited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = copied(long, tmp_path)
    many = len(files_of(data))
    found = since(spark, data, audited, tmp_path)
    says = f", {many - 1} of {many} segments not read again: an earlier audit proved them"
    assert found.ok
    assert found.detail.endswith(says)
    flip(files_of(data)[2])  # so it is not read
    assert since(spark, data, audited, tmp_path) == found
    command = ["audit", "--data", str(data), "--snapshots", str(audited), "--format", "json"]
    assert cli.run([*command, "--since-last"]) == 0
    rows = json.loads(capsys.readouterr().out)
    told = [row for row in rows if (row["check"], row["partition"]) == (CHAIN, "queues-0")]
    assert told[0]["detail"].endswith(says)
    assert cli.run(command) == 65  # one of the whole reads it


def append_and_flip(data: Path) -> None:
    grown(data)
    flip(files_of(data)[-2])


def flip_the_last(data: Path) -> None:
    flip(files_of(data)[-1])


def put_together_anew(data: Path) -> None:
    """Another history with a chain that holds."""
    other = history(data.parent / "anew", 34, 1_200)
    shutil.rmtree(data / "log" / "queues-0")
    shutil.copytree(other / "log" / "queues-0", data / "log" / "queues-0")


def cut_off(data: Path) -> None:
    for path in files_of(data)[-2:]:
        path.unlink()


@pytest.mark.parametrize("harm", [append_and_flip, flip_the_last, lose_one, lose_the_first, cut_off])
def test_harm_to_what_is_new_or_gone_is_found_without_reading_the_rest(
    spark: SparkSession, long: Path, audited: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    data = copied(long, tmp_path)
    harm(data)
    found = since(spark, data, audited, tmp_path)
    assert (found.ok, found.corrupt) == (False, True), found


@pytest.mark.rare
def test_a_history_that_was_written_anew_is_not_the_one_that_was_proven(
    spark: SparkSession, long: Path, audited: Path, tmp_path: Path
) -> None:
    data = copied(long, tmp_path)
    put_together_anew(data)
    assert list(verify_chain(data / "log" / "queues-0"))
    shutil.copytree(audited, tmp_path / "own")
    for name in ("queues-0", "queues-1"):  # the first records are alike, the ledgers do not matter here
        shutil.rmtree(tmp_path / "own" / name)
    for since_last in (True, False):
        found = by_partition(audit(spark, str(data), tmp_path / "own", since_last))["queues-0"]
        assert not found.ok
        assert "an earlier audit has proven" in found.detail


def test_what_grew_is_proven_once(spark: SparkSession, long: Path, audited: Path, tmp_path: Path) -> None:
    data = copied(long, tmp_path)
    grown(data)
    own = Path(shutil.copytree(audited, tmp_path / "own"))
    many = len(files_of(data))
    for unread in (len(files_of(long)) - 1, many - 1):
        found = by_partition(audit(spark, str(data), own, True))["queues-0"]
        assert found.detail.endswith(f", {unread} of {many} segments not read again: an earlier audit proved them")


def test_a_damaged_note_of_what_was_proven_is_named(
    spark: SparkSession, long: Path, audited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Path(shutil.copytree(audited, tmp_path / "own"))
    (own / "chain.json").write_text('{"queues-0": [{"file": "x"}]}')
    assert cli.run(["audit", "--data", str(long), "--snapshots", str(own), "--since-last"]) == 64
    assert "chain.json: not as an audit writes it" in capsys.readouterr().err
