"""Gathers the rows of HISTORY (spark_replay/columns.py) as columns, a batch at a time.

A busy partition makes millions of rows, and nearly all of them repeat a few combinations of user, queue, outcome, rule
and so on. So a row is three numbers here, and a kind of rows spreads the combinations when a batch is full:

    combinations   0: Published service / hot published ...    1: Published service / hot delivered, consumer 1 ...
    rows           combination 0 1 0 1 1 ...    offset of the event 7 7 8 8 8 ...    message id 7 7 8 8 9 ...
    times          row 0: 03:00:00.000    row 4: 03:00:00.001 ...
    gaps           row 3, offset 8: one ordinal of the event is left out before it ...

Rows of an event are adjacent, so an ordinal is a row's place among those of its offset, plus the gaps before it.
Spark's kind makes Arrow batches (spark_replay/history/outcome_rows.py), `PlainRows` one object a row.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rewindmq.schemas.reasons import WITH_A_REASON
from rewindmq.schemas.values import Actor

T = TypeVar("T")

BATCH_ROWS = 10_000
PUBLISHED = "published"
DUPLICATE = "duplicate"  # a repeated dead letter or restored message, or a message with the id of an earlier one
UNROUTED = "unrouted"  # a client's publish that no queue took
SIZED = (PUBLISHED, DUPLICATE, UNROUTED)  # rows that have a size
_LEFT_OUT = -1  # the number of every combination that is not wanted

# The columns that rows share. The others are `partition`, and those that differ from row to row
SHARED = (
    "event",
    "user",
    "session",
    "why",
    "vhost",
    "queue",
    "queue_id",
    "outcome",
    "final",
    "consumer",
    "delivery_count",
    "redelivered",
    "reason",
    "rule",
    "policy",
    "policy_version",
    "exchange",
    "routing_key",
    "origin",
)
Shared = tuple[Any, ...]  # the values of SHARED in their order
Cause = tuple[str | None, str | None, int | None, str | None]  # the first four of them: event, user, session, why


class OutcomeRows(ABC, Generic[T]):
    """The rows of one partition that are not yet packed. A packed batch is a T.

    `wanted`: tells whether to make rows with these shared values."""

    def __init__(self, partition: str, wanted: Callable[[Shared], bool] | None = None) -> None:
        self.partition = partition
        self.wanted = wanted
        self.batches: list[T] = []
        self.gaps: list[tuple[int, int, int]] = []  # row, offset, number of ordinals left out before it
        self.cause: Cause = (None, None, None, None)
        self.time_ms: int | None = None
        self._empty()

    def _empty(self) -> None:
        self.numbers: list[int] = []
        self.offsets: list[int] = []
        self.message_ids: list[int | None] = []
        self.sizes: list[int] = []  # of each row in SIZED
        self.times: list[tuple[int, int | None]] = [(0, self.time_ms)]  # from which row on, the time
        self.shared: list[Shared] = []
        self.causes: dict[Cause, dict[Any, int]] = {}
        self.by_type: dict[type, tuple[Actor, Cause, dict[Any, int]]] = {}  # the last actor and cause of each type
        self.about(self.cause)

    # -- one event --------------------------------------------------------------------------------------------------

    def about(self, cause: Cause) -> None:
        """Set the cause of the next rows.

        `of_cause` has the numbers of its combinations by anything that identifies one, for this batch."""
        self.cause = cause
        self.of_cause = self.causes.setdefault(cause, {})

    def about_event(self, kind: type, actor: Actor, why: str) -> None:
        """Set an event of this type as the cause of the next rows. `why`: the reason that its actor gave, or ""."""
        self.about((kind.__name__, actor.user, actor.session, why or None))
        if kind not in WITH_A_REASON:
            self.by_type[kind] = actor, self.cause, self.of_cause

    def at(self, time_ms: int | None) -> None:
        """Set the time of the next rows."""
        self.time_ms = time_ms
        self.times.append((len(self.numbers), time_ms))

    def number(self, key: Any, shared: Shared) -> int:
        """Number a combination that is new in this batch. `shared`: its values after those of the cause."""
        values = self.cause + shared
        number = _LEFT_OUT
        if self.wanted is None or self.wanted(values):
            number = len(self.shared)
            self.shared.append(values)
        self.of_cause[key] = number
        return number

    def add(self, number: int, offset: int, message_ids: Sequence[int | None]) -> None:
        """Add a row of this combination for each message, and pack those that fill a batch."""
        if number < 0:
            self.leave_out(offset, len(message_ids))
            return
        shared, begun = self.shared[number][len(self.cause) :], 0
        while begun < len(message_ids):
            part = message_ids[begun : begun + BATCH_ROWS - len(self.numbers)]
            self.numbers.extend([number] * len(part))
            self.offsets.extend([offset] * len(part))
            self.message_ids.extend(part)
            begun += len(part)
            if len(self.numbers) >= BATCH_ROWS:
                self.flush()
                number = self.number(None, shared)

    def add_run(self, numbers: Sequence[int], sized: int, offset: int, sizes: Sequence[int]) -> None:
        """Add rows of these combinations for each message of a run whose first one has the id `offset`.

        The first `sized` combinations say the size of the body. The batch has room for all the rows."""
        if min(numbers) >= 0:
            ids: Sequence[int] = range(offset, offset + len(sizes))
            if len(numbers) > 1:
                ids = [message_id for message_id in ids for _ in numbers]
            self.numbers.extend([*numbers] * len(sizes))
            self.offsets.extend(ids)
            self.message_ids.extend(ids)
            self.sizes.extend(sizes if sized == 1 else [size for size in sizes for _ in range(sized)])
            if len(self.numbers) >= BATCH_ROWS:
                self.flush()
        else:
            self.add_each([numbers] * len(sizes), sized, offset, sizes)

    def add_each(self, of_each: Sequence[Sequence[int]], sized: int, offset: int, sizes: Sequence[int]) -> None:
        """Add rows as `add_run` does, of other combinations for each message."""
        for at, (numbers, size) in enumerate(zip(of_each, sizes, strict=True), offset):
            for place, number in enumerate(numbers):
                if number < 0:
                    self.leave_out(at, 1)
                    continue
                self.numbers.append(number)
                self.offsets.append(at)
                self.message_ids.append(at)
                if place < sized:
                    self.sizes.append(size)
        if len(self.numbers) >= BATCH_ROWS:
            self.flush()

    def leave_out(self, offset: int, count: int) -> None:
        """Skip the ordinals of unwanted rows."""
        row = len(self.numbers)
        if self.gaps and self.gaps[-1][0] == row:  # no row followed the other offset's gap, so it was none
            _, at, before = self.gaps.pop()
            count += before if at == offset else 0
        self.gaps.append((row, offset, count))

    # -- batches ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Pack the gathered rows. More rows of the same event may follow."""
        offset = self.gaps[-1][1] if self.gaps and self.gaps[-1][0] == len(self.numbers) else self.offsets[-1]
        before = sum(count for _, at, count in self.gaps if at == offset)
        before += len(self.offsets) - bisect_left(self.offsets, offset)
        self.batches.append(self.packed())
        self._empty()
        self.gaps = [(0, offset, before)]

    def take(self, last: bool) -> Iterator[T]:
        """Yield the full batches, and with `last` all rows."""
        if last and self.numbers:
            self.flush()
        batches, self.batches = self.batches, []
        yield from batches

    @abstractmethod
    def packed(self) -> T:
        """Return the gathered rows as a batch."""


PLACE = {name: place for place, name in enumerate(SHARED)}


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """A row of HISTORY. `shared`: its values of SHARED. `time_ms`: None if unknown."""

    partition: str
    offset: int
    ordinal: int
    time_ms: int | None
    message_id: int | None
    size: int | None
    shared: Shared

    def value(self, name: str) -> Any:
        """Return a shared value by the name of its column."""
        return self.shared[PLACE[name]]

    def fields(self) -> dict[str, Any]:
        """Return all values by the names of HISTORY, without `timestamp`."""
        own = {"partition": self.partition, "offset": self.offset, "ordinal": self.ordinal}
        return own | dict(zip(SHARED, self.shared, strict=True)) | {"message_id": self.message_id, "size": self.size}


class PlainRows(OutcomeRows[list[OutcomeRow]]):
    """Rows as objects, for a program that reads few of them. `message_ids`: only the rows of these (None: all)."""

    def __init__(
        self,
        partition: str,
        wanted: Callable[[Shared], bool] | None = None,
        message_ids: Container[int] | None = None,
    ) -> None:
        super().__init__(partition, wanted)
        self.only_ids = message_ids

    def packed(self) -> list[OutcomeRow]:
        """Return the gathered rows, an object each."""
        rows: list[OutcomeRow] = []
        times, gaps, sizes = iter(self.times), iter(self.gaps), iter(self.sizes)
        next_time, next_gap = next(times, None), next(gaps, None)
        time_ms, ordinal, before = self.time_ms, -1, -1
        for row, (number, offset, message_id) in enumerate(
            zip(self.numbers, self.offsets, self.message_ids, strict=True)
        ):
            while next_time is not None and next_time[0] <= row:
                time_ms, next_time = next_time[1], next(times, None)
            ordinal = ordinal + 1 if offset == before else 0
            before = offset
            while next_gap is not None and next_gap[0] <= row:
                ordinal += next_gap[2] if next_gap[1] == offset else 0
                next_gap = next(gaps, None)
            shared = self.shared[number]
            size = next(sizes) if shared[PLACE["outcome"]] in SIZED else None
            if self.only_ids is not None and message_id not in self.only_ids:
                continue
            rows.append(OutcomeRow(self.partition, offset, ordinal, time_ms, message_id, size, shared))
        return rows
