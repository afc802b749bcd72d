"""Opens and uses RocksDB for this project: raw bytes, one column family, no WAL, bounded memory.

With a single column family the memtables reach the disk in the order in which they were written, so that a crash keeps
a prefix of the batches, each whole. Memory, however large the data: three memtables and the block cache.

Rules
- A failed write (the disk is full, no file descriptor is left) consumes its batch, and RocksDB may refuse every later
  write until it is opened again. So after the first failure nothing more is written (`Database.failed`), and reading
  continues. `Database.reopen` begins anew, which loses data that was only in memtables
  (projections/store/repair.py).
- RocksDB also refuses every write once it finds damage in its files, and opening it again does not help. `made_anew`
  replaces such a database.
- A database that cannot be opened for writing because the disk is full is opened for reading, and has `failed` from the
  start.
"""

import contextlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from rewindmq.projections import system_calls
from rewindmq.projections.store import keys

MEMTABLE_BYTES = 8 * 1024 * 1024
MEMTABLES = 3
BLOCK_CACHE_BYTES = 8 * 1024 * 1024
# Larger than RocksDB's 4 KiB, because queues are read in the order of their keys, and the index stays small.
BLOCK_BYTES = 16 * 1024
INFO_LOG_BYTES = 1024 * 1024
READING_ATTEMPTS = 5
CONFIGURATION = "rocksdict-config.json"
MOST_OPEN_FILES = 1_024  # open tables; RocksDB opens the others again when it reads them
# The room that the disk must have before a failed database is opened again: all memtables, and RocksDB's small files.
ROOM_BYTES = MEMTABLE_BYTES * (MEMTABLES + 1)


class StoreError(Exception):
    """The state store cannot be used; the text explains why and what to do."""


class Database:
    """An open RocksDB. Methods raise a plain Exception where rocksdict does, which has no narrower class."""

    def __init__(
        self,
        path: Path,
        rocks: Rdict | None,
        failed: Exception | None = None,
        links: TemporaryDirectory[str] | None = None,
    ) -> None:
        self.path = path
        self.rocks = rocks  # None: it could not be made
        self._links = links  # the directory through which it is read
        self.failed = failed  # the error after which nothing more is written
        self._options = without_wal()

    @classmethod
    def open(cls, path: Path) -> "Database":
        """Open the database for reading and writing.

        On a full disk, an existing database is opened for reading only."""
        try:
            return cls(path, open_database(path))
        except Exception as error:
            if has_room(path):
                raise
            return cls(path, open_to_read(path) if (path / "CURRENT").exists() else None, error)

    @classmethod
    def open_linked(cls, path: Path) -> "Database":
        """Open the database for reading, beside the process that writes it. No file of the directory changes.

        rocksdict writes its configuration into the directory that it opens, even for reading, so it opens a directory
        of links. Raises a plain Exception if a file is missing, OSError."""
        for attempt in range(1, READING_ATTEMPTS + 1):
            links = TemporaryDirectory(prefix="rewindmq-state-")
            try:
                _link(path, Path(links.name))
                return cls(path, open_to_read(Path(links.name)), links=links)
            except Exception:  # the writer may just have replaced a listed file; list again
                links.cleanup()
                if attempt == READING_ATTEMPTS:
                    raise
        raise AssertionError("the last attempt raises")

    def reopen(self) -> None:
        """Open the database again after a failure; data that RocksDB had not yet flushed is lost."""
        _close(self.rocks)
        self.rocks = open_database(self.path)
        self.failed = None

    @property
    def damaged(self) -> bool:
        """Return True if RocksDB has stopped writing because bytes in its files are not those that it wrote."""
        return "Corruption" in str(self.failed)

    @contextlib.contextmanager
    def made_anew(self) -> Iterator[Callable[[bytes], bytes | None]]:
        """Write into an empty database inside this context; it replaces the damaged one at the end.

        Yields the function that reads a key of the damaged one. It raises a plain Exception for a damaged value. An
        error inside the context leaves the damaged database as it was. A crash leaves the damaged database, or none, or
        the new one."""
        beside = self.path.with_name(f"{self.path.name}.new")
        shutil.rmtree(beside, ignore_errors=True)
        damaged, error = self.rocks, self.failed
        self.rocks, self.failed = open_database(beside), None
        try:
            yield lambda key: None if damaged is None else cast(bytes | None, damaged.get(key))
            self.flush(True)
        except BaseException:
            _close(self.rocks)
            self.rocks, self.failed = damaged, error
            shutil.rmtree(beside, ignore_errors=True)
            raise
        self.failed = error  # until the new one is open where it belongs
        _close(damaged)
        _close(self.rocks)
        shutil.rmtree(self.path)
        beside.rename(self.path)
        self.reopen()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        return None if self.rocks is None else cast(bytes | None, self.rocks.get(key))

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values like the function `scan`."""
        return iter(()) if self.rocks is None else scan(self.rocks, prefix, start)

    def put(self, key: bytes, value: bytes) -> None:
        """Write one key, in its own batch."""
        batch = WriteBatch(raw_mode=True)
        batch.put(key, value)
        self.write(batch)

    def write(self, batch: WriteBatch) -> None:
        """Write a batch. A failure consumes the batch, and nothing more is written until `reopen`."""
        if self.failed is not None or self.rocks is None:
            raise StoreError(f"{self.path}: cannot be written: {self.failed}")
        try:
            self.rocks.write(batch, self._options)
        except Exception as error:
            self.failed = error
            raise

    def flush(self, wait: bool) -> None:
        """Flush the memtables to files. Fails as `write`."""
        if self.failed is not None or self.rocks is None:
            raise StoreError(f"{self.path}: cannot be written: {self.failed}")
        try:
            self.rocks.flush(wait)
        except Exception as error:
            self.failed = error
            raise

    def checkpoint(self, path: Path) -> None:
        """Copy the database to `path`, by linking files if the file system can."""
        assert self.rocks is not None
        Checkpoint(self.rocks).create_checkpoint(str(path))

    def close(self) -> None:
        """Close the database."""
        if self.rocks is None:
            return
        try:
            self.rocks.close()
        except Exception:
            if self.failed is None:
                raise
        finally:
            if self._links is not None:
                self._links.cleanup()


def _close(rocks: Rdict | None) -> None:
    """Close a database that may have failed, in which case closing repeats the error."""
    if rocks is not None:
        with contextlib.suppress(Exception):
            rocks.close()


def has_room(path: Path) -> bool:
    """Return True if a file of `ROOM_BYTES` can be made in this directory, with its space and file descriptor."""
    probe = path / "room"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            system_calls.allocate(descriptor, 0, ROOM_BYTES)
        finally:
            os.close(descriptor)
            probe.unlink()
    except OSError:
        return False
    return True


def open_database(path: Path) -> Rdict:
    """Open a database for reading and writing.

    rocksdict raises a plain Exception when it cannot."""
    return Rdict(str(path), _options(), access_type=AccessType.read_write())


def open_to_read(path: Path) -> Rdict:
    """Open a database for reading, beside the process that writes it.

    Raises a plain Exception when a file is missing. (A RocksDB "secondary", the other way to do this, would read on as
    if the data in the missing file had never existed.)"""
    return Rdict(str(path), _options(), access_type=AccessType.read_only(False))


def column_families(path: Path) -> list[str]:
    """Return the names of the column families of a database; none if there is no database.

    rocksdict raises a plain Exception when it cannot be read."""
    return Rdict.list_cf(str(path), _options()) if (path / "CURRENT").exists() else []


def open_column_families(path: Path, names: list[str]) -> tuple[Rdict, Options]:
    """Open a database that has these column families beside the default one, or make one that has none.

    Also returns the options of its column families, which share one block cache. rocksdict raises a plain Exception."""
    options = _options()
    return Rdict(str(path), options, dict.fromkeys(names, options), AccessType.read_write()), options


def _link(path: Path, links: Path) -> None:
    """Link the files of a database into another directory, and copy its configuration."""
    for each in path.iterdir():
        if each.name == CONFIGURATION:
            shutil.copyfile(each, links / each.name)
        elif not each.name.startswith(("LOG", "LOCK")):
            (links / each.name).symlink_to(each.absolute())


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(MEMTABLE_BYTES)
    options.set_max_write_buffer_number(MEMTABLES)
    options.set_max_background_jobs(2)
    options.set_max_open_files(open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(INFO_LOG_BYTES)
    options.set_stats_dump_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_block_size(BLOCK_BYTES)
    options.set_block_based_table_factory(table)
    return options


def open_files(descriptors: int) -> int:
    """Return the number of files that RocksDB may keep open in a process with `descriptors` file descriptors."""
    return max(32, min(MOST_OPEN_FILES, descriptors // 4))


def without_wal() -> WriteOptions:
    """Return options for writes without RocksDB's WAL: the log is the WAL (docs/design.md#the-journey-of-a-message)."""
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, which the stub calls a method
    return options


def scan(db: Rdict, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yield every key that begins with `prefix`, with its value, from `start` on, in the order of the keys.

    Raises a plain Exception if RocksDB finds a damaged block."""
    bound = ReadOptions()  # RocksDB reads the bound from this object, so it must live as long as the iterator
    bound.set_iterate_upper_bound(keys.past(prefix))
    at = db.iter(bound)
    at.seek(prefix if start is None else start)
    while at.valid():
        yield at.key(), at.value()
        at.next()
    at.status()  # a damaged block looks like the end until RocksDB is asked
