"""Trims a history in Kafka: what is older than a moment goes for good, in Kafka and in its archive.

    for report in trim_topics(KafkaLogReader(...), open_objects(url), Wanted(before_ms=...)): report.offset

For each partition, by the rules of every trim (engine/log/trim_rules.py), while nodes run or not:

    1  floor    the offset at which the archived stretch begins that holds the moment: whole stretches go
    2  audit    what goes, as the archive has it (engine/log/stretch.py); what Kafka still has of it is the same
    3  base     the state at the floor, and the records of all that is queued there: in the archive, read back, proven
    4  event    HistoryTrimmed in the metadata topic, durable
    5  archive  the metadata topic up to that event
    6  end      Kafka's records below the floor go, then the archive's objects (engine/log/archive/topic_trims.py)

- Nothing is removed before step 5. After a kill between 4 and 6, or within 6, the next trim ends it, or the next run of
  an archiver.
- Two trims at once do no harm: a floor only rises, and what goes lies below the last HistoryTrimmed in any case.
- What is not archived stays, and so does the last archived stretch.
- A node has folded what goes long ago. One that was away begins with the base.
"""

import tempfile
import time
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message

from rewindmq.engine.cluster.topic_space import require_archived
from rewindmq.engine.log.archive.manifest import Manifest, SegmentEntry
from rewindmq.engine.log.archive.objects import Objects
from rewindmq.engine.log.archive.reader import ArchivedPartition
from rewindmq.engine.log.archive.topic_archiver import TopicArchiver
from rewindmq.engine.log.archive.topic_trims import end_topic_trim
from rewindmq.engine.log.archive.trims import archive_base, trimmed_entry
from rewindmq.engine.log.contract import CorruptLog, LogError, NoAnswer
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.kafka.clients import TIMEOUT_SECONDS, text_of
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.engine.log.single_records import queued_records
from rewindmq.engine.log.stretch import audit
from rewindmq.engine.log.topic_floors import TopicFloors
from rewindmq.engine.log.topic_tiers import TopicArchive
from rewindmq.engine.log.trim_rules import TrimRefused, TrimReport, Wanted, last_floor, oldest_kept_ms, refusal
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rewind import OutsideHistory
from rewindmq.projections.store.bases import BaseError, Bases, queued_offsets
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.single_object import FramedEncoder
from rewindmq.schemas.values import BROKER


def trim_topics(
    log: KafkaLogReader, objects: Objects, wanted: Wanted, dry_run: bool = False, wall_ms: int | None = None
) -> list[TrimReport]:
    """Trim the partitions of a history in Kafka, and its archive. `dry_run`: say what would go, and change nothing.

    Raises TrimRefused, OtherHistory, LogError, NoAnswer (nothing was removed, or the text says that it was), and
    NewerHistory."""
    now_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
    try:
        return _TopicTrim(log, objects, now_ms).run(wanted, dry_run)
    except (BaseError, OutsideHistory, CorruptLog) as error:
        raise TrimRefused(f"{objects.url}: {error}; nothing was removed") from None
    except OSError as error:
        raise LogError(f"{objects.url}: the trim was cut short, run it again: {error}") from None


class _TopicTrim:
    """One run."""

    def __init__(self, log: KafkaLogReader, objects: Objects, wall_ms: int) -> None:
        """Raises LogError where the archive is that of another history, NoAnswer."""
        count = TopicArchive(objects.url, log.metadata).open().identity.queue_partitions
        self._log = log
        self._objects = objects
        self._wall_ms = wall_ms
        self._topics = {each.name: each for each in log.queues[:count]}
        self._floors = TopicFloors(log.metadata)

    def run(self, wanted: Wanted, dry_run: bool) -> list[TrimReport]:
        names = wanted.partitions(self._objects.url, list(self._topics))
        if not dry_run:
            self._end()
        manifests = {name: Manifest.load(self._objects, name) for name in self._topics}
        before_ms = self._moment(wanted, manifests)
        reports, events = [], []
        for name in names:
            manifest = manifests[name]
            report = TrimReport(name, manifest.floor, self._floor(manifest, before_ms))
            reports.append(report)
            if report.offset > report.start:
                machine = self._audit(report, manifest)
                if dry_run:
                    continue
                if report.findings and not wanted.accept_findings:
                    raise TrimRefused(f"{name}: {refusal(report.findings)}")
                events.append(self._write_base(report, manifest, machine, wanted.reason))
        if events and not dry_run:
            self._append(events)
            gone = self._end()
            for report in reports:
                report.archived_bytes = gone[report.partition]
        return reports

    def _archived(self, name: str) -> ArchivedPartition:
        return ArchivedPartition(self._objects, name, framed=True)

    def _floor(self, manifest: Manifest, before_ms: int) -> int:
        segments = [(each.base_offset, each.size_bytes) for each in manifest.segments]
        offset = self._archived(manifest.partition).offset_at(before_ms - 1)
        return last_floor(segments, manifest.floor, offset, {base for base, _ in segments})

    def _moment(self, wanted: Wanted, manifests: dict[str, Manifest]) -> int:
        """The time before which history may go. Raises TrimRefused where a clock may have jumped."""
        archived = [Manifest.load(self._objects, METADATA), *manifests.values()]
        now_ms = min(self._wall_ms, max(each.max_timestamp_ms for each in archived))
        readers = [self._archived(each.partition) for each in archived]

        def is_due(before_ms: int) -> bool:
            return any(self._floor(each, before_ms) > each.floor for each in manifests.values())

        return oldest_kept_ms(self._objects.url, wanted, now_ms, readers, is_due)

    def _audit(self, report: TrimReport, manifest: Manifest) -> Machine:
        """Audit what goes, note what was found, and return the state at the floor.

        Raises CorruptLog for a damaged object, OtherHistory where Kafka has another record, LogError, NoAnswer."""
        topic, goes = self._topics[report.partition], _below(manifest, report.offset)
        audited = audit(self._archived(report.partition), None, report.offset)
        begins = topic.start_offset
        require_archived(topic, manifest, max(begins, report.start), report.offset)
        report.findings = audited.findings
        report.until_ms = max(each.max_timestamp_ms for each in goes)
        report.freed_bytes = sum(each.size_bytes for each in goes if each.next_offset > begins)
        report.archived_bytes = manifest.bytes_below(report.offset)
        report.queued = len(queued_offsets(audited.machine))
        return audited.machine

    def _write_base(self, report: TrimReport, manifest: Manifest, machine: Machine, reason: str) -> HistoryTrimmed:
        """Bring the base at the floor into the archive, proven. Returns the event that says what goes.

        Raises BaseError, LogError, OtherHistory, NoAnswer, OSError."""
        name, offset = report.partition, report.offset
        [chain] = [each.chain_before for each in manifest.segments if each.base_offset == offset]
        findings, digest = tuple(report.findings), machine.digest()
        event = HistoryTrimmed(name, offset, report.until_ms, chain, digest, findings, reason)
        with tempfile.TemporaryDirectory() as directory:
            bases = Bases(Path(directory))
            bases.write(machine, chain, queued_records(self._archived(name), queued_offsets(machine)))
            archive_base(manifest, bases, event)
        manifest.require_behind(trimmed_entry(event))
        return event

    def _append(self, events: list[HistoryTrimmed]) -> None:
        """Append the events to the metadata topic, durably.

        Raises LogError, NoAnswer."""
        refusals: list[KafkaError] = []

        def refused(error: KafkaError, _: Message) -> None:
            refusals.append(error)

        encoder, topic = FramedEncoder(), self._log.metadata.topic
        producer = self._log.clients.producer({"on_delivery": refused})
        try:
            for event in events:
                value = encoder.encode(encoder.prefix(self._wall_ms, BROKER), event)
                producer.produce(topic, value, b"", self._log.metadata.number)
            left = producer.flush(TIMEOUT_SECONDS)
        except KafkaException as error:
            raise LogError(f"Kafka: {topic} takes no event: {text_of(error)}; nothing was removed") from error
        if refusals:
            raise LogError(f"Kafka: {topic} takes no event: {text_of(refusals[0])}; nothing was removed")
        if left:
            producer.purge()
            raise NoAnswer(f"Kafka: {topic} has not taken an event within {TIMEOUT_SECONDS:.0f} seconds: run it again")

    def _end(self) -> dict[str, int]:
        """End the trims that the metadata topic names. Returns the bytes of the objects that went, by partition.

        Raises LogError; NoAnswer: they are ended later."""
        floors = self._floors.now()
        if not floors:
            return {}
        try:
            metadata = Manifest.load(self._objects, METADATA)
            if any(each.at >= metadata.end for each in floors.values()):
                archiver = TopicArchiver(self._objects, self._log, partitions=frozenset())
                try:
                    archiver.run(roll=True)
                finally:
                    archiver.close()
                metadata.refresh()
            return {
                name: end_topic_trim(topic, Manifest.load(self._objects, name), metadata, floors.get(name))
                for name, topic in self._topics.items()
            }
        except NoAnswer as error:
            later = "the next run of the archiver, or the next trim, ends it"
            raise NoAnswer(f"the trim is in the history, and is not ended: {error}: {later}") from None


def _below(manifest: Manifest, offset: int) -> list[SegmentEntry]:
    return [each for each in manifest.segments if each.base_offset < offset]
