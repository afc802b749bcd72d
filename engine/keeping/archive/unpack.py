"""Reads a stretch of the archive: records proven by the hash chain (pack.py has a picture of the form).

segment = Unpacked(objects, "queues-0", entry)
segment.groups(3)            the groups in archived block 3
segment.records(3)           the records of a topic there, with their keys
segment.original_bytes()     the file of a segment, byte for byte
"""

import hashlib
import json
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from rewindmq.engine.keeping.archive.manifest import SegmentEntry
from rewindmq.engine.keeping.archive.objects import ArchiveError, MissingObject, Objects
from rewindmq.engine.keeping.archive.pack import (
    ASIDE,
    BLOCKS_HEAD,
    BLOCKS_MAGIC,
    ArchivedBlock,
    KafkaRecord,
    RecordHeaders,
    avro_header,
    known_schema,
    sync_of,
)
from rewindmq.engine.log.chain import PREFIX_BYTES, TopicChain, group_start, link, little_endian, numbers_in
from rewindmq.engine.log.contract import Block, CorruptLog, LogError
from rewindmq.engine.log.embedded.blocks import encode_pieces
from rewindmq.engine.log.embedded.index import Entry
from rewindmq.engine.log.embedded.reader import StoredBlock
from rewindmq.engine.log.embedded.segments import (
    SYNC_BYTES,
    Header,
    parse_header,
    read_long,
    record_timestamp,
)
from rewindmq.schemas.formats import other_magic

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MOST_BLOCKS_BYTES: Final = 1 << 30  # of an inflated .blocks: more is refused


class CorruptObject(CorruptLog):
    """Bytes in an object of the archive are not the bytes that were archived.

    `place`: its URL; byte `position` in it; first damaged `offset`."""

    def __init__(self, place: str, position: int, offset: int, why: str) -> None:
        LogError.__init__(self, f"{place}: damaged at byte {position} (offset {offset}): {why}")
        self.place = place
        self.file = Path(place.rpartition("/")[2])
        self.position = position
        self.offset = offset
        self.why = why

    def __reduce__(self) -> tuple[type["CorruptObject"], tuple[str, int, int, str]]:  # type: ignore[override]
        return CorruptObject, (self.place, self.position, self.offset, self.why)


@dataclass(slots=True)
class LinkedRecords:
    """Successive records with one link of the chain: a block of a segment, or records of a topic.

    `offsets`: of each record, if there are gaps between them. `times_ms`: the log's own time of each record; None if
    the events' own times count. `newest_ms`: the partition's largest time since time last began anew. `lengths`: of the
    records without their first ten bytes, little-endian, 4 bytes each; `chain`: after the group."""

    first_offset: int
    values: list[bytes]
    offsets: list[int] | None
    times_ms: list[int] | None
    newest_ms: int
    lengths: bytes
    chain: bytes

    @property
    def next_offset(self) -> int:
        """Return the offset after the last record."""
        return self.first_offset + len(self.values) if self.offsets is None else self.offsets[-1] + 1

    @property
    def all_offsets(self) -> Sequence[int]:
        """Return the offset of each record."""
        return range(self.first_offset, self.next_offset) if self.offsets is None else self.offsets

    @property
    def all_times_ms(self) -> Sequence[int]:
        """Return the time of each record: the log's own, or the event's."""
        if self.times_ms is not None:
            return self.times_ms
        return list(map(record_timestamp, self.values))

    def runs(self, file: Path, position: int) -> Iterator[Block]:
        """Yield the records as blocks without gaps, those of a topic without a chain.

        `position`: of the archived block in `file`."""
        if self.times_ms is None:
            yield Block(self.first_offset, self.values, self.newest_ms, self.chain, file, position)
            return
        offsets = self.all_offsets
        cuts = [at for at, (a, b) in enumerate(pairwise(offsets), 1) if b != a + 1]
        for at, end in pairwise((0, *cuts, len(self.values))):
            times = self.times_ms[at:end]
            yield Block(offsets[at], self.values[at:end], max(times), b"", file, position, times)

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory that it takes, in bytes."""
        return sum(map(len, self.values)) + 100 * len(self.values)


class Unpacked:
    """A stretch in the archive, to read. `header`: of the segment; None for a stretch of a topic.

    An object other than the archived one raises CorruptObject, an archive that does not answer NoAnswer."""

    def __init__(self, objects: Objects, partition: str, entry: SegmentEntry) -> None:
        self.entry = entry
        self.header: Header | None = None
        self.archived: list[ArchivedBlock] = []
        self._objects = objects
        self._partition = partition
        self._avro = f"{partition}/segments/{entry.avro.name}"
        self._blocks = f"{partition}/segments/{entry.blocks.name}"
        self._sync = sync_of(partition, entry.group_offset, entry.chain_before)
        body = self._blocks_body()
        try:
            self._parse(body)
        except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise self._corrupt_blocks(f"not a file of blocks: {type(error).__name__}: {error}") from None

    @property
    def place(self) -> str:
        """Return the place of the records, for people."""
        return self._objects.place(self._avro)

    def find_offset(self, offset: int) -> int:
        """Return the number of the archived block that holds `offset`; after the end, the number of blocks."""
        return bisect_right(self.archived, offset, key=lambda block: block.next_offset)

    def find_timestamp(self, timestamp_ms: int) -> int:
        """Return the number of the first archived block with a greater time; if none, the number of blocks."""
        return bisect_right(self.archived, timestamp_ms, key=lambda block: block.max_timestamp_ms)

    def groups(self, number: int) -> list[LinkedRecords]:
        """Return the groups in the archived block with this number, proven.

        Raises CorruptObject, NoAnswer."""
        return self._proven(number, self._fetched(number))

    def records(self, number: int) -> Iterator[KafkaRecord]:
        """Yield the records of a topic in an archived block, proven, without those that the stretch repeats.

        Raises CorruptObject, NoAnswer."""
        index = self.archived[number].first_record
        for group in self.groups(number):
            assert group.times_ms is not None, "a topic has times"
            for offset, time_ms, value in zip(group.all_offsets, group.times_ms, group.values, strict=True):
                key, headers = self._keys[self._key_numbers[index]], self._headers.get(index, ())
                if offset >= self.entry.base_offset:
                    yield KafkaRecord(offset, time_ms, self._aside.get(index, value), key, headers)
                index += 1

    def stored_blocks(self, number: int, position: int) -> Iterator[StoredBlock]:
        """Yield the blocks of a segment in an archived block in their stored form, proven.

        `position`: of the first one in the segment. Raises CorruptObject, NoAnswer."""
        assert self.header is not None, "a segment has a header"
        chain = self.archived[number].chain_before
        for group in self.groups(number):
            count, lengths = len(group.values), group.lengths
            data = b"".join([value[PREFIX_BYTES:] for value in group.values])
            raw = b"".join(encode_pieces([data], count, len(data), self.header.sync, group.first_offset, chain))
            chain = group.chain
            entry = Entry(group.first_offset, count, len(raw), position, group.newest_ms, chain, crc32(lengths))
            yield StoredBlock(entry, raw, data, 0, len(data), lengths)
            position += len(raw)

    def original_bytes(self) -> Iterator[bytes]:
        """Yield the segment file, byte for byte.

        Raises CorruptObject, NoAnswer."""
        assert self.header is not None, "a segment has a header"
        yield self.header.raw
        position = len(self.header.raw)
        for number in range(len(self.archived)):
            for block in self.stored_blocks(number, position):
                position = block.entry.end
                yield block.raw

    def prove(self) -> None:
        """Check every byte of both objects against the manifest and the hash chain of the log.

        Raises CorruptObject, NoAnswer."""
        end = self.archived[0].position
        head = self._range(0, end)
        schema = known_schema(self._prefix) if self.header is None else self.header.schema
        if schema is not None and head != avro_header(self._partition, self.entry.group_offset, schema, self._sync):
            raise CorruptObject(self.place, 0, self.entry.base_offset, "not the header of this segment")
        sha = hashlib.sha256(head)
        for number, archived in enumerate(self.archived):
            if archived.position != end:
                raise CorruptObject(self.place, end, archived.first_offset, "no block begins here by the index")
            end += archived.length
            raw = self._fetched(number)
            sha.update(raw)
            self._proven(number, raw)
        if self._range(end, end + 1):
            raise CorruptObject(self.place, end, self.entry.next_offset, "there are bytes after the last block")
        if sha.hexdigest() != self.entry.avro.sha256:
            raise CorruptObject(self.place, 0, self.entry.base_offset, "its SHA-256 is not the one in the manifest")

    def _proven(self, number: int, raw: bytes) -> list[LinkedRecords]:
        """Return the groups in the bytes of an archived block, once their hash chain has been compared."""
        archived = self.archived[number]
        data = self._inflated(archived, raw)
        groups: list[LinkedRecords] = []
        chain, offset, at = archived.chain_before, archived.first_offset, 0
        record = archived.first_record
        for each in range(archived.first_group, archived.first_group + archived.groups):
            behind = record + self._counts[each]
            if self.header is not None:
                group, at = self._block_of_segment(each, record, behind, offset, chain, data, at)
            else:
                group, at = self._group_of_topic(record, behind, offset, chain, data, at)
            groups.append(group)
            chain, offset, record = group.chain, group.next_offset, behind
        following = self.archived[number + 1 : number + 2]
        if chain != (following[0].chain_before if following else self.entry.chain):
            raise self._corrupt(archived, "its records do not make the hash chain that was archived")
        return groups

    def _block_of_segment(
        self, number: int, first: int, behind: int, offset: int, chain: bytes, data: bytes, at: int
    ) -> tuple[LinkedRecords, int]:
        """Return the group with this number, whose records begin at byte `at` of `data`, and the byte after it."""
        lengths = self._lengths[first:behind]
        ends = list(accumulate(lengths, initial=at))
        stored = little_endian(lengths)
        chain = link(chain, offset, self._prefix, stored, [memoryview(data)[at : ends[-1]]])
        prefix = self._prefix
        values = [prefix + data[a:b] for a, b in pairwise(ends)]
        return LinkedRecords(offset, values, None, None, self._times[number], stored, chain), ends[-1]

    def _group_of_topic(
        self, first: int, behind: int, offset: int, chain: bytes, data: bytes, at: int
    ) -> tuple[LinkedRecords, int]:
        """Return the group of these records, which begin at byte `at` of `data`, and the byte after it."""
        links = TopicChain(group_start(offset), chain)
        offsets, values = [], []
        prefix, times = self._prefix, self._times
        for index in range(first, behind):
            offset += self._gaps.get(index, 0)
            length = self._lengths[index]
            if length == ASIDE:
                value = self._aside[index] or b""
            else:
                value = prefix + data[at : at + length]
                at += length
            links.add(offset, times[index], value)
            offsets.append(offset)
            values.append(value)
            offset += 1
        has_gaps = offsets[-1] - offsets[0] >= len(offsets)
        own = list(times[first:behind])
        newest = max(own)
        group = LinkedRecords(
            offsets[0], values, offsets if has_gaps else None, own, newest, b"", links.ends_at(offsets[-1] + 1)
        )
        return group, at

    def _inflated(self, archived: ArchivedBlock, raw: bytes) -> bytes:
        """Return the records in an archived block, concatenated, without those stored in the .blocks."""
        if len(raw) != archived.length:
            raise self._corrupt(archived, f"the object ends {len(raw)} bytes into a block of {archived.length}")
        lengths = self._lengths[archived.first_record : archived.first_record + archived.records]
        inside = [length for length in lengths if length != ASIDE] if self._aside else lengths
        records, size_bytes = len(inside), sum(inside)
        if not records and not raw:
            return b""
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

    def _parse(self, body: bytes) -> None:
        """Parse description and columns of the .blocks.

        Raises IndexError, KeyError, TypeError, ValueError, struct.error."""
        size, records, groups = BLOCKS_HEAD.unpack_from(body)
        at = BLOCKS_HEAD.size + size
        description: dict[str, Any] = json.loads(body[BLOCKS_HEAD.size : at])
        self._prefix = bytes.fromhex(description["prefix"])
        self.archived = [
            ArchivedBlock._make([*numbers, bytes.fromhex(chain)]) for *numbers, chain in description["blocks"]
        ]
        if "header" in description:
            self.header = parse_header(bytes.fromhex(description["header"]))
        of_topic = self.header is None
        lengths = at + 4 * records
        counts = lengths + 4 * groups
        times = counts + 8 * (records if of_topic else groups)
        keys = times + (4 * records if of_topic else 0)
        self._lengths = numbers_in("I", body[at:lengths])
        self._counts = numbers_in("I", body[lengths:counts])
        self._times = array("q", accumulate(numbers_in("q", body[counts:times])))
        self._key_numbers = numbers_in("I", body[times:keys])
        self._keys = [None if key is None else bytes.fromhex(key) for key in description.get("keys", ())]
        self._gaps: dict[int, int] = dict(description.get("gaps", ()))
        self._headers: dict[int, RecordHeaders] = {
            index: [(name, None if value is None else bytes.fromhex(value)) for name, value in headers]
            for index, headers in description.get("headers", ())
        }
        self._aside: dict[int, bytes | None] = {}
        at = keys
        for index, length in description.get("aside", ()):
            self._aside[index] = None if length < 0 else body[at : at + length]
            at += max(0, length)
        if at != len(body):
            raise ValueError(f"{len(body)} bytes")
        self._require_whole(records, groups)

    def _require_whole(self, records: int, groups: int) -> None:
        """Check that the archived blocks have all records of the stretch, in order.

        Raises ValueError."""
        entry, blocks = self.entry, self.archived
        behind = entry.group_offset + records + sum(self._gaps.values())
        if not blocks or behind > entry.next_offset or (self.header is not None and behind != entry.next_offset):
            raise ValueError(f"{records} records from offset {entry.group_offset} to {entry.next_offset}")
        ends = [(0, 0, entry.group_offset)]
        ends += [
            (each.first_record + each.records, each.first_group + each.groups, each.next_offset) for each in blocks
        ]
        begins = [(each.first_record, each.first_group, each.first_offset) for each in blocks]
        if ends[:-1] != begins or ends[-1] != (records, groups, behind):
            raise ValueError("the archived blocks do not continue one another")
        if sum(self._counts) != records or 0 in self._counts:
            raise ValueError("the groups do not have the records")
        if blocks[0].chain_before != entry.chain_before:
            raise ValueError("it continues another hash chain")

    def _fetched(self, number: int) -> bytes:
        """Return the bytes of an archived block, as stored."""
        archived = self.archived[number]
        if not archived.length:
            return b""
        return self._range(archived.position, archived.position + archived.length)

    def _range(self, start: int, end: int) -> bytes:
        try:
            return self._objects.get_range(self._avro, start, end)
        except MissingObject:
            raise CorruptObject(self.place, start, self.entry.base_offset, "the object is gone") from None

    def _blocks_body(self) -> bytes:
        """Return the content of the .blocks, which the manifest's SHA-256 proves."""
        try:
            stored = self._objects.get(self._blocks)
        except MissingObject:
            raise self._corrupt_blocks("the object is gone") from None
        if hashlib.sha256(stored).hexdigest() != self.entry.blocks.sha256:
            raise self._corrupt_blocks("its SHA-256 is not the one in the manifest")
        if (other := other_magic(stored, BLOCKS_MAGIC)) is not None:
            raise ArchiveError(f"{self._objects.place(self._blocks)}: {other}")
        if not stored.startswith(BLOCKS_MAGIC):
            raise self._corrupt_blocks("not a file of blocks")
        try:
            inflater = zstd.ZstdDecompressor()
            body = inflater.decompress(memoryview(stored)[len(BLOCKS_MAGIC) :], max_length=_MOST_BLOCKS_BYTES)
        except zstd.ZstdError as error:
            raise self._corrupt_blocks(f"it cannot be inflated: {error}") from None
        if not inflater.eof:
            raise self._corrupt_blocks("it is too large")
        return body

    def _corrupt(self, archived: ArchivedBlock, why: str) -> CorruptObject:
        return CorruptObject(self.place, archived.position, archived.first_offset, why)

    def _corrupt_blocks(self, why: str) -> CorruptObject:
        return CorruptObject(self._objects.place(self._blocks), 0, self.entry.base_offset, why)
