"""The sidecars of a segment, with which a reader finds a block by offset or time, splits it at once, and proves it.

    _<base>.index                                            _<base>.lengths
    +-------------------------------------------------+      +--------------------------------------+
    | magic | base offset | chain before              |      | length of each bare record, 4 bytes, |
    | max timestamp before | CRC                      |      | at 4 * (offset - base offset)        |
    +-------------------------------------------------+      +--------------------------------------+
    | first offset | count | length | position        | per
    | max timestamp | chain | CRC of lengths          | block
    | CRC of the entry                                |
    +-------------------------------------------------+

- Both are derived from the segment and can be lost: a reader that finds an entry missing or damaged (by its CRC)
  continues from the last good one by walking the segment. They are written after their block is durable, and are not
  synced.
- An entry is therefore proof that its block was durable. But the block's own check (blocks.py) decides: an entry that
  disagrees with a sound block is ignored.
- chain: the hash chain after the block (engine/log/chain.py). A new segment continues the chain of the previous one.
- Opening a log checks only the end of each index. Damage in the middle costs time at every read, until the broker is
  started without the file.
- `max timestamp` is the largest of the partition so far (milliseconds), so that it never runs backwards; but a segment
  whose header says that time begins anew with it (the clock was set) begins at 0.
- Their names begin with an underscore, so that Spark and similar tools ignore them when they read the directory.
- Lengths are kept because walking over 150-byte records takes 1.9 µs each in pure Python, cutting by lengths 0.17 µs.
"""

import os
import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from typing import Final
from zlib import crc32

from rewindmq.engine.log.embedded.segments import read_at

MAGIC: Final = b"rwmqidx1"
HEADER: Final = struct.Struct(">8sQ32sqI")
ENTRY: Final = struct.Struct(">QIIQq32sII")
LARGE_BYTES: Final = 4_096  # a record of this size is copied as rarely as possible
_ENTRIES_AT_ONCE: Final = 256


class BadIndex(Exception):
    """The index cannot be trusted from here on."""


@dataclass(init=False, slots=True)  # not frozen, with an `__init__` that mypyc compiles: one for each record
class Entry:
    """One block. `length`: the bytes of the whole block; `position`: its first byte in the segment."""

    first_offset: int
    count: int
    length: int
    position: int
    max_timestamp_ms: int
    chain: bytes
    lengths_crc: int

    def __init__(
        self,
        first_offset: int,
        count: int,
        length: int,
        position: int,
        max_timestamp_ms: int,
        chain: bytes,
        lengths_crc: int,
    ) -> None:
        self.first_offset = first_offset
        self.count = count
        self.length = length
        self.position = position
        self.max_timestamp_ms = max_timestamp_ms
        self.chain = chain
        self.lengths_crc = lengths_crc

    @property
    def next_offset(self) -> int:
        """Return the offset after the block's last record."""
        return self.first_offset + self.count

    @property
    def end(self) -> int:
        """Return the byte after the block."""
        return self.position + self.length


def index_path(segment: Path) -> Path:
    """Return the path of a segment's index."""
    return segment.with_name(f"_{segment.stem}.index")


def lengths_path(segment: Path) -> Path:
    """Return the path of a segment's file of lengths."""
    return segment.with_name(f"_{segment.stem}.lengths")


def encode_lengths(lengths: "array[int]") -> bytes:
    """Return the lengths of records, as stored."""
    return _little_endian(lengths).tobytes()


def split(raw: bytes, start: int, lengths: bytes, header: bytes = b"") -> list[bytes]:
    """Return the records of a block, cut by their stored lengths; the first begins at byte `start`.

    `header`: their first bytes, omitted in the block; b"" for bare records."""
    if len(lengths) == 4:
        size = int.from_bytes(lengths, "little")
        if size < LARGE_BYTES:
            return [header + raw[start : start + size]]
        return [b"".join((header, memoryview(raw)[start : start + size]))]  # copied once
    cut = array("I")
    cut.frombytes(lengths)
    places = pairwise(accumulate(_little_endian(cut), initial=start))
    if len(raw) - start < LARGE_BYTES * len(cut):
        return [header + raw[a:b] for a, b in places]
    view = memoryview(raw)
    return [b"".join((header, view[a:b])) for a, b in places]


def encode_index_header(base_offset: int, chain_before: bytes, max_timestamp_before_ms: int) -> bytes:
    """Return the header of an index, as stored."""
    body = HEADER.pack(MAGIC, base_offset, chain_before, max_timestamp_before_ms, 0)[:-4]
    return body + struct.pack(">I", crc32(body))


def encode_entry(entry: Entry) -> bytes:
    """Return an entry of an index, as stored."""
    body = ENTRY.pack(
        entry.first_offset,
        entry.count,
        entry.length,
        entry.position,
        entry.max_timestamp_ms,
        entry.chain,
        entry.lengths_crc,
        0,
    )[:-4]
    return body + struct.pack(">I", crc32(body))


def decode_entry(data: bytes) -> Entry:
    """Return the entry in these bytes.

    Raises BadIndex."""
    if len(data) != ENTRY.size or crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
        raise BadIndex
    return Entry(*ENTRY.unpack(data)[:-1])


class Index:
    """The index of one segment, opened for reading. A missing index, and one with a bad header, has no entries."""

    def __init__(self, segment: Path, base_offset: int, header_bytes: int) -> None:
        """Open the index. `header_bytes`: the size of the segment's header, where the first block begins."""
        self.chain_before: bytes | None = None  # None: not known
        self.max_timestamp_before_ms = 0
        self.count = 0
        self._base_offset = base_offset
        self._header_bytes = header_bytes
        self._index = _open(index_path(segment))
        self._lengths = _open(lengths_path(segment))
        data = os.pread(self._index, HEADER.size, 0) if self._index >= 0 else b""
        if len(data) == HEADER.size:
            magic, base, chain, max_timestamp_ms, crc = HEADER.unpack(data)
            if magic == MAGIC and base == base_offset and crc == crc32(data[:-4]):
                self.chain_before = chain
                self.max_timestamp_before_ms = max_timestamp_ms
                self.count = (os.fstat(self._index).st_size - HEADER.size) // ENTRY.size

    def forget(self) -> None:
        """Ignore the whole index, because it belongs to another segment."""
        self.chain_before = None
        self.count = 0

    def close(self) -> None:
        """Close both files."""
        for descriptor in (self._index, self._lengths):
            if descriptor >= 0:
                os.close(descriptor)
        self._index = self._lengths = -1

    def entry(self, number: int) -> Entry:
        """Return the entry with this number.

        Raises BadIndex."""
        return decode_entry(os.pread(self._index, ENTRY.size, HEADER.size + number * ENTRY.size))

    def entries(self, number: int) -> Iterator[list[Entry]]:
        """Yield the entries from `number` on, some at a time, up to the first bad one.

        Each continues the previous one. Raises BadIndex if the entry before `number` is bad."""
        offset, position = self._base_offset, self._header_bytes
        if number:
            before = self.entry(number - 1)
            offset, position = before.next_offset, before.end
        while number < self.count:
            wanted = min(_ENTRIES_AT_ONCE, self.count - number)
            data = os.pread(self._index, wanted * ENTRY.size, HEADER.size + number * ENTRY.size)
            good = []
            for at in range(0, len(data), ENTRY.size):
                try:
                    entry = decode_entry(data[at : at + ENTRY.size])
                except BadIndex:
                    break
                if entry.first_offset != offset or entry.position != position:
                    break
                offset, position = offset + entry.count, position + entry.length
                good.append(entry)
            if good:
                yield good
            if len(good) < wanted:
                return
            number += wanted

    def find_offset(self, offset: int) -> int:
        """Return the number of the block that holds `offset`, or of the first good block after it, or `count`."""
        return self._bisect(lambda entry: entry.next_offset > offset)

    def find_position(self, position: int) -> int:
        """Return the number of the first block that begins at or after byte `position`, or `count`."""
        return self._bisect(lambda entry: entry.position >= position)

    def find_timestamp(self, timestamp_ms: int) -> int:
        """Return the number of the first block with a timestamp greater than `timestamp_ms`, or `count`."""
        return self._bisect(lambda entry: entry.max_timestamp_ms > timestamp_ms)

    def has_lengths(self, next_offset: int) -> bool:
        """Return True if the file of lengths is long enough for all records before `next_offset`."""
        return self._lengths >= 0 and os.fstat(self._lengths).st_size >= 4 * (next_offset - self._base_offset)

    def lengths(self, entries: Sequence[Entry]) -> list[bytes | None]:
        """Return the stored lengths of the records of successive blocks; None for a block whose lengths are damaged."""
        first = entries[0].first_offset
        data = b""
        if self._lengths >= 0:
            count = entries[-1].next_offset - first
            data = read_at(self._lengths, 4 * count, 4 * (first - self._base_offset))
        found: list[bytes | None] = []
        for entry in entries:
            start = 4 * (entry.first_offset - first)
            lengths = data[start : start + 4 * entry.count]
            found.append(lengths if len(lengths) == 4 * entry.count and crc32(lengths) == entry.lengths_crc else None)
        return found

    def keep_good_entries(self) -> tuple[int, int]:
        """Read all entries and ignore those from the first bad one on.

        Returns the number remaining, and the number of these, from the first on, that have their lengths."""
        good = whole = 0
        for entries in self.entries(0):
            if whole == good:
                whole += sum(takewhile(bool, (lengths is not None for lengths in self.lengths(entries))))
            good += len(entries)
        self.count = good
        return good, whole

    def keep_what_ends_well(self) -> tuple[int, int]:
        """Check only the last two entries: if they are good, trust the others; otherwise `keep_good_entries`.

        It is quick, and enough to check the last block and to continue writing after it."""
        try:
            last_two = [self.entry(number) for number in range(max(0, self.count - 2), self.count)]
        except BadIndex:
            return self.keep_good_entries()
        if last_two and None not in self.lengths(last_two):
            return self.count, self.count
        return self.keep_good_entries()

    def _bisect(self, behind: Callable[[Entry], bool]) -> int:
        """Return the first entry for which `behind` is true (and then stays true), or `count`.

        A bad entry on the way reduces `count` to the good ones."""
        try:
            low, high = 0, self.count
            while low < high:
                middle = (low + high) // 2
                if behind(self.entry(middle)):
                    high = middle
                else:
                    low = middle + 1
            return low
        except BadIndex:
            self.keep_good_entries()
            return self._bisect(behind)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _little_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
