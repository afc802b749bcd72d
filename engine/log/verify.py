"""Walking a partition's whole history and proving it, byte by byte: without a broker, or beside one.

    for segment in verify_chain(data_dir / "log" / "queues-0"):
        print(segment.file, segment.records, segment.unproven_blocks)

Every block must be whole, agree with its index entry and with the hash chain that runs from the partition's name to
its last block, and every record must be an envelope of the segment's schema. The first thing that is not as it should
be raises CorruptLog with the file, the byte and the offset.

What a chain proves: `chain` of the last segment stands for every byte before it; whoever noted it earlier, and
elsewhere, can tell that nothing was changed since. A block whose index entry was lost and made anew from the segment
(`unproven_blocks`) is only known to be whole.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.log.base import CorruptLog, LogError
from engine.log.index import REBUILT, first_chain
from engine.log.reader import Place, SegmentReader, StoredBlock, check_joint, older_schema
from engine.log.segments import segment_files
from schemas.codec import Decoder
from schemas.shapes import Cursor, UndecodableRecord, read, shape_of


@dataclass(frozen=True, slots=True)
class VerifiedSegment:
    """A segment that is as it was written. `torn_bytes` stand behind the last whole block of the last segment: a block
    that is being written, or was when its broker ended. `chain` is the hash chain up to the segment's end."""

    file: Path
    base_offset: int
    next_offset: int
    records: int
    blocks: int
    unproven_blocks: int
    torn_bytes: int
    chain: bytes


def verify_chain(directory: Path) -> Iterator[VerifiedSegment]:
    """The partition's segments, each as soon as it is verified. CorruptLog, or LogError if there is nothing."""
    files = segment_files(directory) if directory.is_dir() else []
    if not files:
        raise LogError(f"{directory}: no segment of a log is here")
    before = Place(0, 0, first_chain(directory.name), 0)
    for path in files:
        segment = SegmentReader(path, path == files[-1])
        try:
            check_joint(segment, before)
            verified = _verify(segment, segment.beginning(before))
            before = segment.place
        finally:
            segment.close()
        yield verified


def _verify(segment: SegmentReader, beginning: Place) -> VerifiedSegment:
    blocks = unproven = 0
    check = _checker(segment.header.schema)
    for block in segment.stored(0, beginning):
        blocks += 1
        unproven += block.entry.flags & REBUILT
        _check_records(segment.path, block, check)
    place = segment.place
    base = segment.header.base_offset
    torn = segment.size() - place.position if segment.torn is not None else 0
    return VerifiedSegment(segment.path, base, place.offset, place.offset - base, blocks, unproven, torn, place.chain)


def _check_records(path: Path, block: StoredBlock, check: Callable[[bytes], object]) -> None:
    entry = block.entry
    for at, record in enumerate(block.records):
        try:
            check(record)
        except UndecodableRecord as error:
            raise CorruptLog(path, entry.position, entry.first_offset + at, f"record {at}: {error}") from None


def _checker(schema_json: str) -> Callable[[bytes], object]:
    """Raises UndecodableRecord for what is no envelope of this schema. Today's has the fast decoder."""
    if older_schema(schema_json) is None:
        return Decoder().decode
    shape = shape_of(json.loads(schema_json), {}, {})

    def check(record: bytes) -> None:
        cursor = Cursor(record, 0)
        read(cursor, shape, "envelope")
        if cursor.pos != len(record):
            cursor.fail(f"the record goes on for {len(record) - cursor.pos} bytes behind its end", cursor.pos)

    return check
