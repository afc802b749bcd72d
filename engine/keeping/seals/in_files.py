"""The seals of an embedded log: one file a seal beside the segments, `_<offset of the first record>.seal`.

A `.secret` file of the same name is its opening, which only the owner may read (commitments.py). A record is sealed
with the preceding ten bytes that name the segment's schema. A file is written whole under another name and then linked,
so a seal is never replaced.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from rewindmq.engine.keeping.seals.seal import BadSeal, StoredSeal, parsed_line
from rewindmq.engine.keeping.seals.sealer import Harm, Run
from rewindmq.engine.log.chain import first_chain
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition, read_layout
from rewindmq.engine.log.embedded.reader import BlockEnd, CutMeanwhile, PartitionReader, SegmentReader, first_chain_of
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.engine.log.whole_file import OWNER_ALONE, write_whole
from rewindmq.projections import system_calls


class SegmentedPartition:
    """A partition in files. Implements `rewindmq.engine.keeping.seals.sealer.Sealable`."""

    log = "embedded"
    value_at = 0

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name

    @cached_property
    def beginning(self) -> tuple[int, bytes]:
        files = segment_files(self.directory) if self.directory.is_dir() else []
        if not files or base_offset_of(files[0]) == 0:
            return 0, first_chain(self.name)
        try:
            segment = _opened(files[0], len(files) == 1)
        except CorruptLog:  # `walk` reports where
            return base_offset_of(files[0]), b""
        try:
            return first_chain_of(files[0], segment.header.chain_before)
        finally:
            segment.close()

    @property
    def next_offset(self) -> int:
        return PartitionReader(self.directory).next_offset

    def walk(self, start: int, end: int | None, chain: bytes) -> Iterator[Run]:
        files = segment_files(self.directory) if self.directory.is_dir() else []
        if not files:
            raise LogError(f"{self.directory}: no segment of a log is here")
        first = max((n for n, path in enumerate(files) if base_offset_of(path) <= start), default=0)
        offset = start
        for number in range(first, len(files)):
            segment = _opened(files[number], number == len(files) - 1)
            try:
                if segment.header.base_offset > offset:
                    if SegmentedPartition(self.directory).beginning[0] > self.beginning[0]:
                        raise CutMeanwhile(f"{self.directory}: the log was cut during the read")
                    raise CorruptLog(segment.path, 0, offset, "the records before it are gone")
                for run in _runs(segment, offset, end, chain):
                    offset, chain = run.next_offset, run.chain
                    yield run
                    if end is not None and offset >= end:
                        return
            finally:
                segment.close()

    def seals(self) -> tuple[list[StoredSeal], list[Harm]]:
        found, harms = [], []
        for path in sorted(self.directory.glob("_*.seal")):
            try:
                found.append(parsed_line(path.read_bytes(), str(path)))
            except BadSeal as bad:
                harms.append(Harm(self.name, None, str(bad)))
        return found, harms

    def opening(self, stored: StoredSeal) -> bytes:
        try:
            return opening_path(self.directory, stored.seal.base_offset).read_bytes()
        except OSError:
            return b""

    def make_durable(self) -> None:
        """Sync the last segment, whose newest records may not be durable. Earlier segments are."""
        with segment_files(self.directory)[-1].open("rb") as file:
            system_calls.sync(file.fileno())

    def store(self, sealed: StoredSeal, opening: bytes) -> StoredSeal:
        """Store a seal after its opening, because a seal whose secret a crash has lost could never be checked again."""
        path = seal_path(self.directory, sealed.seal.base_offset)
        with self._alone():
            if not path.exists():
                write_whole(opening_path(self.directory, sealed.seal.base_offset), opening, os.rename, OWNER_ALONE)
                system_calls.sync_directory(self.directory)
                if write_whole(path, (sealed.line + "\n").encode(), os.link):
                    system_calls.sync_directory(self.directory)
                    return sealed
        raise LogError(f"{path}: already exists: another process is sealing, or the file is damaged")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other sealer stores a seal here, because its opening must not be replaced."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def seal_path(directory: Path, base_offset: int) -> Path:
    """Return the path of the seal of the stretch that begins at this offset."""
    return directory / f"_{base_offset:020d}.seal"


def opening_path(directory: Path, base_offset: int) -> Path:
    """Return the path of the opening of the seal whose stretch begins at this offset."""
    return directory / f"_{base_offset:020d}.secret"


def segmented(data_dir: Path) -> list[SegmentedPartition]:
    """Return the partitions of a data directory.

    Raises LogError when there is no log."""
    names = (METADATA, *map(queue_partition, range(read_layout(data_dir))))
    return [SegmentedPartition(partition_directory(data_dir, name)) for name in names]


def _opened(path: Path, last: bool) -> SegmentReader:
    """Open a segment for reading.

    Raises CorruptLog, also for a schema of another version, which one changed byte can cause. Raises CutMeanwhile."""
    try:
        return SegmentReader(path, last)
    except FileNotFoundError:
        raise CutMeanwhile(f"{path}: it was cut off") from None
    except CorruptLog:
        raise
    except LogError as error:
        raise CorruptLog(path, 0, base_offset_of(path), str(error)) from None


def _runs(segment: SegmentReader, start: int, end: int | None, chain: bytes) -> Iterator[Run]:
    """Yield the runs of one segment. The chain is computed anew, from the sealed chain.

    The reading also checks that the index agrees with itself, even if it was replaced, and names a block that is not as
    it was."""
    before = BlockEnd(segment.header.base_offset, 0, segment.header.chain_before, 0)
    number = 0 if before.offset == start else segment.index.find_offset(start)
    for block in segment.stored(number, segment.beginning(before)):
        entry = block.entry
        if end is not None and entry.first_offset >= end:
            return
        if entry.next_offset > start:
            chain = segment.chain_behind(chain, block)
            skipped = max(0, start - entry.first_offset)
            kept = None if end is None else end - entry.first_offset
            records = [segment.record_header + bare for bare in block.bare[skipped:kept]]
            yield Run(entry.first_offset + skipped, records, chain)
