"""Makes a data directory from an archive: its proven segments, byte for byte, and its snapshots.

    recover(open_objects(url), data_dir)                       the history up to its archived end
    recover(open_objects(url), data_dir, at="mark:release")    a fork: the history up to a moment, then its own

    1  DIR/log/recovery.json       the history being recovered, and its archive; of a fork, its branching point
    2  DIR/log/PARTITION/          each archived segment: written under another name, synced, renamed; its sidecars
    3  DIR/snapshots/PARTITION/    each archived snapshot, in the same way; DIR/bases/PARTITION/ the base at the floor
    4  the log's own recovery      of each partition (embedded/writer.py): it must lead to the archived hash chain. Then
                                   an empty segment, so that the recovered ones stay as they were archived
    5  DIR/log/layout.json         from here on it is a log; recovery.json is removed

A fork differs in its last segment of a partition, and in its metadata log:

- The segment that holds the moment ends after the last archived block before the moment. If the moment divides a block,
  the records before it become a separate block, which the log's own writer adds in step 4. So the hash chain continues
  the archived one, and then diverges.
- The metadata log continues with HistoryForked, in a separate segment, which gives the fork its identity.

A trimmed partition begins at its floor. The archived metadata log may lack its HistoryTrimmed, which is archived later
than the trim, and a fork may branch before it. Then it is logged anew, from the manifest. The same applies to a
PartitionsAdded, because the archive may count partitions that its metadata log does not name yet.

- The same command continues a killed recovery and keeps whole segments. Until step 5 no broker starts there.
- Nothing is written if a moved queue is archived only in part (partial_moves.py), because its messages would be lost. A
  mark is one moment in all partitions, so a fork at an archived mark is whole.
- A directory that has a log, or a broker's state, is refused.
- The recovered history ends at each partition's archived end. A broker that starts there repairs the differences
  between partitions, as after a crash. Dead letters whose death is not archived are reported, and a
  DeadLettersForwarded in their source makes its next letters pass over the numbers that they have.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rewindmq import failpoints
from rewindmq.engine.keeping.archive.branch import Branch, branch_at, identity_in, partitions_until
from rewindmq.engine.keeping.archive.identity import HistoryIdentity, read_identity
from rewindmq.engine.keeping.archive.manifest import FileEntry, Manifest, SegmentEntry, TrimmedEntry
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects
from rewindmq.engine.keeping.archive.partial_moves import Torn, torn_at, torn_letters
from rewindmq.engine.keeping.archive.reader import ArchivedPartition
from rewindmq.engine.keeping.archive.seals import recover_seals
from rewindmq.engine.keeping.archive.state_files import fetch_file, sound_base
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.keeping.tiers import floors_of
from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import (
    METADATA,
    RECOVERY,
    layout_file,
    partition_directory,
    queue_partition,
    read_layout,
    write_layout,
)
from rewindmq.engine.log.embedded.lock import lock
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.root import history_begun_with
from rewindmq.engine.log.embedded.segment_schema import record_header
from rewindmq.engine.log.embedded.segments import (
    base_offset_of,
    create,
    encode_header,
    record_timestamp,
    segment_files,
    segment_path,
)
from rewindmq.engine.log.embedded.writer import PartitionWriter, Sidecars
from rewindmq.projections import system_calls
from rewindmq.projections.marks import name_in
from rewindmq.projections.rewind import BelowFloor, begin_ms, format_time, parse_time
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.events import Event, MetadataEvent
from rewindmq.schemas.formats import formatted, values_in
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.placement_events import PartitionsAdded
from rewindmq.schemas.registry import envelope_schema_json
from rewindmq.schemas.values import BROKER

_UNBOUNDED = 1 << 62  # bytes of a segment, because a recovery begins no segment by size


class NotYetArchived(LogError):
    """The archive has a trim in its metadata, but not the base with which the trimmed partition begins."""


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """The result of recovering a partition. `until_ms`: the time of its last record; None if it has none.

    `start_offset`: the floor. `ends_early`: no later record is archived, so a fork may lack records between the last
    one and the moment."""

    partition: str
    start_offset: int
    next_offset: int
    until_ms: int | None
    segments: int
    segment_bytes: int
    snapshots: int
    ends_early: bool = False


@dataclass(frozen=True, slots=True)
class _Begun:
    """The content of recovery.json. `branch`: None if the history is recovered up to its archived end."""

    history: str
    branch: Branch | None


@dataclass(slots=True)
class _Reached:
    """The end of a partition's written segments: an offset, and the hash chain up to it.

    `rest`: the remaining records before the moment of a fork that divides their block."""

    offset: int
    chain: bytes
    rest: list[bytes] = field(default_factory=list)


def recover(
    objects: Objects,
    data_dir: Path,
    progress: Callable[[int, int], None] = lambda done, all: None,
    at: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[RecoveredPartition]:
    """Make a data directory's log and snapshots from an archive. `progress`: called with bytes done and all bytes.

    `at`: a moment; the result is a fork of the history. `tell`: receives a text about dead letters whose death is not
    archived. Raises ArchiveError, CorruptObject, NoAnswer; LogError if the directory has a log, or another recovery was
    begun; RewindError for a moment that the archive does not have; OSError."""
    metadata = Manifest.load(objects, METADATA)
    identity = read_identity(objects, metadata)
    if identity is None:
        raise ArchiveError(f"{objects.url}: there is no archive")
    if identity.log != "embedded":
        raise ArchiveError(f"{objects.url}: the archive of a log in Kafka: recover it to a Kafka, with --kafka")
    queues = map(queue_partition, range(identity.queue_partitions))
    manifests = [metadata, *(Manifest.load(objects, name) for name in queues)]
    partitions = [ArchivedPartition(objects, each.partition, manifest=each) for each in manifests]
    begun_as = _require_history(metadata, identity.history)
    begun = _require_begun(data_dir, identity.history, at)
    if begun is None or not layout_file(data_dir).exists():
        _require_no_log(data_dir, begun)
        if begun is None:
            branch = None if at is None else branch_at(partitions[0], partitions[1:], identity, begun_as, at)
            begun = _Begun(identity.history, branch)
            _require_whole(objects, partitions, identity.begun_with, branch)
        elif begun.branch is None:  # the archive may have grown
            _require_whole(objects, partitions, identity.begun_with, None)
        ends = _ends(manifests, begun)
        letters = _torn_letters(partitions, ends, identity.begun_with, begun.branch)
        if letters is not None:
            tell(letters.told)
        manifests = [each for each in manifests if each.partition in ends]
        _require_kept(manifests, ends)
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = lock(data_dir)
        try:
            _write_begun(data_dir, objects, begun)
            _recover_partitions(manifests, ends, begun, data_dir, progress)
            for name, events in ({} if letters is None else letters.passing_over).items():
                _go_on(partition_directory(data_dir, name), events)
            _go_on(
                partition_directory(data_dir, METADATA),
                _missing_events(objects, identity, manifests, begun, data_dir),
                time.time_ns() // 1_000_000,
            )
            own = identity.history if begun.branch is None else begun.branch.identity
            failpoints.reached("recovery.before_layout")
            write_layout(data_dir, len(manifests) - 1, None if own == begun_as else own)
            _end(data_dir)
        finally:
            os.close(descriptor)
    else:  # it was killed after its last step; the archive may have grown
        _end(data_dir)
        ends = _ends(manifests[: 1 + read_layout(data_dir)], begun)
        ends = {name: min(end, _local_end(data_dir, name)) for name, end in ends.items()}
        manifests = [each for each in manifests if each.partition in ends]
    by_time = begun.branch is not None and name_in(begun.branch.asked) is None
    return [_recovered(manifest, ends[manifest.partition], by_time, data_dir) for manifest in manifests]


def _torn_letters(
    partitions: Sequence[ArchivedPartition], ends: dict[str, int], begun_with: int, branch: Branch | None
) -> Torn | None:
    """Find dead letters whose death is not archived.

    Raises ArchiveError, CorruptObject, NoAnswer; LogError where this version cannot fold a partition."""
    if branch is None:
        return torn_letters(partitions, ends, begun_with)
    if _is_whole(partitions, branch):
        return None
    return torn_letters(partitions, ends, begun_with, parse_time(branch.moment))


def _is_whole(partitions: Iterable[ArchivedPartition], branch: Branch) -> bool:
    """Return True if all that had happened when a fork branches is archived."""
    return name_in(branch.asked) is not None or all(e.next_offset > branch.ends.get(e.name, 0) for e in partitions)


def _require_whole(
    objects: Objects, partitions: Sequence[ArchivedPartition], begun_with: int, branch: Branch | None
) -> None:
    """Check that each moved queue is archived whole, up to the archived ends or the time of a fork.

    Raises ArchiveError, CorruptObject, NoAnswer."""
    until_ms = None
    if branch is not None:
        if _is_whole(partitions, branch):
            return
        until_ms = parse_time(branch.moment)
    metadata, *queues = partitions
    torn = torn_at(metadata, queues, begun_with)
    if torn is None or (until_ms is not None and until_ms <= torn.whole_ms):
        return
    how = "let an archiver run to its end"
    if torn.whole_ms >= (begin_ms(metadata) or 0):
        how += f", or recover --at {format_time(torn.whole_ms)}: everything up to then is whole"
    raise ArchiveError(f"{objects.url}: {torn.text}, so messages would be lost: {how}")


def _local_end(data_dir: Path, partition: str) -> int:
    return PartitionReader(partition_directory(data_dir, partition)).next_offset


def _ends(manifests: Iterable[Manifest], begun: _Begun) -> dict[str, int]:
    """Return the offset of each partition at which the recovered history ends."""
    if begun.branch is not None:
        return begun.branch.ends
    return {manifest.partition: manifest.end for manifest in manifests}


def _recover_partitions(
    manifests: list[Manifest],
    ends: dict[str, int],
    begun: _Begun,
    data_dir: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Do steps 2 to 4."""
    wanted = {each.partition: [e for e in each.segments if e.base_offset < ends[each.partition]] for each in manifests}
    total = sum(entry.size_bytes for entries in wanted.values() for entry in entries)
    done = 0
    reached: dict[str, _Reached] = {}
    for manifest in manifests:
        name, end = manifest.partition, ends[manifest.partition]
        directory = partition_directory(data_dir, name)
        directory.mkdir(exist_ok=True)
        _remove_others(directory, wanted[name])
        at, newest_ms = _beginning(manifest, data_dir), 0
        for entry in wanted[name]:
            at = _recover_segment(manifest, entry, end, 0 if entry.begins_anew else newest_ms, directory)
            newest_ms = entry.max_timestamp_ms
            done += entry.size_bytes
            progress(done, total)
        reached[name] = at
        for snapshot in manifest.snapshots:
            if begun.branch is None or snapshot.offset <= at.offset:
                _recover_file(manifest, snapshot, Snapshots(data_dir / "snapshots").path(name, snapshot.offset))
        if begun.branch is None:  # a fork gets no seals of its parent, because they count only up to the branch
            for path, content in recover_seals(manifest, directory):
                _write(path, [content])
    for manifest in manifests:
        _complete(partition_directory(data_dir, manifest.partition), reached[manifest.partition], manifest.floor)
    _recover_trims(manifests[1:], ends, data_dir)


def _beginning(manifest: Manifest, data_dir: Path) -> _Reached:
    """Return the beginning of a partition, and write the base there if it was trimmed.

    Raises CorruptObject, OtherBase, NoAnswer."""
    if not manifest.trims:
        return _Reached(0, first_chain(manifest.partition))
    trim = manifest.trims[-1]
    _recover_base(manifest, trim, data_dir)
    return _Reached(trim.offset, trim.chain)


def _recover_base(manifest: Manifest, trim: TrimmedEntry | HistoryTrimmed, data_dir: Path) -> None:
    """Write the base of a trim.

    Raises CorruptObject, OtherBase, NoAnswer."""
    entry, _ = sound_base(manifest, trim.offset, trim.chain, trim.digest)
    _recover_file(manifest, entry, Bases(data_dir / "bases").path(manifest.partition, trim.offset))


def _recover_trims(manifests: Iterable[Manifest], ends: dict[str, int], data_dir: Path) -> None:
    """Write the bases of trims in the recovered metadata log that were not completed in the archive.

    A broker's start completes them. Raises NotYetArchived, CorruptObject, OtherBase, NoAnswer."""
    for manifest in manifests:
        name, floor = manifest.partition, floors_of(data_dir).get(manifest.partition)
        if floor is None or floor.event.offset <= manifest.floor:
            continue
        if floor.event.offset > ends[name]:
            raise NotYetArchived(
                f"{manifest.objects.url}: {name} is archived only up to offset {ends[name]}, but its history begins at"
                f" {floor.event.offset}: an archiver was interrupted: let one run to its end"
            )
        _recover_base(manifest, floor.event, data_dir)


def _missing_events(
    objects: Objects, identity: HistoryIdentity, manifests: Sequence[Manifest], begun: _Begun, data_dir: Path
) -> list[MetadataEvent]:
    """Return the events with which the recovered metadata log continues."""
    events: list[MetadataEvent] = [*_missing_trims(manifests[1:], data_dir)]
    if begun.branch is not None:
        return [*events, begun.branch.event(objects.url)]
    metadata = PartitionReader(partition_directory(data_dir, METADATA))
    named = partitions_until(metadata, metadata.next_offset, identity.begun_with)
    if named < identity.queue_partitions:
        events.append(PartitionsAdded(named, identity.queue_partitions))
    return events


def _missing_trims(manifests: Iterable[Manifest], data_dir: Path) -> Iterator[HistoryTrimmed]:
    """Yield the trims of the archive that the recovered metadata log lacks."""
    for manifest in manifests:
        floor = floors_of(data_dir).get(manifest.partition)
        if manifest.floor > (0 if floor is None else floor.event.offset):
            trim = manifest.trims[-1]
            yield HistoryTrimmed(
                manifest.partition, trim.offset, trim.until_ms, trim.chain, trim.digest, trim.findings, trim.reason
            )


def _require_kept(manifests: Iterable[Manifest], ends: dict[str, int]) -> None:
    """Check that no trim since the beginning of the recovery removed what it needs.

    Raises BelowFloor."""
    for manifest in manifests:
        name, end = manifest.partition, ends[manifest.partition]
        if end < manifest.floor:
            what = f"{name} now begins at offset {manifest.floor}, but the recovery was begun up to offset {end}"
            raise BelowFloor(name, manifest.floor, f"{what}: it has been trimmed: recover to another directory")


def _end(data_dir: Path) -> None:
    """Note that the recovery is done."""
    failpoints.reached("recovery.before_end")
    (data_dir / "log" / RECOVERY).unlink()
    system_calls.sync_directory(data_dir / "log")


def _require_history(metadata: Manifest, history: str) -> str:
    """Check that the archived metadata log belongs to the archive's history.

    Returns the identity with which it begins, which differs if the archive is a fork's. Raises ArchiveError."""
    if not metadata.segments:
        raise ArchiveError(f"{metadata.objects.url}: nothing of {METADATA} is archived yet: archive it first")
    header = Unpacked(metadata.objects, METADATA, metadata.segments[0]).header
    assert header is not None, "a segment has a header"
    begun_as = history_begun_with(header)
    if begun_as != history and identity_in(ArchivedPartition(metadata.objects, METADATA), begun_as) != history:
        raise ArchiveError(f"{metadata.objects.url}: its {METADATA} belongs to another history than its archive.json")
    return begun_as


def _require_begun(data_dir: Path, history: str, at: str | None) -> _Begun | None:
    """Return the recovery that was begun here; None if there is none.

    Raises LogError for the recovery of another history, or as of another moment."""
    file = data_dir / "log" / RECOVERY
    if not file.exists():
        return None
    try:
        stored = values_in(file.read_text(), file, LogError)
        branch = None if stored.get("branch") is None else Branch(**stored["branch"])
        begun = _Begun(stored["history"], branch)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        begun = _Begun("", None)
    if begun.history != history:
        raise LogError(f"{file}: the recovery of another history was begun here: recover to another directory")
    asked = None if begun.branch is None else begun.branch.asked
    if asked != at:
        what = "up to the archived end" if asked is None else f"--at {asked}"
        raise LogError(f"{file}: a recovery {what} was begun here: ask for the same, or recover to another directory")
    return begun


def _write_begun(data_dir: Path, objects: Objects, begun: _Begun) -> None:
    stored: dict[str, object] = {"history": begun.history, "from": objects.url}
    if begun.branch is not None:
        stored["branch"] = asdict(begun.branch)
    _write(data_dir / "log" / RECOVERY, [formatted(stored).encode()])


def _require_no_log(data_dir: Path, begun: _Begun | None) -> None:
    """Check that the directory has nothing of another history.

    Raises LogError."""
    if layout_file(data_dir).exists():
        raise LogError(f"{data_dir}: it already has a log: recover to another directory")
    if begun is not None:
        return
    here = [data_dir / name for name in ("state", "snapshots", "kafka") if (data_dir / name).exists()]
    here += [path for path in (data_dir / "log").glob("*-[0-9]*") if segment_files(path)]
    if here:
        raise LogError(f"{here[0]}: already exists: recover to another directory")


def _remove_others(directory: Path, wanted: Iterable[SegmentEntry]) -> None:
    """Remove the segments that a killed recovery had begun after the archived ones."""
    bases = {entry.base_offset for entry in wanted}
    for path in segment_files(directory):
        if base_offset_of(path) not in bases:
            path.unlink()


def _recover_segment(
    manifest: Manifest, entry: SegmentEntry, end: int, newest_before_ms: int, directory: Path
) -> _Reached:
    """Write a segment and its sidecars: unchanged, or for a fork its whole blocks below offset `end`.

    `newest_before_ms`: the largest time before it, for the index. A segment that is already complete is left alone."""
    path = segment_path(directory, entry.base_offset)
    if entry.next_offset <= end and path.exists() and path.stat().st_size == entry.size_bytes:
        return _Reached(entry.next_offset, entry.chain)
    segment = Unpacked(manifest.objects, manifest.partition, entry)
    header = segment.header
    assert header is not None, "a segment has a header"
    reached = _Reached(entry.base_offset, entry.chain_before)
    sidecars = Sidecars(path, entry.base_offset, entry.chain_before, newest_before_ms)
    try:
        sidecars.start(0, entry.base_offset)
        sidecars.cut()

        def pieces() -> Iterator[bytes]:
            yield header.raw
            position = len(header.raw)
            for number in range(min(segment.find_offset(end - 1) + 1, len(segment.archived))):
                for block in segment.stored_blocks(number, position):
                    if block.entry.next_offset > end:
                        records = block.records(record_header(header.schema))
                        reached.rest = records[: max(0, end - block.entry.first_offset)]
                        return
                    sidecars.add(block.entry, block.lengths)
                    reached.offset, reached.chain = block.entry.next_offset, block.entry.chain
                    position = block.entry.end
                    yield block.raw

        _write(path, pieces())
    finally:
        sidecars.close()
    return reached


def _recover_file(manifest: Manifest, entry: FileEntry, path: Path) -> None:
    """Write a snapshot or a base unchanged, unless it already exists.

    Raises CorruptObject, NoAnswer."""
    if not path.exists():
        fetch_file(manifest, entry, path)


def _complete(directory: Path, reached: _Reached, floor: int) -> None:
    """Open the partition as a broker does, and begin a segment after the recovered ones.

    Raises CorruptLog; LogError if the files do not lead to the archived hash chain."""
    begins = reached.offset == floor and not segment_files(directory)
    if begins and floor > 0:
        header = encode_header(envelope_schema_json(), directory.name, floor, reached.chain, False)
        os.close(create(segment_path(directory, floor), header))
    writer = PartitionWriter(directory, _UNBOUNDED, begin=True)
    try:
        there = writer.place.offset, writer.place.chain
        if there != (reached.offset, there[1] if begins else reached.chain):
            raise LogError(f"{directory}: its segments do not lead to the end of the archive: remove it, recover again")
        if reached.rest:
            writer.write(reached.rest, max(map(record_timestamp, reached.rest)))
        writer.roll()
    finally:
        writer.close()


def _go_on(directory: Path, events: Sequence[Event], now_ms: int = 0) -> None:
    """Append these events, if there are any, to a partition, in a separate segment.

    `now_ms`: their time; 0: that of the last record, so that nothing expires by them. Raises CorruptLog, LogError."""
    if not events:
        return
    writer = PartitionWriter(directory, _UNBOUNDED, begin=False)
    try:
        encoder = encoder_under(writer.schema)
        now_ms = max(now_ms, writer.place.max_timestamp_ms)
        writer.write([encoder.encode(encoder.prefix(now_ms, BROKER), event) for event in events], now_ms)
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
        system_calls.sync(file.fileno())
    new.replace(path)
    system_calls.sync_directory(path.parent)


def _recovered(manifest: Manifest, end: int, by_time: bool, data_dir: Path) -> RecoveredPartition:
    stored = PartitionReader(partition_directory(data_dir, manifest.partition)).segments()
    segments = [segment for segment in stored if segment.base_offset < end]
    return RecoveredPartition(
        manifest.partition,
        manifest.floor,
        end,
        segments[-1].max_timestamp_ms if segments else None,
        len(segments),
        sum(segment.size for segment in segments),
        len(Snapshots(data_dir / "snapshots").offsets(manifest.partition)),
        by_time and end == manifest.end,
    )
