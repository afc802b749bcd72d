"""A history that is kept as Parquet: each run adds what is new, and nothing twice."""

import json
import shutil
from pathlib import Path

import pytest
from histories import Recorder

from spark_replay import __main__ as cli
from spark_replay.history import history
from spark_replay.kept_history import keep_history
from spark_replay.ranges import BadRequest

KEY = ("partition", "offset", "ordinal")


def more(told: Recorder, count: int) -> None:
    for number in range(count):
        told.publish("orders", b"%d" % number)
        told.publish("other", b"x")
    told.log.commit_and_wait()


def rows(frame) -> list[tuple[object, ...]]:
    return sorted(tuple(row.asDict(recursive=True).items()) for row in frame.drop("run").collect())


@pytest.fixture
def told(tmp_path: Path) -> Recorder:
    history = Recorder(tmp_path / "data")
    for queue in ("orders", "other"):
        history.declare(queue, {"x-max-length": 5})
    return history


def test_every_run_adds_what_is_new_and_one_that_was_cut_short_is_done_again(spark, told: Recorder) -> None:
    data, out = str(told.data), told.data.parent / "kept"
    more(told, 10)
    first = keep_history(spark, data, out)
    assert (first.run, first.rows) == (0, history(spark, data).count())
    assert keep_history(spark, data, out).rows == 0
    more(told, 7)
    assert keep_history(spark, data, out).run == 1
    before = (out / "_progress.json").read_text()
    more(told, 3)
    keep_history(spark, data, out)
    (out / "_progress.json").write_text(before)  # as if it had died before it noted the third run
    more(told, 1)
    assert keep_history(spark, data, out).run == 2
    kept = spark.read.parquet(str(out))
    assert kept.select(*KEY).distinct().count() == kept.count()
    assert rows(kept.select(history(spark, data).columns)) == rows(history(spark, data))
    told.close()


def test_another_log_or_directory_is_refused(spark, told: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = told.data, told.data.parent / "kept"
    more(told, 2)
    assert cli.run(["keep-history", "--data", str(data), "--out", str(out), "--queue", "orders"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    with pytest.raises(BadRequest, match="was kept of orders"):
        keep_history(spark, str(data), out)
    with pytest.raises(BadRequest, match="is no kept history"):
        keep_history(spark, str(data), data)
    told.close()
    shutil.rmtree(data)
    Recorder(data).close()
    assert cli.run(["keep-history", "--data", str(data), "--out", str(out), "--queue", "orders"]) == 64
    assert "the log ends at" in capsys.readouterr().err
