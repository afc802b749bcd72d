"""Removes the oldest segments of a partition: the log begins at a later offset then, with the base there.

    freed = cut(data_dir, "queues-0", 1_000_000)

    the base at the offset is proven: checksum, digest, and the hash chain with which the segment there begins
    DIR/bases/PARTITION/OFFSET.cut: an empty file that says that the cut has begun
    then, the oldest segment first:  segment -> directory synced -> its sidecars
    OFFSET.cut is removed

A kill in between leaves OFFSET.cut, the base at the offset, and a log that begins at a segment below it. The next
`EmbeddedLog.open` ends the cut. Without OFFSET.cut nothing is removed: a base alone does not say that what is below it
may go. The metadata log is never cut: it says what was trimmed.

A process that reads the partition meanwhile finds a listed segment gone: CutMeanwhile (reader.py), or it begins anew at
the new start.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rewindmq.engine.log.contract import LogError, LogPartition
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
from rewindmq.engine.log.embedded.index import index_path, lengths_path
from rewindmq.engine.log.embedded.log_start import bases_of, chain_of, cut_notes, unfinished_cut
from rewindmq.engine.log.embedded.segments import (
    base_offset_of,
    segment_files,
    segment_path,
    stated_chain,
    sync_directory,
)
from rewindmq.projections.store.bases import Base, BaseError, Bases
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.topology import Topology

logger = logging.getLogger(__name__)


def cut(data_dir: Path, partition: str, offset: int) -> int:
    """Remove the segments of a partition below `offset`. Returns how many bytes this freed.

    Raises LogError: `offset` is not the base offset of a segment, the base there is missing or does not prove, or it
    is the metadata log. Nothing is removed then."""
    directory = partition_directory(data_dir, partition)
    older = [path for path in segment_files(directory) if base_offset_of(path) < offset]
    base = prove_base(directory, offset)
    if older:
        base.path.with_suffix(".cut").touch(0o640)
        sync_directory(base.path.parent)
    freed = sum(_remove(path) for path in older)
    _remove_orphans(directory)
    return freed


def end_cut(directory: Path) -> None:
    """End a cut of this partition that was ended half way, if there is one.

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
    """Read the base at `offset` whole, and compare it with the log. Returns it.

    Raises LogError: it does not prove that the log can begin there."""
    name = directory.name
    if name == METADATA:
        raise LogError(f"{name} is never cut: it says what was trimmed")
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
    """Remove a segment, durably, then its sidecars. Returns their size.

    Another process may remove the same ones: that of a broker that was killed, and the start of the next one."""
    freed = 0
    for each in (path, index_path(path), lengths_path(path)):
        with suppress(FileNotFoundError):
            size = each.stat().st_size
            each.unlink()
            freed += size
        if each == path:
            sync_directory(path.parent)
    return freed


def _remove_orphans(directory: Path) -> None:
    """Remove the sidecars of segments that are gone, and the notes of cuts that are done."""
    first = base_offset_of(segment_files(directory)[0])
    for kind in ("index", "lengths"):
        for path in directory.glob(f"_{'[0-9]' * 20}.{kind}"):
            if int(path.stem[1:]) < first:
                path.unlink(missing_ok=True)
    for note in cut_notes(directory):
        if int(note.stem) <= first:
            note.unlink(missing_ok=True)


def end_trims(data_dir: Path, queues: Iterable[LogPartition], topology: Topology) -> None:
    """End the trims that the metadata log names and that a crash cut short, and look for the bases of the logs."""
    for partition in queues:
        floor = topology.history.floors.get(partition.name)
        if floor is not None and partition.start_offset < floor.event.offset:
            try:
                cut(data_dir, partition.name, floor.event.offset)
                Snapshots(data_dir / "snapshots").discard_below(partition.name, floor.event.offset)
            except (LogError, OSError) as error:  # the log has everything still, so nothing is lost
                logger.error("%s: a trim of it could not be ended: %s", partition.name, error)
        start = partition.start_offset
        base = Bases(data_dir / "bases").path(partition.name, start)
        if start > 0 and chain_of(base) is None:
            logger.warning(
                "%s begins at offset %d, and its base is lost (%s): the stored state goes on. If that is lost too,"
                " this partition is: bring the base back from a backup, or trim again",
                partition.name,
                start,
                base,
            )
