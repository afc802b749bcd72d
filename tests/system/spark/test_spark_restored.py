"""Restored messages and duplicates in Spark's eyes: an audit believes them, a biography says what became of them."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from rewindmq.projections.machine.serialization.digest import queue_digest
from rewindmq.schemas.events import Checkpointed, Published
from rewindmq.schemas.values import BROKER, Argument, Deduplication, Origin, Route
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import biography, history
from rewindmq.spark_replay.history.state import state_at
from tests.support.events_for_tests import declared, route_once, text_id
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
    origin = Origin(
        "/",
        "jobs",
        queue_id=queue.queue_id,
        message_id=message,
        reason="restored",
        sequence=1,
        restore="jobs@then",
        delivery_count=1,
        redelivered=True,
    )
    back = Published(
        Route("/", "", "jobs", ("jobs",)), b"\x10\x00\x02", persistent=True, origin=origin, body=b"one", body_size=3
    )
    restored = told.append(0, ANN, back)
    again = told.append(0, ANN, back)
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
        (again, "duplicate", None),
        (restored, "delivered", 1),
        (restored, "acked", None),
    ]
    [row] = history(spark, str(tmp_path)).where("outcome = 'duplicate'").collect()
    assert (row.message_id, row.reason, row.rule) == (again, "restored before", "restoration jobs@then")
    assert (row.size, row.routing_key, row.origin.message_id, row.origin.reason) == (3, "jobs", message, "restored")


def test_b61_b62_duplicates_that_were_dropped(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("behind")
    once = (Argument("x-message-deduplication", "bool", True),)
    told.append(
        0,
        ANN,
        declared("/", "jobs", type="quorum", durable=True, arguments=once),
    )
    asked = route_once(Deduplication("once", 2, 1_000), "behind", "jobs")
    message = Published(asked, text_id("a"), persistent=True, body=b"one", body_size=3)
    first = told.append(0, ANN, message)
    told.wait(999)
    second = told.append(0, ANN, message)
    told.purge("behind")
    end = told.log.queues[0].next_offset
    then = {queue.name: queue_digest(queue) for queue in told.machines[0].queues()}
    told.wait(1)
    told.append(0, ANN, message)  # the exchange's time is over, but it is still in the queue
    told.purge("jobs")
    told.append(0, ANN, message)
    told.append(0, BROKER, Checkpointed(told.log.queues[0].next_offset - 1, told.machines[0].digest()))
    told.close()
    assert [finding for finding in audit(spark, str(tmp_path)) if not finding.ok] == []
    state = state_at(spark, str(tmp_path), offsets=json.dumps({"queues-0": end}))
    assert {row.queue: row.digest for row in state.queues.collect()} == then
    rows = history(spark, str(tmp_path)).where("outcome = 'duplicate'").orderBy("offset", "ordinal").collect()
    assert [(row.message_id, row.queue, row.rule, row.reason) for row in rows][:2] == [
        (second, queue, "exchange once", f"duplicate of message {first}") for queue in ("behind", "jobs")
    ]
    assert [(row.queue, row.rule) for row in rows][2:] == [
        ("jobs", "x-message-deduplication of the queue"),
        ("behind", "exchange once"),
    ]
