"""slo: percentiles equal those of a brute-force pass over the history (B-14)."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy
import pytest
from pyspark.sql import SparkSession

from rewindmq.schemas.events import BrokerStarted, SessionClosed
from rewindmq.schemas.values import BROKER
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.history.slo import slo
from rewindmq.spark_replay.location.ranges import BadRequest
from tests.support.spark.histories import ANN, START_MS, Recorder


def brute_force(rows: list[Any], start_ms: int, by_consumer: bool) -> dict[tuple[Any, ...], dict[str, list[int]]]:
    """Waits, stays and redeliveries by key, row by row in the order of the log."""
    began: dict[tuple[Any, ...], int] = {}
    seen: set[tuple[Any, ...]] = set()
    found: dict[tuple[Any, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: (row.partition, row.offset, row.ordinal)):
        if row.message_id is None or row.queue_id is None:
            continue
        message = (row.partition, row.queue_id, row.message_id)
        now = round(row.timestamp.timestamp() * 1000)
        if row.outcome == "published":
            began[message] = now
        first = row.outcome == "delivered" and message not in seen
        if row.outcome == "delivered":
            seen.add(message)
        if now < start_ms or (by_consumer and row.consumer is None):
            continue
        told = found[(row.queue, row.consumer if by_consumer else None)]
        if row.outcome == "published":
            told["published"].append(1)
        if first:
            told["wait"].append(now - began[message])
        if row.outcome == "delivered":
            told["redelivered"].append(int(not first))
        if row.final:
            told["stay"].append(now - began[message])
    return found


@pytest.mark.parametrize("by", ["queue", "consumer"])
def test_b14_percentiles_are_those_of_a_plain_pass(spark: SparkSession, busy: Path, by: str) -> None:
    everything = history(spark, str(busy)).collect()
    middle = sorted(row.timestamp for row in everything)[len(everything) // 2]
    start_ms = round(middle.timestamp() * 1000)
    rows = slo(spark, str(busy), str(start_ms), by=by)
    assert rows.columns == columns.SLO.names
    expected = brute_force(everything, start_ms, by == "consumer")
    got = {(row.queue, row.consumer): row for row in rows.collect()}
    assert got.keys() == expected.keys()
    assert any(told["wait"] for told in expected.values())
    for key, told in expected.items():
        row = got[key]
        again = told["redelivered"]
        assert (row.published, row.delivered, row.redelivered) == (len(told["published"]), len(again), sum(again))
        assert row.redelivery_rate == (sum(again) / len(again) if again else None)
        assert row.ended == len(told["stay"])
        for name in ("wait", "stay"):
            values = told[name]
            assert row[f"{name}_max_ms"] == (max(values) if values else None)
            for label, at in (("p50", 50), ("p95", 95), ("p99", 99)):
                exact = float(numpy.percentile(values, at)) if values else None
                assert row[f"{name}_{label}_ms"] == (None if exact is None else pytest.approx(exact))


def test_every_stretch_has_its_own_row(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    told.consume("orders", 1, prefetch=10)
    for waited in (100, 300):
        message = told.publish("orders", b"x")  # delivered at once
        told.wait(waited)
        told.ack("orders", 1, message)
        told.wait(60_000 - waited)
    told.close()
    rows = slo(spark, str(tmp_path), every="1 minute").collect()
    assert [(row.since.timestamp() * 1000 - START_MS, row.ended, row.stay_max_ms) for row in rows] == [
        (0, 1, 100),
        (60_000, 1, 300),
    ]
    assert [row.wait_max_ms for row in rows] == [0, 0]


def test_a_first_delivery_is_none_again_whatever_its_flag_says(spark: SparkSession, tmp_path: Path) -> None:
    """After a crash every message is flagged as redelivered, and a restored one as what it was."""
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    told.publish("orders", b"x")
    told.append(0, BROKER, BrokerStarted("rewindmq@localhost", "0.1.0", 1, after_crash=True))
    told.get("orders", 1)
    told.append(0, ANN, SessionClosed(ANN.session, 0))
    told.get("orders", 2)
    told.close()
    flags = [row.redelivered for row in history(spark, str(tmp_path)).where("outcome = 'delivered'").collect()]
    [row] = slo(spark, str(tmp_path)).collect()
    assert flags == [True, True]
    assert (row.delivered, row.redelivered, row.redelivery_rate) == (2, 1, 0.5)


def test_a_stretch_may_be_as_long_as_is_taken(spark: SparkSession, busy: Path) -> None:
    assert slo(spark, str(busy), every="36500 days").count() == slo(spark, str(busy)).count() > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": "user"}, "by 'user': it is one of queue, consumer"),
        ({"every": "now"}, "every 'now': it is a number"),
        ({"every": "36501 days"}, "at most 36500 days"),
        ({"every": "9" * 30 + " days"}, "it is a number"),
    ],
)
def test_options_that_make_no_sense(spark: SparkSession, busy: Path, options: dict[str, str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        slo(spark, str(busy), **options)
