"""Checks at a start that the files beside the log are of its history, and that the log has not lost its end.

    DIR/state, DIR/snapshots of another history      moved aside; the broker remakes them from the log
    state, a snapshot, a seal, a trim, a fork, an index entry or the archive beyond the end of the log
                                                     LostEnd: each is written only once the log is durable up to it

State (a key of RocksDB) and snapshots (the file `history`) note the identities of their history: the original one, then
those of its forks. A fork continues with its parent's state at the branch. Without a note they count as this history's,
because a full disk may have prevented it. The topology's snapshots, bases and the index of ids are bound to the log by
their own hashes.

A torn tail that was never synced causes no error, because nothing beside the log knows it. With `--accept-lost-end` the
broker continues without the missing records, and keeps the files that mention them in DIR/aside/TIME.
"""

import errno
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rewindmq.engine.config import Config
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import SegmentReader
from rewindmq.engine.log.embedded.root import noted_history, root_of, write_note
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore
from rewindmq.projections.topology.about_history import AboutHistory, Fork

ASIDE = "aside"

logger = logging.getLogger(__name__)


class LostEnd(LogError):
    """Records at the end of the log are gone, and may have been confirmed. The text says which, and what to do."""

    def __init__(self, data_dir: Path, found: str) -> None:
        super().__init__(
            f"{data_dir}: the log lost its end: {found}. Nothing was changed: bring the newest segments of DIR/log back"
            " (disk, backup, follower or archive), or start with --accept-lost-end, which continues without these"
            f" records and keeps what still tells of them in {data_dir / ASIDE}"
        )


def require_directories(data_dir: Path) -> None:
    """Raise NotADirectoryError, with advice, if a file has the name of one of the broker's own directories."""
    for path in (data_dir / "log", data_dir / "state", data_dir / "snapshots"):
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "not a directory: move it away, and start again", str(path))


def require_whole_blocks(config: Config) -> None:
    """Check that no partition ends within a block that is synced by its index. Call it before the log is opened.

    Raises LostEnd, LogError."""
    for directory in sorted((config.data / "log").glob("*-*")):
        for path in segment_files(directory)[-1:]:
            segment = SegmentReader(path, last=True)
            try:
                lost = segment.half_block()
            finally:
                segment.close()
            if lost is None:
                continue
            found = f"{path} ends within the block at byte {lost.position}, which had been synced:"
            found += f" its {lost.count} records from offset {lost.first_offset} on are missing"
            if not config.accept_lost_end:
                raise LostEnd(config.data, found)
            kept = _aside(config.data) / directory.name / f"{path.stem}.torn"
            kept.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as torn, kept.open("wb") as file:
                torn.seek(lost.position)
                shutil.copyfileobj(torn, file)
            logger.error("%s (--accept-lost-end); the rest of the block is kept in %s", found, kept)


def open_store(data_dir: Path, names: Sequence[str], forks: Sequence[Fork]) -> StateStore:
    """Open the stored state. State and snapshots of another history are moved aside first. `names`: of the partitions.

    Raises StoreError, LogError, OSError."""
    ours = _identities(data_dir, forks)
    snapshots = Snapshots(data_dir / "snapshots")
    if not _is_ours(
        noted_history(snapshots.directory), ours, forks, {name: _newest(snapshots, name) for name in names}
    ):
        _put_aside(snapshots.directory)
    store = StateStore.open(data_dir / "state")
    try:
        reach = {name: store.applied_offset(name) for name in names}
        noted = store.history
        more = noted is not None and store.holds(queue_partition(len(names) - 1))  # than in the log
        if not more and _is_ours(noted, ours, forks, reach):
            return store
    except BaseException:
        store.close()
        raise
    store.close()
    _put_aside(store.path)
    return StateStore.open(store.path)


def note_history(data_dir: Path, store: StateStore, forks: Sequence[Fork]) -> None:
    """Note the history beside the snapshots and in the state, once the log has records.

    Without room on the disk the next start notes it. Raises StoreError."""
    ours, snapshots = _identities(data_dir, forks), data_dir / "snapshots"
    if store.history != ours and store.failed is None:
        store.history = ours
    with suppress(OSError):
        if noted_history(snapshots) != ours:
            write_note(snapshots, ours)


def require_end(
    config: Config,
    log: EmbeddedLog,
    store: StateStore,
    snapshots: Snapshots,
    about: AboutHistory,
    archived: Mapping[str, int],
) -> None:
    """Check that nothing beside the log mentions records beyond its end, or set that aside (`--accept-lost-end`).

    `archived`: the archive's ends, by partition. (That of a fork's parent may have more.)
    Raises LostEnd, StoreError, OSError."""
    branch = dict(about.forks[-1].event.positions) if about.forks else {}
    lost = {}
    for partition in log.partitions:
        name, end = partition.name, partition.next_offset
        stored = 0 if name == METADATA else store.applied_offset(name)
        floor = about.floors.get(name)
        told = {
            str(store.path): stored,
            str(snapshots.directory / name): _newest(snapshots, name),
            "a trim in the metadata log": 0 if floor is None else floor.event.offset,
            "the fork in the metadata log": branch.get(name, 0),
            "the archive": 0 if about.forks else archived.get(name, 0),
        }
        seals = _seals_behind(partition_directory(config.data, name), end)
        told |= {str(path): offset for path, offset in seals.items() if path.suffix == ".seal"}
        beyond = [f"{where} has it up to offset {offset}" for where, offset in told.items() if offset > end]
        if beyond:
            most = max(told.values())
            lost[name] = f"{name} ends at offset {end}, and {', '.join(beyond)} ({most - end} records are missing)"
    if not lost:
        return
    if not config.accept_lost_end:
        raise LostEnd(config.data, "; ".join(lost.values()))
    aside = _aside(config.data)
    aside.mkdir(parents=True, exist_ok=True)
    ends = {partition.name: partition.next_offset for partition in log.partitions if partition.name in lost}
    ahead = [name for name, end in ends.items() if name != METADATA and store.applied_offset(name) > end]
    if ahead:
        store.checkpoint(aside / "state")
    for name, end in ends.items():
        if name in ahead:
            store.discard(name)
        for path in (*snapshots.files_beyond(name, end), *_seals_behind(partition_directory(config.data, name), end)):
            (aside / name).mkdir(exist_ok=True)
            path.rename(aside / name / path.name)
        logger.error("%s (--accept-lost-end); what still tells of them is kept in %s", lost[name], aside)


def _seals_behind(directory: Path, offset: int) -> dict[Path, int]:
    """Return the seals about records after an offset, and their openings, each with the end of the seal."""
    if not any(directory.glob("_*.seal")):  # then the code that reads seals need not be loaded
        return {}
    from rewindmq.engine.keeping.cut_back import seals_behind
    from rewindmq.engine.keeping.seals.seal import parsed_line

    found = seals_behind(directory, offset)
    lines = {path: path.with_suffix(".seal") for path in found}
    return {path: parsed_line(line.read_bytes(), str(line)).seal.next_offset for path, line in lines.items()}


def _identities(data_dir: Path, forks: Sequence[Fork]) -> list[str]:
    """Return the identities of the history in the log; none if the log has no record yet."""
    try:
        return [root_of(data_dir), *(fork.event.identity for fork in forks)]
    except LogError:
        return []


def _is_ours(noted: list[str] | None, ours: list[str], forks: Sequence[Fork], reach: Mapping[str, int]) -> bool:
    """Return True if files with these noted identities, and this reach in each partition, are of this history.

    Beside an empty log they count as evidence of a lost end."""
    if not noted or not ours or noted == ours:
        return True
    if noted != ours[: len(noted)]:
        return False
    branch = forks[len(noted) - 1]
    ends = dict(branch.event.positions) | {METADATA: branch.at}
    return all(offset <= ends.get(name, 0) for name, offset in reach.items())


def _newest(snapshots: Snapshots, name: str) -> int:
    return max([*snapshots.offsets(name), *(offset for offset, _ in snapshots.waypoints(name))], default=0)


def _aside(data_dir: Path) -> Path:
    return data_dir / ASIDE / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def _put_aside(directory: Path) -> None:
    there = _aside(directory.parent) / directory.name
    there.parent.mkdir(parents=True, exist_ok=True)
    directory.rename(there)
    logger.warning(
        "%s belongs to another history than the log: it is made anew from the log, and was moved to %s",
        directory,
        there,
    )
