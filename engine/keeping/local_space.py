"""Keeps the local log small, by removing its oldest segments once the archive has them.

    report = keep_local(data_dir, open_objects(url), SpaceLimits(age_ms=7 * 86_400_000, size_bytes=50_000_000_000))

    1  decide    on the segments to remove: `removable`, a pure function of the local segments and the manifest
    2  base      the state at the cut, and the record of each queued message: written, read back, proven
    3  archive   the base; it is read back, and the manifest names it
    4  cut       the segments below it (engine/log/embedded/cut.py) and the older bases are removed

A segment is removed only if all of these hold:

- the manifest, read by this process, has an entry of the same offsets, size and hash chain
- no segment below it stays, and two segments of its partition stay after it
- it is older than the limit of age, or the log is larger than the limit of size; the segment with the oldest records in
  any partition goes first
- together with the other removed segments, it frees more than the base takes

The metadata log is never cut. A broker may run at the same time, and a run may be killed at any moment, because
everything it has written is either used or harmless.

Age is measured in log time, never by the wall clock alone (embedded/steady_time.py). The relevant time is noted in
`DIR/log/keep_local.json`, so that neither the first run nor a clock that jumps ahead by years removes anything for its
age.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from rewindmq.engine.keeping.archive.directory_note import note_archive
from rewindmq.engine.keeping.archive.identity import identity_of, read_identity
from rewindmq.engine.keeping.archive.manifest import BaseEntry, Manifest, OtherHistory, SegmentEntry
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.state_files import archive_file
from rewindmq.engine.keeping.single_records import records_at
from rewindmq.engine.keeping.tiers import TieredPartition, floors_of
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.cut import cut
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition
from rewindmq.engine.log.embedded.index import index_path, lengths_path
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files, stated_chain
from rewindmq.engine.log.embedded.steady_time import newest_ms_of, steady_now
from rewindmq.projections import system_calls
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.bases import BaseError, Bases, queued_offsets
from rewindmq.projections.store.snapshots import Snapshots

NOTE: Final = "keep_local.json"
STAY: Final = 2  # segments of each partition that always stay
RECORD_BYTES: Final = 200  # of a queued message in a base besides its body, roughly
# Start, offset and reason of a partition's last rejected cut. The state at an offset never changes, so a run that would
# cut there again need not fold it again.
_too_large: dict[Path, tuple[int, int, str]] = {}


@dataclass(frozen=True, slots=True)
class SpaceLimits:
    """The limits of the local log: records of `age_ms` in log time, `size_bytes` of segments with their sidecars."""

    age_ms: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A local segment. `file_bytes`: of the file; `local_bytes`: including its sidecars.

    `chain_before` and `chain`: the hash chain in its header, and in the header of the next segment."""

    base_offset: int
    next_offset: int
    file_bytes: int
    local_bytes: int
    chain_before: bytes
    chain: bytes


@dataclass(frozen=True, slots=True)
class LocalPartition:
    """A partition's local segments, except the last one, and the segments in its manifest."""

    name: str
    segments: Sequence[LocalSegment]
    archived: Sequence[SegmentEntry]


@dataclass(slots=True)
class CutPartition:
    """The result of a run for one partition. `start_offset`: its new beginning. `why`: why due segments stayed."""

    partition: str
    start_offset: int
    segments: int = 0
    freed_bytes: int = 0
    base_bytes: int = 0
    why: str = ""


@dataclass(slots=True)
class SpaceReport:
    """The result of a run. `local_bytes`: of all remaining local segments, including their sidecars.

    `age_counts`: False in a first run, and in one too soon after another, which remove nothing for its age."""

    partitions: list[CutPartition] = field(default_factory=list)
    local_bytes: int = 0
    age_counts: bool = True

    @property
    def freed_bytes(self) -> int:
        """Return the number of bytes that were removed."""
        return sum(each.freed_bytes for each in self.partitions)


def keep_local(
    data_dir: Path, objects: Objects, limits: SpaceLimits, monotonic: Callable[[], float] = time.monotonic
) -> SpaceReport:
    """Remove archived segments beyond the limits.

    Raises OtherHistory, ArchiveError, NoAnswer, CorruptLog, LogError; NewerHistory; OSError."""
    archived = read_identity(objects)
    identity = identity_of(data_dir)  # afterwards, because both may have gained partitions
    if archived is None or not archived.is_of(identity):
        raise OtherHistory(f"{objects.url}: not the archive of the history in {data_dir}")
    names = list(map(queue_partition, range(identity.queue_partitions)))
    note_archive(data_dir, objects.url)  # readers must find the removed records
    manifests = {name: Manifest.load(objects, name) for name in names}
    partitions = [_local(partition_directory(data_dir, name), manifests[name].segments) for name in names]
    directories = [partition_directory(data_dir, name) for name in names]
    steady = _steady(data_dir, directories, monotonic()) if limits.age_ms is not None else None
    others = segment_files(partition_directory(data_dir, METADATA)) + [segment_files(each)[-1] for each in directories]
    counting = limits if steady is not None else replace(limits, age_ms=None)
    goes = removable(partitions, counting, steady or 0, sum(map(_with_sidecars, others)))
    report = SpaceReport(age_counts=limits.age_ms is None or steady is not None)
    for partition in partitions:
        count = goes[partition.name]
        if count:
            report.partitions.append(_cut(data_dir, manifests[partition.name], partition.segments[: count + 1]))
        else:
            start = PartitionReader(partition_directory(data_dir, partition.name)).start_offset
            report.partitions.append(CutPartition(partition.name, start))
    report.local_bytes = sum(_local_bytes(partition_directory(data_dir, name)) for name in (METADATA, *names))
    return report


# -- the decision --------------------------------------------------------------------------------------------------


def removable(
    partitions: Sequence[LocalPartition], limits: SpaceLimits, now_ms: int, other_bytes: int = 0
) -> dict[str, int]:
    """Return the number of removable segments of each partition, counted from the oldest.

    `now_ms`: the log time from which age is counted. `other_bytes`: the size of the log besides these segments."""
    most = {each.name: covered(each) for each in partitions}
    times = {each.name: _newest_times(each) for each in partitions}
    goes = dict.fromkeys(most, 0)
    if limits.age_ms is not None:
        for each in partitions:
            while goes[each.name] < most[each.name] and times[each.name][goes[each.name]] < now_ms - limits.age_ms:
                goes[each.name] += 1
    if limits.size_bytes is not None:
        stays = [segment for each in partitions for segment in each.segments[goes[each.name] :]]
        size = other_bytes + sum(segment.local_bytes for segment in stays)
        while size > limits.size_bytes:
            left = [each for each in partitions if goes[each.name] < most[each.name]]
            if not left:
                break
            oldest = min(left, key=lambda each: times[each.name][goes[each.name]])
            size -= oldest.segments[goes[oldest.name]].local_bytes
            goes[oldest.name] += 1
    return goes


def covered(partition: LocalPartition) -> int:
    """Return the number of segments, from the oldest on, that match entries of the manifest. The last ones stay."""
    entries = {entry.base_offset: entry for entry in partition.archived}
    count = 0
    for segment in partition.segments[: max(0, len(partition.segments) + 1 - STAY)]:
        entry = entries.get(segment.base_offset)
        if entry is None:
            break
        here = segment.next_offset, segment.file_bytes, segment.chain_before, segment.chain
        if here != (entry.next_offset, entry.size_bytes, entry.chain_before, entry.chain):
            break
        count += 1
    return count


def _newest_times(partition: LocalPartition) -> list[int]:
    """Return the largest time of each segment that the manifest covers."""
    entries = {entry.base_offset: entry.max_timestamp_ms for entry in partition.archived}
    return [entries[each.base_offset] for each in partition.segments if each.base_offset in entries]


def _steady(data_dir: Path, directories: Sequence[Path], monotonic: float) -> int | None:
    """Return the current steady time; None if not known yet."""
    newest_ms = newest_ms_of((partition_directory(data_dir, METADATA), *directories))
    return steady_now(data_dir / "log" / NOTE, newest_ms, newest_ms, monotonic)


# -- what is here --------------------------------------------------------------------------------------------------


def _local(directory: Path, archived: Sequence[SegmentEntry]) -> LocalPartition:
    """Return the closed segments of a partition."""
    files = segment_files(directory)
    bounds = [base_offset_of(path) for path in files]
    chains = [_stated_chain(path, path.stat().st_mtime_ns) for path in files]
    segments = [
        LocalSegment(
            bounds[number],
            bounds[number + 1],
            path.stat().st_size,
            _with_sidecars(path),
            chains[number],
            chains[number + 1],
        )
        for number, path in enumerate(files[:-1])
    ]
    return LocalPartition(directory.name, segments, archived)


@lru_cache(maxsize=4_096)
def _stated_chain(path: Path, _modified_ns: int) -> bytes:
    return stated_chain(path)


def _with_sidecars(segment: Path) -> int:
    """Return the size of a segment and its sidecars in bytes."""
    paths = (segment, index_path(segment), lengths_path(segment))
    return sum(path.stat().st_size for path in paths if path.exists())


def _local_bytes(directory: Path) -> int:
    return sum(map(_with_sidecars, segment_files(directory)))


# -- the cut -------------------------------------------------------------------------------------------------------


def _cut(data_dir: Path, manifest: Manifest, segments: Sequence[LocalSegment]) -> CutPartition:
    """Make the base at the last of these segments, archive it, and remove the segments before that one."""
    *going, first = segments
    name, offset = manifest.partition, first.base_offset
    partition = CutPartition(name, going[0].base_offset)
    known = _too_large.get(partition_directory(data_dir, name), (0, 0, ""))
    if known[:2] == (partition.start_offset, offset):
        partition.why = known[2]
        return partition
    log = TieredPartition(PartitionReader(partition_directory(data_dir, name)))
    bases, snapshots = Bases(data_dir / "bases"), Snapshots(data_dir / "snapshots")
    machine = _state(log, bases, snapshots, offset)
    queued = queued_offsets(machine)
    going_bytes, base_bytes = sum(each.local_bytes for each in going), expected_bytes(machine, len(queued))
    if base_bytes >= going_bytes:
        partition.why = f"a base would need {base_bytes} bytes for the queued messages, but free {going_bytes}"
        _too_large[partition_directory(data_dir, name)] = partition.start_offset, offset, partition.why
        return partition
    path = bases.write(machine, first.chain_before, _records(log, bases, queued))
    if offset not in snapshots.offsets(name):  # a fold of the local log can begin with it
        snapshots.take(machine)
    if not any(entry.offset == offset for entry in manifest.bases):
        archive_file(manifest, path, BaseEntry)
    partition.base_bytes = path.stat().st_size
    partition.freed_bytes = cut(data_dir, name, offset)
    partition.segments, partition.start_offset = len(going), offset
    _remove_older(data_dir, bases, name, offset)
    return partition


def _state(log: TieredPartition, bases: Bases, snapshots: Snapshots, offset: int) -> Machine:
    """Return the state at an offset, folded from the nearest snapshot or base."""
    nearest = max((each for each in bases.offsets(log.name) if each <= offset), default=0)
    if nearest > max((each for each in snapshots.offsets(log.name) if each <= offset), default=0):
        try:
            machine = bases.open(log.name, nearest).machine()
        except BaseError:
            pass  # a snapshot or the archive suffices
        else:
            fold(machine, log, offset)
            return machine
    return state_at(log, snapshots, At(offset=offset))


def expected_bytes(machine: Machine, messages: int) -> int:
    """Return the approximate size in bytes of a base of this state, which holds this number of messages."""
    bodies = sum(each.message_bytes_ready + each.message_bytes_unacked for each in machine.by_id.values())
    return bodies + RECORD_BYTES * messages


def _records(log: TieredPartition, bases: Bases, offsets: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield offset and record of each of these publishes; below the local start from the base there."""
    start = log.local.start_offset
    below = [offset for offset in offsets if offset < start]
    if below:
        try:
            base = bases.open(log.name, start)
        except BaseError:
            yield from records_at(log, below)  # from the archive
        else:
            for offset in below:
                record = base.record(offset)
                if record is None:
                    raise LogError(f"{base.path}: it lacks the queued message {offset}")
                yield offset, record
    yield from records_at(log, offsets[len(below) :])


def _remove_older(data_dir: Path, bases: Bases, name: str, offset: int) -> None:
    """Remove the bases below the start, except that at the floor, where history begins."""
    floor = floors_of(data_dir).get(name)
    for each in bases.offsets(name):
        if each < offset and (floor is None or each != floor.event.offset):
            bases.path(name, each).unlink(missing_ok=True)
    system_calls.sync_directory(bases.path(name, offset).parent)
