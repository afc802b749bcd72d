"""Verifies a partition's whole history, byte by byte, without a broker or beside one.

    for segment in verify_chain(data_dir / "log" / "queues-0"):           one after another
        print(segment.file, segment.records)

    parts = [verify_segment(file, last) for file in ...]                  in any order, in any process
    for segment in follow_on(parts): ...                                  and each continues the previous one

Every block must be whole, be where it belongs (by its own check; blocks.py), and agree with the hash chain that runs
from the partition's name, or from the base with which it begins (log_start.py), to its last block, and every record
must be an envelope of the segment's schema. The first wrong byte raises CorruptLog with the file, the byte and the
offset.

A segment states the hash chain with which it begins, so it is proven separately. One comparison proves that the
previous segment ends with this chain.

The `chain` of the last segment covers every byte before it: a copy of it, noted earlier and elsewhere, proves that
nothing was changed since.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rewindmq import failpoints
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.reader import (
    CUTS,
    BlockEnd,
    CutMeanwhile,
    SegmentReader,
    StoredBlock,
    check_joint,
    first_chain_of,
)
from rewindmq.engine.log.embedded.segment_schema import older_schema
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.sound_records import SoundRecords
from rewindmq.schemas.evolution import read_older
from rewindmq.schemas.shapes import UndecodableRecord
from rewindmq.schemas.single_object import header_of

PARALLEL_BYTES = 64 << 20  # below this, starting other processes costs more than they save
# Index and fault of the first bare record that is not an envelope of a schema; None: all are sound
FirstUnsound = Callable[[Iterable[bytes]], tuple[int, str] | None]


@dataclass(frozen=True, slots=True)
class VerifiedSegment:
    """A segment without changes since it was written.

    `torn_bytes`: bytes after the last whole block of the last segment: a block that is being written, or was when its
    broker ended. `chain_before` and `chain`: the hash chain up to the segment and up to its end."""

    file: Path
    base_offset: int
    next_offset: int
    records: int
    blocks: int
    torn_bytes: int
    chain_before: bytes
    chain: bytes


def verify_chain(directory: Path) -> Iterator[VerifiedSegment]:
    """Yield the partition's segments, each as soon as it is verified.

    Raises CorruptLog, and LogError if there is no segment."""
    files = _files(directory)
    return follow_on(verify_segment(path, path == files[-1]) for path in files)


def verify_chain_in_parallel(directory: Path) -> list[VerifiedSegment]:
    """Verify as `verify_chain`, on all cores if the log is large enough. If a cut intervenes, begin anew."""
    for _ in range(CUTS):
        with suppress(CutMeanwhile):
            return _verified(directory)
    return _verified(directory)


def _verified(directory: Path) -> list[VerifiedSegment]:
    files = _files(directory)
    failpoints.reached("verify.after_listing")
    workers = min(os.cpu_count() or 1, len(files))
    try:
        size = sum(path.stat().st_size for path in files)
    except FileNotFoundError as error:
        raise CutMeanwhile(f"{error.filename}: it was cut off") from None
    if workers == 1 or size < PARALLEL_BYTES:
        return list(verify_chain(directory))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        parts = pool.map(verify_segment, files, [path == files[-1] for path in files])
        return list(follow_on(parts))


def verify_segment(path: Path, last: bool) -> VerifiedSegment:
    """Verify one segment separately.

    `last`: no segment follows, so its end may be torn. Raises CorruptLog, LogError; CutMeanwhile if the segment is
    gone."""
    try:
        segment = SegmentReader(path, last)
    except FileNotFoundError:
        raise CutMeanwhile(f"{path}: it was cut off") from None
    try:
        base, before = segment.header.base_offset, segment.header.chain_before
        blocks = 0
        check = _checker(segment.header.schema)
        for block in segment.stored(0, segment.beginning(BlockEnd(base, 0, before, 0))):
            blocks += 1
            _check_records(path, block, check)
        end = segment.place
        torn = segment.size() - end.position if segment.torn is not None else 0
        return VerifiedSegment(path, base, end.offset, end.offset - base, blocks, torn, before, end.chain)
    finally:
        segment.close()


def follow_on(segments: Iterable[VerifiedSegment]) -> Iterator[VerifiedSegment]:
    """Yield a partition's segments in the order of their offsets.

    Each is checked to continue the previous one, in offset and chain. Raises CorruptLog."""
    before: VerifiedSegment | None = None
    for segment in segments:
        if before is None:
            offset, chain = first_chain_of(segment.file, segment.chain_before)
        else:
            offset, chain = before.next_offset, before.chain
        check_joint(segment.file, segment.base_offset, segment.chain_before, offset, chain)
        yield segment
        before = segment


def _files(directory: Path) -> list[Path]:
    files = segment_files(directory) if directory.is_dir() else []
    if not files:
        raise LogError(f"{directory}: no segment of a log is here")
    return files


def _check_records(path: Path, block: StoredBlock, first_unsound: FirstUnsound) -> None:
    found = first_unsound(block.bare)
    if found is not None:
        at, why = found
        raise CorruptLog(path, block.entry.position, block.entry.first_offset + at, f"record {at}: {why}")


def _checker(schema_json: str) -> FirstUnsound:
    """Return the check for records of this schema, a fast one for today's."""
    older = older_schema(schema_json)
    if older is None:
        return SoundRecords().first_unsound
    header = header_of(older)

    def first_unsound(bare: Iterable[bytes]) -> tuple[int, str] | None:
        for at, each in enumerate(bare):
            try:
                read_older(header + each)
            except UndecodableRecord as error:
                return at, str(error)
        return None

    return first_unsound
