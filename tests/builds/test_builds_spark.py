"""Spark beside a compiled build: the audit's tasks fold with the pure one, all others with the compiled one."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rewindmq import builds
from rewindmq.spark_replay.__main__ import run
from rewindmq.spark_replay.fold import for_each
from rewindmq.spark_replay.session import pure_workers, session
from tests.support.spark.histories import Recorder, random_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    """A session that exists before anything is audited, as in a notebook."""
    found = session(cores="2")
    yield found
    found.stop()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    data = tmp_path_factory.mktemp("history") / "data"
    history = Recorder(data)
    random_history(history, 20, 300)
    history.close()
    return str(data)


def kind_rows(_item: int) -> Iterator[Any]:
    """The build of a Spark worker, and a compiled module's file."""
    import pyarrow as pa

    from rewindmq.schemas import codec

    yield pa.RecordBatch.from_pydict({"kind": [builds.running().kind], "file": [codec.__file__]})


def workers(spark: "SparkSession") -> set[tuple[str, str]]:
    import pyarrow as pa

    schema = pa.schema([("kind", pa.string()), ("file", pa.string())])
    return {(row.kind, Path(row.file).suffix) for row in for_each(spark, [1, 2, 3], kind_rows, schema).collect()}


def test_workers_are_compiled_and_pure_where_they_are_asked_to_be(spark: "SparkSession") -> None:
    assert workers(spark) == {("compiled", ".so")}
    with pure_workers(spark):
        assert workers(spark) == {("pure", ".py")}
    assert workers(spark) == {("compiled", ".so")}
    with pytest.raises(ZeroDivisionError), pure_workers(spark):
        _ = 1 / 0
    assert builds.SWITCH not in spark.sparkContext.environment


def test_the_reports_say_which_build_folded(
    spark: "SparkSession", data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "--data", data, "--format", "json"]) == 0
    audited = capsys.readouterr().out
    assert "folded by the pure build" in audited
    assert "compiled build" not in audited
    assert run(["verify", "--data", data]) == 0
    verified = capsys.readouterr().out
    assert "folded by the compiled build" in verified
    assert "pure build" not in verified
