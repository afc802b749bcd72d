"""The library below projections/store and engine/rewind/id_index.py, as one small class of all that is asked of it.

To try a replacement, write its class and add it to LIBRARIES (docs/development/replace-rocksdb.md).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from rocksdict import Rdict, WriteBatch

from rewindmq.projections.store import rocks

Put = tuple[bytes, bytes]
Delete = tuple[bytes]
DeleteRange = tuple[bytes, bytes, None]  # from a key, to before another one
Change = Put | Delete | DeleteRange


class Buckets(Protocol):
    """A database whose keys are in buckets (RocksDB's column families), each dropped as a whole."""

    def begin(self, bucket: str) -> None: ...
    def drop(self, bucket: str) -> None: ...
    def write(self, bucket: str, changes: Sequence[Change]) -> None: ...
    def flush(self, bucket: str) -> None: ...
    def keys(self, bucket: str) -> list[bytes]: ...
    def backwards(self, bucket: str, last: bytes) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class Library(Protocol):
    """A library. `open` and `read` return the product's own class, which a replacement makes anew."""

    files: str  # a pattern of the names of the files that a copy of a database has

    def open(self, path: Path) -> rocks.Database: ...
    def read(self, path: Path) -> rocks.Database: ...
    def batch(self, changes: Sequence[Change]) -> WriteBatch: ...
    def buckets_in(self, path: Path) -> list[str]: ...
    def open_buckets(self, path: Path) -> Buckets: ...


class Rocksdict:
    """RocksDB, through rocksdict."""

    files = r"CURRENT|MANIFEST-\d+|OPTIONS-\d+|\d+\.(sst|log|blob)|rocksdict-config\.json"

    def open(self, path: Path) -> rocks.Database:
        return rocks.Database.open(path)

    def read(self, path: Path) -> rocks.Database:
        return rocks.Database.open_linked(path)

    def batch(self, changes: Sequence[Change]) -> WriteBatch:
        return filled(WriteBatch(raw_mode=True), changes)

    def buckets_in(self, path: Path) -> list[str]:
        return [name for name in rocks.column_families(path) if name != "default"]

    def open_buckets(self, path: Path) -> Buckets:
        return ColumnFamilies(path, self.buckets_in(path))


class ColumnFamilies:
    """Buckets as engine/rewind/id_index.py has them."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self._rocks, self._options = rocks.open_column_families(path, names)
        self._families: dict[str, Rdict] = {name: self._rocks.get_column_family(name) for name in names}

    def begin(self, bucket: str) -> None:
        self._families[bucket] = self._rocks.create_column_family(bucket, self._options)

    def drop(self, bucket: str) -> None:
        del self._families[bucket]
        self._rocks.drop_column_family(bucket)

    def write(self, bucket: str, changes: Sequence[Change]) -> None:
        batch = filled(WriteBatch(raw_mode=True), changes, self._rocks.get_column_family_handle(bucket))
        self._rocks.write(batch, rocks.without_wal())

    def flush(self, bucket: str) -> None:
        self._families[bucket].flush(True)

    def keys(self, bucket: str) -> list[bytes]:
        at = self._families[bucket].iter()
        at.seek_to_first()
        found = []
        while at.valid():
            found.append(cast(bytes, at.key()))
            at.next()
        at.status()
        return found

    def backwards(self, bucket: str, last: bytes) -> Iterator[bytes]:
        at = self._families[bucket].iter()
        at.seek_for_prev(last)
        while at.valid():
            yield cast(bytes, at.key())
            at.prev()
        at.status()

    def close(self) -> None:
        self._families.clear()
        self._rocks.close()


def filled(batch: WriteBatch, changes: Sequence[Change], family: object = None) -> WriteBatch:
    """Return the batch with these changes, in their order."""
    where = () if family is None else (family,)
    for change in changes:
        if len(change) == 1:
            batch.delete(change[0], *where)
        elif len(change) == 3:
            batch.delete_range(change[0], change[1], *where)
        else:
            batch.put(change[0], change[1], *where)
    return batch


def everything(database: rocks.Database) -> list[tuple[bytes, bytes]]:
    """All keys with their values, in their order. (No key of ours begins with 255.)"""
    return [pair for first in range(255) for pair in database.scan(bytes([first]))]


LIBRARIES: tuple[Library, ...] = (Rocksdict(),)
