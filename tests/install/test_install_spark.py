"""`pip install 'rewindmq[spark]'`, without a Kafka client: Spark finds the format by itself, and the commands work."""

import json
from pathlib import Path

import pytest

from tests.install.installed import Environment, InstalledBroker
from tests.install.test_install_core import publish

NOTHING_REGISTERED = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").getOrCreate()
)
read = spark.read.format("rewindmq").option("path", sys.argv[1]).load()
print("read", read.where("event = 'Published'").count())
spark.sql(f"CREATE TEMPORARY VIEW events USING rewindmq OPTIONS (path '{sys.argv[1]}')")
print("sql", spark.sql("SELECT count(*) FROM events WHERE event = 'Published'").first()[0])
"""


@pytest.fixture(scope="module")
def data(with_spark: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    broker = InstalledBroker(with_spark, tmp_path_factory.mktemp("history") / "data")
    publish(broker, 3)
    assert broker.stop() == 0
    return broker.data


def test_spark_finds_the_format_by_itself(with_spark: Environment, data: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(NOTHING_REGISTERED)
    done = with_spark.run("python", "job.py", str(data), cwd=tmp_path)
    assert done.stdout.splitlines() == ["read 3", "sql 3"], done.stderr
    done = with_spark.run("spark-submit", "--master", "local[1]", "job.py", str(data), cwd=tmp_path)
    assert [line for line in done.stdout.splitlines() if line.startswith(("read", "sql"))] == ["read 3", "sql 3"]


def test_rewindmq_spark_is_sparks_command_line(with_spark: Environment, data: Path, tmp_path: Path) -> None:
    asked = ("state-at", "--data", str(data), "--format", "json")
    done = with_spark.run("rewindmq", "spark", *asked, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    [queue] = json.loads(done.stdout)
    assert (queue["queue"], queue["messages"]) == ("orders", 3)
    same = with_spark.run("python", "-m", "rewindmq.spark_replay", *asked, cwd=tmp_path)
    assert (same.returncode, same.stdout) == (0, done.stdout)
    wrong = with_spark.run("rewindmq", "spark", "state-at", "--data", "nowhere", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (64, "", 1)


def test_the_functions_have_one_door(with_spark: Environment, data: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from rewindmq.spark import session, history\n"
        "print(history(session(), sys.argv[1]).where(\"outcome = 'published'\").count())"
    )
    done = with_spark.run("python", "-c", program, str(data), cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_spark_over_kafka_needs_both_extras_and_one_line_says_so(with_spark: Environment, tmp_path: Path) -> None:
    done = with_spark.run("rewindmq", "spark", "audit", "--kafka", "127.0.0.1:1", cwd=tmp_path)
    line = "a log in Kafka needs confluent-kafka, not installed here: pip install 'rewindmq[kafka]'"
    assert (done.returncode, done.stdout, done.stderr) == (69, "", f"spark_replay: {line}\n")
