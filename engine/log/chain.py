"""The hash chain of a partition: one link for each stored group of records, over offsets, times and values.

    chain = link(first_chain("queues-0"), 0, prefix, lengths, [data])         a block of a log in files
    chain = TopicChain(0, first_chain("queues-0")); chain.add(...)            records of a log in Kafka

    link = SHA-256( chain before | first offset, 8 bytes | records, 4 | columns, 1
                    | offset of each record minus the first, 4 each      GAPS: some offsets between have no record
                    | log's time of each record, 8 each                  TIMES: the log has its own times
                    | ten bytes                                          PREFIX: every value begins with them
                    | length of the rest of each value, 4 each           0 if there is no value
                    | the rests, concatenated )

- Numbers are big-endian; the columns are little-endian, as in a segment's file of lengths.
- In files a group is a block: one commit. It has no gaps, its times are in the values, and the whole segment has one
  schema. So the link covers the records as stored in the block, and their lengths as stored in its sidecar.
- In a topic, a group is `RUN` offsets wide: those with the same quotient by RUN. A group without a record has no link.
  So the chain does not depend on who wrote, read or archived the topic.
- The chain at any offset consists of the links of all whole groups before it, and one of the records between, if any.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from rewindmq.schemas.single_object import HEADER

RUN = 256  # offsets in a group of a topic; tests have smaller ones
PREFIX_BYTES: Final = len(HEADER)
_GAPS: Final = 1
_TIMES: Final = 2
_PREFIX: Final = 4
_HEAD: Final = struct.Struct(">QIB")
_LARGE: Final = 4_096  # bytes of a record on average: such records are hashed one by one, without a copy


def first_chain(partition: str) -> bytes:
    """Return the hash chain with which a partition begins, 32 bytes."""
    return sha256(partition.encode()).digest()


def group_start(offset: int) -> int:
    """Return the first offset of the group of a topic to which an offset belongs."""
    return offset - offset % RUN


def link(
    chain: bytes,
    first_offset: int,
    prefix: bytes,
    lengths: bytes,
    rests: Iterable[bytes | memoryview],
    offsets: Sequence[int] | None = None,
    times_ms: Sequence[int] | None = None,
) -> bytes:
    """Return the hash chain after a group of records.

    `prefix`: the ten bytes with which every value begins; b"" if they do not. `lengths`: of the rest of each value, 4
    bytes each, little-endian. `rests`: these rests concatenated, in any pieces. `offsets`: of each record, if there are
    gaps between them. `times_ms`: the log's time of each record, if it has its own times."""
    columns = (_GAPS if offsets else 0) | (_TIMES if times_ms is not None else 0) | (_PREFIX if prefix else 0)
    digest = sha256(chain + _HEAD.pack(first_offset, len(lengths) // 4, columns))
    if offsets:
        digest.update(little_endian(array("I", [offset - first_offset for offset in offsets])))
    if times_ms is not None:
        digest.update(little_endian(array("q", times_ms)))
    digest.update(prefix + lengths)
    for rest in rests:
        digest.update(rest)
    return digest.digest()


class TopicChain:
    """The hash chain of a topic whose records arrive in order: `offset` and `chain` of the last whole group's end."""

    def __init__(self, offset: int, chain: bytes) -> None:
        """Begin with the `chain` at an offset at which a group begins."""
        self.offset = offset
        self.chain = chain
        self._offsets: list[int] = []
        self._times_ms: list[int] = []
        self._values: list[bytes | None] = []

    def add(self, offset: int, timestamp_ms: int, value: bytes | None) -> None:
        """Add the next record."""
        if self._offsets and group_start(offset) > self.offset:
            self._close()
        if not self._offsets:
            self.offset = group_start(offset)
        self._offsets.append(offset)
        self._times_ms.append(timestamp_ms)
        self._values.append(value)

    def ends_at(self, offset: int) -> bytes:
        """Return the hash chain at an offset after the last record. Records of its group may still arrive.

        `offset` and `chain` are moved to the last whole group before it."""
        if self._offsets and group_start(offset) > self.offset:
            self._close()
        if self._offsets:
            return self._linked()
        self.offset = group_start(offset)
        return self.chain

    def _close(self) -> None:
        self.chain = self._linked()
        self.offset += RUN
        self._offsets, self._times_ms, self._values = [], [], []

    def _linked(self) -> bytes:
        return link_of_values(self.chain, self._offsets, self._times_ms, self._values)


def link_of_values(
    chain: bytes, offsets: Sequence[int], times_ms: Sequence[int], values: Sequence[bytes | None]
) -> bytes:
    """Return the hash chain after one group of a topic, or after its part before some offset.

    All offsets are of one group. There is at least one record."""
    first = values[0]
    prefix = b"" if first is None else first[:PREFIX_BYTES]
    if len(prefix) == PREFIX_BYTES and all(value is not None and value.startswith(prefix) for value in values):
        rests = [value[PREFIX_BYTES:] for value in values if value is not None]
        lengths = array("I", map(len, rests))
    else:
        prefix = b""
        rests = [value or b"" for value in values]
        lengths = array("I", map(len, rests))
    has_gaps = offsets[-1] - offsets[0] >= len(offsets)
    size = sum(map(len, rests))
    pieces = rests if size > _LARGE * len(rests) else [b"".join(rests)]
    return link(chain, offsets[0], prefix, little_endian(lengths), pieces, offsets if has_gaps else None, times_ms)


def little_endian(numbers: "array[int]") -> bytes:
    """Return the numbers as bytes, the same on every machine."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def numbers_in(code: str, data: bytes) -> "array[int]":
    """Return the numbers in bytes of `little_endian`. `code`: the array's type code."""
    numbers = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
