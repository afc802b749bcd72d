"""The log of one machine: a directory of segments, written by one broker at a time (contract: engine/log/contract.py).

log = EmbeddedLog.open(data_dir, partitions=2, segment_bytes=268_435_456)

append -> group (in memory) -> closed groups -> [commit thread] writer: block, fdatasync, index -> durable_offset
"""

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rewindmq.engine.log.contract import LARGE_RECORD_BYTES, Block, LogError, LogListener
from rewindmq.engine.log.embedded.base_records import BaseRecords
from rewindmq.engine.log.embedded.commit import Committer
from rewindmq.engine.log.embedded.cut import end_cut
from rewindmq.engine.log.embedded.directory import (
    METADATA,
    begin_growing,
    end_growing,
    partition_directory,
    prepare,
    queue_partition,
    read_fork,
    write_layout,
)
from rewindmq.engine.log.embedded.lock import lock
from rewindmq.engine.log.embedded.reader import PartitionReader, Segment
from rewindmq.engine.log.embedded.reserve import RESERVE_BYTES, START_BYTES, Reserve
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.projections.store.bases import Base

# This many bytes may wait for the disk before publishers wait. They and the following acks fit into the reserve.
WAITING_BYTES: Final = RESERVE_BYTES // 2
BLOCK_BYTES = 4 << 20  # a group that reaches this becomes a block, and the next one begins

logger = logging.getLogger(__name__)


class CommitGroup:
    """Records for one block. `schema`: the fingerprint of their schema."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.records: list[bytes] = []
        self.size = 0
        self.large_bytes = 0  # the part of `size` in large records
        self.max_timestamp_ms = 0
        self.begins_anew = False  # in time: the group begins a new segment


class EmbeddedPartition:
    """A partition that this process writes.

    The loop calls `append`, `close_group` and `land`, the thread calls `write_closed`."""

    shared = False

    def __init__(
        self, directory: Path, segment_bytes: int, begin: bool, reserve: Reserve, schema: str | None = None
    ) -> None:
        self.name = directory.name
        self._reserve = reserve
        self._writer = PartitionWriter(directory, segment_bytes, begin, schema=schema)
        self.schema = self._writer.schema  # the fingerprint of the schema of appended records
        self._reader = PartitionReader(directory)
        self._kept = BaseRecords(directory)
        self.next_offset = self._writer.place.offset
        self.durable_offset = self.next_offset
        self.durable_end = self._writer.end  # of the last durable block
        self._group = CommitGroup(self.schema)
        self._closed_groups: deque[CommitGroup] = deque()
        self._commit_end = self.next_offset  # the current commit, or the next one, ends here
        self._closed_bytes = 0  # all bytes of groups ever closed; counted in the loop
        self._written_bytes = 0  # all bytes ever written; counted in the thread
        self._closed_large_bytes = 0  # the same, of large records
        self._written_large_bytes = 0
        self._roll_asked = False

    @property
    def start_offset(self) -> int:
        """Return the offset of the oldest record. Another process may be cutting older segments."""
        return self._reader.start_offset

    @property
    def waiting_bytes(self) -> int:
        """Return the size of the unwritten records."""
        return self._group.size + self._closed_bytes - self._written_bytes

    @property
    def waiting_large_bytes(self) -> int:
        """Return the part of `waiting_bytes` in large records."""
        return self._group.large_bytes + self._closed_large_bytes - self._written_large_bytes

    def append(self, timestamp_ms: int, record: bytes) -> int:
        group = self._group
        size = len(record)
        group.records.append(record)
        group.size += size
        if timestamp_ms > group.max_timestamp_ms:
            group.max_timestamp_ms = timestamp_ms
        if size >= LARGE_RECORD_BYTES:
            group.large_bytes += size
        if group.size >= BLOCK_BYTES:
            self._end_group()
        offset = self.next_offset
        self.next_offset = offset + 1
        return offset

    def append_all(self, timestamp_ms: int, records: list[bytes]) -> int:
        """Append records of one time; each is small. Returns the offset of the first."""
        group = self._group
        group.records += records
        group.size += sum(map(len, records))
        if timestamp_ms > group.max_timestamp_ms:
            group.max_timestamp_ms = timestamp_ms
        if group.size >= BLOCK_BYTES:
            self._end_group()
        offset = self.next_offset
        self.next_offset = offset + len(records)
        return offset

    def begin_time_anew(self) -> None:
        self._end_group()
        self._group.begins_anew = True

    def write_under(self, schema: str) -> None:
        self._end_group()
        self.schema = self._group.schema = schema

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks by the contract; the durable offset at the call is the last possible end."""
        end = self.durable_offset if end is None else min(end, self.durable_offset)
        return self._reader.read(offset, end)

    def offset_at(self, timestamp_ms: int) -> int:
        return min(self._reader.offset_at(timestamp_ms), self.durable_offset)

    def segments(self) -> list[Segment]:
        """Return the partition's segments, in the order of their offsets."""
        return self._reader.segments()

    def kept_record(self, offset: int) -> bytes | None:
        return self._kept.record(self.start_offset, offset)

    def base(self) -> Base | None:
        """Return the base with which the partition begins; None if it begins at offset 0.

        Raises LogError if the base is missing or damaged."""
        return self._reader.base()

    def close_group(self) -> int:
        self._end_group()
        self._commit_end = self.next_offset
        waiting = self.next_offset - self._writer.place.offset  # the groups are not read: the thread may be taking them
        return waiting + self._roll_asked

    def _end_group(self) -> None:
        if self._group.records:
            self._closed_groups.append(self._group)
            self._closed_bytes += self._group.size
            self._closed_large_bytes += self._group.large_bytes
            self._group = CommitGroup(self.schema)

    def write_closed(self) -> None:
        end = self._commit_end  # groups closed from now on are the next commit's
        while self._closed_groups and self._writer.place.offset < end:
            group = self._closed_groups[0]
            try:
                self._writer.write(group.records, group.max_timestamp_ms, group.begins_anew, group.schema)
            except OSError as error:
                if self._reserve.release(error, group.size):
                    continue
                what = f"{len(group.records)} records from offset {self._writer.place.offset} on"
                raise LogError(f"{self._writer.directory}: {what} could not be written, and wait: {error}") from error
            self._closed_groups.popleft()
            self._written_bytes += group.size
            self._written_large_bytes += group.large_bytes
        if self._roll_asked:
            self._roll_asked = False
            self._roll()

    def _roll(self) -> None:
        """Begin a segment, in the thread; if the disk refuses, leave that to the next block."""
        try:
            self._writer.roll()
        except OSError as error:
            logger.warning("%s: cannot begin a new segment, so the last one grows: %s", self.name, error)

    def land(self) -> bool:
        end = self._writer.end
        moved = end.offset > self.durable_offset
        self.durable_offset = end.offset
        self.durable_end = end
        return moved

    @property
    def last_base(self) -> int:
        """Return the base offset of the last segment."""
        return self._writer.last_base

    def roll_soon(self) -> None:
        """Let the next commit end with a new segment, unless the last one is then empty."""
        self._roll_asked = True

    def roll(self) -> None:
        """Begin a segment, unless the last one is empty. For tools, with nothing waiting to be written."""
        self._writer.roll()

    def close(self) -> None:
        """Close the files of the partition."""
        self._writer.close()


class EmbeddedLog:
    """The log of one data directory, held by this process."""

    def __init__(
        self,
        data_dir: Path,
        lock_descriptor: int,
        reserve: Reserve,
        partitions: Sequence[EmbeddedPartition],
        commit_interval_ms: int,
    ) -> None:
        """Use `open` instead. `partitions`: the metadata log, then those of queues."""
        self.data_dir = data_dir
        self.metadata = partitions[0]
        self.queues: Sequence[EmbeddedPartition] = partitions[1:]
        self._lock = lock_descriptor
        self._reserve = reserve
        self._commit_seconds = commit_interval_ms / 1_000
        self._committer = Committer(partitions, self._commit_seconds)

    @classmethod
    def open(
        cls,
        data_dir: Path,
        partitions: int | None,
        segment_bytes: int = 268_435_456,
        commit_interval_ms: int = 5,
    ) -> "EmbeddedLog":
        """Open or make the log in `data_dir`. `commit_interval_ms`: of Committer.

        Raises LogError if another broker has it open, if it has another number of queue partitions, or if the disk
        refuses; CorruptLog if it is damaged."""
        opened: list[EmbeddedPartition] = []
        descriptor = -1
        reserve: Reserve | None = None
        try:
            descriptor = lock(data_dir)
            reserve = Reserve(data_dir / "log")
            count, new = prepare(data_dir, partitions)
            for name in (METADATA, *map(queue_partition, range(count))):
                end_cut(partition_directory(data_dir, name))
                opened.append(EmbeddedPartition(partition_directory(data_dir, name), segment_bytes, new, reserve))
            if new and any(partition.next_offset for partition in opened):
                raise LogError(f"{data_dir}: there is a history, but log/layout.json, which describes it, is gone")
            if new:
                write_layout(data_dir, count)
            return cls(data_dir, descriptor, reserve, opened, commit_interval_ms)
        except BaseException as error:
            for partition in opened:
                partition.close()
            if reserve is not None:
                reserve.close()
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, OSError):
                raise LogError(f"{data_dir}: the log can't be opened: {error}") from error
            raise

    def grow(self, partitions: int, segment_bytes: int, schema: str) -> None:
        """Add queue partitions, up to `partitions` in all, which begin under `schema`. Before `start`.

        A crash leaves a log with the former number, or all of them. Raises LogError if the disk refuses."""
        added: list[EmbeddedPartition] = []
        try:
            begin_growing(self.data_dir, partitions)
            for name in map(queue_partition, range(len(self.queues), partitions)):
                directory = partition_directory(self.data_dir, name)
                directory.mkdir(exist_ok=True)
                added.append(EmbeddedPartition(directory, segment_bytes, True, self._reserve, schema))
            write_layout(self.data_dir, partitions, read_fork(self.data_dir))
            end_growing(self.data_dir)
        except BaseException as error:
            for partition in added:
                partition.close()
            if isinstance(error, OSError):
                raise LogError(f"{self.data_dir}: the log can't get more partitions: {error}") from error
            raise
        self.queues = [*self.queues, *added]
        self._committer = Committer(self.partitions, self._commit_seconds)

    def start(self, listener: LogListener) -> None:
        self._committer.start(listener)

    def commit(self) -> None:
        self._committer.commit()

    def commit_and_wait(self) -> None:
        """Make everything appended durable, in this thread. For a start and a stop, with the last of the reserve.

        Raises LogError if the disk refuses; the records are kept."""
        self._reserve.keep_bytes = 0
        try:
            self._committer.commit_and_wait()
        finally:
            self._reserve.keep_bytes = START_BYTES

    def full(self) -> bool:
        """Return True if the disk is so full that the log has used its reserve, or could not make one."""
        return not self._reserve.refill()

    @property
    def partitions(self) -> Sequence[EmbeddedPartition]:
        """Return all partitions: the metadata log, then those of queues."""
        return (self.metadata, *self.queues)

    @property
    def crowded(self) -> bool:
        """Return True if the waiting records take half of the reserve, or if the log has begun to use it.

        Large records do not count, because the disk had room for them when they were appended (`has_room`)."""
        return self._waiting_bytes - self.waiting_large_bytes >= WAITING_BYTES or not self._reserve.whole

    def has_room(self, size: int) -> bool:
        """Return True if this many bytes and the waiting records fit on the disk, besides the reserve."""
        return self._reserve.has_room_beside(self._waiting_bytes + size)

    @property
    def _waiting_bytes(self) -> int:
        return sum([partition.waiting_bytes for partition in (self.metadata, *self.queues)])

    @property
    def waiting_large_bytes(self) -> int:
        return sum([partition.waiting_large_bytes for partition in (self.metadata, *self.queues)])

    @property
    def whole(self) -> bool:
        """Return True if the durable ends of all partitions are of one moment, so that no error left one behind."""
        return self._committer.whole

    def close(self) -> None:
        """Make everything appended durable, then free the directory.

        Raises LogError if not everything could be written."""
        try:
            self.commit_and_wait()
        finally:
            self._committer.close()
            for partition in (self.metadata, *self.queues):
                partition.close()
            self._reserve.close()
            os.close(self._lock)
