"""Trims a history: removes records older than a moment for good, so that it begins at a floor, with a base.

    for report in trim(history, TrimRequest(before_ms=...)): report.partition, report.offset, report.findings

in_directory.py opens the history of a directory that no broker uses, in_topics.py one in Kafka, where nodes may run.

For each partition (keep_history.py takes the same steps beside a broker or a node):

    1  floor    the cut before the moment: whole segments or archived stretches are removed
    2  audit    the removed records (trim_audit.py); the archive and the log agree on records that both have
    3  base     the state at the floor, and the records of all messages queued there: written, read back, proven, and
                archived
    4  event    HistoryTrimmed in the metadata log, durable: floor, chain, digest, findings, reason
    5  end      everything below the floor is removed: segments or Kafka's records, snapshots, bases, archived objects

- Nothing is removed before step 4 is durable. After a kill between 4 and 5, or within 5, the next trim completes it, or
  the next start of a broker, or the next run of an archiver. A base without its event is a harmless file.
- The archive must answer: if it is unreachable, the trim is refused before step 4.
- Findings are refused, unless they are accepted; then the metadata log records them with the floor.
- `keep_ms` counts back from the newest time in the log, or from the wall clock if that is earlier. If the only records
  in the kept time are in its last day, a clock may have jumped, so the trim is refused.
- Two trims at once do no harm, because a floor only rises, and only records below the last HistoryTrimmed are removed.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from rewindmq import failpoints
from rewindmq.engine.keeping.archive.state_files import prove_base_of
from rewindmq.engine.keeping.archive.trims import archive_base, trimmed_entry
from rewindmq.engine.keeping.port import KeptHistory
from rewindmq.engine.keeping.trim_rules import (
    TrimRefused,
    TrimReport,
    TrimRequest,
    last_floor,
    oldest_kept_ms,
    refusal,
)
from rewindmq.engine.log.contract import CorruptLog, LogError, NoAnswer
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rewind import OutsideHistory
from rewindmq.projections.store.bases import BaseError, queued_offsets
from rewindmq.schemas.metadata_events import HistoryTrimmed

logger = logging.getLogger(__name__)


def trim(
    history: KeptHistory, wanted: TrimRequest, dry_run: bool = False, wall_ms: int | None = None
) -> list[TrimReport]:
    """Trim the partitions of a history, and its archive. `dry_run`: report what would be removed; change nothing.

    Raises TrimRefused, OtherHistory, NoAnswer (nothing was removed unless the text says so), LogError, CorruptLog,
    NewerHistory."""
    now_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
    trimming, names = Trimming(history), wanted.partitions(history.place, history.names)
    try:
        if not dry_run:
            trimming.end(history.names, _told)
        try:
            reports, events = _prepared(trimming, wanted, names, dry_run, now_ms)
        except (BaseError, OutsideHistory, CorruptLog) as error:
            raise TrimRefused(f"{history.place}: {error}; nothing was removed") from None
        if events:
            history.append(events)
            gone = trimming.end([each.partition for each in events])
            for report in reports:
                report.archived_bytes = gone.get(report.partition, 0)
    except OSError as error:
        raise LogError(f"{history.place}: the trim was interrupted: run it again: {error}") from None
    return reports


def _prepared(
    trimming: "Trimming", wanted: TrimRequest, names: Sequence[str], dry_run: bool, wall_ms: int
) -> tuple[list[TrimReport], list[HistoryTrimmed]]:
    """Audit the removed records, and write the bases. Return a report for each partition, and the events to append."""
    history = trimming.history
    before_ms = _moment(trimming, wanted, wall_ms)
    reports, events = [], []
    for name in names:
        report = TrimReport(name, history.partition(name).start_offset, trimming.floor(name, before_ms))
        reports.append(report)
        if report.offset > report.start:
            machine = trimming.audit(report)
            if dry_run:
                continue
            if report.findings and not wanted.accept_findings:
                raise TrimRefused(f"{name}: {refusal(report.findings)}")
            events.append(trimming.write_base(report, machine, wanted.reason))
    return reports, events


def _told(name: str, error: LogError) -> None:
    logger.error("%s: a trim of it could not be completed: %s", name, error)


def _moment(trimming: "Trimming", wanted: TrimRequest, wall_ms: int) -> int:
    """Return the time before which history may be removed.

    Raises TrimRefused if a clock that jumped may have distorted `keep_ms`."""
    history = trimming.history

    def is_due(before_ms: int) -> bool:
        return any(trimming.floor(name, before_ms) > history.partition(name).start_offset for name in history.names)

    return oldest_kept_ms(history.place, wanted, min(wall_ms, history.newest_ms()), history.logs(), is_due)


class Trimming:
    """The steps of a trim. Between `write_base` and `end` the caller appends the event durably."""

    def __init__(self, history: KeptHistory) -> None:
        self.history = history

    def floor(self, name: str, before_ms: int, most_bytes: int | None = None) -> int:
        """Return the last cut before which everything is older than the time, or the start.

        `most_bytes`: a limit on the removed records, but at least the first cut is taken."""
        partition = self.history.partition(name)
        cuts = [(each.offset, each.size_bytes) for each in partition.cuts()]
        return last_floor(cuts, partition.start_offset, partition.log.offset_at(before_ms - 1), most_bytes)

    def audit(self, report: TrimReport, between: Callable[[], object] = lambda: None) -> Machine:
        """Audit the removed records, note the findings in the report, and return the state at the floor.

        `between` is called repeatedly in the meantime. Raises as `KeptPartition.audited`."""
        partition = self.history.partition(report.partition)
        audited = partition.audited(report.offset, between)
        goes = [each for each in partition.cuts() if report.start <= each.offset < report.offset]
        report.findings = audited.findings
        report.until_ms = max(each.newest_ms for each in goes)
        report.freed_bytes = sum(each.here_bytes for each in goes)
        report.archived_bytes = 0 if partition.manifest is None else partition.manifest.bytes_below(report.offset)
        report.queued = len(queued_offsets(audited.machine))
        return audited.machine

    def write_base(self, report: TrimReport, machine: Machine, reason: str) -> HistoryTrimmed:
        """Write, prove and archive the base at the floor, and return the event that describes the removal.

        Raises BaseError, LogError, OSError; OtherHistory if the archive has another history; NoAnswer."""
        failpoints.reached("trim.before_base")
        partition, offset = self.history.partition(report.partition), report.offset
        chain, digest = partition.chain_at(offset), machine.digest()
        event = HistoryTrimmed(report.partition, offset, report.until_ms, chain, digest, tuple(report.findings), reason)
        with partition.bases() as bases:
            bases.write(machine, chain, partition.queued(queued_offsets(machine), offset))
            failpoints.reached("trim.before_proof")
            prove_base_of(bases.open(report.partition, offset), chain, digest)
            if partition.manifest is not None:
                archive_base(partition.manifest, bases, event)
                partition.manifest.require_behind(trimmed_entry(event))
        failpoints.reached("trim.before_event")
        return event

    def end(self, names: Iterable[str], failed: Callable[[str, LogError], object] | None = None) -> dict[str, int]:
        """Complete the trims of these partitions in the metadata log, and return the bytes of removed objects.

        `failed`: called for a partition that cannot be completed and keeps everything; without it, LogError is raised.
        Raises NoAnswer; the rest is then completed later."""
        gone: dict[str, int] = {}
        try:
            floors = self.history.floors()
            for name in names:
                if name in floors:
                    gone[name] = self._end(name, floors[name].event, failed)
                    failpoints.reached("trim.after_end")
        except NoAnswer as error:
            later = "the next run of the archiver, or the next trim, completes it"
            raise NoAnswer(f"the trim is in the history, but not completed: {error}: {later}") from None
        return gone

    def _end(self, name: str, event: HistoryTrimmed, failed: Callable[[str, LogError], object] | None) -> int:
        failpoints.reached("trim.before_end")
        try:
            return self.history.partition(name).end_trim(event)
        except NoAnswer:
            raise
        except LogError as error:
            if failed is None:
                raise
            failed(name, error)
            return 0
