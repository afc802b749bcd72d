"""Trims a history: what is older than a moment goes for good, and the history begins at a floor, with a base.

    for report in trim(data_dir, Wanted(before_ms=...)): report.partition, report.offset, report.findings

For each partition, while no broker runs (the lock is taken):

    1  floor    the base offset of the segment that holds the moment: whole segments go
    2  audit    the stretch from the last floor on (stretch.py)
    3  base     the state at the floor, and the records of all that is queued there: written, read back, proven
    4  event    HistoryTrimmed in the metadata log, durable: floor, chain, digest, findings, reason
    5  cut      the segments below the floor, the oldest first; then snapshots and bases below it

- Nothing is removed before step 4 is durable. After a kill between 4 and 5, or within 5, the next start of a broker or
  the next trim ends it. A base without its event is a file that does no harm.
- Findings are refused, unless they are accepted: then the metadata log has them, with the floor.
- `keep_ms` counts back from the newest time in the log, or from the wall clock if that is earlier. If no record lies
  within the kept time but in its last day, a clock may have jumped: that is refused.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rewindmq.engine.embedded.start import end_trims
from rewindmq.engine.embedded.stretch import audit
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.cut import cut, prove_base
from rewindmq.engine.log.embedded.directory import (
    METADATA,
    layout_file,
    partition_directory,
    queue_partition,
    read_layout,
)
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.log_start import ARCHIVE
from rewindmq.engine.log.embedded.reader import PartitionReader, SegmentReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files, segment_path
from rewindmq.engine.rewind.queue_at import neighbourhoods
from rewindmq.projections.replay import base_of
from rewindmq.projections.rewind import OutsideHistory, format_time
from rewindmq.projections.store.bases import BaseError, Bases, queued_offsets
from rewindmq.projections.store.metadata_snapshots import newest
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.topology.metadata_fold import MetadataFold, fold_on
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.values import BROKER

logger = logging.getLogger(__name__)

DAY_MS = 86_400_000


class TrimRefused(LogError):
    """The history is not trimmed so; the text says why. Nothing was removed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be trimmed: what is older than the time `before_ms`, or than the last `keep_ms` milliseconds.

    `partition`: only this one. `accept_findings`: go on although the audit found something."""

    before_ms: int | None = None
    keep_ms: int | None = None
    partition: str | None = None
    reason: str = ""
    accept_findings: bool = False


@dataclass(slots=True)
class TrimReport:
    """What was trimmed of a partition, or would be.

    `start`: the offset where it began. `offset`: the floor; it is `start` if nothing goes. `until_ms`: the largest time
    of what goes. `queued`: how many records of queued messages are in the base. `freed_bytes`: of the segments."""

    partition: str
    start: int
    offset: int
    until_ms: int = 0
    queued: int = 0
    freed_bytes: int = 0
    findings: list[str] = field(default_factory=list)


def trim(data_dir: Path, wanted: Wanted, dry_run: bool = False, wall_ms: int | None = None) -> list[TrimReport]:
    """Trim the partitions of a data directory. `dry_run`: say what would go, and change nothing.

    Raises TrimRefused, LogInUse (a broker runs), LogError, CorruptLog, NewerHistory."""
    read_layout(data_dir)  # there must be a log: none is made here
    if (data_dir / "log" / ARCHIVE).exists():
        what = "it has an archive, which would keep what is trimmed here, and miss what is not archived yet"
        raise TrimRefused(f"{data_dir}: {what}: a history with an archive cannot be trimmed yet")
    now_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
    log = EmbeddedLog.open(data_dir, None)
    try:
        return _Trim(data_dir, log, now_ms).run(wanted, dry_run)
    except (BaseError, OutsideHistory) as error:
        raise TrimRefused(f"{data_dir}: {error}; nothing was removed") from None
    except OSError as error:
        raise LogError(f"{data_dir}: the trim was cut short, run it again: {error}") from None
    finally:
        log.close()


def trim_at_start(data_dir: Path, keep_ms: int) -> None:
    """Trim what is older than this time, before a broker starts; a broker starts also where that is refused.

    Raises LogInUse, LogError, CorruptLog, NewerHistory."""
    if not layout_file(data_dir).exists():
        return  # a new one
    try:
        reports = trim(data_dir, Wanted(keep_ms=keep_ms, reason="--keep-history"))
    except TrimRefused as error:
        logger.warning("the history is not trimmed: %s", error)
        return
    for report in reports:
        if report.offset > report.start:
            told = (report.partition, report.start, report.offset, format_time(report.until_ms), report.freed_bytes)
            logger.info("%s: offsets %d to %d, of %s and before, are trimmed: %d bytes", *told)


class _Trim:
    """One run, on an open log."""

    def __init__(self, data_dir: Path, log: EmbeddedLog, wall_ms: int) -> None:
        self._data_dir = data_dir
        self._log = log
        self._wall_ms = wall_ms
        self._snapshots = Snapshots(data_dir / "snapshots")
        self._bases = Bases(data_dir / "bases")
        names = [METADATA, *map(queue_partition, range(len(log.queues)))]
        self._readers = {name: PartitionReader(partition_directory(data_dir, name)) for name in names}

    def run(self, wanted: Wanted, dry_run: bool) -> list[TrimReport]:
        metadata = newest(self._snapshots, self._log.metadata)
        fold_on(metadata, self._log.metadata, strict=True)
        if not dry_run:
            end_trims(self._data_dir, self._log, metadata.topology, self._snapshots)
        names = [name for name in self._readers if name != METADATA]
        if wanted.partition is not None and wanted.partition not in names:
            raise TrimRefused(f"{self._data_dir}: there is no partition {wanted.partition!r}: {', '.join(names)}")
        before_ms = self._moment(wanted)
        reports = []
        events = []
        for name in names if wanted.partition is None else [wanted.partition]:
            report = TrimReport(name, self._readers[name].start_offset, self._floor(name, before_ms))
            reports.append(report)
            if report.offset > report.start:
                events.append(self._prepare(report, wanted, dry_run))
        if dry_run:
            return reports
        if events:
            self._append(metadata, events)
        for report in reports:
            if report.offset > report.start:
                self._remove(report)
        return reports

    def _moment(self, wanted: Wanted) -> int:
        """The time before which history may go.

        Raises TrimRefused where `keep_ms` may be the work of a clock that jumped."""
        if wanted.before_ms is not None:
            return wanted.before_ms
        assert wanted.keep_ms is not None, "a trim has a time, or keeps one"
        ends = [reader.segments()[-1].max_timestamp_ms for reader in self._readers.values()]
        now_ms = min(self._wall_ms, max(ends))
        before_ms, recent_ms = now_ms - wanted.keep_ms, now_ms - min(DAY_MS, wanted.keep_ms // 2)
        readers = self._readers.values()
        if not any(self._floor(name, before_ms) > reader.start_offset for name, reader in self._readers.items()):
            return before_ms  # nothing is so old
        if any(reader.offset_at(before_ms - 1) < reader.offset_at(recent_ms - 1) for reader in readers):
            return before_ms
        what = f"no event lies between {format_time(before_ms)} and {format_time(recent_ms)}"
        raise TrimRefused(f"{self._data_dir}: {what}: a clock may have jumped; name the time with --before")

    def _floor(self, name: str, before_ms: int) -> int:
        """The last offset at which a segment begins, up to which all is older than the time."""
        reader = self._readers[name]
        offset = reader.offset_at(before_ms - 1)
        floor = reader.start_offset
        for path in segment_files(reader.directory):
            if floor < base_offset_of(path) <= offset and _chain_before(path) is not None:
                floor = base_offset_of(path)
        return floor

    def _prepare(self, report: TrimReport, wanted: Wanted, dry_run: bool) -> HistoryTrimmed:
        """Audit a stretch, and write the base at its end. Returns the event that says so."""
        reader = self._readers[report.partition]
        audited = audit(reader, self._snapshots, report.offset)
        report.findings = audited.findings
        gone = [each for each in reader.segments() if each.base_offset < report.offset]
        report.until_ms = max(each.max_timestamp_ms for each in gone)
        report.freed_bytes = sum(each.size for each in gone)
        queued = queued_offsets(audited.machine)
        report.queued = len(queued)
        chain = _chain_before(segment_path(reader.directory, report.offset))
        assert chain is not None, "the floor is at a segment that states its chain"
        digest = audited.machine.digest()
        if not dry_run:
            if report.findings and not wanted.accept_findings:
                told = "; ".join(report.findings)
                raise TrimRefused(f"{report.partition}: {told}; nothing was removed (--accept-findings trims it)")
            self._bases.remove_leftovers(report.partition)
            self._bases.write(audited.machine, chain, _records(reader, queued))
            prove_base(reader.directory, report.offset)
        findings = tuple(report.findings)
        return HistoryTrimmed(report.partition, report.offset, report.until_ms, chain, digest, findings, wanted.reason)

    def _append(self, metadata: MetadataFold, events: list[HistoryTrimmed]) -> None:
        """Log the events, durably."""
        encoder = Encoder()
        now_ms = max(self._wall_ms, metadata.clock_ms)
        for event in events:
            self._log.metadata.append(now_ms, encoder.encode(encoder.prefix(now_ms, BROKER), event))
        self._log.commit_and_wait()

    def _remove(self, report: TrimReport) -> None:
        """Remove what is below the floor."""
        name = report.partition
        report.freed_bytes = cut(self._data_dir, name, report.offset)
        self._snapshots.discard_below(name, report.offset)
        self._bases.discard_below(name, report.offset)


def _chain_before(path: Path) -> bytes | None:
    """The hash chain that the header of a segment states; None in format 1."""
    segment = SegmentReader(path, last=True)
    try:
        return segment.header.chain_before
    finally:
        segment.close()


def _records(reader: PartitionReader, offsets: list[int]) -> Iterator[tuple[int, bytes]]:
    """Yields offset and record of these publishes, in ascending order: from the base of the log, then from the log."""
    start = reader.start_offset
    base = base_of(reader) if offsets and offsets[0] < start else None
    at = 0
    while base is not None and at < len(offsets) and offsets[at] < start:
        record = base.record(offsets[at])
        assert record is not None, f"{base.path}: it holds each message that is queued there"
        yield offsets[at], record
        at += 1
    for block in reader.read_ranges(neighbourhoods(offsets[at:])):
        behind = block.first_offset + len(block.records)
        while at < len(offsets) and offsets[at] < behind:
            yield offsets[at], block.records[offsets[at] - block.first_offset]
            at += 1
