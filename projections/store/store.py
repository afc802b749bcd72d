"""The state store: RocksDB through rocksdict, one database for all partitions, its own WAL off (the log is the WAL).

    store = StateStore.open(data_dir / "state")            # one column family: a crash keeps a prefix of the batches
    machine, projector = store.open_partition("queues-0")  # the stored state (an empty Machine when nothing is stored)
    for each event: machine.apply(..., effects)
    projector.quarantined(offset, event type, reason)    # for each Quarantine effect and each record not decoded
    projector.observe(effects, published)   # keeps and releases bodies: ONE rule, see `observe`
    batch = projector.prepare()       # the changes since the last prepare, with the applied offset, not yet written
    projector.write(batch)            # once the log is durable up to batch.offset

Order within the live broker's carry_out: first send, forward and answer (with the bodies just published, otherwise from
`projector.message`), then `observe` the same effects once, then drop the bodies just published. Call `prepare` only
when every effect so far has been observed.

The store is never ahead of the log, because a prepared batch is written only when the log is durable up to its offset.
A store that is ahead nevertheless proves that the log lost its end: an embedded broker then does not start
(engine/embedded/beside_log.py), others fold it anew (`rewindmq.projections.replay.recover`). A message has one body for
each queue that holds it, or a shared one if it was routed to several (projector.py). A message that arrives and leaves
between two prepares never touches RocksDB.

The store is a cache of the log: losing it costs the time of a replay and nothing else. Keys are drawn in `keys.py`.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocksdict import WriteBatch

from rewindmq.projections.machine.machine import Machine, NewerHistory
from rewindmq.projections.store import keys, rocks
from rewindmq.projections.store.bases import Base, BaseError
from rewindmq.projections.store.bodies import is_shared
from rewindmq.projections.store.keys import SHARED
from rewindmq.projections.store.projector import Batch, Projector
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.rocks import Database, StoreError
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Published

__all__ = ["Batch", "Projector", "StateStore", "StoreError"]

# Bytes for the messages that are read ahead, in all partitions together.
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
        """Open the store; unless `read_only`, create a missing one.

        `read_only` leaves the files unchanged and works beside a running broker, whose last persisted state it sees.
        Raises StoreError if the store cannot be opened, for example because a file is missing."""
        if not read_only:
            path.mkdir(parents=True, exist_ok=True)
        elif not (path / "CURRENT").exists():
            raise StoreError(f"{path}: there is no state store here")
        try:
            store = cls(Database.open_linked(path) if read_only else Database.open(path), path)
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
        """Return the stored fold of a partition, and its writer; an empty Machine when nothing is stored.

        Raises StoreError when the stored state cannot be read."""
        machine = self.load(partition)
        quarantine = self.quarantined(partition)
        projector = self._projector(machine, quarantine, BODY_CACHE_BYTES)
        self._projectors.append(projector)
        for each in self._projectors:
            each.cache.limit_bytes = BODY_CACHE_BYTES // len(self._projectors)
        return machine, projector

    def forget(self, projector: Projector) -> None:
        """Note that another writer of the partition has replaced this one."""
        self._projectors.remove(projector)
        for each in self._projectors:
            each.cache.limit_bytes = BODY_CACHE_BYTES // len(self._projectors)

    def begin(self, base: Base, decoder: Decoder) -> None:
        """Replace everything stored for a partition by a base: its state, and the bodies of its messages.

        `decoder`: that of the log's records. After a crash on the way the store has no state of the partition. Raises
        StoreError, NewerHistory."""
        self.discard(base.partition)

        def message_in(record: bytes) -> Published:
            message = decoder.decode(record)[2]
            assert isinstance(message, Published), "a base has the publishes of messages"
            return message

        try:
            projector = self._projector(base.machine(), QuarantineReport(), 0)
            shared = {offset for offset, record in base.records() if is_shared(message_in(record))}
        except BaseError as error:
            raise StoreError(str(error)) from error

        def body(key: bytes) -> bytes | None:
            offset = keys.message_id_of(key)
            record = base.record(offset)
            if record is None:
                return None
            return projector.form(SHARED if offset in shared else 0, message_in(record))

        _, missing = projector.write_anew(body, shared)
        if missing:
            self.discard(base.partition)
            raise StoreError(f"{base.path}: the bodies of {missing} messages cannot be read")

    def discard(self, partition: str) -> None:
        """Delete everything stored for a partition. Call it before `open_partition`."""
        batch = WriteBatch(raw_mode=True)
        for key, _ in self.scan(keys.partition_prefix(partition)):
            batch.delete(key)
        self._db.write(batch)

    @property
    def history(self) -> list[str] | None:
        """Return the identities of the stored history (engine/embedded/beside_log.py); None: not noted.

        Raises StoreError as `get`."""
        stored = self.get(keys.HISTORY)
        return None if stored is None else [str(each) for each in json.loads(stored)]

    @history.setter
    def history(self, identities: Sequence[str]) -> None:
        self._db.put(keys.HISTORY, json.dumps(identities, allow_nan=False).encode())

    @property
    def failed(self) -> Exception | None:
        """Return the error after which nothing more is written until `reopen`; None: there was none."""
        return self._db.failed

    def has_room(self) -> bool:
        """Return True if the disk has room for the bytes that a reopened store writes."""
        return rocks.has_room(self.path)

    def reopen(self) -> None:
        """Open RocksDB again after a failed write; each partition is back at a flushed offset.

        Raises StoreError."""
        try:
            self._db.reopen()
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(_why(self.path, error)) from error
        self._check_format(read_only=False)

    @property
    def damaged(self) -> bool:
        """Return True if the store failed because RocksDB found damage in its files."""
        return self._db.damaged

    def make_anew(self, projectors: Sequence[Projector]) -> tuple[int, int]:
        """Replace the damaged files by new ones with the state of these live machines, and the readable bodies.

        Returns the number of bodies in the new store, and of those that it lacks. Raises StoreError or a plain
        Exception of RocksDB, which leaves the store as it was."""
        with self._copying, self._db.made_anew() as read:
            self._check_format(read_only=False)
            if (history := read(keys.HISTORY)) is not None:
                self._db.put(keys.HISTORY, history)
            found = [projector.write_anew(read) for projector in projectors]
        return sum(written for written, _ in found), sum(missing for _, missing in found)

    def fold_of(self, partition: str) -> Projector:
        """Return the stored fold of a partition, with its own writer.

        Raises StoreError as `load`."""
        return self._projector(self.load(partition), self.quarantined(partition), 0)

    def _projector(self, machine: Machine, quarantine: QuarantineReport, cache_bytes: int) -> Projector:
        try:
            return Projector(self._db, machine, quarantine, cache_bytes)
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(_why(self.path, error)) from error

    def load(self, partition: str) -> Machine:
        """Return the stored fold of a partition.

        Raises StoreError when it cannot be read, and NewerHistory when a newer version wrote it."""
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
        """Return the records that the stored fold skipped.

        Raises StoreError as `load`."""
        prefix = keys.partition_prefix(partition)
        count = self.get(keys.quarantine_count(prefix))
        try:
            values = [value for _, value in self.scan(prefix + b"X")]
            return QuarantineReport.stored(int.from_bytes(count or b"", "big"), values)
        except Exception as error:  # damaged bytes can fail in any way at all
            raise StoreError(_why(self.path, error)) from error

    def holds(self, partition: str) -> bool:
        """Return True if anything is stored for a partition.

        Raises StoreError, as `get` does."""
        try:
            return any(True for _ in self.scan(keys.partition_prefix(partition)))
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(_why(self.path, error)) from error

    def applied_offset(self, partition: str) -> int:
        """Return the next offset of the partition's stored fold; 0 when nothing is stored.

        Raises StoreError as `get`."""
        stored = self.get(keys.applied(keys.partition_prefix(partition)))
        return 0 if stored is None else int.from_bytes(stored, "big")

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None when it is not stored.

        Raises StoreError when RocksDB finds the key's block damaged."""
        try:
            return self._db.get(key)
        except Exception as error:  # rocksdict knows no narrower class
            raise StoreError(_why(self.path, error)) from error

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield every key that begins with `prefix`, with its value, in the order of the keys."""
        return self._db.scan(prefix)

    def checkpoint(self, path: Path) -> None:
        """Make another store at `path`, with the batches written so far, each whole.

        Nothing may exist at `path`. RocksDB's files are linked if the file system can, not copied. Any thread may call
        it while another writes. Raises StoreError."""
        with self._copying:
            try:
                self._db.flush(True)  # first: `create_checkpoint` would do it as well, but blocks other threads
                self._db.checkpoint(path)
            except Exception as error:  # rocksdict knows no narrower class
                raise StoreError(f"{self.path}: cannot be copied: {error}") from error

    def close(self) -> None:
        """Flush the written batches, and close. The log still has the events of unwritten batches."""
        with self._copying:
            self._db.close()


def _why(path: Path, error: Exception) -> str:
    if "/LOCK: " in str(error):
        return f"{path}: in use by another process ({error})"
    return f"{path}: cannot be read ({error}); delete the directory, it is rebuilt from the log"
