"""A segment: a run of a partition's records in one file, a plain Avro Object Container File that any Avro tool reads.

    <base offset, 20 digits>.avro
    +--------------------------------------------------------------------------------------------------+
    | "Obj" 1 | metadata map: avro.schema, avro.codec = null, rewindmq.format = 1,                      | header
    |         | rewindmq.partition, rewindmq.base_offset                       | sync marker (16 bytes) |
    +--------------------------------------------------------------------------------------------------+
    | count (long) | size (long) | the records' Avro binaries, one behind the other | sync marker      | block: one
    +--------------------------------------------------------------------------------------------------+ group commit
    | ...

- Offsets are not stored: the first record has the base offset, and each block goes on where the one before ended.
- The sync marker is drawn at random for each file, so that no record can contain it.
- The header is whole or the file has not got its name yet: it is written to `_<name>.new`, synced and renamed.
- Blocks are only ever added at the end, and a block is synced before the next one is written. So at most the last
  block of the last segment can be torn by a crash, and everything else that is not whole is corruption.
- A segment belongs to one schema: a broker with another one begins a new segment.
"""

import os
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.log.base import CorruptLog
from schemas.walk import MalformedRecord, Program, compile_schema, record_lengths

SUFFIX = ".avro"
FORMAT = b"1"
BEGINS_ANEW = b"rewindmq.time"
SYNC_BYTES = 16
MAGIC = b"Obj\x01"
_FRAME_BYTES = 20  # two longs at their longest
_HEADER_BYTES = 1 << 20  # read to find the header; a larger header is refused


class BadBlock(Exception):
    """What stands at `position` is not a whole block."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position
        self.why = why


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a segment; `raw` are its bytes as stored, the blocks begin behind them."""

    schema: str
    partition: str
    base_offset: int
    sync: bytes
    raw: bytes
    begins_anew: bool = False  # in time: the clock was set, and timestamps may be lower than in the segment before

    @property
    def program(self) -> Program:
        """The walk over a record of this segment's schema."""
        return compile_schema(self.schema)


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{SUFFIX}"


def segment_files(directory: Path) -> list[Path]:
    """The segments of a partition in offset order."""
    return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)


def encode_header(schema: str, partition: str, base_offset: int, begins_anew: bool = False) -> bytes:
    metadata = {
        b"avro.schema": schema.encode(),
        b"avro.codec": b"null",
        b"rewindmq.format": FORMAT,
        b"rewindmq.partition": partition.encode(),
        b"rewindmq.base_offset": str(base_offset).encode(),
    }
    if begins_anew:
        metadata[BEGINS_ANEW] = b"anew"
    items = [_long(len(part)) + part for item in metadata.items() for part in item]
    return b"".join((MAGIC, _long(len(metadata)), *items, b"\x00", secrets.token_bytes(SYNC_BYTES)))


def create(path: Path, header: bytes) -> int:
    """Make a segment that holds `header`, durably; its file descriptor, open for reading and writing."""
    new = path.with_name(f"_{path.name}.new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_at(descriptor, header, 0)
        os.fsync(descriptor)
        os.rename(new, path)
        sync_directory(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_header(path: Path, descriptor: int) -> Header:
    """Read and check the header. Raises CorruptLog."""
    base_offset = base_offset_of(path)
    data = os.pread(descriptor, _HEADER_BYTES, 0)
    try:
        header = _parse_header(data)
    except (IndexError, ValueError) as error:
        raise CorruptLog(path, 0, base_offset, f"not a whole segment header: {error}") from None
    if header.base_offset != base_offset or header.partition != path.parent.name:
        why = f"the header says offset {header.base_offset} of partition {header.partition}"
        raise CorruptLog(path, 0, base_offset, why)
    return header


def base_offset_of(path: Path) -> int:
    if not path.stem.isdigit():
        raise CorruptLog(path, 0, 0, "a segment is named after its base offset, in digits")
    return int(path.stem)


def encode_block(records: Sequence[bytes], size: int, sync: bytes) -> bytes:
    """One block; `size` is the records' length together."""
    return b"".join((_long(len(records)), _long(size), *records, sync))


def read_block(descriptor: int, position: int, file_size: int, sync: bytes) -> tuple[bytes, int, int]:
    """The block at `position` and what `parse_block` says of it. Raises BadBlock."""
    left = file_size - position
    try:
        raw = os.pread(descriptor, min(_FRAME_BYTES, left), position)
        _, at = _read_long(raw, 0)
        size, start = _read_long(raw, at)
    except IndexError:
        raise BadBlock(position, f"the file ends {left} bytes into the block") from None
    except ValueError as error:
        raise BadBlock(position, str(error)) from None
    length = start + max(0, size) + SYNC_BYTES
    if length > left:
        raise BadBlock(position, f"the file ends {left} bytes into a block of {length}")
    raw = read_at(descriptor, length, position)
    return raw, *parse_block(raw, position, sync)


def parse_block(raw: bytes, position: int, sync: bytes) -> tuple[int, int]:
    """How many records a block says that it has, and at which byte they begin. Count, size and sync marker are checked,
    the records are not. Raises BadBlock."""
    if len(raw) > 17 and raw[0] < 128 and raw[1] < 128:  # small numbers, as most blocks have
        count, size, start = raw[0] >> 1 ^ -(raw[0] & 1), raw[1] >> 1 ^ -(raw[1] & 1), 2
    else:
        try:
            count, at = _read_long(raw, 0)
            size, start = _read_long(raw, at)
        except (IndexError, ValueError):
            raise BadBlock(position, "it does not begin with a count and a size") from None
    if count <= 0 or size < count:
        raise BadBlock(position, f"a block of {count} records in {size} bytes")
    if start + size + SYNC_BYTES != len(raw):
        raise BadBlock(position, f"a block of {start + size + SYNC_BYTES} bytes in {len(raw)}")
    if raw[-SYNC_BYTES:] != sync:
        raise BadBlock(position, "the sync marker behind the block is not the file's")
    return count, start


def block_lengths(raw: bytes, position: int, count: int, start: int, program: Program) -> "array[int]":
    """The lengths of a block's records, by walking over them. Raises BadBlock."""
    try:
        return array("I", record_lengths(program, raw[start:-SYNC_BYTES], count))
    except MalformedRecord as error:
        raise BadBlock(position, f"the records are damaged: {error}") from None


def record_timestamp(record: bytes) -> int:
    """The envelope's first field, milliseconds."""
    return _read_long(record, 0)[0]


def max_timestamp(records: Sequence[bytes]) -> int:
    """The largest timestamp of some records. Neighbours often have the same, which is seen without reading it."""
    newest = record_timestamp(records[0])
    same = b""
    for record in records:
        if not (same and record.startswith(same)):
            timestamp_ms, size = _read_long(record, 0)
            newest = max(newest, timestamp_ms)
            same = record[:size]
    return newest


def whole_block_behind(descriptor: int, header: Header, position: int, file_size: int) -> int | None:
    """The position of a whole block behind the bad one at `position`; None if there is none (a torn tail).

    Looked for where the bad block says that it ends, and behind each sync marker.
    """
    program = header.program
    rest = read_at(descriptor, file_size - position, position)
    candidates = []
    try:
        _, at = _read_long(rest, 0)
        size, start = _read_long(rest, at)
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
                raw, count, begin = read_block(descriptor, position + candidate, file_size, header.sync)
                block_lengths(raw, position + candidate, count, begin, program)
            except BadBlock:
                continue
            return position + candidate
    return None


def read_at(descriptor: int, length: int, position: int) -> bytes:
    """`length` bytes, less only where the file ends."""
    data = os.pread(descriptor, length, position)
    while len(data) < length and (more := os.pread(descriptor, length - len(data), position + len(data))):
        data += more
    return data


def write_at(descriptor: int, data: bytes, position: int) -> None:
    """Write all of `data`. OSError (ENOSPC, EIO): an unknown part of it was written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse_header(data: bytes) -> Header:
    if data[:4] != MAGIC:
        raise ValueError("it does not begin as an Avro container file")
    metadata: dict[bytes, bytes] = {}
    count, at = _read_long(data, 4)
    while count:
        if count < 0:
            count = -count
            _, at = _read_long(data, at)
        for _ in range(count):
            key, at = _read_bytes(data, at)
            metadata[key], at = _read_bytes(data, at)
        count, at = _read_long(data, at)
    end = at + SYNC_BYTES
    if end > len(data):
        raise ValueError(f"it ends at byte {len(data)}")
    if metadata.get(b"avro.codec", b"null") != b"null":
        raise ValueError(f"codec {metadata[b'avro.codec']!r}")
    if metadata.get(b"rewindmq.format") != FORMAT:
        raise ValueError(f"rewindmq.format is {metadata.get(b'rewindmq.format')!r}, this version knows {FORMAT!r}")
    missing = {b"avro.schema", b"rewindmq.partition", b"rewindmq.base_offset"} - metadata.keys()
    if missing:
        raise ValueError(f"no {', '.join(sorted(key.decode() for key in missing))}")
    return Header(
        metadata[b"avro.schema"].decode(),
        metadata[b"rewindmq.partition"].decode(),
        int(metadata[b"rewindmq.base_offset"]),
        data[at:end],
        data[:end],
        BEGINS_ANEW in metadata,
    )


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(data, at)
    if length < 0 or at + length > len(data):
        raise ValueError(f"a value of {length} bytes at byte {at}")
    return data[at : at + length], at + length


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value >> 1 ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _long(value: int) -> bytes:
    """Avro's variable-length zigzag of a number that is not negative."""
    value <<= 1
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
