"""The snapshots of an archived history, read like those of a data directory.

    ArchivedSnapshots("s3://bucket/prefix").load("queues-0", 1_000_000)

A snapshot is fetched when it is loaded. Its SHA-256 must be the one in the manifest; then it is checked like a file.
Only the URL is pickled.
"""

import hashlib
import tempfile
from functools import cached_property

from rewindmq.engine.keeping.archive.manifest import SnapshotEntry
from rewindmq.engine.keeping.archive.objects import MissingObject
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.snapshots import SnapshotError, load_from


class ArchivedSnapshots:
    """The snapshots in the archive at `url`, as of the first request."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __reduce__(self) -> "tuple[type[ArchivedSnapshots], tuple[str]]":
        return ArchivedSnapshots, (self.url,)

    @cached_property
    def _log(self) -> ArchivedLog:
        return ArchivedLog(self.url)

    def partitions(self) -> list[str]:
        """Return the names of the queue partitions that have snapshots."""
        return sorted(each.name for each in self._log.queues if self._entries(each.name))

    def offsets(self, partition: str) -> list[int]:
        """Return the offsets of the partition's snapshots, ascending."""
        return sorted(self._entries(partition))

    def place(self, partition: str, offset: int) -> str:
        """Return the object of a snapshot, for people."""
        return self._log.objects.place(self._key(partition, offset))

    def load(self, partition: str, offset: int) -> Machine:
        """Return the machine in a snapshot.

        Raises SnapshotError for a missing or damaged one, NoAnswer."""
        place, entry = self.place(partition, offset), self._entries(partition)[offset]
        sha = hashlib.sha256()
        with tempfile.TemporaryFile() as file:
            try:
                for piece in self._log.objects.pieces(self._key(partition, offset)):
                    sha.update(piece)
                    file.write(piece)
            except MissingObject:
                raise SnapshotError(f"{place}: the object is gone") from None
            if sha.hexdigest() != entry.object.sha256:
                raise SnapshotError(f"{place}: its SHA-256 is not the one in the manifest")
            file.seek(0)
            return load_from(file, place)

    def _key(self, partition: str, offset: int) -> str:
        return f"{partition}/snapshots/{self._entries(partition)[offset].object.name}"

    def _entries(self, partition: str) -> dict[int, SnapshotEntry]:
        [found] = [each for each in self._log.partitions if each.name == partition]
        return {entry.offset: entry for entry in found.snapshots}
