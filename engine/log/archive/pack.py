"""One closed segment as two objects, and back: records that any Avro tool reads, and what the original bytes need.

    with pack(path, before) as packed: ...           a segment file as an Avro file and a file of blocks
    Unpacked(objects, "queues-0", entry).read(3)     the original blocks in archived block 3, proven

    BASE20-SHA16.avro     an Avro container file with the schema of the segment and codec zstandard
    +--------------------------------------------------------------------------------------------------+
    | "Obj" 1 | metadata map: avro.schema, avro.codec = zstandard, rewindmq.format = 1,                 | header
    |         | rewindmq.partition, rewindmq.base_offset | sync marker (16 bytes)                       |
    +--------------------------------------------------------------------------------------------------+
    | count (long) | size (long) | the records' Avro binaries, compressed | sync marker                 | archived
    +--------------------------------------------------------------------------------------------------+ block
    | ...

    BASE20-SHA16.blocks   "rwmqblk1", then compressed as one frame of zstd:
    +--------------------------------------------------------------------------------------------------+
    | length of the segment's header | archived blocks | original blocks | records                     | >IIIQ
    | the segment's header, as stored                                                                  |
    +--------------------------------------------------------------------------------------------------+
    | position and length in the .avro | position in the segment | first offset | records | original    | per archived
    | blocks | largest time so far | chain before                                                       | block
    +--------------------------------------------------------------------------------------------------+
    | records of each original block (4 bytes) | growth of the largest time so far (8) | length of each  | little-
    | record (4 bytes)                                                                                 | endian
    +--------------------------------------------------------------------------------------------------+

- An archived block holds whole original blocks: about 4 MiB of records, or one original block that is larger.
- The original blocks are encoded again from count, offset, chain and records. They are given out only if the hash chain
  behind them is the one before the next archived block. So no changed byte is ever given out.
- Equal segments become equal objects, whose names are equal too: a run that begins again finds its objects.
"""

import hashlib
import struct
import sys
import tempfile
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Generic, NamedTuple, Protocol, TypeVar
from zlib import crc32

from rewindmq.engine.log.archive.manifest import SEGMENT, SegmentEntry, StoredObject
from rewindmq.engine.log.archive.objects import ArchiveError, MissingObject, Objects
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.blocks import encode_joined
from rewindmq.engine.log.embedded.index import Entry, next_chain
from rewindmq.engine.log.embedded.reader import Place, SegmentReader, StoredBlock
from rewindmq.engine.log.embedded.segments import (
    MAGIC,
    SYNC_BYTES,
    Header,
    encode_long,
    parse_header,
    read_long,
    record_timestamp,
)
from rewindmq.schemas.formats import other_magic

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK_BYTES: Final = 4 << 20  # of records in an archived block
LEVEL: Final = 3  # of zstd
_MAGIC: Final = b"rwmqblk1"
_HEAD: Final = struct.Struct(">IIIQ")
_ARCHIVED: Final = struct.Struct(">QQQQIIq32s")
_FRAME_BYTES: Final = 20  # two longs at their longest
_MOST_BLOCKS_BYTES: Final = 1 << 30  # of a .blocks, inflated: more is refused


class CorruptObject(CorruptLog):
    """Bytes in an object of the archive are not the bytes that were archived.

    `place`: its URL; byte `position` in it; first `offset` of what is damaged."""

    def __init__(self, place: str, position: int, offset: int, why: str) -> None:
        LogError.__init__(self, f"{place}: damaged at byte {position} (offset {offset}): {why}")
        self.place = place
        self.file = Path(place.rpartition("/")[2])
        self.position = position
        self.offset = offset
        self.why = why

    def __reduce__(self) -> tuple[type["CorruptObject"], tuple[str, int, int, str]]:  # type: ignore[override]
        return CorruptObject, (self.place, self.position, self.offset, self.why)


class ArchivedBlock(NamedTuple):
    """A block of an .avro, at byte `position` of it, with this number of `records` and original `blocks`.

    `original_position`: where its first original block begins in the segment."""

    position: int
    length: int
    original_position: int
    first_offset: int
    records: int
    blocks: int
    max_timestamp_ms: int
    chain_before: bytes

    @property
    def next_offset(self) -> int:
        """The offset behind its last record."""
        return self.first_offset + self.records


@dataclass(slots=True)
class Packed:
    """A segment as the two objects that it becomes. Close it: `avro` is a temporary file.

    `entry`: what the manifest says of it."""

    entry: SegmentEntry
    avro: BinaryIO
    blocks: bytes

    def __enter__(self) -> "Packed":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.avro.close()


def pack(path: Path, before: Place, archived_ms: int) -> Packed:
    """Pack a closed segment, which goes on `before`: the end of the segment before it.

    Every block is verified. Memory: two archived blocks, and 16 bytes a record. Raises CorruptLog, LogError."""
    segment = SegmentReader(path, last=False)
    try:
        segment.require_behind(before)
        beginning = segment.beginning(before)
        writer = _PackWriter(segment.header, beginning.chain)
        try:
            for block in segment.stored(0, beginning):
                writer.add(block)
            return writer.finish(before, segment.place, segment.size(), archived_ms)
        except BaseException:
            writer.avro.close()
            raise
    finally:
        segment.close()


class _PackWriter:
    """Gathers the verified blocks of a segment, and writes them as archived ones."""

    def __init__(self, header: Header, chain: bytes) -> None:
        """`chain`: the hash chain up to the first block."""
        self.avro: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  Packed closes it
        self._header = header
        self._sync = _sync_of(header)
        self._sha = hashlib.sha256()
        self._position = 0
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._gathered: list[Entry] = []
        self._chain = chain  # before the gathered blocks
        self._archived: list[ArchivedBlock] = []
        self._counts = array("I")
        self._times = array("q")
        self._newest_ms = 0
        self._first_ms: int | None = None
        self._lengths = bytearray()
        self._write(_avro_header(header, self._sync))

    def add(self, block: StoredBlock) -> None:
        """Take the next block."""
        entry = block.entry
        size = sum(numbers_in("I", block.lengths))
        if self._gathered and self._size + size > BLOCK_BYTES:
            self._flush()
        if self._first_ms is None:
            self._first_ms = record_timestamp(block.data[block.start : block.start + 10])
        self._gathered.append(entry)
        self._parts.append(memoryview(block.data)[block.start : block.start + size])
        self._size += size
        self._counts.append(entry.count)
        self._times.append(entry.max_timestamp_ms - self._newest_ms)
        self._newest_ms = entry.max_timestamp_ms
        self._lengths += block.lengths

    def finish(self, before: Place, end: Place, size: int, archived_ms: int) -> Packed:
        """The two objects. `size`: of the segment."""
        header = self._header
        if end.position != size or self._first_ms is None:
            raise LogError(f"{header.partition}, segment {header.base_offset}: it is still being written")
        self._flush()
        blocks = self._blocks()
        return Packed(
            SegmentEntry(
                kind=SEGMENT,
                base_offset=header.base_offset,
                next_offset=end.offset,
                first_ms=self._first_ms,
                max_timestamp_ms=end.max_timestamp_ms,
                begins_anew=header.begins_anew,
                chain_before=before.chain,
                chain=end.chain,
                size_bytes=size,
                avro=_stored(header, "avro", self._position, self._sha.hexdigest()),
                blocks=_stored(header, "blocks", len(blocks), hashlib.sha256(blocks).hexdigest()),
                archived_ms=archived_ms,
            ),
            self.avro,
            blocks,
        )

    def _flush(self) -> None:
        first, last = self._gathered[0], self._gathered[-1]
        count = last.next_offset - first.first_offset
        packed = zstd.compress(b"".join(self._parts), level=LEVEL)
        position = self._position
        self._write(b"".join((encode_long(count), encode_long(len(packed)), packed, self._sync)))
        self._archived.append(
            ArchivedBlock(
                position,
                self._position - position,
                first.position,
                first.first_offset,
                count,
                len(self._gathered),
                last.max_timestamp_ms,
                self._chain,
            )
        )
        self._chain = last.chain
        self._parts, self._size, self._gathered = [], 0, []

    def _write(self, data: bytes) -> None:
        self.avro.write(data)
        self._sha.update(data)
        self._position += len(data)

    def _blocks(self) -> bytes:
        """The object that has what the records alone do not say."""
        raw = self._header.raw
        head = _HEAD.pack(len(raw), len(self._archived), len(self._counts), len(self._lengths) // 4)
        table = b"".join(_ARCHIVED.pack(*each) for each in self._archived)
        numbers = (little_endian(self._counts), little_endian(self._times), self._lengths)
        return _MAGIC + zstd.compress(b"".join((head, raw, table, *numbers)), level=LEVEL)


class ArchivedRange(Protocol):
    """A block of an .avro, at byte `position` of it. `chain_before`: the hash chain before its first record."""

    @property
    def position(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def max_timestamp_ms(self) -> int: ...


R = TypeVar("R", bound=ArchivedRange)


class ObjectPair(ABC, Generic[R]):
    """The .avro and the .blocks of an entry, to read. A kind of log says what the bytes mean.

    An object that is not the one that was archived raises CorruptObject. An archive that does not answer raises
    NoAnswer."""

    archived: list[R]
    _magic: bytes
    _most_blocks_bytes: int

    def __init__(self, objects: Objects, partition: str, entry: SegmentEntry) -> None:
        self.entry = entry
        self._objects = objects
        self._avro = f"{partition}/segments/{entry.avro.name}"
        self._blocks = f"{partition}/segments/{entry.blocks.name}"
        body = self._blocks_body()
        try:
            self._parse(body)
        except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise self._corrupt_blocks(f"not a file of blocks: {type(error).__name__}: {error}") from None

    @property
    def place(self) -> str:
        """The place of the records, for people."""
        return self._objects.place(self._avro)

    def find_offset(self, offset: int) -> int:
        """The number of the archived block that holds `offset`; behind the end, how many there are."""
        return bisect_right(self.archived, offset, key=lambda block: block.next_offset)

    def find_timestamp(self, timestamp_ms: int) -> int:
        """The number of the first archived block with a time greater than this; else how many there are."""
        return bisect_right(self.archived, timestamp_ms, key=lambda block: block.max_timestamp_ms)

    def prove(self) -> None:
        """Read every byte of both objects: they are what the manifest says, and make the hash chain of the log.

        Raises CorruptObject, NoAnswer."""
        end = self.archived[0].position
        head = self._range(0, end)
        wanted = self._wanted_header()
        if wanted is not None and head != wanted:
            raise CorruptObject(self.place, 0, self.entry.base_offset, "not the header of this segment")
        sha = hashlib.sha256(head)
        for number, archived in enumerate(self.archived):
            if archived.position != end:
                raise CorruptObject(self.place, end, archived.first_offset, "no block is said to begin here")
            end += archived.length
            raw = self._fetched(number)
            sha.update(raw)
            self._proven(number, raw)
        if self._range(end, end + 1):
            raise CorruptObject(self.place, end, self.entry.next_offset, "bytes stand behind the last block")
        if sha.hexdigest() != self.entry.avro.sha256:
            raise CorruptObject(self.place, 0, self.entry.base_offset, "its SHA-256 is not the one in the manifest")

    @abstractmethod
    def _parse(self, body: bytes) -> None:
        """Take `archived` and all else out of the content of the .blocks.

        Raises IndexError, KeyError, TypeError, ValueError, struct.error."""

    @property
    @abstractmethod
    def _sync(self) -> bytes:
        """The sync marker of the .avro."""

    @abstractmethod
    def _wanted_header(self) -> bytes | None:
        """The header that the .avro must have; None if this version does not know it."""

    @abstractmethod
    def _proven(self, number: int, raw: bytes) -> object:
        """Return the content of an archived block from its bytes, after checking the hash chain behind it.

        Raises CorruptObject."""

    def _fetched(self, number: int) -> bytes:
        """The bytes of an archived block, as stored."""
        archived = self.archived[number]
        return self._range(archived.position, archived.position + archived.length)

    def _range(self, start: int, end: int) -> bytes:
        try:
            return self._objects.get_range(self._avro, start, end)
        except MissingObject:
            raise CorruptObject(self.place, start, self.entry.base_offset, "the object is gone") from None

    def _inflated(self, archived: R, raw: bytes, records: int, size_bytes: int) -> bytes:
        """The so many records of this size in an archived block, one behind the other."""
        if len(raw) != archived.length:
            raise self._corrupt(archived, f"the object ends {len(raw)} bytes into a block of {archived.length}")
        try:
            count, at = read_long(raw, 0)
            size, start = read_long(raw, at)
        except (IndexError, ValueError) as error:
            raise self._corrupt(archived, f"not the beginning of a block: {error}") from None
        end = start + size
        if count != records or end + SYNC_BYTES != len(raw) or raw[end:] != self._sync:
            raise self._corrupt(archived, f"not the frame of {records} records")
        inflater = zstd.ZstdDecompressor()
        try:
            data = inflater.decompress(memoryview(raw)[start:end], max_length=size_bytes + 1)
        except zstd.ZstdError as error:
            raise self._corrupt(archived, f"it cannot be inflated: {error}") from None
        if len(data) != size_bytes or not inflater.eof or inflater.unused_data:
            raise self._corrupt(archived, f"it does not inflate to the {size_bytes} bytes of its records")
        return data

    def _blocks_body(self) -> bytes:
        """The content of the .blocks, which the manifest's SHA-256 proves."""
        try:
            stored = self._objects.get(self._blocks)
        except MissingObject:
            raise self._corrupt_blocks("the object is gone") from None
        if hashlib.sha256(stored).hexdigest() != self.entry.blocks.sha256:
            raise self._corrupt_blocks("its SHA-256 is not the one in the manifest")
        if (other := other_magic(stored, self._magic)) is not None:
            raise ArchiveError(f"{self._objects.place(self._blocks)}: {other}")
        if not stored.startswith(self._magic):
            raise self._corrupt_blocks("not a file of blocks")
        try:
            inflater = zstd.ZstdDecompressor()
            body = inflater.decompress(memoryview(stored)[len(self._magic) :], max_length=self._most_blocks_bytes)
        except zstd.ZstdError as error:
            raise self._corrupt_blocks(f"it cannot be inflated: {error}") from None
        if not inflater.eof:
            raise self._corrupt_blocks("it is too large")
        return body

    def _corrupt(self, archived: R, why: str) -> CorruptObject:
        return CorruptObject(self.place, archived.position, archived.first_offset, why)

    def _corrupt_blocks(self, why: str) -> CorruptObject:
        return CorruptObject(self._objects.place(self._blocks), 0, self.entry.base_offset, why)


class Unpacked(ObjectPair[ArchivedBlock]):
    """A segment in the archive, to read: its blocks as they were, each proven."""

    _magic = _MAGIC
    _most_blocks_bytes = _MOST_BLOCKS_BYTES

    def read(self, number: int) -> list[StoredBlock]:
        """The original blocks in the archived block with this number, as they were stored.

        Raises CorruptObject, NoAnswer."""
        return self._proven(number, self._fetched(number))

    def original_bytes(self) -> Iterator[bytes]:
        """Yields the segment file, byte for byte.

        Raises CorruptObject, NoAnswer."""
        yield self.header.raw
        for number in range(len(self.archived)):
            for block in self.read(number):
                yield block.raw

    @cached_property
    def _sync(self) -> bytes:
        return _sync_of(self.header)

    def _wanted_header(self) -> bytes:
        return _avro_header(self.header, self._sync)

    def _proven(self, number: int, raw: bytes) -> list[StoredBlock]:
        """The original blocks in the bytes of an archived one, after the hash chain behind them was compared."""
        archived = self.archived[number]
        following = self.archived[number + 1 : number + 2]
        wanted = following[0].chain_before if following else self.entry.chain
        blocks, chain = self._original(
            number, self._inflated(archived, raw, archived.records, sum(self._lengths_in(archived)))
        )
        if chain != wanted:
            raise self._corrupt(archived, "its records do not make the hash chain that was archived")
        return blocks

    def _original(self, number: int, data: bytes) -> tuple[list[StoredBlock], bytes]:
        """The original blocks of these records, encoded again, and the hash chain behind them. Not proven yet."""
        archived, header = self.archived[number], self.header
        offset, position, chain = archived.first_offset, archived.original_position, archived.chain_before
        base = self.entry.base_offset
        starts = list(accumulate(self._lengths_in(archived), initial=0))  # of the records in `data`
        blocks = []
        first = self._firsts[number]
        for each in range(first, first + archived.blocks):
            count = self._counts[each]
            lengths = self._lengths[4 * (offset - base) : 4 * (offset - base + count)]
            start, end = (starts[at - archived.first_offset] for at in (offset, offset + count))
            pieces = encode_joined(data[start:end], count, header.sync, offset, chain)
            chain = next_chain(chain, *pieces)
            raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            entry = Entry(offset, count, len(raw), position, self._times[each], chain, crc32(lengths))
            blocks.append(StoredBlock(entry, raw, data, start, lengths))
            offset, position = offset + count, position + len(raw)
        return blocks, chain

    def _lengths_in(self, archived: ArchivedBlock) -> "array[int]":
        """The lengths of the records in an archived block."""
        first = archived.first_offset - self.entry.base_offset
        return numbers_in("I", self._lengths[4 * first : 4 * (first + archived.records)])

    def _parse(self, body: bytes) -> None:
        """Take the header, the table of archived blocks and the numbers out of the .blocks.

        Raises IndexError, ValueError, struct.error."""
        header_bytes, archived, originals, records = _HEAD.unpack_from(body)
        at = _HEAD.size + header_bytes
        self.header = parse_header(body[_HEAD.size : at])
        end = at + archived * _ARCHIVED.size
        self.archived = [ArchivedBlock(*each) for each in _ARCHIVED.iter_unpack(body[at:end])]
        counts, times = end + 4 * originals, end + 12 * originals
        if len(body) != times + 4 * records:
            raise ValueError(f"{len(body)} bytes")
        self._counts = numbers_in("I", body[end:counts])
        self._times = array("q", accumulate(numbers_in("q", body[counts:times])))
        self._lengths = body[times:]
        self._firsts = list(accumulate((each.blocks for each in self.archived), initial=0))
        base, end_offset = self.entry.base_offset, self.entry.next_offset
        if not archived or sum(self._counts) != records or base + records != end_offset:
            raise ValueError(f"{records} records from offset {base} to {end_offset}")
        if self.archived[0].chain_before != next_chain(self.entry.chain_before, self.header.raw):
            raise ValueError("its header is that of another segment")
        offsets = [base, *(each.next_offset for each in self.archived)]
        if self._firsts[-1] != originals or offsets[-1] != end_offset:
            raise ValueError("the archived blocks are not the original ones")
        if any(a != b.first_offset for a, b in zip(offsets, self.archived, strict=False)):
            raise ValueError("the archived blocks do not follow on one another")


def _sync_of(header: Header) -> bytes:
    """The sync marker of the .avro: as random as the segment's own, and another one."""
    return hashlib.sha256(b"archive" + header.raw).digest()[:SYNC_BYTES]


def _avro_header(header: Header, sync: bytes) -> bytes:
    metadata = {
        b"avro.schema": header.schema.encode(),
        b"avro.codec": b"zstandard",
        b"rewindmq.format": b"1",
        b"rewindmq.partition": header.partition.encode(),
        b"rewindmq.base_offset": str(header.base_offset).encode(),
    }
    items = [encode_long(len(part)) + part for item in metadata.items() for part in item]
    return b"".join((MAGIC, encode_long(len(metadata)), *items, b"\0", sync))


def _stored(header: Header, suffix: str, size: int, sha256: str) -> StoredObject:
    return StoredObject(f"{header.base_offset:020d}-{sha256[:16]}.{suffix}", size, sha256)


def little_endian(numbers: "array[int]") -> bytes:
    """The numbers as bytes, on every machine the same."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def numbers_in(code: str, data: bytes) -> "array[int]":
    """The numbers in bytes of `little_endian`. `code`: the array's type code."""
    numbers = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
