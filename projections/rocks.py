"""RocksDB as this project uses it: raw bytes, one column family, no WAL, bounded memory.

One column family, so that the memtables reach the disk in the order in which they were written: a crash keeps a prefix
of the batches, each whole. Memory, whatever the data: three memtables and the block cache.
"""

import resource
from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, ReadOptions, WriteOptions

from projections import keys

MEMTABLE_BYTES = 8 * 1024 * 1024
MEMTABLES = 3
BLOCK_CACHE_BYTES = 8 * 1024 * 1024
# Larger than RocksDB's 4 KiB: queues are read in the order of their keys, and the index stays small.
BLOCK_BYTES = 16 * 1024
INFO_LOG_BYTES = 1024 * 1024
READING_ATTEMPTS = 5
MOST_OPEN_FILES = 1_024  # tables that stay open; RocksDB opens the others again when they are read


class StoreError(Exception):
    """The state store cannot be used; the text says why and what to do."""


def open_database(path: Path) -> Rdict:
    """Open for reading and writing. rocksdict raises a plain Exception when it cannot."""
    return Rdict(str(path), _options(), access_type=AccessType.read_write())


def open_to_read(path: Path) -> Rdict:
    """Open beside whoever writes. A plain Exception when a file is missing (as a RocksDB "secondary", the other way to
    do this, it would pass for one that never held what was in the file)."""
    for _ in range(READING_ATTEMPTS - 1):
        try:
            return Rdict(str(path), _options(), access_type=AccessType.read_only(False))
        except Exception:  # the writer may just have replaced a file that was listed; those listed now are there
            continue
    return Rdict(str(path), _options(), access_type=AccessType.read_only(False))


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
    """How many files RocksDB keeps open in a process that may have so many descriptors."""
    return max(32, min(MOST_OPEN_FILES, descriptors // 4))


def without_wal() -> WriteOptions:
    """The log is the WAL (DESIGN section 2)."""
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, which the stub calls a method
    return options


def scan(db: Rdict, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Everything whose key begins with `prefix`, from `start` on, in the order of the keys. A plain Exception when
    RocksDB finds a block damaged."""
    bound = ReadOptions()  # RocksDB reads the bound where this object keeps it, so it must live as long as the iterator
    bound.set_iterate_upper_bound(keys.past(prefix))
    at = db.iter(bound)
    at.seek(prefix if start is None else start)
    while at.valid():
        yield at.key(), at.value()
        at.next()
    at.status()  # a damaged block looks like the end, unless asked
