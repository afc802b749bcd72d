"""Encrypted bodies in Spark's eyes (B-15): what is shown is ciphertext, what is counted is the plain size."""

import asyncio
from pathlib import Path

from pyspark.sql import SparkSession

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import SubjectErased
from rewindmq.schemas.values import Route
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.history.state import state_at
from tests.support.spark.histories import ANN, START_MS, Recorder


def test_b15_sizes_are_plain_and_an_erasure_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path / "data", partitions=1)
    told.declare("jobs", {"x-max-length-bytes": 9})
    subjects = Subjects("who", KeyStore(tmp_path / "keys"), {})
    subjects.keys.current("ada")
    for body in (b"dropped", b"kept", b"12345"):
        sealed, encryption = subjects.encrypt("ada", body)
        route = Route("/", "", "jobs", ("jobs",))
        told.append(0, ANN, Published(route, b"\x10\x00\x02", None, None, True, None, encryption, sealed, len(body)))
    encoder = Encoder()
    told.log.metadata.append(
        START_MS,
        encoder.encode(
            encoder.prefix(START_MS, ANN), SubjectErased("ada", asyncio.run(subjects.erase("ada")), "asked for")
        ),
    )
    told.close()
    assert [finding for finding in audit(spark, str(tmp_path / "data")) if not finding.ok] == []
    rows = state_at(spark, str(tmp_path / "data")).rows.collect()
    (queue,) = [row.queue for row in rows if row.queue]
    assert (queue.messages_ready, queue.message_bytes_ready) == (2, 9)
    shown = [row.message for row in rows if row.message]
    assert [(each.size, len(each.body)) for each in shown] == [(4, 20), (5, 21)]
    outcomes = history(spark, str(tmp_path / "data")).where("outcome in ('published', 'maxlen')").collect()
    assert sorted((each.outcome, each.size) for each in outcomes if each.size is not None)[-3:] == [
        ("published", 4),
        ("published", 5),
        ("published", 7),
    ]
