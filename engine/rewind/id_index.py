"""The index of message ids and correlation ids (`--find-index`): the offsets of messages with an id, in RocksDB.

    index = IdIndex.open(directory)
    index.add(bucket, Stretch("queues-0", 0, 500, proof), entries)      # all that is in these records
    index.lookup(key_of(MESSAGE_ID, b"4711"), {"queues-0": None})       # {"queues-0": Indexed(stretches, offsets)}

    default column family
      format                                    -> 1
    column family "20783"         a bucket: the records of a stretch of time, of all partitions
      hash 6 | partition 2 | offset 6           -> nothing             an id in a record
      stretch/queues-0                          -> first, end, proof   what of a partition is in the bucket

- An entry is a hint: several ids may have a hash. A search reads each record, and compares it.
- What is in no stretch is not known, and is searched. So the index may be behind, cut short or gone.
- A stretch is in the same column family as its entries, and RocksDB writes a column family's memtables in order. So a
  crash, without a WAL, takes back stretches with their entries.
- An old bucket is dropped as a whole.
- A stretch ends with a proof, made of its last record. If the log has another record there, the directory had another
  history meanwhile (it was restored from a backup), and the index is made anew.
"""

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from rocksdict import Options, Rdict, WriteBatch

from rewindmq.engine.log.contract import LogError
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.projections.store.keys import past
from rewindmq.projections.store.rocks import column_families, open_column_families, scan, without_wal
from rewindmq.schemas.formats import other_format

HASH_BYTES: Final = 6
PARTITION_BYTES: Final = 2
OFFSET_BYTES: Final = 6
MOST_OFFSET: Final = (1 << 8 * OFFSET_BYTES) - 1
ENTRY_BYTES: Final = HASH_BYTES + PARTITION_BYTES + OFFSET_BYTES
STRETCH: Final = b"stretch/"
FORMAT: Final = b"format"
VERSION: Final = b"1"
MOST_OFFSETS: Final = 20_000  # in one answer, over all partitions
FEWEST_OFFSETS: Final = 100  # of a partition, however many there are


@dataclass(frozen=True, slots=True)
class Proof:
    """The last record of a stretch: its offset (a log in Kafka has gaps), and a hash of it and of the chain there."""

    offset: int
    digest: bytes

    @classmethod
    def of(cls, offset: int, record: bytes, chain: bytes) -> "Proof":
        """The proof that a record gives."""
        return cls(offset, hashlib.blake2b(chain + record, digest_size=16).digest())


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records of a partition that are in the index, from `first` to `end` (exclusive)."""

    partition: str
    first: int
    end: int
    proof: Proof

    def encoded(self) -> bytes:
        """The value in RocksDB."""
        numbers = (self.first, self.end, self.proof.offset)
        return b"".join(number.to_bytes(8, "big") for number in numbers) + self.proof.digest

    @classmethod
    def decoded(cls, partition: str, value: bytes) -> "Stretch":
        """The stretch in a value of RocksDB."""
        first, end, offset = (int.from_bytes(value[at : at + 8], "big") for at in (0, 8, 16))
        return cls(partition, first, end, Proof(offset, value[24:]))


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index's entry for an id in a partition: in `stretches` (first, end) only records at `offsets` can have it.

    Both ascend."""

    stretches: tuple[tuple[int, int], ...]
    offsets: tuple[int, ...]


def key_of(kind: str, value: bytes) -> bytes:
    """The hash of an id. `kind`: message_id or correlation_id."""
    return hashlib.blake2b(value, digest_size=HASH_BYTES, person=kind.encode()[:16]).digest()


def entry(key: bytes, partition: int, offset: int) -> bytes:
    """The key in RocksDB of an id in a record."""
    return key + partition.to_bytes(PARTITION_BYTES, "big") + offset.to_bytes(OFFSET_BYTES, "big")


class IdIndex:
    """The index in a directory, which one process has open. Methods raise a plain Exception, as rocksdict does."""

    def __init__(self, rocks: Rdict, options: Options, buckets: Mapping[int, Rdict]) -> None:
        self._rocks = rocks
        self._of_buckets = options
        self._buckets = dict(sorted(buckets.items()))
        self._stretches: dict[int, dict[str, Stretch]] = {
            number: {stretch.partition: stretch for stretch in _stretches(bucket)}
            for number, bucket in self._buckets.items()
        }
        self._without_wal = without_wal()

    @classmethod
    def open(cls, directory: Path) -> "IdIndex":
        """Open the index, or begin one. Another process may have it open still: then the text of the error has `lock`
        in it."""
        directory.mkdir(mode=0o700, exist_ok=True)
        numbers = [int(name) for name in column_families(directory) if name.isdigit()]
        rocks, options = open_column_families(directory, [str(number) for number in numbers])
        found = rocks.get(FORMAT)
        if found is None and not numbers:
            rocks.put(FORMAT, VERSION)
        elif found != VERSION:
            rocks.close()
            raise LogError(f"{directory}: {other_format(found, VERSION)}")
        return cls(rocks, options, {number: rocks.get_column_family(str(number)) for number in numbers})

    @staticmethod
    def remove(directory: Path) -> None:
        """Remove an index that no process has open. OSError."""
        if directory.exists():
            shutil.rmtree(directory)

    def close(self) -> None:
        """Write everything to files, and close."""
        try:
            for number in self._buckets:
                self._buckets[number].flush(True)
        finally:
            self._buckets.clear()  # RocksDB is open as long as one of these objects lives
            self._rocks.close()

    # -- what is in it ------------------------------------------------------------------------------------------------

    @property
    def buckets(self) -> list[int]:
        """The numbers of the buckets."""
        return list(self._buckets)

    def last(self, partition: str) -> tuple[int, Stretch] | None:
        """The newest bucket that has records of a partition, and its stretch."""
        for number in reversed(self._buckets):
            stretch = self._stretches[number].get(partition)
            if stretch is not None:
                return number, stretch
        return None

    def partitions(self) -> list[str]:
        """The names of the partitions that have a stretch."""
        return sorted({name for stretches in self._stretches.values() for name in stretches})

    def lookup(self, key: bytes, ends: Mapping[str, int | None]) -> dict[str, Indexed]:
        """Return the entry for an id in each of these partitions, below these offsets (None: no bound).

        If very many messages have the id, it has only the newest ones, and stretches from the oldest of these on."""
        most = max(FEWEST_OFFSETS, MOST_OFFSETS // max(1, len(ends)))
        return {partition: self._indexed(key, partition, end, most) for partition, end in ends.items()}

    def _indexed(self, key: bytes, partition: str, end: int | None, most: int) -> Indexed:
        prefix = key + number_of(partition).to_bytes(PARTITION_BYTES, "big")
        stretches: list[tuple[int, int]] = []
        offsets: list[int] = []
        for number in reversed(self._buckets):
            stretch = self._stretches[number].get(partition)
            if stretch is None or (end is not None and stretch.first >= end):
                continue
            found = self._offsets(self._buckets[number], prefix, end, most + 1 - len(offsets))
            offsets += found
            if len(offsets) > most:
                if found[-1] < stretch.end:  # what is above the oldest is known
                    stretches.append((found[-1], stretch.end))
                break
            stretches.append((stretch.first, stretch.end))
        return Indexed(tuple(joined(reversed(stretches))), tuple(reversed(offsets)))

    def _offsets(self, bucket: Rdict, prefix: bytes, end: int | None, most: int) -> list[int]:
        """The newest offsets of an id in a bucket, the newest first."""
        at = bucket.iter()
        if end is None or end > MOST_OFFSET:  # a client may ask for any number
            at.seek_for_prev(past(prefix))
        else:
            at.seek_for_prev(prefix + (end - 1).to_bytes(OFFSET_BYTES, "big"))
        found: list[int] = []
        while at.valid() and len(found) < most:
            place = cast(bytes, at.key())
            if place.startswith(prefix) and len(place) == ENTRY_BYTES:
                found.append(int.from_bytes(place[-OFFSET_BYTES:], "big"))
            elif place < prefix:
                break
            at.prev()
        at.status()  # a damaged block looks like the end, unless RocksDB is asked
        return found

    # -- writing ------------------------------------------------------------------------------------------------------

    def add(self, number: int, stretch: Stretch, entries: Iterable[bytes]) -> None:
        """Add records to a bucket. `stretch` goes on where the partition's last one ended, or takes its place."""
        last = self.last(stretch.partition)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._begin(number)
        elif last is not None and last[0] == number and last[1].end == stretch.first:
            stretch = Stretch(stretch.partition, last[1].first, stretch.end, stretch.proof)
        if last is not None and last[0] != number:
            self._buckets[last[0]].flush(True)  # else a crash might take back its end, and not what follows it
        handle = self._rocks.get_column_family_handle(str(number))
        batch = WriteBatch(raw_mode=True)
        for each in entries:
            batch.put(each, b"", handle)
        batch.put(STRETCH + stretch.partition.encode(), stretch.encoded(), handle)
        self._rocks.write(batch, self._without_wal)
        self._stretches[number][stretch.partition] = stretch

    def _begin(self, number: int) -> Rdict:
        bucket = self._rocks.create_column_family(str(number), self._of_buckets)
        self._buckets = dict(sorted((self._buckets | {number: bucket}).items()))
        self._stretches[number] = {}
        return bucket

    def drop(self, number: int) -> None:
        """Drop a bucket."""
        del self._buckets[number], self._stretches[number]
        self._rocks.drop_column_family(str(number))


def _stretches(bucket: Rdict) -> Iterable[Stretch]:
    for key, value in scan(bucket, STRETCH):
        if value:  # else it is an id whose hash begins so
            yield Stretch.decoded(key[len(STRETCH) :].decode(), value)


def joined(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending stretches, those that touch each other as one."""
    found: list[tuple[int, int]] = []
    for first, end in stretches:
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found
