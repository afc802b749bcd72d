"""The end of old history in Kafka: what is older than a moment leaves Kafka and the archive for good (B-27)."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.keeping import trim as trim_steps
from rewindmq.engine.keeping.archive import pack, topic_recovery, trims
from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.keeping.archive.topic_recovery import recover_topics
from rewindmq.engine.keeping.in_topics import TopicPartition, TopicsHistory, trim_topics
from rewindmq.engine.keeping.location import InArchive, InKafka
from rewindmq.engine.keeping.topic_floors import TopicFloors
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimReport, TrimRequest
from rewindmq.engine.log import chain
from rewindmq.engine.log.contract import BelowStart, LogError, NoAnswer
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.projections.replay import recover
from rewindmq.projections.rewind import At, BelowFloor, state_at
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.events import Checkpointed, Published
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.spark_replay.location.log import read_messages
from tests.support.forked import run
from tests.support.kafka.archived_topics import (
    FLOOR,
    KEPT_IDS,
    archive,
    blocks,
    delete_before,
    log_of,
    require_trimmed,
    start_in_kafka,
    tiered,
    write_history,
)
from tests.support.kafka.archiving_nodes import QUEUES, FloorNodes, backlog, publish, take, wait_for_archive
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import NEVER
from tests.support.kafka.sealed_topics import START_MS
from tests.support.killed import killed_at_store
from tests.support.pika_clients import numbered
from tests.support.spark.histories import ANN
from tests.support.spark.topics import Writer, make_topics

pytestmark = pytest.mark.long

AT_FLOOR = TrimRequest(before_ms=START_MS + 1_000 * FLOOR, reason="ticket 4711")


@pytest.fixture
def topics(kafka: KafkaCluster) -> InKafka:
    place = make_topics(kafka.bootstrap, f"trim-{uuid.uuid4().hex[:12]}", 1)
    write_history(place)
    return place


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of ten records."""
    monkeypatch.setattr(pack, "STRETCH_RECORDS", 10)
    monkeypatch.setattr(chain, "RUN", 10)


def trim(place: InKafka, objects: Objects, wanted: TrimRequest = AT_FLOOR, **options: Any) -> TrimReport:
    [report] = trim_topics(log_of(place), objects, wanted, **options)
    return report


def test_b27_a_trim_leaves_what_is_queued_and_all_that_comes_later(
    topics: InKafka, objects: Objects, tmp_path: Path
) -> None:
    archive(objects, topics)
    [whole] = log_of(topics).queues
    end, rows = whole.next_offset, blocks(whole)
    digests = {at: state_at(whole, None, At(offset=at)).digest() for at in range(FLOOR, end + 1, 7)}
    tried = trim(topics, objects, dry_run=True)
    assert (tried.start, tried.offset, tried.queued, tried.findings) == (0, FLOOR, 10, [])
    assert start_in_kafka(topics) == Manifest.load(objects, "queues-0").floor == 0

    report = trim(topics, objects)
    assert (report.start, report.offset, report.queued) == (0, FLOOR, 10)
    assert report.freed_bytes > 0
    assert report.archived_bytes > 0
    require_trimmed(topics, objects)
    floor = TopicFloors(log_of(topics).metadata).now()["queues-0"].event
    assert (floor.offset, floor.reason, floor.until_ms) == (FLOOR, "ticket 4711", START_MS + 1_000 * (FLOOR - 1))

    partition = tiered(topics, objects)
    assert (partition.start_offset, partition.next_offset) == (FLOOR, end)
    for log in (partition, ArchivedLog(objects.url).queues[0]):
        assert {at: state_at(log, None, At(offset=at)).digest() for at in digests} == digests
        assert blocks_from(log) == rows[FLOOR:]
    base = partition.base()
    assert base is not None
    for message_id, record in base.records():
        _, _, event = SharedDecoder().decode(record, True)
        assert isinstance(event, Published)
        assert event.body == b"kept %d" % (message_id - 1)
        assert partition.record(message_id, 60.0) == record
    assert [each for each, _ in base.records()] == list(KEPT_IDS)
    for location in (InArchive(objects.url), InKafka(topics.bootstrap, topics.prefix, archive=objects.url)):
        found = read_messages(location, "queues-0", list(KEPT_IDS))
        assert [event.body for _, _, event in found.values()] == [b"kept %d" % number for number in range(10)]

    with pytest.raises(BelowFloor, match=f"begins at offset {FLOOR}"):
        state_at(partition, None, At(offset=FLOOR - 1))
    with pytest.raises(BelowStart, match=rf"offset 3 lies below offset {FLOOR}, where .* trimmed: ticket 4711"):
        list(partition.read(3))
    for again in (AT_FLOOR, TrimRequest(before_ms=START_MS)):
        assert trim(topics, objects, again).offset == FLOOR, "nothing more goes"
    store = StateStore.open(tmp_path / "state")
    try:
        assert recover(partition, store).machine.digest() == state_at(partition, None, At(offset=end)).digest()
    finally:
        store.close()


def blocks_from(log: Any) -> list[tuple[int, int, bytes]]:
    return [
        (block.first_offset + at, block.timestamps_ms[at], value)
        for block in log.read(log.start_offset)
        for at, value in enumerate(block.records)
    ]


def test_b27_a_second_trim_begins_with_the_base_of_the_first(topics: InKafka, objects: Objects) -> None:
    """Also where Kafka begins above what goes."""
    archive(objects, topics)
    [whole] = log_of(topics).queues
    last = state_at(whole, None, At(offset=whole.next_offset)).digest()
    trim(topics, objects)
    delete_before(topics.bootstrap, topics.queues, 180)
    report = trim(topics, objects, TrimRequest(before_ms=START_MS + 1_000 * 150))
    assert (report.start, report.offset, report.queued, report.freed_bytes) == (FLOOR, 150, 10, 0)
    manifest = Manifest.load(objects, "queues-0")
    assert (start_in_kafka(topics), manifest.floor) == (180, 150)
    partition = tiered(topics, objects)
    assert state_at(partition, None, At(offset=whole.next_offset)).digest() == last


STEPS: dict[str, tuple[Any, str]] = {
    "base": (trim_steps, "archive_base"),
    "event": (TopicsHistory, "append"),
    "metadata": (TopicArchiver, "run"),
    "end": (TopicPartition, "end_trim"),
    "kafka": (KafkaPartition, "delete_below"),
    "entry": (trims, "trimmed_entry"),
    "objects": (trims, "delete_trimmed"),
}


class Killed(Exception):
    """The trim ends here."""


@pytest.mark.parametrize("ended_by", ["archiver", "trim"])
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("step", STEPS)
def test_b27_a_trim_that_is_killed_at_any_step_is_ended(
    topics: InKafka, objects: Objects, step: str, when: str, ended_by: str
) -> None:
    archive(objects, topics)
    [whole] = log_of(topics).queues
    end = whole.next_offset
    digest = state_at(whole, None, At(offset=end)).digest()
    place, name = STEPS[step]
    doing: Callable[..., Any] = getattr(place, name)

    def killed(*given: Any, **more: Any) -> None:
        if when == "behind":
            doing(*given, **more)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, killed)
        with pytest.raises(Killed):
            trim(topics, objects)
    partition = tiered(topics, objects)
    assert state_at(partition, None, At(offset=end)).digest() == digest
    has_event = bool(TopicFloors(log_of(topics).metadata).now())
    assert has_event == (step not in ("base", "event") or (step, when) == ("event", "behind"))
    if ended_by == "archiver":
        archive(objects, topics)
        if not has_event:
            assert start_in_kafka(topics) == Manifest.load(objects, "queues-0").floor == 0
            return
    else:
        trim(topics, objects)
    require_trimmed(topics, objects)
    assert state_at(tiered(topics, objects), None, At(offset=end)).digest() == digest


def do_trim(bootstrap: str, prefix: str, url: str) -> None:
    trim_topics(KafkaLogReader(bootstrap, prefix), open_objects(url), AT_FLOOR)


@pytest.mark.rare
@pytest.mark.timeout(600)
def test_b27_a_kill_before_any_change_of_the_archive_is_made_good(kafka: KafkaCluster, tmp_path: Path) -> None:
    """SIGKILL of a trim's process before each object that it creates or deletes; an archiver ends what it began."""
    number, events, was_killed = 0, set(), True
    while was_killed:
        number += 1
        place = make_topics(kafka.bootstrap, f"killed-{uuid.uuid4().hex[:12]}", 1)
        write_history(place)
        objects = open_objects(str(tmp_path / str(number)), make=True)
        archive(objects, place)
        [whole] = log_of(place).queues
        end = whole.next_offset
        digest = state_at(whole, None, At(offset=end)).digest()
        was_killed = killed_at_store(number, {}, do_trim, place.bootstrap, place.prefix, objects.url)
        has_event = bool(TopicFloors(log_of(place).metadata).now())
        events.add(has_event)
        assert state_at(tiered(place, objects), None, At(offset=end)).digest() == digest
        archive(objects, place)
        if has_event:
            require_trimmed(place, objects)
        else:
            assert start_in_kafka(place) == Manifest.load(objects, "queues-0").floor == 0
        assert state_at(tiered(place, objects), None, At(offset=end)).digest() == digest
    assert number > 10
    assert events == {False, True}


def test_b27_two_trims_at_once_do_no_harm(topics: InKafka, objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """One goes further than the other, and is done just before the other one's event."""
    archive(objects, topics)
    append = TopicsHistory.append

    def late(self: Any, events: Any) -> None:
        monkeypatch.setattr(TopicsHistory, "append", append)
        assert trim(topics, objects, TrimRequest(before_ms=START_MS + 1_000 * 150)).offset == 150
        append(self, events)

    monkeypatch.setattr(TopicsHistory, "append", late)
    trim(topics, objects)
    require_trimmed(topics, objects, 150)
    assert tiered(topics, objects).start_offset == 150


def test_b27_findings_are_refused_unless_they_are_accepted(topics: InKafka, objects: Objects) -> None:
    writer = Writer(topics)
    writer.event(0, START_MS + 1_000 * 300, ANN, Checkpointed(211, "0" * 64))
    for number in range(30):
        writer.value(topics.queues, 0, START_MS + 1_000 * (301 + number), b"no record")
    writer.flush()
    archive(objects, topics)
    wanted = TrimRequest(before_ms=START_MS + 1_000 * 320)
    with pytest.raises(TrimRefused, match=r"queues-0: offset 212: the broker claimed 0000.* records are quarantined"):
        trim(topics, objects, wanted)
    assert start_in_kafka(topics) == Manifest.load(objects, "queues-0").floor == 0
    report = trim(topics, objects, TrimRequest(before_ms=wanted.before_ms, accept_findings=True))
    require_trimmed(topics, objects, report.offset)
    assert len(Manifest.load(objects, "queues-0").trims[-1].findings) == len(report.findings) == 2


def test_b27_a_clock_that_jumped_trims_nothing(topics: InKafka, objects: Objects) -> None:
    """--keep counts from the newest archived event, or from the clock if that is earlier."""
    writer = Writer(topics)
    for number in range(15):
        writer.value(topics.queues, 0, START_MS + 10**9 + number, b"of the future")
    writer.flush()
    archive(objects, topics)
    with pytest.raises(TrimRefused, match="a clock may have jumped; name the time with --before"):
        trim(topics, objects, TrimRequest(keep_ms=5 * 10**8), wall_ms=START_MS + 2 * 10**9)
    assert trim(topics, objects, TrimRequest(keep_ms=5 * 10**8), wall_ms=START_MS).offset == 0
    assert start_in_kafka(topics) == 0


def test_b27_a_trim_of_another_history_or_without_its_archive_is_refused(
    topics: InKafka, objects: Objects, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(objects, topics)
    other = make_topics(kafka.bootstrap, f"other-{uuid.uuid4().hex[:12]}", 1)
    write_history(other, changed=30)
    with pytest.raises(OtherHistory, match="its record at offset 72 is another than the archived one"):
        trim(other, objects)
    assert start_in_kafka(other) == 0

    def away(self: Objects, *arguments: Any) -> Any:
        raise NoAnswer("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "create", away)
        with pytest.raises(NoAnswer, match="the store is away"):
            trim(topics, objects)
    assert start_in_kafka(topics) == 0
    assert TopicFloors(log_of(topics).metadata).now() == {}
    options = ("--kafka", kafka.bootstrap, "--kafka-prefix", topics.prefix)
    for given, said in (
        (("--keep", "400d"), "give --archive URL"),
        (("--archive", objects.url), "give either --before"),
    ):
        refused = run("trim", *given, *options)
        assert (refused.returncode, said in refused.stderr) == (64, True), refused.stderr


def test_b27_a_damaged_object_below_the_floor_stops_the_trim(topics: InKafka, objects: Objects, tmp_path: Path) -> None:
    archive(objects, topics)
    harmed = sorted((tmp_path / "archive" / "queues-0" / "segments").glob("*.avro"))[3]
    content = bytearray(harmed.read_bytes())
    content[len(content) // 2] ^= 1
    harmed.chmod(0o600)
    harmed.write_bytes(content)
    with pytest.raises(LogError, match="nothing was removed"):
        trim(topics, objects)
    assert start_in_kafka(topics) == 0


def test_b27_topics_made_from_a_trimmed_archive_begin_at_the_floor(
    topics: InKafka, objects: Objects, kafka: KafkaCluster
) -> None:
    archive(objects, topics)
    trim(topics, objects)
    archive(objects, topics)
    whole = tiered(topics, objects)
    rows, end = blocks_from(whole), whole.next_offset
    place = InKafka(kafka.bootstrap, f"again-{uuid.uuid4().hex[:12]}")
    recover_topics(objects, KafkaClients(kafka.bootstrap), place.prefix)
    assert start_in_kafka(place) == FLOOR
    again = tiered(place, objects)
    assert (again.start_offset, blocks_from(again)) == (FLOOR, rows)
    digests = [state_at(each, None, At(offset=end)).digest() for each in (whole, again)]
    assert digests[0] == digests[1]


def test_b27_fillers_go_in_portions_and_a_kill_between_is_made_good(
    topics: InKafka, objects: Objects, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(objects, topics)
    trim(topics, objects)
    archive(objects, topics)
    rows = blocks_from(tiered(topics, objects))
    monkeypatch.setattr(topic_recovery, "FILLERS", 30)
    place = InKafka(kafka.bootstrap, f"again-{uuid.uuid4().hex[:12]}")
    delete, dropped = KafkaPartition.delete_below, list[int]()

    def noted(self: KafkaPartition, offset: int) -> None:
        if len(dropped) == 1:
            dropped.append(-1)
            raise Killed
        dropped.append(offset)
        delete(self, offset)

    told: list[str] = []
    done: list[tuple[int, int]] = []

    def recovered() -> None:
        recover_topics(
            objects,
            KafkaClients(kafka.bootstrap),
            place.prefix,
            progress=lambda *numbers: done.append(numbers),
            tell=told.append,
        )

    monkeypatch.setattr(KafkaPartition, "delete_below", noted)
    with pytest.raises(Killed):
        recovered()
    recovered()
    assert [each for each in dropped if each > 0] == [30, 90, FLOOR], "it goes on where the topic ends"
    assert start_in_kafka(place) == FLOOR
    assert blocks_from(tiered(place, objects)) == rows
    assert told == ["100 offsets below floors take a filler each: 0 minutes at least"] * 2
    assert done[-1][0] == done[-1][1]


def test_b27_nodes_and_tools_go_on_from_the_floor(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node runs while its history is trimmed. Then a new one starts, and one that was away; all by commands."""
    monkeypatch.undo()  # groups are as long as those of the nodes
    assert {partition_of("/", queue, 2) for queue in QUEUES} == {0, 1}
    with FloorNodes(tmp_path, kafka, timeout=NEVER) as nodes:
        north = nodes.start("north")
        nodes.start("south")
        backlog(north)
        publish(north, range(300))
        for queue in QUEUES:
            assert take(north, queue, 300) == numbered(range(300))
        nodes.stop("south")
        wait_for_archive(nodes)
        publish(north, range(300, 310))
        wait_for_archive(nodes)
        options = (*nodes.options_of_tools(), "--archive", nodes.url)
        tried = run("trim", "--before", "-0s", "--dry-run", "--formatter", "json", *options)
        assert tried.returncode == 0, tried.stderr
        assert nodes.starts() == [0, 0]
        done = run("trim", "--before", "-0s", "--reason", "ticket 4711", "--formatter", "json", *options)
        assert done.returncode == 0, done.stderr
        floors = [row["floor"] for row in json.loads(done.stdout)]
        assert [row["floor"] for row in json.loads(tried.stdout)] <= floors
        assert nodes.starts() == floors
        assert all(floors)
        publish(north, range(310, 320))
        nodes.start("south")
        east = nodes.start("east")
        nodes.digests()
        nodes.kill("north")
        for queue in ("kept", "kept too"):
            assert take(east, queue, 10) == [b"kept %d" % number for number in range(10)]
            assert take(nodes.running["south"], queue, 10) == [b"kept %d" % number for number in range(10, 20)]
        for queue in QUEUES:
            assert take(east, queue, 20) == numbered(range(300, 320))
        queue = QUEUES[0]
        below = run("rewind", queue, "--offset", "1", *options)
        assert below.returncode != 0
        assert "ticket 4711" in below.stderr, below.stderr
        floor = floors[partition_of("/", queue, 2)]
        above = run("rewind", queue, "--offset", str(floor), "--formatter", "json", *options)
        assert above.returncode == 0, above.stderr
        nodes.stop("south")
        verified = run("verify", "--data", str(tmp_path / "south"), *nodes.options_of_tools())
        assert verified.returncode == 0, verified.stdout + verified.stderr
        for name in ("metadata-0", "queues-0", "queues-1"):
            assert [error for _, error in verify(open_objects(nodes.url), name) if error] == []
