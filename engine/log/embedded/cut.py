"""Removes the oldest segments of a partition, so that the log begins at a later offset, with the base there.

    freed = cut(data_dir, "queues-0", 1_000_000)

    the base at the offset is proven: checksum, digest, and the hash chain with which the segment there begins
    DIR/bases/PARTITION/OFFSET.cut: an empty file, the note of a begun cut
    then, the oldest segment first:  segment -> directory synced -> its sidecars
    OFFSET.cut is removed

A kill in between leaves OFFSET.cut, the base at the offset, and a log that begins at a segment below it. The next
`EmbeddedLog.open` completes the cut. Without OFFSET.cut nothing is removed, because a base alone does not permit the
removal of older records. The metadata log is never cut, because it records the trims.

A process that is reading the partition finds a listed segment gone: CutMeanwhile (reader.py), or it begins anew at the
new start.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rewindmq import failpoints
from rewindmq.engine.log.contract import LogError, LogPartition
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
from rewindmq.engine.log.embedded.index import index_path, lengths_path
from rewindmq.engine.log.embedded.log_start import bases_of, chain_of, cut_notes, unfinished_cut
from rewindmq.engine.log.embedded.segments import (
    base_offset_of,
    segment_files,
    segment_path,
    stated_chain,
)
from rewindmq.projections import system_calls
from rewindmq.projections.store.bases import Base, BaseError, Bases
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.topology import Topology

logger = logging.getLogger(__name__)


def cut(data_dir: Path, partition: str, offset: int) -> int:
    """Remove the segments of a partition below `offset`, and return the number of bytes freed.

    Raises LogError, without any removal, if `offset` is not the base offset of a segment, if the base there is missing
    or unproven, or for the metadata log."""
    directory = partition_directory(data_dir, partition)
    older = [path for path in segment_files(directory) if base_offset_of(path) < offset]
    base = prove_base(directory, offset)
    if older:
        base.path.with_suffix(".cut").touch(0o640)
        system_calls.sync_directory(base.path.parent)
    freed = sum(_remove(path) for path in older)
    _remove_orphans(directory)
    return freed


def end_cut(directory: Path) -> None:
    """Complete an interrupted cut of this partition, if there is one.

    Raises LogError, CorruptLog."""
    files = segment_files(directory) if directory.is_dir() else []
    if directory.name == METADATA or not files or base_offset_of(files[0]) == 0:
        return
    offset = unfinished_cut(directory)
    if offset is None:
        _remove_orphans(directory)
    else:
        cut(directory.parent.parent, directory.name, offset)


def prove_base(directory: Path, offset: int) -> Base:
    """Read the base at `offset` whole, compare it with the log, and return it.

    Raises LogError unless it proves that the log can begin there."""
    name = directory.name
    if name == METADATA:
        raise LogError(f"{name} cannot be trimmed, because it records the trims")
    path = segment_path(directory, offset)
    if not path.exists():
        raise LogError(f"{name}: no segment begins at offset {offset}")
    chain = stated_chain(path)
    try:
        base = bases_of(directory).open(name, offset)
        base.machine()
    except BaseError as error:
        raise LogError(f"{name} cannot begin at offset {offset}: {error}") from None
    if base.chain != chain:
        raise LogError(f"{name} cannot begin at offset {offset}: {base.path}: it is of another history")
    return base


def _remove(path: Path) -> int:
    """Remove a segment durably, then its sidecars, and return their size in bytes.

    Another process may remove the same ones: that of a killed broker, and the start of the next one."""
    freed = 0
    for each in (path, index_path(path), lengths_path(path)):
        failpoints.reached("cut.before_file", each)
        with suppress(FileNotFoundError):
            size = each.stat().st_size
            each.unlink()
            freed += size
        if each == path:
            system_calls.sync_directory(path.parent)
    return freed


def _remove_orphans(directory: Path) -> None:
    """Remove the sidecars of missing segments, and the notes of completed cuts."""
    first = base_offset_of(segment_files(directory)[0])
    for kind in ("index", "lengths"):
        for path in directory.glob(f"_{'[0-9]' * 20}.{kind}"):
            if int(path.stem[1:]) < first:
                path.unlink(missing_ok=True)
    for note in cut_notes(directory):
        if int(note.stem) <= first:
            note.unlink(missing_ok=True)


def end_trims(data_dir: Path, queues: Iterable[LogPartition], topology: Topology) -> None:
    """Complete the trims in the metadata log that a crash interrupted, and check the bases of the logs."""
    for partition in queues:
        floor = topology.history.floors.get(partition.name)
        if floor is not None and partition.start_offset < floor.event.offset:
            try:
                cut(data_dir, partition.name, floor.event.offset)
                Snapshots(data_dir / "snapshots").discard_below(partition.name, floor.event.offset)
            except (LogError, OSError) as error:  # the log still has everything, so nothing is lost
                logger.error("%s: could not complete a trim: %s", partition.name, error)
        start = partition.start_offset
        base = Bases(data_dir / "bases").path(partition.name, start)
        if start > 0 and chain_of(base) is None:
            logger.warning(
                "%s begins at offset %d, and its base is lost (%s), so only the stored state has its queues:"
                " restore the base from a backup, or trim again",
                partition.name,
                start,
                base,
            )
