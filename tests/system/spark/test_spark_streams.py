"""Streams in the audit: what retention cuts balances, and a stream that cuts wrongly is found (B-18)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.projections.machine.data.effects import Effect, Forget
from rewindmq.projections.machine.machine import Machine
from tests.support.auditing import fold_audit
from tests.support.spark.histories import Recorder
from tests.support.spark.liars import Liar, Lie, first

pytestmark = pytest.mark.of_pure  # compiled code takes no machine that lies


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    told = Recorder(tmp_path, partitions=1)
    told.declare("aged", {"x-max-age": "2s"}, "stream")
    told.declare("sized", {"x-max-length-bytes": 30, "x-max-age": "1h"}, "stream")
    told.declare("endless", {}, "stream")
    told.consume("sized", 1, prefetch=5)
    for step in range(60):
        for queue in ("aged", "sized", "endless"):
            told.publish(queue, b"x" * (step % 13), expiration_ms=1)
        told.wait(130)
    told.publish("sized", b"x" * 100)
    told.policy("endless", "late", '{"max-length-bytes":40,"max-age":"3s"}')
    told.wait(9_000)
    told.tick(0)
    told.claim(0)
    told.close()
    return tmp_path


def test_what_retention_cut_balances(streams: Path) -> None:
    rows = fold_audit(streams, 0, Machine("queues-0"))
    assert [row for row in rows if not row["ok"]] == []


def test_the_audit_itself_finds_nothing_wrong(spark: SparkSession, streams: Path) -> None:
    from rewindmq.spark_replay.audit.audit import audit

    assert [f for f in audit(spark, str(streams)) if not f.ok] == []


def says_too_large(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "expired" and f.queue.name == "aged")
    if found:
        found.reason = "maxlen"
    return bool(found)


def cuts_the_wrong_end(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "maxlen" and f.queue.messages_ready > 3)
    if found:
        found.message_ids = [list(found.queue.ready_ids())[1]]
    return bool(found)


def says_too_old(effects: list[Effect]) -> bool:
    found = first(effects, Forget, lambda f: f.reason == "maxlen" and f.queue.name == "sized")
    if found:
        found.reason = "expired"
    return bool(found)


@pytest.mark.parametrize(
    ("lie", "checks"),
    [(says_too_large, {"limits"}), (cuts_the_wrong_end, {"order", "conservation"}), (says_too_old, {"ttl"})],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_stream_that_cuts_wrongly_is_found(streams: Path, lie: Lie, checks: set[str]) -> None:
    liar = Liar("queues-0", lie)
    found = {row["check"] for row in fold_audit(streams, 0, liar) if not row["ok"]}
    assert liar.lied_at >= 0, "the history gave no occasion for this lie"
    assert found & checks
