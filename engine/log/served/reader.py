"""Reads a partition of a data directory that another process writes, up to the end that this one said is durable.

Older segments may go meanwhile (`start --keep-local`, a trim). The log begins with its local base then, as in a broker
of one process: a state that is older begins with it. Reading that has begun below it goes on in the archive.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from rewindmq.engine.log.contract import Block, LogError
from rewindmq.engine.log.embedded.base_records import BaseRecords, base_beside_cuts
from rewindmq.engine.log.embedded.log_start import unfinished_cut
from rewindmq.engine.log.embedded.reader import CutMeanwhile, PartitionReader
from rewindmq.engine.log.tiers import TieredPartition
from rewindmq.projections.store.bases import Base, BaseError, BaseGone


class FileHistory:
    """The reading half of `SharedPartition`. `durable_end`: the end that can be read now."""

    framed = False

    def __init__(self, reader: PartitionReader, durable_end: int) -> None:
        self.name = reader.name
        self.durable_end = durable_end
        self._reader = reader
        self._tiers = TieredPartition(reader)
        self._kept = BaseRecords(reader.directory)

    @property
    def start_offset(self) -> int:
        """The oldest record that is here, and stays: while another process cuts the log, where that cut ends."""
        cut = unfinished_cut(self._reader.directory)
        return self._reader.start_offset if cut is None else cut

    @property
    def next_offset(self) -> int:
        """The end that can be read now."""
        return self.durable_end

    @property
    def durable_offset(self) -> int:
        """The same: nothing else is read."""
        return self.durable_end

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yields blocks as `SharedPartition.read`.

        Raises BelowStart where the history has been trimmed, NoAnswer while the archive that has the records is
        away."""
        return self._tiers.read(offset, self.durable_end if end is None else min(end, self.durable_end))

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Yields the blocks of many short ranges (first offset, end)."""
        for offset, end in ranges:
            yield from self.read(offset, end)

    def record(self, offset: int, seconds: float) -> bytes | None:
        """The record at an offset; of one below the local start, if a message was queued there. None: it is not there.

        `seconds` is of no use: files answer at once. Raises LogError."""
        if offset >= self.start_offset:
            with suppress(CutMeanwhile):
                for block in self._reader.read(offset, min(offset + 1, self.durable_end)):
                    if block.first_offset <= offset:
                        return block.records[offset - block.first_offset]
        start = self.start_offset
        return self._kept.record(start, offset) if offset < start else None

    def offset_at(self, timestamp_ms: int) -> int:
        """The offset as `SharedPartition.offset_at`."""
        return min(self._reader.offset_at(timestamp_ms), self.durable_end)

    def base(self) -> Base | None:
        """The base with which the partition begins here.

        Raises LogError, BaseGone."""
        try:
            return base_beside_cuts(self._reader.directory)
        except BaseGone:
            raise
        except BaseError as error:
            raise LogError(str(error)) from None


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
