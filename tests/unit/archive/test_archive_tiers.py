"""Reading through two tiers: as if no segment had ever been removed here; and what is said where a tier is missing."""

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.archiver import Archiver
from rewindmq.engine.keeping.archive.directory_note import archive_of, note_archive
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.local_space import SpaceLimits, keep_local
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.keeping.tiers import TieredLogReader, TieredPartition
from rewindmq.engine.log.contract import BelowStart, Block, CorruptLog, LogError, NoAnswer
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.values import Actor
from tests.support.records import START_MS, fill
from tests.support.traffic import Traffic

SMALL = SpaceLimits(size_bytes=1)


def make(data: Path, clock_set: bool = False) -> None:
    """A log of about 20 segments of traffic; `clock_set`: in the middle the time begins anew."""
    log = EmbeddedLog.open(data, 1, segment_bytes=4_000)
    fill(log.metadata, range(3))
    traffic = Traffic(5, log=log.queues[0])
    for number in range(40):
        if clock_set and number == 12:
            log.queues[0].begin_time_anew()
            traffic.now_ms -= 1_000
        traffic.run(15)
        log.commit_and_wait()
    log.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make(tmp_path / "data")
    return tmp_path / "data"


def archived_and_cut(data: Path) -> Path:
    """Archive the log, and remove all that may go. Returns a copy of the data directory as it was before."""
    whole = data.with_name("whole")
    shutil.copytree(data, whole)
    objects = open_objects(str(data.with_name("archive")), make=True)
    Archiver(objects, data).run()
    report = keep_local(data, objects, SMALL)
    assert report.freed_bytes > 0
    return whole


def partition(data: Path) -> TieredPartition:
    return TieredLogReader(data).queues[0]


def shown(blocks: Iterator[Block]) -> list[tuple[int, list[bytes], int, bytes]]:
    return [(each.first_offset, list(each.records), each.max_timestamp_ms, each.chain) for each in blocks]


def test_reading_does_not_see_the_cut(data: Path) -> None:
    whole = EmbeddedLogReader(archived_and_cut(data)).queues[0]
    log = partition(data)
    start = log.local.start_offset
    assert start > 300
    assert (log.start_offset, log.next_offset, log.durable_offset) == (0, whole.next_offset, whole.next_offset)
    assert shown(log.read()) == shown(whole.read())
    bounds = [(0, 1), (start - 1, start + 1), (start - 1, start), (start, start + 1), (17, 400), (start, None)]
    for first, end in bounds:
        assert shown(log.read(first, end)) == shown(whole.read(first, end)), (first, end)
    ranges = [(3, 9), (start - 2, start + 2), (start + 5, start + 6)]
    assert shown(log.read_ranges(ranges)) == shown(whole.read_ranges(ranges))
    assert next(each.base_offset for each in log.segments()) == start


@pytest.mark.parametrize("clock_set", [False, True])
def test_times_are_found_in_both_tiers(tmp_path: Path, clock_set: bool) -> None:
    make(tmp_path / "data", clock_set)
    whole = EmbeddedLogReader(archived_and_cut(tmp_path / "data")).queues[0]
    log = partition(tmp_path / "data")
    blocks = list(whole.read())
    times = {time for block in blocks for time in (block.max_timestamp_ms - 1, block.max_timestamp_ms)}
    for time in (0, *sorted(times), max(times) + 9):
        assert log.offset_at(time) == whole.offset_at(time), time


def test_the_fold_is_that_of_the_whole_log(data: Path) -> None:
    whole = archived_and_cut(data)
    digests = []
    for log in (InDirectory(data).open().queues[0], InDirectory(whole).open().queues[0]):
        machine = Machine(log.name)
        fold(machine, log)
        digests.append(machine.digest())
    assert digests[0] == digests[1]


def test_another_process_reads_the_same(data: Path) -> None:
    archived_and_cut(data)
    there = pickle.loads(pickle.dumps(partition(data)))
    assert shown(there.read(0, 20)) == shown(partition(data).read(0, 20))


def test_what_is_local_is_read_while_the_archive_is_away(data: Path) -> None:
    whole = EmbeddedLogReader(archived_and_cut(data)).queues[0]
    data.with_name("archive").rename(data.with_name("elsewhere"))
    log = partition(data)
    start = log.local.start_offset
    assert shown(log.read(start)) == shown(whole.read(start))
    newest = list(whole.read())[-1].max_timestamp_ms
    assert log.offset_at(newest) == whole.offset_at(newest)
    with pytest.raises(NoAnswer, match=r"archive.*no such directory"):
        list(log.read(start - 1))
    with pytest.raises(NoAnswer, match="no such directory"):
        log.offset_at(0)


def test_without_an_archive_the_error_names_the_start_and_the_commands(data: Path) -> None:
    archived_and_cut(data)
    (data / "log" / "archive.json").unlink()
    log = partition(data)
    start = log.local.start_offset
    assert log.start_offset == 0
    with pytest.raises(BelowStart, match=rf"offset 7 is below offset {start}.*rewindmq recover --archive URL"):
        list(log.read(7))
    with pytest.raises(BelowStart, match=rf"{start}.*--archive URL"):
        log.offset_at(START_MS - 10_000_000_000)


def test_below_the_floor_the_error_says_who_trimmed_and_when(data: Path) -> None:
    archived_and_cut(data)
    floor = segment_files(data.with_name("whole") / "log" / "queues-0")[3]
    log = EmbeddedLog.open(data, 1)
    event = HistoryTrimmed(
        "queues-0", base_offset_of(floor), until_ms=START_MS, chain=b"c" * 32, digest="d", findings=(), reason="by law"
    )
    encoder = Encoder()
    log.metadata.append(START_MS + 9, encoder.encode(encoder.prefix(START_MS + 9, Actor("ann", 1)), event))
    log.close()
    reader = partition(data)
    assert reader.start_offset == base_offset_of(floor)
    assert next(reader.read(reader.start_offset)).first_offset == reader.start_offset
    said = rf"below offset {base_offset_of(floor)}.*user 'ann' trimmed .* at 2025-11-21T09:04:05"
    with pytest.raises(BelowStart, match=said):
        list(reader.read(base_offset_of(floor) - 1))


def test_the_archive_of_another_history_is_not_read(data: Path, tmp_path: Path) -> None:
    archived_and_cut(data)
    other = tmp_path / "other" / "data"
    make(other)
    archived_and_cut(other)
    note_archive(data, f"file://{tmp_path}/other/archive")
    with pytest.raises(CorruptLog, match="another history"):
        list(partition(data).read())


def test_an_archive_that_ends_before_the_start_is_named(data: Path, tmp_path: Path) -> None:
    archived_and_cut(data)
    (tmp_path / "empty").mkdir()
    note_archive(data, f"file://{tmp_path}/empty")
    with pytest.raises(LogError, match="ends at offset 0 of queues-0, and the local log begins at"):
        list(partition(data).read())


def test_a_reading_goes_on_in_the_archive_when_the_log_is_cut_meanwhile(data: Path) -> None:
    objects = open_objects(str(data.with_name("archive")), make=True)
    Archiver(objects, data).run()
    note_archive(data, objects.url)
    whole = shown(PartitionReader(data / "log" / "queues-0").read())
    log = partition(data)
    reading = log.read()
    first = [next(reading), next(reading)]
    assert keep_local(data, objects, SMALL).freed_bytes > 0
    assert shown(iter([*first, *reading])) == whole


def test_a_reader_of_the_local_log_alone_says_that_it_was_cut(data: Path) -> None:
    objects = open_objects(str(data.with_name("archive")), make=True)
    Archiver(objects, data).run()
    reader = PartitionReader(data / "log" / "queues-0")
    reading = reader.read()
    next(reading)
    keep_local(data, objects, SMALL)
    with pytest.raises(LogError, match=f"it was cut off, the log begins at offset {reader.start_offset} now"):
        list(reading)
    assert reader.next_offset == Manifest.load(objects, "queues-0").end + len(
        [record for block in reader.read(Manifest.load(objects, "queues-0").end) for record in block.records]
    )


def test_the_note_names_the_archive_without_a_login(data: Path) -> None:
    assert archive_of(data) is None
    archived_and_cut(data)
    assert archive_of(data) == f"file://{data.with_name('archive')}"
    (data / "log" / "archive.json").write_text("[]")
    with pytest.raises(LogError, match="does not name an archive"):
        archive_of(data)
