"""The identity of an archive: its history, and the number of its partitions.

    URL/archive.json      created once, with the log's original number of queue partitions
    `grown`               an entry in the manifest of the metadata log: from here on there are more (manifest.py)

    read_identity(objects)               None: no archive was begun
    require_identity(objects, identity)  begins the archive, or lets it grow

- A history gets more partitions when it is repartitioned. The entry exists before anything of a new partition does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rewindmq.engine.keeping.archive.descriptions import decode_checked, encode_checked
from rewindmq.engine.keeping.archive.manifest import GrownEntry, Manifest, OtherHistory, now_ms
from rewindmq.engine.keeping.archive.objects import ArchiveError, MissingObject, Objects
from rewindmq.engine.log.embedded.directory import METADATA, read_fork, read_layout
from rewindmq.engine.log.embedded.root import root_of

IDENTITY: Final = "archive.json"


@dataclass(frozen=True, slots=True)
class HistoryIdentity:
    """The history in a log or an archive.

    `history`: the hash chain after the first segment header of the metadata log, whose sync marker is random.
    `queue_partitions`: their current number. `begun_with`: of an archive, their number at its beginning."""

    history: str
    queue_partitions: int
    log: str = "embedded"
    begun_with: int = field(default=0, compare=False)

    def is_of(self, history: "HistoryIdentity") -> bool:
        """Return True if an archive with this identity is the history's, which may have gained partitions."""
        same = (self.history, self.log) == (history.history, history.log)
        return same and self.queue_partitions <= history.queue_partitions


def identity_of(data_dir: Path) -> HistoryIdentity:
    """Return the identity of a data directory's history.

    A fork has its own identity. Raises LogError if there is no history, or no record yet."""
    count = read_layout(data_dir)
    fork = read_fork(data_dir)
    return HistoryIdentity(root_of(data_dir) if fork is None else fork, count)


def read_identity(objects: Objects, metadata: Manifest | None = None) -> HistoryIdentity | None:
    """Return the identity of the archived history; None if no archive was begun.

    `metadata`: the manifest of the metadata log, if the caller has just read it. Raises ArchiveError, NoAnswer."""
    begun = begun_identity(objects)
    return None if begun is None else _by_now(begun, metadata or Manifest.load(objects, METADATA))


def require_identity(
    objects: Objects,
    identity: HistoryIdentity,
    metadata: Manifest | None = None,
    made_with: Callable[[], int] | None = None,
) -> Manifest:
    """Begin the archive of this history, or check that this history is archived here.

    If the history has gained partitions, the archive also gets them. `metadata`: as for `read_identity`. `made_with`:
    returns the log's original number of partitions; called when the archive is begun.
    Returns the manifest of the metadata log. Raises OtherHistory, ArchiveError, NoAnswer."""
    begun = begun_identity(objects)
    if begun is None:
        first = identity if made_with is None else replace(identity, queue_partitions=made_with())
        objects.create(IDENTITY, encode_checked(_as_json(first)))
        begun = begun_identity(objects)
    if metadata is None:
        metadata = Manifest.load(objects, METADATA)
    found = None if begun is None else _by_now(begun, metadata)
    if found is None or not found.is_of(identity):
        raise OtherHistory(
            f"{objects.place(IDENTITY)}: the archive of another history ({found}; this is {identity}):"
            " archive to another URL"
        )
    if found.queue_partitions < identity.queue_partitions:
        metadata.extend(GrownEntry(identity.queue_partitions, now_ms()))
    return metadata


def begun_identity(objects: Objects) -> HistoryIdentity | None:
    """Return the history with the archive's original partitions; None if no archive was begun.

    Raises ArchiveError, NoAnswer."""
    try:
        stored = objects.get(IDENTITY)
    except MissingObject:
        return None
    try:
        values = decode_checked(stored, objects.place(IDENTITY))
        history, log, begun_with = values["history"], values["log"], int(values["queue_partitions"])
    except (ValueError, KeyError, TypeError):
        raise ArchiveError(f"{objects.place(IDENTITY)}: not a description of an archive: it was changed") from None
    return HistoryIdentity(history, begun_with, log, begun_with)


def _by_now(begun: HistoryIdentity, metadata: Manifest) -> HistoryIdentity:
    return replace(begun, queue_partitions=metadata.queue_partitions or begun.begun_with)


def _as_json(identity: HistoryIdentity) -> dict[str, Any]:
    return {"history": identity.history, "queue_partitions": identity.queue_partitions, "log": identity.log}
