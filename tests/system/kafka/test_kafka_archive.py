"""The archive of a history in Kafka, and a Kafka that is lost: topics are made again from the archive (B-23)."""

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.keeping.archive import pack
from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.keeping.archive.topic_recovery import recover_topics
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.seals.in_topic import in_topics
from rewindmq.engine.log import chain
from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.schemas.metadata_events import VhostCreated
from rewindmq.schemas.single_object import HEADER
from tests.support.commands import require_failure
from tests.support.failpoints import armed
from tests.support.forked import run
from tests.support.kafka.archived_topics import archive, blocks, delete_before, log_of, raw
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import NEVER, Nodes
from tests.support.kafka.sealed_topics import START_MS, event
from tests.support.kafka.watched_clients import WatchedClients
from tests.support.pika_clients import connect
from tests.support.spark.topics import Writer, make_topics, write_gaps

pytestmark = pytest.mark.long


@pytest.fixture
def topics(kafka: KafkaCluster) -> InKafka:
    """A history with gaps, with a key and headers, and with values that are no events."""
    place = make_topics(kafka.bootstrap, f"archived-{uuid.uuid4().hex[:12]}", 1)
    write_gaps(place)
    writer = Writer(place)
    _, value = event(0, VhostCreated("/"))
    writer.value(place.metadata, 0, START_MS, value)
    writer.producer.produce(
        place.queues,
        HEADER + b"no record",
        "//ö".encode(),
        0,
        timestamp=START_MS + 500,
        headers=[("a", b"1"), ("b", None)],
    )
    writer.flush()
    return place


def digest(partition: Any) -> str:
    machine = Machine(partition.name)
    fold(machine, partition)
    return machine.digest()


def test_records_come_back_with_their_offsets_and_times(topics: InKafka, objects: Objects) -> None:
    [metadata, queues] = archive(objects, topics).partitions
    log, archived = log_of(topics), ArchivedLog(objects.url)
    assert (metadata.archived_end, queues.archived_end) == (1, log.queues[0].next_offset) == (1, 17)
    assert blocks(archived.queues[0]) == blocks(log.queues[0])
    assert blocks(archived.metadata) == blocks(log.metadata)
    assert digest(archived.queues[0]) == digest(log.queues[0])
    assert [error for name in ("metadata-0", "queues-0") for _, error in verify(objects, name)] == [None, None]
    for sealable in in_topics(log):
        *_, last = sealable.walk(0, None, first_chain(sealable.name))
        assert Manifest.load(objects, sealable.name).linked[1] == last.chain, "a seal holds for what is archived"


def test_runs_go_on_where_the_archive_ends(topics: InKafka, objects: Objects) -> None:
    archiver = TopicArchiver(objects, log_of(topics), settle_seconds=0, age_ms=10**15)
    assert [each.segments for each in archiver.run().partitions] == [0, 0], "it is little, and not old"
    writer = Writer(topics)
    for number in range(3):
        writer.value(topics.queues, 0, START_MS + 600 + number, b"more")
    writer.flush()
    assert [each.records for each in archiver.run(roll=True).partitions] == [1, 20]
    assert [each.segments for each in archiver.run(roll=True).partitions] == [0, 0]
    writer.value(topics.queues, 0, START_MS + 700, b"and more")
    writer.flush()
    [metadata, queues] = archive(objects, topics, roll=False, age_ms=0).partitions
    assert (metadata.records, queues.records) == (0, 1), "it is old enough"
    assert blocks(ArchivedLog(objects.url).queues[0]) == blocks(log_of(topics).queues[0])


def test_the_metadata_log_is_archived_before_a_stretch_of_queues(
    topics: InKafka, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[str] = []
    extend = Manifest.extend

    def noted(self: Manifest, entry: Any) -> Any:
        added.append(self.partition)
        return extend(self, entry)

    monkeypatch.setattr(Manifest, "extend", noted)
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 3)
    monkeypatch.setattr(chain, "RUN", 3)
    archive(objects, topics, roll=False, age_ms=10**15)
    assert added == ["metadata-0", "queues-0", "queues-0"], "large stretches only, and the metadata log whole"


def test_two_archivers_do_no_harm(topics: InKafka, objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 3)
    monkeypatch.setattr(chain, "RUN", 3)
    errors: list[Exception] = []

    def run_one() -> None:
        try:
            archive(objects, topics)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run_one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert blocks(ArchivedLog(objects.url).queues[0]) == blocks(log_of(topics).queues[0])
    assert [error for _, error in verify(objects, "queues-0") if error] == []


def test_another_archiver_that_cuts_elsewhere_is_followed(
    topics: InKafka, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = pack.Packer.finish

    def late(self: pack.Packer, *arguments: Any) -> Any:
        monkeypatch.setattr(pack.Packer, "finish", finish)
        with monkeypatch.context() as patch:
            patch.setattr(pack, "STRETCH_RECORDS", 2)
            patch.setattr(chain, "RUN", 2)
            archive(objects, topics, roll=False, age_ms=10**15)
        return finish(self, *arguments)

    monkeypatch.setattr(pack.Packer, "finish", late)
    archive(objects, topics)
    assert len(Manifest.load(objects, "queues-0").segments) > 2
    assert blocks(ArchivedLog(objects.url).queues[0]) == blocks(log_of(topics).queues[0])


def test_a_store_that_fails_at_any_call_loses_nothing(
    topics: InKafka, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same archiver goes on, as that of a node does; each time the store fails one call later."""
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 4)
    monkeypatch.setattr(chain, "RUN", 4)
    archiver = TopicArchiver(objects, log_of(topics), settle_seconds=0)
    calls, fails_at = 0, 0

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise NoAnswer("the store is away")
            return call(*arguments)

        return called

    for name in ("create", "get", "get_range", "list"):
        monkeypatch.setattr(Objects, name, failing(getattr(Objects, name)))
    failures = 0
    while failures == fails_at:
        fails_at, calls = fails_at + 1, 0
        try:
            archiver.run(roll=True)
        except NoAnswer:
            failures += 1
    archiver.close()
    fails_at = -1
    assert failures >= 5
    assert blocks(ArchivedLog(objects.url).queues[0]) == blocks(log_of(topics).queues[0])
    assert [error for name in ("metadata-0", "queues-0") for _, error in verify(objects, name) if error] == []


def test_topics_of_another_history_are_refused(topics: InKafka, objects: Objects, kafka: KafkaCluster) -> None:
    archive(objects, topics)
    other = make_topics(kafka.bootstrap, f"other-{uuid.uuid4().hex[:12]}", 1)
    with pytest.raises(LogError, match=r"other-\w+\.metadata is empty: start a node first"):
        archive(objects, other)
    _, value = event(1, VhostCreated("/"))
    writer = Writer(other)
    writer.value(other.metadata, 0, START_MS + 1, value)
    writer.flush()
    with pytest.raises(OtherHistory, match="the archive of another history"):
        archive(objects, other)
    same = make_topics(kafka.bootstrap, f"same-{uuid.uuid4().hex[:12]}", 1)
    writer = Writer(same)
    _, value = event(0, VhostCreated("/"))
    writer.value(same.metadata, 0, START_MS, value)
    writer.value(same.queues, 0, START_MS, b"other")
    writer.flush()
    with pytest.raises(OtherHistory, match="queues-0 ends at offset 1, and is archived up to 17"):
        archive(objects, same)
    for _ in range(19):
        writer.value(same.queues, 0, START_MS, b"other")
    writer.flush()
    with pytest.raises(OtherHistory, match="its record at offset 16 differs from the archived one"):
        archive(objects, same)


def test_records_that_are_gone_before_they_were_archived_are_told(topics: InKafka, objects: Objects) -> None:
    delete_before(topics.bootstrap, topics.queues, 5)
    with pytest.raises(LogError, match="queues-0 begins at offset 5, but is archived only up to 0"):
        archive(objects, topics)


def clients(place: InKafka) -> KafkaClients:
    return KafkaClients(place.bootstrap)


def test_b23_topics_are_made_again_from_the_archive(
    topics: InKafka, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 4)
    monkeypatch.setattr(chain, "RUN", 4)
    archive(objects, topics)
    prefix = f"again-{uuid.uuid4().hex[:12]}"
    told = recover_topics(objects, clients(topics), prefix)
    assert [(each.partition, each.next_offset, each.until_ms) for each in told] == [
        ("metadata-0", 1, START_MS),
        ("queues-0", 17, START_MS + 500),
    ]
    before, after = log_of(topics), KafkaLogReader(topics.bootstrap, prefix)
    for ours, theirs in zip((after.metadata, *after.queues), (before.metadata, *before.queues), strict=True):
        assert raw(ours) == raw(theirs)
        assert blocks(ours) == blocks(theirs)
        assert digest(ours) == digest(theirs) if ours.name != "metadata-0" else True
        assert ours.next_offset == theirs.next_offset
    assert after.queues[0].record(4, 5.0) is None, "the end of a transaction"
    [archived] = ArchivedLog(objects.url).queues
    for at_ms in range(START_MS - 1, START_MS + 502):
        assert after.queues[0].offset_at(at_ms) == archived.offset_at(at_ms)
    KafkaLog.open(topics.bootstrap, prefix).close()  # the topics are as nodes want them
    assert archive(objects, InKafka(topics.bootstrap, prefix)).partitions[1].segments == 0, "the archive goes on"
    with pytest.raises(LogError, match=f"the topic {prefix}.metadata exists already: recover to another prefix"):
        recover_topics(objects, clients(topics), prefix)


class Killed(Exception):
    """The recovery ends here."""


def killed() -> None:
    raise Killed


def recover_some(topics: InKafka, objects: Objects, prefix: str) -> None:
    """Append seven records."""
    count = iter(range(1_000))

    def some(producer: Any, _topic: str, _partition: int, key: bytes | None) -> bytes | None:
        if next(count) == 7:
            producer.flush()
            raise Killed
        return key

    recover_topics(objects, WatchedClients(topics.bootstrap, some), prefix)


def recover_unproven(topics: InKafka, objects: Objects, prefix: str) -> None:
    with armed("recovery.before_proof", killed):
        recover_topics(objects, clients(topics), prefix)


def recover_proven(topics: InKafka, objects: Objects, prefix: str) -> None:
    with armed("recovery.before_settings", killed):
        recover_topics(objects, clients(topics), prefix)


@pytest.mark.parametrize("recover_in_part", [recover_some, recover_unproven, recover_proven])
def test_a_recovery_that_was_killed_goes_on(
    topics: InKafka, objects: Objects, recover_in_part: Callable[[InKafka, Objects, str], None]
) -> None:
    archive(objects, topics)
    prefix = f"again-{uuid.uuid4().hex[:12]}"
    with pytest.raises(Killed):
        recover_in_part(topics, objects, prefix)
    with pytest.raises(LogError, match=r"message\.timestamp\.type=CreateTime"):
        KafkaLog.open(topics.bootstrap, prefix)
    recover_topics(objects, clients(topics), prefix)
    after = KafkaLogReader(topics.bootstrap, prefix)
    assert raw(after.queues[0]) == raw(log_of(topics).queues[0])
    KafkaLog.open(topics.bootstrap, prefix).close()


def test_a_recovery_into_which_another_program_writes_is_found(topics: InKafka, objects: Objects) -> None:
    archive(objects, topics)
    prefix = f"again-{uuid.uuid4().hex[:12]}"

    def write() -> None:
        writer = Writer(InKafka(topics.bootstrap, prefix))
        writer.value(f"{prefix}.queues", 0, START_MS, b"from elsewhere")
        writer.flush()

    with (
        armed("recovery.before_proof", write),
        pytest.raises(LogError, match="it ends at offset 18, and is archived up to 17"),
    ):
        recover_topics(objects, clients(topics), prefix)
    with pytest.raises(LogError, match="has offsets 0 to 18, and 17 are archived"):
        recover_topics(objects, clients(topics), prefix)


def test_each_archive_is_recovered_to_its_own_kind(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    archive(objects, topics)
    arguments = ("recover", "--archive", objects.url)
    message = f"Error: {objects.url}: the archive of a log in Kafka: recover it to a Kafka, with --kafka"
    require_failure(run(*arguments, "--data", str(tmp_path / "new")), 65, message)
    require_failure(run(*arguments), 64, "Error: say where to recover to: --data DIR, or --kafka HOST:PORT")
    both = (*arguments, "--data", str(tmp_path / "new"), "--kafka", topics.bootstrap)
    require_failure(run(*both), 64, "Error: --data and --kafka: a history is recovered to one of both")


def test_a_kafka_is_lost_and_nodes_go_on_from_the_archive(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Ids and queues are as they were, less what had not been archived, which is said in numbers."""
    url = str(tmp_path / "archive")
    with Nodes(tmp_path / "before", kafka, timeout=NEVER) as nodes:
        north = nodes.start("north")
        with connect(north) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for queue in ("orders", "bills", "late"):
                channel.queue_declare(queue, durable=True)
                for number in range(30):
                    channel.basic_publish("", queue, f"{queue} {number}".encode())
            for _ in range(10):
                channel.basic_get("orders", auto_ack=True)
        digests = nodes.digests()
        arguments = ("--kafka", kafka.bootstrap, "--kafka-prefix", nodes.prefix)
        done = run("archive", *arguments, "--data", str(tmp_path / "before" / "north"), "--to", url, "--roll")
        assert done.returncode == 0, done.stderr
        with connect(north) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", "orders", b"not archived")
        status = run("archive_status", "--archive", url, *arguments, "--format", "json")
        assert status.returncode == 0, status.stderr
        rows = {row["partition"]: row for row in json.loads(status.stdout)}
        assert sum(row["lag"] for row in rows.values()) > 0
        assert rows["queues-0"]["snapshots"] >= 1, "the node's snapshots are archived, too"
        before = {each.name: blocks(each) for each in KafkaLogReader(kafka.bootstrap, nodes.prefix).queues}
        nodes.kill("north")

    again = f"{nodes.prefix}-again"
    arguments = ("--kafka", kafka.bootstrap, "--kafka-prefix", again)
    done = run("recover", "--archive", url, *arguments, "--formatter", "json")
    assert done.returncode == 0, done.stderr
    told = {row["partition"]: row for row in json.loads(done.stdout)}
    assert {name: row["next_offset"] for name, row in told.items()} == {
        name: row["archived_end"] for name, row in rows.items()
    }
    assert told["queues-0"]["archived_until"] == rows["queues-0"]["archived_until"]
    for partition in KafkaLogReader(kafka.bootstrap, again).queues:
        end = told[partition.name]["next_offset"]
        assert blocks(partition) == [row for row in before[partition.name] if row[0] < end]
        machine = Machine(partition.name)
        fold(machine, partition)
        assert machine.next_offset == end

    with Nodes(tmp_path / "after", kafka, again) as nodes:
        south = nodes.start("south")
        with connect(south) as connection:
            channel = connection.channel()
            for queue, first in (("orders", 10), ("bills", 0), ("late", 0)):
                found = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(30 - first)]
                assert found == [f"{queue} {number}".encode() for number in range(first, 30)]
                assert channel.basic_get(queue)[0] is None
        assert nodes.digests() != digests
        verified = run("verify", "--data", str(tmp_path / "after" / "south"), *arguments)
        done = run("archive", *arguments, "--to", url, "--roll")
        assert done.returncode == 0, "the archive goes on: " + done.stderr
        nodes.stop("south")
        verified = run("verify", "--data", str(tmp_path / "after" / "south"), *arguments)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    assert run("archive_verify", "--archive", url).returncode == 0
