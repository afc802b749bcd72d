"""An audit of topics from ledger to ledger says what one of the whole says, also of what came since the last."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.events import Checkpointed
from rewindmq.schemas.values import BROKER
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.snapshots.build import cut
from tests.support.kafka.cluster import KafkaCluster
from tests.support.spark.histories import Recorder, random_history
from tests.support.spark.ledgers import failed_checks, findings_of_events, ledger_offsets
from tests.support.spark.topics import Writer, make_topics, write_gaps

pytestmark = pytest.mark.long

EVERY = 150


@pytest.mark.rare
def test_chunks_of_topics_say_what_the_whole_says_while_the_history_grows(
    spark: SparkSession, busy: Path, kafka: KafkaCluster, tmp_path: Path
) -> None:
    place, own = make_topics(kafka.bootstrap, "ledgers", 2), tmp_path / "own"
    writer = Writer(place)
    writer.copy(busy, 0.5)
    cut(spark, place, EVERY, own)
    half = audit(spark, place)
    for since_last in (False, False, True):
        found = audit(spark, place, own, since_last)
        assert failed_checks(found) == []
        assert findings_of_events(found) == findings_of_events(half)
    before = ledger_offsets(own)
    assert all(before.values())
    writer.copy(busy)
    cut(spark, place, EVERY, own)
    whole = audit(spark, place)
    assert findings_of_events(audit(spark, place, own, since_last=True)) == findings_of_events(whole)
    assert ledger_offsets(own) == {name: Snapshots(own).offsets(name) for name in before}
    assert all(len(ledger_offsets(own)[name]) > len(before[name]) for name in before)
    found = audit(spark, place, own, since_last=True)
    assert (failed_checks(found), findings_of_events(found)) == ([], findings_of_events(whole))
    [of_ledgers] = [each for each in found if each.check == "ledgers" and each.partition == "queues-0"]
    assert f"from offset {ledger_offsets(own)['queues-0'][-1]} on, in 1 chunk" in of_ledgers.detail


@pytest.mark.parametrize("every", [1, 3])
def test_ledgers_of_a_history_with_gaps(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, every: int) -> None:
    place, own = make_topics(kafka.bootstrap, f"ledgers-gaps-{every}", 1), tmp_path / "own"
    write_gaps(place)
    whole = audit(spark, place)
    cut(spark, place, every, own)
    for since_last in (False, False):
        found = audit(spark, place, own, since_last)
        assert findings_of_events(found) == findings_of_events(whole)
        assert ledger_offsets(own)["queues-0"] == Snapshots(own).offsets("queues-0")
    since = audit(spark, place, own, since_last=True)
    assert {check for check, _, _ in failed_checks(since)} == {"records"}


def test_a_false_claim_in_topics_is_not_forgotten(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    told = Recorder(tmp_path / "data")
    random_history(told, 7, 500)
    end = told.log.queues[0].next_offset
    lie = told.append(0, BROKER, Checkpointed(end - 1, "no digest"))
    random_history(told, 8, 500)
    told.close()
    place, own = make_topics(kafka.bootstrap, "ledgers-lie", 2), tmp_path / "own"
    Writer(place).copy(told.data)
    cut(spark, place, EVERY, own)
    assert (
        failed_checks(audit(spark, place, own))
        == failed_checks(audit(spark, place, own))
        == [("claims", "queues-0", lie)]
    )
    where = ["audit", "--kafka", place.bootstrap, "--prefix", place.prefix, "--snapshots", str(own)]
    assert cli.run([*where, "--since-last"]) == 1


def test_topics_grown_without_snapshots_are_audited_from_the_last_ledger(
    spark: SparkSession, busy: Path, kafka: KafkaCluster, tmp_path: Path
) -> None:
    place, own = make_topics(kafka.bootstrap, "ledgers-late", 2), tmp_path / "own"
    writer = Writer(place)
    writer.copy(busy, 0.4)
    cut(spark, place, EVERY, own)
    audit(spark, place, own)
    writer.copy(busy)
    found = audit(spark, place, own, since_last=True)
    assert (failed_checks(found), findings_of_events(found)) == ([], findings_of_events(audit(spark, place)))
