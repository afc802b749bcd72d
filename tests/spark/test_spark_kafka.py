"""The same history in Kafka as in the embedded log has the same states, rows and findings (B-01, B-03, B-18)."""

from pathlib import Path

import pytest
from histories import START_MS
from topics import Writer, make_topics

from spark_replay.audit import audit
from spark_replay.history import history
from spark_replay.history_log import InKafka
from spark_replay.state import state_at
from tests.kafka.cluster import KafkaCluster


@pytest.fixture(scope="module")
def copied(busy: Path, kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, "copied", 2)
    Writer(place).copy(busy)
    return place


def test_history_from_kafka_is_that_of_the_embedded_log(spark, busy: Path, copied: InKafka) -> None:
    assert history(spark, copied).collect() == history(spark, str(busy)).collect()
    options = {"startingTimestamp": str(START_MS + 4_000), "endingTimestamp": str(START_MS + 9_000)}
    some = history(spark, copied, options, "short").collect()
    assert some == history(spark, str(busy), options, "short").collect()
    assert some


def test_state_from_kafka_is_that_of_the_embedded_log(spark, busy: Path, copied: InKafka) -> None:
    for when in ({"time": str(START_MS + 7_000)}, {"offsets": '{"queues-1": 200}'}, {}):
        there, here = (state_at(spark, place, **when).rows.collect() for place in (copied, str(busy)))
        assert there == here
        assert any(row.message is not None for row in there)


def test_a_kafka_partition_is_folded_by_one_task_and_nothing_is_shuffled(spark, copied: InKafka) -> None:
    plan = history(spark, copied)._jdf.queryExecution().executedPlan().toString()
    assert "Exchange" not in plan
    assert history(spark, copied).rdd.getNumPartitions() == 2


def test_audit_from_kafka_finds_what_the_embedded_one_finds(spark, busy: Path, copied: InKafka) -> None:
    there, here = audit(spark, copied), audit(spark, str(busy))
    assert all(finding.ok for finding in there), there
    asked_of_both = [f for f in here if f.check not in ("chain", "store")]
    assert [f for f in there if f.check != "kept"] == asked_of_both
    assert [(f.partition, f.ok) for f in there if f.check == "kept"] == [
        ("metadata-0", True), ("queues-0", True), ("queues-1", True),
    ]  # fmt: skip
