"""Cuts records that the history does not continue from the end of a partition, and sets them aside.

    records = cut_back(data_dir, "queues-0", end, data_dir / "aside" / "20261126T055900Z")

    the last segment first:  moved as a whole, with its sidecars and seals -> ASIDE/queues-0/
    the segment of the end:  copied to ASIDE, then cut behind its last block before the end

Nothing is lost, and a kill in between leaves a log without a hole, which the next call continues to cut. State and
snapshots of later offsets are derived from the cut records, and are removed.
"""

import os
import shutil
from pathlib import Path

from rewindmq.engine.keeping.seals.seal import BadSeal, parsed_line
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
from rewindmq.engine.log.embedded.ends import End
from rewindmq.engine.log.embedded.index import ENTRY, HEADER, index_path, lengths_path
from rewindmq.engine.log.embedded.reader import PartitionReader, SegmentReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.projections import system_calls
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore


def cut_back(data_dir: Path, partition: str, end: End, aside: Path) -> int:
    """Keep a partition up to `end`, and return the number of records set aside.

    Raises LogError, CorruptLog, StoreError, OSError."""
    directory = partition_directory(data_dir, partition)
    went = PartitionReader(directory).next_offset - end.offset
    _forget(data_dir, partition, end.offset)
    there = aside / partition
    for path in reversed(segment_files(directory)):
        base = base_offset_of(path)
        if base > end.base or end.position == 0 or base == end.offset:
            there.mkdir(parents=True, exist_ok=True)
            for each in (path, index_path(path), lengths_path(path)):
                if each.exists():
                    shutil.move(each, there / each.name)
        elif base == end.base and path.stat().st_size > end.position:
            there.mkdir(parents=True, exist_ok=True)
            part = there / f"_{path.name}.part"
            shutil.copyfile(path, part)
            with part.open("rb") as file:
                system_calls.sync(file.fileno())
            part.replace(there / path.name)
            system_calls.sync_directory(there)
            _cut(path, end)
    for path in seals_behind(directory, end.offset):
        there.mkdir(parents=True, exist_ok=True)
        shutil.move(path, there / path.name)
    system_calls.sync_directory(directory)
    return went


def seals_behind(directory: Path, offset: int) -> list[Path]:
    """Return the seals about records after an offset, and their openings."""
    found = []
    for path in directory.glob(f"_{'[0-9]' * 20}.seal"):
        try:
            ends = parsed_line(path.read_bytes(), str(path)).seal.next_offset
        except BadSeal:
            continue  # `rewindmq verify_seals` reports it
        if ends > offset:
            found += [each for each in (path, path.with_suffix(".secret")) if each.exists()]
    return found


def drop_behind(directory: Path, end: End) -> None:
    """Drop everything after the end of a copy, because it may be torn, and the leader has it.

    Raises CorruptLog, OSError."""
    for path in reversed(segment_files(directory)):
        base = base_offset_of(path)
        if base > end.base or (end.position == 0 and base >= end.base):
            for each in (index_path(path), lengths_path(path), path):
                each.unlink(missing_ok=True)
        elif base == end.base and path.stat().st_size > end.position:
            _cut(path, end)
    system_calls.sync_directory(directory)


def _cut(path: Path, end: End) -> None:
    segment = SegmentReader(path, last=True)
    try:
        entries = segment.index.find_offset(end.offset)
    finally:
        segment.close()
    if index_path(path).exists():  # first, because an entry proves that its block was durable
        os.truncate(index_path(path), HEADER.size + entries * ENTRY.size)
    if lengths_path(path).exists():
        os.truncate(lengths_path(path), 4 * (end.offset - end.base))
    os.truncate(path, end.position)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        system_calls.sync(descriptor)
    finally:
        os.close(descriptor)


def _forget(data_dir: Path, partition: str, offset: int) -> None:
    """Remove everything derived from later records."""
    for path in Snapshots(data_dir / "snapshots").files_beyond(partition, offset):
        path.unlink()
    if partition == METADATA or not (data_dir / "state").exists():
        return
    store = StateStore.open(data_dir / "state")
    try:
        if store.applied_offset(partition) > offset:
            store.discard(partition)
    finally:
        store.close()
