"""Reads a partition of a log in Kafka through two tiers: Kafka, and below its start the archive.

    log = TieredTopics(KafkaLogReader(bootstrap, prefix), "s3://bucket/prefix")
    for block in log.queues[0].read(1_000, 2_000): ...

    floor          archived end
    |  archive        |
                |      Kafka     |
              start          next_offset

- The floor is the oldest offset that exists anywhere: 0, or that of the last HistoryTrimmed in the metadata topic. Then
  the archive has a base there. While Kafka has the offset 0, nothing is gone.
- Records below the start are in the archive alone: the owner of the partition has removed them (--keep-local), a trim
  has, or the topic's retention. The start may move while somebody reads: the reading goes on in the archive.
- The archive is opened when a record below the start is asked for, and not before. So whatever Kafka has can be read
  while the archive is away; the rest is NoAnswer then.
- The archive must be the one of this history: it begins with the same record of the metadata log, it has all records
  below Kafka's start, and where both have a record it is the same.
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
    """The archive of the history in topics. It is opened by the first question, and proven to be of this history."""

    def __init__(self, url: str, metadata: "KafkaPartition") -> None:
        self.url = url
        self.floors = TopicFloors(metadata)
        self._metadata = metadata
        self._lock = Lock()
        self._log: ArchivedLog | None = None

    def open(self) -> "ArchivedLog":
        """The archive.

        Raises LogError where it is none, or of another history; NoAnswer."""
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
        """Return the archive of a partition that begins at offset `start` in Kafka: it has everything below.

        Raises LogError if the archive lacks some of it or has other records; NoAnswer."""
        from rewindmq.engine.keeping.archive.reader import ArchivedPartition

        archived = ArchivedPartition(self.open().objects, topic.name, shared=True)
        end = archived.next_offset
        if end < start:
            gone = f"the offsets {end} to {start - 1} are neither there nor in the archive at {self.url}"
            raise LogError(f"Kafka: {topic.name} begins at offset {start}, and is archived up to {end} only: {gone}")
        kept = _first(topic.read(start, end), start)
        if kept is not None and kept != _first(archived.read(kept[0], kept[0] + 1), kept[0]):
            what = f"Kafka: the record at offset {kept[0]} of {topic.name}"
            raise LogError(f"{what} is another than the one in the archive at {self.url}")
        return archived

    def base(self, name: str, event: HistoryTrimmed) -> "Base":
        """The base at the floor of a partition, with which it was trimmed.

        Raises LogError where the archive has no such base, NoAnswer."""
        from rewindmq.engine.keeping.archive.manifest import Manifest
        from rewindmq.engine.keeping.archive.state_files import sound_base

        manifest = Manifest.load(self.open().objects, name)
        return sound_base(manifest, event.offset, event.chain, event.digest)[1]

    def tiered(self, topic: "KafkaPartition") -> "TieredTopic":
        """A partition of these topics, with what is archived of it."""
        return TieredTopic(topic, self)


class TieredTopic:
    """A partition in Kafka, and what the archive has below its start there."""

    shared = True

    def __init__(self, topic: "KafkaPartition", archive: TopicArchive) -> None:
        self.topic = topic
        self.name = topic.name
        self.archive = archive
        self._archived: ArchivedPartition | None = None  # proven to have what is below the start of then
        self._base: Base | None = None  # the last one
        self._thread: ThreadPoolExecutor | None = None
        self._asked: tuple[int, Future[bytes | None]] | None = None  # the record that the thread is reading

    @property
    def next_offset(self) -> int:
        """As `KafkaPartition.next_offset`."""
        return self.topic.next_offset

    @property
    def durable_offset(self) -> int:
        """As `KafkaPartition.durable_offset`."""
        return self.topic.durable_offset

    @property
    def start_offset(self) -> int:
        """The floor. Asks Kafka."""
        floor = self._floor()
        return 0 if floor is None else floor.offset

    def _floor(self) -> HistoryTrimmed | None:
        """The last trim; None if Kafka has all, or nothing was trimmed."""
        if self.topic.start_offset == 0:
            return None
        floor = self.archive.floors.now().get(self.name)
        return None if floor is None else floor.event

    def base(self) -> "Base | None":
        """The base at the floor; None if the history begins at offset 0.

        Raises LogError where the archive has it not, NoAnswer."""
        floor = self._floor()
        if floor is None:
            return None
        if self._base is None or self._base.offset != floor.offset:
            try:
                self._base = self.archive.base(self.name, floor)
            except NoAnswer:
                raise
            except LogError:
                if self._floor() == floor:  # else it was trimmed meanwhile
                    raise
                return self.base()
        return self._base

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yields blocks, which have the records from `offset` up to `end` and no others.

        Raises LogError where nothing has the records; NoAnswer while Kafka, or the archive that has them, is away."""
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
        """Yields the blocks of many short ranges (first offset, end), which ascend.

        Raises as `read`."""
        waiting = iter(ranges)
        start = self.topic.start_offset
        for first, end in waiting:
            if first < start:
                yield from self.read(first, end)
            else:
                yield from self._kept_ranges(chain([(first, end)], waiting))

    def _kept_ranges(self, ranges: "Iterator[Range]") -> Iterator[Block]:
        """`read_ranges` from Kafka, as long as it has them; then each range by itself."""
        at, behind = 0, 0  # of the range that is being read: its rest

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
        """The offset as `LogPartition.offset_at`.

        If Kafka has an older record, all below its start counts as older, too. Raises as `read`."""
        found, start = self.topic.offset_at(timestamp_ms), self.topic.start_offset
        if found > start or start == 0:
            return found
        return max(self.start_offset, min(start, self.below(start).offset_at(timestamp_ms)))

    def record(self, offset: int, seconds: float) -> bytes | None:
        """The record at an offset below `next_offset`; None: the offset is a gap.

        Raises NoAnswer when neither Kafka nor the archive answers within `seconds`: a later question gets the answer
        that came meanwhile."""
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
        """The archive of this partition, which has all records below `start`, where Kafka begins.

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
        """The clients of that Kafka."""
        return self._log.clients

    @property
    def topics(self) -> "KafkaTopics":
        """The topics."""
        return self._log.topics

    @property
    def metadata(self) -> "KafkaPartition":
        """The metadata log: all of it is in Kafka."""
        return self._log.metadata

    @cached_property
    def queues(self) -> list[TieredTopic]:
        """The queue partitions."""
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
    """Offset, time and value of the first record at `offset` or behind; None if there is none."""
    for block in blocks:
        at = max(0, offset - block.first_offset)
        if at < len(block.records):
            assert block.timestamps_ms is not None, "the log gives times"
            return block.first_offset + at, block.timestamps_ms[at], block.records[at]
    return None
