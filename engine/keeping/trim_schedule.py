"""Looks at --keep-history, beside a broker or a node: when to look, what is told, and what counts as now.

    embedded log     engine/keeping/keep_history.py
    log in Kafka     engine/keeping/keep_topics.py

Age is counted from the steady time (engine/log/embedded/steady_time.py), or from the wall clock, if that is earlier.
The first look only notes the log time. Where a hole in the log shows that a clock may have jumped before that, it notes
the time before the hole.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from rewindmq.engine.keeping.archive.progress import Kept
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.steady_time import steady_now
from rewindmq.projections.machine.machine import NewerHistory
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rewind import OutsideHistory, begin_ms, time_at
from rewindmq.projections.store.bases import BaseError
from rewindmq.schemas.metadata_events import HistoryTrimmed

NOTE: Final = "keep_history.json"
LOOK_SECONDS: Final = 600.0  # between two looks
PARTS: Final = 8  # of the kept time: none of them is without an event, where no clock jumped

logger = logging.getLogger(__name__)


class TrimSchedule(ABC):
    """Looks again and again, and tells what became of it. `place`: of the history, for people.

    `alive` is called again and again, and raises EOFError when the broker ended."""

    def __init__(
        self,
        place: object,
        keep_ms: int,
        alive: Callable[[], object],
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._place = place
        self._keep_ms = keep_ms
        self._alive = alive
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._next = monotonic()  # when to look
        self._more = False  # to trim, as the last look left it
        self._before_ms: int | None = None
        self._stays: dict[str, str] = {}
        self._freed_bytes = 0
        self._trimmed: list[HistoryTrimmed] = []
        self._refused: dict[str, tuple[int, int, str]] = {}  # start and floor of a stretch, and the reason

    @property
    def seconds_left(self) -> float:
        """The time until the next look."""
        return max(0.0, self._next - self._monotonic())

    def look(self) -> Kept | None:
        """Trim what is due next. None: it is not time to look.

        Raises EOFError, BrokenPipeError, ConnectionResetError: the broker ended."""
        if self.seconds_left > 0:
            return None
        self._next = self._monotonic() + LOOK_SECONDS
        self._freed_bytes = 0
        self._trimmed = []
        error: str | None = None
        try:
            self._look()
        except (LogError, NewerHistory, OutsideHistory, BaseError) as found:
            error = str(found)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except OSError as found:
            error = f"{found.filename or self._place}: {found.strerror or found}"
        except Exception as found:  # a defect of ours must not end the process
            logger.exception("the history was not trimmed")
            error = f"a defect of rewindmq: {type(found).__name__}, see the broker's log"
        self._more &= error is None
        if self._more:
            self._next = self._monotonic()
        return Kept(self._before_ms, tuple(self._stays.items()), self._freed_bytes, error, tuple(self._trimmed))

    @abstractmethod
    def _look(self) -> None:
        """Trim what is due next. Sets what `look` tells, and `_more`. Raises LogError and the like, OSError."""

    def _refuse(self, name: str, stretch: tuple[int, int], why: str) -> None:
        """Note that a stretch (start, floor) of a partition stays: it is not audited again until its end moves."""
        self._stays[name] = why
        self._refused[name] = *stretch, why

    def _was_refused(self, name: str, stretch: tuple[int, int]) -> bool:
        """Return True if this stretch was refused before, and note the same reason again."""
        start, floor, why = self._refused.get(name, (0, 0, ""))
        if (start, floor) != stretch:
            return False
        self._stays[name] = why
        return True

    def _oldest_kept(self, note: Path, newest_ms: int, readers: Sequence[PartitionLog]) -> int | None:
        """The time before which history goes; None: not known yet. `note`: the file of the steady time."""
        first_ms = newest_ms if note.exists() else trusted_ms(readers, newest_ms, self._keep_ms)
        steady_ms = steady_now(note, newest_ms, first_ms, self._monotonic())
        return None if steady_ms is None else min(steady_ms, self._wall_ms()) - self._keep_ms


def trusted_ms(readers: Sequence[PartitionLog], newest_ms: int, keep_ms: int) -> int:
    """The newest log time, or, where the clock may have jumped within the kept time, the time before that.

    The kept time is divided into equal parts. A part without any event, behind the log's first one, may be a jump."""
    oldest_ms = min((found for found in map(begin_ms, readers) if found is not None), default=newest_ms)
    bounds = [newest_ms - keep_ms + keep_ms * part // PARTS for part in range(PARTS + 1)]
    for begin, end in pairwise(bounds):
        if begin >= oldest_ms and all(reader.offset_at(begin - 1) == reader.offset_at(end - 1) for reader in readers):
            return max(_last_before(reader, begin) for reader in readers)
    return newest_ms


def _last_before(reader: PartitionLog, time_ms: int) -> int:
    """The time of the last record before this time; 0 if there is none."""
    offset = reader.offset_at(time_ms - 1) - 1
    if offset < reader.start_offset:
        return 0
    return max(time_at(reader, block, offset) for block in reader.read(offset, offset + 1))
