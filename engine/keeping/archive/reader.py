"""Reads an archived history by offset, by time, or as a whole, with one request for each piece.

    log = ArchivedLog("s3://bucket/prefix")            # can be sent to another process, which then opens it
    for block in log.queues[0].read(1_000, 2_000): ...

- Reading ten records fetches the manifest's new entries, one .blocks object, and one archived block by its range.
- Every block is proven by the hash chain before it is returned (pack.py). Damage is CorruptObject: object and byte.
- Fetched data is kept for the next question, up to `CACHE_BYTES` a process: manifests, .blocks, archived blocks.
- The archive ends with its last closed segment. A partition without any archived segment is empty.
- A trimmed partition begins at its floor, with the base there. A read that a trim overtakes raises BelowStart.
- Only the URL is pickled: each process takes credentials from its own environment.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar, cast

from rewindmq.engine.keeping.archive.identity import IDENTITY, read_identity
from rewindmq.engine.keeping.archive.manifest import BaseEntry, Manifest, SegmentEntry, SnapshotEntry
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects, open_objects
from rewindmq.engine.keeping.archive.state_files import archived_base, floor_base
from rewindmq.engine.keeping.archive.unpack import CorruptObject, LinkedRecords, Unpacked
from rewindmq.engine.log.contract import BelowStart, Block
from rewindmq.engine.log.embedded.directory import METADATA, queue_partition
from rewindmq.engine.log.embedded.segment_schema import require_known_schema
from rewindmq.projections.rewind import format_time
from rewindmq.projections.store.bases import Base

T = TypeVar("T")

CACHE_BYTES: Final = 64 << 20  # about 8 archived blocks: each is kept with the original blocks that it makes
_ENTRY_BYTES: Final = 1_000  # of an entry of the manifest in memory
_RECORD_BYTES: Final = 4  # of a record in an unpacked .blocks


class Cache:
    """A cache of the latest fetches, up to a size in bytes, except that it always keeps the last one."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._size = 0
        self._kept: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the cached value of this key; otherwise cache and return the result of `make`."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return cast(T, self._kept[key][0])
        made = make()
        with self._lock:
            self._size += size(made) - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = made, size(made)
            while self._size > self._most and len(self._kept) > 1:
                self._size -= self._kept.popitem(last=False)[1][1]
        return made


cache = Cache(CACHE_BYTES)
_bases: dict[tuple[str, str], Base] = {}
_refreshing = Lock()


class ArchivedPartition:
    """One partition of an archived history, up to the entries that this process has read."""

    def __init__(self, objects: Objects, name: str, shared: bool = False, manifest: Manifest | None = None) -> None:
        """Open a partition. `shared`: the archive is of a log in Kafka. `manifest`: as the caller has read it;
        otherwise all current entries are read."""
        self.name = name
        self.shared = shared
        self._objects = objects
        if manifest is not None:
            self.manifest = manifest

    def __reduce__(self) -> "tuple[Callable[[str, str, bool], ArchivedPartition], tuple[str, str, bool]]":
        return _partition, (self._objects.url, self.name, self.shared)

    @property
    def start_offset(self) -> int:
        """Return the floor, the oldest offset that was not trimmed."""
        return self.manifest.floor

    def base(self) -> Base | None:
        """Return the base at the floor; None if nothing was trimmed. A process keeps the last one of each partition.

        Raises CorruptObject, OtherBase, NoAnswer."""
        manifest, key = self.manifest, (self._objects.url, self.name)
        kept = _bases.get(key)
        if kept is None or kept.offset != manifest.floor:
            kept = floor_base(manifest)
            if kept is not None:
                _bases[key] = kept
        return kept

    def beside(self, name: str) -> "ArchivedPartition":
        """Return another partition of the same archive."""
        return ArchivedPartition(self._objects, name, self.shared)

    def base_of(self, entry: BaseEntry) -> Base:
        """Fetch and check an archived base.

        Raises CorruptObject, NoAnswer, OSError."""
        return archived_base(self.manifest, entry)

    @property
    def next_offset(self) -> int:
        """Return the offset after the last archived record."""
        return self.manifest.end

    @property
    def durable_offset(self) -> int:
        """Return the same offset, because archived records are durable."""
        return self.manifest.end

    @property
    def until_ms(self) -> int | None:
        """Return the largest time of the archived records; None if there are none."""
        segments = self.segments
        return segments[-1].max_timestamp_ms if segments else None

    @property
    def segments(self) -> Sequence[SegmentEntry]:
        """Return the archived segments, in order."""
        return self.manifest.segments

    @property
    def snapshots(self) -> Sequence[SnapshotEntry]:
        """Return the archived snapshots, in the order in which they were archived."""
        return self.manifest.snapshots

    @property
    def bases(self) -> Sequence[BaseEntry]:
        """Return the archived bases, in the order in which they were archived."""
        return self.manifest.bases

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks, as `LogPartition.read`. Their `position` is that of the archived block that holds them.

        Raises BelowStart for trimmed records, CorruptObject, ArchiveError, NoAnswer."""
        at = offset
        self._require_kept(at)
        try:
            for block in self._read(offset, end):
                yield block
                at = block.first_offset + len(block.records)
        except CorruptObject:
            with _refreshing:
                self.manifest.refresh()
            self._require_kept(at)  # otherwise it was trimmed in the meantime
            raise

    def _require_kept(self, offset: int) -> None:
        if offset < self.manifest.floor:
            trim = self.manifest.trims[-1]
            begins = f"offset {offset} is below offset {trim.offset}, where the history begins"
            until = f"the events of {format_time(trim.until_ms)} and earlier were trimmed"
            raise BelowStart(f"{self.name}: {begins}: {until}" + (f": {trim.reason}" if trim.reason else ""))

    def _read(self, offset: int, end: int | None) -> Iterator[Block]:
        segments = self.segments
        for entry in segments[bisect_right(segments, offset, key=lambda entry: entry.next_offset) :]:
            if end is not None and entry.base_offset >= end:
                return
            segment, at = self._unpacked(entry), max(offset, entry.base_offset)
            for number in range(segment.find_offset(at), len(segment.archived)):
                archived = segment.archived[number]
                if end is not None and archived.first_offset >= end:
                    return
                for group in self._groups(segment, number):
                    for block in group.runs(Path(entry.avro.name), archived.position):
                        if end is not None and block.first_offset >= end:
                            return
                        if block.first_offset + len(block.records) > at:
                            yield _from(block, at) if at > offset else block

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Yield the blocks of many short ranges (first offset, end).

        Raises as `read`."""
        for offset, end in ranges:
            yield from self.read(offset, end)

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset as `LogPartition.offset_at` does.

        A new segment begins where the clock was set. Of such stretches the last one that begins at or before the time
        counts. Raises as `read`."""
        segments = self.segments
        end = len(segments)
        for number in reversed(range(len(segments))):
            if number > 0 and not segments[number].begins_anew:
                continue
            if number == 0 or segments[number].first_ms <= timestamp_ms:
                return self._offset_among(segments[number:end], timestamp_ms)
            end = number
        return self.next_offset

    def _offset_among(self, segments: Sequence[SegmentEntry], timestamp_ms: int) -> int:
        """Find the offset in successive segments whose timestamps never go back."""
        for entry in segments:
            if entry.max_timestamp_ms <= timestamp_ms:
                continue
            segment = self._unpacked(entry)
            for number in range(segment.find_timestamp(timestamp_ms), len(segment.archived)):
                for group in self._groups(segment, number):
                    if group.newest_ms > timestamp_ms:
                        for offset, time_ms in zip(group.all_offsets, group.all_times_ms, strict=True):
                            if time_ms > timestamp_ms:
                                return offset
        return segments[-1].next_offset

    @cached_property
    def manifest(self) -> Manifest:
        """Return all current entries of the archive, reading only those that this process does not know."""
        key = "manifest", self._objects.url, self.name

        def loaded() -> Manifest:
            return Manifest.load(self._objects, self.name)

        manifest = cache.get(key, loaded, lambda made: _ENTRY_BYTES * len(made.entries))
        with _refreshing:
            manifest.refresh()
        return manifest

    def _unpacked(self, entry: SegmentEntry) -> Unpacked:
        """Return a reader of an archived segment.

        Raises ArchiveError if another version of RewindMQ wrote it."""

        def made() -> Unpacked:
            segment = Unpacked(self._objects, self.name, entry)
            if segment.header is not None:
                require_known_schema(segment.header.schema, segment.place)
            return segment

        records = entry.next_offset - entry.base_offset
        return cache.get(_key(entry), made, lambda _: _RECORD_BYTES * records)

    def _groups(self, segment: Unpacked, number: int) -> Sequence[LinkedRecords]:
        key = *_key(segment.entry), number
        return cache.get(key, lambda: segment.groups(number), lambda made: sum(each.size_bytes for each in made))


class ArchivedLog:
    """The partitions of an archived history, read-only.

    Raises BadUrl, ArchiveError if there is no archive, NoAnswer."""

    def __init__(self, url: str) -> None:
        objects = open_objects(url)
        metadata = ArchivedPartition(objects, METADATA)
        identity = read_identity(objects, metadata.manifest)
        if identity is None:
            raise ArchiveError(f"{objects.place(IDENTITY)}: there is no archive here: make one with `rewindmq archive`")
        self.url = objects.url
        self.objects = objects
        self.identity = identity
        metadata.shared = shared = identity.log == "kafka"
        names = map(queue_partition, range(identity.queue_partitions))
        self.metadata = metadata
        self.queues = [ArchivedPartition(objects, name, shared) for name in names]

    def __reduce__(self) -> "tuple[Callable[[str], ArchivedLog], tuple[str]]":
        return ArchivedLog, (self.url,)

    @property
    def partitions(self) -> list[ArchivedPartition]:
        """Return all partitions, the metadata log first."""
        return [self.metadata, *self.queues]


def _partition(url: str, name: str, shared: bool) -> ArchivedPartition:
    return ArchivedPartition(open_objects(url), name, shared)


def _key(entry: SegmentEntry) -> tuple[str, ...]:
    """Return the hashes that identify the content of a segment."""
    return entry.avro.sha256, entry.blocks.sha256


def _from(block: Block, offset: int) -> Block:
    """Return the block without the records before `offset`, which the previous stretch also has."""
    skipped = offset - block.first_offset
    if skipped <= 0:
        return block
    times = None if block.timestamps_ms is None else block.timestamps_ms[skipped:]
    return replace(block, first_offset=offset, records=block.records[skipped:], timestamps_ms=times)
