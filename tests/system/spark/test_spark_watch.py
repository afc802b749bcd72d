"""The audit that goes on (B-18): batch on top of batch it finds what an audit of the whole finds, and nothing twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import Acked, PolicyApplied
from rewindmq.schemas.values import BROKER, Policy
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.policies import APPLIED_WITHIN_MS
from rewindmq.spark_replay.audit.watch import AuditStates, BatchReport, watch
from rewindmq.spark_replay.commands.outputs import OUTPUTS
from tests.support.kafka.cluster import KafkaCluster
from tests.support.outputs import judged
from tests.support.spark.histories import ANN, Recorder, random_history
from tests.support.spark.liars import audit_in_one
from tests.support.spark.topics import Writer, make_topics

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A busy history with three things wrong, told one after the other."""
    data = tmp_path_factory.mktemp("planted")
    told = Recorder(data)
    random_history(told, 3, 300)
    told.claim(0, "0" * 64)
    random_history(told, 4, 300)
    number = told.partition("plain")
    told.append(number, ANN, Acked("/", "plain", 99, ((1, 1),)))  # of a message that nobody has: quarantined
    told.append(number, BROKER, PolicyApplied("/", "plain", Policy("forged", '{"max-length":1}', 2), None))
    random_history(told, 5, 300)
    told.wait(APPLIED_WITHIN_MS + 1)
    told.tick(0)
    told.tick(1)
    told.close()
    return data


def test_a_stream_finds_what_the_batch_audit_finds(
    spark: SparkSession, kafka: KafkaCluster, planted: Path, tmp_path: Path
) -> None:
    place = make_topics(kafka.bootstrap, "planted", 2)
    Writer(place).copy(planted)
    reports: list[BatchReport] = []
    done = watch(spark, place, tmp_path, batch_events=600, once=True, report=reports.append)
    found = {finding.row() for report in reports for finding in report.violations}
    wanted = {finding.row() for finding in audit(spark, str(planted)) if not finding.ok}
    assert {row[0] for row in found} == {"claims", "policies"}
    assert found == wanted
    assert done.violations == len(wanted)
    ends = {partition.name: partition.next_offset for partition in EmbeddedLogReader(planted).queues}
    assert sum(report.events for report in reports) == sum(ends.values())
    assert len(reports) > 1
    last = {name: at for report in reports for name, at in report.partitions.items()}
    assert {name: (at.offset, at.lag_events, at.lag_ms) for name, at in last.items()} == {
        name: (end, 0, 0) for name, end in ends.items()
    }
    assert sum(at.quarantined for at in last.values()) >= 1
    first = next(iter(reports[0].partitions.values()))
    assert first.lag_events > 0
    assert first.lag_ms > 0


def test_a_watch_goes_on_where_it_stopped_and_counts_nothing_twice(
    spark: SparkSession, kafka: KafkaCluster, busy: Path, tmp_path: Path
) -> None:
    place = make_topics(kafka.bootstrap, "goes-on", 2)
    writer = Writer(place)
    reports: list[BatchReport] = []
    for share in (0.5, 0.5, 1.0):  # the second time there is nothing new
        writer.copy(busy, share)
        assert watch(spark, place, tmp_path, once=True, report=reports.append).violations == 0
    machines = [Machine("queues-0"), Machine("queues-1")]
    assert not any(audit_in_one(busy, number, machine) for number, machine in enumerate(machines))
    kept = [AuditStates(tmp_path, machine.partition).before(1_000).machine.digest() for machine in machines]
    assert kept == [machine.digest() for machine in machines]
    assert [report.batch for report in reports] == [0, 1]

    for path in (tmp_path / "spark" / "commits").glob("*1*"):  # as if it had ended before Spark noted the batch as done
        path.unlink()
    watch(spark, place, tmp_path, once=True, report=reports.append)
    assert [report.batch for report in reports] == [0, 1]
    lines = [json.loads(line) for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    assert [(line["batch"], line["events"]) for line in lines] == [(r.batch, r.events) for r in reports]
    assert sum(line["events"] for line in lines) == sum(machine.next_offset for machine in machines)
    kept = [AuditStates(tmp_path, machine.partition).before(1_000).machine.digest() for machine in machines]
    assert kept == [machine.digest() for machine in machines]


@pytest.mark.rare
def test_the_command_ends_on_sigterm_goes_on_and_fails_fast(
    kafka: KafkaCluster, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Recorder(tmp_path / "data", partitions=1)
    told.declare("orders")
    told.publish("orders", b"one")
    place = make_topics(kafka.bootstrap, "watched", 1)
    writer = Writer(place)
    told.log.commit_and_wait()
    writer.copy(tmp_path / "data")

    command = ["watch", "--kafka", kafka.bootstrap, "--prefix", "watched", "--checkpoint", str(tmp_path / "watch")]
    with subprocess.Popen(
        [sys.executable, "-m", "spark_replay", *command, "--interval", "0.2"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "batch 0: 3 events, 0 violations; queues-0 at 3, at the end\n"
        os.killpg(process.pid, signal.SIGTERM)  # as service managers do: the JVM is told, too
        assert process.wait(60) == 0

    lied = told.claim(0, "0" * 64)
    told.close()
    writer.copy(tmp_path / "data")
    assert cli.run([*command, "--interval", "0.2", "--fail-fast"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "batch 1: 1 events, 1 violations; queues-0 at 4, at the end"
    assert second.startswith(f"  claims: queues-0 offset {lied}: the broker claimed 000")
    again = ["--checkpoint", str(tmp_path / "again"), "--once", "--format", "json"]  # of B-63
    assert cli.run([*command[:-2], *again]) == 1
    reports = judged(OUTPUTS["watch"][0], capsys.readouterr().out)
    assert [found["check"] for report in reports for found in report["violations"]] == ["claims"]
