"""An archive whose partitions end at different places: is a queue that moved whole in it, and up to which time?"""

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.identity import read_identity
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.partial_moves import Torn, torn_at, torn_letters, whole_ends
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import events_of, fold
from rewindmq.projections.rewind import format_time
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.events import (
    DeadLettersForwarded,
    Event,
    MetadataEvent,
    Nacked,
    QueueDeclared,
    QueueDeleted,
    QueueDrained,
)
from rewindmq.schemas.placement_events import PartitionsAdded, QueueMoveBegan, QueueMoveEnded
from rewindmq.schemas.values import BROKER, Actor
from tests.support.archiving import archive_all
from tests.support.auditing import findings_of
from tests.support.moved_queue import QUEUE, Moved, MovingRecorder, write_back, write_moved
from tests.support.spark.histories import ANN
from tests.support.topic_archiving import archive_as_topics
from tests.support.torn_letters import LetterRecorder, cut, dies


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.long)], ids=["in one millisecond", "one by one"])
def moved(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moved:
    """A history with a segment for each record, archived. A consumer holds a message until the queue has moved."""
    append, metadata = MovingRecorder.append, MovingRecorder.metadata

    def closed(self: MovingRecorder) -> None:
        self.log.commit_and_wait()
        for partition in (self.log.metadata, *self.log.queues):
            partition.roll()
        self.now_ms += request.param

    def append_one(self: MovingRecorder, index: int, actor: Actor, event: Event) -> int:
        offset = append(self, index, actor, event)
        closed(self)
        return offset

    def metadata_one(self: MovingRecorder, event: MetadataEvent, actor: Actor = BROKER) -> int:
        offset = metadata(self, event, actor)
        closed(self)
        return offset

    monkeypatch.setattr(MovingRecorder, "append", append_one)
    monkeypatch.setattr(MovingRecorder, "metadata", metadata_one)
    moved = write_moved(tmp_path / "data", hold=True)
    archive_all(moved.data, str(tmp_path / "whole"))
    return moved


class Needs:
    """Where the records are that need one another."""

    def __init__(self, whole: ArchivedLog, moved: Moved) -> None:
        self.moved = moved
        metadata, source, target = whole.metadata, whole.queues[moved.source], whole.queues[moved.target]

        def last(log: object, kind: type, fits: Callable[[Event], bool] = lambda event: True) -> int:
            found = [at for at, _, _, event in events_of(log) if isinstance(event, kind) and fits(event)]  # type: ignore[arg-type]
            return found[-1]

        self.added = last(metadata, PartitionsAdded)
        self.began, self.ended = last(metadata, QueueMoveBegan), last(metadata, QueueMoveEnded)
        self.drained, self.forwarded = last(source, QueueDrained), last(source, DeadLettersForwarded)
        self.declared = last(target, QueueDeclared, lambda event: getattr(event, "moved_from", None) is not None)
        self.came_first, self.came = min(moved.came.values()), max(moved.came.values())

    def torn(self, metadata: int, queues: list[int]) -> bool:
        """Return True if history that ends at these offsets lacks a record that it needs."""
        source, target = queues[self.moved.source], queues[self.moved.target]
        return (
            (source > self.forwarded and target <= self.came)
            or (target > self.came_first and self.moved.old_id < source <= self.drained)
            or (metadata > self.ended and target <= self.declared)
            or (source > self.drained and metadata <= self.began)
            or (target > self.declared and metadata <= self.began)
            or (any(queues[2:]) and metadata <= self.added)
        )


def torn_in(log: ArchivedLog) -> Torn | None:
    identity = read_identity(log.objects)
    assert identity is not None
    return torn_at(log.metadata, log.queues, 2)


def letters_in(log: ArchivedLog) -> Torn | None:
    return torn_letters(log.partitions, {each.name: each.next_offset for each in log.partitions}, 2)


def test_what_is_torn_is_found_and_whole_before(moved: Moved, tmp_path: Path) -> None:
    whole = ArchivedLog(str(tmp_path / "whole"))
    assert torn_in(whole) is None
    needs, chance = Needs(whole, moved), random.Random(7)
    counts = {each.name: len(each.segments) for each in whole.partitions}
    seen = {False: 0, True: 0}
    for number in range(120):
        ends = {
            name: chance.choice((count, chance.randint(3 if name == METADATA else 0, count)))
            for name, count in counts.items()
        }
        log = cut(tmp_path / "whole", tmp_path / f"cut{number}", ends)
        torn = torn_in(log)
        expected = needs.torn(log.metadata.next_offset, [each.next_offset for each in log.queues])
        assert (torn is not None) == expected, (ends, torn)
        seen[expected] += 1
        if torn is not None:
            at = [each.offset_at(torn.whole_ms) for each in log.partitions]
            assert not needs.torn(at[0], at[1:]), (ends, torn)
            at = [each.offset_at(torn.whole_ms + 1) for each in log.partitions]
            assert needs.torn(at[0], at[1:]), "no more is left out than has to be"
    assert min(seen.values()) > 10, seen


def test_the_clocks_of_kafkas_brokers_differ(moved: Moved, tmp_path: Path) -> None:
    """A time that one broker's clock has reached may still lie ahead of another's: no message is lost by that."""
    chance, seen = random.Random(5), {False: 0, True: 0}
    for skew in range(6):
        names = ["metadata-0", *(f"queues-{number}" for number in range(4))]
        url = str(tmp_path / f"topics{skew}")
        archive_as_topics(moved.data, url, 2, {name: chance.randint(-900, 900) for name in names})
        whole = ArchivedLog(url)
        needs = Needs(whole, moved)
        counts = {each.name: len(each.segments) for each in whole.partitions}
        assert whole_ends(whole.partitions, 2) == (list(counts.values()), None)
        for number in range(20):
            ends = {
                name: chance.choice((count, chance.randint(3 if name == METADATA else 0, count)))
                for name, count in counts.items()
            }
            log = cut(Path(url), tmp_path / f"cut{skew}-{number}", ends)
            whole_at, torn = whole_ends(log.partitions, 2)
            archived = [each.next_offset for each in log.partitions]
            assert (torn is not None) == needs.torn(archived[0], archived[1:]), (ends, torn)
            assert not needs.torn(whole_at[0], whole_at[1:]), (ends, torn, whole_at)
            assert all(end <= there for end, there in zip(whole_at, archived, strict=True))
            seen[torn is not None] += 1
    assert min(seen.values()) > 10, seen


def test_a_queue_that_was_deleted_before_is_not_missed(tmp_path: Path) -> None:
    """It was placed by the former number, and the partition to which another one goes has had nothing to do since."""
    places = {f"q{n}": [partition_of("/", f"q{n}", count) for count in (2, 3)] for n in range(99)}
    gone, goes = [name for name, (was, now) in places.items() if (was, now) == (0, 1)][:2]
    history = MovingRecorder(tmp_path / "data", 3)
    history.wait(1_000)
    history.declare(gone)
    queue_id = history.declare(goes)
    history.append(0, BROKER, QueueDeleted("/", gone, False, False))
    history.wait(1_000)
    history.repartition(goes, count=3)
    history.metadata(QueueMoveBegan("/", goes, queue_id, 1))
    history.close()
    archive_all(tmp_path / "data", str(tmp_path / "whole"), 2)
    assert torn_in(ArchivedLog(str(tmp_path / "whole"))) is None


def test_a_queue_that_moved_back_and_forth_is_whole(tmp_path: Path) -> None:
    """Its incarnations in two partitions have the same number."""
    write_back(tmp_path / "data")
    archive_all(tmp_path / "data", str(tmp_path / "whole"))
    assert torn_in(ArchivedLog(str(tmp_path / "whole"))) is None


def held_back(tmp_path: Path) -> tuple[MovingRecorder, int, int, int]:
    """A queue that has moved, and a message that its consumer gives back afterwards. It is not drained yet.

    Returns the history, the number of the partition, the former incarnation and the message."""
    history = MovingRecorder(tmp_path / "data")
    source, old = history.partition(QUEUE), history.declare(QUEUE)
    kept = history.publish(QUEUE, b"kept")
    history.get(QUEUE, 1)
    history.repartition(QUEUE)
    new = history.begin_move(QUEUE)
    history.metadata(QueueMoveEnded("/", QUEUE, new))
    history.wait(1_000)
    history.append(source, ANN, Nacked("/", QUEUE, 1, ((kept, kept),), True, "nack"))
    return history, source, old, kept


@pytest.mark.parametrize("later", [0, 1_000], ids=["its partition is idle since", "its partition goes on"])
def test_messages_that_follow_a_queue_that_is_gone_are_not_missed(later: int, tmp_path: Path) -> None:
    """They have no target, so they arrive nowhere. The metadata log says nothing of it."""
    history, source, old, _ = held_back(tmp_path)
    target = history.partition(QUEUE)
    history.append(target, BROKER, QueueDeleted("/", QUEUE, False, False))
    history.wait(1_000)
    history.new = []
    history.append(source, BROKER, QueueDrained("/", QUEUE, old, 1_000))
    history.append(source, BROKER, DeadLettersForwarded("/", QUEUE, old, history.new[0].sequence, True))
    history.wait(later)
    if later:
        history.tick(target)
    history.close()
    archive_all(tmp_path / "data", str(tmp_path / "whole"))
    assert torn_in(ArchivedLog(str(tmp_path / "whole"))) is None


def test_messages_that_came_below_the_floor_are_not_missed(tmp_path: Path) -> None:
    """The base there knows them."""
    history, source, old, kept = held_back(tmp_path)
    target = history.partition(QUEUE)
    history.drain(QUEUE, source, old, {kept: b"kept"})
    history.close()
    close_segments(tmp_path / "data")
    objects = open_objects(str(tmp_path / "whole"), make=True)
    Archiver(objects, tmp_path / "data").run()
    note_archive(tmp_path / "data", objects.url)
    wanted = TrimRequest(before_ms=history.now_ms + 1_000, partition=f"queues-{target}", accept_findings=True)
    trimmed = trim_directory(tmp_path / "data", wanted)
    log = ArchivedLog(objects.url)
    assert [each.offset for each in trimmed] == [log.queues[target].next_offset], "all that is archived went"
    assert torn_in(log) is None


@pytest.mark.parametrize("clocks", ["one clock", "two clocks"])
def test_a_dead_letter_whose_death_is_missing_is_found(clocks: str, tmp_path: Path) -> None:
    """Its target knows it by a number that the next message which dies in the recovered source would get."""
    history = LetterRecorder(tmp_path / "data")
    target = history.partition("dead")
    name = next(f"q{n}" for n in range(99) if history.partition(f"q{n}") != target)
    source = history.partition(name)
    history.declare("dead")
    declared = history.declare(name, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    deaths = []  # the offset of each death in the source, and that of the letter in the target
    for number in range(3):
        message = history.publish(name, b"body")
        history.get(name, 1)
        died = history.nack(name, 1, message, requeue=False)
        deaths.append((died, history.forward(target)))
        if number == 1:
            history.append(source, BROKER, DeadLettersForwarded("/", name, declared, history.letters[-1].sequence))
    history.close()
    url = str(tmp_path / "whole")
    if clocks == "one clock":
        archive_all(tmp_path / "data", url)
    else:
        archive_as_topics(tmp_path / "data", url, 2, {f"queues-{source}": 40})
    whole = ArchivedLog(url)
    assert letters_in(whole) is None
    counts = {each.name: len(each.segments) for each in whole.partitions}
    seen = {False: 0, True: 0}
    for ends in product(range(2, counts[f"queues-{source}"] + 1), range(2, counts[f"queues-{target}"] + 1)):
        most = counts | {f"queues-{source}": ends[0], f"queues-{target}": ends[1]}
        log = cut(Path(url), tmp_path / f"cut{ends}", most)
        reached = {each.name: each.next_offset for each in log.queues}
        has_come = [died for died, came in deaths if came < reached[f"queues-{target}"]]
        expected = any(died >= reached[f"queues-{source}"] for died in has_come)
        torn = letters_in(log)
        assert (torn is not None) == expected, (ends, torn)
        seen[expected] += 1
        if torn is not None:
            assert f"messages of queue '{name}' died later" in torn.text
            whole_at = [each.offset_at(torn.whole_ms) for each in log.queues]
            kept = [died for died, came in deaths if came < whole_at[target]]
            assert clocks == "two clocks" or all(died < whole_at[source] for died in kept), (ends, whole_at)
    assert min(seen.values()) > 5, seen


@pytest.mark.parametrize("at", [None, "time"])
def test_a_recovery_loses_no_letter_behind_those_whose_death_is_missing(at: str | None, tmp_path: Path) -> None:
    history = LetterRecorder(tmp_path / "data")
    name, target = history.declare_both(), history.partition("dead")
    died, _ = dies(history, name), dies(history, name)
    at = at and format_time(history.now_ms + 1)
    history.tick(target)
    history.wait(10)
    history.tick(target)
    history.close()
    archive_all(tmp_path / "data", str(tmp_path / "whole"))
    counts = {each.name: len(each.segments) for each in ArchivedLog(str(tmp_path / "whole")).partitions}
    told: list[str] = []
    recover(open_objects(str(tmp_path / "whole")), tmp_path / "first", at=at, tell=told.append)
    assert told == []
    cut(tmp_path / "whole", tmp_path / "cut", counts | {f"queues-{history.partition(name)}": died})
    recover(open_objects(str(tmp_path / "cut")), tmp_path / "second", at=at, tell=told.append)
    [line] = told
    assert f"messages of queue '{name}' died later: they are in that queue again" in line
    recovered = LetterRecorder(tmp_path / "second")
    recovered.log.commit_and_wait()
    recovered.machines = [Machine(log.name) for log in recovered.log.queues]
    for machine, log in zip(recovered.machines, EmbeddedLogReader(tmp_path / "second").queues, strict=True):
        fold(machine, log)
    recovered.now_ms = history.now_ms
    dies(recovered, name)
    assert recovered.letters[-1].sequence == 3
    dead = recovered.machines[target].queue("/", "dead")
    assert dead is not None
    assert len(list(dead.ready_ids())) == 3, "two that were archived, and the one that died after the recovery"
    recovered.close()
    assert [each for each in findings_of(tmp_path / "second") if not each.ok] == []
