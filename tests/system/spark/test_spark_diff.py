"""diff: the sum of the changes is the change of length, whatever the two moments (B-06)."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.projections.rewind import OutsideHistory
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.history.diff import diff
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.ranges import BadRequest
from tests.support.spark.histories import START_MS, Recorder, When

pytestmark = pytest.mark.long


def lengths(spark: SparkSession, data: Path, moment: str) -> Counter[str]:
    at: When = {"offsets": moment} if moment.startswith("{") else {"time": moment}
    rows = state_at(spark, str(data), messages=False, **at).queues.collect()
    return Counter({row.queue: row.messages for row in rows})


def changes(spark: SparkSession, data: Path, start: str, end: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in diff(spark, str(data), start, end).collect():
        found[row.queue] += row.change
    return found


def same(found: Counter[str], start: Counter[str], end: Counter[str]) -> bool:
    return all(found[queue] == end[queue] - start[queue] for queue in {*found, *start, *end})


def test_b06_the_changes_sum_to_the_change_of_length(spark: SparkSession, busy: Path) -> None:
    rows = diff(spark, str(busy), '{"queues-0": 0, "queues-1": 0}')
    assert rows.columns == columns.DIFF.names
    last = max(row.timestamp for row in rows.collect()).timestamp() * 1000
    rng = random.Random(6)
    for _ in range(4):
        start, end = (str(at) for at in sorted((rng.randint(START_MS, int(last)), rng.randint(START_MS, int(last)))))
        assert same(changes(spark, busy, start, end), lengths(spark, busy, start), lengths(spark, busy, end))
    offsets = [json.dumps({"queues-0": at, "queues-1": at + 30}) for at in (150, 400)]
    found = changes(spark, busy, *offsets)
    assert same(found, lengths(spark, busy, offsets[0]), lengths(spark, busy, offsets[1]))


def test_what_time_alone_did_counts_by_the_moment_not_the_next_event(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("brief", {"x-message-ttl": 50})
    expired = told.publish("brief", b"a")
    told.wait(1_000)
    kept = told.publish("brief", b"b")  # with this event the first one's expiry is found
    told.close()
    before, dead, after = (str(START_MS + ms) for ms in (10, 100, 1_010))
    assert changes(spark, tmp_path, before, dead) == {"brief": -1}
    [row] = diff(spark, str(tmp_path), before, dead).collect()
    assert (row.change, row.message_id, row.outcome, row.event, row.rule) == (
        -1,
        expired,
        "expired",
        None,
        "argument x-message-ttl",
    )
    [row] = diff(spark, str(tmp_path), dead, after, "brief").collect()
    assert (row.change, row.message_id, row.outcome, row.event) == (1, kept, "published", "Published")


def test_moments_that_make_no_sense(spark: SparkSession, busy: Path) -> None:
    with pytest.raises(BadRequest, match="the second moment lies before the first"):
        diff(spark, str(busy), str(START_MS + 500), str(START_MS + 400))
    with pytest.raises(BadRequest, match="different partitions: queues-0; queues-1"):
        diff(spark, str(busy), '{"queues-0": 3}', '{"queues-1": 3}')
    with pytest.raises(OutsideHistory, match="is before the history"):
        diff(spark, str(busy), "2020-01-01T00:00:00Z")


def test_the_command_line(told: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["diff", "--data", str(told), "--from", '{"queues-0": 1}', "--summary", "--format", "json"]) == 0
    assert [(row["outcome"], row["user"], row["change"]) for row in json.loads(capsys.readouterr().out)] == [
        ("published", "ann", 3),
        ("purged", "ann", -2),
    ]
    assert cli.run(["slo", "--data", str(told), "--every", "1 day", "--format", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["since"], row["ended"], row["stay_max_ms"]) == ("2025-11-21T00:00:00.000+00:00", 2, 1_000)
    assert cli.run(["slo", "--data", str(told), "--every", "often"]) == 64
    assert "every 'often': it is a number and a unit" in capsys.readouterr().err


@pytest.fixture
def told(spark: SparkSession, tmp_path: Path) -> Path:
    history = Recorder(tmp_path, partitions=1)
    history.declare("orders")
    history.publish("orders", b"a")
    history.publish("orders", b"b")
    history.wait(1_000)
    history.purge("orders")
    history.publish("orders", b"c")
    history.close()
    return tmp_path
