"""Reads a partition of a data directory that another process writes, up to the end that this one said is durable."""

from collections.abc import Iterable, Iterator

from rewindmq.engine.log.contract import Block, LogError
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.projections.store.bases import Base


class FileHistory:
    """The reading half of `SharedPartition`. `durable_end`: the end that can be read now."""

    framed = False

    def __init__(self, reader: PartitionReader, durable_end: int) -> None:
        self.name = reader.name
        self.durable_end = durable_end
        self._reader = reader

    @property
    def start_offset(self) -> int:
        """The oldest record that is here."""
        return self._reader.start_offset

    @property
    def next_offset(self) -> int:
        """The end that can be read now."""
        return self.durable_end

    @property
    def durable_offset(self) -> int:
        """The same: nothing else is read."""
        return self.durable_end

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yields blocks as `SharedPartition.read`."""
        return self._reader.read(offset, self.durable_end if end is None else min(end, self.durable_end))

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Yields the blocks of many short ranges (first offset, end)."""
        for offset, end in ranges:
            yield from self.read(offset, end)

    def record(self, offset: int, seconds: float) -> bytes | None:
        """The record at an offset. None: it is not there. `seconds` is of no use: files answer at once.

        Raises LogError."""
        for block in self.read(offset, offset + 1):
            return block.records[offset - block.first_offset] if block.first_offset <= offset else None
        return None

    def offset_at(self, timestamp_ms: int) -> int:
        """The offset as `SharedPartition.offset_at`."""
        return min(self._reader.offset_at(timestamp_ms), self.durable_end)

    def base(self) -> Base | None:
        """The base with which the partition begins.

        Raises LogError."""
        return self._reader.base()


def records_between(history: FileHistory, offset: int, end: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields runs of records from `offset` up to `end`, each with its first offset. Raises LogError."""
    at = offset
    for block in history.read(offset, end):
        first = max(at, block.first_offset)
        behind = min(end, block.first_offset + len(block.records))
        if first > at:
            raise LogError(f"{history.name}: the records from offset {at} on are gone")
        if behind > first:
            yield first, list(block.records[first - block.first_offset : behind - block.first_offset])
            at = behind
    if at < end:
        raise LogError(f"{history.name}: the files end at offset {at}, and {end} is durable")
