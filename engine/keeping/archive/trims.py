"""Trims an archive: removes everything below the floor of a partition, once the metadata log durably permits it.

    archive_base(manifest, bases, event)               before the HistoryTrimmed is logged (engine/keeping/trim.py)
    freed = end_trim(manifest, event, bases)           after it

    1  base      of the floor: in the archive, read back, with the chain and the digest of the HistoryTrimmed
    2  event     HistoryTrimmed in the metadata log, durable
    3  topic     Kafka drops its records below the floor (DeleteRecords)
    4  entry     `trimmed` in the manifest: from here on the archived history begins at the floor
    5  objects   those below the floor are removed, the oldest first

- An object is removed only if an entry names it, and that entry is below the floor of the manifest, and below the floor
  of a HistoryTrimmed that is durable in the data directory or in the metadata topic.
- On Kafka the archive has the HistoryTrimmed before step 3, so that topics made from it begin at the same floor.
- After a kill between two steps, the next run of an archiver or the next trim completes the work: it compares the floor
  of the metadata log with the manifest's, and skips objects that are already gone.
- A history that was trimmed before its first archive begins with steps 1 and 4.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rewindmq import failpoints
from rewindmq.engine.keeping.archive.manifest import BaseEntry, Manifest, TrimmedEntry, now_ms
from rewindmq.engine.keeping.archive.state_files import (
    OtherBase,
    archive_file,
    archived_base,
    prove_base_of,
    sound_base,
)
from rewindmq.engine.keeping.archive.unpack import CorruptObject
from rewindmq.engine.keeping.tiers import floors_of
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.projections.store.bases import BaseError, Bases
from rewindmq.projections.topology.about_history import Floor
from rewindmq.schemas.metadata_events import HistoryTrimmed

FOLDERS = ("segments", "snapshots", "bases")


def durable_floors(data_dir: Path) -> dict[str, Floor]:
    """Return the last trim of each trimmed partition. They are durable when this returns.

    Raises CorruptLog, LogError."""
    floors = floors_of(data_dir)
    if floors:
        durable = PartitionReader(partition_directory(data_dir, METADATA)).durable_offset  # it syncs the rest
        assert all(floor.at < durable for floor in floors.values()), "they were read, so they lie before the end"
    return floors


def end_trim(
    manifest: Manifest,
    event: HistoryTrimmed,
    bases: Bases | None = None,
    drop_below: Callable[[int], object] = lambda offset: None,
) -> int:
    """Let the archived history of a partition begin at its floor, delete everything below, and return its bytes.

    `event`: the last durable HistoryTrimmed of the partition. `bases`: those beside the log, if there are any.
    `drop_below`: lets Kafka do the same, before the manifest records it. It may be repeated at any time, and does the
    remaining work. Raises OtherHistory, CorruptObject, OtherBase, LogError, NoAnswer."""
    before = manifest.archived_bytes
    if event.offset > manifest.floor:
        archive_base(manifest, bases, event)
        failpoints.reached("trim.before_topic")
        drop_below(event.offset)
        failpoints.reached("trim.before_entry")
        manifest.extend(trimmed_entry(event))
    failpoints.reached("trim.before_objects")
    delete_trimmed(manifest, event)
    return before - manifest.archived_bytes


def trimmed_entry(event: HistoryTrimmed) -> TrimmedEntry:
    """Return the archive's entry for the event of a history."""
    return TrimmedEntry(event.offset, event.chain, event.digest, event.until_ms, event.findings, event.reason, now_ms())


def archive_base(manifest: Manifest, bases: Bases | None, event: HistoryTrimmed) -> None:
    """Archive the base at the floor of a trim, unless it is there; read it back and prove it.

    Raises CorruptObject, OtherBase if neither the archive nor `bases` has this base, NoAnswer."""
    with suppress(CorruptObject, OtherBase):  # then another one is archived as well
        sound_base(manifest, event.offset, event.chain, event.digest)
        return
    where = f"{event.partition} is to begin at offset {event.offset}, but the archive has no base there"
    if bases is None:
        raise OtherBase(where)
    try:
        base = bases.open(event.partition, event.offset)
    except BaseError as error:
        raise OtherBase(f"{where}: {error}: restore it from a backup") from None
    prove_base_of(base, event.chain, event.digest)
    prove_base_of(archived_base(manifest, archive_file(manifest, base.path, BaseEntry)), event.chain, event.digest)


def delete_trimmed(manifest: Manifest, event: HistoryTrimmed) -> int:
    """Delete the remaining objects below the floor, the oldest first, and return their number.

    Objects that the same manifest has seen removed are not checked again. `event`: the last durable HistoryTrimmed of
    the partition. Raises LogError, NoAnswer."""
    floor = min(event.offset, manifest.floor)
    goes = {key for key, behind in manifest.trimmed_keys.items() if behind <= floor}
    if len(goes) == manifest.deleted:
        return 0
    there = [key for each in FOLDERS for key in manifest.objects.list(f"{manifest.partition}/{each}") if key in goes]
    for key in there:
        manifest.objects.delete(key)
    manifest.deleted = len(goes)
    return len(there)
