"""A history that is kept as Parquet or Delta: each run adds what is new, and nothing twice."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.history.incremental import HistoryRun, keep_history
from rewindmq.spark_replay.location.ranges import BadRequest
from tests.support.spark.histories import Recorder

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
KEY = ("partition", "offset", "ordinal")


def more(told: Recorder, count: int) -> None:
    for number in range(count):
        told.publish("orders", b"%d" % number)
        told.publish("other", b"x")
    told.log.commit_and_wait()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row.asDict(recursive=True).items()) for row in frame.drop("run").collect())


@pytest.fixture
def told(tmp_path: Path) -> Recorder:
    history = Recorder(tmp_path / "data")
    for queue in ("orders", "other"):
        history.declare(queue, {"x-max-length": 5})
    return history


@pytest.mark.rare(form=["delta"])  # below, a history is written as a delta table
@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_every_run_adds_what_is_new_and_one_cut_short_is_done_again(
    spark: SparkSession, told: Recorder, form: str
) -> None:
    data, out = str(told.data), told.data.parent / "kept"

    def keep() -> HistoryRun:
        return keep_history(spark, data, out, form=form)

    more(told, 10)
    first = keep()
    assert (first.run, first.rows) == (0, history(spark, data).count())
    assert keep().rows == 0
    more(told, 7)
    assert keep().run == 1
    before = (out / "_progress.json").read_text()
    more(told, 3)
    keep()
    (out / "_progress.json").write_text(before)  # as if it had died before it noted the third run
    more(told, 1)
    assert keep().run == 2
    kept = spark.read.format(form).load(str(out))
    assert kept.select(*KEY).distinct().count() == kept.count()
    assert rows(kept.select(history(spark, data).columns)) == rows(history(spark, data))
    told.close()


def test_another_log_or_directory_is_refused(
    spark: SparkSession, told: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = told.data, told.data.parent / "kept"
    more(told, 2)
    assert cli.run(["keep-history", "--data", str(data), "--out", str(out), "--queue", "orders"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    with pytest.raises(BadRequest, match="was kept of orders"):
        keep_history(spark, str(data), out)
    with pytest.raises(BadRequest, match="is kept as parquet, not as delta"):
        keep_history(spark, str(data), out, "orders", "delta")
    with pytest.raises(BadRequest, match="is not a kept history"):
        keep_history(spark, str(data), data)
    told.close()
    shutil.rmtree(data)
    Recorder(data).close()
    assert cli.run(["keep-history", "--data", str(data), "--out", str(out), "--queue", "orders"]) == 64
    assert "the log ends at" in capsys.readouterr().err


def test_a_history_is_written_as_a_delta_table(
    spark: SparkSession, told: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    more(told, 3)
    told.close()
    out = told.data.parent / "table"
    words = ["history", "--data", str(told.data), "--format", "delta"]
    assert cli.run(words) == 64
    assert "name a directory with --out" in capsys.readouterr().err
    assert cli.run([*words, "--out", str(out)]) == 0
    assert spark.read.format("delta").load(str(out)).count() == history(spark, str(told.data)).count() == 6


@pytest.mark.rare
def test_without_delta_it_says_what_to_pass(told: Recorder) -> None:
    more(told, 1)
    told.close()
    words = ["keep-history", "--data", str(told.data), "--out", str(told.data.parent / "kept"), "--format", "delta"]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    done = subprocess.run(
        [sys.executable, "-m", "spark_replay", *words], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 69, done.stderr
    assert "--packages io.delta:delta-spark" in done.stderr
    assert len(done.stderr.splitlines()) == 1
