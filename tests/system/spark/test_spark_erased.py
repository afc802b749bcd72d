"""Encrypted bodies in Spark's eyes (B-15): what is shown is ciphertext, what is counted is the plain size."""

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import BodiesExpired, SubjectErased
from rewindmq.schemas.values import Route
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.history.state import state_at
from tests.support.spark.histories import ANN, START_MS, Recorder

pytestmark = pytest.mark.long


def test_b15_sizes_are_plain_and_an_erasure_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path / "data", partitions=1)
    told.declare("jobs", {"x-max-length-bytes": 9})
    subjects = Subjects("who", KeyStore(tmp_path / "keys"), {})
    subjects.keys.current("ada")
    for body in (b"dropped", b"kept", b"12345"):
        sealed, encryption = subjects.encrypt("ada", body)
        route = Route("/", "", "jobs", ("jobs",))
        told.append(
            0,
            ANN,
            Published(route, b"\x10\x00\x02", persistent=True, encryption=encryption, body=sealed, body_size=len(body)),
        )
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


def test_b21_a_history_whose_days_have_expired_is_asked_as_before(spark: SparkSession, tmp_path: Path) -> None:
    """Audit, state, history and what-if: none reads a body, and each body is ciphertext as before."""
    data = tmp_path / "data"
    told = Recorder(data, partitions=1)
    told.declare("jobs", {"x-max-length": 2})
    subjects = Subjects("", KeyStore(tmp_path / "keys"), {}, lambda: told.now_ms)
    for number in range(4):
        sealed, encryption = asyncio.run(subjects.make_key_and_encrypt(None, b"job %d" % number))
        route = Route("/", "", "jobs", ("jobs",))
        told.append(
            0,
            ANN,
            Published(route, b"\x10\x00\x02", persistent=True, encryption=encryption, body=sealed, body_size=5),
        )
        told.wait(86_400_000)
    days = subjects.keys.of_days()
    assert len(days) == 4
    for day, key_ids in list(days.items())[:2]:  # of these the queue has dropped the messages
        asyncio.run(subjects.destroy(key_ids))
        told.metadata(BodiesExpired(day, tuple(key_ids)))
    told.close()
    assert [finding for finding in audit(spark, str(data)) if not finding.ok] == []
    rows = state_at(spark, str(data)).rows.collect()
    assert [(row.queue.messages_ready, row.queue.message_bytes_ready) for row in rows if row.queue] == [(2, 10)]
    outcomes = history(spark, str(data)).where("outcome = 'published'").collect()
    assert [each.size for each in outcomes] == [5] * 4
