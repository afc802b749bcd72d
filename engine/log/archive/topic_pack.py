"""A stretch of a partition in Kafka as two objects, and back: events that any Avro tool reads, and what Kafka adds.

    packer = TopicPacker("queues-0", base_offset, chain, newest_ms)
    packer.add(TopicRecord(...)) ...; packer.finish(next_offset, archived_ms)
    UnpackedTopic(objects, "queues-0", entry).read(3)         the records in archived block 3, proven

    BASE20-SHA16.avro     an Avro container file, as pack.py's. Kafka's values are Avro single objects: ten bytes and a
                          record. The ten bytes, equal for all, are in the .blocks.
    BASE20-SHA16.blocks   "rwmqtop1", then compressed as one frame of zstd:
    +--------------------------------------------------------------------------------------------------+
    | length of the description, records: >IQ | the description, JSON                                  |
    | length of each value (4 bytes) | growth of the time (8) | number of the key (4)                  | little-endian
    | values that are not in the .avro, one behind the other                                           |
    +--------------------------------------------------------------------------------------------------+
    description: the partition, the fingerprint of the schema, the archived blocks, keys, headers, and the gaps:
                 offsets without a record, as where a transaction ended

- The hash chain is that of the seals of a log in Kafka (seals/in_topic.py): SHA-256(chain before || time || value) for
  a record, SHA-256(chain before) for an offset without one. So a seal holds for the archived records.
- A value is not in the .avro when it is no single object of the schema: one of another version, bytes of a service, or
  none at all. It stands in the .blocks as it is. The texts in a record are not checked for UTF-8.
- Records are given out only if the hash chain behind them is the one before the next archived block.
"""

import json
import struct
import sys
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import BinaryIO, Final, NamedTuple

from rewindmq.engine.log.archive.manifest import TOPIC, SegmentEntry, StoredObject
from rewindmq.engine.log.archive.objects import Objects
from rewindmq.engine.log.archive.pack import (
    BLOCK_BYTES,
    LEVEL,
    ObjectPair,
    Packed,
    little_endian,
    numbers_in,
)
from rewindmq.engine.log.embedded.index import Entry
from rewindmq.engine.log.embedded.segments import MAGIC, SYNC_BYTES, encode_long
from rewindmq.schemas.registry import envelope_fingerprint, envelope_schema_json, released_schema_json
from rewindmq.schemas.shapes import UnknownSchema
from rewindmq.schemas.single_object import HEADER, MARKER
from rewindmq.schemas.walk import MalformedRecord, Program, compile_schema, skip

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SEGMENT_BYTES: Final = 64 << 20  # of keys and values in a stretch
SEGMENT_RECORDS: Final = 1_000_000
ASIDE_BYTES: Final = 1 << 20  # of values that are not in the .avro; with more, another schema gets its own stretch
_MAGIC: Final = b"rwmqtop1"
_HEAD: Final = struct.Struct(">IQ")
_TIME: Final = struct.Struct(">q")
_FRAMING_BYTES: Final = len(HEADER)
_ASIDE: Final = 0xFFFFFFFF  # a length: the value is not in the .avro
_MOST_BYTES: Final = 1 << 30  # of a .blocks, inflated: more is refused

Headers = Sequence[tuple[str, bytes | None]]


class TopicRecord(NamedTuple):
    """A record as Kafka has it. `value`, `key`: None where there is none."""

    offset: int
    timestamp_ms: int
    value: bytes | None
    key: bytes | None
    headers: Headers = ()


class ArchivedRecords(NamedTuple):
    """A block of an .avro, with its records. `first_record`: its number in the stretch.

    `records`: with those that are not in the .avro. A gap before its first record belongs to it."""

    position: int
    length: int
    first_record: int
    records: int
    first_offset: int
    next_offset: int
    max_timestamp_ms: int
    chain_before: bytes


@dataclass(frozen=True, slots=True)
class TopicRun:
    """Successive records without a gap between them, proven.

    `entry`: their offsets and their largest time. It has no chain, as the blocks of a log in Kafka have none."""

    entry: Entry
    records: list[bytes]
    timestamps_ms: list[int]

    @property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        return sum(map(len, self.records)) + 100 * len(self.records)


def linked(chain: bytes, gap: int, timestamp_ms: int, value: bytes) -> bytes:
    """The hash chain behind a record that stands behind a gap of so many offsets."""
    before = behind_gap(chain, gap) if gap else chain
    return sha256(before + _TIME.pack(timestamp_ms) + value).digest()


def behind_gap(chain: bytes, gap: int) -> bytes:
    """The hash chain behind so many offsets without a record."""
    for _ in range(gap):
        chain = sha256(chain).digest()
    return chain


class TopicPacker:
    """Gathers successive records of a partition, and makes the two objects of them.

    Memory: an archived block, 16 bytes a record and the keys; the rest is in a temporary file."""

    def __init__(self, partition: str, base_offset: int, chain: bytes, newest_ms: int) -> None:
        """`chain`, `newest_ms`: the hash chain and the largest time before `base_offset`."""
        self.partition = partition
        self.base_offset = base_offset
        self.next_offset = base_offset  # behind the last record
        self.chain = self.chain_before = chain
        self.first_ms: int | None = None
        self.size_bytes = 0
        self._newest_ms = newest_ms
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  Packed closes it, or `close`
        self._sha = sha256()
        self._position = 0
        self._fingerprint = b""
        self._program: Program = []
        self._parts: list[bytes] = []
        self._block_bytes = 0
        self._block_index = 0
        self._block_chain = chain
        self._block_offset = base_offset
        self._archived: list[ArchivedRecords] = []
        self._lengths, self._times, self._key_numbers = array("I"), array("q"), array("I")
        self._last_ms = 0
        self._gaps: list[tuple[int, int]] = []
        self._keys: dict[bytes | None, int] = {}
        self._headers: list[tuple[int, Headers]] = []
        self._aside: list[tuple[int, int]] = []
        self._aside_parts: list[bytes] = []
        self._aside_bytes = 0

    def close(self) -> None:
        """Drop what was gathered."""
        self._file.close()

    def ends_before(self, record: TopicRecord) -> bool:
        """Return True if the stretch is large enough, so that this record begins the next one."""
        if self.size_bytes >= SEGMENT_BYTES or len(self._lengths) >= SEGMENT_RECORDS:
            return True
        return self._aside_bytes > ASIDE_BYTES and _known_schema(_fingerprint_of(record.value)) is not None

    def add(self, record: TopicRecord) -> None:
        """Take the next record."""
        offset, timestamp_ms, value, key, headers = record
        index = len(self._lengths)
        if not index:
            self._begin(record)
        content = value or b""
        size = len(content)
        gap = offset - self.next_offset
        if gap:
            self._gaps.append((index, gap))
            self.chain = behind_gap(self.chain, gap)
        if value is not None and self._is_ours(value, size):
            self._lengths.append(size - _FRAMING_BYTES)
            self._parts.append(value[_FRAMING_BYTES:])
        else:
            self._lengths.append(_ASIDE)
            self._aside.append((index, -1 if value is None else size))
            self._aside_parts.append(content)
            self._aside_bytes += size
        self._times.append(timestamp_ms - self._last_ms)
        self._last_ms = timestamp_ms
        if timestamp_ms > self._newest_ms:
            self._newest_ms = timestamp_ms
        self._key_numbers.append(self._keys.setdefault(key, len(self._keys)))
        if headers:
            self._headers.append((index, headers))
        self.chain = sha256(self.chain + _TIME.pack(timestamp_ms) + content).digest()
        self.next_offset = offset + 1
        self._block_bytes += size
        self.size_bytes += size + len(key or b"")
        if self._block_bytes >= BLOCK_BYTES:
            self._flush()

    def finish(self, next_offset: int, archived_ms: int) -> Packed:
        """The two objects. `next_offset`: behind the last record, or behind a gap at the end."""
        assert self.first_ms is not None, "a stretch has a record"
        if len(self._lengths) > self._block_index:
            self._flush()
        chain = behind_gap(self.chain, next_offset - self.next_offset)
        blocks = self._blocks()
        return Packed(
            SegmentEntry(
                kind=TOPIC,
                base_offset=self.base_offset,
                next_offset=next_offset,
                first_ms=self.first_ms,
                max_timestamp_ms=self._newest_ms,
                begins_anew=False,
                chain_before=self.chain_before,
                chain=chain,
                size_bytes=self.size_bytes,
                avro=self._stored("avro", self._position, self._sha.hexdigest()),
                blocks=self._stored("blocks", len(blocks), sha256(blocks).hexdigest()),
                archived_ms=archived_ms,
            ),
            self._file,
            blocks,
        )

    def _begin(self, record: TopicRecord) -> None:
        """Choose the schema: that of the first record, if it is known."""
        found = _fingerprint_of(record.value)
        self._fingerprint = found if _known_schema(found) is not None else HEADER[len(MARKER) :]
        schema = _known_schema(self._fingerprint) or ""
        self._program = compile_schema(schema)
        self._framing = MARKER + self._fingerprint
        self._sync = _sync_of(self.partition, self.base_offset, self.chain_before)
        self.first_ms = record.timestamp_ms
        self._write(_avro_header(self.partition, self.base_offset, schema, self._sync))

    def _is_ours(self, value: bytes, size: int) -> bool:
        """Return True if the value, which has `size` bytes, is a single object of this stretch's schema."""
        if not value.startswith(self._framing):
            return False
        try:
            return skip(self._program, value, _FRAMING_BYTES) == size
        except (IndexError, MalformedRecord):
            return False

    def _flush(self) -> None:
        index, position = self._block_index, self._position
        count = len(self._lengths) - index
        if self._parts:
            packed = zstd.compress(b"".join(self._parts), level=LEVEL)
            self._write(b"".join((encode_long(len(self._parts)), encode_long(len(packed)), packed, self._sync)))
        length = self._position - position
        first, behind, newest = self._block_offset, self.next_offset, self._newest_ms
        self._archived.append(ArchivedRecords(position, length, index, count, first, behind, newest, self._block_chain))
        self._parts, self._block_bytes = [], 0
        self._block_index, self._block_chain, self._block_offset = index + count, self.chain, behind

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha.update(data)
        self._position += len(data)

    def _blocks(self) -> bytes:
        """The object that has what the events alone do not say."""
        description = {
            "partition": self.partition,
            "fingerprint": self._fingerprint.hex(),
            "blocks": [[*each[:-1], each.chain_before.hex()] for each in self._archived],
            "gaps": self._gaps,
            "keys": [None if key is None else key.hex() for key in self._keys],
            "headers": [
                [index, [[name, None if value is None else value.hex()] for name, value in headers]]
                for index, headers in self._headers
            ],
            "aside": self._aside,
        }
        text = json.dumps(description, sort_keys=True, allow_nan=False).encode()
        columns = [little_endian(each) for each in (self._lengths, self._times, self._key_numbers)]
        parts = (_HEAD.pack(len(text), len(self._lengths)), text, *columns, *self._aside_parts)
        return _MAGIC + zstd.compress(b"".join(parts), level=LEVEL)

    def _stored(self, suffix: str, size: int, sha256: str) -> StoredObject:
        return StoredObject(f"{self.base_offset:020d}-{sha256[:16]}.{suffix}", size, sha256)


class UnpackedTopic(ObjectPair[ArchivedRecords]):
    """A stretch of a topic in the archive, to read."""

    _magic = _MAGIC
    _most_blocks_bytes = _MOST_BYTES

    def __init__(self, objects: Objects, partition: str, entry: SegmentEntry) -> None:
        self._partition = partition
        super().__init__(objects, partition, entry)

    def read(self, number: int) -> list[TopicRun]:
        """The records in the archived block with this number, proven.

        Raises CorruptObject, NoAnswer."""
        return self._runs(number, self._proven(number, self._fetched(number)))

    def records(self, number: int) -> Iterator[TopicRecord]:
        """Yields the records in an archived block as Kafka had them, proven.

        Raises CorruptObject, NoAnswer."""
        values = self._proven(number, self._fetched(number))
        offset = self.archived[number].first_offset
        for index, value in enumerate(values, self.archived[number].first_record):
            offset += self._gaps.get(index, 0)
            key, headers = self._keys[self._key_numbers[index]], self._headers.get(index, ())
            yield TopicRecord(offset, self._times[index], value, key, headers)
            offset += 1

    @cached_property
    def _sync(self) -> bytes:
        return _sync_of(self._partition, self.entry.base_offset, self.entry.chain_before)

    def _wanted_header(self) -> bytes | None:
        schema = _known_schema(self._fingerprint)
        return _avro_header(self._partition, self.entry.base_offset, schema, self._sync) if schema else None

    def _proven(self, number: int, raw: bytes) -> list[bytes | None]:
        """The values in the bytes of an archived block, after the hash chain behind them was compared."""
        archived = self.archived[number]
        bare = self._bare(archived, raw)
        values: list[bytes | None] = []
        at, chain = 0, archived.chain_before
        behind = archived.first_record + archived.records
        rows = zip(
            self._lengths[archived.first_record : behind], self._times[archived.first_record : behind], strict=True
        )
        for index, (length, time_ms) in enumerate(rows, archived.first_record):
            value: bytes | None
            if length == _ASIDE:
                value = self._aside[index]
            else:
                value = self._framing + bare[at : at + length]
                at += length
            values.append(value)
            chain = linked(chain, self._gaps.get(index, 0), time_ms, value or b"")
        following = self.archived[number + 1 : number + 2]
        if not following:
            chain = behind_gap(chain, self.entry.next_offset - archived.next_offset)
        if chain != (following[0].chain_before if following else self.entry.chain):
            raise self._corrupt(archived, "its records do not make the hash chain that was archived")
        return values

    def _bare(self, archived: ArchivedRecords, raw: bytes) -> bytes:
        """The records in an archived block, one behind the other, without what stands aside."""
        lengths = self._lengths[archived.first_record : archived.first_record + archived.records]
        inside = [length for length in lengths if length != _ASIDE]
        if not inside and len(raw) == archived.length:
            return b""
        return self._inflated(archived, raw, len(inside), sum(inside))

    def _runs(self, number: int, values: Sequence[bytes | None]) -> list[TopicRun]:
        """The values of a block as runs, cut where there are gaps."""
        archived = self.archived[number]
        runs: list[TopicRun] = []
        offset, first = archived.first_offset, archived.first_record
        behind = archived.first_record + archived.records
        cuts = [index for index in self._gaps if first < index < behind]
        for index, end in pairwise((first, *sorted(cuts), behind)):
            offset += self._gaps.get(index, 0)
            records = [value or b"" for value in values[index - first : end - first]]
            times = list(self._times[index:end])
            runs.append(TopicRun(Entry(offset, len(records), 0, 0, max(times), b"", 0), records, times))
            offset += len(records)
        return runs

    def _parse(self, body: bytes) -> None:
        """Take description and columns out of the .blocks.

        Raises IndexError, KeyError, TypeError, ValueError, struct.error."""
        size, count = _HEAD.unpack_from(body)
        at = _HEAD.size + size
        description = json.loads(body[_HEAD.size : at])
        self._fingerprint = bytes.fromhex(description["fingerprint"])
        self._framing = MARKER + self._fingerprint
        lengths, times, keys = at + 4 * count, at + 12 * count, at + 16 * count
        self._lengths = numbers_in("I", body[at:lengths])
        self._times = array("q", accumulate(numbers_in("q", body[lengths:times])))
        self._key_numbers = numbers_in("I", body[times:keys])
        self._keys = [None if key is None else bytes.fromhex(key) for key in description["keys"]]
        self._gaps: dict[int, int] = dict(description["gaps"])
        self._headers: dict[int, Headers] = {
            index: [(name, None if value is None else bytes.fromhex(value)) for name, value in headers]
            for index, headers in description["headers"]
        }
        self._aside: dict[int, bytes | None] = {}
        at = keys
        for index, length in description["aside"]:
            self._aside[index] = None if length < 0 else body[at : at + length]
            at += max(0, length)
        self.archived = [
            ArchivedRecords._make([*numbers, bytes.fromhex(chain)]) for *numbers, chain in description["blocks"]
        ]
        self._require_whole(count, at == len(body) and len(self._key_numbers) == count)

    def _require_whole(self, count: int, is_whole: bool) -> None:
        """Check that the blocks have all records of the stretch.

        Raises ValueError."""
        entry, blocks = self.entry, self.archived
        offsets = entry.base_offset + count + sum(self._gaps.values())
        if not is_whole or not blocks or offsets > entry.next_offset or blocks[-1].next_offset != offsets:
            raise ValueError(f"{count} records from offset {entry.base_offset} to {entry.next_offset}")
        ends = [(entry.base_offset, 0), *((each.next_offset, each.first_record + each.records) for each in blocks)]
        begins = [(each.first_offset, each.first_record) for each in blocks]
        if any(a != b for a, b in zip(ends, begins, strict=False)) or ends[-1][1] != count:
            raise ValueError("the archived blocks do not follow on one another")
        if blocks[0].chain_before != entry.chain_before:
            raise ValueError("it goes on another hash chain")


def _fingerprint_of(value: bytes | None) -> bytes:
    """The fingerprint of the schema that a single object names; empty for other values."""
    return value[len(MARKER) : _FRAMING_BYTES] if value is not None and value.startswith(MARKER) else b""


def _known_schema(fingerprint: bytes) -> str | None:
    """The schema with this fingerprint; None for one that this version does not know."""
    if len(fingerprint) != _FRAMING_BYTES - len(MARKER):
        return None
    if fingerprint.hex() == envelope_fingerprint():
        return envelope_schema_json()
    try:
        return released_schema_json(fingerprint.hex())
    except UnknownSchema:
        return None


def _sync_of(partition: str, base_offset: int, chain: bytes) -> bytes:
    """The sync marker of an .avro: nobody can foresee the hash chain of a history."""
    return sha256(b"archive %s %d %s" % (partition.encode(), base_offset, chain)).digest()[:SYNC_BYTES]


def _avro_header(partition: str, base_offset: int, schema: str, sync: bytes) -> bytes:
    metadata = {
        b"avro.schema": schema.encode(),
        b"avro.codec": b"zstandard",
        b"rewindmq.format": b"1",
        b"rewindmq.log": b"kafka",
        b"rewindmq.partition": partition.encode(),
        b"rewindmq.base_offset": str(base_offset).encode(),
    }
    items = [encode_long(len(part)) + part for item in metadata.items() for part in item]
    return b"".join((MAGIC, encode_long(len(metadata)), *items, b"\0", sync))
