"""The rules of every trim, of an embedded log and of one in Kafka: what is wanted, what may go, what is refused.

    TrimRequest -> oldest_kept_ms -> last_floor -> the audit (trim_audit.py) -> TrimReport, or TrimRefused

The steps themselves differ: engine/keeping/trim.py, engine/keeping/trim.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rewindmq.engine.log.contract import LogError
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rewind import format_time

DAY_MS = 86_400_000


class TrimRefused(LogError):
    """The history is not trimmed so; the text says why. Nothing was removed."""


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """A wish to trim history that is older than the time `before_ms`, or than the last `keep_ms` milliseconds.

    `partition`: only this one. `accept_findings`: trim although the audit found something."""

    before_ms: int | None = None
    keep_ms: int | None = None
    partition: str | None = None
    reason: str = ""
    accept_findings: bool = False

    def partitions(self, place: object, names: Sequence[str]) -> Sequence[str]:
        """Return the partitions to trim, out of `names`. `place`: of the history, for people.

        Raises TrimRefused."""
        if self.partition is None:
            return names
        if self.partition not in names:
            raise TrimRefused(f"{place}: there is no partition {self.partition!r}: {', '.join(names)}")
        return [self.partition]


@dataclass(slots=True)
class TrimReport:
    """The result of trimming a partition, or of a dry run.

    `start`: the offset where it began. `offset`: the floor; it is `start` if nothing goes. `until_ms`: the largest time
    of the records that go. `queued`: the number of records of queued messages in the base. `freed_bytes`: of the local
    segments, or of the stretches that Kafka had; `archived_bytes`: of the objects that went, or would go."""

    partition: str
    start: int
    offset: int
    until_ms: int = 0
    queued: int = 0
    freed_bytes: int = 0
    archived_bytes: int = 0
    findings: list[str] = field(default_factory=list)


def oldest_kept_ms(
    place: object,
    wanted: TrimRequest,
    now_ms: int,
    readers: Iterable[PartitionLog],
    is_due: Callable[[int], bool],
) -> int:
    """The time before which history may go.

    `now_ms`: the newest time in the log, or the wall clock if that is earlier. `is_due`: whether anything is older than
    a time. Raises TrimRefused where `keep_ms` may be the work of a clock that jumped."""
    if wanted.before_ms is not None:
        return wanted.before_ms
    assert wanted.keep_ms is not None, "a trim has a time, or keeps one"
    before_ms, recent_ms = now_ms - wanted.keep_ms, now_ms - min(DAY_MS, wanted.keep_ms // 2)
    if not is_due(before_ms):
        return before_ms
    if any(reader.offset_at(before_ms - 1) < reader.offset_at(recent_ms - 1) for reader in readers):
        return before_ms
    what = f"no event lies between {format_time(before_ms)} and {format_time(recent_ms)}"
    raise TrimRefused(f"{place}: {what}: a clock may have jumped; name the time with --before")


def last_floor(segments: Sequence[tuple[int, int]], start: int, offset: int, most_bytes: int | None = None) -> int:
    """The last offset at which a segment begins, up to which all lies below `offset`; else the start.

    `segments`: offset and size of each, in order; the last one stays. `most_bytes`: of segments that go, but one goes
    at least."""
    floor, size = start, 0
    for (_, older_bytes), (base, _) in pairwise(segments):
        size += older_bytes
        if base > offset or (most_bytes is not None and size > most_bytes and floor > start):
            break
        if base > start:
            floor = base
    return floor


def refusal(findings: Sequence[str]) -> str:
    """Why a stretch with findings is not trimmed."""
    return f"{'; '.join(findings)}; nothing was removed (--accept-findings trims it)"
