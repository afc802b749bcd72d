"""Resolves the range of the log that a job reads: Spark's Kafka options become offsets, once, in the driver.

    startingOffsets, endingOffsets       JSON per partition, {"queues-0": 12}; -2 is the earliest, -1 the end. For all
                                         partitions: earliest, latest
    startingTimestamp, endingTimestamp   ISO 8601 or epoch milliseconds; the end is inclusive
    startingOffsetsByTimestamp, endingOffsetsByTimestamp
                                         JSON of epoch milliseconds per partition, {"queues-0": 1763694000000}
    startingOffsetsByTimestampStrategy   error (default) or latest: what to do when nothing is at or after the start
    failOnDataLoss                       true (default): an offset that is not in the log is an error; false: the part
                                         of the range that is there is read

Ending offsets are exclusive, as Kafka's. A time that matches nothing is an error here (Spark's Kafka source quietly
takes the end of the log): before the history there is no state, and after now there is no history yet. An end before
the start is an error, too; a range without events is just empty.
A range is resolved once and passed on as offsets, so that all parts of a job see the same range beside a running
broker.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Protocol, TypeVar

from rewindmq.projections.marks import name_in
from rewindmq.projections.rewind import OutsideHistory, RewindError, absolute, format_time, parse_time

RANGE_OPTIONS = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
)
EARLIEST = -2
LATEST = -1
MOST_PIECES = 100_000  # pieces of a table; a Spark job cannot have more tasks
BACKWARDS = "the second moment lies before the first"
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


class BadRequest(RewindError):
    """An option or argument is senseless; the text is one line for people."""


class ReadablePartition(Protocol):
    """The part of a log partition that this file needs."""

    @property
    def name(self) -> str:
        """Such as `queues-0`."""

    @property
    def start_offset(self) -> int:
        """The offset of the oldest record."""

    @property
    def next_offset(self) -> int:
        """The end of the log (exclusive)."""

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset of the first record after this time."""


P = TypeVar("P", bound=ReadablePartition)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` (inclusive) to `end` (exclusive) of one partition."""

    partition: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CheckpointRange(OffsetRange):
    """A range that is folded from exactly the snapshot at `checkpoint`, and from no other."""

    checkpoint: int


def joined(ranges: Iterable[OffsetRange]) -> dict[str, OffsetRange]:
    """One range for each partition, from its first start to its last end."""
    whole: dict[str, OffsetRange] = {}
    for each in ranges:
        known = whole.get(each.partition, each)
        whole[each.partition] = OffsetRange(each.partition, min(known.start, each.start), max(known.end, each.end))
    return whole


def parse_offsets(text: str, partitions: Iterable[str], option: str) -> dict[str, int]:
    """{"queues-0": 12} as a dictionary; a bare number stands for the only partition.

    Raises BadRequest."""
    names = list(partitions)
    try:
        value = json.loads(text)
    except ValueError:
        raise BadRequest(f'{option}: {text!r} is not JSON such as {{"queues-0": 12}}') from None
    if type(value) is int and len(names) == 1:
        return {names[0]: value}
    if type(value) is int:
        raise BadRequest(f"{option}: {value} names no partition; there are {', '.join(names)}")
    if not isinstance(value, dict):
        raise BadRequest(f'{option}: {text!r} is not an object such as {{"queues-0": 12}}')
    for name, offset in value.items():
        if name not in names:
            raise BadRequest(f"{option}: there is no partition {name}; there are {', '.join(names)}")
        if type(offset) is not int or offset < EARLIEST:
            raise BadRequest(f"{option}: {offset!r} is not an offset (a number from 0, -1: the end, -2: the earliest)")
    return value


def resolve(
    partitions: Iterable[P],
    options: Mapping[str, str],
    first_ms: int | None,
    require_kept: Callable[[P, int], None] = lambda partition, time_ms: None,
) -> list[OffsetRange]:
    """Return the range of each partition.

    `first_ms`: the time of the first event of the whole history (None: no event). `require_kept`: raises an error for a
    time before the beginning of a partition; it is not asked with failOnDataLoss=false. Raises BadRequest,
    OutsideHistory."""
    known = list(partitions)
    names = [partition.name for partition in known]
    starts, ends = (_offsets(options, option, names) for option in ("startingOffsets", "endingOffsets"))
    strict = true_or_false(options, "failOnDataLoss", True)
    starts_at = _times(options, "starting", names)
    ends_at = _times(options, "ending", names)
    for name in starts_at.keys() & ends_at.keys():
        require_order(starts_at[name], ends_at[name])
    ranges = []
    for partition in known:
        name = partition.name
        end = _offset(partition, ends.get(name, LATEST), "endingOffsets", strict)
        if name in ends_at and name not in ends:
            time_ms = ending_time_ms(ends_at[name], first_ms)
            if strict:
                require_kept(partition, time_ms)
            end = partition.offset_at(time_ms)
        start = _offset(partition, starts.get(name, EARLIEST), "startingOffsets", strict)
        if name in starts_at and name not in starts:
            time_ms = parse_time(starts_at[name])
            if strict:
                require_kept(partition, time_ms)
            start = partition.offset_at(time_ms - 1)
        if start > end and (name in starts or name in starts_at):
            raise BadRequest(BACKWARDS)
        ranges.append(OffsetRange(name, min(start, end), end))
    _require_start(known, ranges, options)
    return ranges


def require_order(start: str | None, end: str | None) -> None:
    """Raise BadRequest when both moments are times, and the end is before the start.

    Other moments (mark:NAME, offsets) are not checked here: code that resolves them to offsets checks them."""
    if start is None or end is None or any(name_in(text) or text.lstrip().startswith("{") for text in (start, end)):
        return
    if parse_time(start) > parse_time(end):
        raise BadRequest(BACKWARDS)


def true_or_false(options: Mapping[str, str], name: str, default: bool) -> bool:
    """An option that is true or false, in any case of letters.

    Raises BadRequest."""
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise BadRequest(f"{name}: {value!r} is neither true nor false")
    return value == "true"


def parse_count(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a number from 1.

    Raises BadRequest."""
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST_PIECES):
        raise BadRequest(f"{name}: {text!r} is not a number from 1 to {MOST_PIECES}")
    return int(text)


def _offsets(options: Mapping[str, str], option: str, names: list[str]) -> dict[str, int]:
    text = options.get(option, "{}")
    if text in _WORDS:
        return dict.fromkeys(names, _WORDS[text])
    return parse_offsets(text, names, option)


def _times(options: Mapping[str, str], which: str, names: list[str]) -> dict[str, str]:
    """Return the time of each partition that has one. A time for one partition overrides the time for all."""
    option = f"{which}OffsetsByTimestamp"
    text = options.get(f"{which}Timestamp")
    of_all = {} if text is None else dict.fromkeys(names, absolute(text))
    return of_all | {name: str(ms) for name, ms in parse_offsets(options.get(option, "{}"), names, option).items()}


def ending_time_ms(text: str, first_ms: int | None, future: bool = False) -> int:
    """Return the time up to which to read.

    Raises OutsideHistory before the first event and, unless `future`, after now."""
    timestamp_ms = parse_time(text)
    if first_ms is None:
        raise OutsideHistory(f"the history is empty: there is no state at {format_time(timestamp_ms)}")
    if timestamp_ms < first_ms:
        begins = format_time(first_ms)
        raise OutsideHistory(f"{format_time(timestamp_ms)} is before the history, which begins {begins}")
    if not future and timestamp_ms > time.time() * 1000:
        raise OutsideHistory(f"{format_time(timestamp_ms)} lies in the future: its history is not complete")
    return timestamp_ms


def _offset(partition: ReadablePartition, requested: int, option: str, strict: bool) -> int:
    first, end = partition.start_offset, partition.next_offset
    if requested == EARLIEST:
        return first
    if requested == LATEST:
        return end
    if strict and not first <= requested <= end:
        raise OutsideHistory(f"{option}: {partition.name} has offsets {first} to {end}, not {requested}")
    return min(max(first, requested), end)


def _require_start(known: Sequence[ReadablePartition], ranges: list[OffsetRange], options: Mapping[str, str]) -> None:
    """Raise OutsideHistory for a starting time after the last event, unless the strategy says otherwise."""
    strategy = options.get("startingOffsetsByTimestampStrategy", "error")
    if strategy not in ("error", "latest"):
        raise BadRequest(f"startingOffsetsByTimestampStrategy: {strategy!r} is neither error nor latest")
    requested = [options[name] for name in ("startingTimestamp", "startingOffsetsByTimestamp") if name in options]
    if not requested or strategy == "latest":
        return
    if all(offset_range.start >= each.next_offset for each, offset_range in zip(known, ranges, strict=True)):
        raise OutsideHistory(f"startingTimestamp: nothing was logged at or after {requested[0]}")


def divide(ranges: Iterable[OffsetRange], least: int) -> list[OffsetRange]:
    """Return the same ranges, in order, in `least` pieces or more (fewer when there are not so many events).

    Each time the range with the largest pieces gets one more, so that pieces are of about one size."""
    whole = list(ranges)
    pieces = [1] * len(whole)
    largest: list[tuple[float, int]] = [(each.start - each.end, number) for number, each in enumerate(whole)]
    heapify(largest)
    for _ in range(least - len(whole)):
        negative, number = largest[0]
        if negative >= -1:
            break  # one event a piece
        pieces[number] += 1
        size = whole[number].end - whole[number].start
        heapreplace(largest, (-size / pieces[number], number))
    return [piece for offset_range, count in zip(whole, pieces, strict=True) for piece in _cut(offset_range, count)]


def _cut(offset_range: OffsetRange, count: int) -> list[OffsetRange]:
    size = offset_range.end - offset_range.start
    bounds = [offset_range.start + size * number // count for number in range(count + 1)]
    return [OffsetRange(offset_range.partition, a, b) for a, b in pairwise(bounds)]
