"""Kafka's own retention beside an archive (B-41): a node says when the archive falls behind it, and switches it off
before history goes. What went all the same is told in numbers.
"""

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rewindmq.engine.keeping.archive import pack
from rewindmq.engine.keeping.archive.directory_note import NODE
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.topic_archiver import LostRecords
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.retention import RetentionWatch
from rewindmq.engine.keeping.topic_source import TopicSource
from rewindmq.engine.log import chain
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.kafka.topics import Retention
from tests.support.archiving_brokers import archive_item
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.http_clients import api_client
from tests.support.kafka.archived_topics import archive, delete_before, log_of, write_history
from tests.support.kafka.archiving_nodes import FloorNodes, publish, wait_for_archive
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import NEVER
from tests.support.kafka.sealed_topics import START_MS
from tests.support.kafka.topic_settings import change_setting
from tests.support.running import RunningBroker
from tests.support.spark.topics import Writer, make_topics

pytestmark = pytest.mark.long

HOUR_MS = 3_600_000


@pytest.fixture
def topics(kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, f"retention-{uuid.uuid4().hex[:12]}", 2)
    write_history(place)
    return place


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of ten records."""
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 10)
    monkeypatch.setattr(chain, "RUN", 10)


def manifests(objects: Objects) -> dict[str, Manifest]:
    return {name: Manifest.load(objects, name) for name in ("metadata-0", "queues-0")}


def said(watch: RetentionWatch, objects: Objects) -> str | None:
    """Look at the manifests, and return the problem that the watch reports; None if there is none."""
    watch.look(manifests(objects))
    return watch.problem


def append(place: InKafka, count: int, partition: int = 0) -> None:
    """Append records that are a thousand bytes long, as of a second behind the history."""
    writer = Writer(place)
    for number in range(count):
        writer.value(place.queues, partition, START_MS + 212_000 + number, b"x" * 1_000)
    writer.flush()


def at(first_ms: int, hours: float) -> Callable[[], int]:
    """A wall clock so many hours behind a moment."""
    return lambda: first_ms + int(hours * HOUR_MS)


def test_b41_nothing_is_said_without_a_retention_or_while_all_is_archived(
    topics: InKafka, objects: Objects, kafka: KafkaCluster
) -> None:
    archive(objects, topics)
    watch = RetentionWatch(log_of(topics), at(START_MS, 10**6))
    assert said(watch, objects) is None
    there = watch.topics["queues-0"]
    assert (there.start_offset, there.retention_used, there.lost) == (0, None, None)
    assert there.size_bytes == sum(each.size_bytes for each in Manifest.load(objects, "queues-0").segments)
    delete_before(topics.bootstrap, topics.queues, 200)
    change_setting(kafka, topics.queues, "retention.ms", str(10 * HOUR_MS))
    assert said(watch, objects) is None
    there = watch.topics["queues-0"]
    assert (there.start_offset, there.retention_used, there.lost) == (200, 0.0, None)
    assert 0 < there.size_bytes < 2_000


@pytest.mark.parametrize("limit", ["retention.ms", "retention.bytes"])
def test_b41_a_retention_is_switched_off_before_it_is_used_up(
    topics: InKafka, objects: Objects, kafka: KafkaCluster, limit: str
) -> None:
    archive(objects, topics)
    append(topics, 100)
    first_ms = START_MS + 212_000
    value = {"retention.ms": 10 * HOUR_MS, "retention.bytes": 30_000}[limit]  # of 200 bytes a record, by the archive
    change_setting(kafka, topics.queues, limit, str(value))
    hours = 4.9
    watch = RetentionWatch(log_of(topics), lambda: at(first_ms, hours)())
    if limit == "retention.ms":
        assert said(watch, objects) is None
        hours = 5.1
        assert "have used half of the retention" in (said(watch, objects) or "")
        used = watch.topics["queues-0"].retention_used
        assert used is not None
        assert 0.5 < used < 0.52
        assert log_of(topics).topics.retention(topics.queues) == Retention(ms=value)
        hours = 7.6
    else:
        append(topics, 200)
    problem = said(watch, objects) or ""
    assert log_of(topics).topics.retention(topics.queues) == Retention()
    assert f"({limit}={value}) was switched off" in problem, problem
    assert f"--add-config {limit}={value}" in problem, problem
    archive(objects, topics)
    assert said(watch, objects), "it has still to be switched on"
    change_setting(kafka, topics.queues, limit, str(value))
    assert said(watch, objects) is None
    assert log_of(topics).topics.retention(topics.queues).limits


def test_b41_a_retention_of_the_metadata_topic_is_switched_off_at_once(
    topics: InKafka, objects: Objects, kafka: KafkaCluster
) -> None:
    archive(objects, topics)
    change_setting(kafka, topics.metadata, "retention.ms", str(10 * HOUR_MS))
    watch = RetentionWatch(log_of(topics))
    assert "must stay whole: its retention.ms=36000000 was switched off" in (said(watch, objects) or "")
    assert log_of(topics).topics.retention(topics.metadata) == Retention()


def source(place: InKafka, objects: Objects, tmp_path: Path) -> TopicSource:
    """Return the source from which a node's archiver process works, with the two queue partitions owned by the node."""
    (tmp_path / NODE).touch()
    made = TopicSource(InKafka(place.bootstrap, place.prefix), 0, tmp_path, objects)
    made.owned(frozenset({"queues-0", "queues-1"}))
    return made


def passed(archiving: TopicSource) -> None:
    archiving.archive(lambda: False, lambda done, all: None)


def test_b41_while_the_archive_is_away_the_retention_is_watched(
    topics: InKafka, objects: Objects, kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archiving = source(topics, objects, tmp_path)
    passed(archiving)
    append(topics, 10)
    change_setting(kafka, topics.queues, "retention.ms", str(10 * HOUR_MS))  # the records are years old

    def away(self: Objects, *arguments: Any) -> Any:
        raise NoAnswer("the store is away")

    with monkeypatch.context() as patch:
        for name in ("get", "get_range", "list", "create"):
            patch.setattr(Objects, name, away)
        with pytest.raises(NoAnswer, match="the store is away"):
            passed(archiving)
    assert archiving.retention is not None
    assert "was switched off" in archiving.retention
    assert log_of(topics).topics.retention(topics.queues) == Retention()


def test_b41_an_error_says_what_to_do_about_a_retention_that_stays_on(
    topics: InKafka, objects: Objects, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(objects, topics)
    append(topics, 10)
    change_setting(kafka, topics.queues, "retention.ms", str(10 * HOUR_MS))
    log = log_of(topics)

    def refused(name: str) -> None:
        raise LogError(f"Kafka: the settings of {name}: Topic authorization failed")

    monkeypatch.setattr(log.topics, "keep_all", refused)
    watch = RetentionWatch(log)
    with pytest.raises(LogError, match=r"authorization failed: switch it off: kafka-configs.sh .*retention.ms=-1"):
        watch.look(manifests(objects))


def test_b41_what_kafka_removed_is_counted_and_the_rest_is_archived(
    topics: InKafka, objects: Objects, tmp_path: Path
) -> None:
    archiving = source(topics, objects, tmp_path)
    passed(archiving)
    end = Manifest.load(objects, "queues-0").end
    append(topics, 30)
    append(topics, 30, partition=1)
    delete_before(topics.bootstrap, topics.queues, end + 7)
    with pytest.raises(LostRecords, match=rf"begins at offset {end + 7}, but is archived only up to {end}: 7 offsets"):
        passed(archiving)
    assert Manifest.load(objects, "queues-1").end == 30
    assert archiving.retention == (
        f"history is lost: Kafka removed unarchived records: queues-0: 7 offsets, {end} to {end + 6}"
    )
    [lost] = [each.in_topic.lost for each in archiving.known() if each.in_topic is not None and each.in_topic.lost]
    assert lost == (end, end + 7)
    again = source(topics, objects, tmp_path)
    with pytest.raises(LostRecords):
        passed(again)
    assert again.retention == archiving.retention, "a process that begins anew says the same"


def metrics(node: RunningBroker) -> str:
    return httpx2.get(f"{node.http_url}/metrics", auth=("guest", "guest"), trust_env=False).text


def test_b41_nodes_tell_it_by_status_metrics_and_log(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Of a real node: sizes by tier, a retention that is too short, one that is switched off, and a hole."""
    with FloorNodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north = nodes.start("north")
        publish(north, range(30))
        wait_for_archive(nodes)
        until(lambda: 'rewindmq_history_bytes{tier="kafka"}' in metrics(north), "the size in Kafka is not told")
        assert "rewindmq_disk_full_in_days" not in metrics(north)
        assert 'rewindmq_history_lost_offsets{partition="queues-0"} 0' in metrics(north)
        status = run("status", REWINDMQ_URL=north.http_url).stdout
        assert "of this node's partitions" in status, status
        topic = f"{nodes.prefix}.queues"
        change_setting(kafka, topic, "retention.ms", "86400000")
        until(lambda: 'rewindmq_archive_retention_used{partition="queues-0"}' in metrics(north), "no use is told")
        shutil.move(nodes.url, tmp_path / "away")
        Path(nodes.url).write_text("no directory")
        publish(north, range(5))
        change_setting(kafka, topic, "retention.ms", "4000")
        switched_off = "(retention.ms=4000) was switched off"  # before it is, half of it may be said to be used
        until(lambda: switched_off in (archive_item(north)["retention"] or ""), "the retention is not switched off")
        assert "Kafka's retention: " in "".join(north.errors)
        assert "Kafka's retention: " in run("status", REWINDMQ_URL=north.http_url).stdout
        Path(nodes.url).unlink()
        shutil.move(tmp_path / "away", nodes.url)
        wait_for_archive(nodes)
        nodes.stop("north")
        change_setting(kafka, topic, "retention.ms", "4000")
        with pytest.raises(AssertionError, match=r"retention.ms=4000, so Kafka would remove .* retention.ms=20000"):
            nodes.start("south")
        change_setting(kafka, topic, "retention.ms", "-1")
        south = nodes.start("south")
        shutil.move(nodes.url, tmp_path / "away")
        Path(nodes.url).write_text("no directory")
        publish(south, range(20))
        nodes.delete_archived(3, str(tmp_path / "away"))
        Path(nodes.url).unlink()
        shutil.move(tmp_path / "away", nodes.url)
        until(lambda: len(archive_item(south)["lost"]) == 2, "the hole is not told")
        assert 'rewindmq_history_lost_offsets{partition="queues-1"} 3' in metrics(south)
        options = (*nodes.options_of_tools(), "--archive", nodes.url, "--format", "json")
        told = run("archive_status", *options)
        assert [row["lost"] for row in json.loads(told.stdout)] == [0, 3, 3], told.stderr
        with api_client(south) as client:
            assert client.get("/overview").json()["history"]["kafka_bytes"] > 0
