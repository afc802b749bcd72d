"""Archived records leave a real Kafka, and readers find each of them below its start (B-27)."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.keeping import topic_space
from rewindmq.engine.keeping.archive import pack
from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.directory_note import NODE, archive_of
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects
from rewindmq.engine.keeping.archive.state_files import archive_file
from rewindmq.engine.keeping.archive.topic_archiver import require_same
from rewindmq.engine.keeping.archive.unpack import CorruptObject
from rewindmq.engine.keeping.archive_states import begin_with_archive
from rewindmq.engine.keeping.in_topics import require_archived
from rewindmq.engine.keeping.local_space import SpaceLimits
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.topic_space import TopicSpace
from rewindmq.engine.log import chain
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.reader import KafkaPartition
from rewindmq.projections.replay import groups_of, recover
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.projector import live_ids
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.events import Published
from rewindmq.schemas.service_records import SharedDecoder
from tests.support.kafka.archived_topics import (
    OWNED,
    Ticking,
    archive,
    blocks,
    delete_before,
    log_of,
    start_in_kafka,
    tiered,
    write_history,
)
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sealed_topics import START_MS
from tests.support.spark.topics import Writer, make_topics

pytestmark = pytest.mark.long

FLOOR = 210  # of 212 offsets: the last stretch stays
ALL = SpaceLimits(size_bytes=10)  # everything that may go


@pytest.fixture
def topics(kafka: KafkaCluster) -> InKafka:
    """Messages, a second apart: the first ten are unacked for ever, each later one is acked."""
    place = make_topics(kafka.bootstrap, f"floor-{uuid.uuid4().hex[:12]}", 1)
    write_history(place)
    return place


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of ten records."""
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 10)
    monkeypatch.setattr(chain, "RUN", 10)


def space(place: InKafka, objects: Objects, tmp_path: Path, clock: Callable[[], float] | None = None) -> TopicSpace:
    (tmp_path / "node").mkdir(exist_ok=True)
    return TopicSpace(log_of(place), objects, tmp_path / "node", clock or Ticking())


def test_b27_every_question_is_answered_as_before(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    archive(objects, topics)
    [whole] = log_of(topics).queues
    end = whole.next_offset
    rows = blocks(whole)
    times = range(START_MS - 500, START_MS + 1_000 * end + 500, 500)
    offsets = {at_ms: whole.offset_at(at_ms) for at_ms in times}
    digests = {at: state_at(whole, None, At(offset=at)).digest() for at in range(0, end + 1, 7)}
    [report] = space(topics, objects, tmp_path).keep(ALL, OWNED).partitions
    assert start_in_kafka(topics) == report.start_offset == FLOOR
    assert (report.segments, report.why) == (21, "")
    partition = tiered(topics, objects)
    assert (partition.start_offset, partition.next_offset) == (0, end)
    assert blocks(partition) == rows
    assert {at_ms: partition.offset_at(at_ms) for at_ms in times} == offsets
    assert {at: state_at(partition, None, At(offset=at)).digest() for at in digests} == digests
    ranges = [(1, 4), (90, 95), (205, 211), (211, 212)]
    found = {
        block.first_offset + at: record
        for block in partition.read_ranges(ranges)
        for at, record in enumerate(block.records)
        if any(first <= block.first_offset + at < behind for first, behind in ranges)
    }
    assert found == {at: value for at, _, value in rows if any(first <= at < behind for first, behind in ranges)}
    assert partition.record(3, 5.0) == rows[3][2]
    assert partition.record(211, 5.0) == rows[211][2]
    [base] = Manifest.load(objects, "queues-0").bases
    assert base.offset == FLOOR
    assert [error for _, error in verify(objects, "queues-0") if error] == []
    assert list((tmp_path / "node" / "bases" / "queues-0").iterdir()) == [], "the archive has the base"


def removed_late(topics: InKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reader learns where the partition begins just before the offsets below 150 are removed."""
    asked = KafkaClients.watermarks

    def late(self: KafkaClients, topic: str, number: int) -> tuple[int, int]:
        found = asked(self, topic, number)
        if (topic, number) == (topics.queues, 0):
            monkeypatch.setattr(KafkaClients, "watermarks", asked)
            delete_before(topics.bootstrap, topics.queues, 150)
        return found

    monkeypatch.setattr(KafkaClients, "watermarks", late)


def test_b27_a_reader_of_kafka_alone_goes_on_behind_what_is_removed(
    topics: InKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a node does that starts beside the removal: it asks whether the archive is the one of its topics."""
    [partition] = log_of(topics).queues
    rows = blocks(partition)
    removed_late(topics, monkeypatch)
    assert blocks(partition) == rows[150:]


def test_b27_checks_go_on_behind_what_is_removed_meanwhile(topics: InKafka, objects: Objects) -> None:
    archive(objects, topics)
    manifest, [partition] = Manifest.load(objects, "queues-0"), log_of(topics).queues
    delete_before(topics.bootstrap, topics.queues, 150)
    require_archived(partition, manifest, 0, manifest.end)
    delete_before(topics.bootstrap, topics.queues, manifest.end)
    require_same(partition, manifest, 0)


def test_b27_a_reader_that_the_removal_overtakes_reads_on_in_the_archive(
    topics: InKafka, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(objects, topics)
    partition = tiered(topics, objects)
    rows = blocks(partition)
    removed_late(topics, monkeypatch)
    assert blocks(partition) == rows
    assert start_in_kafka(topics) == 150
    reading = partition.read_ranges([(151, 152), (160, 161), (205, 206), (207, 208)])
    first = next(reading)
    delete_before(topics.bootstrap, topics.queues, 206)
    found = {block.first_offset + at for block in (first, *reading) for at in range(len(block.records))}
    assert {151, 160, 205, 207} <= found


def test_b27_while_the_archive_is_away_what_kafka_has_is_read(
    topics: InKafka, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(objects, topics)
    rows = blocks(log_of(topics).queues[0])
    space(topics, objects, tmp_path).keep(ALL, OWNED)

    def away(self: Objects, *arguments: Any) -> Any:
        raise NoAnswer("the store is away")

    for name in ("get", "get_range", "list"):
        monkeypatch.setattr(Objects, name, away)
    partition = tiered(topics, objects)
    assert [record for _, records, _ in groups_of(partition, FLOOR) for record in records] == [
        row[2] for row in rows[FLOOR:]
    ]
    assert partition.offset_at(START_MS + 1_000 * 210) == 211
    assert partition.record(211, 5.0) == rows[211][2]
    for question in (
        lambda: list(partition.read(FLOOR - 1)),
        lambda: partition.offset_at(START_MS),
        lambda: partition.record(3, 5.0),
    ):
        with pytest.raises(NoAnswer, match="the store is away"):
            question()


def test_b27_only_what_the_archive_has_leaves_kafka(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    """Nothing goes that is not archived, nor one portion more."""
    kept = space(topics, objects, tmp_path)
    with pytest.raises(ArchiveError, match="there is no archive here"):
        kept.keep(ALL, OWNED)
    assert start_in_kafka(topics) == 0
    archive(objects, topics, roll=False, age_ms=10**15)
    archived = Manifest.load(objects, "queues-0")
    delivered = archived.end
    assert kept.keep(ALL, frozenset()).partitions == []
    assert start_in_kafka(topics) == 0, "another node owns it"
    [report] = kept.keep(ALL, OWNED).partitions
    assert start_in_kafka(topics) == report.start_offset == archived.segments[-1].base_offset < delivered
    assert kept.keep(ALL, OWNED).freed_bytes == 0
    writer = Writer(topics)
    for number in range(50):
        writer.value(topics.queues, 0, START_MS + 10**6 + number, b"not archived")
    writer.flush()
    kept.keep(ALL, OWNED)
    assert start_in_kafka(topics) == report.start_offset


@pytest.mark.parametrize("harm", ["gone", "changed"])
@pytest.mark.parametrize("suffix", ["avro", "blocks"])
def test_b27_a_damaged_archive_keeps_all_in_kafka(
    topics: InKafka, objects: Objects, tmp_path: Path, harm: str, suffix: str
) -> None:
    archive(objects, topics)
    harmed = sorted((tmp_path / "archive" / "queues-0" / "segments").glob(f"*.{suffix}"))[3]
    if harm == "gone":
        harmed.unlink()
    else:
        content = bytearray(harmed.read_bytes())
        content[len(content) // 2] ^= 1
        harmed.chmod(0o600)
        harmed.write_bytes(content)
    with pytest.raises((CorruptObject, LogError)):
        space(topics, objects, tmp_path).keep(ALL, OWNED)
    assert start_in_kafka(topics) == 0


def test_b27_topics_with_another_record_keep_all(
    topics: InKafka, objects: Objects, tmp_path: Path, kafka: KafkaCluster
) -> None:
    """They begin and end as the archived ones do."""
    archive(objects, topics)
    other = make_topics(kafka.bootstrap, f"other-{uuid.uuid4().hex[:12]}", 1)
    write_history(other, changed=30)
    with pytest.raises(OtherHistory, match="queues-0: its record at offset 72 differs from the archived one: nothing"):
        space(other, objects, tmp_path).keep(ALL, OWNED)
    assert start_in_kafka(other) == 0
    delete_before(other.bootstrap, other.queues, 72)
    with pytest.raises(LogError, match="the record at offset 72 of queues-0 differs from the one in the archive"):
        list(tiered(other, objects).read(0))


def test_b27_an_archive_that_lacks_what_kafka_lacks_is_refused(topics: InKafka, objects: Objects) -> None:
    archive(objects, topics, roll=False, age_ms=10**15)
    end = Manifest.load(objects, "queues-0").end
    delete_before(topics.bootstrap, topics.queues, end + 1)
    with pytest.raises(LogError, match=f"queues-0 begins at offset {end + 1}, but is archived only up to {end}"):
        list(tiered(topics, objects).read(0))


def test_b27_a_clock_that_jumps_ahead_removes_nothing(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    """Age is log time, which counts at most twice as fast as the monotonic clock."""
    limits = SpaceLimits(age_ms=50_000)
    seconds = 1_000.0
    kept = space(topics, objects, tmp_path, lambda: seconds)
    archive(objects, topics)
    assert kept.keep(limits, OWNED).age_counts is False, "the first look notes the time"
    seconds += 31
    assert kept.keep(limits, OWNED).age_counts
    floor = start_in_kafka(topics)
    assert 0 < floor <= log_of(topics).queues[0].next_offset - 50
    writer = Writer(topics)
    for number in range(40):
        writer.value(topics.queues, 0, START_MS + 10**12 + 10_000 * number, b"after a jump")
    writer.flush()
    archive(objects, topics)
    seconds += 31
    kept.keep(limits, OWNED)
    seconds += 5
    assert kept.keep(limits, OWNED).age_counts is False
    seconds += 40
    kept.keep(limits, OWNED)
    assert start_in_kafka(topics) <= floor + 2 * 31 + 2 * 45, "not more than the time that has passed, twice"
    assert start_in_kafka(topics) < 212


@pytest.mark.parametrize("at", [1, 9, 10, 11, 105, 209, 211, 212])
def test_b27_kafka_may_begin_anywhere(topics: InKafka, objects: Objects, at: int) -> None:
    """A retention ends within a stretch."""
    archive(objects, topics)
    rows = blocks(log_of(topics).queues[0])
    delete_before(topics.bootstrap, topics.queues, at)
    partition = tiered(topics, objects)
    assert blocks(partition) == rows
    for first, end in ((0, 5), (at - 1, at + 1), (max(0, at - 3), at), (at, at + 2)):
        found = [
            block.first_offset + number for block in partition.read(first, end) for number in range(len(block.records))
        ]
        assert found == list(range(first, min(end, 212)))


STEPS = ["base", "archived", "proven", "removed"]


@pytest.mark.parametrize("step", STEPS)
def test_b27_a_kill_between_two_steps_loses_nothing(
    topics: InKafka, objects: Objects, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    archive(objects, topics)
    rows = blocks(log_of(topics).queues[0])

    def killed(what: Callable[..., Any], done: bool) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if done:
                what(*arguments)
            raise Killed

        return called

    with monkeypatch.context() as patch:
        if step == "base":
            patch.setattr(topic_space, "archive_file", killed(archive_file, False))
            patch.setattr(Path, "unlink", lambda *_, **__: None)
        elif step == "archived":
            patch.setattr(topic_space, "archive_file", killed(archive_file, True))
        elif step == "proven":
            patch.setattr(KafkaPartition, "delete_below", killed(KafkaPartition.delete_below, False))
        else:
            patch.setattr(KafkaPartition, "delete_below", killed(KafkaPartition.delete_below, True))
        with pytest.raises(Killed):
            space(topics, objects, tmp_path).keep(ALL, OWNED)
    assert start_in_kafka(topics) == (FLOOR if step == "removed" else 0)
    assert blocks(tiered(topics, objects)) == rows
    space(topics, objects, tmp_path).keep(ALL, OWNED)
    assert start_in_kafka(topics) == FLOOR
    assert blocks(tiered(topics, objects)) == rows
    assert [error for _, error in verify(objects, "queues-0") if error] == []
    assert len(Manifest.load(objects, "queues-0").bases) == 1


def node_directory(directory: Path) -> Path:
    """The data directory of a node on Kafka, without a state."""
    data = directory / "node"
    data.mkdir(exist_ok=True)
    (data / NODE).write_text("an identity\n")
    return data


def test_b27_a_base_has_the_bodies_of_what_is_queued(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    archive(objects, topics)
    space(topics, objects, tmp_path).keep(ALL, OWNED)
    store = StateStore.open(tmp_path / "state")
    begin_with_archive(tiered(topics, objects), store, node_directory(tmp_path))
    assert archive_of(tmp_path / "node") == objects.url  # for `verify` and others, before anything is archived
    machine, projector = store.open_partition("queues-0")
    assert machine.next_offset == FLOOR
    queue = machine.by_name["/", "orders"]
    held = live_ids(queue)
    assert [projector.message(queue.queue_id, each).body for each in held] == [b"kept %d" % n for n in range(10)]
    store.close()


@pytest.mark.parametrize("kept_from", ["0", "half"])
def test_b27_a_damaged_base_is_passed_over(topics: InKafka, objects: Objects, tmp_path: Path, kept_from: str) -> None:
    """The node begins with an older one, or at offset 0 of the archive."""
    archive(objects, topics)
    kept = space(topics, objects, tmp_path)
    if kept_from == "half":
        kept.keep(SpaceLimits(size_bytes=4_000), OWNED)
    older = [each.offset for each in Manifest.load(objects, "queues-0").bases]
    kept.keep(ALL, OWNED)
    [*_, newest] = sorted((tmp_path / "archive" / "queues-0" / "bases").iterdir())
    newest.chmod(0o600)
    newest.write_bytes(newest.read_bytes()[:-1])
    partition, store = tiered(topics, objects), StateStore.open(tmp_path / "state")
    begin_with_archive(partition, store, node_directory(tmp_path))
    assert store.applied_offset("queues-0") == max(older, default=0) < FLOOR
    recovery = recover(partition, store)
    assert recovery.machine.digest() == state_at(partition, None, At(offset=partition.next_offset)).digest()
    queue = recovery.machine.by_name["/", "orders"]
    found = [recovery.projector.message(queue.queue_id, each).body for each in live_ids(queue)]
    assert found == [b"kept %d" % number for number in range(10)]
    store.close()


def test_two_owners_at_once_do_no_harm(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    """As while the ownership moves: the former owner goes on with what it began, further than the new one."""
    archive(objects, topics)
    rows = blocks(log_of(topics).queues[0])
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, second = space(topics, objects, tmp_path / "one"), space(topics, objects, tmp_path / "two")
    delete, starts = KafkaPartition.delete_below, []

    def late(self: KafkaPartition, offset: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KafkaPartition, "delete_below", delete)
            second.keep(SpaceLimits(size_bytes=4_000), OWNED)
            starts.append(start_in_kafka(topics))
            delete(self, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaPartition, "delete_below", late)
        first.keep(ALL, OWNED)
    assert 0 < starts[0] < start_in_kafka(topics) == FLOOR
    second.keep(SpaceLimits(size_bytes=4_000), OWNED)
    assert start_in_kafka(topics) == FLOOR
    assert blocks(tiered(topics, objects)) == rows
    decode = SharedDecoder().decode
    assert type(decode(rows[1][2])[2]) is Published
