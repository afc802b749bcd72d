"""A trim of a history with an archive is killed, at each of its steps; and as a command, on a directory and on S3."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments, verify
from rewindmq.engine.keeping.archive.directory_note import archive_of, note_archive
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.tiers import TieredLogReader, floors_of
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.embedded.cut import end_trims
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.projections.marks import topology_of
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.store.snapshots import Snapshots
from tests.support.killed import killed
from tests.support.records import START_MS, fill
from tests.support.trimmed_archive import Place, assert_trimmed, copied, cut_locally, digest
from tests.support.trimming import PARTITION, starts, write_traffic

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, int]:
    """A log that is archived, and a time before which a half of it lies."""
    directory = tmp_path_factory.mktemp("traffic")
    data = directory / "data"
    write_traffic(data, turns=10)
    log = EmbeddedLog.open(data, None)
    fill(log.metadata, range(3))
    log.close()
    reader = PartitionReader(data / "log" / PARTITION)
    machine = state_at(reader, None, At(offset=starts(data)[1]))
    Snapshots(data / "snapshots").take(machine)
    close_segments(data)
    objects = open_objects(str(directory / "archive"), make=True)
    Archiver(objects, data).run()
    note_archive(data, objects.url)
    middle = reader.segments()[len(starts(data)) // 2].max_timestamp_ms + 1
    return Place(data, objects), middle


def do_trim(data: Path, before_ms: int) -> None:
    trim_directory(data, TrimRequest(before_ms=before_ms, accept_findings=True), wall_ms=START_MS + 10**9)


def do_archive(data: Path, before_ms: int) -> None:
    Archiver(open_objects(str(archive_of(data))), data).run()


def do_start(data: Path, before_ms: int) -> None:
    """End a trim as a starting broker does, and archive as the archiver beside it does."""
    log = EmbeddedLog.open(data, None)
    end_trims(data, log.queues, topology_of(EmbeddedLogReader(data).metadata))
    log.close()
    do_archive(data, before_ms)


def assert_nothing_is_lost(before: Place, after: Place, tmp_path: Path) -> int:
    """All is there from the durable floor on, in the archive too. Returns the floor."""
    floor = floors_of(after.data).get(PARTITION)
    begins = 0 if floor is None else floor.event.offset
    manifest = after.manifest
    assert manifest.floor <= begins
    gone = before.keys - after.keys
    assert all(manifest.trimmed_keys[key] <= begins for key in gone), "it is not below a durable HistoryTrimmed"
    missing = [path for path in segment_files(before.data / "log" / PARTITION) if base_offset_of(path) >= begins]
    assert starts(after.data)[0] <= max(begins, starts(before.data)[0])
    assert len(segment_files(after.data / "log" / PARTITION)) >= len(missing)
    assert [error for _, error in verify(after.objects, PARTITION) if error is not None] == []
    recovered = tmp_path / "recovered"
    shutil.rmtree(recovered, ignore_errors=True)
    recover(after.objects, recovered)
    whole = TieredLogReader(before.data).queues[0]
    for log in (TieredLogReader(after.data).queues[0], EmbeddedLogReader(recovered).queues[0]):
        start = max(begins, log.start_offset)
        assert records(log, start) == records(whole, start)
    if begins:
        base = Bases(after.data / "bases").open(PARTITION, begins)
        assert base.digest == digest(whole, begins)
        archived = ArchivedLog(after.objects.url).queues[0]
        if archived.start_offset:
            there = archived.base()
            assert there is not None
            assert list(there.records()) == list(base.records())
    return begins


def records(log: PartitionLog, start: int) -> list[bytes]:
    return [record for block in log.read(start) for record in block.records]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("ends", "local"),
    [
        pytest.param(do_trim, "all", marks=pytest.mark.rare),
        pytest.param(do_archive, "all", marks=pytest.mark.rare),
        (do_archive, "nearly nothing"),
        pytest.param(do_start, "nearly nothing", marks=pytest.mark.rare),
    ],
)
def test_b26_a_kill_at_any_step_is_made_good(
    traffic: tuple[Place, int], ends: Callable[[Path, int], None], local: str, tmp_path: Path
) -> None:
    """SIGKILL before each change of a file: of the log, of bases and snapshots, of the archive."""
    begun, before_ms = copied(traffic[0], tmp_path / "begun"), traffic[1]
    if local != "all":
        cut_locally(begun)
    number, floors, was_killed = 0, set(), True
    while was_killed:
        number += 1
        place = copied(begun, tmp_path / str(number))
        was_killed = killed(tmp_path / str(number), number, do_trim, place.data, before_ms)
        floors.add(assert_nothing_is_lost(begun, place, tmp_path))
        if was_killed and floors_of(place.data):
            ends(place.data, before_ms)
            floor = assert_nothing_is_lost(begun, place, tmp_path)
            assert_trimmed(place, floor)
        shutil.rmtree(tmp_path / str(number))
    assert number > 20
    assert len(floors) == 2
