"""A data directory from the archive alone: byte for byte, whatever was killed on the way. A broker goes on there."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive import pack as packs
from rewindmq.engine.keeping.archive import recovery as recoveries
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments
from rewindmq.engine.keeping.archive.descriptions import decode_checked, encode_checked
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects, open_objects
from rewindmq.engine.keeping.archive.recovery import recover
from rewindmq.engine.keeping.archive.unpack import CorruptObject
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import RECOVERY
from rewindmq.engine.log.embedded.index import index_path, lengths_path
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from rewindmq.projections import system_calls
from tests.support.archiving import object_path
from tests.support.broker_harness import Harness
from tests.support.examples import rounds
from tests.support.failing_objects import Killed
from tests.support.records import SCHEMA_BYTES, fill

SEGMENT_BYTES = SCHEMA_BYTES + 2_100


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed log of some segments a partition, with time that was set back, and two snapshots."""
    monkeypatch.setattr(packs, "BLOCK_BYTES", 1_000)
    data = tmp_path / "data"
    data.mkdir()
    log = EmbeddedLog.open(data, 2, SEGMENT_BYTES)
    for number in range(0, 400, 10):
        if number == 200:
            log.queues[0].begin_time_anew()
        fill(log.queues[0], range(number % 200, number % 200 + 10))
        fill(log.metadata, range(number, number + 4))
        log.commit_and_wait()
    log.close()
    for offset in (20, 30):
        path = data / "snapshots" / "queues-0" / f"{offset:020d}.snapshot"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"snapshot at %d" % offset)
    close_segments(data)
    return data


@pytest.fixture
def archive(data: Path, tmp_path: Path) -> Objects:
    objects = open_objects(str(tmp_path / "archive"), make=True)
    Archiver(objects, data).run()
    return objects


def same(data: Path, recovered: Path) -> bool:
    """Require that all closed segments with their sidecars are equal, and return True if all snapshots are."""
    for directory in ("log/metadata-0", "log/queues-0", "log/queues-1"):
        ours, theirs = segment_files(recovered / directory), segment_files(data / directory)
        assert [path.name for path in ours] == [path.name for path in theirs]
        for one, other in zip(ours[:-1], theirs[:-1], strict=True):
            for beside in (lambda path: path, index_path, lengths_path):
                assert beside(one).read_bytes() == beside(other).read_bytes(), beside(one)
    stored = [sorted((path.name, path.read_bytes()) for path in d.glob("snapshots/*/*")) for d in (data, recovered)]
    assert not list(recovered.rglob("*.part"))
    assert not (recovered / "log" / RECOVERY).exists()
    return stored[0] == stored[1]


def test_every_byte_comes_back(archive: Objects, data: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = recover(archive, tmp_path / "recovered", lambda done, total: told.append((done, total)))
    assert same(data, tmp_path / "recovered")
    assert told[-1][0] == told[-1][1] == sum(each.segment_bytes for each in report)
    stored = EmbeddedLogReader(data)
    assert [(each.partition, each.next_offset, each.snapshots) for each in report] == [
        ("metadata-0", 160, 0),
        ("queues-0", 400, 2),
        ("queues-1", 0, 0),
    ]
    assert [each.until_ms is None for each in report] == [False, False, True]
    for partition in EmbeddedLogReader(tmp_path / "recovered").partitions:
        [other] = [each for each in stored.partitions if each.name == partition.name]
        assert [block.chain for block in partition.read()] == [block.chain for block in other.read()]


def test_a_recovered_log_goes_on_and_is_archived_further(archive: Objects, tmp_path: Path) -> None:
    recover(archive, tmp_path / "recovered")
    log = EmbeddedLog.open(tmp_path / "recovered", None, SEGMENT_BYTES)
    fill(log.queues[0], range(400, 500))
    fill(log.queues[1], range(5))
    log.commit_and_wait()
    log.close()
    for directory in (tmp_path / "recovered" / "log").glob("*-[0-9]"):
        list(verify_chain(directory))
    close_segments(tmp_path / "recovered")
    report = Archiver(archive, tmp_path / "recovered").run()
    assert [each.archived_end for each in report.partitions] == [160, 500, 5]


def steps(monkeypatch: pytest.MonkeyPatch, killed_at: int) -> list[str]:
    """Kill the recovery when it is about to do its n-th step on the disk. Returns the steps."""
    done: list[str] = []

    def counted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            if len(done) == killed_at:
                raise Killed
            done.append(name)
            return function(*args, **named)

        return call

    for owner, name in (
        (system_calls, "sync_directory"),
        (recoveries, "write_layout"),
        (recoveries, "PartitionWriter"),
        (os, "fchmod"),
        (system_calls, "sync"),
        (Path, "replace"),
        (Path, "unlink"),
        (Path, "mkdir"),
    ):
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return done


@pytest.mark.long
def test_a_recovery_that_is_killed_at_any_step_is_begun_again(archive: Objects, data: Path, tmp_path: Path) -> None:
    killed_at, finished = 0, False
    while not finished:
        directory = tmp_path / "recovered"
        with pytest.MonkeyPatch.context() as patch:
            steps(patch, killed_at)
            try:
                recover(archive, directory)
                finished = True
            except Killed:
                pass
        begun = (directory / "log" / RECOVERY).exists()
        if begun and not (directory / "log" / "layout.json").exists():  # no broker takes it for a log
            with pytest.raises(LogError, match="was cut short: run `rewindmq recover` again"):
                EmbeddedLog.open(directory, None)
        if begun or not directory.exists() or not (directory / "log" / "layout.json").exists():
            assert [each.next_offset for each in recover(archive, directory)]
        assert not (directory / "log" / RECOVERY).exists()
        assert same(data, directory)
        shutil.rmtree(directory)
        killed_at += rounds(1, 4)
    assert killed_at > 60


def test_a_directory_with_a_log_or_a_state_is_refused(archive: Objects, data: Path, tmp_path: Path) -> None:
    with pytest.raises(LogError, match="it already has a log"):
        recover(archive, data)
    (tmp_path / "other" / "state").mkdir(parents=True)
    with pytest.raises(LogError, match="state: already exists"):
        recover(archive, tmp_path / "other")
    begun = tmp_path / "begun" / "log"
    begun.mkdir(parents=True)
    (begun / RECOVERY).write_text('{"history": "00"}')
    with pytest.raises(LogError, match="the recovery of another history was begun here"):
        recover(archive, tmp_path / "begun")
    empty = open_objects(str(tmp_path / "nothing"), make=True)
    with pytest.raises(ArchiveError, match="there is no archive"):
        recover(empty, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("suffix", ["avro", "blocks", "snapshot"])
def test_damage_stops_the_recovery_and_is_named(archive: Objects, tmp_path: Path, suffix: str) -> None:
    manifest = Manifest.load(archive, "queues-0")
    path = (
        tmp_path / "archive" / manifest.key(manifest.snapshots[0], manifest.snapshots[0].object)
        if suffix == "snapshot"
        else object_path(manifest, manifest.segments[1], suffix)
    )
    whole = path.read_bytes()
    path.write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:] if len(whole) > 30 else b"other")
    with pytest.raises(CorruptObject, match=path.name):
        recover(archive, tmp_path / "recovered")
    if suffix == "snapshot":
        with pytest.raises(LogError, match="was cut short"):
            EmbeddedLog.open(tmp_path / "recovered", None)
    else:
        assert not (tmp_path / "recovered").exists(), "all is read once before anything is written"
    path.write_bytes(whole)
    recover(archive, tmp_path / "recovered")
    assert same(tmp_path / "data", tmp_path / "recovered")


def test_an_archive_whose_metadata_is_of_another_history_is_refused(archive: Objects, tmp_path: Path) -> None:
    path = tmp_path / "archive" / "archive.json"
    history = Manifest.load(archive, "queues-0").chain.hex()
    values = decode_checked(path.read_bytes(), str(path))
    path.write_bytes(encode_checked(values | {"history": history}))
    with pytest.raises(ArchiveError, match=r"belongs to another history than its archive\.json"):
        recover(archive, tmp_path / "recovered")


def test_a_broker_goes_on_with_the_queues_as_they_were(tmp_path: Path) -> None:
    with Harness(tmp_path / "data", partitions=2) as original:
        session = original.session()
        for name in ("orders", "mails"):
            original.declare(session, name, durable=True)
        for number in range(50):
            original.publish(session, "", "orders", b"%d" % number)
        original.fetch(session, "orders")
        original.settle()
    close_segments(tmp_path / "data")
    objects = open_objects(str(tmp_path / "archive"), make=True)
    Archiver(objects, tmp_path / "data").run()
    recover(objects, tmp_path / "recovered")
    shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("state", "lock"))
    with Harness(tmp_path / "copy") as same_start, Harness(tmp_path / "recovered") as recovered:
        assert recovered.digests() == same_start.digests()
        assert recovered.ready("orders") == [b"%d" % number for number in range(1, 50)]
        recovered.publish(recovered.session(), "", "orders", b"new")
        recovered.settle()
        assert recovered.ready("orders")[-1] == b"new"
