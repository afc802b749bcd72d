"""Segments for tests of the archive: written as the log writes them, and packed into an archive."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from rewindmq.engine.keeping.archive.identity import HistoryIdentity, require_identity
from rewindmq.engine.keeping.archive.manifest import Manifest, SegmentEntry, SnapshotEntry, StoredObject
from rewindmq.engine.keeping.archive.objects import Objects, open_objects
from rewindmq.engine.keeping.archive.pack import pack
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.log.embedded.reader import BlockEnd, PartitionReader, StoredBlock
from rewindmq.engine.log.embedded.root import history_begun_with
from rewindmq.engine.log.embedded.segments import base_offset_of, parse_header, record_timestamp, segment_files
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.projections.store.snapshots import Snapshots


def write_segment(directory: Path, groups: Sequence[Sequence[bytes]], segment_bytes: int = 1 << 40) -> list[Path]:
    """Write a partition with a block for each group of records. Returns its segments."""
    directory.mkdir(parents=True)
    writer = PartitionWriter(directory, segment_bytes, begin=True)
    for group in groups:
        writer.write(group, max(map(record_timestamp, group)))
    writer.close()
    return segment_files(directory)


def archive_segments(objects: Objects, directory: Path, files: Sequence[Path]) -> Manifest:
    """Archive these segments of a partition, without proof."""
    manifest = Manifest.load(objects, directory.name)
    for path in files:
        before = BlockEnd(manifest.end, 0, manifest.chain, manifest.max_timestamp_ms)
        with pack(path, before, archived_ms=7) as packed:
            entry = packed.entry
            objects.create(manifest.key(entry, entry.avro), packed.avro)
            objects.create(manifest.key(entry, entry.blocks), packed.blocks)
        manifest.extend(entry)
    return manifest


def unpacked(manifest: Manifest, number: int = 0) -> Unpacked:
    return Unpacked(manifest.objects, manifest.partition, manifest.segments[number])


def stored_blocks(segment: Unpacked) -> list[StoredBlock]:
    """The blocks of an archived segment as they were stored."""
    assert segment.header is not None
    blocks: list[StoredBlock] = []
    for number in range(len(segment.archived)):
        blocks += segment.stored_blocks(number, blocks[-1].entry.end if blocks else len(segment.header.raw))
    return blocks


def original(manifest: Manifest, number: int = 0) -> bytes:
    """The bytes of an archived segment."""
    return b"".join(unpacked(manifest, number).original_bytes())


def object_path(manifest: Manifest, entry: SegmentEntry, suffix: str) -> Path:
    """The file of an object, in an archive that is a directory."""
    stored = {"avro": entry.avro, "blocks": entry.blocks}[suffix]
    return Path(manifest.objects.url.removeprefix("file://")) / manifest.key(entry, stored)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "archive"), make=True)


def archive_all(data: Path, url: str, begun_with: int | None = None) -> Objects:
    """Archive a closed data directory with its last segments and its snapshots, without proof.

    `begun_with`: the number of queue partitions with which the archive is begun, before it grows."""
    objects = open_objects(url, make=True)
    directories = [data / "log" / "metadata-0", *sorted((data / "log").glob("queues-*"))]
    header = parse_header(segment_files(directories[0])[0].read_bytes())
    history = history_begun_with(header)
    for count in (begun_with or len(directories) - 1, len(directories) - 1):
        require_identity(objects, HistoryIdentity(history, count))
    for directory in directories:
        reader = PartitionReader(directory)
        ends = {segment.file: segment.next_offset for segment in reader.segments()}
        files = [path for path in segment_files(directory) if ends[path] > base_offset_of(path)]
        manifest = archive_segments(objects, directory, files)
        archive_snapshots(manifest, Snapshots(data / "snapshots"))
    return objects


def archive_snapshots(manifest: Manifest, snapshots: Snapshots) -> None:
    """Archive the snapshots of a partition."""
    for offset in snapshots.offsets(manifest.partition):
        data = snapshots.path(manifest.partition, offset).read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        entry = SnapshotEntry(
            offset, StoredObject(f"{offset:020d}-{sha256[:16]}.snapshot", len(data), sha256), archived_ms=7
        )
        manifest.objects.create(manifest.key(entry, entry.object), data)
        manifest.extend(entry)


def segment_entry(base: int, chain_before: bytes, chain: bytes | None = None) -> SegmentEntry:
    """A segment of 10 records."""
    stored = StoredObject(f"{base:020d}.avro", 1_000, "c" * 64)
    chain = chain or bytes([base + 1]) * 32
    return SegmentEntry(
        base, base + 10, base, 5, 6, False, chain_before, chain, base + 10, chain, 99, stored, stored, 7
    )


def snapshot_entry(offset: int) -> SnapshotEntry:
    return SnapshotEntry(offset, StoredObject(f"{offset:020d}.snapshot", 10, "d" * 64), 7)
