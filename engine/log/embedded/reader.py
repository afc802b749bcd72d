"""Reads a partition's files by offset, by time, or as a whole, with or without a broker that writes them.

    log = EmbeddedLogReader(data_dir)                  # never writes; cheap to open; can be sent to another process
    for block in log.queues[0].read(1_000, 2_000): ...

A block is returned only if its own check passes (blocks.py): the checksum of its bytes, its offset, the chain before
it. The index gives its place, and is ignored if it disagrees with a sound block.

An incomplete block at the end of the last segment is being written or was torn by a crash, so reading ends there.
Anywhere else it is CorruptLog, as is a whole block that belongs elsewhere, or half a block that is durable by the
index.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from rewindmq.engine.log.chain import link
from rewindmq.engine.log.contract import BelowStart, Block, CorruptLog, LogError
from rewindmq.engine.log.embedded.blocks import (
    BadBlock,
    Misplaced,
    ParsedBlock,
    block_lengths,
    parse_block,
    read_block,
    require_place,
    whole_block_behind,
)
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition, read_layout
from rewindmq.engine.log.embedded.index import BadIndex, Entry, Index, encode_lengths, split
from rewindmq.engine.log.embedded.log_start import base_at_start, beginning_of
from rewindmq.engine.log.embedded.segment_schema import check_schema, record_header
from rewindmq.engine.log.embedded.segments import (
    Header,
    bare_timestamp,
    base_offset_of,
    max_bare_timestamp,
    read_at,
    read_header,
    segment_files,
)
from rewindmq.projections import system_calls
from rewindmq.projections.store.bases import Base

BYTES_AT_ONCE = 1 << 20
CUTS = 3  # during one question
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """The end of a block, where the next one begins at byte `position` with record `offset`.

    `max_timestamp_ms`: the largest since time began anew."""

    offset: int
    position: int
    chain: bytes
    max_timestamp_ms: int


@dataclass(slots=True)  # not frozen, because there may be one for each record
class StoredBlock:
    """A stored block (`raw`), with its index entry (as found, or as it must be).

    Its records are from byte `start` to `end` of `data`; the sidecar's `lengths` are their lengths. They are bare:
    without the header, which is that of the segment's schema."""

    entry: Entry
    raw: bytes
    data: bytes
    start: int
    end: int
    lengths: bytes

    @property
    def bare(self) -> list[bytes]:
        """Return the records in their stored form."""
        return split(self.data, self.start, self.lengths)

    def records(self, header: bytes) -> list[bytes]:
        """Return the records, each preceded by its header."""
        return split(self.data, self.start, self.lengths, header)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a partition, for listings and for dividing work. Times in milliseconds, sizes in bytes."""

    file: Path
    base_offset: int
    next_offset: int
    size: int
    max_timestamp_ms: int


class SegmentReader:
    """One segment, open for reading. `last`: no segment follows, so its end may be torn."""

    def __init__(self, path: Path, last: bool, header: Header | None = None) -> None:
        self.path = path
        self.last = last
        self.torn: BadBlock | None = None  # set by `stored` if the file's end is not a whole block
        self._entry: Entry | None = None  # entry of the last block that `stored` yielded
        self._beginning = BlockEnd(0, 0, b"", 0)
        self.index_is_wrong = False  # set by `stored` if the index disagrees with sound blocks
        self._known = 0  # if the index disagreed with the file: it lists durable blocks up to this byte
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.header = header or read_header(path, self.descriptor)
            check_schema(self.header, path)
            self.record_header = record_header(self.header.schema)
            self.index = Index(path, self.header.base_offset, len(self.header.raw))
            if self.index.chain_before != self.header.chain_before:
                self.index.forget()
        except BaseException:
            os.close(self.descriptor)
            raise

    def first_place(self) -> BlockEnd:
        """Return the end before this segment, if it is the first existing one (log_start.py).

        Raises CorruptLog."""
        offset, chain = first_chain_of(self.path, self.header.chain_before)
        known = offset > 0 and self.index.chain_before == chain
        return BlockEnd(offset, 0, chain, self.index.max_timestamp_before_ms if known else 0)

    def close(self) -> None:
        os.close(self.descriptor)
        self.index.close()

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def require_behind(self, before: BlockEnd) -> None:
        """Check that the segment continues where the previous one ended.

        Raises CorruptLog."""
        check_joint(self.path, self.header.base_offset, self.header.chain_before, before.offset, before.chain)

    def beginning(self, before: BlockEnd) -> BlockEnd:
        """Return the place of the first block, after `before`, the end of the partition's earlier segments."""
        newest = 0 if self.header.begins_anew else before.max_timestamp_ms
        return BlockEnd(self.header.base_offset, len(self.header.raw), before.chain, newest)

    def indexed_end(self) -> BlockEnd | None:
        """Return the end of the segment if its index reaches the last byte; otherwise None."""
        count = self.index.count
        if not count:
            return None
        try:
            entry = self.index.entry(count - 1)
        except BadIndex:
            return None
        return self.behind(entry) if entry.end == self.size() else None

    def half_block(self) -> Entry | None:
        """Return the last entry of the index if the file ends within its block; otherwise None.

        A disk that falsely reported a sync leaves such a file. The index forgets the entry, so that the block counts as
        torn."""
        last = self.index.count - 1
        try:
            entry = self.index.entry(last) if last >= 0 else None
            if entry is None or not entry.position < self.size() < entry.end or not self._holds(last - 1):
                return None
        except BadIndex:
            return None
        self.index.count -= 1
        return entry

    def stored(self, number: int, beginning: BlockEnd) -> Iterator[StoredBlock]:
        """Yield the blocks from the one with this number in the index on; each is checked whole.

        Raises CorruptLog."""
        self._beginning = beginning
        self._entry = self.index.entry(number - 1) if number else None
        self._known = 0
        given, proven = self.place.offset, False
        try:
            for entries in self.index.entries(number):
                for some in _at_once(entries):
                    for block in self._indexed(some, self.place.chain):
                        self._entry = block.entry
                        given, proven = block.entry.next_offset, True
                        yield block
            if not proven and self.place.position < self.size() and not self._holds(number - 1):
                raise _Doubt(0)
        except _Doubt as doubt:  # the file or its index is wrong, so read the blocks themselves, from the first one on
            self._known = doubt.end if proven or self._holds(number - 1) else 0
            self._entry = None
        while (found := self._unindexed(self.place)) is not None:
            self._entry = found.entry
            self.index_is_wrong |= found.entry.position < self._known or given > found.entry.first_offset
            if found.entry.next_offset > given:
                yield found

    def _holds(self, number: int) -> bool:
        """Return True if the block of this entry agrees with it, and continues the previous block.

        If so, the next block begins where it ends."""
        if number < 0:
            return True
        try:
            entry = self.index.entry(number)
            before = self.index.entry(number - 1).chain if number else self.header.chain_before
            block = parse_block(read_at(self.descriptor, entry.length, entry.position), entry.position, self.header)
            require_place(block, entry.position, entry.first_offset, before)
            lengths = self.index.lengths([entry])[0] or self._walked(block, entry.position)
        except (BadIndex, BadBlock):
            return False
        return self._chain(before, block, lengths) == entry.chain

    def begins_by(self, timestamp_ms: int, beginning: BlockEnd) -> bool:
        """Return True if the first record has this time or an earlier one; False if there is no record.

        Raises CorruptLog."""
        try:
            if self.index.count and self.index.entry(0).max_timestamp_ms <= timestamp_ms:
                return True
        except BadIndex:
            pass
        for block in self.stored(0, beginning):
            return bare_timestamp(block.bare[0]) <= timestamp_ms
        return False

    @property
    def place(self) -> BlockEnd:
        """Return the place after the last block that `stored` yielded."""
        return self._beginning if self._entry is None else self.behind(self._entry)

    @staticmethod
    def behind(entry: Entry) -> BlockEnd:
        return BlockEnd(entry.next_offset, entry.end, entry.chain, entry.max_timestamp_ms)

    def _indexed(self, entries: list[Entry], chain: bytes) -> Iterator[StoredBlock]:
        """Yield the blocks of successive index entries.

        Every difference between a block and its entry raises _Doubt."""
        first = entries[0].position
        data = read_at(self.descriptor, entries[-1].end - first, first)
        for entry, lengths in zip(entries, self.index.lengths(entries), strict=True):
            position = entry.position
            raw = data[position - first : position - first + entry.length]
            try:
                if len(raw) < entry.length:
                    raise BadBlock(position, f"the file ends {len(raw)} bytes into a block of {entry.length}")
                block = parse_block(raw, position, self.header)
                require_place(block, position, entry.first_offset, chain)
                if block.records != entry.count:
                    raise BadBlock(position, f"{block.records} records, {entry.count} in the index")
                if lengths is None:
                    lengths = self._walked(block, position)
                chain = self._chain(chain, block, lengths)
                if chain != entry.chain:
                    raise BadBlock(position, "its bytes do not match the hash chain in the index")
            except BadBlock:
                raise _Doubt(entry.end) from None
            yield StoredBlock(entry, raw, block.data, block.start, block.end, lengths)

    def _unindexed(self, place: BlockEnd) -> StoredBlock | None:
        """Return the block at `place`, which is not in the index; None at the end of the whole blocks.

        Raises CorruptLog."""
        known = place.position < self._known
        torn: BadBlock | None = None
        while True:
            file_size = self.size()
            if place.position >= file_size:
                if known:
                    raise CorruptLog(self.path, place.position, place.offset, "a durable block is gone")
                return None
            try:
                raw, block = read_block(self.descriptor, place.position, file_size, self.header)
                lengths = self._belonging(block, place)
                break
            except Misplaced as bad:
                raise CorruptLog(self.path, place.position, place.offset, bad.why) from None
            except BadBlock as bad:
                behind = whole_block_behind(self.descriptor, self.header, place.position, file_size, place.offset)
                if behind is None and self.last and not known:
                    self.torn = bad
                    return None
                # A broker may be writing: a half block at the first look is whole at the second if another follows it.
                if torn is not None or behind is None:
                    why = bad.why if behind is None else f"{bad.why}; a whole block follows at byte {behind}"
                    raise CorruptLog(self.path, place.position, place.offset, why) from None
                torn = bad
        newest = max(place.max_timestamp_ms, max_bare_timestamp(split(block.data, block.start, lengths)))
        chain = self._chain(place.chain, block, lengths)
        entry = Entry(place.offset, block.records, len(raw), place.position, newest, chain, crc32(lengths))
        return StoredBlock(entry, raw, block.data, block.start, block.end, lengths)

    def chain_behind(self, before: bytes, block: StoredBlock) -> bytes:
        """Return the hash chain after a block that continues the chain `before`."""
        data = memoryview(block.data)[block.start : block.end]
        return link(before, block.entry.first_offset, record_header(self.header.schema), block.lengths, [data])

    def _chain(self, before: bytes, block: ParsedBlock, lengths: bytes) -> bytes:
        return chain_behind(before, self.header, block, lengths)

    def _walked(self, block: ParsedBlock, position: int) -> bytes:
        """Return the lengths of a block's records, found by walking over them.

        Raises BadBlock."""
        return encode_lengths(block_lengths(block, position, self.header))

    def _belonging(self, block: ParsedBlock, place: BlockEnd) -> bytes:
        """Return the lengths of the records of a block that belongs at `place`.

        Raises Misplaced."""
        require_place(block, place.position, place.offset, place.chain)
        try:
            return self._walked(block, place.position)
        except BadBlock as bad:  # the block is whole, so these bytes were written, not torn
            raise Misplaced(bad.position, bad.why) from None


def chain_behind(before: bytes, header: Header, block: ParsedBlock, lengths: bytes) -> bytes:
    """Return the hash chain after a block that continues the chain `before`. `lengths`: of its records, as stored."""
    data = memoryview(block.data)[block.start : block.end]
    return link(before, block.first_offset, record_header(header.schema), lengths, [data])


class CutMeanwhile(BelowStart):
    """The requested records were cut off during the read."""


class _Doubt(Exception):
    """A block and its index entry disagree. `end`: up to this byte the index lists durable blocks."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.end = end


class PartitionReader:
    """One partition, read from its directory."""

    shared = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name
        self._headers: dict[Path, Header] = {}
        self._first: tuple[Path, BlockEnd] | None = None  # the first segment, and the place before it
        self._base: Base | None = None  # the last one requested

    def __reduce__(self) -> tuple[type["PartitionReader"], tuple[Path]]:
        return PartitionReader, (self.directory,)

    @property
    def start_offset(self) -> int:
        return base_offset_of(self._files()[0])

    def base(self) -> Base | None:
        """Return the base with which the partition begins; None if it begins at offset 0.

        Raises LogError if the base is missing or damaged."""
        if self._base is None or self._base.offset != self.start_offset:
            self._base = base_at_start(self.directory)
        return self._base

    @property
    def next_offset(self) -> int:
        """Return the current end of the whole blocks."""
        return self._anew(self._end).offset

    @property
    def durable_offset(self) -> int:
        """Return the current end of the whole blocks, all durable.

        Blocks that are not in the index are synced first, as by a starting broker."""
        return self._anew(self._durable_end)

    def _durable_end(self, files: list[Path]) -> int:
        segment = self._open(files, len(files) - 1)
        try:
            indexed = segment.indexed_end()
            if indexed is not None:
                return indexed.offset
            beginning = self._beginning(files, len(files) - 1, segment, None)
            for _ in segment.stored(segment.index.keep_what_ends_well()[0], beginning):
                pass  # to its end
            system_calls.sync(segment.descriptor)
            return segment.place.offset
        finally:
            segment.close()

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks as `LogPartition.read`."""
        files = self._files()
        first = _last_at_or_below(files, offset)
        before: BlockEnd | None = None
        for number in range(first, len(files)):
            segment = self._open(files, number)
            try:
                if end is not None and segment.header.base_offset >= end:
                    return
                beginning = self._beginning(files, number, segment, before)
                for block in segment.stored(segment.index.find_offset(offset), beginning):
                    entry = block.entry
                    if end is not None and entry.first_offset >= end:
                        return
                    if entry.next_offset > offset:
                        yield Block(
                            entry.first_offset,
                            block.records(segment.record_header),
                            entry.max_timestamp_ms,
                            entry.chain,
                            segment.path,
                            entry.position,
                        )
                    if end is not None and entry.next_offset >= end:
                        return
                before = segment.place
            finally:
                segment.close()

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Yield the blocks of many short ranges (first offset, end)."""
        for offset, end in ranges:
            yield from self.read(offset, end)

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset as `LogPartition.offset_at` does.

        A new segment begins where the clock was set. Of such stretches the last one that begins at or before the time
        counts."""
        return self._anew(lambda files: self._offset_at(files, timestamp_ms))

    def _offset_at(self, files: list[Path], timestamp_ms: int) -> int:
        end = len(files)
        for number in reversed(range(len(files))):
            segment = self._open(files, number)
            try:
                if number > 0 and not segment.header.begins_anew:
                    continue
                if number > 0 and not segment.begins_by(timestamp_ms, self._beginning(files, number, segment, None)):
                    end = number
                    continue
            finally:
                segment.close()
            return self._offset_between(files, number, end, timestamp_ms)
        raise AssertionError("the first segment is always taken")

    def _offset_between(self, files: list[Path], first: int, end: int, timestamp_ms: int) -> int:
        """Find the offset in the segments from `first` up to `end`, whose timestamps never go back."""
        for number in range(first, end):
            segment = self._open(files, number)
            try:
                indexed = segment.indexed_end()
                if indexed is not None and indexed.max_timestamp_ms <= timestamp_ms:
                    continue
                place = self._beginning(files, number, segment, None)
                for block in segment.stored(segment.index.find_timestamp(timestamp_ms), place):
                    if block.entry.max_timestamp_ms > timestamp_ms:
                        for at, bare in enumerate(block.bare):
                            if bare_timestamp(bare) > timestamp_ms:
                                return block.entry.first_offset + at
            finally:
                segment.close()
        return self._end(files[:end], end == len(files)).offset

    def segments(self) -> list[Segment]:
        return self._anew(self._listed)

    def _listed(self, files: list[Path]) -> list[Segment]:
        listed = []
        for number, path in enumerate(files):
            place = self._end(files[: number + 1], number == len(files) - 1)
            listed.append(Segment(path, base_offset_of(path), place.offset, place.position, place.max_timestamp_ms))
        return listed

    def _anew(self, ask: Callable[[list[Path]], T]) -> T:
        """Ask about the existing segments, and ask anew if a cut intervenes."""
        for _ in range(CUTS):
            try:
                return ask(self._files())
            except CutMeanwhile:
                continue
        return ask(self._files())

    def _files(self) -> list[Path]:
        files = segment_files(self.directory) if self.directory.is_dir() else []
        if not files:
            raise LogError(f"{self.directory}: partition {self.name} has no segment")
        return files

    def _reader(self, path: Path, last: bool) -> SegmentReader:
        """Open a listed segment.

        Raises CutMeanwhile."""
        try:
            return SegmentReader(path, last, self._headers.get(path))
        except FileNotFoundError:
            raise CutMeanwhile(f"{path}: it was cut off, the log begins at offset {self.start_offset} now") from None

    def _open(self, files: list[Path], number: int) -> SegmentReader:
        path = files[number]
        segment = self._reader(path, number == len(files) - 1)
        if segment.size() > len(segment.header.raw):  # an empty segment may be remade, with another sync marker
            self._headers[path] = segment.header
        return segment

    def _beginning(self, files: list[Path], number: int, segment: SegmentReader, before: BlockEnd | None) -> BlockEnd:
        """Return the place of a segment's first block, checked against the end of the previous segment, if known."""
        chain = segment.index.chain_before
        if before is None:
            if chain is not None and number > 0:
                return segment.beginning(BlockEnd(0, 0, chain, segment.index.max_timestamp_before_ms))
            before = self._end(files[:number], False) if number > 0 else self._first_place(segment)
        segment.require_behind(before)
        return segment.beginning(before)

    def _first_place(self, segment: SegmentReader) -> BlockEnd:
        if self._first is None or self._first[0] != segment.path:
            self._first = segment.path, segment.first_place()
        return self._first[1]

    def _end(self, files: list[Path], last: bool = True) -> BlockEnd:
        """Return the end of the last of `files`."""
        segment = self._reader(files[-1], last)
        try:
            indexed = segment.indexed_end()
            if indexed is not None:
                return indexed
            beginning = self._beginning(files, len(files) - 1, segment, None)
            for _ in segment.stored(segment.index.keep_good_entries()[0], beginning):
                pass  # to its end
            return segment.place
        finally:
            segment.close()


def first_chain_of(first: Path, stated: bytes) -> tuple[int, bytes]:
    """Offset and hash chain with which the partition of this first segment begins (log_start.py).

    `stated`: the chain in the segment's header. Raises CorruptLog; CutMeanwhile if the segment is gone, and with it the
    confirmation that the log begins there."""
    offset, chain = beginning_of(first, stated, _records_of)
    if offset < base_offset_of(first) and not first.exists():
        raise CutMeanwhile(f"{first}: it was cut off")
    return offset, chain


def _records_of(directory: Path) -> Iterator[bytes]:
    for block in PartitionReader(directory).read():
        yield from block.records


class EmbeddedLogReader:
    """The partitions of a data directory, read-only.

    Raises LogError if there is no log."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        count = read_layout(data_dir)
        self.metadata = PartitionReader(partition_directory(data_dir, METADATA))
        self.queues = [PartitionReader(partition_directory(data_dir, queue_partition(n))) for n in range(count)]

    @property
    def partitions(self) -> list[PartitionReader]:
        return [self.metadata, *self.queues]


def check_joint(path: Path, base_offset: int, chain_before: bytes, offset: int, chain: bytes) -> None:
    """Check that a segment continues the `offset` and `chain` with which the previous segment ended.

    `chain_before`: the chain that the segment itself states. Raises CorruptLog."""
    if base_offset != offset:
        why = f"the segment before ends at offset {offset}" if offset else "what was before is gone"
        raise CorruptLog(path, 0, base_offset, why)
    if chain_before != chain:
        raise CorruptLog(path, 0, base_offset, "its hash chain does not continue that of the segment before")


def _at_once(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries in groups for one read each."""
    some: list[Entry] = []
    for entry in entries:
        if some and entry.end - some[0].position > BYTES_AT_ONCE:
            yield some
            some = []
        some.append(entry)
    yield some


def _last_at_or_below(files: list[Path], offset: int) -> int:
    number = len(files) - 1
    while number > 0 and base_offset_of(files[number]) > offset:
        number -= 1
    return number
