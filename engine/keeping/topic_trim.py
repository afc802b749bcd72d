"""Trims a history in Kafka: what is older than a moment goes for good, in Kafka and in its archive.

    for report in trim_topics(KafkaLogReader(...), open_objects(url), TrimRequest(before_ms=...)): report.offset

For each partition, by the rules of every trim (engine/keeping/trim_rules.py), while nodes run or not. The owner of a
partition takes the same steps by itself, with --keep-history (keep_topics.py):

    1  floor    the offset at which the archived stretch begins that holds the moment: whole stretches go
    2  audit    what goes, as the archive has it (engine/keeping/trim_audit.py); what Kafka still has of it is the same
    3  base     the state at the floor, and the records of all that is queued there: in the archive, read back, proven
    4  event    HistoryTrimmed in the metadata topic, durable
    5  archive  the metadata topic up to that event
    6  end      Kafka's records below the floor go, then the archive's objects (engine/keeping/archive/topic_trims.py)

- Nothing is removed before step 5. After a kill between 4 and 6, or within 6, the next trim ends it, or the next run of
  an archiver.
- Two trims at once do no harm: a floor only rises, and what goes lies below the last HistoryTrimmed in any case.
- What is not archived stays, and so does the last archived stretch.
- A node has folded what goes long ago. One that was away begins with the base.
"""

import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message

from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.reader import ArchivedPartition
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver, archived_topics, require_all_behind
from rewindmq.engine.keeping.archive.topic_trims import end_topic_trim
from rewindmq.engine.keeping.archive.trims import archive_base, trimmed_entry
from rewindmq.engine.keeping.single_records import queued_records
from rewindmq.engine.keeping.topic_floors import TopicFloors
from rewindmq.engine.keeping.topic_space import require_archived
from rewindmq.engine.keeping.trim_audit import audit
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimReport, TrimRequest, last_floor, oldest_kept_ms, refusal
from rewindmq.engine.log.contract import CorruptLog, LogError, NoAnswer
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.kafka.clients import TIMEOUT_SECONDS, text_of
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.rewind import OutsideHistory
from rewindmq.projections.store.bases import BaseError, Bases, queued_offsets
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import BROKER


def trim_topics(
    log: KafkaLogReader, objects: Objects, wanted: TrimRequest, dry_run: bool = False, wall_ms: int | None = None
) -> list[TrimReport]:
    """Trim the partitions of a history in Kafka, and its archive. `dry_run`: say what would go, and change nothing.

    Raises TrimRefused, OtherHistory, LogError, NoAnswer (nothing was removed, or the text says that it was), and
    NewerHistory."""
    now_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
    try:
        return _trimmed(TopicTrimming(log, objects, lambda: now_ms), wanted, dry_run, now_ms)
    except (BaseError, OutsideHistory, CorruptLog) as error:
        raise TrimRefused(f"{objects.url}: {error}; nothing was removed") from None
    except OSError as error:
        raise LogError(f"{objects.url}: the trim was cut short, run it again: {error}") from None


def _trimmed(trimming: "TopicTrimming", wanted: TrimRequest, dry_run: bool, wall_ms: int) -> list[TrimReport]:
    """One run by hand."""
    names = wanted.partitions(trimming.url, trimming.names)
    if not dry_run:
        trimming.end(trimming.names)
    before_ms = _moment(trimming, wanted, wall_ms)
    reports, events = [], []
    for name in names:
        report = TrimReport(name, trimming.manifest(name).floor, trimming.floor(name, before_ms))
        reports.append(report)
        if report.offset > report.start:
            machine = trimming.audit(report)
            if dry_run:
                continue
            if report.findings and not wanted.accept_findings:
                raise TrimRefused(f"{name}: {refusal(report.findings)}")
            events.append(trimming.write_base(report, machine, wanted.reason))
    if events:
        trimming.append(events)
        gone = trimming.end(trimming.names)
        for report in reports:
            report.archived_bytes = gone[report.partition]
    return reports


def _moment(trimming: "TopicTrimming", wanted: TrimRequest, wall_ms: int) -> int:
    """The time before which history may go. Raises TrimRefused where a clock may have jumped."""

    def is_due(before_ms: int) -> bool:
        return any(trimming.floor(name, before_ms) > trimming.manifest(name).floor for name in trimming.names)

    now_ms = min(wall_ms, trimming.newest_ms())
    return oldest_kept_ms(trimming.url, wanted, now_ms, trimming.archived(), is_due)


class TopicTrimming:
    """The steps of a trim of a history in Kafka, and of its archive.

    `wall_ms`: the wall clock; it goes into the events, where Kafka's own time counts."""

    def __init__(self, log: KafkaLogReader, objects: Objects, wall_ms: Callable[[], int]) -> None:
        """Raises LogError where the archive is that of another history, or there is none; NoAnswer."""
        self.url = objects.url
        self._log = log
        self._objects = objects
        self._wall_ms = wall_ms
        self._manifests: dict[str, Manifest] = {}
        self._topics = {each.name: each for each in log.queues}
        self._begun_with = archived_topics(objects, log, self.manifest(METADATA)).begun_with
        require_all_behind([log.metadata, *(self._topics[name] for name in self.names)], self.manifest)
        self._floors = TopicFloors(log.metadata)
        self._ended: dict[str, tuple[int, int]] = {}  # as in topic_archiver.py: else each end lists all objects

    @property
    def names(self) -> list[str]:
        """The partitions that may be trimmed: those that the archive has, as of the last look."""
        return list(self._topics)[: self.manifest(METADATA).queue_partitions or self._begun_with]

    def look(self) -> None:
        """Read what came into the archive since the last look.

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

    def newest_ms(self) -> int:
        """The newest time of what is archived; 0 if nothing is."""
        return max(self.manifest(name).max_timestamp_ms for name in (METADATA, *self.names))

    def archived(self) -> list[ArchivedPartition]:
        """The archived partitions, to read, the metadata log first."""
        return [self._archived(name) for name in (METADATA, *self.names)]

    def _archived(self, name: str) -> ArchivedPartition:
        return ArchivedPartition(self._objects, name, shared=True)

    def floor(self, name: str, before_ms: int, most_bytes: int | None = None) -> int:
        """The last offset at which an archived stretch begins, up to which all is older than the time.

        `most_bytes`: of stretches that go, but one goes at least."""
        manifest = self.manifest(name)
        segments = [(each.group_offset, each.size_bytes) for each in manifest.segments]
        offset = self._archived(name).offset_at(before_ms - 1)
        return last_floor(segments, manifest.floor, offset, most_bytes)

    def audit(self, report: TrimReport, between: Callable[[], object] = lambda: None) -> Machine:
        """Audit what goes, note what was found, and return the state at the floor. `between`: called again and again.

        Raises CorruptLog for a damaged object, OtherHistory where Kafka has another record, LogError, NoAnswer."""
        topic, manifest = self._topics[report.partition], self.manifest(report.partition)
        goes = [each for each in manifest.segments if each.group_offset < report.offset]
        audited = audit(self._archived(report.partition), None, report.offset, between)
        begins = topic.start_offset
        require_archived(topic, manifest, max(begins, report.start), report.offset, between)
        report.findings = audited.findings
        report.until_ms = max(each.max_timestamp_ms for each in goes)
        report.freed_bytes = sum(each.size_bytes for each in goes if each.next_offset > begins)
        report.archived_bytes = manifest.bytes_below(report.offset)
        report.queued = len(queued_offsets(audited.machine))
        return audited.machine

    def write_base(self, report: TrimReport, machine: Machine, reason: str) -> HistoryTrimmed:
        """Bring the base at the floor into the archive, proven. Returns the event that says what goes.

        Raises BaseError, LogError, OtherHistory, NoAnswer, OSError."""
        name, offset, manifest = report.partition, report.offset, self.manifest(report.partition)
        chain = next(each.chain_before for each in manifest.segments if each.group_offset == offset)
        findings, digest = tuple(report.findings), machine.digest()
        event = HistoryTrimmed(name, offset, report.until_ms, chain, digest, findings, reason)
        with tempfile.TemporaryDirectory() as directory:
            bases = Bases(Path(directory))
            bases.write(machine, chain, queued_records(self._archived(name), queued_offsets(machine)))
            archive_base(manifest, bases, event)
        manifest.require_behind(trimmed_entry(event))
        return event

    def append(self, events: list[HistoryTrimmed]) -> None:
        """Append the events to the metadata topic, durably.

        Raises LogError, NoAnswer."""
        refusals: list[KafkaError] = []

        def refused(error: KafkaError, _: Message) -> None:
            refusals.append(error)

        encoder, topic = encoder_under(schema_of(1)), self._log.metadata.topic  # every node knows it
        producer = self._log.clients.producer({"on_delivery": refused})
        try:
            for event in events:
                value = encoder.encode(encoder.prefix(self._wall_ms(), BROKER), event)
                producer.produce(topic, value, b"", self._log.metadata.number)
            left = producer.flush(TIMEOUT_SECONDS)
        except KafkaException as error:
            raise LogError(f"Kafka: {topic} takes no event: {text_of(error)}; nothing was removed") from error
        if refusals:
            raise LogError(f"Kafka: {topic} takes no event: {text_of(refusals[0])}; nothing was removed")
        if left:
            producer.purge()
            raise NoAnswer(f"Kafka: {topic} has not taken an event within {TIMEOUT_SECONDS:.0f} seconds: run it again")

    def end(self, names: Collection[str]) -> dict[str, int]:
        """End the trims of these partitions that the metadata topic names. Returns the bytes of the objects that went.

        Raises LogError; NoAnswer: they are ended later."""
        gone = dict.fromkeys(names, 0)
        floors = {name: floor for name, floor in self._floors.now().items() if name in gone}
        if not floors:
            return gone
        try:
            metadata = self._refreshed(METADATA)
            if any(each.at >= metadata.end for each in floors.values()):
                archiver = TopicArchiver(self._objects, self._log, partitions=frozenset())
                try:
                    archiver.run(roll=True)
                finally:
                    archiver.close()
                metadata.refresh()
            for name, floor in floors.items():
                manifest, offset = self._refreshed(name), floor.event.offset
                if self._ended.get(name) == (offset, len(manifest.trimmed_keys)):
                    continue
                gone[name] = end_topic_trim(self._topics[name], manifest, metadata, floor)
                if manifest.floor >= offset:
                    self._ended[name] = offset, len(manifest.trimmed_keys)
        except NoAnswer as error:
            later = "the next run of the archiver, or the next trim, ends it"
            raise NoAnswer(f"the trim is in the history, and is not ended: {error}: {later}") from None
        return gone
