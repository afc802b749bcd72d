"""The same history in Kafka as in the embedded log has the same states, rows and findings (B-01, B-03, B-18)."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.serialization.digest import queue_digest
from rewindmq.projections.replay import fold
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.history.history import biography, history
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.snapshots.build import cut
from rewindmq.spark_replay.snapshots.verify import verify
from tests.support.kafka.cluster import KafkaCluster
from tests.support.queues import queue_of
from tests.support.spark.histories import START_MS, When
from tests.support.spark.topics import Writer, make_topics, write_gaps

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def copied(busy: Path, kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, "copied", 2)
    Writer(place).copy(busy)
    return place


def test_history_from_kafka_is_that_of_the_embedded_log(spark: SparkSession, busy: Path, copied: InKafka) -> None:
    assert history(spark, copied).collect() == history(spark, str(busy)).collect()
    options = {"startingTimestamp": str(START_MS + 4_000), "endingTimestamp": str(START_MS + 9_000)}
    some = history(spark, copied, options, "short").collect()
    assert some == history(spark, str(busy), options, "short").collect()
    assert some


def test_state_from_kafka_is_that_of_the_embedded_log(spark: SparkSession, busy: Path, copied: InKafka) -> None:
    moments: tuple[When, ...] = ({"time": str(START_MS + 7_000)}, {"offsets": '{"queues-1": 200}'}, {})
    for when in moments:
        there, here = (state_at(spark, place, **when).rows.collect() for place in (copied, str(busy)))
        assert there == here
        assert any(row.message is not None for row in there)


def test_a_kafka_partition_is_folded_by_one_task_and_nothing_is_shuffled(spark: SparkSession, copied: InKafka) -> None:
    plan = history(spark, copied)._jdf.queryExecution().executedPlan().toString()
    assert "Exchange" not in plan
    assert history(spark, copied).rdd.getNumPartitions() == 2


def test_audit_from_kafka_finds_what_the_embedded_one_finds(spark: SparkSession, busy: Path, copied: InKafka) -> None:
    there, here = audit(spark, copied), audit(spark, str(busy))
    assert all(finding.ok for finding in there), there
    asked_of_both = [f for f in here if f.check not in ("chain", "store")]
    assert [f for f in there if f.check != "kept"] == asked_of_both
    assert [(f.partition, f.ok) for f in there if f.check == "kept"] == [
        ("metadata-0", True),
        ("queues-0", True),
        ("queues-1", True),
    ]


def test_a_history_in_kafka_is_cut_and_then_read_chunk_by_chunk(
    spark: SparkSession, busy: Path, copied: InKafka, tmp_path: Path
) -> None:
    done = cut(spark, copied, 150, tmp_path / "own")
    assert done.in_all == done.snapshots == sum(end // 150 for end in done.up_to.values())
    findings = verify(spark, copied, tmp_path / "own")
    assert all(finding.ok for finding in findings), findings
    pieces = history(spark, copied, snapshots=tmp_path / "own")
    assert pieces.rdd.getNumPartitions() == 2 + done.in_all
    assert pieces.collect() == history(spark, str(busy)).collect()
    when: When = {"time": str(START_MS + 7_000)}
    there = state_at(spark, copied, snapshots=tmp_path / "own", **when).rows.collect()
    assert there == state_at(spark, str(busy), **when).rows.collect()
    with pytest.raises(BadRequest, match="another log"):
        verify(spark, str(busy), tmp_path / "own")


def test_lineage_names_the_topics_and_how_far_they_were_read(
    spark: SparkSession,
    copied: InKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    transport = {"type": "file", "log_file_path": str(tmp_path / "events"), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    log = KafkaLogReader(copied.bootstrap, copied.prefix)
    ends = {partition.name: (0, partition.next_offset) for partition in (log.metadata, *log.queues)}
    where = ["--kafka", copied.bootstrap, "--prefix", copied.prefix]
    checkpoint = tmp_path / "watch"
    for command in (["audit"], ["watch", "--once", "--checkpoint", str(checkpoint)]):
        assert cli.run([*command, *where]) == 0
        _, complete = (json.loads(line) for line in (tmp_path / "events").read_text().splitlines()[-2:])
        assert (complete["eventType"], complete["job"]["name"]) == ("COMPLETE", f"rewindmq.{command[0]}")
        inputs = {each["name"]: each["inputFacets"] for each in complete["inputs"]}
        assert {each["namespace"] for each in complete["inputs"]} == {f"kafka://{copied.bootstrap}"}
        assert set(inputs) == {"copied.metadata", "copied.queues"}
        read = [each for facets in inputs.values() for each in facets["rewindmq_offsets"]["partitions"]]
        assert {each["partition"]: (each["start"], each["end"]) for each in read} == ends
        assert not any("chain" in each for each in read)
        assertions = inputs["copied.queues"]["dataQualityAssertions"]["assertions"]
        assert all(each["success"] for each in assertions)
    assert [each["assertion"] for each in assertions] == ["watch"]
    assert complete["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert [each["name"] for each in complete["outputs"]] == [str(checkpoint)]


# -- what only Kafka has ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gaps(kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, "gaps", 1)
    write_gaps(place)
    return place


def test_gaps_and_values_that_are_no_events_are_passed_by_all_folds_alike(spark: SparkSession, gaps: InKafka) -> None:
    partition = KafkaLogReader(gaps.bootstrap, gaps.prefix).queues[0]
    machine = Machine("queues-0")
    quarantined = fold(machine, partition)
    assert [each.offset for each in quarantined.newest()] == [7, 8, 9]
    rows = history(spark, gaps).collect()
    assert [(r.offset, r.reason) for r in rows if r.outcome == "quarantined"] == [
        (each.offset, each.reason) for each in quarantined.newest()
    ]
    state = state_at(spark, gaps)
    [queue] = state.queues.collect()
    assert queue.digest == queue_digest(queue_of(machine, "orders"))
    assert queue.offset == partition.next_offset
    found = {(m.message_id, m.state, bytes(m.body)) for m in state.messages.collect()}
    assert found == {(5, "unacked", b"at 5"), (14, "unacked", b"at 14")}
    life = [row.outcome for row in biography(spark, gaps, "queues-0:2").collect()]
    assert life == ["published", "delivered", "acked"]
    bad = [finding for finding in audit(spark, gaps) if not finding.ok]
    assert [(finding.check, finding.offset) for finding in bad] == [("records", 7), ("records", 8), ("records", 9)]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["history", "--to", "2999-01-01T00:00:00Z"], 65, "lies in the future"),
        (["history", "--from", "2999-01-01T00:00:00Z"], 65, "nothing was logged at or after"),
        (["state-at", "--time", "2001-01-01T00:00:00Z"], 65, "is before the history"),
        (["state-at", "--offsets", "1000"], 65, "has offsets 0 to 16, not 1000"),
        (["audit", "--data", "."], 64, "Give one of --data, --archive and --kafka"),
        (["audit", "--prefix", "nowhere"], 65, "no topic nowhere.metadata"),
    ],
)
def test_what_cannot_be_had_is_said_before_spark_starts(
    gaps: InKafka, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    command, *more = arguments
    assert cli.run([command, "--kafka", gaps.bootstrap, "--prefix", "gaps", *more]) == status
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


def test_topics_that_lose_history_are_found(spark: SparkSession, kafka: KafkaCluster) -> None:
    place = make_topics(kafka.bootstrap, "loses", 2, {"retention.ms": "604800000"})
    bad = [finding for finding in audit(spark, place) if not finding.ok]
    assert {(finding.check, finding.partition) for finding in bad} == {
        ("kept", "loses.metadata"),
        ("kept", "loses.queues"),
    }
    assert "retention.ms is 604800000" in bad[0].detail
