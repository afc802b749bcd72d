"""The archiver: whatever fails, and whenever, the archive has nothing wrong in it, and the next run makes it whole."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from rewindmq.engine.keeping.archive import archiver as archivers
from rewindmq.engine.keeping.archive import state_files
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments, verify
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.unpack import CorruptObject, Unpacked
from rewindmq.engine.log.contract import CorruptLog, LogError, NoAnswer
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.segments import segment_files
from tests.support.archiving import object_path
from tests.support.examples import rounds
from tests.support.failing_objects import FailingObjects, Killed, T
from tests.support.records import SCHEMA_BYTES, fill, make_log

PARTITIONS = ("metadata-0", "queues-0")
NOW_MS = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two archives of one history are then equal in every byte."""
    for module in (archivers, state_files):
        monkeypatch.setattr(module, "now_ms", lambda: NOW_MS)


def grow(data: Path, start: int, groups: int = 12) -> None:
    """Add records to the log: some segments a partition."""
    log = EmbeddedLog.open(data, 1, segment_bytes=SCHEMA_BYTES + 1_100)
    for number in range(start, start + 10 * groups, 10):
        fill(log.queues[0], range(number, number + 10))
        fill(log.metadata, range(number, number + 2))
        log.commit_and_wait()
    log.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    grow(data, 0)
    for offset in (20, 30, 1_000_000):
        path = data / "snapshots" / "queues-0" / f"{offset:020d}.snapshot"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"snapshot at %d" % offset)
    close_segments(data)
    return data


def contents(directory: Path) -> dict[str, bytes]:
    """All objects of an archive in a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def archived_log(objects: Objects, name: str) -> bytes:
    """All archived segments of a partition, one behind the other."""
    entries = Manifest.load(objects, name).segments
    return b"".join(piece for each in entries for piece in Unpacked(objects, name, each).original_bytes())


def stored_log(data: Path, name: str) -> bytes:
    """All closed segments of a partition, one behind the other."""
    return b"".join(path.read_bytes() for path in segment_files(data / "log" / name)[:-1])


def test_a_run_archives_what_is_closed(data: Path, tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "archive"), make=True)
    told: list[tuple[int, int]] = []
    report = Archiver(objects, data).run(progress=lambda done, total: told.append((done, total)))
    metadata, queues = report.partitions
    assert (metadata.partition, metadata.archived_end, metadata.records) == ("metadata-0", 24, 24)
    assert (queues.partition, queues.archived_end, queues.records, queues.snapshots) == ("queues-0", 120, 120, 2)
    assert queues.segments > 1
    assert queues.segment_bytes == len(stored_log(data, "queues-0"))
    assert told[-1] == (metadata.segment_bytes + queues.segment_bytes,) * 2
    assert [each.offset for each in Manifest.load(objects, "queues-0").snapshots] == [20, 30]
    for name in PARTITIONS:
        assert archived_log(objects, name) == stored_log(data, name)
        assert all(error is None for _, error in verify(objects, name))
    before = contents(tmp_path / "archive")
    again = Archiver(objects, data).run()
    assert [each.segments + each.snapshots for each in again.partitions] == [0, 0]
    assert contents(tmp_path / "archive") == before


def test_the_open_segment_is_left_out_until_it_is_closed(tmp_path: Path) -> None:
    make_log(tmp_path / "data", [10, 10])
    log = EmbeddedLog.open(tmp_path / "data", None)
    fill(log.metadata, range(3))
    log.close()
    archiver = Archiver(open_objects(str(tmp_path / "archive"), make=True), tmp_path / "data")
    assert [each.archived_end for each in archiver.run().partitions] == [0, 0]
    close_segments(tmp_path / "data")
    close_segments(tmp_path / "data")
    assert [each.archived_end for each in archiver.run().partitions] == [3, 20]


def test_a_later_run_goes_on(data: Path, tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "archive"), make=True)
    Archiver(objects, data).run()
    grow(data, 120)
    close_segments(data)
    assert Archiver(objects, data).run().partitions[1].records == 120
    assert archived_log(objects, "queues-0") == stored_log(data, "queues-0")


def test_it_stops_when_it_is_asked(data: Path, tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "archive"), make=True)
    asked = iter([False, False, True])
    report = Archiver(objects, data).run(until=lambda: next(asked))
    assert report.stopped
    assert sum(each.segments for each in report.partitions) == 2
    assert not Archiver(objects, data).run().stopped
    assert archived_log(objects, "queues-0") == stored_log(data, "queues-0")


def steps(data: Path, tmp_path: Path) -> int:
    """Return the number of requests that a run makes to the store."""
    failing = FailingObjects(open_objects(str(tmp_path / "counted"), make=True), 1 << 60, False, Killed())
    Archiver(failing, data).run()
    return (1 << 60) - failing.left


@pytest.mark.long
@pytest.mark.parametrize("done", [False, True], ids=["before it is done", "when it is done"])
@pytest.mark.parametrize("error", [NoAnswer("the store is away"), Killed()], ids=["away", "killed"])
def test_a_store_that_fails_at_any_step_does_no_harm(
    error: BaseException, done: bool, data: Path, tmp_path: Path
) -> None:
    """Nothing counts that is not proven; the next run ends with the archive that an undisturbed one makes."""
    count = steps(data, tmp_path)
    assert count > 30
    whole = contents(tmp_path / "counted")
    for number in range(1, count + 1, rounds(1, 5)):
        directory = tmp_path / f"archive-{number}"
        objects = open_objects(str(directory), make=True)
        with pytest.raises(type(error)):
            Archiver(FailingObjects(objects, number, done, error), data).run()
        for name in PARTITIONS:
            assert stored_log(data, name).startswith(archived_log(objects, name))
            assert all(harm is None for _, harm in verify(objects, name))
        assert contents(directory).items() <= whole.items()
        Archiver(objects, data).run()
        assert contents(directory) == whole


def test_an_archiver_that_fails_again_and_again_gets_there(data: Path, tmp_path: Path) -> None:
    steps(data, tmp_path)
    objects = open_objects(str(tmp_path / "archive"), make=True)
    for number in range(1, 1_000):
        try:
            Archiver(FailingObjects(objects, number, number % 2 == 0, NoAnswer("away")), data).run()
            break
        except NoAnswer:
            pass
    assert contents(tmp_path / "archive") == contents(tmp_path / "counted")


def test_two_archivers_at_once_make_one_archive(data: Path, tmp_path: Path) -> None:
    steps(data, tmp_path)
    failures: list[BaseException] = []

    def archive() -> None:
        try:
            Archiver(open_objects(str(tmp_path / "archive"), make=True), data).run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=archive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert contents(tmp_path / "archive") == contents(tmp_path / "counted")


@pytest.mark.parametrize("number", range(1, 40, 3))
def test_an_archiver_between_the_steps_of_another_one(number: int, data: Path, tmp_path: Path) -> None:
    """The other one does the whole work while this one waits for an answer."""
    steps(data, tmp_path)
    objects = open_objects(str(tmp_path / "archive"), make=True)

    class Interrupted(FailingObjects):
        def _call(self, what: Callable[[], T]) -> T:
            self.left -= 1
            if self.left == 0:
                Archiver(objects, data).run()
            return what()

    Archiver(Interrupted(objects, number, False, Killed()), data).run()
    assert contents(tmp_path / "archive") == contents(tmp_path / "counted")


def test_an_object_that_was_changed_on_its_way_does_not_count(data: Path, tmp_path: Path) -> None:
    """The store says that it has taken the object, and has another one."""

    class Lying(FailingObjects):
        def create(self, key: str, data: bytes | BinaryIO) -> bool:
            if key.endswith(self.suffix):
                if not isinstance(data, bytes):
                    data.seek(0)
                    data = data.read()
                whole = bytearray(data)
                whole[-20] ^= 1
                return super().create(key, bytes(whole))
            return super().create(key, data)

        suffix = ""

    for suffix in (".avro", ".blocks", ".snapshot"):
        objects = open_objects(str(tmp_path / suffix), make=True)
        lying = Lying(objects, 1 << 60, False, Killed())
        lying.suffix = suffix
        if suffix == ".snapshot":
            (data / "snapshots" / "queues-0" / f"{20:020d}.snapshot").write_bytes(b"a snapshot of some length")
        with pytest.raises(CorruptObject, match=suffix):
            Archiver(lying, data).run()
        for name in PARTITIONS:
            assert all(error is None for _, error in verify(objects, name))
        assert not Manifest.load(objects, "queues-0").snapshots


def test_a_damaged_log_is_archived_up_to_the_damage(data: Path, tmp_path: Path) -> None:
    path = segment_files(data / "log" / "queues-0")[1]
    damaged = bytearray(path.read_bytes())
    damaged[-30] ^= 4
    path.write_bytes(damaged)
    objects = open_objects(str(tmp_path / "archive"), make=True)
    with pytest.raises(CorruptLog, match=path.name):
        Archiver(objects, data).run()
    assert len(Manifest.load(objects, "queues-0").segments) == 1


def test_another_history_is_refused(data: Path, tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "archive"), make=True)
    Archiver(objects, data).run()
    other = tmp_path / "other"
    other.mkdir()
    grow(other, 0)
    close_segments(other)
    with pytest.raises(OtherHistory, match="the archive of another history"):
        Archiver(objects, other).run()
    assert archived_log(objects, "queues-0") == stored_log(data, "queues-0")


def test_an_older_copy_of_the_history_is_refused_once_it_goes_its_own_way(data: Path, tmp_path: Path) -> None:
    """The same beginning, so the same identity; then two histories."""
    shutil.copytree(data, tmp_path / "old")
    objects = open_objects(str(tmp_path / "archive"), make=True)
    grow(data, 120)
    close_segments(data)
    Archiver(objects, data).run()
    with pytest.raises(OtherHistory, match="up to which it is archived"):
        Archiver(objects, tmp_path / "old").run()
    grow(tmp_path / "old", 500, groups=40)
    close_segments(tmp_path / "old")
    with pytest.raises(OtherHistory):
        Archiver(objects, tmp_path / "old").run()


def test_an_empty_log_and_none_are_refused(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "archive"), make=True)
    with pytest.raises(LogError, match="no RewindMQ log is here"):
        Archiver(objects, tmp_path).run()
    with pytest.raises(LogError, match="no RewindMQ log is here"):
        close_segments(tmp_path)
    make_log(tmp_path / "data", [])
    with pytest.raises(LogError, match="the log is empty"):
        Archiver(objects, tmp_path / "data").run()
    assert not contents(tmp_path / "archive")


def test_each_damage_is_named(data: Path, tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "archive"), make=True)
    Archiver(objects, data).run()
    manifest = Manifest.load(objects, "queues-0")
    first, second = manifest.segments[:2]
    for path in (object_path(manifest, first, "avro"), object_path(manifest, second, "blocks")):
        path.write_bytes(path.read_bytes()[:-1])
    snapshot = manifest.snapshots[1]
    objects_dir = tmp_path / "archive"
    (objects_dir / manifest.key(snapshot, snapshot.object)).unlink()
    (objects_dir / "queues-0" / "manifest" / f"{snapshot.number + 1:010d}.json").write_text("{}")
    found = [(entry, str(error)) for entry, error in verify(objects, "queues-0") if error is not None]
    assert [entry for entry, _ in found] == [first, second, snapshot, None]
    for (_, text), part in zip(found, (first.avro.name, second.blocks.name, "is gone", ".json"), strict=True):
        assert part in text
