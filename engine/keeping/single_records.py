"""Reads single records of a log: near ones in one range, without reading between distant ones.

for offset, record in records_at(log, [12, 15, 90_000]): ...
for offset, record in queued_records(log, [2, 15]): ...     records below the log are read from its base
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from rewindmq.engine.log.contract import Block, LogError

if TYPE_CHECKING:
    from rewindmq.engine.keeping.location import HistoryPartition

NEIGHBOURS: Final = 1_000  # records with no more than this many between them are read in one range


class Readable(Protocol):
    """A partition whose records can be read in many short ranges."""

    @property
    def name(self) -> str: ...
    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]: ...


def neighbourhoods(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending offsets as ranges (first, end) of near ones."""
    first: int | None = None
    last = 0
    for offset in offsets:
        if first is None:
            first = offset
        elif offset - last > NEIGHBOURS:
            yield first, last + 1
            first = offset
        last = offset
    if first is not None:
        yield first, last + 1


def records_at(log: Readable, offsets: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield offset and record of each of these ascending offsets.

    Raises LogError if the log has no such record, and the errors of reading."""
    at = 0
    for block in log.read_ranges(neighbourhoods(offsets)):
        behind = block.first_offset + len(block.records)
        while at < len(offsets) and block.first_offset <= offsets[at] < behind:
            yield offsets[at], block.records[offsets[at] - block.first_offset]
            at += 1
    if at < len(offsets):
        raise LogError(f"{log.name}: there is no record {offsets[at]}")


def record_digest(log: "HistoryPartition", offset: int) -> str:
    """Return the SHA-256 of a publish, unique to the history at this offset, because a record has its time.

    Two histories that agree on a record agree on all earlier ones: a fork has its parent's records up to the branch.
    Raises as `queued_records`."""
    [(_, record)] = queued_records(log, [offset])
    return hashlib.sha256(record).hexdigest()


def queued_records(log: "HistoryPartition", offsets: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield offset and record of each of these ascending publishes, which are queued where the log is read.

    Raises as `records_at`, and BaseError."""
    start = log.start_offset
    base = log.base() if offsets and offsets[0] < start else None
    below = bisect_left(offsets, start) if base is not None else 0
    for offset in offsets[:below]:
        record = None if base is None else base.record(offset)
        assert record is not None, f"{log.name}: its base holds each message that is queued there"
        yield offset, record
    yield from records_at(log, offsets[below:])
