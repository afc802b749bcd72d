"""Trims history older than --keep-history beside a broker or a node, in its process (archive_process.py).

    checks at the start, then every ten minutes     older history than the limit, in whole cuts, by stretches:
    floor -> audit -> base, proven -> HistoryTrimmed, durable -> history below the floor is removed

- The steps are those of trim.py. Beside a broker the event is the broker's, because it alone writes the metadata log
  (engine/broker/history_trims.py). On Kafka the process itself appends it, for the partitions that the node owns.
- A stretch is 256 MiB long, or four times as long as the base before it, if that is more. So memory does not grow with
  the amount due, the archiver gets its turn between two stretches, and bases cost little beside the removed data.
- A kill before the event is durable changes nothing. After that, the next check completes the trim, or the next start,
  or the archiver of the partition's next owner. Two nodes may trim a partition at once while the ownership moves,
  because a floor only rises, and both bases are archived.
- Findings of the audit, and a record that differs between Kafka and the archive, stop the trim of that partition. They
  are reported, and the stretch is not audited again until its end moves.
- A partition is trimmed when its oldest cut exceeds the limit by a day, or by a 24th of the limit if that is less. Then
  everything older than the limit is removed. So a floor stays for about a day, and a job that reads for hours beside it
  has to begin anew at most once.

Age is counted from the steady time (engine/log/embedded/steady_time.py), noted beside the log, or from the wall clock
if that is earlier. The first check only notes the log time, so a new node trims nothing for half a minute. If a hole in
the log suggests that a clock jumped before that, it notes the time before the hole.
"""

import logging
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from rewindmq.engine.host.durations import in_words
from rewindmq.engine.keeping.archive.manifest import OtherHistory
from rewindmq.engine.keeping.archive.progress import Kept
from rewindmq.engine.keeping.port import KeptHistory
from rewindmq.engine.keeping.trim import Trimming
from rewindmq.engine.keeping.trim_rules import TrimRefused, TrimReport, refusal
from rewindmq.engine.log.contract import CorruptLog, LogError, NoAnswer
from rewindmq.engine.log.embedded.steady_time import APART_SECONDS, steady_now
from rewindmq.projections.floors import KEEP_HISTORY
from rewindmq.projections.machine.machine import NewerHistory
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rewind import OutsideHistory, begin_ms, time_at
from rewindmq.projections.store.bases import BaseError
from rewindmq.schemas.metadata_events import HistoryTrimmed

NOTE: Final = "keep_history.json"
LOOK_SECONDS: Final = 600.0  # between two checks
STRETCH_BYTES: Final = 256 << 20
BASES: Final = 4  # the length of a stretch, in bases before it
SELDOM_MS: Final = 86_400_000  # between two trims of a partition, or:
SELDOM: Final = 24  # a part of the limit
PARTS: Final = 8  # of the kept time: each has an event unless a clock jumped

logger = logging.getLogger(__name__)


class KeepHistory:
    """The trims of one history.

    `open_history`: called at each check; None: nothing to trim yet. `note`: the file of the steady time. `alive` is
    called repeatedly, and raises EOFError when the broker ended. `owned`: names of the partitions to trim; None: all.
    The caller sets it when it changes."""

    def __init__(
        self,
        open_history: Callable[[], KeptHistory | None],
        note: Path,
        keep_ms: int,
        alive: Callable[[], object],
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.owned: frozenset[str] | None = None
        self._open = open_history
        self._note = note
        self._keep_ms = keep_ms
        self._alive = alive
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._next = monotonic()  # the time of the next check
        self._trimming: Trimming | None = None  # while more is to be trimmed, as the last check left it
        self._begun: set[str] = set()  # partitions being trimmed up to the limit, stretch by stretch
        self._before_ms: int | None = None
        self._stays: dict[str, str] = {}
        self._freed_bytes = 0
        self._trimmed: list[HistoryTrimmed] = []
        self._refused: dict[str, tuple[int, int, str]] = {}  # start and floor of a stretch, and the reason

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the next check."""
        return max(0.0, self._next - self._monotonic())

    def look(self) -> Kept | None:
        """Trim the next due stretch. None: it is not yet time.

        Raises EOFError, BrokenPipeError, ConnectionResetError: the broker ended."""
        if self.seconds_left > 0:
            return None
        self._next = self._monotonic() + LOOK_SECONDS
        self._freed_bytes = 0
        self._trimmed = []
        error: str | None = None
        going_on, self._trimming = self._trimming, None
        try:
            self._trimming = self._looked(going_on)
        except (LogError, NewerHistory, OutsideHistory, BaseError) as found:
            error = str(found)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except OSError as found:
            error = f"{found.filename or self._note.parent}: {found.strerror or found}"
        except Exception as found:  # our own defect must not end the process
            logger.exception("the history was not trimmed")
            error = f"a defect of rewindmq: {type(found).__name__}, see the broker's log"
        if self._trimming is not None:
            self._next = self._monotonic()
        return Kept(self._before_ms, tuple(self._stays.items()), self._freed_bytes, error, tuple(self._trimmed))

    def _looked(self, trimming: Trimming | None) -> Trimming | None:
        """Trim the next due stretch. `trimming`: that of the last check, if more was due.

        Returns it if more may be due. Raises LogError and the like, OSError."""
        if trimming is None:
            history = self._open()
            if history is None:
                return None
            trimming = Trimming(history)
            self._stays = {}
            self._before_ms = self._oldest_kept_ms(history)
            trimming.end(self._mine(history), self._not_ended)
        if self._before_ms is None:
            self._next = self._monotonic() + APART_SECONDS
            return None
        for name in self._mine(trimming.history):
            try:
                if self._trim(trimming, name, self._before_ms):
                    return trimming  # the archiver gets its turn
            except NoAnswer:
                raise
            except (LogError, OutsideHistory, BaseError) as error:  # the other partitions continue
                self._stays[name] = str(error)
        return None

    def _not_ended(self, name: str, error: LogError) -> None:
        self._stays[name] = f"a trim could not be completed: {error}"

    def _oldest_kept_ms(self, history: KeptHistory) -> int | None:
        """Return the time before which history is trimmed; None: not known yet."""
        newest_ms = history.newest_ms()
        if not newest_ms:
            return None
        first_ms = newest_ms if self._note.exists() else trusted_ms(history.logs(), newest_ms, self._keep_ms)
        steady_ms = steady_now(self._note, newest_ms, first_ms, self._monotonic())
        return None if steady_ms is None else min(steady_ms, self._wall_ms()) - self._keep_ms

    def _mine(self, history: KeptHistory) -> list[str]:
        """Return the partitions to trim, the one with the oldest history first."""

        def oldest_ms(name: str) -> int:
            return next((each.newest_ms for each in history.partition(name).cuts()), 0)

        return sorted((name for name in history.names if self.owned is None or name in self.owned), key=oldest_ms)

    def _trim(self, trimming: Trimming, name: str, before_ms: int) -> bool:
        """Trim the next stretch of a partition, and return True if one was due.

        Raises LogError, OutsideHistory, BaseError, NoAnswer, OSError."""
        history = trimming.history
        partition = history.partition(name)
        start, seldom_ms = partition.start_offset, min(SELDOM_MS, self._keep_ms // SELDOM)
        if name not in self._begun and trimming.floor(name, before_ms - seldom_ms) <= start:
            return False
        floor = trimming.floor(name, before_ms, max(STRETCH_BYTES, BASES * partition.base_bytes))
        self._begun.discard(name)
        if floor <= start or self._was_refused(name, (start, floor)):
            return False
        report = TrimReport(name, start, floor)
        try:
            machine = trimming.audit(report, self._alive)
            if report.findings:
                raise TrimRefused(refusal(report.findings))
        except (CorruptLog, OtherHistory, TrimRefused) as error:
            self._stays[name] = str(error)
            self._refused[name] = start, floor, str(error)
            return False
        event = trimming.write_base(report, machine, f"{KEEP_HISTORY} {in_words(self._keep_ms)}")
        history.append([event])
        if history.shared:
            self._trimmed.append(event)
        self._begun.add(name)
        self._freed_bytes += report.freed_bytes
        trimming.end([name])
        return True

    def _was_refused(self, name: str, stretch: tuple[int, int]) -> bool:
        """Return True if this stretch was refused before, and note the same reason again."""
        start, floor, why = self._refused.get(name, (0, 0, ""))
        if (start, floor) != stretch:
            return False
        self._stays[name] = why
        return True


def trusted_ms(readers: Sequence[PartitionLog], newest_ms: int, keep_ms: int) -> int:
    """Return the newest log time or, if the clock may have jumped within the kept time, the time before that.

    The kept time is divided into equal parts. A part without any event, after the log's first one, may be a jump."""
    oldest_ms = min((found for found in map(begin_ms, readers) if found is not None), default=newest_ms)
    bounds = [newest_ms - keep_ms + keep_ms * part // PARTS for part in range(PARTS + 1)]
    for begin, end in pairwise(bounds):
        if begin >= oldest_ms and all(reader.offset_at(begin - 1) == reader.offset_at(end - 1) for reader in readers):
            return max(_last_before(reader, begin) for reader in readers)
    return newest_ms


def _last_before(reader: PartitionLog, time_ms: int) -> int:
    """Return the time of the last record before this time; 0 if there is none."""
    offset = reader.offset_at(time_ms - 1) - 1
    if offset < reader.start_offset:
        return 0
    return max(time_at(reader, block, offset) for block in reader.read(offset, offset + 1))
