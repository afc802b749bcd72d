"""Spark still derives the same rows from the golden log, one by one: history, slo, audit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import history, history_of
from rewindmq.spark_replay.history.slo import slo
from rewindmq.spark_replay.location.ranges import BadRequest
from tests.support.spark.golden import GOLDEN_HISTORY, write_golden_log
from tests.support.spark.histories import plain_fold

pytestmark = pytest.mark.long

ASKED = json.loads((GOLDEN_HISTORY / "slo.json").read_text())
OF_TIME = [asked for asked in ASKED if asked["options"].keys() & {"every", "start", "end"}]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("golden") / "data"
    write_golden_log(data)
    return data


@pytest.fixture(scope="module")
def in_pieces(golden: Path) -> Path:
    """The same with snapshots, which cut the history into many ranges."""
    data = golden.parent / "in-pieces"
    shutil.copytree(golden, data)
    for number in (0, 1):
        for at in range(20, 280, 20):
            Snapshots(data / "snapshots").take(plain_fold(data, number, at))
    return data


@pytest.fixture(params=["golden", "in_pieces"])
def data(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_the_history_is_as_it_was(spark: SparkSession, data: str) -> None:
    recorded = pq.read_table(GOLDEN_HISTORY / "history.parquet")
    assert history(spark, data).drop("why").toArrow().cast(recorded.schema).equals(recorded)  # a later column
    some = ["queue", "outcome", "timestamp"]
    assert history(spark, data, only=some).toArrow().cast(recorded.select(some).schema).equals(recorded.select(some))


def test_the_data_source_makes_the_columns_that_are_named(spark: SparkSession, golden: Path) -> None:
    recorded = pq.read_table(GOLDEN_HISTORY / "history.parquet").select(["outcome", "message_id"])
    source = spark.read.format("rewindmq").option("path", str(golden))
    named = source.option("view", "history").option("columns", "outcome, message_id").load()
    assert named.toArrow().cast(recorded.schema).equals(recorded)
    records = spark.read.format("rewindmq").option("path", str(golden)).option("view", "records").load()
    assert history_of(records, ["outcome", "message_id"]).toArrow().cast(recorded.schema).equals(recorded)


@pytest.mark.parametrize("only", [["outcomes"], ["outcome", "outcome"], []])
def test_columns_that_the_history_has_not_are_refused(spark: SparkSession, golden: Path, only: list[str]) -> None:
    with pytest.raises(BadRequest, match="column"):
        history(spark, str(golden), only=only)


@pytest.mark.rare(data=["in_pieces"], asked=OF_TIME)
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: ",".join(map(str, asked["options"].values())) or "all")
def test_slo_is_as_it_was(spark: SparkSession, data: str, asked: dict[str, Any]) -> None:
    rows = [row.asDict() for row in slo(spark, data, **asked["options"]).collect()]
    for row in rows:
        row["since"] = row["since"] and row["since"].isoformat()
    assert rows == asked["rows"]


def test_the_audit_finds_what_it_found(spark: SparkSession, golden: Path) -> None:
    recorded = json.loads((GOLDEN_HISTORY / "audit.json").read_text())
    found = [finding.as_json() for finding in audit(spark, str(golden)) if finding.check != "chain"]
    for each in found:
        each["detail"] = each["detail"].partition(", folded by ")[0]  # which build folded was not said then
    later = [each for each in found if each["check"] == "publishes"]  # a check that was not there then
    assert [(each["ok"], each["detail"]) for each in later] == [
        (True, "0 sessions, 0 publishes counted, 238 not counted")
    ]
    found.remove(later[0])
    assert found == [each for each in recorded if each["check"] != "chain"]  # the chain is of the blocks, not recorded
