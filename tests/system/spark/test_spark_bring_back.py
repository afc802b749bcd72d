"""restore by a condition: Spark finds the messages, a real broker brings them back (B-02)."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.commands.failures import cause_of
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.restore import find
from tests.support.running import RunningBroker
from tests.support.spark.histories import Recorder

pytestmark = pytest.mark.long


@pytest.fixture
def broker(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return start_broker(tmp_path / "data")


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("timestamp > 'yesterday noon'", "The value 'yesterday noon' of the type"),
        ("offset = 'x'", "The value 'x' of the type"),
        ("1/0 > 1", "Division by zero"),
        ("offset/0 > 1", "Division by zero"),  # which shows in a task
        ("outcome rlike '('", "Unclosed group"),
        ("size(sequence(1, offset, 0)) = 1", "Illegal sequence boundaries"),  # and these have no SQLSTATE
        ("format_string('%d', queue) = 'x'", "IllegalFormatConversionException"),
        ("xpath_int(queue, '(') = 1", "Invalid XPath"),
        ("outcome = ", "Syntax error at or near end of input"),
        ("no such column", "Syntax error at or near 'column'"),
        ("nothing = 1", "`nothing` cannot be resolved"),
        ("outcome", "is not a boolean"),
    ],
)
def test_a_slip_in_a_condition_is_one_line(spark: SparkSession, busy: Path, condition: str, said: str) -> None:
    with pytest.raises(BadRequest, match=rf"^--where: .*{re.escape(said)}") as caught:
        find(spark, str(busy), condition)
    assert len(str(caught.value).splitlines()) == 1


def test_a_corrupt_log_is_no_slip(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    told.publish("orders", b"x" * 100)
    told.close()
    segment = next((tmp_path / "log" / "queues-0").glob("*.avro"))
    content = bytearray(segment.read_bytes())
    content[-40] ^= 255
    segment.write_bytes(bytes(content))
    with pytest.raises(Exception) as caught:  # noqa: PT011  Spark's own wrapping
        find(spark, str(tmp_path), "offset >= 0")
    assert cause_of(caught.value)[0] == "CorruptLog"


def test_b02_dead_letters_of_one_kind_come_back(
    spark: SparkSession,
    broker: RunningBroker,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = tmp_path / "events"  # the lineage
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    for queue in ("orders", "again"):
        channel.queue_declare(queue, durable=True)
    for number in range(4):
        channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    for number in range(3):
        got = channel.basic_get("orders")
        channel.basic_reject(got[0].delivery_tag, requeue=False) if number else channel.basic_ack(got[0].delivery_tag)
    channel.queue_declare("orders", passive=True)
    command = [
        "restore",
        "--data",
        str(broker.data),
        "--queue",
        "orders",
        "--where",
        "outcome = 'rejected'",
        "--url",
        broker.http_url,
    ]
    assert cli.run([*command, "--dry-run"]) == 0
    assert [(row["queue"], row["messages"]) for row in json.loads(capsys.readouterr().out)] == [("orders", 2)]
    for restored, duplicates in ((2, 0), (0, 2)):
        assert cli.run([*command, "--to", "again"]) == 0
        [row] = json.loads(capsys.readouterr().out)
        assert (row["to"], row["restored"], row["duplicates"]) == ("again", restored, duplicates)
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["eventType"] for event in told] == ["START", "COMPLETE"] * 3
    host = broker.http_url.removeprefix("http://")
    assert [[(each["namespace"], each["name"]) for each in event["outputs"]] for event in told[1::2]] == [
        [],
        *[[(f"rewindmq://{host}", "//again")]] * 2,
    ]
    assert [channel.basic_get("again", auto_ack=True)[2] for _ in range(2)] == [b"1", b"2"]
    assert channel.basic_get("again")[0] is None
    for buffering, name in ((1, "unread"), (-1, "unread at the end")):
        reading, writing = os.pipe()
        os.close(reading)
        with monkeypatch.context() as patched, os.fdopen(writing, "w", buffering) as pipe:
            patched.setattr(sys, "stdout", pipe)
            assert cli.run([*command, "--to", "again", "--name", name]) == 0
    assert channel.queue_declare("again", passive=True).method.message_count == 4  # all was done that was asked for
    connection.close()
    assert cli.run([*command, "--to", "nowhere"]) == 69
    assert "no queue 'nowhere' in vhost '/'" in capsys.readouterr().err
    assert cli.run([*command[:-3], "no such column", *command[-2:]]) == 64
    [line] = capsys.readouterr().err.splitlines()
    assert "--where" in line


@pytest.mark.rare
def test_a_broker_of_another_history_brings_nothing_back(
    broker: RunningBroker,
    tmp_path: Path,
    start_broker: Callable[..., RunningBroker],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has other messages under the same ids. A copy of the history is no other one."""
    other = start_broker(tmp_path / "other")
    for each, text in ((broker, b"mine"), (other, b"not mine")):
        with pika.BlockingConnection(pika.URLParameters(each.amqp_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True)
            for _ in range(3):
                channel.basic_publish("", "orders", text, pika.BasicProperties(delivery_mode=2))
            channel.queue_purge("orders")
    command = ["restore", "--queue", "orders", "--where", "outcome = 'purged'", "--data"]
    for dry in ([], ["--dry-run"]):
        assert cli.run([*command, str(broker.data), "--url", other.http_url, *dry]) == 65
        [line] = capsys.readouterr().err.splitlines()
        assert "is another one in this broker's history: the ids are of another history" in line
    copy = tmp_path / "copy"
    shutil.copytree(broker.data / "log", copy / "log")
    assert cli.run([*command, str(copy), "--url", broker.http_url]) == 0
    with pika.BlockingConnection(pika.URLParameters(other.amqp_url)) as connection:
        assert connection.channel().basic_get("orders")[0] is None
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        assert connection.channel().basic_get("orders")[2] == b"mine"
