"""Rebuilds a partition as it was at an offset, or at a moment in time.

    at = At(time_ms=parse_time("2026-11-21T03:04:05.678+00:00"))       # or parse_time("10m"), or At(offset=1_000)
    machine = state_at(log_partition, snapshots, at)

`state at T` means: everything logged up to T has happened, and the clock is at T (everything due by T has expired).
`state at offset N` means: every event below N has happened; the clock is where the last of them left it.
The fold starts from the nearest snapshot at or before that offset. If a snapshot is damaged, the fold starts from the
previous one, because a snapshot only saves time.
"""

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import Block, PartitionLog, beginning, decoder_for, fold
from rewindmq.projections.store.bases import BaseGone
from rewindmq.projections.store.snapshots import SnapshotError, Snapshots, load
from rewindmq.projections.waypoints import Waypoints

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS = re.compile(r"[0-9]+")
_AGO = re.compile(r"-?(?:[0-9]{1,9}[smhdw])+")
_PART_OF_AGO = re.compile(r"([0-9]+)([smhdw])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # from the year 1 to 9999, in UTC


class RewindError(Exception):
    """The requested moment does not exist; the text says why, for people."""


class UnreadableTime(RewindError):
    """The text is not a time."""


class OutsideHistory(RewindError):
    """The time is before the history, or the log does not have the offset."""


class BelowFloor(OutsideHistory):
    """The moment is before the beginning of a partition's history. `start`: the offset of the beginning."""

    def __init__(self, partition: str, start: int, text: str) -> None:
        super().__init__(text)
        self.partition = partition
        self.start = start

    def __reduce__(self) -> tuple[type["BelowFloor"], tuple[str, int, str]]:
        """Make the error picklable, because it may be from another process."""
        return BelowFloor, (self.partition, self.start, str(self))


class TrimmedMeanwhile(OutsideHistory):
    """The history was trimmed while it was read; the same question can be asked again."""


@dataclass(frozen=True, slots=True)
class At:
    """A moment: a time (milliseconds since the epoch) or an offset (exclusive). Exactly one of the two is given.

    `partition`: the name of the offset's partition; None: the partition in question."""

    time_ms: int | None = None
    offset: int | None = None
    partition: str | None = None


def parse_time(text: str) -> int:
    """Return the milliseconds since the epoch of a time as people write it.

    `text` is an ISO 8601 time with its zone (`2026-11-21T03:04:05.678+00:00`, `...Z`), a whole number of milliseconds
    since the epoch, or how long ago by this machine's clock (`10m`, `1h30m`; in s, m, h, d and w; `-10m` is the same).
    Digits finer than a millisecond are cut off. Raises UnreadableTime for any other text."""
    text = text.strip()
    if _MILLISECONDS.fullmatch(text):
        return _in_range(text, int(text) if len(text) <= len(str(_LAST_MS)) else _LAST_MS + 1)
    if _AGO.fullmatch(text):
        ago_ms = sum(int(count) * _UNIT_MS[unit] for count, unit in _PART_OF_AGO.findall(text))
        return _in_range(text, time.time_ns() // 1_000_000 - ago_ms)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UnreadableTime(
            f"{text!r} is not a time: give ISO 8601 with a zone, e.g. 2026-11-21T03:04:05.678+00:00, or how long ago,"
            " e.g. 10m"
        ) from error
    if moment.tzinfo is None:
        raise UnreadableTime(f"{text!r} has no zone: add Z for UTC, or an offset such as +01:00")
    return _in_range(text, (moment - _EPOCH) // timedelta(milliseconds=1))


def absolute(text: str) -> str:
    """Return the time that a text such as `10m` (ten minutes ago) means now; any other text unchanged.

    For a text that is read more than once. Raises UnreadableTime for a time before the year 1."""
    return format_time(parse_time(text)) if _AGO.fullmatch(text.strip()) else text


def _in_range(text: str, time_ms: int) -> int:
    if not _FIRST_MS <= time_ms <= _LAST_MS:
        last = f"{format_time(_LAST_MS)}, {_LAST_MS} milliseconds"
        first = f"the first time is {format_time(_FIRST_MS)}, " if time_ms < _FIRST_MS else ""
        raise UnreadableTime(f"{text!r} is out of range: {first}the last time is {last}")
    return time_ms


def format_time(time_ms: int) -> str:
    """Return the time in ISO 8601, in UTC and with milliseconds; `parse_time` reads it back."""
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")


def begin_ms(log: PartitionLog) -> int | None:
    """Return the time at which the partition's history begins, that of its oldest record; None while it is empty."""
    start = log.start_offset
    for block in log.read(start):
        return time_at(log, block, max(start, block.first_offset))
    return None


def time_at(log: PartitionLog, block: Block, offset: int) -> int:
    """Return the time of a record of this block."""
    at = offset - block.first_offset
    if block.timestamps_ms is not None:
        return block.timestamps_ms[at]
    return decoder_for(log).timestamp_ms(block.records[at])


def require_in_history(logs: Iterable[PartitionLog], time_ms: int) -> None:
    """Raise OutsideHistory if `time_ms` is before the oldest record of all these partitions.

    A partition whose history begins later was empty at that time, which is an answer, not an error."""
    begins = []
    for log in logs:
        begin = begin_ms(log)
        if begin is not None:
            if begin <= time_ms:
                return
            begins.append(begin)
    if not begins:
        raise OutsideHistory("the history is empty")
    raise OutsideHistory(f"{format_time(time_ms)} is before the history, which begins {format_time(min(begins))}")


def require_above_floor(log: PartitionLog, time_ms: int) -> None:
    """Raise BelowFloor if the time is before the beginning of a partition whose older part was trimmed."""
    start = log.start_offset
    if start > 0 and log.offset_at(time_ms) <= start:
        _require_not_before(log, start, beginning(log), time_ms)


def _require_not_before(log: PartitionLog, start: int, begun: Machine, time_ms: int) -> None:
    if time_ms < begun.log_ms:
        began = f"{log.name} begins at offset {start}, with the state of {format_time(begun.log_ms)}"
        raise BelowFloor(log.name, start, f"{began}: {format_time(time_ms)} is before it")


def state_at(
    log: PartitionLog, snapshots: Snapshots | None, at: At, waypoints: Waypoints | None = None, durable: int = 0
) -> Machine:
    """Return the partition's machine at a moment. The fold leaves `waypoints` behind, up to offset `durable`.

    Raises OutsideHistory for an offset that the log does not reach or no longer has. `require_in_history` checks a time
    before the whole history. Raises CorruptLog from the log."""
    if at.time_ms is not None:
        offset = log.offset_at(at.time_ms)
    else:
        assert at.offset is not None, "a moment is a time or an offset"
        offset = at.offset
    if not 0 <= offset <= log.next_offset:
        raise OutsideHistory(f"{log.name} has offsets {log.start_offset} to {log.next_offset}, not {offset}")
    start = log.start_offset
    if offset < start:
        raise BelowFloor(log.name, start, f"{log.name} begins at offset {start}: offset {offset} is no longer kept")
    machine = nearest(log, snapshots, offset, waypoints)
    if machine.next_offset > offset:  # the history was trimmed meanwhile
        return state_at(log, snapshots, at, waypoints, durable)
    end = machine.next_offset
    while waypoints is not None and (end := waypoints.next_after(log.name, end)) < min(offset, durable):
        fold(machine, log, end)
        waypoints.leave(machine)
    fold(machine, log, offset)
    if at.time_ms is not None:
        if offset == start > 0:
            _require_not_before(log, start, machine, at.time_ms)
        ignored: list[Effect] = []
        machine.advance(at.time_ms, ignored)
    return machine


def nearest(log: PartitionLog, snapshots: Snapshots | None, offset: int, waypoints: Waypoints | None = None) -> Machine:
    """Return the state from which to fold up to `offset`: the nearest snapshot or waypoint, or the log's beginning.

    Raises OutsideHistory if the log no longer has the records after it; CorruptLog, LogError, BaseError."""
    path = None if snapshots is None else snapshots.nearest(log.name, offset)
    passed = None if waypoints is None else waypoints.before(log.name, offset)
    usable = passed is not None and passed >= log.start_offset and (path is None or passed >= int(path.stem))
    if waypoints is not None and passed is not None and usable:
        return waypoints.load(log.name, passed)
    while (
        snapshots is not None and path is not None and int(path.stem) >= log.start_offset
    ):  # the log lacks the records after the lower ones
        try:
            return load(path)
        except SnapshotError as error:
            logger.warning("%s; folding from the one before", error)
            path = snapshots.nearest(log.name, int(path.stem) - 1)
    return oldest(log)


def oldest(log: PartitionLog) -> Machine:
    """Return the state at the log's beginning, as `beginning` does, but never the empty one of a log that lost it.

    Raises OutsideHistory for such a log (Kafka's, without its archive); LogError, BaseError, NewerHistory."""
    while True:
        start = log.start_offset
        try:
            machine = beginning(log)
        except BaseGone:
            if log.start_offset == start:
                raise
            continue  # the history was trimmed in between, as below
        if machine.next_offset < start:
            raise OutsideHistory(f"{log.name}: what lies below offset {start} is no longer kept")
        if machine.next_offset >= log.start_offset:
            return machine
