"""`pip install 'rewindmq[spark]'`, without a Kafka client: Spark finds the format by itself, and the commands work."""

import json
from pathlib import Path

import pytest

from tests.install.installed import Environment, InstalledBroker
from tests.support.pika_clients import numbered, publish_confirmed

pytestmark = pytest.mark.long

NOTHING_REGISTERED = """
import sys
from pyspark.sql import SparkSession
from rewindmq.spark import history

spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
read = spark.read.format("rewindmq").option("path", sys.argv[1]).load()
print("read", read.where("event = 'Published'").count())
spark.sql(f"CREATE TEMPORARY VIEW events USING rewindmq OPTIONS (path '{sys.argv[1]}')")
print("sql", spark.sql("SELECT count(*) FROM events WHERE event = 'Published'").first()[0])
print("function", history(spark, sys.argv[1]).where("outcome = 'published'").count())
"""


@pytest.fixture(scope="module")
def data(with_spark: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    broker = InstalledBroker(with_spark, tmp_path_factory.mktemp("history") / "data")
    publish_confirmed(broker, "orders", numbered(range(3), "order %d"))
    assert broker.stop() == 0
    return broker.data


@pytest.mark.parametrize("program", ["python", pytest.param("spark-submit", marks=pytest.mark.slow)])
def test_spark_finds_the_format_by_itself(program: str, with_spark: Environment, data: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(NOTHING_REGISTERED)
    if program == "spark-submit":
        program = str(with_spark.site / "pyspark" / "bin" / "spark-submit")
    done = with_spark.run(program, "job.py", str(data), cwd=tmp_path)
    assert done.stdout.splitlines() == ["read 3", "sql 3", "function 3"], done.stderr


@pytest.mark.rare
def test_rewindmq_spark_is_sparks_command_line(with_spark: Environment, data: Path, tmp_path: Path) -> None:
    asked = ("state-at", "--data", str(data), "--format", "json")
    done = with_spark.run("rewindmq", "spark", *asked, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    [queue] = json.loads(done.stdout)
    assert (queue["queue"], queue["messages"]) == ("orders", 3)
    wrong = with_spark.run("rewindmq", "spark", "state-at", "--data", "nowhere", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (64, "", 1)


def test_spark_over_kafka_needs_both_extras_and_one_line_says_so(with_spark: Environment, tmp_path: Path) -> None:
    done = with_spark.run("rewindmq", "spark", "audit", "--kafka", "127.0.0.1:1", cwd=tmp_path)
    line = "a log in Kafka needs confluent-kafka, not installed here: pip install 'rewindmq[kafka]'"
    assert (done.returncode, done.stdout, done.stderr) == (69, "", f"spark_replay: {line}\n")
