"""A closed segment, or a stretch of a topic, as two objects, and back: events that any Avro tool reads, and columns.

    packer = Packer.of_segment(header, before); packer.add_block(block) ...
    packer = Packer("queues-0", end, offset, chain, newest_ms); packer.add(KafkaRecord(...)) ...
    with packer.finish(next_offset, archived_ms) as packed: ...
    Unpacked(objects, "queues-0", entry).groups(3)                     unpack.py reads them

    BASE20-SHA16.avro     an Avro container file with one schema and codec zstandard
    +--------------------------------------------------------------------------------------------------+
    | "Obj" 1 | metadata map: avro.schema, avro.codec = zstandard, rewindmq.format = 1,                | header
    |         | rewindmq.partition, rewindmq.base_offset | sync marker (16 bytes)                      |
    +--------------------------------------------------------------------------------------------------+
    | count (long) | size (long) | envelopes, compressed | sync marker                                 | archived block
    +--------------------------------------------------------------------------------------------------+
    | ...

    BASE20-SHA16.blocks   "rwmqblk1", then compressed as one frame of zstd:
    +--------------------------------------------------------------------------------------------------+
    | length of the description | records | groups: >IQQ | the description, JSON                       |
    | length of each value without its first ten bytes (4) | records of each group (4)                 | little-endian
    | growth of the largest time with each group; in a topic, of the time with each record (8)         |
    | number of each record's key (4), in a topic                                                      |
    | values that are not in the .avro, one behind the other                                           |
    +--------------------------------------------------------------------------------------------------+
    description: the partition, the ten bytes, the archived blocks; of a segment, its header; of a topic its keys, its
                 records' headers, and the gaps: offsets without a record, such as the end of a transaction

- Groups, and the chain over them, are those of the log (engine/log/chain.py). Records are returned only if the chain
  after them is the one before the next archived block. An archived block holds whole groups: about 4 MiB, or a single
  larger one. The last group of a stretch of a topic may be incomplete; the next stretch begins with the same group, so
  it repeats that part.
- A value that is not a record of the schema (one of another version, bytes of a service, or none at all) is stored in
  the .blocks unchanged, not in the .avro. The texts in a record are not checked for UTF-8.
- A segment can be reproduced byte for byte: its blocks are encoded from their groups, after its header.
- Equal segments become equal objects with equal names, so a repeated run finds its objects.
"""

import hashlib
import json
import struct
import sys
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple

from rewindmq.engine.keeping.archive.manifest import SegmentEntry, StoredObject
from rewindmq.engine.log.chain import PREFIX_BYTES, TopicChain, group_start, little_endian, numbers_in
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.reader import BlockEnd, SegmentReader, StoredBlock
from rewindmq.engine.log.embedded.segment_schema import fingerprint_in
from rewindmq.engine.log.embedded.segments import (
    MAGIC,
    SYNC_BYTES,
    Header,
    bare_timestamp,
    encode_long,
)
from rewindmq.schemas.registry import envelope_fingerprint, envelope_schema_json, released_schema_json
from rewindmq.schemas.shapes import UnknownSchema
from rewindmq.schemas.single_object import HEADER, MARKER
from rewindmq.schemas.walk import MalformedRecord, Program, compile_schema, skip

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK_BYTES: Final = 4 << 20  # of records in an archived block
STRETCH_BYTES: Final = 64 << 20  # of keys and values in a stretch of a topic
STRETCH_RECORDS: Final = 1_000_000
ASIDE_BYTES: Final = 1 << 20  # of values outside the .avro; with more, another schema gets its own stretch
LEVEL: Final = 3  # of zstd
BLOCKS_MAGIC: Final = b"rwmqblk1"
BLOCKS_HEAD: Final = struct.Struct(">IQQ")
ASIDE: Final = 0xFFFFFFFF  # a length: the value is not in the .avro

RecordHeaders = Sequence[tuple[str, bytes | None]]


class KafkaRecord(NamedTuple):
    """A record as Kafka has it. `value`, `key`: None if missing."""

    offset: int
    timestamp_ms: int
    value: bytes | None
    key: bytes | None
    headers: RecordHeaders = ()


class ArchivedBlock(NamedTuple):
    """A block of an .avro, at its byte `position`. `first_record`, `first_group`: their numbers in the stretch.

    `records`: including those outside the .avro. `max_timestamp_ms`: the largest time so far."""

    position: int
    length: int
    first_record: int
    records: int
    first_group: int
    groups: int
    first_offset: int
    next_offset: int
    max_timestamp_ms: int
    chain_before: bytes


@dataclass(slots=True)
class Packed:
    """A stretch packed as two objects. Close it, because `avro` is a temporary file.

    `entry`: its entry for the manifest."""

    entry: SegmentEntry
    avro: BinaryIO
    blocks: bytes

    def __enter__(self) -> "Packed":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.avro.close()


def pack(path: Path, before: BlockEnd, archived_ms: int) -> Packed:
    """Pack a closed segment, which continues at `before`, the end of the previous segment.

    Every block is verified. Memory: two archived blocks, and 16 bytes a record. Raises CorruptLog, LogError."""
    segment = SegmentReader(path, last=False)
    try:
        segment.require_behind(before)
        packer = Packer.of_segment(segment.header, before)
        try:
            for block in segment.stored(0, segment.beginning(before)):
                packer.add_block(block)
            if segment.place.position != segment.size() or packer.first_ms is None:
                raise LogError(f"{segment.header.partition}, {path.name}: it is still being written")
            return packer.finish(segment.place.offset, archived_ms)
        except BaseException:
            packer.close()
            raise
    finally:
        segment.close()


class Packer:
    """A packer of successive records of a partition into two objects.

    Memory: an archived block, 16 bytes a record and the keys; the rest is in a temporary file."""

    def __init__(self, partition: str, base_offset: int, group_offset: int, chain: bytes, newest_ms: int) -> None:
        """Begin a stretch with the hash chain at `group_offset`, where a group begins.

        Records below `base_offset` are repeated. `newest_ms`: the largest time before `base_offset`."""
        self.partition = partition
        self.base_offset = base_offset
        self.group_offset = group_offset
        self.next_offset = group_offset  # after the last record
        self.chain_before = chain
        self.first_ms: int | None = None
        self.size_bytes = 0
        self._header: Header | None = None  # of the segment
        self._links = TopicChain(group_offset, chain)
        self._chain = chain  # after the last whole group
        self._newest_ms = newest_ms
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  Packed closes it, or `close`
        self._sha = hashlib.sha256()
        self._position = 0
        self._prefix = b""
        self._program: Program = []
        self._parts: list[bytes | memoryview] = []
        self._inside = 0  # the number of records in `_parts`
        self._block_bytes = 0
        self._block: tuple[int, int, int, bytes] = 0, 0, group_offset, chain  # record, group, offset, chain before
        self._archived: list[ArchivedBlock] = []
        self._lengths, self._counts, self._times, self._key_numbers = array("I"), array("I"), array("q"), array("I")
        self._last_ms = 0
        self._gaps: list[tuple[int, int]] = []
        self._keys: dict[bytes | None, int] = {}
        self._headers: list[tuple[int, RecordHeaders]] = []
        self._aside: list[tuple[int, int]] = []
        self._aside_parts: list[bytes] = []
        self._aside_bytes = 0

    @classmethod
    def of_segment(cls, header: Header, before: BlockEnd) -> "Packer":
        """Return a packer for the blocks of one segment."""
        newest_ms = 0 if header.begins_anew else before.max_timestamp_ms
        packer = cls(header.partition, header.base_offset, header.base_offset, before.chain, newest_ms)
        packer._header = header
        packer.size_bytes = len(header.raw)
        packer._begin(MARKER + bytes.fromhex(fingerprint_in(header.schema)), header.schema)
        return packer

    def close(self) -> None:
        """Drop the gathered records."""
        self._file.close()

    def add_block(self, block: StoredBlock) -> None:
        """Verify and add the next block of a segment, which is a group."""
        entry = block.entry
        lengths = numbers_in("I", block.lengths)
        size = sum(lengths)
        if self._block_bytes and self._block_bytes + size > BLOCK_BYTES:
            self._flush()
        if self.first_ms is None:
            self.first_ms = bare_timestamp(block.data[block.start : block.start + 10])
        self._parts.append(memoryview(block.data)[block.start : block.start + size])
        self._inside += entry.count
        self._block_bytes += size
        self._lengths += lengths
        self._counts.append(entry.count)
        self._times.append(entry.max_timestamp_ms - self._last_ms)
        self._last_ms = self._newest_ms = entry.max_timestamp_ms
        self.next_offset = entry.next_offset
        self._chain = entry.chain
        self.size_bytes += entry.length

    def ends_before(self, record: KafkaRecord) -> bool:
        """Return True if the stretch is large enough, so that this record of a topic begins the next one."""
        if not self._counts or group_start(record.offset) == self._links.offset:
            return False
        if self.size_bytes >= STRETCH_BYTES or len(self._lengths) >= STRETCH_RECORDS:
            return True
        return self._aside_bytes > ASIDE_BYTES and known_schema(_prefix_of(record.value)) is not None

    def add(self, record: KafkaRecord) -> None:
        """Add the next record of a topic."""
        offset, timestamp_ms, value, key, headers = record
        index = len(self._lengths)
        if not self._counts:
            found = known_schema(_prefix_of(value))
            self._begin(HEADER if found is None else _prefix_of(value), found or envelope_schema_json())
        if not self._counts or group_start(offset) > self._links.offset:
            self._begin_group(offset)
        if offset > self.next_offset:
            self._gaps.append((index, offset - self.next_offset))
        size = 0 if value is None else len(value)
        if value is not None and self._is_ours(value, size):
            self._lengths.append(size - PREFIX_BYTES)
            self._parts.append(value[PREFIX_BYTES:])
            self._inside += 1
        else:
            self._lengths.append(ASIDE)
            self._aside.append((index, -1 if value is None else size))
            self._aside_parts.append(value or b"")
            self._aside_bytes += size
        self._counts[-1] += 1
        self._times.append(timestamp_ms - self._last_ms)
        self._last_ms = timestamp_ms
        self._newest_ms = max(self._newest_ms, timestamp_ms)
        self._key_numbers.append(self._keys.setdefault(key, len(self._keys)))
        if headers:
            self._headers.append((index, headers))
        self._links.add(offset, timestamp_ms, value)
        self.next_offset = offset + 1
        self._block_bytes += size
        if offset >= self.base_offset:
            self.size_bytes += size + len(key or b"")
            if self.first_ms is None:
                self.first_ms = timestamp_ms

    def finish(self, next_offset: int, archived_ms: int) -> Packed:
        """Return the two objects. `next_offset`: after the last record, or after a gap at the end."""
        assert self.first_ms is not None, "a stretch has a record of its own"
        if self._header is None:
            chain = self._links.ends_at(next_offset)
            linked_offset, linked_chain = self._links.offset, self._links.chain
        else:
            chain = linked_chain = self._chain
            linked_offset = next_offset
        self._flush()
        blocks = self._blocks()
        return Packed(
            SegmentEntry(
                base_offset=self.base_offset,
                next_offset=next_offset,
                group_offset=self.group_offset,
                first_ms=self.first_ms,
                max_timestamp_ms=self._newest_ms,
                begins_anew=self._header is not None and self._header.begins_anew,
                chain_before=self.chain_before,
                chain=chain,
                linked_offset=linked_offset,
                linked_chain=linked_chain,
                size_bytes=self.size_bytes,
                avro=self._stored("avro", self._position, self._sha.hexdigest()),
                blocks=self._stored("blocks", len(blocks), hashlib.sha256(blocks).hexdigest()),
                archived_ms=archived_ms,
            ),
            self._file,
            blocks,
        )

    def _begin(self, prefix: bytes, schema: str) -> None:
        """Write the header of the .avro. Its records are values that begin with `prefix`, without it."""
        self._prefix = prefix
        self._program = compile_schema(schema)
        self._sync = sync_of(self.partition, self.group_offset, self.chain_before)
        self._write(avro_header(self.partition, self.group_offset, schema, self._sync))

    def _begin_group(self, offset: int) -> None:
        """Begin the group of a topic that contains this offset."""
        if self._counts:
            self._links.ends_at(offset)
            self._chain = self._links.chain
            if self._block_bytes >= BLOCK_BYTES:
                self._flush()
        self._counts.append(0)

    def _is_ours(self, value: bytes, size: int) -> bool:
        """Return True if the value, which has `size` bytes, is a single object of this stretch's schema."""
        if not value.startswith(self._prefix):
            return False
        try:
            return skip(self._program, value, PREFIX_BYTES) == size
        except (IndexError, MalformedRecord):
            return False

    def _flush(self) -> None:
        first_record, first_group, first_offset, chain = self._block
        position = self._position
        if self._inside:
            packed = zstd.compress(b"".join(self._parts), level=LEVEL)
            self._write(b"".join((encode_long(self._inside), encode_long(len(packed)), packed, self._sync)))
        records, groups, behind = len(self._lengths), len(self._counts), self.next_offset
        self._archived.append(
            ArchivedBlock(
                position,
                self._position - position,
                first_record,
                records - first_record,
                first_group,
                groups - first_group,
                first_offset,
                behind,
                self._newest_ms,
                chain,
            )
        )
        self._block = records, groups, behind, self._chain
        self._parts, self._inside, self._block_bytes = [], 0, 0

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha.update(data)
        self._position += len(data)

    def _blocks(self) -> bytes:
        """Return the object with everything that the events alone lack."""
        description: dict[str, object] = {
            "partition": self.partition,
            "prefix": self._prefix.hex(),
            "blocks": [[*each[:-1], each.chain_before.hex()] for each in self._archived],
        }
        if self._header is not None:
            description["header"] = self._header.raw.hex()
        else:
            description |= {
                "gaps": self._gaps,
                "keys": [None if key is None else key.hex() for key in self._keys],
                "headers": [
                    [index, [[name, None if value is None else value.hex()] for name, value in headers]]
                    for index, headers in self._headers
                ],
                "aside": self._aside,
            }
        text = json.dumps(description, sort_keys=True, allow_nan=False).encode()
        head = BLOCKS_HEAD.pack(len(text), len(self._lengths), len(self._counts))
        columns = map(little_endian, (self._lengths, self._counts, self._times, self._key_numbers))
        return BLOCKS_MAGIC + zstd.compress(b"".join((head, text, *columns, *self._aside_parts)), level=LEVEL)

    def _stored(self, suffix: str, size: int, sha256: str) -> StoredObject:
        return StoredObject(f"{self.base_offset:020d}-{sha256[:16]}.{suffix}", size, sha256)


def _prefix_of(value: bytes | None) -> bytes:
    """Return the first ten bytes of a single object; empty for other values."""
    return value[:PREFIX_BYTES] if value is not None and value.startswith(MARKER) else b""


def known_schema(prefix: bytes) -> str | None:
    """Return the schema of single objects that begin with these ten bytes; None if unknown to this version."""
    if len(prefix) != PREFIX_BYTES:
        return None
    fingerprint = prefix[len(MARKER) :].hex()
    if fingerprint == envelope_fingerprint():
        return envelope_schema_json()
    try:
        return released_schema_json(fingerprint)
    except UnknownSchema:
        return None


def sync_of(partition: str, group_offset: int, chain: bytes) -> bytes:
    """Return the sync marker of an .avro, unpredictable because nobody can foresee the hash chain of a history."""
    return hashlib.sha256(b"archive %s %d %s" % (partition.encode(), group_offset, chain)).digest()[:SYNC_BYTES]


def avro_header(partition: str, group_offset: int, schema: str, sync: bytes) -> bytes:
    metadata = {
        b"avro.schema": schema.encode(),
        b"avro.codec": b"zstandard",
        b"rewindmq.format": b"1",
        b"rewindmq.partition": partition.encode(),
        b"rewindmq.base_offset": str(group_offset).encode(),
    }
    items = [encode_long(len(part)) + part for item in metadata.items() for part in item]
    return b"".join((MAGIC, encode_long(len(metadata)), *items, b"\0", sync))
