"""The archiver: copies new history of a data directory into the archive, even while a broker runs.

    report = Archiver(open_objects(url, make=True), data_dir).run()

For each partition, the metadata log first, and for each closed segment after the end of the manifest:

    1  pack        every block is verified, and the segment must continue where the archive ends
    2  create      both objects, under names derived from their bytes
    3  prove       both objects are read back: SHA-256, and the hash chain of the log
    4  extend      one entry in the manifest: from here on the segment counts as archived

A partition whose local log was trimmed past the archived end begins there, with its base (trims.py). At the end of a
run, interrupted trims are completed, and objects below a floor are deleted.

Snapshots below the archived end and seals (seals.py) follow in the same way. The last segment of a partition is left
out, because it is still being written.

- A crash before step 4 leaves objects that no entry names. The next run packs the same bytes and finds them.
- Partitions added by a repartition have manifests from the next run on, before the metadata log places queues there.
- Two archivers of one history do the same work, and one of them extends the manifest. `archive.json`, or the hash
  chain, stops an archiver of another history.
- Keys of subjects are not archived.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from rewindmq import failpoints
from rewindmq.engine.keeping.archive.branch import partitions_until
from rewindmq.engine.keeping.archive.identity import HistoryIdentity, identity_of, require_identity
from rewindmq.engine.keeping.archive.manifest import (
    BaseEntry,
    Entry,
    Manifest,
    OtherHistory,
    SnapshotEntry,
    archived_bytes,
    now_ms,
)
from rewindmq.engine.keeping.archive.objects import ArchiveError, MissingObject, Objects
from rewindmq.engine.keeping.archive.pack import Packed, pack
from rewindmq.engine.keeping.archive.pages import page_key
from rewindmq.engine.keeping.archive.seals import archive_seals
from rewindmq.engine.keeping.archive.state_files import OtherBase, archive_file, floor_base, prove_file
from rewindmq.engine.keeping.archive.trims import durable_floors, end_trim
from rewindmq.engine.keeping.archive.unpack import CorruptObject, Unpacked
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import (
    METADATA,
    partition_directory,
    queue_partition,
    read_layout,
)
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import BlockEnd, PartitionReader
from rewindmq.engine.log.embedded.segments import base_offset_of, record_timestamp, segment_files, stated_chain
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.store.snapshots import Snapshots


@dataclass(slots=True)
class PartitionReport:
    """The result of a run for one partition. Sizes of segments, and of the objects that hold them, are in bytes."""

    partition: str
    archived_end: int = 0
    segments: int = 0
    records: int = 0
    segment_bytes: int = 0
    archived_bytes: int = 0
    snapshots: int = 0


@dataclass(slots=True)
class ArchiveReport:
    """The result of a run. `stopped`: it was told to end before everything was archived."""

    partitions: list[PartitionReport] = field(default_factory=list)
    stopped: bool = False


class Archiver:
    """An archiver of one data directory's history."""

    def __init__(self, objects: Objects, data_dir: Path) -> None:
        self._objects = objects
        self._data_dir = data_dir
        self._snapshots = Snapshots(data_dir / "snapshots")
        self._bases = Bases(data_dir / "bases")
        self.manifests: list[Manifest] = []  # of the metadata log and each queue partition, once a run has read them
        self._seals: dict[str, str] = {}  # the key of the last archived seal, by partition

    def run(
        self, until: Callable[[], bool] = lambda: False, progress: Callable[[int, int], None] = lambda done, all: None
    ) -> ArchiveReport:
        """Archive everything closed that is not yet archived.

        `until`: called before each segment, True to stop. `progress`: called with the bytes done and all bytes.
        Raises OtherHistory, CorruptLog (of the log, or of an object read back), LogError, NoAnswer."""
        identity = identity_of(self._data_dir)
        failpoints.reached("archive.before_manifests")
        try:
            manifests = self._read_manifests(identity)
        except OtherHistory:
            if identity_of(self._data_dir) == identity:
                raise
            return self.run(until, progress)  # partitions were added, and another archiver was faster
        for manifest in manifests[1:]:
            if self._begins_behind(manifest):
                self._end_trim(manifest)
        failpoints.reached("archive.before_listing")
        directories = [partition_directory(self._data_dir, manifest.partition) for manifest in manifests]
        waiting = [segments_behind(*each)[:-1] for each in zip(directories, manifests, strict=True)]
        if identity_of(self._data_dir) != identity:  # queues may be in added ones now
            return self.run(until, progress)
        total = sum(path.stat().st_size for paths in waiting for path in paths)
        done = 0
        report = ArchiveReport()
        for manifest, paths in zip(manifests, waiting, strict=True):
            of_partition = PartitionReport(manifest.partition)
            report.partitions.append(of_partition)
            manifest.make_pages()  # left out by a run that was stopped
            for path in paths:
                if report.stopped or until():
                    report.stopped = True
                    break
                if base_offset_of(path) == manifest.end:  # otherwise another archiver has just done it
                    self.archive_segment(manifest, path, of_partition)
                done += path.stat().st_size
                progress(done, total)
            if not report.stopped:
                for offset in self._snapshots.offsets(manifest.partition):
                    archive_snapshot(manifest, self._snapshots, offset, of_partition)
                self._archive_seals(manifest)
            of_partition.archived_end = manifest.end
        for manifest, of_partition in zip(manifests[1:], report.partitions[1:], strict=True):
            if not report.stopped:
                self._end_trim(manifest)
                of_partition.archived_end = manifest.end
        return report

    def _read_manifests(self, identity: HistoryIdentity) -> list[Manifest]:
        """Return all manifests of this history; a later run reads only the new entries.

        Raises OtherHistory, ArchiveError, NoAnswer."""
        known, self.manifests = self.manifests, []  # after an error, the next run reads all entries again
        for manifest in known:
            manifest.refresh()

        def made_with() -> int:
            log = PartitionReader(partition_directory(self._data_dir, METADATA))
            return partitions_until(log, 0, identity.queue_partitions)

        metadata = require_identity(self._objects, identity, known[0] if known else None, made_with)
        queues = known[1:]
        for number in range(len(queues), identity.queue_partitions):
            queues.append(Manifest.load(self._objects, queue_partition(number)))
        self.manifests = [metadata, *queues]
        return self.manifests

    def _begins_behind(self, manifest: Manifest) -> bool:
        """Return True if the local log begins after the archived end."""
        files = segment_files(partition_directory(self._data_dir, manifest.partition))
        return bool(files) and base_offset_of(files[0]) > manifest.end

    def _end_trim(self, manifest: Manifest) -> None:
        """Complete an interrupted trim, and delete the remaining objects."""
        floor = durable_floors(self._data_dir).get(manifest.partition)
        if floor is not None:
            end_trim(manifest, floor.event, self._bases)

    def archive_segment(self, manifest: Manifest, path: Path, report: PartitionReport) -> None:
        before = BlockEnd(manifest.end, 0, manifest.chain, manifest.max_timestamp_ms)
        with pack(path, before, now_ms()) as packed:
            try:
                add_segment(manifest, packed, report)
            except OtherHistory:
                if packed.entry.base_offset >= manifest.floor:
                    raise  # otherwise another archiver has trimmed it meanwhile

    def _archive_seals(self, manifest: Manifest) -> None:
        """Archive the seals of a partition."""
        name = manifest.partition
        directory = partition_directory(self._data_dir, name)
        self._seals[name] = archive_seals(manifest, directory, self._seals.get(name, ""))


def add_segment(manifest: Manifest, packed: Packed, report: PartitionReport) -> None:
    """Create the objects of a segment, prove them, and extend the manifest.

    Raises OtherHistory where the manifest ends elsewhere by now, CorruptObject, ArchiveError, NoAnswer."""
    entry = packed.entry
    manifest.objects.create(manifest.key(entry, entry.avro), packed.avro)
    manifest.objects.create(manifest.key(entry, entry.blocks), packed.blocks)
    Unpacked(manifest.objects, manifest.partition, entry).prove()
    entry = manifest.extend(entry)
    report.segments += 1
    report.records += entry.next_offset - entry.base_offset
    report.segment_bytes += entry.size_bytes
    report.archived_bytes += archived_bytes(entry)


def archive_snapshot(manifest: Manifest, snapshots: Snapshots, offset: int, report: PartitionReport) -> None:
    """Archive a snapshot, unless it is already archived, below the floor, or beyond the archived end.

    Raises CorruptObject, ArchiveError, NoAnswer."""
    if not manifest.floor <= offset <= manifest.end or any(each.offset == offset for each in manifest.snapshots):
        return
    try:
        entry = archive_file(manifest, snapshots.path(manifest.partition, offset), SnapshotEntry)
    except FileNotFoundError:  # any snapshot may be deleted at any time
        return
    report.snapshots += 1
    report.archived_bytes += entry.object.size_bytes


def segments_behind(directory: Path, manifest: Manifest) -> list[Path]:
    """Return the segments from the end of the manifest on: the closed ones, and the last one, which is open.

    Raises OtherHistory where the log does not go on where the manifest ends."""
    files = segment_files(directory)
    behind = [path for path in files if base_offset_of(path) >= manifest.end]
    if not behind or base_offset_of(behind[0]) != manifest.end:
        what = "ends before" if not behind else "has no segment that begins at"
        raise OtherHistory(f"{directory}: the log {what} offset {manifest.end}, up to which it is archived")
    if stated_chain(behind[0]) != manifest.chain:
        why = f"its records before offset {manifest.end} differ from the archived ones"
        raise OtherHistory(f"{behind[0]}: {why}: archive to another URL")
    return behind


def first_waiting_ms(directory: Path, archived_end: int) -> int | None:
    """Return the time of a partition's first unarchived record; None if there is none.

    Raises LogError, CorruptLog."""
    for block in PartitionReader(directory).read(archived_end, archived_end + 1):
        return record_timestamp(block.records[archived_end - block.first_offset])
    return None


def close_segments(data_dir: Path) -> None:
    """Begin a new segment in each partition, so that all records can be archived. No broker may run.

    Raises LogError, CorruptLog."""
    read_layout(data_dir)  # the log must exist: none is made here
    log = EmbeddedLog.open(data_dir, None)
    try:
        for partition in (log.metadata, *log.queues):
            partition.roll()
    except OSError as error:
        raise LogError(f"{data_dir}: no new segment could be made: {error.strerror}") from None
    finally:
        log.close()


def verify(objects: Objects, partition: str) -> Iterator[tuple[Entry | None, LogError | None]]:
    """Read everything archived of a partition. Yield each entry with its fault or None.

    Trimmed entries are skipped. The last trim is valid if the base at the floor is the one with which it was made.
    Faults in the manifest or its pages come last, without an entry. Raises NoAnswer."""
    manifest = Manifest(objects, partition, use_pages=False)
    broken: ArchiveError | None = None
    try:
        manifest.refresh()
    except ArchiveError as error:
        broken = error
    for segment in manifest.segments:
        try:
            Unpacked(objects, partition, segment).prove()
        except CorruptObject as error:
            yield segment, error
        else:
            yield segment, None
    files: list[SnapshotEntry | BaseEntry] = [*manifest.snapshots, *manifest.bases]
    for file in files:
        try:
            prove_file(manifest, file)
        except CorruptObject as error:
            yield file, error
        else:
            yield file, None
    if manifest.trims:
        yield manifest.trims[-1], _wrong_floor(manifest)
    for damage in _wrong_pages(manifest):
        yield None, damage
    if broken is not None:
        yield None, broken


def _wrong_floor(manifest: Manifest) -> LogError | None:
    """Return the error in the base at the floor; None if the base is sound.

    Raises NoAnswer."""
    try:
        floor_base(manifest)
    except (CorruptObject, OtherBase) as error:
        return error
    return None


def _wrong_pages(manifest: Manifest) -> Iterator[CorruptObject]:
    """Yield the faults in the pages of a manifest. A missing page is not a fault.

    Raises NoAnswer."""
    for number in range(manifest.whole_pages):
        key = page_key(manifest.partition, number)
        try:
            page = manifest.objects.get(key)
        except MissingObject:
            continue
        wanted = manifest.page(number)
        if page != wanted:
            same = (ours == theirs for ours, theirs in zip(page, wanted, strict=False))
            position = sum(1 for _ in takewhile(bool, same))
            why = "its entries are not those of the manifest: delete it, and the next archive run recreates it"
            yield CorruptObject(manifest.objects.place(key), position, 0, why)
