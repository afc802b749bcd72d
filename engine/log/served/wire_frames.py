"""The frames between the log's process and a worker, over a Unix socket. Both ends are one build.

    | length of the rest, 4 bytes | kind, 1 | number of the partition, 2 | payload |

    from a worker                                         from the log's process
    HELLO      its name                                   WELCOME    JSON: the log as it is now
    APPEND     records of one partition                   OWN        offsets and time of one of the worker's batches
    COUNT      counters: keys and values                  RECORDS    the same, and the records of another worker's batch
    FOLLOW     an offset: send what comes from there on   SKIPPED    an offset: read up to there from the files
    PAUSE      send nothing of it any more                PAUSED     nothing of it follows
    JOIN       the worker may have duties                 DELIVERED  offsets of an own batch that is not followed
    ASK        a number: where do all partitions end?     ENDS       the number, the ends, the durable ends
                                                          DUTIES     numbers of the partitions that the worker owns
                                                          COUNTED    counters of any worker, with offsets
                                                          TROUBLE    why nothing is written; empty: it is again
                                                          HISTORY    JSON: how the archive and the trims do

A batch is one APPEND: records that stand behind one another in one partition, with one time. The log's process sends
its payload on as it came:

    | bytes of the time in each record, 1 | number of records, 4 | length of each, 4 each | the records |

Numbers are little-endian. Partitions are numbered: metadata, heartbeats, those of queues, those of counters.
"""

import json
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

HELLO: Final = 1
APPEND: Final = 2
COUNT: Final = 3
FOLLOW: Final = 4
PAUSE: Final = 5
JOIN: Final = 6
ASK: Final = 7
WELCOME: Final = 20
OWN: Final = 21
RECORDS: Final = 22
SKIPPED: Final = 23
PAUSED: Final = 24
DELIVERED: Final = 25
ENDS: Final = 26
DUTIES: Final = 27
COUNTED: Final = 28
TROUBLE: Final = 29
HISTORY: Final = 30

METADATA_NUMBER: Final = 0
NODES_NUMBER: Final = 1
FIRST_QUEUE: Final = 2

HEAD: Final = struct.Struct("<IBH")
BATCH: Final = struct.Struct("<BI")  # of APPEND
PLACE: Final = struct.Struct("<QQ")  # of RECORDS, COUNTED, OWN: the first offset and the time
COUNTED_IN: Final = struct.Struct("<I")
OFFSET: Final = struct.Struct("<Q")
RUN: Final = struct.Struct("<QI")  # of DELIVERED: the first offset, and how many
OWN_RUN: Final = struct.Struct("<QQI")  # of OWN: the first offset, the time, and how many
ENTRY: Final = struct.Struct("<II")  # of COUNT: length of the key; that of the value and one, or 0: no value

AFTER_LENGTH: Final = HEAD.size - 4
BATCH_BYTES: Final = 262_144  # a batch ends with the record that reaches this
BATCH_RECORDS: Final = 1_024
# The largest message (512 MiB), its properties and its route, with room to spare. Nothing larger is read.
MOST_BYTES: Final = 640 << 20
MOST_RECORD_BYTES: Final = 600 << 20

Frame = tuple[int, int, bytes]  # kind, number of the partition, payload


class BadFrame(Exception):
    """The other side sent bytes that are no frame."""


class Frames:
    """Cuts what a socket gives into frames. It keeps the bytes of one frame that is not whole."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the frame that is not whole
        self._size = 0
        self._needed = HEAD.size

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are whole with these bytes. Raises BadFrame."""
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        at, size = 0, len(data)
        while True:
            needed = HEAD.size
            if size - at >= HEAD.size:
                length, kind, number = HEAD.unpack_from(data, at)
                if not AFTER_LENGTH <= length <= MOST_BYTES:
                    raise BadFrame(f"a frame of {length} bytes")
                end = at + 4 + length
                if end <= size:
                    yield kind, number, data[at + HEAD.size : end]
                    at = end
                    continue
                needed = 4 + length
            break
        if at < size:
            self._pieces.append(data[at:] if at else data)
        self._size, self._needed = size - at, needed


def frame(kind: int, number: int, *parts: bytes) -> bytes:
    """A whole frame."""
    return b"".join((HEAD.pack(AFTER_LENGTH + sum(map(len, parts)), kind, number), *parts))


def as_json(kind: int, content: dict[str, Any]) -> bytes:
    """A frame whose payload is JSON."""
    return frame(kind, 0, json.dumps(content, allow_nan=False).encode())


def time_bytes(record: bytes) -> int:
    """How many bytes the time takes with which a record begins: an Avro long."""
    size = 1
    while record[size - 1] & 0x80:
        size += 1
    return size


def encode_batch(skip: int, records: Sequence[bytes]) -> bytes:
    """The payload of APPEND. `skip`: the bytes of the time in each record."""
    lengths = array("I", map(len, records)).tobytes()
    return b"".join((BATCH.pack(skip, len(records)), lengths, *records))


def decode_batch(payload: bytes, at: int = 0) -> tuple[int, "array[int]", int]:
    """The payload of APPEND, from byte `at` on: the bytes of the time in each record, the lengths of the records, and
    where they begin. Raises BadFrame."""
    try:
        skip, count = BATCH.unpack_from(payload, at)
    except struct.error:
        raise BadFrame("a batch without a beginning") from None
    begin = at + BATCH.size + 4 * count
    lengths: array[int] = array("I")
    if begin > len(payload):
        raise BadFrame("a batch is cut short")
    lengths.frombytes(payload[at + BATCH.size : begin])
    if begin + sum(lengths) != len(payload) or (count and min(lengths) <= skip):
        raise BadFrame("a batch whose lengths are wrong")
    return skip, lengths, begin


def encode_entries(entries: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """The payload of COUNT: keys and values of counters."""
    parts = [COUNTED_IN.pack(len(entries))]
    for key, value in entries:
        parts += (ENTRY.pack(len(key), 0 if value is None else len(value) + 1), key, value or b"")
    return b"".join(parts)


def decode_entries(payload: bytes, at: int = 0) -> list[tuple[bytes, bytes | None]]:
    """The payload of COUNT, from byte `at` on. Raises BadFrame."""
    entries: list[tuple[bytes, bytes | None]] = []
    try:
        (count,) = COUNTED_IN.unpack_from(payload, at)
        at += COUNTED_IN.size
        for _ in range(count):
            key_size, value_size = ENTRY.unpack_from(payload, at)
            at += ENTRY.size
            key = payload[at : at + key_size]
            at += key_size
            value = payload[at : at + value_size - 1] if value_size else None
            at += max(0, value_size - 1)
            entries.append((key, value))
    except struct.error:
        raise BadFrame("counters are cut short") from None
    if at != len(payload):
        raise BadFrame("counters whose lengths are wrong")
    return entries
