"""Trims what is older than --keep-history while the broker runs: in the process beside it (archive_process.py).

    looks at the start, then every ten minutes      what is older than the limit, in whole segments, stretch by stretch:
    floor -> audit -> base, proven -> the broker logs HistoryTrimmed, durably -> cut -> archive

- The steps are those of trim.py. The event alone is the broker's, because it alone writes the metadata log
  (engine/broker/history_trims.py).
- A stretch is 256 MiB long, or four times as long as the base before it, if that is more. So memory does not grow with
  what is due, the archiver gets its turn between two stretches, and bases cost little beside what goes.
- After a kill before the event is durable all is there still. After it, the next look ends the cut, or the next start.
- Findings of the audit stop the trim of that partition. They are told, and the stretch is not audited again until its
  end moves.
- Two segments of each partition stay.
- A partition is trimmed when its oldest segments are older than the limit and a day, or a 24th of the limit if that is
  less: then all that is older than the limit goes. So a floor stays for about a day, and a job that reads for hours
  beside it has to begin anew once at most.

What counts as now: engine/keeping/trim_schedule.py.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rewindmq.engine.host.durations import in_words
from rewindmq.engine.keeping.tiers import floors_of
from rewindmq.engine.keeping.trim import Trimming, archive_for
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimReport, refusal
from rewindmq.engine.keeping.trim_schedule import NOTE, TrimSchedule
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, read_layout
from rewindmq.engine.log.embedded.log_start import bases_of
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.steady_time import APART_SECONDS, newest_ms_of
from rewindmq.projections.floors import KEEP_HISTORY
from rewindmq.projections.rewind import OutsideHistory
from rewindmq.projections.store.bases import BaseError
from rewindmq.schemas.metadata_events import HistoryTrimmed

STRETCH_BYTES: Final = 256 << 20
SELDOM_MS: Final = 86_400_000  # between two trims of a partition, or:
SELDOM: Final = 24  # a part of the limit
BASES: Final = 4  # a stretch is so many times as long as the base before it
LEFTOVER_SECONDS: Final = 3_600.0


class KeepHistory(TrimSchedule):
    """The trims of one data directory, and of its archive: that at `url`, or the one that the directory names.

    `log_event` returns when the broker's metadata log has the event, durably; it raises TrimRefused if the broker
    refuses it. `alive` is called again and again, and raises EOFError when the broker ended."""

    def __init__(
        self,
        data_dir: Path,
        keep_ms: int,
        log_event: Callable[[HistoryTrimmed], None],
        alive: Callable[[], object],
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        url: str | None = None,
    ) -> None:
        super().__init__(data_dir, keep_ms, alive, monotonic, wall_ms)
        self._data_dir = data_dir
        self._url = url
        self._log_event = log_event
        self._trimming: Trimming | None = None
        self._begun: set[str] = set()  # partitions that are trimmed up to the limit, stretch by stretch

    def _look(self) -> None:
        trimming = self._trimming
        if trimming is None or not self._more:
            objects = archive_for(self._data_dir, self._url)
            trimming = self._trimming = Trimming(self._data_dir, read_layout(self._data_dir), objects)
            trimming.note_archive()
            self._stays = {}
            self._before_ms = self._oldest_kept_ms(trimming)
            self._end_trims(trimming)
        self._more = False
        if self._before_ms is None:
            self._next = self._monotonic() + APART_SECONDS
            return
        for name in trimming.readers:
            try:
                self._trim(trimming, name, self._before_ms)
            except (LogError, OutsideHistory, BaseError) as error:  # the other partitions go on
                self._stays[name] = str(error)

    # -- what is due ---------------------------------------------------------------------------------------------------

    def _oldest_kept_ms(self, trimming: Trimming) -> int | None:
        """The time before which history goes; None: not known yet."""
        metadata = PartitionReader(partition_directory(self._data_dir, METADATA))
        readers = [metadata, *trimming.readers.values()]
        newest_ms = newest_ms_of(reader.directory for reader in readers)
        return self._oldest_kept(self._data_dir / "log" / NOTE, newest_ms, readers)

    def _trim(self, trimming: Trimming, name: str, before_ms: int) -> None:
        """Trim the next stretch of a partition, if one is due."""
        directory, start = trimming.readers[name].directory, trimming.log(name).start_offset
        base = bases_of(directory).path(name, start)
        begun = name in self._begun
        self._begun.discard(name)
        if not begun and not self._is_time(trimming, name, before_ms):
            return
        most_bytes = max(STRETCH_BYTES, BASES * base.stat().st_size if base.exists() else 0)
        floor = trimming.floor_among(name, segment_files(directory)[:-1], before_ms, most_bytes)
        if floor <= start:
            return
        if self._was_refused(name, (start, floor)):
            return
        report = TrimReport(name, start, floor)
        try:
            machine = trimming.audit(report, self._alive)
            if report.findings:
                raise TrimRefused(refusal(report.findings))
        except (CorruptLog, TrimRefused) as error:
            self._refuse(name, (start, floor), str(error))
            return
        trimming.remove_leftovers(name, LEFTOVER_SECONDS)
        self._log_event(trimming.write_base(report, machine, f"{KEEP_HISTORY} {in_words(self._keep_ms)}"))
        try:
            trimming.remove(report)
        finally:
            self._freed_bytes += report.freed_bytes
        if trimming.floor_among(name, segment_files(directory)[:-1], before_ms) > floor:
            self._more = True
            self._begun.add(name)

    def _is_time(self, trimming: Trimming, name: str, before_ms: int) -> bool:
        """Return True if the oldest segment is so much older than the limit that a trim is worth it."""
        early_ms = before_ms - min(SELDOM_MS, self._keep_ms // SELDOM)
        files = segment_files(trimming.readers[name].directory)[:-1]
        return trimming.floor_among(name, files, early_ms) > trimming.log(name).start_offset

    def _end_trims(self, trimming: Trimming) -> None:
        """End the trims that the metadata log names, and that a kill cut short."""
        for name, floor in floors_of(self._data_dir).items():
            start = trimming.readers[name].start_offset
            if start < floor.event.offset:
                report = TrimReport(name, start, floor.event.offset)
                try:
                    trimming.remove(report)
                except LogError as error:  # the log has everything still
                    self._stays[name] = f"a trim could not be ended: {error}"
                self._freed_bytes += report.freed_bytes
        trimming.end_in_archive()
