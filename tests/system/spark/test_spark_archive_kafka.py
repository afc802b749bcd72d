"""Spark reads the archive of a history in Kafka as it reads the topics, and proves it."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.archive import pack
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.keeping.archive.topic_recovery import recover_topics
from rewindmq.engine.keeping.in_topics import trim_topics
from rewindmq.engine.keeping.location import InArchive, InKafka
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.rewind import BelowFloor
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.kafka_retention import retention_findings
from rewindmq.spark_replay.history.history import biography, history
from rewindmq.spark_replay.history.slo import slo
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.log import in_archive
from rewindmq.spark_replay.snapshots.verify import verify
from tests.support.kafka.cluster import KafkaCluster
from tests.support.spark.histories import START_MS, When
from tests.support.spark.topics import Writer, make_topics, write_gaps

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def topics(busy: Path, kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, "to-archive", 2)
    Writer(place).copy(busy)
    return place


def archived(topics: InKafka, directory: Path) -> InArchive:
    objects = open_objects(str(directory), make=True)
    TopicArchiver(objects, KafkaLogReader(topics.bootstrap, topics.prefix), settle_seconds=0).run(roll=True)
    return in_archive(objects.url)


@pytest.fixture(scope="module")
def archive(topics: InKafka, tmp_path_factory: pytest.TempPathFactory) -> InArchive:
    return archived(topics, tmp_path_factory.mktemp("archive"))


@pytest.mark.rare
def test_the_products_are_those_of_the_topics(spark: SparkSession, topics: InKafka, archive: InArchive) -> None:
    rows = history(spark, archive).collect()
    assert rows == history(spark, topics).collect()
    assert len(rows) > 1_000
    moments: tuple[When, ...] = ({"time": str(START_MS + 7_000)}, {"offsets": '{"queues-1": 200}'}, {})
    for when in moments:
        there, here = (state_at(spark, place, **when).rows.collect() for place in (topics, archive))
        assert there == here
    assert slo(spark, archive).collect() == slo(spark, topics).collect()
    message = next(f"{row.partition}:{row.message_id}" for row in rows if row.outcome == "acked")
    assert biography(spark, archive, message).collect() == biography(spark, topics, message).collect()


@pytest.mark.rare
def test_the_audit_and_verify_prove_the_objects(spark: SparkSession, topics: InKafka, archive: InArchive) -> None:
    ours, theirs = audit(spark, archive), audit(spark, topics)
    assert all(finding.ok for finding in ours), ours
    assert [each for each in ours if each.check != "chain"] == [each for each in theirs if each.check != "kept"]
    assert all(finding.ok for finding in verify(spark, archive))


@pytest.mark.parametrize("suffix", ["avro", "blocks"])
def test_a_changed_byte_is_found(spark: SparkSession, topics: InKafka, tmp_path: Path, suffix: str) -> None:
    archive = archived(topics, tmp_path)
    [path] = (tmp_path / "queues-1" / "segments").glob(f"*.{suffix}")
    stored = path.read_bytes()
    path.write_bytes(stored[:-100] + bytes([stored[-100] ^ 1]) + stored[-99:])
    harms = [finding for finding in audit(spark, archive) if not finding.ok]
    assert [(each.check, each.partition) for each in harms] == [("chain", "queues-1")]
    assert str(path.name) in harms[0].detail


@pytest.mark.rare
def test_the_views_show_records_with_the_times_of_the_log(
    spark: SparkSession, topics: InKafka, archive: InArchive
) -> None:
    kafka = spark.read.format("rewindmq").option("kafka.bootstrap.servers", topics.bootstrap)
    kafka = kafka.option("kafkaPrefix", topics.prefix)
    of_archive = spark.read.format("rewindmq").option("archive", archive.url)
    for view in ("events", "records"):
        there, here = (reader.option("view", view).load() for reader in (kafka, of_archive))
        assert here.columns == there.columns
        assert here.collect() == there.collect()


@pytest.mark.rare
def test_topics_that_were_made_again_with_fillers_are_read_alike(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    gapped = make_topics(kafka.bootstrap, "with-gaps", 1)
    write_gaps(gapped)
    writer = Writer(gapped)
    writer.value(gapped.metadata, 0, START_MS, b"no event")
    writer.flush()
    archive = archived(gapped, tmp_path)
    recover_topics(open_objects(archive.url), KafkaClients(gapped.bootstrap), "filled")
    filled = InKafka(gapped.bootstrap, "filled")
    rows = history(spark, gapped).collect()
    assert rows == history(spark, filled).collect() == history(spark, archive).collect()
    findings = [
        [each for each in audit(spark, place) if each.check not in ("kept", "chain")] for place in (gapped, filled)
    ]
    assert findings[0] == findings[1]


@pytest.mark.rare
def test_b27_below_kafkas_start_the_archive_is_read(
    spark: SparkSession, topics: InKafka, busy: Path, kafka: KafkaCluster, tmp_path: Path
) -> None:
    place = make_topics(kafka.bootstrap, "cut-below", 2)
    Writer(place).copy(busy)
    cut = replace(place, archive=archived(place, tmp_path).url)
    for partition in KafkaLogReader(place.bootstrap, place.prefix).queues:
        partition.delete_below(partition.next_offset // 2)
    rows = history(spark, cut).collect()
    assert rows == history(spark, topics).collect()
    moments: tuple[When, ...] = ({"time": str(START_MS + 7_000)}, {"offsets": '{"queues-1": 200}'})
    for when in moments:
        assert state_at(spark, cut, **when).rows.collect() == state_at(spark, topics, **when).rows.collect()
    assert slo(spark, cut).collect() == slo(spark, topics).collect()
    message = next(f"{row.partition}:{row.message_id}" for row in rows if row.outcome == "acked")
    assert biography(spark, cut, message).collect() == biography(spark, topics, message).collect()
    findings = audit(spark, cut)
    assert all(finding.ok for finding in findings), findings
    assert {"kept", "chain"} <= {finding.check for finding in findings}
    assert "in the archive alone" in next(each.detail for each in findings if each.partition == "queues-0")
    assert all(finding.ok for finding in verify(spark, cut))
    there, here = (
        spark.read.format("rewindmq")
        .options(**{"kafka.bootstrap.servers": each.bootstrap, "kafkaPrefix": each.prefix, "view": "events"})
        .options(**({"archive": each.archive} if each.archive else {}))
        .load()
        .collect()
        for each in (topics, cut)
    )
    assert there == here
    with pytest.raises(LogError, match="begins at offset"):
        history(spark, place).collect()


def test_b27_an_archive_that_lacks_what_kafka_lacks_is_a_finding(
    spark: SparkSession, busy: Path, kafka: KafkaCluster, tmp_path: Path
) -> None:
    place = make_topics(kafka.bootstrap, "cut-beyond", 2)
    Writer(place).copy(busy)
    cut = replace(place, archive=archived(place, tmp_path).url)
    Writer(place).copy(busy)
    partition = KafkaLogReader(place.bootstrap, place.prefix).queues[0]
    partition.delete_below(partition.next_offset - 1)
    log = cut.open()
    [harm, *others] = retention_findings(cut, log.queues)
    assert (harm.ok, harm.partition) == (False, "queues-0")
    assert "neither in Kafka nor in the archive" in harm.detail
    assert all(finding.ok or "retention" in finding.detail or "timestamp" in finding.detail for finding in others)


def test_b27_from_the_floor_on_a_trimmed_kafka_is_as_before(
    spark: SparkSession,
    topics: InKafka,
    busy: Path,
    kafka: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 100)
    place = make_topics(kafka.bootstrap, "trimmed", 2)
    Writer(place).copy(busy)
    trimmed = replace(place, archive=archived(place, tmp_path).url)
    before_ms = START_MS + 12_000
    wanted = TrimRequest(before_ms=before_ms, reason="a test", accept_findings=True)
    log, objects = KafkaLogReader(place.bootstrap, place.prefix), open_objects(str(tmp_path))
    floors = {each.partition: each.offset for each in trim_topics(log, objects, wanted)}
    assert all(floors.values())
    assert {each.name: each.start_offset for each in log.queues} == floors
    above = " or ".join(f"(partition = '{name}' and offset >= {floor})" for name, floor in floors.items())
    rows = history(spark, topics).where(above).collect()
    assert len(rows) > 100
    one = state_at(spark, topics, time=str(before_ms))
    for location in (trimmed, in_archive(objects.url)):
        assert history(spark, location).collect() == rows
        other = state_at(spark, location, time=str(before_ms))
        assert other.queues.collect() == one.queues.collect()
        assert other.messages.collect() == one.messages.collect()
        assert not [finding for finding in audit(spark, location) if not finding.ok]
        with pytest.raises(BelowFloor, match=r"begins at offset \d+, .* is before it; .* trimmed .*: a test"):
            state_at(spark, location, time=str(START_MS + 1_000))
