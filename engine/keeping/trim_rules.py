"""The rules of every trim, of an embedded log and of one in Kafka: requests, limits, refusals.

    TrimRequest -> oldest_kept_ms -> last_floor -> the audit (trim_audit.py) -> TrimReport, or TrimRefused

The steps are in engine/keeping/trim.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rewindmq.engine.log.contract import LogError
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rewind import format_time

DAY_MS = 86_400_000


class TrimRefused(LogError):
    """The trim was refused, for the reason in the text. Nothing was removed."""


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """A request to trim history older than the time `before_ms`, or than the last `keep_ms` milliseconds.

    `partition`: only this one. `accept_findings`: trim although the audit found something."""

    before_ms: int | None = None
    keep_ms: int | None = None
    partition: str | None = None
    reason: str = ""
    accept_findings: bool = False

    def partitions(self, place: object, names: Sequence[str]) -> Sequence[str]:
        """Return the partitions to trim among `names`. `place`: of the history, for people.

        Raises TrimRefused."""
        if self.partition is None:
            return names
        if self.partition not in names:
            raise TrimRefused(f"{place}: there is no partition {self.partition!r}: {', '.join(names)}")
        return [self.partition]


@dataclass(slots=True)
class TrimReport:
    """The result of trimming a partition, or of a dry run.

    `start`: its former first offset. `offset`: the floor; it is `start` if nothing is removed. `until_ms`: the largest
    time of the removed records. `queued`: the number of records of queued messages in the base. `freed_bytes`: of the
    local segments, or of Kafka's stretches; `archived_bytes`: of the objects that were, or would be, removed."""

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
    """Return the time before which history may be removed.

    `now_ms`: the newest time in the log, or the wall clock if that is earlier. `is_due`: True if anything is older than
    a time. Raises TrimRefused if a clock that jumped may have distorted `keep_ms`."""
    if wanted.before_ms is not None:
        return wanted.before_ms
    assert wanted.keep_ms is not None, "a trim has a time, or keeps one"
    before_ms, recent_ms = now_ms - wanted.keep_ms, now_ms - min(DAY_MS, wanted.keep_ms // 2)
    if not is_due(before_ms):
        return before_ms
    if any(reader.offset_at(before_ms - 1) < reader.offset_at(recent_ms - 1) for reader in readers):
        return before_ms
    what = f"there is no event between {format_time(before_ms)} and {format_time(recent_ms)}"
    raise TrimRefused(f"{place}: {what}: a clock may have jumped; name the time with --before")


def last_floor(segments: Sequence[tuple[int, int]], start: int, offset: int, most_bytes: int | None = None) -> int:
    """Return the last beginning of a segment before which everything is below `offset`, or the start.

    `segments`: offset and size of each, in order; the last one stays. `most_bytes`: a limit on the removed segments,
    but at least one is removed."""
    floor, size = start, 0
    for (_, older_bytes), (base, _) in pairwise(segments):
        size += older_bytes
        if base > offset or (most_bytes is not None and size > most_bytes and floor > start):
            break
        if base > start:
            floor = base
    return floor


def refusal(findings: Sequence[str]) -> str:
    """Return why a stretch with findings is not trimmed."""
    return f"{'; '.join(findings)}; nothing was removed (use --accept-findings to trim it anyway)"
