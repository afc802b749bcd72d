"""Outcomes of messages that belong to a trace, a portion at a time, from their publishes on.

    wanted = WantedTraces("/", "orders", None, since_ms, None)
    places = whole(reader, wanted)
    while places:
        portion = traced_outcomes(reader, snapshots, wanted, places)
        portion.rows; places = portion.places

A portion folds one partition on from where the last one ended: until its time is over, or it has MOST_ROWS rows. The
`places` say what is left, so the broker remembers nothing. Rows of a message that an earlier portion saw published are
given whether it has a trace or not.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader
from rewindmq.engine.rewind.outcomes import QueueRows
from rewindmq.engine.rewind.partition_visits import lineage_of, lowest, partition_visits
from rewindmq.projections.history.outcome_rows import PLACE, OutcomeRow, PlainRows, Shared
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.replay import RecordGroup, decoder_for, groups_of
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.traces.trace_context import Trace
from rewindmq.projections.traces.trace_outcomes import PublishTraces, TracedOutcomes

MOST_ROWS = 10_000
PORTION_SECONDS = 5.0

# partition -> offset and ordinal of the next row, and the end of the fold (exclusive), in the order of the work
Places = dict[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class WantedTraces:
    """The wanted messages: published to a queue of a vhost (None: to any), by time. Times are inclusive.

    `queue_id`: the only incarnation of the queue that the user may read."""

    vhost: str
    queue: str | None
    queue_id: int | None
    since_ms: int
    until_ms: int | None

    def logs(self, reader: HistoryReader) -> list[tuple[HistoryPartition, int]]:
        """The partitions in which wanted publishes may be, and the lowest offset of one. Raises LogError."""
        firsts: dict[HistoryPartition, int] = dict.fromkeys(reader.queues, 0)
        if self.queue is not None:
            every = partition_visits(reader, self.vhost, self.queue)
            firsts = lowest(every, reader.placement, self.vhost, self.queue, self.queue_id)
        return [(log, max(log.offset_at(self.since_ms - 1), log.start_offset, firsts[log])) for log in firsts]

    def rows(self, reader: HistoryReader, partition: str) -> "WantedRows":
        """The rows of a partition that tell of wanted messages."""
        same = None
        if self.queue is not None and self.queue_id is not None:
            same = lineage_of(reader.placement, self.vhost, self.queue, self.queue_id).ids_in(partition)
        return WantedRows(self.vhost, self.queue, same)


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Wants the rows of a vhost, or of one queue in it; of these incarnations, if `queue_ids` is given."""

    vhost: str
    queue: str | None
    queue_ids: frozenset[int] | None

    def __call__(self, shared: Shared) -> bool:
        if self.queue is None:
            return bool(shared[PLACE["vhost"]] == self.vhost)
        return QueueRows(self.vhost, self.queue, self.queue_ids)(shared)


@dataclass(frozen=True, slots=True)
class TracePortion:
    """Rows in the order of a partition, the traces of the publishes among them, and what is left."""

    rows: list[OutcomeRow]
    traces: dict[int, Trace]
    places: Places

    @property
    def left(self) -> int:
        """The number of records that are still to be folded."""
        return sum(end - offset for offset, _, end in self.places.values())


def whole(reader: HistoryReader, wanted: WantedTraces) -> Places:
    """The places of a question that begins. Raises LogError."""
    places = {log.name: (first, 0, log.durable_offset) for log, first in wanted.logs(reader)}
    return {name: place for name, place in places.items() if place[0] < place[2]}


def within(asked: Places, allowed: Places) -> Places:
    """The part of the places that may be read."""
    found = {}
    for name, (offset, ordinal, end) in asked.items():
        if name in allowed:
            first, _, last = allowed[name]
            found[name] = (offset, ordinal, min(end, last)) if offset >= first else (first, 0, min(end, last))
    return {name: place for name, place in found.items() if place[0] < place[2]}


def traced_outcomes(
    reader: HistoryReader,
    snapshots: Snapshots | None,
    wanted: WantedTraces,
    places: Places,
    seconds: float = PORTION_SECONDS,
    most: int = MOST_ROWS,
) -> TracePortion:
    """The next portion. Raises LogError, OutsideHistory."""
    if not places:
        return TracePortion([], {}, {})
    name, (begin, ordinal, end) = next(iter(places.items()))
    log, first = next(each for each in wanted.logs(reader) if each[0].name == name)
    behind = end if wanted.until_ms is None else min(end, log.offset_at(wanted.until_ms))
    traces = PublishTraces(first, behind, begin)
    product = TracedOutcomes(PlainRows(name, wanted.rows(reader, name), traces), traces)
    machine = state_at(log, snapshots, At(offset=begin))
    rows: list[OutcomeRow] = []
    for batch in fold_events(product, machine, _in_time(log, begin, end, seconds), decoder_for(log)):
        rows += [row for row in batch if (row.offset, row.ordinal) >= (begin, ordinal)]
        if len(rows) > most:
            break
    reached, next_ordinal = machine.next_offset, 0
    if len(rows) > most:
        reached, next_ordinal = rows[most].offset, rows[most].ordinal
        rows = rows[:most]
    left = {name: (reached, next_ordinal, end)} if reached < end else {}
    left |= {other: place for other, place in places.items() if other != name}
    return TracePortion(rows, traces.of, left)


def _in_time(log: HistoryPartition, begin: int, end: int, seconds: float) -> Iterator[RecordGroup]:
    """Yields the records of a range in groups, until the time is over; one at least. Raises LogError."""
    over = time.monotonic() + seconds
    for offsets, records, times in groups_of(log, begin, end):
        behind = bisect_left(offsets, end)
        yield offsets[:behind], records[:behind], None if times is None else times[:behind]
        if time.monotonic() > over:
            return
