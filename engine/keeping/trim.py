"""Trims a history: what is older than a moment goes for good, and the history begins at a floor, with a base.

    for report in trim(data_dir, TrimRequest(before_ms=...)): report.partition, report.offset, report.findings

For each partition, while no broker runs (the lock is taken; beside a broker keep_history.py takes the same steps):

    1  floor    the base offset of the segment that holds the moment: whole segments go
    2  audit    the stretch from the last floor on (engine/keeping/trim_audit.py)
    3  base     the state at the floor, and the records of all that is queued there: written, read back, proven; in the
                archive, too
    4  event    HistoryTrimmed in the metadata log, durable: floor, chain, digest, findings, reason
    5  cut      the segments below the floor, the oldest first; then snapshots and bases below it
    6  archive  what it has below the floor (engine/keeping/archive/trims.py)

- Nothing is removed before step 4 is durable. After a kill between 4 and 5, or within 5, the next start of a broker or
  the next trim ends it; step 6 is ended by the next trim or the next run of an archiver. A base without its event is a
  file that does no harm.
- The archive has to answer: if it is away, the trim is refused before step 4.
- The local log may begin above the floor (`start --keep-local`): then what goes is read from the archive, and step 5
  finds no segment.
- Findings are refused, unless they are accepted: then the metadata log has them, with the floor.
- `keep_ms` counts back from the newest time in the log, or from the wall clock if that is earlier. If no record lies
  within the kept time but in its last day, a clock may have jumped: that is refused.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rewindmq.engine.keeping.archive.directory_note import archive_of, note_archive
from rewindmq.engine.keeping.archive.identity import identity_of, read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory
from rewindmq.engine.keeping.archive.objects import BadUrl, Objects, open_objects
from rewindmq.engine.keeping.archive.trims import archive_base, trim_archive, trimmed_entry
from rewindmq.engine.keeping.single_records import queued_records
from rewindmq.engine.keeping.tiers import TieredPartition
from rewindmq.engine.keeping.trim_audit import audit
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimReport, TrimRequest, last_floor, oldest_kept_ms, refusal
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.embedded.cut import cut, end_trims, prove_base
from rewindmq.engine.log.embedded.directory import (
    METADATA,
    partition_directory,
    queue_partition,
    read_layout,
)
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files, segment_path, stated_chain
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rewind import OutsideHistory
from rewindmq.projections.store.bases import BaseError, Bases, queued_offsets
from rewindmq.projections.store.metadata_snapshots import newest
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import BROKER


def trim(
    data_dir: Path, wanted: TrimRequest, dry_run: bool = False, wall_ms: int | None = None, url: str | None = None
) -> list[TrimReport]:
    """Trim the partitions of a data directory, and its archive. `dry_run`: say what would go, and change nothing.

    `url`: of the archive, where the directory does not name it. Raises TrimRefused, OtherHistory, NoAnswer (the archive
    is away), LogInUse (a broker runs), LogError, CorruptLog, NewerHistory."""
    read_layout(data_dir)  # there must be a log: none is made here
    objects = archive_for(data_dir, url)
    now_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
    log = EmbeddedLog.open(data_dir, None)
    try:
        return _Trim(data_dir, log, objects, now_ms).run(wanted, dry_run)
    except (BaseError, OutsideHistory) as error:
        raise TrimRefused(f"{data_dir}: {error}; nothing was removed") from None
    except OSError as error:
        raise LogError(f"{data_dir}: the trim was cut short, run it again: {error}") from None
    finally:
        log.close()


def archive_for(data_dir: Path, url: str | None = None) -> Objects | None:
    """The archive of a data directory: the one at `url`, or the one that the directory names; None if it has none.

    Raises TrimRefused where the directory names another archive, BadUrl, OtherHistory, NoAnswer, LogError."""
    named = archive_of(data_dir)
    if url is None and named is None:
        return None
    try:
        objects = open_objects(str(url or named))
    except BadUrl as error:
        if url is not None:
            raise
        raise NoAnswer(f"the archive of {data_dir}: {error}; nothing was removed") from None
    if named is not None and objects.url != named:
        raise TrimRefused(f"{data_dir}: its archive is {named}, and not {objects.url}; nothing was removed")
    archived = read_identity(objects)
    if archived is None or not archived.is_of(identity_of(data_dir)):
        raise OtherHistory(f"{objects.url}: not the archive of the history in {data_dir}; nothing was removed")
    return objects


class _Trim:
    """One run, on an open log."""

    def __init__(self, data_dir: Path, log: EmbeddedLog, objects: Objects | None, wall_ms: int) -> None:
        self._data_dir = data_dir
        self._log = log
        self._wall_ms = wall_ms
        self._metadata_reader = PartitionReader(partition_directory(data_dir, METADATA))
        self._trimming = Trimming(data_dir, len(log.queues), objects)

    def run(self, wanted: TrimRequest, dry_run: bool) -> list[TrimReport]:
        trimming = self._trimming
        metadata = newest(trimming.snapshots, self._log.metadata)
        fold_on(metadata, self._log.metadata, strict=True)
        if not dry_run:
            trimming.note_archive()
            end_trims(self._data_dir, self._log.queues, metadata.topology)
            trimming.end_in_archive()
        names = wanted.partitions(self._data_dir, list(trimming.readers))
        before_ms = self._moment(wanted)
        reports = []
        events = []
        for name in names:
            report = TrimReport(name, trimming.log(name).start_offset, trimming.floor(name, before_ms))
            reports.append(report)
            if report.offset > report.start:
                audited = trimming.audit(report)
                if dry_run:
                    continue
                if report.findings and not wanted.accept_findings:
                    raise TrimRefused(f"{report.partition}: {refusal(report.findings)}")
                trimming.remove_leftovers(name)
                events.append(trimming.write_base(report, audited, wanted.reason))
        if dry_run:
            return reports
        if events:
            self._append(metadata, events)
        for report in reports:
            if report.offset > report.start:
                trimming.remove(report)
        return reports

    def _moment(self, wanted: TrimRequest) -> int:
        """The time before which history may go.

        Raises TrimRefused where `keep_ms` may be the work of a clock that jumped."""
        trimming = self._trimming
        readers = [self._metadata_reader, *trimming.readers.values()]
        now_ms = min(self._wall_ms, max(reader.segments()[-1].max_timestamp_ms for reader in readers))

        def is_due(before_ms: int) -> bool:
            return any(trimming.floor(name, before_ms) > each.start_offset for name, each in trimming.readers.items())

        return oldest_kept_ms(self._data_dir, wanted, now_ms, readers, is_due)

    def _append(self, metadata: MetadataFold, events: list[HistoryTrimmed]) -> None:
        """Log the events, durably."""
        encoder = encoder_under(self._log.metadata.schema)
        now_ms = max(self._wall_ms, metadata.clock_ms)
        for event in events:
            self._log.metadata.append(now_ms, encoder.encode(encoder.prefix(now_ms, BROKER), event))
        self._log.commit_and_wait()


class Trimming:
    """The steps of a trim in a data directory with so many queue partitions, and in its archive, if it has one.

    Between `write_base` and `remove` the caller has the event appended to the metadata log, durably."""

    def __init__(self, data_dir: Path, partitions: int, objects: Objects | None = None) -> None:
        self.snapshots = Snapshots(data_dir / "snapshots")
        self.readers = {  # of what is local
            name: PartitionReader(partition_directory(data_dir, name))
            for name in map(queue_partition, range(partitions))
        }
        self._data_dir = data_dir
        self._bases = Bases(data_dir / "bases")
        self._objects = objects
        self._tiers = {name: TieredPartition(reader) for name, reader in self.readers.items()}
        self._manifests: dict[str, Manifest] = {}

    def log(self, name: str) -> PartitionReader | TieredPartition:
        """The partition from its floor on, also where that is in the archive alone."""
        return self.readers[name] if self._objects is None else self._tiers[name]

    def manifest(self, name: str) -> Manifest | None:
        """Return the manifest of a partition as the archive has it now; None if there is no archive.

        Raises ArchiveError, NoAnswer."""
        if self._objects is None:
            return None
        if name not in self._manifests:
            self._manifests[name] = Manifest(self._objects, name)
        self._manifests[name].refresh()
        return self._manifests[name]

    def floor(self, name: str, before_ms: int) -> int:
        """The last offset at which a segment begins, up to which all is older than the time."""
        reader = self.readers[name]
        return self.floor_among(name, segment_files(reader.directory), before_ms)

    def floor_among(self, name: str, files: Sequence[Path], before_ms: int, most_bytes: int | None = None) -> int:
        """As `floor`, where one of these segments or of those in the archive alone begins; else the start.

        `most_bytes`: of segments that go, but one goes at least."""
        log, begins, manifest = self.log(name), self.readers[name].start_offset, self.manifest(name)
        offset, start = log.offset_at(before_ms - 1), log.start_offset
        archived = [] if manifest is None else manifest.segments
        segments = [(each.base_offset, each.size_bytes) for each in archived if start <= each.base_offset < begins]
        segments += [(base_offset_of(path), path.stat().st_size) for path in files]
        return last_floor(segments, start, offset, most_bytes)

    def audit(self, report: TrimReport, between: Callable[[], object] = lambda: None) -> Machine:
        """Audit the stretch, note in the report what was found, and return the state at the floor.

        `between` is called again and again meanwhile. Raises CorruptLog, LogError, NewerHistory, NoAnswer."""
        reader, manifest = self.readers[report.partition], self.manifest(report.partition)
        audited = audit(self.log(report.partition), self.snapshots, report.offset, between)
        report.findings = audited.findings
        gone = [each for each in reader.segments() if each.base_offset < report.offset]
        archived = [] if manifest is None else [each for each in manifest.segments if each.base_offset < report.offset]
        report.until_ms = max([each.max_timestamp_ms for each in gone] + [each.max_timestamp_ms for each in archived])
        report.freed_bytes = sum(each.size for each in gone)
        report.archived_bytes = 0 if manifest is None else manifest.bytes_below(report.offset)
        report.queued = len(queued_offsets(audited.machine))
        return audited.machine

    def write_base(self, report: TrimReport, machine: Machine, reason: str) -> HistoryTrimmed:
        """Write the base at the floor, and prove it; the archive has it, too. Returns the event that says what goes.

        Raises BaseError, LogError, OSError; OtherHistory where the archive has another history; NoAnswer."""
        name, offset = report.partition, report.offset
        reader, manifest, queued = self.readers[name], self.manifest(name), queued_offsets(machine)
        if offset >= reader.start_offset:
            chain = stated_chain(segment_path(reader.directory, offset))
            self._bases.write(machine, chain, queued_records(reader, queued))
            prove_base(reader.directory, offset)
        else:
            assert manifest is not None, "what is not here is in the archive"
            chain = next(each.chain_before for each in manifest.segments if each.base_offset == offset)
            self._bases.write(machine, chain, queued_records(self._tiers[name], queued))
        findings, digest = tuple(report.findings), machine.digest()
        event = HistoryTrimmed(name, offset, report.until_ms, chain, digest, findings, reason)
        if manifest is not None:
            archive_base(manifest, self._bases, event)
            manifest.require_behind(trimmed_entry(event))
        return event

    def remove(self, report: TrimReport) -> None:
        """Remove what is below the floor.

        Raises LogError; NoAnswer where the archive does not answer: then it is trimmed later."""
        name, offset = report.partition, report.offset
        report.freed_bytes = cut(self._data_dir, name, offset) if offset > self.readers[name].start_offset else 0
        self.snapshots.discard_below(name, offset)
        self._bases.discard_below(name, offset)
        if self._objects is not None:
            report.archived_bytes = self._trim_archive(self._objects, name)

    def note_archive(self) -> None:
        """Write down which archive the directory has: what is below the start is read from there."""
        if self._objects is not None:
            note_archive(self._data_dir, self._objects.url)

    def end_in_archive(self) -> None:
        """End the trims that the metadata log names, and that were cut short in the archive. Raises as `remove`."""
        if self._objects is not None:
            for name in self.readers:
                self._trim_archive(self._objects, name)

    def _trim_archive(self, objects: Objects, name: str) -> int:
        try:
            return trim_archive(objects, self._data_dir, name)
        except NoAnswer as error:
            later = "the next run of the archiver, or the next trim, ends it"
            raise NoAnswer(f"{name} is trimmed here, and not yet in the archive: {error}: {later}") from None

    def remove_leftovers(self, name: str, seconds: float = 0) -> None:
        """Remove what killed programs have left of bases that they were writing, if it is older than `seconds`."""
        self._bases.remove_leftovers(name, seconds)
