"""A history with an archive is trimmed: nothing goes too early, what is queued stays, and the archive is whole."""

import shutil
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive import reader as readers
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments, verify
from rewindmq.engine.keeping.archive.directory_note import archive_of, note_archive
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.recovery import NotYetArchived, recover
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.location import HistoryPartition
from rewindmq.engine.keeping.tiers import TieredLogReader, floors_of
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimReport, TrimRequest
from rewindmq.engine.log.contract import BelowStart, LogError, NoAnswer
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.projections.floors import base_differs
from rewindmq.projections.marks import topology_of
from rewindmq.projections.rewind import At, BelowFloor, format_time, state_at
from rewindmq.projections.store.bases import queued_offsets
from tests.support.broker_harness import Harness
from tests.support.failpoints import armed
from tests.support.trimmed_archive import Place, assert_trimmed, copied, cut_locally, digest
from tests.support.trimmed_broker import QUEUES, SEGMENT_BYTES, Story, live
from tests.support.trimming import PARTITION, starts, write_traffic

DAY = 2  # is kept, and those after it


# -- a broker's history --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Story]:
    """Days of a broker, all archived."""
    directory = tmp_path_factory.mktemp("lived")
    story = live(directory / "data")
    close_segments(directory / "data")
    objects = open_objects(str(directory / "archive"), make=True)
    Archiver(objects, directory / "data").run()
    note_archive(directory / "data", objects.url)
    return Place(directory / "data", objects), story


@pytest.fixture
def story(lived: tuple[Place, Story]) -> Story:
    return lived[1]


@pytest.fixture
def place(lived: tuple[Place, Story], tmp_path: Path) -> Place:
    return copied(lived[0], tmp_path)


def trimmed(place: Place, story: Story, day: int = DAY, reason: str = "ticket 7") -> TrimReport:
    [report] = trim_directory(place.data, TrimRequest(before_ms=story.days[day], reason=reason), wall_ms=story.end_ms)
    return report


def ready(data: Path, story: Story) -> dict[str, list[bytes]]:
    with Harness(data, now_ms=story.end_ms, partitions=1, segment_bytes=SEGMENT_BYTES) as h:
        return {name: h.ready(name) for name in QUEUES}


@pytest.mark.parametrize("local", ["all", "nearly nothing"])
def test_b26_what_is_queued_stays_and_the_past_begins_at_the_floor(
    lived: tuple[Place, Story], place: Place, story: Story, local: str, tmp_path: Path
) -> None:
    whole = EmbeddedLogReader(lived[0].data).queues[0]
    begins = cut_locally(place) if local != "all" else 0
    before = place.manifest.archived_bytes
    [planned] = trim_directory(place.data, TrimRequest(before_ms=story.days[DAY]), dry_run=True, wall_ms=story.end_ms)
    report = trimmed(place, story)
    assert (planned.offset, planned.queued, planned.archived_bytes) == (
        report.offset,
        report.queued,
        report.archived_bytes,
    )
    assert (report.start, report.offset > 0, report.queued > 100, report.findings) == (0, True, True, [])
    assert 0 < report.archived_bytes < before
    assert starts(place.data)[0] == max(begins, report.offset)
    assert (local == "all") == (report.freed_bytes > 0)
    assert_trimmed(place, report.offset)
    recovered = tmp_path / "recovered"
    [_, row] = recover(place.objects, recovered)
    assert (row.start_offset, row.next_offset) == (report.offset, whole.next_offset)
    logs: list[HistoryPartition] = [TieredLogReader(place.data).queues[0], TieredLogReader(recovered).queues[0]]
    logs.append(ArchivedLog(place.objects.url).queues[0])
    moments = range(report.offset, whole.next_offset, 1 + (whole.next_offset - report.offset) // 5)
    for log in logs:
        base = log.base()
        assert base is not None
        assert (log.start_offset, base.offset) == (report.offset, report.offset)
        assert [digest(log, each) for each in moments] == [digest(whole, each) for each in moments]
        for offset in (0, report.offset - 1):
            with pytest.raises(BelowStart, match=rf"below offset {report.offset}, where the history begins.*ticket"):
                list(log.read(offset))
        with pytest.raises(BelowFloor):
            state_at(log, None, At(time_ms=story.days[1]))
    for data in (place.data, recovered):
        assert ready(data, story) == story.ready
        shutil.rmtree(data / "state")
        assert ready(data, story) == story.ready


def test_b26_a_message_that_is_queued_at_the_floor_keeps_its_body(
    lived: tuple[Place, Story], place: Place, story: Story
) -> None:
    """Also when it lies below several floors, and in the archive alone."""
    whole = EmbeddedLogReader(lived[0].data).queues[0]
    originals = {
        offset: record
        for block in whole.read()
        for offset, record in enumerate(block.records, start=block.first_offset)
    }
    cut_locally(place)
    for day in (1, 2, 3):
        report = trimmed(place, story, day)
        machine = state_at(whole, None, At(offset=report.offset))
        for log in (TieredLogReader(place.data).queues[0], ArchivedLog(place.objects.url).queues[0]):
            base = log.base()
            assert base is not None
            assert dict(base.records()) == {each: originals[each] for each in queued_offsets(machine)}
        assert_trimmed(place, report.offset)
    assert ready(place.data, story) == story.ready


def test_the_archive_of_a_history_that_was_trimmed_before(
    lived: tuple[Place, Story], story: Story, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(lived[0].data, data)
    (data / "log" / "archive.json").unlink()
    [report] = trim_directory(data, TrimRequest(before_ms=story.days[1], reason="before"), wall_ms=story.end_ms)
    close_segments(data)
    place = Place(data, open_objects(str(tmp_path / "archive"), make=True))
    for _ in range(2):
        Archiver(place.objects, data).run()
        assert_trimmed(place, report.offset)
    note_archive(data, place.objects.url)
    recover(place.objects, tmp_path / "recovered")
    assert ready(tmp_path / "recovered", story) == story.ready
    again = trimmed(place, story, 3)
    assert again.start == report.offset
    assert_trimmed(place, again.offset)
    assert [each.offset for each in place.manifest.trims] == [report.offset, again.offset]
    assert ready(data, story) == story.ready


def test_an_archive_with_a_trim_but_no_base_is_not_recovered(
    lived: tuple[Place, Story], story: Story, tmp_path: Path
) -> None:
    """The trim was killed when it was logged, and then the first archiver, behind the metadata."""
    data = tmp_path / "data"
    shutil.copytree(lived[0].data, data)
    (data / "log" / "archive.json").unlink()

    def killed() -> None:
        raise KeyboardInterrupt

    with armed("trim.before_end", killed), pytest.raises(KeyboardInterrupt):
        trim_directory(data, TrimRequest(before_ms=story.days[1], reason="before"), wall_ms=story.end_ms)
    close_segments(data)
    objects = open_objects(str(tmp_path / "archive"), make=True)
    end = PartitionReader(data / "log" / "metadata-0").next_offset
    Archiver(objects, data).run(until=lambda: Manifest.load(objects, "metadata-0").end == end)
    floor = floors_of(data)[PARTITION].event.offset
    recovered = tmp_path / "recovered"
    why = rf"{PARTITION} is archived only up to offset 0, but its history begins at {floor}: .* let one run to its end"
    for _ in range(2):
        with pytest.raises(NotYetArchived, match=why):
            recover(objects, recovered)
    Archiver(objects, data).run()
    recover(objects, recovered)
    assert ready(recovered, story) == story.ready


def test_a_trim_may_go_beyond_what_is_archived(
    lived: tuple[Place, Story], place: Place, story: Story, tmp_path: Path
) -> None:
    """The archive was behind when the disk had to be emptied: what it lacks is trimmed, too."""
    shutil.rmtree(place.objects.url.removeprefix("file://"))
    objects = open_objects(place.objects.url, make=True)
    count = iter(range(100))
    Archiver(objects, place.data).run(until=lambda: next(count) > 3)  # some of the metadata log, or a little more
    end = Manifest.load(objects, PARTITION).end
    report = trimmed(place, story, 3)
    assert end < report.offset
    assert place.manifest.end == report.offset
    assert_trimmed(place, report.offset)
    recover(objects, tmp_path / "recovered")
    assert starts(tmp_path / "recovered") == [report.offset]
    assert PartitionReader(tmp_path / "recovered" / "log" / PARTITION).next_offset == report.offset
    log = EmbeddedLog.open(tmp_path / "recovered", None)
    assert log.queues[0].next_offset == report.offset
    log.close()
    Archiver(objects, place.data).run()
    assert place.manifest.end == EmbeddedLogReader(lived[0].data).queues[0].next_offset
    assert_trimmed(place, report.offset)


# -- refusals ------------------------------------------------------------------------------------------------------


def assert_nothing_happened(place: Place, story: Story) -> None:
    assert starts(place.data)[0] == 0
    assert topology_of(EmbeddedLogReader(place.data).metadata).history.floors == {}


def test_b26_an_archive_that_is_away_is_a_refusal_before_anything_goes(place: Place, story: Story) -> None:
    archive = Path(place.objects.url.removeprefix("file://"))
    archive.rename(archive.with_name("away"))
    with pytest.raises(NoAnswer, match=r"no such directory, and no archive; nothing was removed"):
        trimmed(place, story)
    assert_nothing_happened(place, story)
    archive.with_name("away").rename(archive)
    assert trimmed(place, story).offset == place.manifest.floor


def test_another_archive_is_refused(place: Place, story: Story, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    wanted = TrimRequest(before_ms=story.days[DAY])
    with pytest.raises(TrimRefused, match=rf"its archive is {place.objects.url}, not .*other; nothing was removed"):
        trim_directory(place.data, wanted, url=str(tmp_path / "other"))
    (place.data / "log" / "archive.json").unlink()
    with pytest.raises(OtherHistory, match=r"not the archive of the history in .*; nothing was removed"):
        trim_directory(place.data, wanted, url=str(tmp_path / "other"))
    assert_nothing_happened(place, story)
    [report] = trim_directory(place.data, wanted, url=place.objects.url, wall_ms=story.end_ms)
    assert archive_of(place.data) == place.objects.url
    assert_trimmed(place, report.offset)


def test_an_archive_of_other_records_is_refused(place: Place, story: Story, tmp_path: Path) -> None:
    """A history with the same identity that went another way: a copy of the directory, which was archived there."""
    other = copied(place, tmp_path / "other")
    shutil.rmtree(other.objects.url.removeprefix("file://"))
    shutil.rmtree(other.data / "log" / PARTITION)
    shutil.rmtree(other.data / "snapshots")
    write_traffic(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere" / "log" / PARTITION, other.data / "log" / PARTITION)
    close_segments(other.data)
    there = open_objects(str(tmp_path / "there"), make=True)
    Archiver(there, other.data).run()
    note_archive(place.data, there.url)
    with pytest.raises(OtherHistory, match="no archived segment begins with its hash chain: another history"):
        trimmed(place, story)
    assert_nothing_happened(place, story)


@pytest.fixture
def nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question fetches its objects: other tests have read the same ones."""
    monkeypatch.setattr(readers, "cache", readers.Cache(0))


@pytest.mark.usefixtures("nothing_cached")
def test_damage_in_the_archive_alone_is_a_finding(place: Place, story: Story) -> None:
    cut_locally(place)
    entry = place.manifest.segments[0]
    path = Path(place.objects.url.removeprefix("file://")) / place.manifest.key(entry, entry.avro)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    shutil.rmtree(place.data / "snapshots", ignore_errors=True)
    keys = place.keys
    with pytest.raises(LogError, match="damaged at byte"):
        trimmed(place, story)
    assert floors_of(place.data) == {}
    assert place.keys == keys


def test_b26_a_store_that_refuses_to_delete_is_told_and_asked_again(
    place: Place, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Objects, key: str) -> None:
        raise NoAnswer(f"{self.place(key)}: the store refuses (HTTP 403)")

    keys = place.keys
    with monkeypatch.context() as patched:
        patched.setattr(Objects, "delete", refuses)
        said = r"the trim is in the history, but not completed: .*HTTP 403.*: the next run of the archiver"
        with pytest.raises(NoAnswer, match=said):
            trimmed(place, story)
        assert keys < place.keys  # the base came
        assert place.manifest.floor == starts(place.data)[0] > 0
        assert [error for _, error in verify(place.objects, PARTITION) if error is not None] == []
        grown = Archiver(place.objects, place.data)
        with pytest.raises(NoAnswer):  # it has archived what is new before that
            grown.run()
    grown.run()
    assert_trimmed(place, starts(place.data)[0])
    assert ready(place.data, story) == story.ready


# -- several at once -----------------------------------------------------------------------------------------------


def test_an_archiver_that_knows_nothing_of_the_trim_goes_on(place: Place, story: Story) -> None:
    late = Archiver(place.objects, place.data)
    late.run()
    report = trimmed(place, story)
    with Harness(place.data, now_ms=story.end_ms, partitions=1, segment_bytes=SEGMENT_BYTES):
        pass
    close_segments(place.data)
    late.run()
    assert_trimmed(place, report.offset)
    assert place.manifest.end == EmbeddedLogReader(place.data).queues[0].next_offset


@pytest.mark.usefixtures("nothing_cached")
def test_a_reading_that_a_trim_overtakes_says_so(place: Place, story: Story) -> None:
    log = ArchivedLog(place.objects.url).queues[0]
    reading = log.read()
    next(reading)
    report = trimmed(place, story)
    with pytest.raises(BelowStart, match=rf"is below offset {report.offset}, where the history begins.*: ticket 7"):
        list(reading)


# -- recovery ------------------------------------------------------------------------------------------------------


def test_b26_a_fork_from_above_the_floor_begins_at_the_floor(place: Place, story: Story, tmp_path: Path) -> None:
    report = trimmed(place, story)
    moment = format_time(story.days[3])
    for asked in (story.days[0] + 10, story.days[1]):
        said = rf"queues-0 begins at offset {report.offset}.*is before it"
        with pytest.raises(BelowFloor, match=said):
            recover(place.objects, tmp_path / "none", at=format_time(asked))
    close_segments(place.data)
    Archiver(place.objects, place.data).run()  # of the HistoryTrimmed, too
    with pytest.raises(BelowFloor, match="ticket 7"):
        recover(place.objects, tmp_path / "none", at=format_time(story.days[1]))
    recover(place.objects, tmp_path / "fork", at=moment)
    history = topology_of(EmbeddedLogReader(tmp_path / "fork").metadata).history
    floor = history.floors[PARTITION].event
    assert (floor.offset, floor.reason, len(history.forks)) == (report.offset, "ticket 7", 1)
    log, ours = TieredLogReader(tmp_path / "fork").queues[0], TieredLogReader(place.data).queues[0]
    assert (log.start_offset, log.next_offset) == (report.offset, ours.offset_at(story.days[3]))
    assert digest(log, log.next_offset) == digest(ours, log.next_offset)
    base = log.base()
    assert base is not None
    assert base_differs(base, history.floors) is None
    again = open_objects(str(tmp_path / "of the fork"), make=True)
    close_segments(tmp_path / "fork")
    Archiver(again, tmp_path / "fork").run()
    assert_trimmed(Place(tmp_path / "fork", again), report.offset)


def test_a_recovery_logs_the_trim_that_the_archived_metadata_lacks(place: Place, story: Story, tmp_path: Path) -> None:
    report = trimmed(place, story)
    original = floors_of(place.data)[PARTITION].event
    recover(place.objects, tmp_path / "recovered")
    assert floors_of(tmp_path / "recovered")[PARTITION].event == original
    assert original.offset == report.offset
    assert ready(tmp_path / "recovered", story) == story.ready
    close_segments(tmp_path / "recovered")
    Archiver(place.objects, tmp_path / "recovered").run()  # it goes on with the same archive
    recover(place.objects, tmp_path / "once more")
    floors = topology_of(EmbeddedLogReader(tmp_path / "once more").metadata).history.floors
    assert floors[PARTITION].event == original
    assert ready(tmp_path / "once more", story) == story.ready


def test_a_recovery_that_was_begun_before_the_trim_is_told(place: Place, story: Story, tmp_path: Path) -> None:
    moment = format_time(story.days[1] + 10)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recover(place.objects, tmp_path / "fork", stop, at=moment)
    trimmed(place, story, 3)
    with pytest.raises(BelowFloor, match="the recovery was begun up to offset"):
        recover(place.objects, tmp_path / "fork", at=moment)


@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_a_damaged_base_at_the_floor_is_found_and_archived_again(
    place: Place, story: Story, harm: str, tmp_path: Path
) -> None:
    report = trimmed(place, story)
    manifest = place.manifest
    [entry] = [each for each in manifest.bases if each.offset == report.offset]
    path = Path(place.objects.url.removeprefix("file://")) / manifest.key(entry, entry.object)
    content = path.read_bytes()
    path.unlink()
    if harm == "changed":
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    wrong = [str(error) for _, error in verify(place.objects, PARTITION) if error is not None]
    assert wrong
    assert all(path.name in each for each in wrong)
    with pytest.raises(LogError, match=path.name):
        recover(place.objects, tmp_path / "recovered")
    with pytest.raises(LogError, match=path.name):
        ArchivedLog(place.objects.url).queues[0].base()
    path.unlink(missing_ok=True)
    path.write_bytes(content)  # from the versions of a bucket
    assert_trimmed(place, report.offset)
