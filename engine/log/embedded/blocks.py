"""A block of a segment: one group commit as bytes that state their place and carry a checksum.

    raw = encode_block(bare, size, sync, first_offset, chain_before)
    parse_block(raw, position, header)                   BadBlock: not whole
    require_place(block, position, offset, chain)        Misplaced: whole, but it belongs elsewhere

segments.py has a picture of the format. A check of 15 bytes is hidden in a file that every Avro tool reads:

- A segment names Avro's codec `deflate`, which every implementation has. Nothing is compressed: the records are
  unchanged in stored blocks of deflate (RFC 1951, 3.2.4), after 5 bytes for each 65,535 of them.
- They are preceded by 24 empty stored blocks. A stored block begins with 3 bits, and by the RFC the rest of their byte
  is ignored. So each of the 24 carries 5 bits of the check, and a tool inflates it to nothing.

      1 byte: 5 bits of the check, 000 | 00 00 | FF FF        24 times; the high bits of the check come first

  first offset (6 bytes) | hash chain before (its first 5 bytes) | CRC-32 (4 bytes)

- The CRC covers the rest of the check, and then all other bytes of the block in order.

Alternatives were measured or tried (docs/benchmarks/storage.md): a file of checksums beside the segment needs a second
fdatasync for every commit; Avro's sync marker must be the same in a whole file; bytes after the records of a block, or
a block without records, stop Avro's Java reader; a record of a special type would be an event, and take an offset.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from rewindmq.engine.log.embedded.segments import SYNC_BYTES, Header, encode_long, read_at, read_long
from rewindmq.schemas.walk import MalformedRecord, record_lengths

CHECK_BYTES: Final = 120
STORED_BYTES: Final = 65_535  # the most that a stored block of deflate holds
# A large block is made, hashed and written in pieces of this size, because Python holds the lock that the loop needs
# while it copies into one.
PIECE_BYTES: Final = 4 << 20
LARGE_BYTES: Final = 4_096  # of a record on average
CHAIN_BYTES: Final = 5  # bytes of the hash chain before a block that are in its check
_FRAME_BYTES: Final = 20  # two longs at their longest
_CHECK: Final = struct.Struct(">6s5sI")
_EMPTY: Final = [bytes((bits << 3, 0, 0, 255, 255)) for bits in range(32)]
_TWO: Final = [_EMPTY[bits >> 5] + _EMPTY[bits & 31] for bits in range(1_024)]
_SHIFTS: Final = range(110, -1, -10)
# The first byte of an empty stored block as a digit to base 32; any other byte is not a digit.
_DIGITS: Final = bytes(b"0123456789abcdefghijklmnopqrstuv"[byte >> 3] if byte & 7 == 0 else 33 for byte in range(256))
_ZEROS: Final = bytes(24)
_ONES: Final = b"\xff" * 24


Bare = bytes | memoryview  # a record as stored in a block, without its header (schemas/single_object.py)


class BadBlock(Exception):
    """The bytes at `position` are not a whole block."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position
        self.why = why


class Misplaced(BadBlock):
    """The bytes at `position` are a whole block, but another one belongs there."""


class ParsedBlock(NamedTuple):
    """A whole block with this number of `records`: the bytes of `data` from `start` to `end`.

    The block itself states `first_offset` and the beginning of the hash chain before it (`chain_before`)."""

    records: int
    data: bytes
    start: int
    end: int
    first_offset: int
    chain_before: bytes


def encode_block(records: Sequence[Bare], size: int, sync: bytes, first_offset: int, chain_before: bytes) -> bytes:
    """Return the bytes of one block; `size` is the length of all records together."""
    parts = one_behind_the_other(records, size)
    return b"".join(encode_pieces(parts, len(records), size, sync, first_offset, chain_before))


def one_behind_the_other(records: Sequence[Bare], size: int) -> Sequence[Bare]:
    """Return the records in few parts, copying only small ones. `size`: of all records."""
    return records if size > len(records) * LARGE_BYTES else (b"".join(records),)


def encode_pieces(
    parts: Sequence[Bare], count: int, size: int, sync: bytes, first_offset: int, chain_before: bytes
) -> list[bytes]:
    """Return the bytes of `encode_block` in pieces, which concatenated are the block.

    `parts`: the `count` records concatenated, `size` bytes in all."""
    if size <= STORED_BYTES:
        pieces = [b"".join((_stored_header(size, True), *parts, sync))]
    else:
        pieces = _joined((*_stored_blocks(parts, size), sync))
    return _with_check(pieces, count, first_offset, chain_before)


def _with_check(pieces: list[bytes], count: int, first_offset: int, chain_before: bytes) -> list[bytes]:
    """Return the pieces of a block, preceded by its frame and check."""
    frame = encode_long(count) + encode_long(CHECK_BYTES + sum(map(len, pieces)) - SYNC_BYTES)
    place = first_offset.to_bytes(6, "big") + chain_before[:CHAIN_BYTES]
    crc = crc32(frame, crc32(place))
    for piece in pieces:
        crc = crc32(piece, crc)
    head = frame + _encode_check(place + crc.to_bytes(4, "big"))
    return [head + pieces[0]] if len(pieces) == 1 else [head, *pieces]


def read_block(descriptor: int, position: int, file_size: int, header: Header) -> tuple[bytes, ParsedBlock]:
    """Return the bytes of the block at `position`, and the block that `parse_block` finds in them.

    Raises BadBlock."""
    left = file_size - position
    try:
        raw = read_at(descriptor, min(_FRAME_BYTES, left), position)
        _, at = read_long(raw, 0)
        size, start = read_long(raw, at)
    except IndexError:
        raise BadBlock(position, f"the file ends {left} bytes into the block") from None
    except ValueError as error:
        raise BadBlock(position, str(error)) from None
    length = start + max(0, size) + SYNC_BYTES
    if length > left:
        raise BadBlock(position, f"the file ends {left} bytes into a block of {length}")
    raw = read_at(descriptor, length, position)
    return raw, parse_block(raw, position, header)


def parse_block(raw: bytes, position: int, header: Header) -> ParsedBlock:
    """Check that a block is whole: count, size, sync marker, and its checksum, over every byte.

    The records are not read. Raises BadBlock, and Misplaced for a whole block of another segment."""
    try:
        count, at = read_long(raw, 0)
        size, start = read_long(raw, at)
    except (IndexError, ValueError):
        raise BadBlock(position, "it does not begin with a count and a size") from None
    if count <= 0 or size < count:
        raise BadBlock(position, f"a block of {count} records in {size} bytes")
    if start + size + SYNC_BYTES != len(raw):
        raise BadBlock(position, f"a block of {start + size + SYNC_BYTES} bytes in {len(raw)}")
    end = len(raw) - SYNC_BYTES
    at = start + CHECK_BYTES
    place, chain_before, crc = _decode_check(raw[start:at], position)
    if crc32(memoryview(raw)[at:], crc32(raw[:start], crc32(place + chain_before))) != crc:
        raise BadBlock(position, "its bytes do not match its checksum")
    first_offset = int.from_bytes(place, "big")
    if raw[end:] != header.sync:
        raise Misplaced(position, f"a whole block of offset {first_offset} of another segment: its sync marker says so")
    data, at, end = _stored(raw, at, end, position)
    return ParsedBlock(count, data, at, end, first_offset, chain_before)


def require_place(block: ParsedBlock, position: int, offset: int, chain: bytes) -> None:
    """Check that a block states that it begins with record `offset`, after `chain`.

    Raises Misplaced."""
    if block.first_offset != offset:
        raise Misplaced(position, f"a whole block of offset {block.first_offset}: that of offset {offset} belongs here")
    if block.chain_before != chain[:CHAIN_BYTES]:
        why = f"a whole block, and not one of this history: it follows on the hash chain {block.chain_before.hex()}..."
        raise Misplaced(position, f"{why}, and {chain[:CHAIN_BYTES].hex()}... is before it")


def block_lengths(block: ParsedBlock, position: int, header: Header) -> "array[int]":
    """Return the lengths of a block's records, found by walking over them.

    Raises BadBlock."""
    try:
        return array("I", record_lengths(header.program, block.data[block.start : block.end], block.records))
    except MalformedRecord as error:
        raise BadBlock(position, f"the records are damaged: {error}") from None


def whole_block_behind(descriptor: int, header: Header, position: int, file_size: int, offset: int) -> int | None:
    """Return the position of a whole block after the bad one at `position`; None if there is none (a torn tail).

    `offset`: the record with which the bad block should begin. The search checks the end that the bad block states,
    and the bytes after each sync marker. A block with this offset or a smaller one does not count, because the sectors
    of a torn block may hold older bytes.
    """
    rest = read_at(descriptor, file_size - position, position)
    candidates = []
    try:
        _, at = read_long(rest, 0)
        size, start = read_long(rest, at)
        candidates.append(start + size + SYNC_BYTES)
    except (IndexError, ValueError):
        candidates.clear()
    found = rest.find(header.sync)
    while found >= 0:
        candidates.append(found + SYNC_BYTES)
        found = rest.find(header.sync, found + 1)
    for candidate in sorted(candidates):
        if 0 < candidate < len(rest):
            try:
                _, block = read_block(descriptor, position + candidate, file_size, header)
            except BadBlock:
                continue
            if block.first_offset > offset:
                return position + candidate
    return None


def _stored_header(length: int, last: bool) -> bytes:
    return struct.pack("<BHH", last, length, length ^ 0xFFFF)


def _stored_blocks(given: Sequence[Bare], size: int) -> list[bytes | memoryview]:
    """Return the parts of a block larger than a stored block: the given ones with headers between, uncopied."""
    parts: list[bytes | memoryview] = []
    room = 0
    for piece in given:
        view, at = memoryview(piece), 0
        while at < len(piece):
            if not room:
                room = min(size, STORED_BYTES)
                size -= room
                parts.append(_stored_header(room, not size))
            part = view[at : at + room]
            parts.append(part)
            at += len(part)
            room -= len(part)
    return parts


def _joined(parts: Iterable[bytes | memoryview]) -> list[bytes]:
    """Return the parts joined to pieces of PIECE_BYTES or a part more."""
    pieces = []
    some: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        some.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            pieces.append(b"".join(some))
            some, size = [], 0
    if some:
        pieces.append(b"".join(some))
    return pieces


def _stored(raw: bytes, at: int, end: int, position: int) -> tuple[bytes, int, int]:
    """Return the records in the stored blocks from byte `at` to `end`.

    Returns the bytes, the index at which the records begin in them, and their end. One stored block is not copied.
    Raises BadBlock."""
    view = memoryview(raw)
    parts: list[memoryview] = []
    while at + 5 <= end:
        length = int.from_bytes(raw[at + 1 : at + 3], "little")
        last = at + 5 + length == end
        if raw[at : at + 5] != _stored_header(length, last):
            break
        if last and not parts:
            return raw, at + 5, end
        parts.append(view[at + 5 : at + 5 + length])
        at += 5 + length
        if last:
            data = b"".join(parts)
            return data, 0, len(data)
    raise BadBlock(position, f"no stored block of deflate at byte {at} of the block")


def _encode_check(check: bytes) -> bytes:
    bits = int.from_bytes(check, "big")
    return b"".join([_TWO[bits >> shift & 1_023] for shift in _SHIFTS])


def _decode_check(raw: bytes, position: int) -> tuple[bytes, bytes, int]:
    """Return first offset, chain before, CRC.

    Raises BadBlock."""
    if raw[1::5] == _ZEROS and raw[2::5] == _ZEROS and raw[3::5] == _ONES and raw[4::5] == _ONES:
        try:
            bits = int(raw[::5].translate(_DIGITS), 32)
        except ValueError:
            pass
        else:
            place, chain_before, crc = _CHECK.unpack(bits.to_bytes(_CHECK.size, "big"))
            return place, chain_before, crc
    raise BadBlock(position, "it has no check")
