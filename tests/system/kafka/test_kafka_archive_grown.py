"""A history in Kafka that is archived gets more partitions: nodes with --archive, a torn archive, an old archiver."""

import json
import uuid
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.keeping.archive.identity import read_identity
from rewindmq.engine.keeping.archive.manifest import OtherHistory
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.partial_moves import torn_at
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.keeping.archive.topic_recovery import recover_topics
from rewindmq.engine.keeping.in_topics import TopicsHistory
from rewindmq.engine.keeping.local_space import SpaceLimits
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.seals.in_topic import in_topics
from rewindmq.engine.keeping.seals.sealer import check, seal
from rewindmq.engine.keeping.topic_space import TopicSpace
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.engine.log.kafka.topics import KafkaTopics
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import events_of, fold
from rewindmq.projections.rewind import format_time
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.events import DeadLettersForwarded
from tests.support.archiving_brokers import archive_item
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.kafka.archived_topics import archive, blocks, log_of, raw
from tests.support.kafka.archiving_nodes import ArchivingNodes, require_equal, wait_for_archive
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import NEVER, Nodes, ask_repartition, repartition_state
from tests.support.kafka.sealed_topics import KEY, KEYS
from tests.support.kafka.watched_clients import WatchedClients
from tests.support.moved_queue import AFTER, BEFORE, QUEUE, Moved, write_moved
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker
from tests.support.spark.topics import Writer, make_topics
from tests.support.topic_archiving import archive_as_topics
from tests.support.torn_letters import LetterRecorder, cut, dies

pytestmark = pytest.mark.long

NAMES = [f"orders{number}" for number in range(12)]
MOVING = [name for name in NAMES if partition_of("/", name, BEFORE) != partition_of("/", name, AFTER)]
MESSAGES = 20


def publish(node: RunningBroker, numbers: range) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in NAMES:
            channel.queue_declare(name, durable=True)
            for number in numbers:
                channel.basic_publish("", name, f"{name} {number}".encode())


def drained(node: RunningBroker) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    with connect(node) as connection:
        channel = connection.channel()
        for name in NAMES:
            found[name] = []
            while (got := channel.basic_get(name, auto_ack=True))[0] is not None:
                found[name].append(got[2])
    return found


@pytest.mark.rare
def test_nodes_with_an_archive_are_repartitioned_and_recovered(kafka: KafkaCluster, tmp_path: Path) -> None:
    with ArchivingNodes(tmp_path / "before", kafka, timeout=NEVER) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        publish(north, range(MESSAGES))
        ask_repartition(north, AFTER)
        nodes.stop("north")
        north = nodes.start("north")
        until(lambda: len(ArchivedLog(nodes.url).queues) == AFTER, "the archive does not grow")
        publish(south, range(MESSAGES, 2 * MESSAGES))
        wait_for_archive(nodes, BEFORE)  # the duty of the new ones may be south's, which does not know them yet
        assert archive_item(south)["error"] is None
        nodes.stop("south")
        south = nodes.start("south")
        until(lambda: repartition_state(north)["phase"] == "done", "the queues do not move")
        assert repartition_state(north)["moved"] == len(MOVING) > 3
        publish(north, range(2 * MESSAGES, 3 * MESSAGES))
        wait_for_archive(nodes)
        require_equal(nodes)
        for node in (north, south):
            assert archive_item(node)["error"] is None
        nodes.kill("north")
        nodes.kill("south")

    arguments = ("--kafka", kafka.bootstrap, "--kafka-prefix", f"{nodes.prefix}-again")
    done = run("recover", "--archive", nodes.url, *arguments, "--formatter", "json")
    assert (done.returncode, done.stderr) == (0, ""), "it is whole"
    assert len(json.loads(done.stdout)) == 1 + AFTER
    with Nodes(tmp_path / "after", kafka, f"{nodes.prefix}-again") as again:
        west = again.start("west")
        assert repartition_state(west)["placed_by"] == AFTER
        assert drained(west) == {
            name: [f"{name} {number}".encode() for number in range(3 * MESSAGES)] for name in NAMES
        }
        done = run("archive", *arguments, "--to", nodes.url, "--roll")
        assert done.returncode == 0, done.stderr
        again.digests()


@pytest.fixture
def moved(tmp_path: Path) -> Moved:
    return write_moved(tmp_path / "data")


def keys_of(objects: Objects) -> list[str]:
    return [key for name in ("metadata-0", *(f"queues-{n}" for n in range(AFTER))) for key in objects.list(name)]


def partitions_of(objects: Objects) -> int:
    identity = read_identity(objects)
    assert identity is not None
    return identity.queue_partitions


@pytest.fixture
def torn(kafka: KafkaCluster, moved: Moved, objects: Objects, tmp_path: Path) -> InKafka:
    """Topics whose archive has that messages have gone, and not that they have come: an archiver that was started
    before the partitions came has archived the first two."""
    place = make_topics(kafka.bootstrap, f"grown-{uuid.uuid4().hex[:12]}", BEFORE)
    writer = Writer(place)
    writer.copy(moved.data, until_ms=moved.before_ms)
    old = TopicArchiver(objects, log_of(place), partitions=frozenset(), settle_seconds=0)
    old.run(roll=True)
    before = TopicSpace(log_of(place), objects, tmp_path / "before")
    KafkaTopics(KafkaClients(place.bootstrap), place.prefix).add_partitions(AFTER, only_ask=False)
    trimming = TopicsHistory(log_of(place), objects, lambda: 0)
    archive(objects, place, partitions=frozenset())
    assert partitions_of(objects) == len(trimming.names) == BEFORE, "no record is in a new partition"
    copied, writer = writer.copied, Writer(place)  # which knows the new partitions
    writer.copied = copied
    writer.copy(moved.data, until_ms=moved.during_ms - 1)
    keys = keys_of(objects)
    at = ("--kafka", place.bootstrap, "--kafka-prefix", place.prefix)
    status = run("archive_status", "--archive", objects.url, *at, "--format", "json")
    assert {row["partition"]: row["lag"] > 0 for row in json.loads(status.stdout)}[moved.now]
    assert keys_of(objects) == keys, "to look changes nothing"
    later = {f"queues-{number}" for number in range(BEFORE, AFTER)}
    archive(objects, place, partitions=later)
    trimming.look()
    assert partitions_of(objects) == len(trimming.names) == AFTER
    after = TopicSpace(log_of(place), objects, tmp_path / "after")
    for space, found in ((before, set()), (after, later)):  # with --keep-local: as nodes that own the new ones
        assert {each.partition for each in space.keep(SpaceLimits(size_bytes=10**12), later).partitions} == found
    writer.copy(moved.data, until_ms=moved.during_ms)
    for sealable in in_topics(log_of(place)):
        list(seal(sealable, KEY, 1))
    old.partitions = None
    assert {each.partition for each in old.run(roll=True).partitions} == {"metadata-0", "queues-0", "queues-1"}
    old.close()
    return place


def test_a_torn_archive_gives_topics_up_to_the_time_when_it_was_whole(
    torn: InKafka, moved: Moved, objects: Objects, tmp_path: Path
) -> None:
    prefix, told = f"again-{uuid.uuid4().hex[:12]}", list[str]()
    rows = recover_topics(objects, KafkaClients(torn.bootstrap), prefix, tell=told.append)
    [line] = told
    assert f"messages of queue '{QUEUE}' have moved there later" in line
    elsewhere = f"Archive them to another URL: {objects.url} continues differently"
    assert line.endswith(f"up to which everything is whole. {elsewhere}")
    assert f"the topics end at {format_time(moved.during_ms - 1)}" in line

    before, after = log_of(torn), KafkaLogReader(torn.bootstrap, prefix)
    archived = {each.name: each.next_offset for each in ArchivedLog(objects.url).partitions}
    ends = {row.partition: row.next_offset for row in rows}
    assert {name for name, end in ends.items() if end < archived[name]} == {moved.old}, "no other one is divided"
    for ours, theirs in zip((after.metadata, *after.queues), (before.metadata, *before.queues), strict=True):
        assert ours.next_offset == ends[ours.name]
        assert raw(ours) == [each for each in raw(theirs) if each.offset < ends[ours.name]]
    told_ms = {row.partition: row.until_ms for row in rows}
    assert told_ms == {each.name: max(row[1] for row in blocks(each)) for each in (after.metadata, *after.queues)}
    machine = Machine(moved.old)
    fold(machine, after.queues[moved.source])
    queue = machine.queue("/", QUEUE)
    assert queue is not None
    assert queue.messages_ready == 2, "no message is lost"
    harms = [each.harm for each in check(in_topics(after), KEYS, ())]
    assert {None if each is None else each.partition for each in harms} == {None, moved.old, "queues-2", "queues-3"}
    assert {each.what[:20] for each in harms if each is not None} == {"there is no seal of "}, "none seals more"

    keys = keys_of(objects)
    recovered = InKafka(torn.bootstrap, prefix)
    why = f"{moved.old} ends at offset {ends[moved.old]}, and is archived up to {archived[moved.old]}: archive to"
    for partitions in (None, {moved.now}):
        with pytest.raises(OtherHistory, match=why):
            archive(objects, recovered, partitions=partitions)
    with pytest.raises(OtherHistory, match=why):
        TopicsHistory(KafkaLogReader(torn.bootstrap, prefix), objects, lambda: 0)
    writer = Writer(recovered)
    for _ in range(9):
        writer.value(recovered.queues, moved.source, moved.end_ms, b"of another history")
    writer.value(recovered.queues, moved.target, moved.end_ms, b"of another history")
    writer.flush()
    with pytest.raises(OtherHistory, match="differs from the archived one: archive to another URL"):
        archive(objects, recovered, partitions={moved.now})
    assert keys_of(objects) == keys

    other = open_objects(str(tmp_path / "other"), make=True)
    archive(other, recovered)
    log = ArchivedLog(other.url)
    assert (log.identity.begun_with, log.identity.queue_partitions) == (BEFORE, AFTER), "it was begun later"
    assert torn_at(log.metadata, log.queues, BEFORE) is None


def test_a_divided_stretch_is_proven(torn: InKafka, moved: Moved, objects: Objects) -> None:
    appended = count()  # records and fillers, so offsets, of the partition

    def other(_: Any, topic: str, partition: int, key: bytes | None) -> bytes | None:
        wrong = topic.endswith(".queues") and partition == moved.source and next(appended) == 5
        return b"other" if wrong else key

    with pytest.raises(LogError, match="its records from offset 0 on are not those of the archive"):
        recover_topics(objects, WatchedClients(torn.bootstrap, other), f"again-{uuid.uuid4().hex[:12]}")


def test_a_recovered_source_passes_over_numbers_of_letters(kafka: KafkaCluster, tmp_path: Path) -> None:
    history = LetterRecorder(tmp_path / "data")
    name, target = history.declare_both(), history.partition("dead")
    source = history.partition(name)
    died, _ = dies(history, name), dies(history, name)
    history.close()
    archive_as_topics(tmp_path / "data", str(tmp_path / "whole"), 2, {f"queues-{source}": 0})
    counts = {each.name: len(each.segments) for each in ArchivedLog(str(tmp_path / "whole")).partitions}
    cut(tmp_path / "whole", tmp_path / "cut", counts | {f"queues-{source}": died})
    prefix, told = f"again-{uuid.uuid4().hex[:12]}", list[str]()
    rows = recover_topics(open_objects(str(tmp_path / "cut")), KafkaClients(kafka.bootstrap), prefix, tell=told.append)
    [line] = told
    assert f"messages of queue '{name}' died later: they are in that queue again" in line
    log = KafkaLogReader(kafka.bootstrap, prefix)
    assert {row.partition: row.next_offset for row in rows}[f"queues-{source}"] == died
    [(_, time_ms, _, event)] = events_of(log.queues[source], died)
    last_ms = [time_ms for _, time_ms, _, _ in events_of(log.queues[source])][-2]
    assert isinstance(event, DeadLettersForwarded)
    assert (event.sequence, event.taken, time_ms) == (0, 2, last_ms)
    assert log.queues[target].next_offset == ArchivedLog(str(tmp_path / "cut")).queues[target].next_offset
