"""Archives a log in Kafka: copies new records of its topics into the archive, even while nodes run.

    archiver = TopicArchiver(open_objects(url, make=True), KafkaLogReader(bootstrap, prefix))
    report = archiver.run(roll=True)

Each record is archived with its offset, Kafka's time, key and headers. A partition is archived in stretches:

    1  read        the records after the end of the manifest, below the high watermark of two seconds ago
    2  pack        a stretch ends when it is large (pack.py) or old enough, or with `roll`
    3  create      both objects; they are read back and proven
    4  extend      one entry in the manifest: from here on the stretch counts as archived

- An archiver that runs repeatedly keeps the incomplete stretch, and reads each record once.
- Two archivers of one history do the same work, but cut it at different places. The first one adds its stretch, and the
  other one continues after it.
- The metadata log is archived before a stretch of queues, up to a later end. So a recovered history knows all nodes
  whose events are in its queues, and no node gets the number of a former one.
- The archive identifies its history by the first record of the metadata log, not by the ids of topics, so that it can
  be continued by topics that were made from it (topic_recovery.py).
- Seals in Kafka are archived once all their records are (topic_seals.py).
- An interrupted trim is completed (trims.py).
- After a repartition the archive grows once a new partition has a record. A program that was started earlier does not
  know the new partitions, and archives the others.
- Topics whose records differ from the archive are refused. The first run of each program compares all partitions, even
  those that it does not archive, because topics made from a part of the archive could otherwise continue the others.
- A queue partition that lost records is not archived any further; the others are.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from rewindmq.engine.keeping.archive.archiver import ArchiveReport, PartitionReport, add_segment, archive_snapshot
from rewindmq.engine.keeping.archive.branch import partitions_until
from rewindmq.engine.keeping.archive.identity import IDENTITY, HistoryIdentity, read_identity, require_identity
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory, now_ms
from rewindmq.engine.keeping.archive.objects import ArchiveError, Objects
from rewindmq.engine.keeping.archive.pack import KafkaRecord, Packed, Packer
from rewindmq.engine.keeping.archive.topic_records import history_in, record_of, records_of
from rewindmq.engine.keeping.archive.topic_seals import TopicSeals
from rewindmq.engine.keeping.archive.trims import end_trim
from rewindmq.engine.keeping.archive.unpack import Unpacked
from rewindmq.engine.keeping.topic_floors import TopicFloors
from rewindmq.engine.log.chain import group_start
from rewindmq.engine.log.contract import BelowStart, LogError
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.projections.replay import events_of
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.placement_events import PartitionsAdded

SETTLE_SECONDS: Final = 2.0
SEGMENT_AGE_MS: Final = 3_600_000


class LostRecords(LogError):
    """Kafka has removed unarchived records."""


class TopicArchiver:
    """An archiver of the history in one prefix of topics.

    `partitions`: names of the queue partitions to archive; None: all. The metadata log is always included. `snapshots`:
    a node's directory of snapshots to archive. `age_ms`: a small stretch is archived when its first record is this old.
    `settle_seconds`: younger records wait for the next run."""

    def __init__(
        self,
        objects: Objects,
        log: KafkaLogReader,
        partitions: Collection[str] | None = None,
        snapshots: Path | None = None,
        age_ms: int = SEGMENT_AGE_MS,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self.objects = objects
        self._log = log
        self.partitions = partitions
        self._snapshots = None if snapshots is None else Snapshots(snapshots)
        self._age_ms = age_ms
        self._settle_seconds = settle_seconds
        self._seals = TopicSeals(log)
        self.manifests: dict[str, Manifest] = {}  # by partition, once a run has read them
        self._floors = TopicFloors(log.metadata)
        self._added = AddedPartitions(log)
        self._is_compared = False  # all partitions with their archive
        self._behind: dict[str, int] = {}  # the checked end of each manifest, after which Kafka continues
        self._gathering: dict[str, Packer] = {}  # incomplete stretches, by partition

    def run(
        self,
        roll: bool = False,
        until: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] = lambda done, all: None,
    ) -> ArchiveReport:
        """Archive new records. `roll`: also the last stretches, although they are neither large nor old.

        `until`: called before each stretch, True to stop. `progress`: called with the records done and all of them.
        Raises OtherHistory, CorruptObject, LostRecords once all other work is done, LogError if Kafka cannot be read,
        NoAnswer."""
        metadata = self._refreshed(METADATA)
        topics = self._log.queues[: require_topics(self.objects, self._log, metadata, self._added)]
        queues = [each for each in topics if self.partitions is None or each.name in self.partitions]
        ends = self._settled([*queues, self._log.metadata])
        for name in self._gathering.keys() - ends.keys():  # another archiver's now
            self._gathering.pop(name).close()
        for name in self.manifests.keys() - ends.keys():
            del self.manifests[name]
        self._take(self._log.metadata, metadata)
        lost: dict[str, LostRecords] = {}
        for each in queues:
            try:
                self._take(each, self._refreshed(each.name))
            except LostRecords as error:
                lost[each.name] = error
        self._compare([each for each in topics if each not in queues])
        queues = [each for each in queues if each.name not in lost]
        report = _Run(self, ends, roll, until, progress).archived(self._log.metadata, queues)
        if not report.stopped:
            self._seals.archive(self.manifests)
            self._end_trims(queues)
        for found in lost.values():
            raise found
        return report

    def _end_trims(self, queues: list[KafkaPartition]) -> None:
        """Complete the interrupted trims that the metadata topic names (trims.py).

        Raises LogError, CorruptObject, NoAnswer."""
        floors = self._floors.now() if queues else {}
        for each in queues:
            floor = floors.get(each.name)
            if floor is not None and self.manifests[METADATA].end > floor.at:  # topics made from the archive know it
                end_trim(self.manifests[each.name], floor.event, None, each.delete_below)

    def _refreshed(self, name: str) -> Manifest:
        """Return the current manifest of a partition. Later runs read only the new entries.

        Raises ArchiveError, NoAnswer."""
        known = self.manifests.pop(name, None)  # after an error, the next run reads all entries again
        if known is None:
            return Manifest.load(self.objects, name)
        known.refresh()
        return known

    def _take(self, partition: KafkaPartition, manifest: Manifest) -> None:
        """Include a partition in this run.

        Raises OtherHistory, LogError, CorruptObject, NoAnswer."""
        try:
            self.require_behind(partition, manifest)
        except LostRecords:
            self.manifests[partition.name] = manifest  # unchanged since it was read
            raise
        manifest.make_pages()  # left out by a run that was stopped
        self.manifests[partition.name] = manifest

    def _compare(self, others: Iterable[KafkaPartition]) -> None:
        """Check once, for the partitions that others archive, that the topic continues where the archive ends.

        Raises OtherHistory, LogError, CorruptObject, NoAnswer."""
        if self._is_compared:
            return
        require_all_behind(others, partial(Manifest.load, self.objects))
        self._is_compared = True

    def require_behind(self, partition: KafkaPartition, manifest: Manifest) -> None:
        """Check that the topic goes on where the archive ends.

        Raises OtherHistory, LogError, CorruptObject, NoAnswer."""
        start = require_reach(partition, manifest)
        if self._behind.get(partition.name) != manifest.end:
            require_same(partition, manifest, start)
            self._behind[partition.name] = manifest.end

    def note_end(self, manifest: Manifest) -> None:
        """Note that this archiver has read the records before the end of the manifest in Kafka."""
        self._behind[manifest.partition] = manifest.end

    def _settled(self, partitions: list[KafkaPartition]) -> dict[str, int]:
        """Return the end of each partition a moment ago, below which all records still exist.

        The partitions are queried in order, so the end of the metadata log, the last one, is not before any other."""
        ends = {each.name: each.next_offset for each in partitions}
        time.sleep(self._settle_seconds)
        for each in partitions:
            if each.next_offset < ends[each.name]:
                raise LogError(f"Kafka: {each.name} ended at offset {ends[each.name]}, but has lost its end")
        return ends

    def gathered(self, manifest: Manifest) -> Packer:
        """Return the stretch after the end of the manifest: the one that an earlier run began, or a new one."""
        packer = self._gathering.pop(manifest.partition, None)
        if packer is not None and (packer.base_offset, packer.chain_before) == (manifest.end, manifest.linked[1]):
            return packer
        if packer is not None:
            packer.close()
        return packer_behind(manifest)

    def keep(self, packer: Packer) -> None:
        """Keep an incomplete stretch for the next run."""
        self._gathering[packer.partition] = packer

    def waiting(self, partition: str) -> tuple[int | None, int]:
        """Return the time of the first record that is read but not archived, and the size of all such in bytes."""
        packer = self._gathering.get(partition)
        return (None, 0) if packer is None else (packer.first_ms, packer.size_bytes)

    def is_due(self, packer: Packer) -> bool:
        """Return True if a stretch is old enough to be archived."""
        return packer.first_ms is not None and now_ms() - packer.first_ms >= self._age_ms

    def archive_snapshots(self, manifest: Manifest, report: PartitionReport) -> None:
        """Archive the node's snapshots of a partition."""
        if self._snapshots is None:
            return
        for offset in self._snapshots.offsets(manifest.partition):
            archive_snapshot(manifest, self._snapshots, offset, report)

    def close(self) -> None:
        """Drop the gathered stretches."""
        while self._gathering:
            self._gathering.popitem()[1].close()


class _Run:
    """One run of an archiver."""

    def __init__(
        self,
        archiver: TopicArchiver,
        ends: dict[str, int],
        roll: bool,
        until: Callable[[], bool],
        progress: Callable[[int, int], None],
    ) -> None:
        self._archiver = archiver
        self._ends = ends
        self._roll = roll
        self._until, self._progress = until, progress
        self._reports: dict[str, PartitionReport] = {}
        self._manifests = archiver.manifests
        self._metadata: KafkaPartition | None = None  # until it is archived up to its end
        self._stopped = False
        self._done = self._all = 0

    def archived(self, metadata: KafkaPartition, queues: list[KafkaPartition]) -> ArchiveReport:
        """Archive all partitions."""
        self._metadata = metadata
        for partition in (metadata, *queues):
            self._reports[partition.name] = PartitionReport(partition.name)
            self._all += max(0, self._ends[partition.name] - self._manifests[partition.name].end)
        for partition in queues:
            self._archive(partition, self._roll)
        if self._metadata is not None:
            self._archive(metadata, self._roll)
        for name, report in self._reports.items():
            if not self._stopped:
                self._archiver.archive_snapshots(self._manifests[name], report)
            report.archived_end = self._manifests[name].end
        return ArchiveReport(list(self._reports.values()), self._stopped)

    def _archive(self, partition: KafkaPartition, roll: bool) -> None:
        """Archive a partition, up to its end."""
        manifest, end = self._manifests[partition.name], self._ends[partition.name]
        while not self._stopped and manifest.end < end:
            packer = self._archiver.gathered(manifest)
            before = max(packer.next_offset, manifest.end)
            large = _gather(packer, partition, end)
            self._done += packer.next_offset - before
            self._progress(min(self._done, self._all), self._all)
            if large is None and not (packer.first_ms is not None and (roll or self._archiver.is_due(packer))):
                self._archiver.keep(packer)
                return
            if self._until():
                self._stopped = True
                self._archiver.keep(packer)
                return
            if manifest.partition != METADATA:
                self._archive_metadata()
            with packer.finish(end if large is None else large, now_ms()) as packed:
                self._add(partition, manifest, packed)

    def _archive_metadata(self) -> None:
        """Archive the metadata log up to its end, before the first stretch of queues."""
        metadata, self._metadata = self._metadata, None
        if metadata is not None:
            self._archive(metadata, roll=True)

    def _add(self, partition: KafkaPartition, manifest: Manifest, packed: Packed) -> None:
        """Add a stretch, unless another archiver has just added one that begins there."""
        try:
            add_segment(manifest, packed, self._reports[manifest.partition])
        except OtherHistory:
            if manifest.end <= packed.entry.base_offset:
                raise
            manifest.refresh()
            self._archiver.require_behind(partition, manifest)
        else:
            self._archiver.note_end(manifest)


def packer_behind(manifest: Manifest) -> Packer:
    """Return a packer for the stretch that continues the archive.

    Raises CorruptObject, NoAnswer."""
    packer = Packer(manifest.partition, manifest.end, *manifest.linked, manifest.max_timestamp_ms)
    for record in _repeated(manifest):
        packer.add(record)
    return packer


def _repeated(manifest: Manifest) -> Iterator[KafkaRecord]:
    """Yield the archived records of the group in which the archive ends. The next stretch repeats them."""
    begin, _ = manifest.linked
    for entry in manifest.segments if begin < manifest.end else ():
        if entry.next_offset > begin:
            segment = Unpacked(manifest.objects, manifest.partition, entry)
            for number in range(segment.find_offset(begin), len(segment.archived)):
                yield from (record for record in segment.records(number) if record.offset >= begin)


def _gather(packer: Packer, partition: KafkaPartition, end: int) -> int | None:
    """Gather the records up to `end`. Return the offset at which the stretch should end; None: `end`."""
    for batch in partition.batches(max(packer.next_offset, packer.base_offset), end):
        for message in batch:
            record = record_of(message)
            if packer.ends_before(record):
                return group_start(record.offset)
            packer.add(record)
    return None


def first_waiting_ms(partition: KafkaPartition, archived_end: int) -> int | None:
    """Return the time of the first unarchived record; None if there is none.

    Raises LogError, NoAnswer."""
    first = next(records_of(partition, archived_end, partition.next_offset), None)
    return None if first is None else first.timestamp_ms


def topic_identity(log: KafkaLogReader) -> HistoryIdentity:
    """Return the identity of the history in the topics.

    Raises as `history_in`."""
    return HistoryIdentity(history_in(log.metadata), len(log.queues), "kafka")


def archived_topics(objects: Objects, log: KafkaLogReader, metadata: Manifest | None = None) -> HistoryIdentity:
    """Return the current identity of the archive of these topics' history. `metadata`: as for `read_identity`.

    Raises OtherHistory, LogError if there is no archive, NoAnswer."""
    found, here = read_identity(objects, metadata), topic_identity(log)
    if found is None:
        raise ArchiveError(f"{objects.place(IDENTITY)}: there is no archive here: make one with `rewindmq archive`")
    if (found.history, found.log) != (here.history, here.log):
        raise OtherHistory(f"{objects.url}: not the archive of the history in {log.topics.metadata}")
    return found


class AddedPartitions:
    """The queue partitions that a repartition has added to the topics. Each question reads only new records of the
    metadata topic."""

    def __init__(self, log: KafkaLogReader) -> None:
        self._log = log
        self._end = 0
        self._count = 0

    def now(self, archived: int) -> int:
        """Return the number of the history's queue partitions, if the archive has `archived` of them.

        Added partitions count once one of them has a record, because until then no node works with them. Partitions
        that somebody else added to the topic do not count.

        Raises LogError, NoAnswer."""
        if not any(each.next_offset for each in self._log.queues[archived:]):
            return archived
        metadata = self._log.metadata
        end = metadata.next_offset
        for _, _, _, event in events_of(metadata, self._end) if self._end < end else ():
            if isinstance(event, PartitionsAdded):
                self._count = max(self._count, event.partitions)
        self._end = end
        return max(archived, min(self._count, len(self._log.queues)))


def require_topics(objects: Objects, log: KafkaLogReader, metadata: Manifest, added: AddedPartitions) -> int:
    """Begin the archive of the history in these topics, or check that this history is archived here.

    After a repartition it grows once a new partition has a record. `metadata`: the current manifest of the metadata
    log. Returns the archive's number of queue partitions; a program started earlier may know fewer. Raises
    OtherHistory, LogError, NoAnswer."""
    identity = topic_identity(log)
    found = read_identity(objects, metadata)
    if found is not None:
        identity = replace(identity, queue_partitions=added.now(found.queue_partitions))
    made_with = partial(partitions_until, log.metadata, 0, identity.queue_partitions)
    require_identity(objects, identity, metadata, made_with)
    return identity.queue_partitions


def require_all_behind(partitions: Iterable[KafkaPartition], manifest_of: Callable[[str], Manifest]) -> None:
    """Check that these partitions continue where the archive ends, apart from lost records.

    Raises OtherHistory, LogError, CorruptObject, NoAnswer."""
    for partition in partitions:
        manifest = manifest_of(partition.name)
        with suppress(LostRecords):
            require_same(partition, manifest, require_reach(partition, manifest))


def require_reach(partition: KafkaPartition, manifest: Manifest) -> int:
    """Check that no record between the end of the archive and that of the topic is gone.

    Returns the topic's first offset. Raises LostRecords, OtherHistory, LogError, NoAnswer."""
    start, end = partition.start_offset, partition.next_offset
    if start > manifest.end:
        why = f"begins at offset {start}, but is archived only up to {manifest.end}: {start - manifest.end} offsets"
        raise LostRecords(f"Kafka: {partition.name} {why} are lost")
    if end < manifest.end:
        why = f"ends at offset {end}, and is archived up to {manifest.end}: archive to another URL"
        raise OtherHistory(f"Kafka: {partition.name} {why}")
    return start


def require_same(partition: KafkaPartition, manifest: Manifest, start: int) -> None:
    """Check that the last archived record is the one in the topic, which begins at `start`.

    Raises OtherHistory, LogError, CorruptObject, NoAnswer."""
    archived = _last_record(manifest)
    if archived is None or archived.offset < start:
        return
    try:
        found = next(records_of(partition, archived.offset, archived.offset + 1), None)
    except BelowStart:
        if partition.start_offset <= archived.offset:
            raise
        return  # it was removed in the meantime
    if found is None or (found.timestamp_ms, found.value) != (archived.timestamp_ms, archived.value):
        why = f"its record at offset {archived.offset} differs from the archived one: archive to another URL"
        raise OtherHistory(f"Kafka: {partition.name}: {why}")


def _last_record(manifest: Manifest) -> KafkaRecord | None:
    """Return the last archived record; None if there is none."""
    if not manifest.segments:
        return None
    segment = Unpacked(manifest.objects, manifest.partition, manifest.segments[-1])
    *_, last = segment.records(len(segment.archived) - 1)
    return last
