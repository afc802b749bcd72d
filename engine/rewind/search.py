"""Searches a history for messages, a portion at a time: the process that reads the past is never held for long.

    ranges = whole(reader, criteria, since_ms=None, until_ms=None)
    while ranges:
        page = search(reader, criteria, ranges, limits, subjects)
        page.found; ranges = page.ranges

    queues-0   |===================|. . . . . . .|#######|      # searched    . next window    = left
    queues-1   |=======|. . . . . . .|###################|

- A portion takes windows of each partition in turn, the newest first, until its time is over or it has found enough.
  `ranges` say what is left. So the broker remembers no search, and one that is given up costs nothing.
- A window begins small and grows while it is quick. So large records do not make a portion long.
- Most records are passed over by their bytes, undecoded. Bodies are decrypted with the keys of today, and a found
  body is cut at once.
- A message that was published before the log begins, and is queued there, is found in the base.
- A message that moved to another partition along with its queue is found where it was published first.
- Where an index of ids knows a stretch (`--find-index`), only the records that it names are read.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader
from rewindmq.engine.rewind.id_index import Indexed
from rewindmq.engine.rewind.masks import NOTHING, Withheld
from rewindmq.engine.rewind.partition_visits import is_told_before, lowest, partition_visits
from rewindmq.projections.history.search import Criteria
from rewindmq.projections.replay import decoder_for
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor

FIRST_WINDOW, LARGEST_WINDOW = 2_000, 128_000  # records
MOST_INDEXED = 200  # records that the index names, read as one window
QUICK_SECONDS = 0.1  # a window that takes less is followed by a larger one

Record = tuple[int, int | None, bytes]  # its offset, the log's own time (None: it has none), and the record
Ranges = dict[str, tuple[int, int]]  # partition -> first offset and end (exclusive) that are still to be searched


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of a portion: messages, bytes of each body, bytes of all bodies together, seconds."""

    messages: int
    body_bytes: int
    bytes_together: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A publish that matches, its body decrypted and cut. `partition` and `offset` name the message."""

    partition: str
    offset: int
    time_ms: int
    actor: Actor
    published: Published


@dataclass(frozen=True, slots=True)
class SearchPage:
    """The messages of a portion, the newest first. `searched`: the ranges became shorter by so many records. `read`: so
    many of these were read; the index knew that none of the others has the id."""

    found: list[FoundMessage]
    ranges: Ranges
    searched: int
    read: int


def partitions_of(reader: HistoryReader, criteria: Criteria) -> list[HistoryPartition]:
    """The partitions in which the wanted messages may be."""
    if criteria.queue is None:
        return list(reader.queues)
    return list(dict.fromkeys(each.log for each in partition_visits(reader, criteria.vhost, criteria.queue)))


def lowest_in(reader: HistoryReader, criteria: Criteria, queue_id: int) -> dict[str, int]:
    """By partition, the offset below which nothing of this incarnation of the queue is, nor of what it was before."""
    if criteria.queue is None:
        return dict.fromkeys((log.name for log in reader.queues), 0)
    every = partition_visits(reader, criteria.vhost, criteria.queue)
    found = lowest(every, reader.placement, criteria.vhost, criteria.queue, queue_id or None)
    return {log.name: first for log, first in found.items()}


def whole(
    reader: HistoryReader, criteria: Criteria, queue_id: int, since_ms: int | None, until_ms: int | None
) -> Ranges:
    """The ranges of a search that begins. `queue_id`: only this incarnation of the queue (0: any), and what it was
    before it moved. Times are inclusive. Raises LogError."""
    ranges, firsts = {}, lowest_in(reader, criteria, queue_id)
    for log in partitions_of(reader, criteria):
        if log.name not in firsts:
            continue
        first = firsts[log.name]
        begin = 0 if since_ms is None else log.offset_at(since_ms - 1)
        if begin <= log.start_offset:
            begin = 0  # the base may have younger ones
        end = log.durable_offset if until_ms is None else min(log.durable_offset, log.offset_at(until_ms))
        if max(begin, first) < end:
            ranges[log.name] = max(begin, first), end
    return ranges


def records_in(ranges: Ranges) -> int:
    """The number of records in the ranges."""
    return sum(end - first for first, end in ranges.values())


def search(
    reader: HistoryReader,
    criteria: Criteria,
    ranges: Ranges,
    limits: SearchLimits,
    subjects: Subjects,
    since_ms: int | None = None,
    index: Mapping[str, Indexed] | None = None,
    withheld: Withheld = NOTHING,
) -> SearchPage:
    """Search a portion of the ranges, and compare what is not `withheld`. Raises LogError.

    `index`: what is known of an id that is wanted, by partition."""
    begun = time.monotonic()
    left, window, found = dict(ranges), FIRST_WINDOW, list[FoundMessage]()
    scan = Scan(reader, criteria, limits, subjects, since_ms, withheld)
    logs = deque(log for log in partitions_of(reader, criteria) if log.name in left)
    looked = False  # each portion gets on, however slow the machine is
    while logs and scan.has_room and (not looked or time.monotonic() - begun < limits.seconds):
        looked = True
        log = logs[0]
        logs.rotate(-1)
        first, end = left[log.name]
        begin, wanted = window_before(log, first, end, window, None if index is None else index.get(log.name))
        messages, reached = scan.window(log, begin, end, wanted)
        found += messages
        left[log.name] = first, reached
        if reached <= first:
            del left[log.name]
            logs.remove(log)
        if wanted is None:
            window = min(LARGEST_WINDOW, window * 4) if scan.was_quick else max(1, window // 2)
    found.sort(key=lambda each: (each.time_ms, each.partition, each.offset), reverse=True)
    return SearchPage(found, left, records_in(ranges) - records_in(left), scan.read)


def window_before(
    log: HistoryPartition, first: int, end: int, window: int, indexed: Indexed | None
) -> tuple[int, Sequence[int] | None]:
    """The first offset of the window that ends at `end`, and the records of it that have to be read; None: all.

    The window is in the log, or all of it is in the base."""
    start = log.start_offset
    if end <= start:
        return first, None
    begin = max(first, start, end - window)
    if indexed is None:
        return begin, None
    known_first, known_end = next((each for each in reversed(indexed.stretches) if each[0] < end), (0, 0))
    if known_end < end:
        return max(begin, known_end), None
    begin = max(first, start, known_first)
    offsets = indexed.offsets
    low, high = bisect_left(offsets, begin), bisect_left(offsets, end)
    if high - low > MOST_INDEXED:
        low = high - MOST_INDEXED
        begin = offsets[low]
    return begin, offsets[low:high]


class Scan:
    """Looks through windows, and keeps the newest matches of each as long as there is room."""

    def __init__(
        self,
        reader: HistoryReader,
        criteria: Criteria,
        limits: SearchLimits,
        subjects: Subjects,
        since_ms: int | None,
        withheld: Withheld,
    ) -> None:
        self.reader = reader
        self.criteria = criteria
        self.subjects = subjects
        self.since_ms = since_ms
        self.withheld = withheld
        self.body_bytes = limits.body_bytes
        self.messages = limits.messages
        self.bytes = limits.bytes_together
        in_records = criteria if subjects.keys.is_empty else criteria.without_body()
        self.needles = in_records.needles()
        self.read = 0  # records, in the part that has been searched
        self._in_window = 0
        self._read_from = 0.0  # when the first record of the window came: to open a topic takes its time

    @property
    def has_room(self) -> bool:
        """Return True if one more message may be found."""
        return self.messages > 0 and self.bytes > 0

    @property
    def was_quick(self) -> bool:
        """Return True if the window that was just searched took less than QUICK_SECONDS."""
        return time.monotonic() - self._read_from < QUICK_SECONDS

    def window(
        self, log: HistoryPartition, begin: int, end: int, wanted: Sequence[int] | None = None
    ) -> tuple[list[FoundMessage], int]:
        """The matches of a window in the order of the log, and the first offset that has been searched.

        `wanted`: only these records may match; None: all."""
        kept: deque[tuple[FoundMessage, int]] = deque()  # with the number of records that were read before it
        size, cut = 0, False
        self._in_window = 0
        records = records_between(log, begin, end) if wanted is None else records_at(log, wanted)
        for each in self._matches(log, records):
            kept.append((each, self._in_window - 1))
            size += len(each.published.body)
            while len(kept) > self.messages or (size > self.bytes and len(kept) > 1):
                size -= len(kept.popleft()[0].published.body)
                cut = True
        self.messages -= len(kept)
        self.bytes -= size
        reached, again = (kept[0][0].offset, kept[0][1]) if cut else (begin, 0)
        self.read += self._in_window - again  # those before the cut will be read again
        return [each for each, _ in kept], reached

    def _matches(self, log: HistoryPartition, records: Iterable[Record]) -> Iterator[FoundMessage]:
        decode, needles = decoder_for(log).decode, self.needles
        self._read_from = time.monotonic()
        for offset, time_ms, record in records:
            if self._in_window == 0:
                self._read_from = time.monotonic()
            self._in_window += 1
            if not all(needle in record for needle in needles):
                continue
            try:
                envelope_ms, actor, event = decode(record)
            except UndecodableRecord:
                continue
            if type(event) is not Published or is_told_before(self.reader, event):
                continue
            if time_ms is None:
                time_ms = envelope_ms
            if self.since_ms is not None and time_ms < self.since_ms:
                continue
            by_body = self.criteria.body is not None
            seen = self._seen(self.subjects.decrypt(event) if by_body else event)
            if self.criteria.match(seen):
                seen = seen if by_body else self._seen(self.subjects.decrypt(event))
                yield FoundMessage(log.name, offset, time_ms, actor, self._cut(seen))

    def _seen(self, published: Published) -> Published:
        return self.withheld.hide(published, self.criteria.queue)

    def _cut(self, published: Published) -> Published:
        return replace(published, body=published.body[: self.body_bytes])


def records_at(log: HistoryPartition, wanted: Sequence[int]) -> Iterator[Record]:
    """Yields the records of the log at these offsets, which ascend, as `records_between`. LogError."""
    at = 0
    for block in log.read_ranges((offset, offset + 1) for offset in wanted):
        first, times = block.first_offset, block.timestamps_ms
        while at < len(wanted) and wanted[at] < first + len(block.records):  # a block may have several
            index = wanted[at] - first
            if index >= 0:
                yield wanted[at], None if times is None else times[index], block.records[index]
            at += 1


def records_between(log: HistoryPartition, begin: int, end: int) -> Iterator[Record]:
    """Yields the records from `begin` to `end`, of the log or of its base. LogError."""
    if begin >= end:
        return
    if end <= log.start_offset:
        base = log.base()
        older: Iterable[tuple[int, bytes]] = () if base is None else base.records()
        yield from ((offset, None, record) for offset, record in older if begin <= offset < end)
        return
    for block in log.read_ranges([(begin, end)]):
        first, times = block.first_offset, block.timestamps_ms
        for index in range(max(0, begin - first), min(len(block.records), end - first)):
            yield first + index, None if times is None else times[index], block.records[index]
