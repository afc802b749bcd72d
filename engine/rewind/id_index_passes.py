"""Brings the index of ids up to date: reads the log behind the broker, a window at a time.

    indexing = Indexing(history, directory, keep_ms)      # the index is proven, or made anew
    while indexing.window(): ...                          # True: a window of records came into the index

- Only durable records are read, which no crash takes back.
- It begins at what is as old as is kept, and goes on where it ended. A bucket is a seventh of that time.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader, Location
from rewindmq.engine.log.contract import Block
from rewindmq.engine.rewind.id_index import IdIndex, Indexed, Proof, Stretch, entry, key_of
from rewindmq.projections.history.search import CORRELATION_ID, MESSAGE_ID, ids_in
from rewindmq.projections.replay import decoder_for
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.events import Published

BUCKETS: Final = 7
LEAST_BUCKET_MS: Final = 60_000
WINDOW_RECORDS: Final = 20_000

logger = logging.getLogger(__name__)


class Indexing:
    """The index of a history, and what of the log is to come into it."""

    def __init__(self, history: Location, directory: Path, keep_ms: int) -> None:
        """Open the index. Raises LogError, OSError, and a plain Exception where rocksdict does."""
        self._history = history
        self._keep_ms = keep_ms
        self._bucket_ms = max(LEAST_BUCKET_MS, keep_ms // BUCKETS)
        self._waiting: deque[HistoryPartition] = deque()  # of the pass under way
        self._decoders: dict[str, Decoder] = {}
        reader = history.open()
        self.index = IdIndex.open(directory)
        if not self._is_of(reader):
            logger.warning("%s: it is of another history, or has other buckets, and is made anew", directory)
            self.index.close()
            IdIndex.remove(directory)
            self.index = IdIndex.open(directory)

    def _is_of(self, reader: HistoryReader) -> bool:
        """Return True if the index can be continued: it is of this history, and its buckets have this length.

        `--find-index` may have been longer or shorter. Numbers of such buckets may be far in the future, so that the
        buckets would never become old."""
        newest = int(time.time() * 1_000) // self._bucket_ms + BUCKETS
        if any(number > newest for number in self.index.buckets):
            return False
        names = {log.name for log in reader.queues}
        return names.issuperset(self.index.partitions()) and all(map(self._is_proven, reader.queues))

    def _is_proven(self, log: HistoryPartition) -> bool:
        """Return True if the log has the record with which the newest stretch ends."""
        last = self.index.last(log.name)
        if last is None:
            return True
        end, proof = last[1].end, last[1].proof
        if end > log.durable_offset or proof.offset < log.start_offset:
            return False
        for block in log.read_ranges([(proof.offset, proof.offset + 1)]):
            at = proof.offset - block.first_offset
            if 0 <= at < len(block.records):
                return Proof.of(proof.offset, block.records[at], block.chain) == proof
        return False

    def lookup(self, kind: str, value: bytes, ends: Mapping[str, int | None] | None) -> dict[str, Indexed]:
        """Return the entries for an id as `IdIndex.lookup` does. `ends` None: in all partitions."""
        known = self.index.partitions()
        if ends is None:
            ends = dict.fromkeys(known)
        return self.index.lookup(key_of(kind, value), {name: ends[name] for name in known if name in ends})

    def window(self) -> bool:
        """Index a window of the next partition that has new records; False: no partition has.

        Raises LogError, and a plain Exception where rocksdict does."""
        if not self._waiting:
            self._drop_old()
            self._waiting.extend(self._history.open().queues)
        while self._waiting:
            log = self._waiting[0]
            if self._indexed(log):
                return True
            self._waiting.popleft()
        return False

    def _drop_old(self) -> None:
        """Drop the buckets that are older than is kept."""
        oldest = (int(time.time() * 1_000) - self._keep_ms) // self._bucket_ms
        for number in self.index.buckets:
            if number < oldest:
                self.index.drop(number)

    def _indexed(self, log: HistoryPartition) -> bool:
        """Index a window. Returns whether there was one."""
        last = self.index.last(log.name)
        end = log.durable_offset
        begin = log.start_offset
        if last is None:
            begin = max(begin, log.offset_at(int(time.time() * 1_000) - self._keep_ms))
        else:
            begin = max(begin, last[1].end)
        if begin >= end:
            return False
        bucket = 0 if last is None else last[0]
        entries: list[bytes] = []
        proof: Proof | None = None
        for block in log.read(begin, end):
            number = max(bucket, block.max_timestamp_ms // self._bucket_ms)
            behind = block.first_offset + len(block.records)
            if proof is not None and (number != bucket or behind - begin > WINDOW_RECORDS):
                break  # the rest is the next window's
            bucket = number
            self._add(entries, log, block, begin)
            proof = Proof.of(behind - 1, block.records[-1], block.chain)
        if proof is None:  # gaps alone
            return False
        self.index.add(bucket, Stretch(log.name, begin, proof.offset + 1, proof), entries)
        return True

    def _add(self, entries: list[bytes], log: HistoryPartition, block: Block, begin: int) -> None:
        """Add the entries of a block's records from offset `begin` on."""
        decoder = self._decoders.get(log.name)
        if decoder is None:
            decoder = self._decoders[log.name] = decoder_for(log)
        decode, partition = decoder.decode, number_of(log.name)
        for offset, record in enumerate(block.records, block.first_offset):
            if offset < begin:
                continue
            try:
                event = decode(record, False)[2]
            except UndecodableRecord:
                continue
            if type(event) is not Published:
                continue
            message_id, correlation_id = ids_in(event.properties)
            if message_id is not None:
                entries.append(entry(key_of(MESSAGE_ID, message_id), partition, offset))
            if correlation_id is not None:
                entries.append(entry(key_of(CORRELATION_ID, correlation_id), partition, offset))
