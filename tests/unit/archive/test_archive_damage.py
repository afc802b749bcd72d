"""A changed byte, anywhere in any object of an archive: it is found, its object is named, and it is never given out."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.keeping.archive import manifest as manifests
from rewindmq.engine.keeping.archive import pack as packs
from rewindmq.engine.keeping.archive import reader as readers
from rewindmq.engine.keeping.archive.archiver import Archiver, close_segments, verify
from rewindmq.engine.keeping.archive.identity import read_identity
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.archive.snapshots import ArchivedSnapshots
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots
from tests.support.examples import examples
from tests.support.records import SCHEMA_BYTES, START_MS, expected, fill

PARTITIONS = ("metadata-0", "queues-0")
COUNT = 120
TIMES = range(START_MS - 1, START_MS + COUNT, 17)


@dataclass
class Archive:
    objects: Objects
    directory: Path
    keys: list[str]
    offsets: list[int]  # of the moments of TIMES


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Several segments a partition, of several archived blocks each, a snapshot, and pages."""
    directory = tmp_path_factory.mktemp("damage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "BLOCK_BYTES", 700)
        patch.setattr(manifests, "ENTRIES", 3)
        log = EmbeddedLog.open(directory / "data", 1, segment_bytes=SCHEMA_BYTES + 1_100)
        for number in range(0, COUNT, 5):
            fill(log.queues[0], range(number, number + 5))
            fill(log.metadata, range(number, number + 5))
            log.commit_and_wait()
        log.close()
        close_segments(directory / "data")
        Snapshots(directory / "data" / "snapshots").take(Machine("queues-0"))
        Archiver(open_objects(str(directory / "archive"), make=True), directory / "data").run()
    objects = open_objects(str(directory / "archive"))
    keys = sorted(str(path.relative_to(directory / "archive")) for path in (directory / "archive").rglob("*.*"))
    assert {key.split("/")[1] for key in keys if "/" in key} == {"manifest", "pages", "segments", "snapshots"}
    partition = ArchivedLog(objects.url).queues[0]
    return Archive(objects, directory / "archive", keys, [partition.offset_at(time) for time in TIMES])


def errors(objects: Objects) -> list[str]:
    """Return the errors that a verification of the whole archive finds."""
    try:
        assert read_identity(objects) is not None
    except LogError as error:
        return [str(error)]
    return [str(error) for name in PARTITIONS for _, error in verify(objects, name) if error is not None]


def read_everything(archive: Archive) -> None:
    """Read all that the archive gives out. What it gives out is what was archived."""
    log = ArchivedLog(archive.objects.url)
    for partition in log.partitions:
        at = 0
        for block in partition.read():
            assert block.first_offset == at
            assert block.records == expected(COUNT)[at : at + len(block.records)]
            at += len(block.records)
        assert at == COUNT
        for time, offset in zip(TIMES, archive.offsets, strict=True):
            assert partition.offset_at(time) == offset
    snapshots = ArchivedSnapshots(archive.objects.url)
    assert [snapshots.load("queues-0", offset).next_offset for offset in snapshots.offsets("queues-0")] == [0]


def changed(archive: Archive, key: str, data: bytes) -> list[str]:
    """Return the errors that a verification finds if the object has these bytes. Readers give out nothing wrong."""
    path = archive.directory / key
    whole = path.read_bytes()
    path.write_bytes(data)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manifests, "ENTRIES", 3)
            patch.setattr(readers, "cache", readers.Cache(readers.CACHE_BYTES))
            found = errors(archive.objects)
            with contextlib.suppress(LogError, SnapshotError):
                read_everything(archive)
            return found
    finally:
        path.write_bytes(whole)


def test_nothing_is_wrong_with_the_whole_archive(archive: Archive) -> None:
    assert changed(archive, archive.keys[0], (archive.directory / archive.keys[0]).read_bytes()) == []
    read_everything(archive)


@pytest.mark.long
@settings(max_examples=examples(75), deadline=None)
@given(data=st.data(), at=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_changed_byte_is_found_and_located(archive: Archive, data: st.DataObject, at: float, mask: int) -> None:
    key = data.draw(st.sampled_from(archive.keys))
    whole = bytearray((archive.directory / key).read_bytes())
    whole[int(at * len(whole))] ^= mask
    found = changed(archive, key, bytes(whole))
    assert found
    assert all(key in text for text in found), found


@pytest.mark.long
@settings(max_examples=examples(50), deadline=None)
@given(data=st.data(), at=st.floats(0, 1, exclude_max=True), more=st.binary(max_size=3))
def test_an_object_of_another_length_is_found_and_located(
    archive: Archive, data: st.DataObject, at: float, more: bytes
) -> None:
    key = data.draw(st.sampled_from(archive.keys))
    whole = (archive.directory / key).read_bytes()
    for wrong in (whole[: int(at * len(whole))], whole + (more or b"\n")):
        found = changed(archive, key, wrong)
        assert found
        assert all(key in text for text in found), found
