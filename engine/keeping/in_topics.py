"""A history in Kafka and its archive, as history to keep (port.py).

    topics_keeper(order.topics, data_dir, objects, keep_ms, alive).look()        beside a node
    trim_topics(KafkaLogReader(...), objects, TrimRequest(before_ms=...))

- It may be cut where an archived stretch begins. Unarchived records stay, and so does the last stretch.
- Bases are only in the archive. So the archive also gets the HistoryTrimmed before anything is removed, and topics made
  from it begin at the same floor.
- A node has folded the removed records long ago. One that was away begins with the base.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message

from rewindmq import failpoints
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory, now_ms
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.reader import ArchivedPartition
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver, archived_topics, require_all_behind
from rewindmq.engine.keeping.archive.topic_records import records_of
from rewindmq.engine.keeping.archive.trims import end_trim
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.keeping.keep_history import NOTE, KeepHistory
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.port import CutPoint
from rewindmq.engine.keeping.single_records import queued_records
from rewindmq.engine.keeping.topic_floors import TopicFloors
from rewindmq.engine.keeping.trim import trim
from rewindmq.engine.keeping.trim_audit import Audited, audit
from rewindmq.engine.keeping.trim_rules import TrimReport, TrimRequest
from rewindmq.engine.log.contract import BelowStart, LogError, NoAnswer
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.kafka.clients import TIMEOUT_SECONDS, text_of
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.topology.about_history import Floor
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import BROKER


def trim_topics(
    log: KafkaLogReader, objects: Objects, wanted: TrimRequest, dry_run: bool = False, wall_ms: int | None = None
) -> list[TrimReport]:
    """Trim a history in Kafka, and its archive, whether or not nodes run.

    Raises as `trim`."""
    return trim(TopicsHistory(log, objects, now_ms if wall_ms is None else lambda: wall_ms), wanted, dry_run, wall_ms)


def topics_keeper(
    topics: InKafka,
    data_dir: Path,
    objects: Objects,
    keep_ms: int,
    alive: Callable[[], object],
    monotonic: Callable[[], float] = time.monotonic,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> KeepHistory:
    """Return the keeper that trims the partitions that a node owns; it owns none at first. `data_dir`: the node's."""
    history: TopicsHistory | None = None

    def opened() -> TopicsHistory | None:
        nonlocal history
        if history is None:
            try:
                history = TopicsHistory(topics.connect(), objects, wall_ms)
            except LogError:
                if keeper.owned:
                    raise
                return None  # this node owns nothing, and no other node has begun the archive
        history.look()
        return history

    keeper = KeepHistory(opened, data_dir / NOTE, keep_ms, alive, monotonic, wall_ms)
    keeper.owned = frozenset()
    return keeper


class TopicsHistory:
    """All partitions of a history in Kafka. Implements `KeptHistory`.

    `wall_ms`: the wall clock, for the events, although Kafka's own time counts."""

    shared = True

    def __init__(self, log: KafkaLogReader, objects: Objects, wall_ms: Callable[[], int]) -> None:
        """Raise LogError if the archive is missing or another history's; NoAnswer."""
        self.place = objects.url
        self._log = log
        self._objects = objects
        self._wall_ms = wall_ms
        self._manifests: dict[str, Manifest] = {}
        self._topics = {each.name: each for each in log.queues}
        self._begun_with = archived_topics(objects, log, self.manifest(METADATA)).begun_with
        require_all_behind([log.metadata, *(self._topics[name] for name in self.names)], self.manifest)
        self._floors = TopicFloors(log.metadata)

    @property
    def names(self) -> list[str]:
        """Return the partitions in the archive, as of the last look."""
        return list(self._topics)[: self.manifest(METADATA).queue_partitions or self._begun_with]

    def look(self) -> None:
        """Read the archive's entries since the last look.

        Raises CorruptObject, LogError, NoAnswer."""
        for name in list(self._manifests):
            self._refreshed(name)

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of a partition's archive, as of the last look.

        Raises CorruptObject, LogError, NoAnswer."""
        if name not in self._manifests:
            self._manifests[name] = Manifest.load(self._objects, name)
        return self._manifests[name]

    def _refreshed(self, name: str) -> Manifest:
        known = self._manifests.pop(name, None)  # after an error, all entries are read again
        if known is None:
            return self.manifest(name)
        known.refresh()
        self._manifests[name] = known
        return known

    def partition(self, name: str) -> "KeptTopicPartition":
        return KeptTopicPartition(self._topics[name], self.manifest(name))

    def logs(self) -> Sequence[PartitionLog]:
        return [ArchivedPartition(self._objects, name, shared=True) for name in (METADATA, *self.names)]

    def newest_ms(self) -> int:
        return max(self.manifest(name).max_timestamp_ms for name in (METADATA, *self.names))

    def append(self, events: Sequence[HistoryTrimmed]) -> None:
        refusals: list[KafkaError] = []

        def refused(error: KafkaError, _: Message) -> None:
            refusals.append(error)

        encoder, topic = encoder_under(schema_of(1)), self._log.metadata.topic  # known to every node
        producer = self._log.clients.producer({"on_delivery": refused})
        try:
            for event in events:
                value = encoder.encode(encoder.prefix(self._wall_ms(), BROKER), event)
                producer.produce(topic, value, b"", self._log.metadata.number)
            left = producer.flush(TIMEOUT_SECONDS)
        except KafkaException as error:
            raise LogError(f"Kafka: {topic} accepts no event: {text_of(error)}; nothing was removed") from error
        if refusals:
            raise LogError(f"Kafka: {topic} accepts no event: {text_of(refusals[0])}; nothing was removed")
        if left:
            producer.purge()
            raise NoAnswer(f"Kafka: {topic} has accepted no event within {TIMEOUT_SECONDS:.0f} seconds: run it again")
        failpoints.reached("trim.after_event")

    def floors(self) -> Mapping[str, Floor]:
        floors = self._floors.now()
        if floors:
            metadata = self._refreshed(METADATA)
            if any(each.at >= metadata.end for each in floors.values()):
                archiver = TopicArchiver(self._objects, self._log, partitions=frozenset())
                try:
                    archiver.run(roll=True)
                finally:
                    archiver.close()
                metadata.refresh()
            floors = {name: each for name, each in floors.items() if each.at < metadata.end}
            for name in floors:
                self._refreshed(name)
        return floors


class KeptTopicPartition:
    """A queue partition in Kafka. Implements `KeptPartition`."""

    def __init__(self, topic: KafkaPartition, manifest: Manifest) -> None:
        self.name = topic.name
        self.manifest = manifest
        self._topic = topic

    @property
    def log(self) -> ArchivedPartition:
        return ArchivedPartition(self.manifest.objects, self.name, shared=True)

    @property
    def start_offset(self) -> int:
        return self.manifest.floor

    @property
    def base_bytes(self) -> int:
        return next((each.object.size_bytes for each in self.manifest.bases if each.offset == self.manifest.floor), 0)

    def cuts(self) -> list[CutPoint]:
        begins = self._topic.start_offset
        return [
            CutPoint(
                each.group_offset,
                each.size_bytes,
                each.size_bytes if each.next_offset > begins else 0,
                each.max_timestamp_ms,
            )
            for each in self.manifest.segments
        ]

    def chain_at(self, offset: int) -> bytes:
        return next(each.chain_before for each in self.manifest.segments if each.group_offset == offset)

    def audited(self, end: int, between: Callable[[], object]) -> Audited:
        audited = audit(self.log, None, end, between)
        start = max(self._topic.start_offset, self.start_offset)
        require_archived(self._topic, self.manifest, start, end, between)
        return audited

    def queued(self, offsets: Sequence[int], end: int) -> Iterator[tuple[int, bytes]]:
        return queued_records(self.log, offsets)

    @contextmanager
    def bases(self) -> Iterator[Bases]:
        with tempfile.TemporaryDirectory() as directory:
            yield Bases(Path(directory))

    def end_trim(self, event: HistoryTrimmed) -> int:
        return end_trim(self.manifest, event, None, self._topic.delete_below)


def require_archived(
    topic: KafkaPartition,
    manifest: Manifest,
    start: int,
    offset: int,
    between: Callable[[], object] = lambda: None,
) -> None:
    """Check that the archive's records of a partition from `start` up to `offset` equal Kafka's.

    `between`: called before each archived stretch. A record that leaves Kafka in the meantime is not compared. Raises
    OtherHistory for one that differs, CorruptObject, NoAnswer, LogError."""
    while True:
        try:
            return _compare(topic, manifest, start, offset, between)
        except BelowStart:
            begins = topic.start_offset
            if begins <= start:
                raise
            start = begins


def _compare(topic: KafkaPartition, manifest: Manifest, start: int, offset: int, between: Callable[[], object]) -> None:
    """Do `require_archived` once. Also raises BelowStart."""
    for entry in manifest.segments:
        if entry.next_offset <= start or entry.base_offset >= offset:
            continue
        between()
        segment = Unpacked(manifest.objects, manifest.partition, entry)
        segment.prove()
        numbers = range(segment.find_offset(start), len(segment.archived))
        archived = (each for number in numbers for each in segment.records(number) if each.offset >= start)
        kept = records_of(topic, max(start, entry.base_offset), entry.next_offset)
        for ours, theirs in zip_longest(kept, archived):
            if ours != theirs:
                at = min(each.offset for each in (ours, theirs) if each is not None)
                why = f"its record at offset {at} differs from the archived one"
                raise OtherHistory(f"Kafka: {topic.name}: {why}: nothing is removed")
