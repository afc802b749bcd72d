"""Makes a data directory from an archive: its segments byte for byte, proven, and its snapshots.

    recover(open_objects(url), data_dir)

    1  DIR/log/recovery.json       which history is being recovered, from where
    2  DIR/log/PARTITION/          each archived segment: written under another name, synced, renamed; its sidecars
    3  DIR/snapshots/PARTITION/    each archived snapshot, in the same way
    4  the log's own recovery      of each partition (embedded/writer.py): it must lead to the archived hash chain. Then
                                   an empty segment, so that the recovered ones stay as they were archived
    5  DIR/log/layout.json         from here on it is a log; recovery.json is removed

- A killed recovery is begun again by the same command: it keeps whole segments. Until step 5 no broker starts there.
- A directory that has a log, or a broker's state, is refused.
- The recovered history ends where each partition is archived. A broker that starts there repairs what that tears apart
  between partitions, as after a crash.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rewindmq.engine.log.archive.manifest import Manifest, SegmentEntry, SnapshotEntry, read_identity
from rewindmq.engine.log.archive.objects import ArchiveError, MissingObject, Objects
from rewindmq.engine.log.archive.pack import CorruptObject, Unpacked
from rewindmq.engine.log.archive.seals import recover_seals
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import (
    METADATA,
    RECOVERY,
    layout_file,
    partition_directory,
    queue_partition,
    write_layout,
)
from rewindmq.engine.log.embedded.index import first_chain, next_chain
from rewindmq.engine.log.embedded.lock import lock
from rewindmq.engine.log.embedded.segments import segment_files, segment_path, sync_directory
from rewindmq.engine.log.embedded.writer import PartitionWriter, Sidecars
from rewindmq.projections.store.snapshots import Snapshots

_UNBOUNDED = 1 << 62  # bytes of a segment: a recovery begins no segment by size


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """What was recovered of a partition. `until_ms`: the time of its last record; None if it has none."""

    partition: str
    next_offset: int
    until_ms: int | None
    segments: int
    segment_bytes: int
    snapshots: int


def recover(
    objects: Objects, data_dir: Path, progress: Callable[[int, int], None] = lambda done, all: None
) -> list[RecoveredPartition]:
    """Make the log and the snapshots of a data directory from an archive. `progress`: bytes done, and all bytes.

    Raises ArchiveError, CorruptObject, NoAnswer; LogError where the directory has a log, or another recovery was begun;
    OSError."""
    identity = read_identity(objects)
    if identity is None:
        raise ArchiveError(f"{objects.url}: there is no archive")
    names = [METADATA, *map(queue_partition, range(identity.queue_partitions))]
    manifests = [Manifest.load(objects, name) for name in names]
    _require_history(manifests[0], identity.history)
    data_dir.mkdir(parents=True, exist_ok=True)
    if _begun(data_dir, identity.history) and layout_file(data_dir).exists():
        _end(data_dir)  # it was killed behind its last step
        return [_recovered(manifest) for manifest in manifests]
    _require_no_log(data_dir, identity.history)
    descriptor = lock(data_dir)
    try:
        _write(data_dir / "log" / RECOVERY, [json.dumps({"history": identity.history, "from": objects.url}).encode()])
        total = sum(entry.size_bytes for manifest in manifests for entry in manifest.segments)
        done = 0
        for manifest in manifests:
            directory = partition_directory(data_dir, manifest.partition)
            directory.mkdir(exist_ok=True)
            newest_ms = 0
            for entry in manifest.segments:
                _recover_segment(manifest, entry, 0 if entry.begins_anew else newest_ms, directory)
                newest_ms = entry.max_timestamp_ms
                done += entry.size_bytes
                progress(done, total)
            for snapshot in manifest.snapshots:
                _recover_snapshot(manifest, snapshot, Snapshots(data_dir / "snapshots"))
            for path, content in recover_seals(manifest, directory):
                _write(path, [content])
        for manifest in manifests:
            _complete(manifest, partition_directory(data_dir, manifest.partition))
        write_layout(data_dir, identity.queue_partitions)
        _end(data_dir)
    finally:
        os.close(descriptor)
    return [_recovered(manifest) for manifest in manifests]


def _end(data_dir: Path) -> None:
    """Say that the recovery is done."""
    (data_dir / "log" / RECOVERY).unlink()
    sync_directory(data_dir / "log")


def _require_history(metadata: Manifest, history: str) -> None:
    """Check that the archived metadata log is that of the archive's history.

    Raises ArchiveError."""
    if not metadata.segments:
        raise ArchiveError(f"{metadata.objects.url}: nothing of {METADATA} is archived yet: archive it first")
    header = Unpacked(metadata.objects, METADATA, metadata.segments[0]).header
    if next_chain(first_chain(METADATA), header.raw).hex() != history:
        raise ArchiveError(f"{metadata.objects.url}: its {METADATA} belongs to another history than its archive.json")


def _require_no_log(data_dir: Path, history: str) -> None:
    """Check that nothing of another history is in the directory.

    Raises LogError."""
    if layout_file(data_dir).exists():
        raise LogError(f"{data_dir}: there is a log already: recover to another directory")
    if (begun := data_dir / "log" / RECOVERY).exists():
        if not _begun(data_dir, history):
            raise LogError(f"{begun}: the recovery of another history was begun here: recover to another directory")
        return
    here = [data_dir / name for name in ("state", "snapshots", "kafka") if (data_dir / name).exists()]
    here += [path for path in (data_dir / "log").glob("*-[0-9]*") if segment_files(path)]
    if here:
        raise LogError(f"{here[0]}: exists already: recover to another directory")


def _begun(data_dir: Path, history: str) -> bool:
    """Whether a recovery of this history was begun here, and has not said that it is done."""
    try:
        return bool(json.loads((data_dir / "log" / RECOVERY).read_text())["history"] == history)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _recover_segment(manifest: Manifest, entry: SegmentEntry, newest_before_ms: int, directory: Path) -> None:
    """Write a segment as it was, and its sidecars, unless it is there already.

    `newest_before_ms`: the largest time before it, for the index."""
    path = segment_path(directory, entry.base_offset)
    if path.exists() and path.stat().st_size == entry.size_bytes:
        return
    segment = Unpacked(manifest.objects, manifest.partition, entry)
    sidecars = Sidecars(path, entry.base_offset, entry.chain_before, newest_before_ms)
    try:
        sidecars.start(0, entry.base_offset)
        sidecars.cut()

        def pieces() -> Iterator[bytes]:
            yield segment.header.raw
            for number in range(len(segment.archived)):
                for block in segment.read(number):
                    sidecars.add(block.entry, block.lengths)
                    yield block.raw

        _write(path, pieces())
    finally:
        sidecars.close()


def _recover_snapshot(manifest: Manifest, entry: SnapshotEntry, snapshots: Snapshots) -> None:
    """Write a snapshot as it was, unless it is there already.

    Raises CorruptObject."""
    path = snapshots.path(manifest.partition, entry.offset)
    if path.exists():
        return
    key = manifest.key(entry, entry.object)
    sha = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        try:
            for piece in manifest.objects.pieces(key):
                sha.update(piece)
                yield piece
        except MissingObject:
            raise CorruptObject(manifest.objects.place(key), 0, entry.offset, "the object is gone") from None
        if sha.hexdigest() != entry.object.sha256:
            why = "its SHA-256 is not the one in the manifest"
            raise CorruptObject(manifest.objects.place(key), 0, entry.offset, why)

    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, pieces())


def _complete(manifest: Manifest, directory: Path) -> None:
    """Open the partition as a broker does, and begin a segment behind the recovered ones.

    Raises CorruptLog; LogError where the files do not lead to the archived hash chain."""
    segment_path(directory, manifest.end).unlink(missing_ok=True)  # the empty one of a recovery that was killed
    writer = PartitionWriter(directory, _UNBOUNDED, begin=True)
    try:
        if (writer.place.offset, writer.place.chain) != (manifest.end, manifest.chain) and manifest.segments:
            raise LogError(f"{directory}: its segments do not lead to the end of the archive: remove it, recover again")
        writer.roll()
    finally:
        writer.close()


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file whole and durably, or not at all."""
    new = path.with_name(f"_{path.name}.part")
    with new.open("wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fchmod(file.fileno(), 0o640)
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def _recovered(manifest: Manifest) -> RecoveredPartition:
    return RecoveredPartition(
        manifest.partition,
        manifest.end,
        manifest.max_timestamp_ms if manifest.segments else None,
        len(manifest.segments),
        sum(entry.size_bytes for entry in manifest.segments),
        len(manifest.snapshots),
    )
