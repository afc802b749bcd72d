"""Restored messages in Spark's eyes: an audit believes their counts, a biography goes on with them (B-02, B-03)."""

from pathlib import Path

from pyspark.sql import SparkSession

from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Origin, Route
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import biography
from tests.support.spark.histories import ANN, Recorder


def test_a_purge_that_was_undone(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("jobs", kind="quorum")
    message = told.publish("jobs", b"one")
    told.get("jobs", 1)
    told.nack("jobs", 1, message)
    told.purge("jobs")
    queue = told.machines[0].queue("/", "jobs")
    assert queue is not None
    origin = Origin("/", "jobs", queue.queue_id, message, "restored", 1, "jobs@then", 1, True)
    back = Published(Route("/", "", "jobs", ("jobs",)), b"\x10\x00\x02", None, None, True, origin, None, b"one", 3)
    restored = told.append(0, ANN, back)
    told.append(0, ANN, back)  # once more: a duplicate
    told.get("jobs", 2)
    told.ack("jobs", 2, restored)
    told.close()
    assert [finding for finding in audit(spark, str(tmp_path)) if not finding.ok] == []
    life = biography(spark, str(tmp_path), f"{message}").where("outcome != 'requeued'").collect()
    told_of = [(row.message_id, row.outcome, row.delivery_count) for row in life]
    assert told_of == [
        (message, "published", None),
        (message, "delivered", 0),
        (message, "purged", None),
        (restored, "published", None),
        (restored, "delivered", 1),
        (restored, "acked", None),
    ]
