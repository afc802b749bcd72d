"""Reads a partition of a log in Kafka from two tiers: Kafka, and below its start the archive.

    log = TieredTopics(KafkaLogReader(bootstrap, prefix), "s3://bucket/prefix")
    for block in log.queues[0].read(1_000, 2_000): ...

    floor          archived end
    |  archive        |
                |      Kafka     |
              start          next_offset

- The floor is the oldest offset that exists anywhere: 0, or that of the last HistoryTrimmed in the metadata topic, with
  a base in the archive. While Kafka has offset 0, nothing is gone.
- Records below the start are only in the archive: they were removed from Kafka by the owner of the partition
  (--keep-local), a trim, or the topic's retention. If the start moves during a read, the read continues in the archive.
- The archive is opened only when a record below the start is requested. So Kafka's records can be read while the
  archive is unreachable; others are then NoAnswer.
- The archive must be of this history: it begins with the same record of the metadata log, has all records below
  Kafka's start, and agrees with Kafka on each record that both have.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.topic_floors import TopicFloors
from rewindmq.engine.log.contract import BelowStart, Block, LogError, NoAnswer
from rewindmq.schemas.metadata_events import HistoryTrimmed

if TYPE_CHECKING:
    from rewindmq.engine.keeping.archive.reader import ArchivedLog, ArchivedPartition
    from rewindmq.engine.log.kafka.clients import KafkaClients
    from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
    from rewindmq.engine.log.kafka.topics import KafkaTopics
    from rewindmq.projections.store.bases import Base

    Range = tuple[int, int]


class TopicArchive:
    """The archive of the history in topics, opened by the first question and verified to be of this history."""

    def __init__(self, url: str, metadata: "KafkaPartition") -> None:
        self.url = url
        self.floors = TopicFloors(metadata)
        self._metadata = metadata
        self._lock = Lock()
        self._log: ArchivedLog | None = None

    def open(self) -> "ArchivedLog":
        """Return the archive.

        Raises LogError if it is missing, or of another history; NoAnswer."""
        from rewindmq.engine.keeping.archive.objects import BadUrl
        from rewindmq.engine.keeping.archive.reader import ArchivedLog
        from rewindmq.engine.keeping.archive.topic_records import history_in

        with self._lock:
            if self._log is None:
                try:
                    log = ArchivedLog(self.url)
                except BadUrl as error:
                    raise NoAnswer(f"the archive: {error}") from None
                if (log.identity.log, log.identity.history) != ("kafka", history_in(self._metadata)):
                    topic = self._metadata.topic
                    raise LogError(f"{self.url}: the archive of another history than the one that {topic} belongs to")
                self._log = log
            return self._log

    def partition(self, topic: "KafkaPartition", start: int) -> "ArchivedPartition":
        """Return the archive, complete below `start`, of a partition that begins there in Kafka.

        Raises LogError if the archive lacks some of it or has other records; NoAnswer."""
        from rewindmq.engine.keeping.archive.reader import ArchivedPartition

        archived = ArchivedPartition(self.open().objects, topic.name, shared=True)
        end = archived.next_offset
        if end < start:
            gone = f"the offsets {end} to {start - 1} are neither in Kafka nor in the archive at {self.url}"
            raise LogError(f"Kafka: {topic.name} begins at offset {start}, but is archived only up to {end}: {gone}")
        kept = _first(topic.read(start, end), start)
        if kept is not None and kept != _first(archived.read(kept[0], kept[0] + 1), kept[0]):
            what = f"Kafka: the record at offset {kept[0]} of {topic.name}"
            raise LogError(f"{what} differs from the one in the archive at {self.url}")
        return archived

    def base(self, name: str, event: HistoryTrimmed) -> "Base":
        """Return the base with which a partition was trimmed, at its floor.

        Raises LogError if the archive has no such base, NoAnswer."""
        from rewindmq.engine.keeping.archive.manifest import Manifest
        from rewindmq.engine.keeping.archive.state_files import sound_base

        manifest = Manifest.load(self.open().objects, name)
        return sound_base(manifest, event.offset, event.chain, event.digest)[1]

    def tiered(self, topic: "KafkaPartition") -> "TieredTopic":
        """Return a partition of these topics with its archive."""
        return TieredTopic(topic, self)


class TieredTopic:
    """A partition in Kafka, and its archive below its start there."""

    shared = True

    def __init__(self, topic: "KafkaPartition", archive: TopicArchive) -> None:
        self.topic = topic
        self.name = topic.name
        self.archive = archive
        self._archived: ArchivedPartition | None = None  # verified: it has every record below the start at that time
        self._base: Base | None = None  # the last one
        self._thread: ThreadPoolExecutor | None = None
        self._asked: tuple[int, Future[bytes | None]] | None = None  # the record that the thread reads

    @property
    def next_offset(self) -> int:
        """Return the same as `KafkaPartition.next_offset`."""
        return self.topic.next_offset

    @property
    def durable_offset(self) -> int:
        """Return the same as `KafkaPartition.durable_offset`."""
        return self.topic.durable_offset

    @property
    def start_offset(self) -> int:
        """Return the floor, by asking Kafka."""
        floor = self._floor()
        return 0 if floor is None else floor.offset

    def _floor(self) -> HistoryTrimmed | None:
        """Return the last trim; None if Kafka has everything, or nothing was trimmed."""
        if self.topic.start_offset == 0:
            return None
        floor = self.archive.floors.now().get(self.name)
        return None if floor is None else floor.event

    def base(self) -> "Base | None":
        """Return the base at the floor; None if the history begins at offset 0.

        Raises LogError if the archive lacks it, NoAnswer."""
        floor = self._floor()
        if floor is None:
            return None
        if self._base is None or self._base.offset != floor.offset:
            try:
                self._base = self.archive.base(self.name, floor)
            except NoAnswer:
                raise
            except LogError:
                if self._floor() == floor:  # otherwise it was trimmed in the meantime
                    raise
                return self.base()
        return self._base

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks with exactly the records from `offset` up to `end`.

        Raises LogError if the records are nowhere; NoAnswer while Kafka or the archive that has them is unreachable."""
        at = offset
        while end is None or at < end:
            start = self.topic.start_offset
            if at < start:
                stop = start if end is None else min(start, end)
                for block in self.below(start).read(at, stop):
                    yield part_of(block, at, stop)
                    at = min(block.first_offset + len(block.records), stop)
                at = max(at, stop)  # the last offsets may have no record
                continue
            try:
                for block in self.topic.read_kept(at, end):
                    yield block
                    at = block.first_offset + len(block.records)
                return
            except BelowStart:
                if self.topic.start_offset <= at:
                    raise

    def read_ranges(self, ranges: "Iterable[Range]") -> Iterator[Block]:
        """Yield the blocks of many short, ascending ranges (first offset, end).

        Raises as `read`."""
        waiting = iter(ranges)
        start = self.topic.start_offset
        for first, end in waiting:
            if first < start:
                yield from self.read(first, end)
            else:
                yield from self._kept_ranges(chain([(first, end)], waiting))

    def _kept_ranges(self, ranges: "Iterator[Range]") -> Iterator[Block]:
        """Yield blocks from Kafka as long as it has them, and then each range separately."""
        at, behind = 0, 0  # the rest of the current range

        def noted() -> "Iterator[Range]":
            nonlocal at, behind
            for each in ranges:
                at, behind = each
                yield each

        try:
            for block in self.topic.read_ranges(noted()):
                yield block
                at = block.first_offset + len(block.records)
        except BelowStart:
            if self.topic.start_offset <= at:
                raise
            for first, end in chain([(at, behind)], ranges):
                yield from self.read(first, end)

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset as `LogPartition.offset_at` does.

        If Kafka has an older record, everything below its start also counts as older. Raises as `read`."""
        found, start = self.topic.offset_at(timestamp_ms), self.topic.start_offset
        if found > start or start == 0:
            return found
        return max(self.start_offset, min(start, self.below(start).offset_at(timestamp_ms)))

    def record(self, offset: int, seconds: float) -> bytes | None:
        """Return the record at an offset below `next_offset`; None: the offset is a gap.

        Raises NoAnswer if neither Kafka nor the archive answers within `seconds`; a later question gets an answer that
        arrived in the meantime."""
        try:
            return self.topic.record(offset, seconds)
        except BelowStart:
            pass
        if self._asked is None or self._asked[0] != offset:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="archived-record")
            self._asked = offset, self._thread.submit(self._archived_record, offset)
        try:
            record = self._asked[1].result(seconds)
        except TimeoutError:
            raise NoAnswer(f"{self.name}: the record {offset} is being read from the archive: try again") from None
        except BaseException:
            self._asked = None
            raise
        self._asked = None
        return record

    def _archived_record(self, offset: int) -> bytes | None:
        base = self.base()
        if base is not None and offset < base.offset:
            return base.record(offset)
        found = _first(self.read(offset, offset + 1), offset)
        return None if found is None or found[0] != offset else found[2]

    def below(self, start: int) -> "ArchivedPartition":
        """Return the archive of this partition, complete below `start`, where Kafka begins.

        Raises as `TopicArchive.partition`."""
        if self._archived is None or self._archived.next_offset < start:
            self._archived = self.archive.partition(self.topic, start)
        return self._archived


class TieredTopics:
    """The partitions of a history in Kafka and its archive, read-only."""

    def __init__(self, log: "KafkaLogReader", url: str) -> None:
        self._log = log
        self._archive = TopicArchive(url, log.metadata)

    @property
    def clients(self) -> "KafkaClients":
        """Return the clients of that Kafka."""
        return self._log.clients

    @property
    def topics(self) -> "KafkaTopics":
        """Return the topics."""
        return self._log.topics

    @property
    def metadata(self) -> "KafkaPartition":
        """Return the metadata log, which is wholly in Kafka."""
        return self._log.metadata

    @cached_property
    def queues(self) -> list[TieredTopic]:
        """Return the queue partitions."""
        return [self._archive.tiered(each) for each in self._log.queues]


def part_of(block: Block, start: int, end: int) -> Block:
    """Return the records of a block from offset `start` up to `end`.

    If their times are in the records alone, `max_timestamp_ms` stays that of the whole block."""
    first = max(0, start - block.first_offset)
    behind = min(len(block.records), end - block.first_offset)
    if first == 0 and behind == len(block.records):
        return block
    times = None if block.timestamps_ms is None else block.timestamps_ms[first:behind]
    return replace(
        block,
        first_offset=block.first_offset + first,
        records=block.records[first:behind],
        timestamps_ms=times,
        max_timestamp_ms=block.max_timestamp_ms if times is None else max(times),
    )


def _first(blocks: Iterable[Block], offset: int) -> tuple[int, int, bytes] | None:
    """Return offset, time and value of the first record at or after `offset`; None if there is none."""
    for block in blocks:
        at = max(0, offset - block.first_offset)
        if at < len(block.records):
            assert block.timestamps_ms is not None, "the log gives times"
            return block.first_offset + at, block.timestamps_ms[at], block.records[at]
    return None
