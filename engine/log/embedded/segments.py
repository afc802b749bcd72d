"""A segment: a run of a partition's records in one file, a plain Avro Object Container File that any Avro tool reads.

    <base offset, 20 digits>.avro
    +--------------------------------------------------------------------------------------------------+
    | "Obj" 1 | metadata map: avro.schema, avro.codec = deflate, rewindmq.format = 1,                   | header
    |         | rewindmq.partition, rewindmq.base_offset, rewindmq.chain_before | sync marker (16 bytes) |
    +--------------------------------------------------------------------------------------------------+
    | count (long) | size (long) | check: 24 empty stored blocks of deflate, 120 bytes                  | block: one
    | 01 | length, complement | the records' envelopes, one behind the other     | sync marker           | group commit
    +--------------------------------------------------------------------------------------------------+
    | ...

    check: first offset (6 bytes) | hash chain before (first 5 bytes) | CRC-32 of all other bytes of the block

- Nothing is compressed: the records are stored blocks of deflate, one for each 65,535 bytes (only the last begins with
  01). The check is in bits that deflate ignores (blocks.py), so any Avro tool reads only the records.
- So a block itself states its place. It is accepted only if its checksum is right, its offset is the next one, and the
  hash chain before it (index.py) is the one that it names. The chain begins with the partition's name.
- The sync marker is drawn at random for each file, so that no record can contain it.
- A file with a segment's name has a whole header, because it is written to `_<name>.new`, synced and renamed.
- rewindmq.chain_before is the hash chain up to the header, 64 hexadecimal digits. So a segment can be proven
  separately, and one comparison proves that it continues the previous segment.
- Blocks are only ever added at the end, and a block is synced before the next one is written. So a crash can tear at
  most the last block of the last segment, and any other incomplete block is corruption.
- A segment belongs to one schema: a broker with another one begins a new segment. So the header of each record, which
  names the schema (schemas/single_object.py), is omitted here, and readers restore it. In engine/log/embedded, `bare`
  is a stored record, and `record` one with its header.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.projections import system_calls
from rewindmq.schemas.formats import other_format
from rewindmq.schemas.single_object import HEADER_SIZE
from rewindmq.schemas.walk import Program, compile_schema

SUFFIX: Final = ".avro"
BEGINS_ANEW: Final = b"rewindmq.time"
FORMAT: Final = b"1"
CODEC: Final = b"deflate"
SYNC_BYTES: Final = 16
MAGIC: Final = b"Obj\x01"
_HEADER_BYTES: Final = 1 << 20  # bytes read to find the header; a larger header is refused


class OtherFormat(ValueError):
    """A segment has another version of the format."""


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a segment.

    `raw`: its stored bytes, after which the blocks begin. `chain_before`: the hash chain of the partition up to the
    header."""

    schema: str
    partition: str
    base_offset: int
    sync: bytes
    raw: bytes
    chain_before: bytes
    begins_anew: bool = False  # the clock was set, so timestamps may be lower than in the previous segment

    @property
    def program(self) -> Program:
        """Return the program that walks over a record of this segment's schema."""
        return compile_schema(self.schema)


def segment_path(directory: Path, base_offset: int) -> Path:
    """Return the path of the segment with this base offset."""
    return directory / f"{base_offset:020d}{SUFFIX}"


def segment_files(directory: Path) -> list[Path]:
    """Return the segments of a partition in offset order."""
    return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)


def encode_header(
    schema: str, partition: str, base_offset: int, chain_before: bytes, begins_anew: bool = False
) -> bytes:
    """Return the header of a segment, as bytes."""
    metadata = {
        b"avro.schema": schema.encode(),
        b"avro.codec": CODEC,
        b"rewindmq.format": FORMAT,
        b"rewindmq.partition": partition.encode(),
        b"rewindmq.base_offset": str(base_offset).encode(),
        b"rewindmq.chain_before": chain_before.hex().encode(),
    }
    if begins_anew:
        metadata[BEGINS_ANEW] = b"anew"
    items = [encode_long(len(part)) + part for item in metadata.items() for part in item]
    return b"".join((MAGIC, encode_long(len(metadata)), *items, b"\x00", secrets.token_bytes(SYNC_BYTES)))


def create(path: Path, header: bytes) -> int:
    """Make a segment with `header`, durably, and return its file descriptor, open for reading and writing."""
    new = path.with_name(f"_{path.name}.new")
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        write_at(descriptor, header, 0)
        system_calls.sync(descriptor)
        os.rename(new, path)
        system_calls.sync_directory(path.parent)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_header(path: Path, descriptor: int) -> Header:
    """Read and check the header of a segment.

    Raises CorruptLog; LogError for another format."""
    base_offset = base_offset_of(path)
    try:
        header = parse_header(os.pread(descriptor, _HEADER_BYTES, 0))
    except IsADirectoryError:
        raise CorruptLog(path, 0, base_offset, "a directory, in place of a segment") from None
    except OtherFormat as other:
        raise LogError(f"{path}: {other}") from None
    except (IndexError, ValueError) as error:
        raise CorruptLog(path, 0, base_offset, f"not a whole segment header: {error}") from None
    if header.base_offset != base_offset or header.partition != path.parent.name:
        why = f"the header says offset {header.base_offset} of partition {header.partition}"
        raise CorruptLog(path, 0, base_offset, why)
    return header


def stated_chain(path: Path) -> bytes:
    """Return the hash chain up to a segment, from its header.

    Raises CorruptLog, LogError, FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_header(path, descriptor).chain_before
    finally:
        os.close(descriptor)


def base_offset_of(path: Path) -> int:
    """Return the base offset in a segment's name.

    Raises CorruptLog."""
    if not path.stem.isdigit():
        raise CorruptLog(path, 0, 0, "a segment is named after its base offset, in digits")
    return int(path.stem)


def record_timestamp(record: bytes) -> int:
    """Return a record's timestamp: the envelope's first field, in milliseconds."""
    return read_long(record, HEADER_SIZE)[0]


def bare_timestamp(bare: bytes) -> int:
    """Return the timestamp of a bare record."""
    return read_long(bare, 0)[0]


def max_bare_timestamp(bare: Sequence[bytes]) -> int:
    """Return the largest timestamp of some bare records.

    Neighbours often have equal ones, so equal bytes are not decoded again."""
    newest = bare_timestamp(bare[0])
    same = b""
    for each in bare:
        if not (same and each.startswith(same)):
            timestamp_ms, size = read_long(each, 0)
            newest = max(newest, timestamp_ms)
            same = each[:size]
    return newest


def read_at(descriptor: int, length: int, position: int) -> bytes:
    """Read `length` bytes; fewer only at the end of the file."""
    data = os.pread(descriptor, length, position)
    while len(data) < length and (more := os.pread(descriptor, length - len(data), position + len(data))):
        data += more
    return data


def write_at(descriptor: int, data: bytes, position: int) -> None:
    """Write all of `data`.

    Raises OSError (ENOSPC, EIO) after an unknown part was written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def container_metadata(data: bytes) -> tuple[dict[bytes, bytes], int]:
    """Return the metadata of the Avro container file that begins with these bytes, and the index of the byte after it.

    Raises IndexError, ValueError."""
    if data[:4] != MAGIC:
        raise ValueError("it does not begin as an Avro container file")
    metadata: dict[bytes, bytes] = {}
    count, at = read_long(data, 4)
    while count:
        if count < 0:
            count = -count
            _, at = read_long(data, at)
        for _ in range(count):
            key, at = _read_bytes(data, at)
            metadata[key], at = _read_bytes(data, at)
        count, at = read_long(data, at)
    return metadata, at


def parse_header(data: bytes) -> Header:
    """Return the header at the beginning of these bytes.

    Raises IndexError, ValueError."""
    metadata, at = container_metadata(data)
    end = at + SYNC_BYTES
    if end > len(data):
        raise ValueError(f"it ends at byte {len(data)}")
    if (found := metadata.get(b"rewindmq.format")) != FORMAT:
        raise OtherFormat(other_format(found, FORMAT))
    if metadata.get(b"avro.codec") != CODEC:
        raise ValueError(f"codec {metadata.get(b'avro.codec')!r} in a segment")
    wanted = {b"avro.schema", b"rewindmq.partition", b"rewindmq.base_offset", b"rewindmq.chain_before"}
    if missing := wanted - metadata.keys():
        raise ValueError(f"no {', '.join(sorted(key.decode() for key in missing))}")
    chain_before = bytes.fromhex(metadata[b"rewindmq.chain_before"].decode())
    if len(chain_before) != 32:
        raise ValueError(f"a hash chain of {len(chain_before)} bytes")
    return Header(
        metadata[b"avro.schema"].decode(),
        metadata[b"rewindmq.partition"].decode(),
        int(metadata[b"rewindmq.base_offset"]),
        data[at:end],
        data[:end],
        chain_before,
        BEGINS_ANEW in metadata,
    )


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = read_long(data, at)
    if length < 0 or at + length > len(data):
        raise ValueError(f"a value of {length} bytes at byte {at}")
    return data[at : at + length], at + length


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Decode one of Avro's numbers. Return it, and the index of the byte after it.

    Raises IndexError, ValueError."""
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


def encode_long(value: int) -> bytes:
    """Encode a non-negative number in Avro's variable-length zigzag form."""
    value <<= 1
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
