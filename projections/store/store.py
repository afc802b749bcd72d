"""The state store: RocksDB through rocksdict, one database for all partitions, its own WAL off (the log is the WAL).

    store = StateStore.open(data_dir / "state")            # one column family: a crash keeps a prefix of the batches
    machine, projector = store.open_partition("queues-0")  # the state as stored (an empty Machine when there is none)
    for each event: machine.apply(..., effects)
    projector.quarantined(offset, event type, reason)    # for each Quarantine effect and each record without sense
    projector.observe(effects, published)   # which bodies to hold and which to let go: ONE rule, see `observe`
    batch = projector.prepare()       # what changed since the last prepare, with the applied offset, not yet written
    projector.write(batch)            # once the log is durable up to batch.offset

Order within the live broker's carry_out: first send, forward and answer (bodies from what was just published, else
`projector.message`), then `observe` the same effects once, then forget what was just published. `prepare` only when
every effect so far has been observed.

Never ahead of the log: a prepared batch is written only when the log is durable up to its offset. A store that is
ahead all the same (the log lost its end, or came from a backup) is discarded and folded anew
(`rewindmq.projections.replay.recover`). Bodies are kept per (queue_id, message_id); a message that comes and goes
between two prepares never touches RocksDB.

The store is a cache of the log: losing it costs the time of a replay and nothing else. Keys are drawn in `keys.py`.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

from rocksdict import WriteBatch

from rewindmq.projections.machine.machine import Machine, NewerHistory
from rewindmq.projections.store import keys, rocks
from rewindmq.projections.store.projector import Batch, Projector
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.rocks import Database, StoreError
from rewindmq.schemas.codec import Decoder, Encoder

__all__ = ["Batch", "Projector", "StateStore", "StoreError"]

# For the messages read ahead of all partitions together.
BODY_CACHE_BYTES = 16 * 1024 * 1024


class StateStore:
    """An open state directory. `path` is DIR/state."""

    def __init__(self, db: Database, path: Path) -> None:
        self.path = path
        self._db = db
        self._projectors: list[Projector] = []
        self._copying = threading.Lock()

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> "StateStore":
        """Open or, unless `read_only`, make the store. `read_only` leaves the files as they are and works beside a
        running broker, whose last persisted state it then sees. StoreError when it cannot be opened, as when a file is
        missing."""
        if not read_only:
            path.mkdir(parents=True, exist_ok=True)
        elif not (path / "CURRENT").exists():
            raise StoreError(f"{path}: there is no state store here")
        try:
            store = cls(Database(path, rocks.open_to_read(path)) if read_only else Database.open(path), path)
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(_why(path, error)) from error
        try:
            store._check_format(read_only)
        except StoreError:
            store.close()
            raise
        return store

    def _check_format(self, read_only: bool) -> None:
        found = self.get(keys.FORMAT)
        if found is None and not read_only and self.failed is None:
            self._db.put(keys.FORMAT, keys.FORMAT_VERSION)
        elif found not in (None, keys.FORMAT_VERSION):
            raise StoreError(
                f"{self.path}: state of format {found!r}, this version reads {keys.FORMAT_VERSION!r};"
                " delete the directory, it is rebuilt from the log"
            )

    def open_partition(self, partition: str) -> tuple[Machine, Projector]:
        """The fold of a partition as stored, and its writer. An empty Machine when nothing is stored. StoreError when
        what is stored cannot be read."""
        machine = self.load(partition)
        quarantine = self.quarantined(partition)
        projector = Projector(self._db, machine, quarantine, Encoder(), Decoder(), BODY_CACHE_BYTES)
        self._projectors.append(projector)
        for each in self._projectors:
            each.cache.limit_bytes = BODY_CACHE_BYTES // len(self._projectors)
        return machine, projector

    def discard(self, partition: str) -> None:
        """Forget everything that is stored of a partition. Before `open_partition`."""
        batch = WriteBatch(raw_mode=True)
        for key, _ in self.scan(keys.partition_prefix(partition)):
            batch.delete(key)
        self._db.write(batch)

    @property
    def failed(self) -> Exception | None:
        """Why nothing more is written, until `reopen`."""
        return self._db.failed

    def has_room(self) -> bool:
        """Whether the disk takes what a store that is opened again will write."""
        return rocks.has_room(self.path)

    def reopen(self) -> None:
        """Open RocksDB again after a failed write: each partition is back at an offset that was flushed. StoreError."""
        try:
            self._db.reopen()
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(_why(self.path, error)) from error
        self._check_format(read_only=False)

    def fold_of(self, partition: str) -> Projector:
        """The fold of a partition as stored, with a writer of its own. StoreError as `load`."""
        return Projector(self._db, self.load(partition), self.quarantined(partition), Encoder(), Decoder(), 0)

    def load(self, partition: str) -> Machine:
        """The fold of a partition as stored. NewerHistory when it was written by a newer version."""
        prefix = keys.partition_prefix(partition)
        try:
            head = self.get(keys.head(prefix))
            if head is None:
                return Machine(partition)
            queues: dict[int, tuple[bytes, dict[int, bytes]]] = {}
            for key, value in self.scan(prefix + b"Q"):
                queues[keys.queue_id_of(key, prefix)] = (value, {})
            for key, value in self.scan(prefix + b"C"):
                queues[keys.queue_id_of(key, prefix)][1][keys.chunk_number_of(key)] = value
            machine = Machine.load(partition, head, list(queues.values()))
            applied_offset = self.applied_offset(partition)
            if machine.next_offset != applied_offset:
                raise ValueError(f"{partition}: a state at {machine.next_offset} under the offset {applied_offset}")
        except (StoreError, NewerHistory):
            raise
        except Exception as error:  # damaged bytes can fail in any way at all
            raise StoreError(_why(self.path, error)) from error
        return machine

    def quarantined(self, partition: str) -> QuarantineReport:
        """What the stored fold skipped. StoreError as `load`."""
        prefix = keys.partition_prefix(partition)
        count = self.get(keys.quarantine_count(prefix))
        try:
            values = [value for _, value in self.scan(prefix + b"X")]
            return QuarantineReport.stored(int.from_bytes(count or b"", "big"), values)
        except Exception as error:  # damaged bytes can fail in any way at all
            raise StoreError(_why(self.path, error)) from error

    def knows_quarantined(self, partition: str) -> bool:
        """False for a state that was stored before quarantined records were."""
        prefix = keys.partition_prefix(partition)
        return self.get(keys.quarantine_count(prefix)) is not None or self.get(keys.head(prefix)) is None

    def holds(self, partition: str) -> bool:
        """Whether anything is stored of a partition. StoreError as `get`."""
        try:
            return any(True for _ in self.scan(keys.partition_prefix(partition)))
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(_why(self.path, error)) from error

    def applied_offset(self, partition: str) -> int:
        """The next offset of the partition's stored fold; 0 when nothing is stored. StoreError as `get`."""
        stored = self.get(keys.applied(keys.partition_prefix(partition)))
        return 0 if stored is None else int.from_bytes(stored, "big")

    def get(self, key: bytes) -> bytes | None:
        """StoreError when RocksDB finds the block that should hold it damaged."""
        try:
            return self._db.get(key)
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(_why(self.path, error)) from error

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Everything whose key begins with `prefix`, in the order of the keys."""
        return self._db.scan(prefix)

    def checkpoint(self, path: Path) -> None:
        """Another store at `path`, where nothing may be yet: what was written by now, whole batches only. RocksDB's
        files are linked where the file system can, not copied. Any thread may do it while another writes. StoreError
        when it can't be done."""
        with self._copying:
            try:
                self._db.flush(True)  # first: `create_checkpoint` would do it too, but lets no other thread run
                self._db.checkpoint(path)
            except Exception as error:  # rocksdict knows no narrower class
                raise StoreError(f"{self.path}: cannot be copied: {error}") from error

    def close(self) -> None:
        """Flush what was written, and close. What was prepared and not written is the log's to tell again."""
        with self._copying:
            self._db.close()


def _why(path: Path, error: Exception) -> str:
    if "/LOCK: " in str(error):
        return f"{path}: in use by another process ({error})"
    return f"{path}: cannot be read ({error}); delete the directory, it is rebuilt from the log"
