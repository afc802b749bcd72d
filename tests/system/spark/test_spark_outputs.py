"""Each command of Spark's that prints JSON: what it prints is as the schema of the output says (B-63)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.commands.outputs import OUTPUTS
from tests.support.outputs import judged
from tests.support.spark.histories import Recorder

pytestmark = pytest.mark.long

TRIED = ("--candidate", '{"name": "one", "pattern": ".", "definition": {"max-length": 1}}')
# What each command is given, by its name and the options that choose the output.
CALLS: dict[tuple[str, str], tuple[str, ...]] = {
    ("state-at", ""): ("--time", "mark:early", "--time", "mark:late"),
    ("state-at", "--messages"): ("--mark", "early"),
    ("history", ""): (),
    ("biography", ""): ("--message", "queues-0:2"),
    ("diff", ""): ("--from", "mark:early", "--to", "mark:late"),
    ("diff", "--summary"): ("--from", "mark:early", "--to", "mark:late"),
    ("slo", ""): ("--by", "consumer", "--every", "1 hour"),
    ("what-if", ""): TRIED,
    ("what-if", "--show fates"): TRIED,
    ("what-if", "--show depth"): TRIED,
    ("what-if", "--show assumptions"): TRIED,
    ("audit", ""): (),
    ("verify", ""): (),
}
ELSEWHERE = {("watch", "")}  # test_spark_watch.py: it needs a Kafka
BY_CALL = {(command, each.when): each for command, outputs in OUTPUTS.items() for each in outputs}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history with messages that wait, are with a consumer, are dead letters, and are purged."""
    data = tmp_path_factory.mktemp("told")
    history = Recorder(data, partitions=1)
    history.declare("orders", {"x-max-length": 3, "x-dead-letter-exchange": ""})
    for body in ("grüße".encode(), b"\xff\xfe", b"three", b"four"):
        history.publish("orders", body)
    history.get("orders", 1)
    history.mark("early")
    history.wait(1_000)
    history.purge("orders")
    history.mark("late")
    history.close()
    return data


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_b63_a_command_prints_what_its_schema_says(
    told: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str], call: tuple[str, str]
) -> None:
    command, when = call
    assert cli.run([command, "--data", str(told), *CALLS[call], *when.split(), "--format", "json"]) == 0
    values = judged(BY_CALL[call], capsys.readouterr().out)
    if call == ("state-at", ""):
        assert {each["moment"] for each in values} == {"mark:early", "mark:late"}
    if when == "--messages":
        assert {message["body_encoding"] for each in values for message in each["messages"]} == {"utf-8", "base64"}


def test_b63_every_output_is_judged() -> None:
    assert CALLS.keys() | ELSEWHERE == BY_CALL.keys()
