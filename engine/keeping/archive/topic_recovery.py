"""Makes topics on a new Kafka from the archive of a log in Kafka, each record at its offset, with its time.

    recover_topics(open_objects(url), KafkaClients(bootstrap), prefix)

    1  make the topics         with the times of the writer (CreateTime): no node starts on such topics
    2  fill them               records with time, key and headers, and fillers for offsets without a record
    3  prove them              all records are read back: the hash chain of each archived stretch
    4  bring back the seals    into a separate topic, if any are archived
    5  let Kafka set times     (LogAppendTime) queues first, the metadata log last: from here on nodes may start

- The same command continues a killed recovery at the end of each topic.
- Existing topics that no recovery made are refused.
- A trimmed partition gets a filler for each offset below its floor, because Kafka does not let anybody choose the first
  offset of a topic. They are sent compressed, and Kafka drops them a few million at a time, before the records arrive,
  so they take time, but no room: decision 0048. The nodes of such a partition need the archive.
- The recovered history ends at each partition's archived end. Nodes that start there repair the differences between
  partitions, as after a crash, and declare the former nodes lost. Dead letters whose death is not archived are treated
  as in recovery.py, after step 3.
- No node can repair a queue's move that is archived in part (partial_moves.py). Then the topics end at an earlier time,
  up to which everything is whole, and are another history from there on. It needs an archive at another URL, because
  the one from which it was recovered refuses it (topic_archiver.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from rewindmq import failpoints
from rewindmq.engine.keeping.archive.branch import partitions_until
from rewindmq.engine.keeping.archive.identity import HistoryIdentity, read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest, SegmentEntry
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects
from rewindmq.engine.keeping.archive.pack import KafkaRecord
from rewindmq.engine.keeping.archive.partial_moves import Torn, torn_letters, whole_ends
from rewindmq.engine.keeping.archive.reader import ArchivedPartition
from rewindmq.engine.keeping.archive.topic_records import records_of
from rewindmq.engine.keeping.archive.topic_seals import recover_topic_seals
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.log.chain import TopicChain, first_chain
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.embedded.directory import METADATA, queue_partition
from rewindmq.engine.log.kafka.clients import TIMEOUT_SECONDS, KafkaClients, text_of
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.engine.log.kafka.topics import MAX_MESSAGE_BYTES, KafkaTopics
from rewindmq.engine.log.shared_contract import FILLER_KEY
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.rewind import format_time
from rewindmq.schemas.events import DeadLettersForwarded
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import BROKER

FILLERS: Final = 5_000_000  # below a floor, after which Kafka drops the ones sent so far
FILLER_BYTES: Final = 30  # of a record take as long as a filler, for the reported progress
FILLER_SECONDS: Final = 2e-6  # of a core, measured
_WAIT_SECONDS = 1.0
# Memory for waiting records; a single one may have 64 MiB.
_PRODUCER: Final = {
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 256 * 1024,
}
_FILLER_PRODUCER: Final = {
    **_PRODUCER,
    "compression.type": "lz4",
    "linger.ms": 20,
    "batch.num.messages": 50_000,
    "batch.size": 4 * 1024 * 1024,
}


@dataclass(slots=True)
class RecoveredTopic:
    """The result of recovering a partition. `until_ms`: the largest time of its records; None if it has none.

    `segments`: the number of archived stretches with records in it."""

    partition: str
    next_offset: int
    until_ms: int | None
    segments: int
    record_bytes: int


def recover_topics(
    objects: Objects,
    clients: KafkaClients,
    prefix: str,
    replication: int | None = None,
    progress: Callable[[int, int], None] = lambda done, all: None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[RecoveredTopic]:
    """Make the topics of `prefix` from an archive. `progress`: called with bytes of records done and all bytes.

    `tell`: receives texts about slow steps, about ends of topics other than the archived ones, and about dead letters
    whose death is not archived. `replication`: of the topics; None: three, or the number of Kafka's brokers if that is
    less. Raises ArchiveError, CorruptObject, NoAnswer; LogError if such topics already exist, or Kafka refuses."""
    metadata = Manifest.load(objects, METADATA)
    identity = read_identity(objects, metadata)
    if identity is None:
        raise ArchiveError(f"{objects.url}: there is no archive")
    if identity.log != "kafka":
        raise ArchiveError(f"{objects.url}: the archive of an embedded log: recover it to a directory, with --data")
    clients.require_answer(TIMEOUT_SECONDS)
    manifests = [
        metadata,
        *(Manifest.load(objects, name) for name in map(queue_partition, range(identity.queue_partitions))),
    ]
    if not metadata.segments:
        raise ArchiveError(f"{objects.url}: nothing of {METADATA} is archived yet")
    partitions = [ArchivedPartition(objects, each.partition, shared=True, manifest=each) for each in manifests]
    ends, torn = _ends(partitions, identity)
    letters = torn_letters(partitions, ends, identity.begun_with, 0 if torn is None else torn.whole_ms)
    manifests = manifests[: len(ends)]
    if torn is not None:
        _require_untrimmed(torn, manifests)
        until = f"the topics end at {format_time(torn.whole_ms)}, up to which everything is whole"
        tell(f"{torn.text}: {until}. Archive them to another URL: {objects.url} continues differently")
    if letters is not None:
        tell(letters.told)
    topics = KafkaTopics(clients, prefix)
    topics.create_for_recovery(len(ends) - 1, replication)
    places = [KafkaPartition(clients, topics.metadata, 0, METADATA)]
    for number in range(len(ends) - 1):
        places.append(KafkaPartition(clients, topics.queues, number, queue_partition(number)))
    floors = sum(manifest.floor for manifest in manifests)
    if floors > FILLERS:
        minutes = floors * FILLER_SECONDS / 60
        tell(f"{floors:,} offsets below floors need a filler each, which takes at least {minutes:.0f} minutes")
    total = sum(_size_bytes(manifest, ends[manifest.partition]) for manifest in manifests) + floors * FILLER_BYTES
    filling = _Filling(clients, total, progress)
    for place, manifest in zip(places, manifests, strict=True):
        filling.fill(place, manifest, ends[place.name])
    filling.end()
    failpoints.reached("recovery.before_proof")
    found = [prove_topic(place, manifest, ends[place.name]) for place, manifest in zip(places, manifests, strict=True)]
    passing_over = {} if letters is None else letters.passing_over
    for place, each in zip(places, found, strict=True):
        filling.pass_over(place, passing_over.get(place.name, ()), each.until_ms or 0)
    filling.end()
    recover_topic_seals(objects, KafkaLogReader.of(clients, prefix), ends)
    failpoints.reached("recovery.before_settings")
    topics.end_recovery()
    return found


def _ends(partitions: Sequence[ArchivedPartition], identity: HistoryIdentity) -> tuple[dict[str, int], Torn | None]:
    """Return the offset after the last recovered record of each partition, and why that is not the archived end.

    Partitions without records that were added after the end of the metadata log are left out."""
    ends, torn = whole_ends(partitions, identity.begun_with)
    count = partitions_until(partitions[0], ends[0], identity.begun_with)
    count = max([count, *(number for number, end in enumerate(ends) if end)])
    return {each.name: end for each, end in zip(partitions[: 1 + count], ends, strict=False)}, torn


def _require_untrimmed(torn: Torn, manifests: Sequence[Manifest]) -> None:
    """Check that no partition was trimmed, because nodes on topics that begin at a floor need its base in this archive.

    Raises ArchiveError."""
    for manifest in manifests:
        if manifest.trims:
            earlier = f"{torn.text}. Only topics that end earlier are whole, and they need another archive"
            base = f"none but this one has the base with which {manifest.partition} begins since it was trimmed"
            again = "Let the former nodes archive the rest, if their Kafka can be brought back"
            raise ArchiveError(f"{manifest.objects.url}: {earlier}: {base}. {again}")


def _size_bytes(manifest: Manifest, end: int) -> int:
    return sum(entry.size_bytes for entry in manifest.segments if entry.base_offset < end)


def _records(manifest: Manifest, entry: SegmentEntry, start: int, end: int) -> Iterator[KafkaRecord]:
    """Yield the records of an archived stretch from `start` up to `end` (exclusive)."""
    segment = Unpacked(manifest.objects, manifest.partition, entry)
    for number in range(segment.find_offset(start), len(segment.archived)):
        for record in segment.records(number):
            if record.offset >= end:
                return
            if record.offset >= start:
                yield record


class _Filling:
    """A writer of the archived records to topics."""

    def __init__(self, clients: KafkaClients, total: int, progress: Callable[[int, int], None]) -> None:
        self._refusals: list[KafkaError] = []
        self._clients = clients
        self._producer = self._made(_PRODUCER)
        self._total, self._progress = total, progress
        self._done = 0

    def fill(self, place: KafkaPartition, manifest: Manifest, end: int) -> None:
        """Append the archived records below `end` that a topic lacks.

        Raises LogError if it has more."""
        begin = place.next_offset
        if begin > end or place.start_offset > manifest.floor:
            raise LogError(
                f"Kafka: {place.topic}-{place.number} has offsets {place.start_offset} to {begin}, and {end}"
                " are archived: delete the topics, or recover to another prefix"
            )
        begin = self._reach_floor(place, manifest, begin)
        offset, last_ms = begin, 0
        for entry in manifest.segments:
            behind = min(entry.next_offset, end)
            if behind <= entry.base_offset:
                break
            if behind > begin:
                for record in _records(manifest, entry, begin, behind):
                    self._fill_gap(place, record.offset - offset, last_ms or record.timestamp_ms)
                    self._append(place, record)
                    offset, last_ms = record.offset + 1, record.timestamp_ms
                self._fill_gap(place, behind - offset, last_ms or entry.max_timestamp_ms)
                offset = behind
            self._done += entry.size_bytes
            self._progress(self._done, self._total)

    def pass_over(self, place: KafkaPartition, events: Iterable[DeadLettersForwarded], time_ms: int) -> None:
        """Append these events at the time of the last record, so that nothing expires by them."""
        encoder = encoder_under(schema_of(1))  # every node knows it
        for event in events:
            value = encoder.encode(encoder.prefix(time_ms, BROKER), event)
            self._append(place, KafkaRecord(-1, time_ms, value, b""))

    def _made(self, settings: Mapping[str, Any]) -> Producer:
        return self._clients.producer({**settings, "on_delivery": self._refused})

    def _reach_floor(self, place: KafkaPartition, manifest: Manifest, begin: int) -> int:
        """Fill a topic up to its floor, let Kafka drop the fillers, and return the topic's end.

        Raises LogError unless it then ends at the floor."""
        floor = manifest.floor
        if begin < floor:
            records, self._producer = self._producer, self._made(_FILLER_PRODUCER)
            until_ms = manifest.trims[-1].until_ms
            for first in range(begin, floor, FILLERS):
                behind = min(first + FILLERS, floor)
                self._fill_gap(place, behind - first, until_ms)
                self.end()
                begin = place.next_offset
                if begin != behind:
                    raise _other(place, f"it ends at offset {begin}, and {behind} was filled up to")
                place.delete_below(begin)
                self._progress(self._done + begin * FILLER_BYTES, self._total)
            self._producer = records
        elif floor:
            place.delete_below(floor)
        self._done += floor * FILLER_BYTES
        return begin

    def _fill_gap(self, place: KafkaPartition, count: int, timestamp_ms: int) -> None:
        for _ in range(count):
            self._append(place, KafkaRecord(-1, timestamp_ms, None, FILLER_KEY))

    def _append(self, place: KafkaPartition, record: KafkaRecord) -> None:
        given: dict[str, Any] = {"headers": list(record.headers)} if record.headers else {}
        while True:
            try:
                self._producer.produce(
                    place.topic, record.value, record.key, place.number, timestamp=record.timestamp_ms, **given
                )
                return
            except BufferError:
                self._producer.poll(_WAIT_SECONDS)
                self._check()
            except KafkaException as error:
                raise LogError(f"Kafka: {place.topic} accepts no record: {text_of(error)}") from error

    def end(self) -> None:
        """Wait until Kafka has all records.

        Raises LogError, NoAnswer."""
        left = len(self._producer)
        while left:
            before, left = left, self._producer.flush(TIMEOUT_SECONDS)
            self._check()
            if left >= before:
                self._producer.purge()
                raise NoAnswer(f"Kafka: {left} records were not accepted within {TIMEOUT_SECONDS:.0f} seconds")

    def _check(self) -> None:
        if self._refusals:
            self._producer.purge()
            raise LogError(f"Kafka: it accepts no record: {text_of(self._refusals[0])}")

    def _refused(self, error: KafkaError, _: Message) -> None:
        """Note an undeliverable record; only these are reported."""
        self._refusals.append(error)


def prove_topic(place: KafkaPartition, manifest: Manifest, end: int) -> RecoveredTopic:
    """Check that a topic has the archived records below `end` at their offsets with their times, and nothing after.

    Whole stretches are proven by their hash chain, one that `end` divides record by record. Raises LogError."""
    found = place.next_offset
    if found != end:
        raise _other(place, f"it ends at offset {found}, and is archived up to {end}")
    told = RecoveredTopic(manifest.partition, end, None, 0, 0)
    records = _told(records_of(place, place.start_offset, end), told)
    record = next(records, None)
    begun = manifest.trims[-1].chain if manifest.trims else first_chain(manifest.partition)
    links = TopicChain(manifest.floor, begun)
    for entry in manifest.segments:
        if entry.base_offset >= end:
            break
        told.segments += 1
        other = f"its records from offset {entry.base_offset} on are not those of the archive"
        if entry.next_offset > end:
            kept = () if record is None else chain((record,), records)
            if any(ours != theirs for ours, theirs in zip_longest(kept, _records(manifest, entry, 0, end))):
                raise _other(place, other)
            break
        while record is not None and record.offset < entry.next_offset:
            links.add(record.offset, record.timestamp_ms, record.value)
            record = next(records, None)
        if links.ends_at(entry.next_offset) != entry.chain:
            raise _other(place, other)
    return told


def _told(records: Iterator[KafkaRecord], told: RecoveredTopic) -> Iterator[KafkaRecord]:
    """Yield the records, and note their largest time and their size."""
    for record in records:
        told.until_ms = max(told.until_ms or 0, record.timestamp_ms)
        told.record_bytes += len(record.value or b"") + len(record.key or b"")
        yield record


def _other(place: KafkaPartition, why: str) -> LogError:
    again = "delete the topics and recover again, or recover to another prefix"
    return LogError(f"Kafka: {place.topic}-{place.number}: {why} (does another program write there?): {again}")
