"""Segments for tests of the archive: written as the log writes them, and packed into an archive."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rewindmq.engine.log.archive.manifest import Manifest, SegmentEntry
from rewindmq.engine.log.archive.objects import Objects, open_objects
from rewindmq.engine.log.archive.pack import Unpacked, pack
from rewindmq.engine.log.embedded.reader import Place
from rewindmq.engine.log.embedded.segments import max_timestamp, segment_files
from rewindmq.engine.log.embedded.writer import PartitionWriter


def write_segment(directory: Path, groups: Sequence[Sequence[bytes]], segment_bytes: int = 1 << 40) -> list[Path]:
    """Write a partition with a block for each group of records. Returns its segments."""
    directory.mkdir(parents=True)
    writer = PartitionWriter(directory, segment_bytes, begin=True)
    for group in groups:
        writer.write(group, max_timestamp(group))
    writer.close()
    return segment_files(directory)


def archive_segments(objects: Objects, directory: Path, files: Sequence[Path]) -> Manifest:
    """Archive these segments of a partition, without proof."""
    manifest = Manifest.load(objects, directory.name)
    for path in files:
        before = Place(manifest.end, 0, manifest.chain, manifest.max_timestamp_ms)
        with pack(path, before, archived_ms=7) as packed:
            entry = packed.entry
            objects.create(manifest.key(entry, entry.avro), packed.avro)
            objects.create(manifest.key(entry, entry.blocks), packed.blocks)
        manifest.extend(entry)
    return manifest


def unpacked(manifest: Manifest, number: int = 0) -> Unpacked:
    return Unpacked(manifest.objects, manifest.partition, manifest.segments[number])


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
