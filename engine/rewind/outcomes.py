"""Outcomes of a history for one question: a message's life, a queue's last rows, the changes between two moments.

    biography(reader, snapshots, "/", "queues-0:123", None, deadline)
    last_outcomes(reader, snapshots, "/", "orders", 100, deadline)
    changes(reader, snapshots, "/", "orders", start, end, 1_000, deadline)

The rules are Spark's (projections/history). Here a fold begins at the nearest snapshot and reads no more than it needs:
one message's rows end when the message has left its queues, and a queue's last rows are looked for in windows that grow
backwards from the end.

Rows are bounded in number, and time by a deadline: an answer that is not `complete` has what was found by then.
"""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader
from rewindmq.engine.rewind.partition_visits import (
    PartitionVisit,
    QueueLineage,
    came_from,
    first_in,
    lineage_of,
    log_between,
    partition_visits,
)
from rewindmq.engine.rewind.search import FoundMessage, records_between
from rewindmq.projections.history.biography import Key, Source, as_source
from rewindmq.projections.history.diff import fold_moves
from rewindmq.projections.history.outcome_rows import PUBLISHED, OutcomeRow, PlainRows
from rewindmq.projections.history.outcomes import Outcomes
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import RecordGroup, decoder_for, groups_of
from rewindmq.projections.rewind import At, OutsideHistory, state_at
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Published

MOST_MESSAGES = 100  # of a biography
MOST_ROWS = 10_000  # of a biography
FIRST_LOOK_BACK = 10_000  # records before the end, in search of a queue's last rows; then four times as many
APART_MS = 60_000  # by so much clocks of two partitions may differ


class OutOfTime(Exception):
    """The deadline of a question is over."""


class Deadline:
    """The time that a question may take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def check(self) -> None:
        """Raise OutOfTime if the time is over."""
        if time.monotonic() > self._end:
            raise OutOfTime


@dataclass(frozen=True, slots=True)
class QueueRows:
    """Wants the rows of one queue; of some incarnations of it, if `queue_ids` is given."""

    vhost: str
    queue: str
    queue_ids: frozenset[int] | None
    moves: bool = False

    def __call__(self, shared: tuple[object, ...]) -> bool:
        vhost, queue, queue_id, outcome, final = shared[4:9]
        if (vhost, queue) != (self.vhost, self.queue):
            return False
        if self.queue_ids is not None and queue_id not in self.queue_ids:
            return False
        return not self.moves or bool(final) or outcome == PUBLISHED


def timely(log: HistoryPartition, begin: int, end: int, deadline: Deadline) -> Iterator[RecordGroup]:
    """Yields the records of a range in groups. Raises OutOfTime, LogError."""
    if begin >= end:
        return
    for offsets, records, times in groups_of(log, begin, end):
        deadline.check()
        behind = bisect_left(offsets, end)
        yield offsets[:behind], records[:behind], None if times is None else times[:behind]


def outcomes_from(
    log: HistoryPartition, machine: Machine, end: int, rows: PlainRows, deadline: Deadline
) -> Iterator[list[OutcomeRow]]:
    """Yields the rows of a range, which begins where the machine stands. Raises OutOfTime, LogError."""
    groups = timely(log, machine.next_offset, end, deadline)
    return fold_events(Outcomes(rows), machine, groups, decoder_for(log))


# -- the life of one message ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Biography:
    """The rows of a message and of all that came of it, by time. `complete`: there are no others up to now.

    `message`: the publish of the message itself, as it was logged: its body may be encrypted."""

    message: FoundMessage
    rows: list[OutcomeRow] = field(default_factory=list)
    complete: bool = True


class NoSuchMessage(Exception):
    """There is no message of that name. The text says so, for people."""


def biography(
    reader: HistoryReader,
    snapshots: Snapshots | None,
    vhost: str,
    partition: str | None,
    message_id: int,
    queue: str | None,
    only_queue_id: int | None,
    deadline: Deadline,
) -> Biography:
    """The life of a message. `queue`: only in this one of the publish's queues, with its dead letters and copies.

    `only_queue_id`: the only incarnation that the user may read; nothing that came of the message is told then, but
    how it goes on in the partitions to which its queue moved. A message that came along with its queue is followed from
    where it was published. Raises NoSuchMessage, LogError, OutsideHistory."""
    name = f"{partition}:{message_id}" if partition else str(message_id)
    logs = [log for log in reader.queues if partition in (None, log.name)] if queue is None or partition else []
    if queue is not None and partition is None:
        logs = list(dict.fromkeys(each.log for each in partition_visits(reader, vhost, queue)))
        logs = [log for log in logs if is_message_of(log, message_id, queue)] if len(logs) > 1 else logs
    if len(logs) > 1:
        raise NoSuchMessage(f"message {name}: which partition? {', '.join(f'{log.name}:{message_id}' for log in logs)}")
    where = f" in queue {queue}" if queue is not None else ""
    nothing = NoSuchMessage(f"no message {name}{where} in the history of vhost '{vhost}'")
    published = publish_of(logs[0], message_id) if logs else None
    while published is not None and (earlier := came_from(reader, published.published.origin)) is not None:
        origin = published.published.origin
        assert origin is not None, "a message that moved says where it was"
        logs, message_id = [earlier], origin.message_id
        published = publish_of(earlier, message_id)
    if published is None:
        raise nothing
    same = None
    if only_queue_id is not None and queue is not None:
        same = lineage_of(reader.placement, vhost, queue, only_queue_id)
    life = _Life(reader, snapshots, vhost, deadline, Biography(published), same)
    life.begin(logs[0], message_id, queue)
    if not life.keys:
        raise nothing
    try:
        if same is None or same.lives:
            life.follow()
    except OutOfTime:
        life.found.complete = False
    life.found.rows.sort(key=lambda row: (row.time_ms or 0, row.partition, row.offset, row.ordinal))
    return life.found


class _Life:
    def __init__(
        self,
        reader: HistoryReader,
        snapshots: Snapshots | None,
        vhost: str,
        deadline: Deadline,
        found: Biography,
        same: QueueLineage | None,
    ) -> None:
        self.reader = reader
        self.snapshots = snapshots
        self.vhost = vhost
        self.deadline = deadline
        self.found = found
        self.same = same  # the only queue that may be told of; None: all
        self.keys: set[Key] = set()
        # Incarnations of the queues of these messages
        self.queue_ids: dict[Source, set[int]] = {}
        self.begun_ms = 0  # nothing came of the message before

    def begin(self, log: HistoryPartition, message_id: int, queue: str | None) -> None:
        """Find the rows of the message itself."""
        rows = [
            row
            for row in self._rows_of(log, message_id)
            if row.value("vhost") == self.vhost and queue in (None, row.value("queue")) and self._may_tell(row)
        ]
        self.keys = {key_of(row) for row in rows}
        self._note(rows)
        self.found.rows += rows
        self.begun_ms = min((row.time_ms or 0 for row in rows), default=0)

    def _note(self, rows: Iterable[OutcomeRow]) -> None:
        for row in rows:
            source = as_source(self.reader.placement, key_of(row))
            self.queue_ids.setdefault(source, set()).add(row.value("queue_id"))

    def _may_tell(self, row: OutcomeRow) -> bool:
        return self.same is None or row.value("queue_id") in self.same.ids_in(row.partition)

    def follow(self) -> None:
        """Find what came of the message, hop by hop. Raises OutOfTime."""
        new = self.keys
        while new:
            came: set[Key] = set()
            for log, offset in self._letters(new):
                rows = [row for row in self._rows_of(log, offset) if self._may_tell(row)]
                reached = {key_of(row) for row in rows if row.value("origin") is not None} - self.keys - came
                told = [row for row in rows if key_of(row) in reached]
                self._note(told)
                self.found.rows += told
                came |= reached
                if len(self.keys) + len(came) > MOST_MESSAGES or len(self.found.rows) > MOST_ROWS:
                    raise OutOfTime
            self.keys = self.keys | came
            new = came

    def _rows_of(self, log: HistoryPartition, message_id: int) -> list[OutcomeRow]:
        """The rows of one publish, in all its queues, up to its end."""
        begin = max(message_id, log.start_offset)
        machine = state_at(log, self.snapshots, At(offset=begin))
        found: list[OutcomeRow] = []
        ended = False
        rows = PlainRows(log.name, message_ids={message_id})
        try:
            for batch in outcomes_from(log, machine, log.durable_offset, rows, self.deadline):
                found += batch[:MOST_ROWS]
                if ended or len(found) > MOST_ROWS:  # a batch more, for one event may be in two
                    break
                ended = begin == message_id and has_ended(found)
        except OutOfTime:
            self.found.complete = False
            found += [row for batch in rows.take(True) for row in batch]
        if len(found) > MOST_ROWS:
            self.found.complete = False
        return found[:MOST_ROWS]

    def _letters(self, keys: set[Key]) -> Iterator[tuple[HistoryPartition, int]]:
        """Yields publishes that came of these messages: dead letters and restored ones. Raises OutOfTime, LogError."""
        wanted = {as_source(self.reader.placement, key) for key in keys}
        needles = {queue.encode() for _, queue, _, _ in wanted}  # b"", of a message that no queue took, is in each
        for log in self.reader.queues:
            begin = max(log.start_offset, log.offset_at(self.begun_ms - APART_MS))
            decode = decoder_for(log).decode
            for count, (offset, _, record) in enumerate(records_between(log, begin, log.durable_offset)):
                if count % 1_000 == 0:
                    self.deadline.check()
                if not any(needle in record for needle in needles):
                    continue
                try:
                    event = decode(record, False)[2]
                except UndecodableRecord:
                    continue
                if type(event) is not Published or event.origin is None:
                    continue
                origin = event.origin
                source = origin.vhost, origin.queue, origin.message_id, origin.partition
                if source in wanted and (origin.queue_id < 0 or origin.queue_id in self.queue_ids[source]):
                    yield log, offset


def is_message_of(log: HistoryPartition, message_id: int, queue: str) -> bool:
    """Return True if the record is a publish to this queue. Raises LogError."""
    found = publish_of(log, message_id)
    return found is not None and queue in found.published.route.queues


def publish_of(log: HistoryPartition, message_id: int) -> FoundMessage | None:
    """The publish of a message, from the log or its base. None: there is none. Raises LogError."""
    if message_id >= log.durable_offset:
        return None
    if message_id < log.start_offset:
        base = log.base()
        older = None if base is None else base.record(message_id)
        record, time_ms = older, None
    else:
        _, time_ms, record = next(records_between(log, message_id, message_id + 1))
    if record is None:
        return None
    try:
        envelope_ms, actor, event = decoder_for(log).decode(record)
    except UndecodableRecord:
        return None
    if type(event) is not Published:
        return None
    return FoundMessage(log.name, message_id, envelope_ms if time_ms is None else time_ms, actor, event)


def has_ended(rows: Iterable[OutcomeRow]) -> bool:
    """Return True if the message has left each queue that took it."""
    came: set[Key] = set()
    left: set[Key] = set()
    for row in rows:
        if row.value("outcome") == PUBLISHED:
            came.add(key_of(row))
        elif row.value("final"):
            left.add(key_of(row))
    return came <= left


def key_of(row: OutcomeRow) -> Key:
    """The message of a row that is about one."""
    assert row.message_id is not None
    return row.partition, row.value("vhost"), row.value("queue"), row.message_id


# -- the last rows of a queue -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tail:
    """The last rows of a queue, in order. `complete`: there are as many as were asked for, or there are no more."""

    partition: str
    rows: list[OutcomeRow]
    complete: bool


def last_outcomes(
    reader: HistoryReader,
    snapshots: Snapshots | None,
    vhost: str,
    queue: str,
    queue_id: int | None,
    count: int,
    until_ms: int | None,
    deadline: Deadline,
) -> Tail:
    """The last `count` rows of a queue, by time, in all partitions where it was. `until_ms`: up to this time.

    `partition` of the answer is the one in which the queue is now. Raises LogError."""
    every = partition_visits(reader, vhost, queue)
    same = None if queue_id is None else lineage_of(reader.placement, vhost, queue, queue_id)
    tail = Tail(every[-1].log.name, [], True)
    ends: dict[HistoryPartition, int] = {}  # where it came back to a partition, its first stay ends before the last one
    for stay in reversed(every):
        log, first = stay.log, first_in(stay, reader.placement, vhost, queue, queue_id)
        if first is None or not tail.complete:
            continue
        end = log.durable_offset if until_ms is None else min(log.durable_offset, log.offset_at(until_ms))
        start, end = max(log.start_offset, first), min(end, ends.get(log, end))
        ends[log] = start
        if len(tail.rows) >= count:  # of this stay only what came later than the first of these is among the last
            since_ms = tail.rows[0].time_ms or 0
            start = max(start, log.offset_at(since_ms - 1))
            if start >= end or not _is_left(stay, snapshots, vhost, queue, start, since_ms):
                continue
        wanted = QueueRows(vhost, queue, None if same is None else same.ids_in(log.name))
        found = _last_in(log, snapshots, wanted, start, end, count, deadline)
        rows = list(merge(found.rows, tail.rows, key=lambda row: row.time_ms or 0))
        tail = Tail(tail.partition, rows[-count:], found.complete)
    return tail


def _is_left(
    stay: PartitionVisit, snapshots: Snapshots | None, vhost: str, queue: str, offset: int, time_ms: int
) -> bool:
    """Return True if a partition had the queue at a moment or later: consumers' messages stay there after a move."""
    if stay.until_ms is None or time_ms < stay.until_ms:
        return True
    return state_at(stay.log, snapshots, At(offset=offset)).queue(vhost, queue) is not None


def _last_in(
    log: HistoryPartition,
    snapshots: Snapshots | None,
    wanted: QueueRows,
    start: int,
    end: int,
    count: int,
    deadline: Deadline,
) -> Tail:
    back = FIRST_LOOK_BACK
    found: list[OutcomeRow] = []
    try:
        while True:
            begin = max(start, end - back)
            last: deque[OutcomeRow] = deque(maxlen=count)
            machine = state_at(log, snapshots, At(offset=begin))
            for batch in outcomes_from(log, machine, end, PlainRows(log.name, wanted), deadline):
                last.extend(batch)
            found = list(last)
            if begin <= start or len(found) == count:
                return Tail(log.name, found, True)
            back *= 4
    except OutOfTime:
        return Tail(log.name, found, False)


# -- two moments ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes in a queue between two moments: the first rows, and the sums of all of them.

    `sums`: (outcome, rule, user) -> sum of the changes. `more`: so many rows are not in `rows`. `complete`: the end was
    reached."""

    partition: str
    start: int
    end: int
    rows: list[OutcomeRow]
    sums: dict[tuple[str, str | None, str | None], int]
    more: int
    complete: bool


def changes(
    reader: HistoryReader,
    snapshots: Snapshots | None,
    vhost: str,
    queue: str,
    queue_id: int | None,
    start: At,
    end: At,
    most: int,
    deadline: Deadline,
) -> Changes:
    """The changes in a queue between two moments. Raises LogError, OutsideHistory, BetweenPartitions."""
    log = log_between(reader, vhost, queue, start, end)
    ids = None if queue_id is None else lineage_of(reader.placement, vhost, queue, queue_id).ids_in(log.name)
    machine = state_at(log, snapshots, start)
    behind = log.offset_at(end.time_ms) if end.time_ms is not None else end.offset or 0
    begun = machine.next_offset
    if not begun <= behind <= log.next_offset or (end.time_ms or machine.log_ms) < (start.time_ms or 0):
        raise OutsideHistory(f"{log.name}: the moments are in the wrong order, or lie after now")
    product = Outcomes(PlainRows(log.name, QueueRows(vhost, queue, ids, moves=True)))
    sums: Counter[tuple[str, str | None, str | None]] = Counter()
    rows: list[OutcomeRow] = []
    more, complete = 0, True
    groups = timely(log, begun, behind, deadline)
    try:
        for batch in fold_moves(product, machine, groups, decoder_for(log), behind, None, end.time_ms):
            for row in batch:
                sums[row.value("outcome"), row.value("rule"), row.value("user")] += change_of(row)
            rows += batch[: most - len(rows)]
            more += len(batch)
    except OutOfTime:
        complete = False
    return Changes(log.name, begun, behind, rows, dict(sums), more - len(rows), complete)


def change_of(row: OutcomeRow) -> int:
    """1: the message came into the queue; -1: it left."""
    return 1 if row.value("outcome") == PUBLISHED else -1
