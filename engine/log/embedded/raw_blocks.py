"""Reads stored bytes of a partition for another machine, and proves bytes received from one.

    piece = piece_behind(directory, at, until, 4 << 20)      the leader: the bytes after `at`
    header = proven_header(data, directory, end)             the follower: they belong here
    blocks = proven_blocks(data, place, header, path)

A block proves itself (blocks.py) by its checksum, its offset, and the beginning of the hash chain before it. So bytes
of another history, or of another place, are refused before anything is written. A last block that is cut off is left
out, and requested again.
"""

from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from rewindmq.engine.log.contract import BelowStart, CorruptLog, LogError
from rewindmq.engine.log.embedded.blocks import BadBlock, block_lengths, parse_block, require_place
from rewindmq.engine.log.embedded.ends import End
from rewindmq.engine.log.embedded.index import Entry, encode_lengths, split
from rewindmq.engine.log.embedded.reader import BlockEnd, PartitionReader, chain_behind
from rewindmq.engine.log.embedded.segment_schema import check_schema
from rewindmq.engine.log.embedded.segments import (
    SYNC_BYTES,
    Header,
    OtherFormat,
    base_offset_of,
    max_bare_timestamp,
    parse_header,
    read_at,
    read_long,
    segment_files,
    segment_path,
    stated_chain,
)

_FRAME_BYTES = 20  # two longs at their longest


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of `size` bytes of the segment that begins at offset `base`, from byte `position` on."""

    path: Path
    base: int
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class ProvenBlocks:
    """Whole blocks with their index entries and the lengths of their records, in the form of the sidecars.

    `size`: their bytes. `needed`: the size of the first, cut-off block, if there was no whole one."""

    entries: list[Entry]
    lengths: list[bytes]
    size: int
    needed: int


def beginning_of_log(directory: Path) -> int:
    """Return the offset at which a partition begins here."""
    return base_offset_of(segment_files(directory)[0])


def piece_behind(directory: Path, at: End, until: End, most: int) -> Piece | None:
    """Return the stored bytes after `at`, up to `until` and at most `most` bytes; None: there are none.

    Raises BelowStart if they are gone."""
    if at.offset >= until.offset:
        return None
    base, position = at.base, at.position
    try:
        size = until.position if base == until.base else segment_path(directory, base).stat().st_size
        if position >= size:  # the next segment
            base, position = at.offset, 0
            size = until.position if base == until.base else segment_path(directory, base).stat().st_size
    except FileNotFoundError as error:
        raise BelowStart(f"{error.filename}: it is no longer here") from None
    return Piece(segment_path(directory, base), base, position, min(most, size - position))


def chain_at(directory: Path, offset: int, end: End) -> bytes | None:
    """Return the hash chain of a partition up to `offset`; None if no block ends there, or it is gone.

    `end`: the durable end. Raises CorruptLog, LogError."""
    if offset == end.offset:
        return end.chain
    first = segment_files(directory)[0]
    if offset == base_offset_of(first):
        return stated_chain(first)
    if not base_offset_of(first) < offset < end.offset:
        return None
    for block in PartitionReader(directory).read(offset - 1, offset):
        return block.chain if block.first_offset + len(block.records) == offset else None
    return None


def end_at(directory: Path, offset: int) -> End | None:
    """Return the end of the block that ends at `offset`; None if there is none.

    Raises CorruptLog, LogError."""
    for block in PartitionReader(directory).read(offset - 1, offset):
        if block.first_offset + len(block.records) != offset:
            return None
        with block.file.open("rb") as file:
            data = read_at(file.fileno(), 20, block.position)
        at = read_long(data, 0)[1]
        size, start = read_long(data, at)
        position = block.position + start + size + SYNC_BYTES
        return End(base_offset_of(block.file), position, offset, block.chain)
    return None


def proven_header(data: bytes, directory: Path, end: End) -> Header:
    """Return the header, at the beginning of these bytes, of a segment that continues after `end`.

    Raises CorruptLog; LogError if it is of a newer version."""
    path = segment_path(directory, end.offset)
    try:
        header = parse_header(data)
    except OtherFormat as error:
        raise LogError(f"{path}: the leader sent {error}") from None
    except (IndexError, ValueError) as error:
        raise CorruptLog(path, 0, end.offset, f"the leader sent no whole segment header: {error}") from None
    if header.partition != directory.name or header.base_offset != end.offset:
        why = f"the leader sent a header of offset {header.base_offset} of partition {header.partition}"
        raise CorruptLog(path, 0, end.offset, why)
    if header.chain_before != end.chain:
        raise CorruptLog(path, 0, end.offset, "the leader's segment does not continue the hash chain that is here")
    check_schema(header, path)
    return header


def proven_blocks(data: bytes, place: BlockEnd, header: Header, path: Path) -> ProvenBlocks:
    """Return the whole blocks at the beginning of these bytes. They continue `place`.

    Raises CorruptLog."""
    entries: list[Entry] = []
    lengths: list[bytes] = []
    begun = place.position
    at = 0
    while True:
        length = _length_at(data, at)
        if at + length > len(data) or at == len(data):
            return ProvenBlocks(entries, lengths, at, length)
        raw = data[at : at + length]
        try:
            block = parse_block(raw, begun + at, header)
            require_place(block, begun + at, place.offset, place.chain)
            of_block = encode_lengths(block_lengths(block, begun + at, header))
        except BadBlock as bad:
            raise CorruptLog(path, begun + at, place.offset, f"the leader sent {bad.why}") from None
        newest = max(place.max_timestamp_ms, max_bare_timestamp(split(block.data, block.start, of_block)))
        chain = chain_behind(place.chain, header, block, of_block)
        entries.append(Entry(place.offset, block.records, length, begun + at, newest, chain, crc32(of_block)))
        lengths.append(of_block)
        at += length
        place = BlockEnd(place.offset + block.records, begun + at, chain, newest)


def _length_at(data: bytes, at: int) -> int:
    """Return the length of the block at an index; more than available if the bytes end before they state it."""
    try:
        start = read_long(data, at)[1]
        size, start = read_long(data, start)
    except IndexError:
        return len(data) - at + _FRAME_BYTES
    except ValueError as error:
        raise LogError(f"the leader sent no block: {error}") from None
    return start - at + max(0, size) + SYNC_BYTES
