"""StateTables at a time or at offsets, by Spark, is what a plain fold of the same events gives (B-01)."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.serialization.digest import queue_digest
from rewindmq.projections.rewind import OutsideHistory
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.history.state import StateTables, state_at
from tests.support.running import ROOT
from tests.support.spark.histories import START_MS, Recorder, plain_fold

pytestmark = pytest.mark.long


def digests(state: StateTables) -> dict[tuple[str, str], str]:
    return {(row.vhost, row.queue): row.digest for row in state.queues.collect()}


def test_b01_state_at_offsets_equals_a_plain_fold(spark: SparkSession, busy: Path) -> None:
    chance = random.Random(5)
    ends = [partition.next_offset for partition in EmbeddedLogReader(busy).queues]
    for _ in range(4):
        chosen = [chance.randrange(1, end + 1) for end in ends]
        asked = json.dumps({f"queues-{number}": end for number, end in enumerate(chosen)})
        expected = {
            (queue.vhost, queue.name): queue_digest(queue)
            for number, end in enumerate(chosen)
            for queue in plain_fold(busy, number, end).queues()
        }
        assert digests(state_at(spark, str(busy), offsets=asked)) == expected


def test_b01_messages_and_gauges_are_those_of_the_fold(spark: SparkSession, busy: Path) -> None:
    state = state_at(spark, str(busy))
    rows = state.rows.collect()
    shown = {(r.queue.vhost, r.queue.queue): r.queue for r in rows if r.queue}
    for number, partition in enumerate(EmbeddedLogReader(busy).queues):
        for queue in plain_fold(busy, number, partition.next_offset).queues():
            row = shown[(queue.vhost, queue.name)]
            assert (row.messages_ready, row.messages_unacknowledged) == (queue.messages_ready, queue.messages_unacked)
            assert row.message_bytes_ready == queue.message_bytes_ready
            found = [m.message for m in rows if m.message and m.message.queue == queue.name]
            assert [(m.message_id, m.state, m.position) for m in found] == [
                (view.message_id, view.state, view.position) for view in queue.messages()
            ]


def test_state_at_t_is_everything_up_to_t_with_the_clock_at_t(spark: SparkSession, tmp_path: Path) -> None:
    history = Recorder(tmp_path)
    history.declare("brief", {"x-message-ttl": 1_000})
    history.declare("plain")
    history.publish("brief", b"one")
    history.publish("plain", b"two")
    history.wait(400)
    history.publish("brief", b"three")
    history.close()

    def ready(ms: int) -> dict[str, int]:
        state = state_at(spark, str(tmp_path), time=str(START_MS + ms), messages=False)
        return {row.queue: row.messages_ready for row in state.queues.collect()}

    assert ready(0) == {"brief": 1, "plain": 1}
    assert ready(399) == {"brief": 1, "plain": 1}
    assert ready(400) == {"brief": 2, "plain": 1}
    assert ready(1_000) == {"brief": 1, "plain": 1}  # nothing was logged, but the first has expired by now
    assert ready(99_000) == {"brief": 0, "plain": 1}


def test_bodies_and_properties_come_back_from_the_log(spark: SparkSession, tmp_path: Path) -> None:
    history = Recorder(tmp_path)
    history.declare("orders")
    ids = [history.publish("orders", f"body {n}".encode() * n) for n in range(20)]
    history.consume("orders", 1, prefetch=3)
    history.close()
    state = state_at(spark, str(tmp_path), queue="orders")
    rows = state.messages.orderBy("message_id").collect()
    assert [(r.message_id, bytes(r.body)) for r in rows] == [
        (message, f"body {n}".encode() * n) for n, message in enumerate(ids)
    ]
    assert [r.message_id for r in rows if r.state == "unacked"] == ids[:3]
    assert {bytes(r.properties) for r in rows} == {b"\x10\x00\x02"}
    assert {(r.user, r.exchange, r.routing_key) for r in rows} == {("ann", "", "orders")}


def test_queues_that_are_not_there_yet_or_any_more(spark: SparkSession, tmp_path: Path) -> None:
    history = Recorder(tmp_path)
    history.wait(10)
    history.declare("short-lived")
    history.publish("short-lived", b"x")
    history.wait(10)
    history.delete("short-lived")
    history.close()
    names = [
        [row.queue for row in state_at(spark, str(tmp_path), time=str(START_MS + ms)).queues.collect()]
        for ms in (0, 10, 19, 20)
    ]
    assert names == [[], ["short-lived"], ["short-lived"], []]


def test_a_log_without_queues_has_no_state(spark: SparkSession, tmp_path: Path) -> None:
    Recorder(tmp_path).close()
    assert state_at(spark, str(tmp_path)).rows.collect() == []


def test_a_log_in_which_nothing_ever_happened(spark: SparkSession, tmp_path: Path) -> None:
    EmbeddedLog.open(tmp_path, partitions=2).close()
    assert state_at(spark, str(tmp_path)).rows.collect() == []
    assert history(spark, str(tmp_path)).collect() == []
    assert all(finding.ok for finding in audit(spark, str(tmp_path)))
    with pytest.raises(OutsideHistory, match="the history is empty"):
        state_at(spark, str(tmp_path), time=str(START_MS))


def test_snapshots_shorten_the_fold_and_change_nothing(spark: SparkSession, busy: Path, tmp_path: Path) -> None:
    data = tmp_path / "copy"
    shutil.copytree(busy, data)
    before = digests(state_at(spark, str(data)))
    snapshots = Snapshots(data / "snapshots")
    for number in range(2):
        snapshots.take(plain_fold(data, number, 300))
        damaged = snapshots.take(plain_fold(data, number, 400))
        damaged.write_bytes(damaged.read_bytes()[:-40])
    assert digests(state_at(spark, str(data))) == before


def test_the_state_does_not_depend_on_the_hash_seed(spark: SparkSession, busy: Path) -> None:
    """Spark's workers fold under one hash seed; other processes have others."""
    script = (
        "import sys; from pathlib import Path; from tests.support.spark.histories import plain_fold\n"
        "from rewindmq.projections.machine.serialization.digest import queue_digest\n"
        "print([queue_digest(q) for n in (0, 1) for q in plain_fold(Path(sys.argv[1]), n, 10**9).queues()])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script, str(busy)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(printed) == 1
    by_spark = digests(state_at(spark, str(busy)))
    assert sorted(by_spark.values()) == sorted(json.loads(printed.pop().replace("'", '"')))
