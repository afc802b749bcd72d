"""The writable end of a partition, which is opened once, repaired after a crash, and then only written to.

Opening    Every segment must continue the previous one. A sidecar that is behind, damaged or missing is remade from
           the segment. If the last block of the last segment is not whole, it is cut off. It was never confirmed,
           unless it is in the index: then it is lost, and the start logs that as an error. Any other incomplete
           block, and a whole one that belongs elsewhere (blocks.py), is refused with its place: CorruptLog.
           The newest part of the log is proven against the hash chain, and a short log is so proven whole.
           `verify_chain` proves all of a long one, because a start must not take longer with every year of history.
Writing    block -> fdatasync -> index entry and lengths. When one of the first two fails (disk full, I/O error), the
           file is cut back to its last good block, and the same group is written again later: nothing is lost.
Copying    a follower adds headers and blocks as its leader stored them (raw_blocks.py proves them first).
"""

import logging
import os
import zlib
from array import array
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from rewindmq.engine.log.chain import first_chain, link
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.blocks import Bare, encode_pieces, one_behind_the_other
from rewindmq.engine.log.embedded.ends import End
from rewindmq.engine.log.embedded.index import (
    ENTRY,
    HEADER,
    LARGE_BYTES,
    Entry,
    encode_entry,
    encode_index_header,
    encode_lengths,
    index_path,
    lengths_path,
)
from rewindmq.engine.log.embedded.reader import BlockEnd, SegmentReader
from rewindmq.engine.log.embedded.segment_schema import fingerprint_in
from rewindmq.engine.log.embedded.segments import (
    SYNC_BYTES,
    Header,
    base_offset_of,
    create,
    encode_header,
    segment_files,
    segment_path,
    write_at,
)
from rewindmq.projections import system_calls
from rewindmq.schemas.registry import envelope_fingerprint, schema_json
from rewindmq.schemas.single_object import HEADER_SIZE, header_of

logger = logging.getLogger(__name__)

# The part of the last segment proven at every start: up to the smaller limit. Well under a second.
PROVEN_BYTES: Final = 64 * 1024 * 1024
PROVEN_BLOCKS: Final = 50_000


class Sidecars:
    """The index and the lengths of a segment, open for writing.

    Bytes that cannot be written now (disk full) are kept and written with the next block, because the sidecars are
    derived, and must not delay durable records."""

    def __init__(self, segment: Path, base_offset: int, chain_before: bytes, max_timestamp_before_ms: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._base_offset = base_offset
        self._index = os.open(index_path(segment), flags, 0o640)
        try:
            self._lengths = os.open(lengths_path(segment), flags, 0o640)
        except OSError:
            os.close(self._index)
            raise
        self._header = encode_index_header(base_offset, chain_before, max_timestamp_before_ms)  # not yet written
        self._entries = bytearray()
        self._entries_at = HEADER.size
        self._cuts = bytearray()
        self._cuts_at = 0

    def start(self, entries: int, offset: int) -> None:
        """Keep the first `entries` entries, which end before `offset`, and overwrite the rest."""
        if entries:
            self._header = b""  # the file has it
        else:
            self._write_header()
        self._entries_at = HEADER.size + entries * ENTRY.size
        self._cuts_at = 4 * (offset - self._base_offset)

    def _write_header(self) -> None:
        try:
            write_at(self._index, self._header, 0)
            self._header = b""
        except OSError as error:
            logger.warning("index of offset %d waits: %s", self._base_offset, error)

    def cut(self) -> None:
        """Remove the bytes after the last entry written."""
        os.ftruncate(self._index, self._entries_at)
        os.ftruncate(self._lengths, self._cuts_at)

    def add(self, entry: Entry, lengths: bytes) -> None:
        """Write an entry and the lengths of its records, or keep them for the next attempt."""
        self._entries += encode_entry(entry)
        self._cuts += lengths
        if self._header:
            self._write_header()
        if self._header:
            return
        try:
            write_at(self._lengths, bytes(self._cuts), self._cuts_at)
            self._cuts_at += len(self._cuts)
            self._cuts.clear()
            write_at(self._index, bytes(self._entries), self._entries_at)
            self._entries_at += len(self._entries)
            self._entries.clear()
        except OSError as error:
            logger.warning("index of offset %d waits: %s", entry.first_offset, error)

    def close(self) -> None:
        """Close both files."""
        os.close(self._index)
        os.close(self._lengths)


class PartitionWriter:
    """The writer of a partition's blocks. Used by one thread at a time.

    `schema`: the fingerprint of the last segment's schema, under which the next block is written unless told otherwise.
    """

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        begin: bool,
        copied_from: End | None = None,
        schema: str | None = None,
    ) -> None:
        """Open and repair the partition. `begin`: it may be new. `copied_from`: a new one waits for the header of its
        first segment, which begins there. `schema`: that of a new one; None: today's.

        Raises CorruptLog, LogError."""
        self.directory = directory
        self.schema = envelope_fingerprint() if schema is None else schema
        self._segment_bytes = segment_bytes
        self._descriptor = -1
        self._sidecars: Sidecars | None = None
        self._sync = b""
        self._roll_next = False
        self._begins_anew = False  # time begins anew in the last segment
        self.place = BlockEnd(0, 0, first_chain(directory.name), 0)
        self._before = self.place  # the end of the segment before the last one
        files = segment_files(directory)
        self.end = End(0, 0, 0, self.place.chain)  # of the last block
        if not files and not begin and copied_from is None:
            raise LogError(f"{directory}: partition {directory.name} has no segment: its history is gone")
        try:
            for path in files:
                self.place = self._recover(path, path == files[0], path == files[-1])
            if files:
                system_calls.sync_directory(directory)  # a killed broker may not have done it
                self.end = self._last_end([base_offset_of(path) for path in files[-2:]])
            elif copied_from is not None:
                self.place = self._before = BlockEnd(copied_from.offset, 0, copied_from.chain, 0)
                self.end = copied_from
            else:
                self._roll()
        except BaseException:
            self.close()
            raise

    def write(
        self, records: Sequence[bytes], max_timestamp_ms: int, begins_anew: bool = False, schema: str | None = None
    ) -> None:
        """Add one block durably, in a new segment if time `begins_anew` with it, or if it has another schema.

        `schema`: that of all the records; None: that of the previous block.
        Raises OSError without adding anything, so the caller may try the same block again."""
        schema = self.schema if schema is None else schema
        is_empty = self.place.offset == self._before.offset
        full = self.place.position >= self._segment_bytes and not is_empty
        other = schema != self.schema or (begins_anew and not (is_empty and self._begins_anew))
        if full or self._roll_next or other:
            self._roll(begins_anew, schema)
        bare = _without_headers(records, header_of(schema))
        lengths = array("I", map(len, bare))
        place = self.place
        size = sum(lengths)
        parts = one_behind_the_other(bare, size)
        pieces = encode_pieces(parts, len(bare), size, self._sync, place.offset, place.chain)
        end = place.position
        try:
            for piece in pieces:
                write_at(self._descriptor, piece, end)
                end += len(piece)
            system_calls.sync_data(self._descriptor)
        except OSError:
            self._cut_back()
            raise
        encoded = encode_lengths(lengths)
        entry = Entry(
            place.offset,
            len(records),
            end - place.position,
            place.position,
            max(max_timestamp_ms, place.max_timestamp_ms),
            link(place.chain, place.offset, header_of(self.schema), encoded, parts),
            zlib.crc32(encoded),
        )
        self._move_to(entry)
        assert self._sidecars is not None
        self._sidecars.add(entry, encoded)

    def _move_to(self, entry: Entry) -> None:
        self.place = SegmentReader.behind(entry)
        self.end = End(self._before.offset, entry.end, entry.next_offset, entry.chain)

    def _last_end(self, bases: list[int]) -> End:
        """Return the end of the last block of an opened partition. `bases`: of its last two segments."""
        place = self.place
        if place.offset > self._before.offset:
            return End(bases[-1], place.position, place.offset, place.chain)
        return End(bases[0], self._before.position, place.offset, self._before.chain)  # the last segment is empty

    def begin_copied(self, header: Header) -> None:
        """Begin a segment as another machine began it. The caller has checked that it continues this one.

        Raises OSError."""
        before = self.place if self.place.offset > self._before.offset else self._before
        self._begin(header.raw, before, header.begins_anew, fingerprint_in(header.schema))

    def add_copied(self, data: bytes, entries: Sequence[Entry], lengths: Sequence[bytes]) -> None:
        """Add blocks durably as another machine stored them. They are proven, and continue `place`.

        Raises OSError without adding anything."""
        try:
            write_at(self._descriptor, data, self.place.position)
            system_calls.sync_data(self._descriptor)
        except OSError:
            self._cut_back()
            raise
        self._move_to(entries[-1])
        assert self._sidecars is not None
        for entry, of_block in zip(entries, lengths, strict=True):
            self._sidecars.add(entry, of_block)

    @property
    def last_base(self) -> int:
        """Return the base offset of the last segment."""
        return self._before.offset

    def roll(self) -> None:
        """Begin a segment, unless the last one is empty.

        Raises OSError; then the last one is still open, and the next block begins a segment."""
        if self.place.offset > self._before.offset:
            self._roll_next = True  # a file of the new name may exist: no block may go into the old one
            self._roll()

    def close(self) -> None:
        """Close the last segment and its sidecars."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._sidecars is not None:
            self._sidecars.close()
            self._sidecars = None

    def _cut_back(self) -> None:
        """Remove half a block. If even that fails, the next attempt overwrites it, because writing is by position."""
        try:
            os.ftruncate(self._descriptor, self.place.position)
        except OSError as error:
            logger.warning("%s: could not cut back to byte %d: %s", self.directory, self.place.position, error)

    def _roll(self, begins_anew: bool = False, schema: str | None = None) -> None:
        """Begin a segment, replacing the last one if that is empty.

        Raises OSError; then the old one is still the last."""
        schema = self.schema if schema is None else schema
        begins_anew = begins_anew or (self._begins_anew and self.place.offset == self._before.offset)
        before = self.place if self.place.offset > self._before.offset else self._before
        header = encode_header(schema_json(schema), self.directory.name, before.offset, before.chain, begins_anew)
        self._begin(header, before, begins_anew, schema)

    def _begin(self, header: bytes, before: BlockEnd, begins_anew: bool, schema: str) -> None:
        path = segment_path(self.directory, before.offset)
        descriptor = create(path, header)
        newest = 0 if begins_anew else before.max_timestamp_ms
        try:
            sidecars = Sidecars(path, before.offset, before.chain, newest)
        except OSError:
            os.close(descriptor)
            raise
        sidecars.start(0, before.offset)
        sidecars.cut()
        self.close()
        self._descriptor, self._sidecars = descriptor, sidecars
        self._sync = header[-SYNC_BYTES:]
        self._roll_next = False
        self._begins_anew = begins_anew
        self.schema = schema
        self._before = before
        self.place = BlockEnd(before.offset, len(header), before.chain, newest)

    def _recover(self, path: Path, first: bool, last: bool) -> BlockEnd:
        """Check a segment against the previous end, repair its sidecars, cut a torn tail, and return its end."""
        segment = SegmentReader(path, last)
        try:
            self._before = before = segment.first_place() if first else self.place
            segment.require_behind(before)
            end = segment.indexed_end()
            if last or end is None or not segment.index.has_lengths(end.offset):
                end = self._repair(segment, before, last)
            return end
        finally:
            segment.close()

    def _repair(self, segment: SegmentReader, before: BlockEnd, last: bool) -> BlockEnd:
        """Check the last block of the index and all later ones; write missing entries and lengths. Return the end."""
        if last:  # a whole block that was never synced is kept, and now counts as durable
            system_calls.sync(segment.descriptor)
            if (lost := segment.half_block()) is not None:
                logger.error(
                    "%s: the file ends within the block at byte %d, which had been synced: its %d records from offset "
                    "%d on are lost, and may have been confirmed",
                    segment.path,
                    lost.position,
                    lost.count,
                    lost.first_offset,
                )
        entries, whole = segment.index.keep_what_ends_well()
        first = min(whole, max(0, entries - 1))
        if last:
            _prove_newest(segment, before, first)
        blocks, sidecars = _add_missing(segment, before, first)
        if segment.index_is_wrong and first:
            sidecars.close()
            segment.index.forget()
            entries = 0
            blocks, sidecars = _add_missing(segment, before, 0)
        if blocks > entries:
            logger.warning("%s: index rebuilt for %d blocks", segment.path, blocks - entries)
        if last:
            self._sidecars = sidecars
            self._open_end(segment)
        else:
            sidecars.close()
        return segment.place

    def _open_end(self, segment: SegmentReader) -> None:
        """Open the last segment for writing, and cut a torn block off."""
        self._descriptor = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        self._sync = segment.header.sync
        self._begins_anew = segment.header.begins_anew
        self.schema = fingerprint_in(segment.header.schema)
        if segment.torn is not None:
            position = segment.place.position
            logger.warning(
                "%s: cut %d bytes at byte %d (offset %d), half a block: %s",
                segment.path,
                segment.size() - position,
                position,
                segment.place.offset,
                segment.torn.why,
            )
            os.ftruncate(self._descriptor, position)
            system_calls.sync(self._descriptor)


def _without_headers(records: Sequence[bytes], header: bytes) -> list[Bare]:
    """Return the bare records, for a segment of their schema. Large ones are not copied."""
    bare: list[Bare] = [
        record[HEADER_SIZE:] if len(record) < LARGE_BYTES else memoryview(record)[HEADER_SIZE:]
        for record in records
        if record.startswith(header)
    ]
    assert len(bare) == len(records), "the records of a block have its schema"
    return bare


def _add_missing(segment: SegmentReader, before: BlockEnd, first: int) -> tuple[int, Sidecars]:
    """Rewrite the sidecars of a segment, from block number `first` on.

    Returns the number of its blocks, and the sidecars."""
    sidecars = Sidecars(segment.path, segment.header.base_offset, before.chain, before.max_timestamp_ms)
    blocks = first
    try:
        sidecars.start(first, segment.index.entry(first - 1).next_offset if first else segment.header.base_offset)
        for block in segment.stored(first, segment.beginning(before)):
            blocks += 1
            sidecars.add(block.entry, block.lengths)
        sidecars.cut()
    except BaseException:
        sidecars.close()
        raise
    return blocks, sidecars


def _prove_newest(segment: SegmentReader, before: BlockEnd, end: int) -> None:
    """Check the newest blocks before number `end` of the index.

    Raises CorruptLog."""
    start = max(segment.index.find_position(segment.size() - PROVEN_BYTES), end - PROVEN_BLOCKS, 0)
    for _ in islice(segment.stored(start, segment.beginning(before)), max(0, end - start)):
        pass
