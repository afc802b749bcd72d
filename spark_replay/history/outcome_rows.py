"""Gathers the rows of HISTORY (columns.py) as columns, and packs them as Arrow batches.

A busy partition makes millions of rows, and nearly all of them repeat a few combinations of user, queue, outcome, rule
and so on. So a row is three numbers here, and Arrow spreads the combinations over the columns:

    combinations   0: Published service / hot published ...    1: Published service / hot delivered, consumer 1 ...
    rows           combination 0 1 0 1 1 ...    offset of the event 7 7 8 8 8 ...    message id 7 7 8 8 9 ...
    times          row 0: 03:00:00.000    row 4: 03:00:00.001 ...
    gaps           row 3, offset 8: one ordinal of the event is left out before it ...

Rows of an event stand together, so an ordinal is a row's place among those of its offset, and the gaps before it. Only
the columns that are asked for are made: Spark does not tell which those are, and each value that goes into the JVM
costs more there than here.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rewindmq.projections.machine.repeats import PlainAck, PlainPublish
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.location.ranges import BadRequest

if TYPE_CHECKING:
    import numpy
    import pyarrow as pa

BATCH_ROWS = 10_000
PUBLISHED = "published"
_LEFT_OUT = -1  # the number of every combination that is not wanted

# The columns that rows share. The others are `partition`, and those that each row has for itself
SHARED = (
    "event",
    "user",
    "session",
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
Cause = tuple[str | None, str | None, int | None]  # the first three of them: event, user, session


class OutcomeRows:
    """The rows of one partition that are not packed yet.

    `only`: the names of the columns to make (None: all of HISTORY). `wanted`: whether rows with these shared values are
    to be made."""

    def __init__(
        self,
        partition: str,
        only: Sequence[str] | None = None,
        wanted: Callable[[Shared], bool] | None = None,
    ) -> None:
        self.partition = partition
        self.schema = history_columns(only)
        self.wanted = wanted
        self.batches: list[pa.RecordBatch] = []
        self.gaps: list[tuple[int, int, int]] = []  # row, offset, ordinals that are left out before it
        self.cause: Cause = (None, None, None)
        self.time_ms: int | None = None
        self._empty()

    def _empty(self) -> None:
        self.numbers: list[int] = []
        self.offsets: list[int] = []
        self.message_ids: list[int | None] = []
        self.sizes: list[int] = []  # of each row `published`
        self.times: list[tuple[int, int | None]] = [(0, self.time_ms)]  # from which row on, the time
        self.shared: list[Shared] = []
        self.causes: dict[Cause, dict[Any, int]] = {}
        self.by_type: dict[type, tuple[Actor, Cause, dict[Any, int]]] = {}  # what each type of event met last
        # The numbers of repeats: of a publish, its deliveries by consumer, and the cause's; of an ack
        self.of_publishes: dict[PlainPublish, tuple[int, dict[int, int], dict[Any, int]]] = {}
        self.of_acks: dict[PlainAck, int] = {}
        self.about(self.cause)

    # -- one event --------------------------------------------------------------------------------------------------

    def about(self, cause: Cause) -> None:
        """Name the cause of the rows to come.

        `of_cause` has the numbers of its combinations by anything that identifies one, for this batch."""
        self.cause = cause
        self.of_cause = self.causes.setdefault(cause, {})

    def about_event(self, kind: type, actor: Actor) -> None:
        """Name an event of this type as the cause of the rows to come."""
        self.about((kind.__name__, actor.user, actor.session))
        self.by_type[kind] = actor, self.cause, self.of_cause

    def at(self, time_ms: int | None) -> None:
        """Set the time of the rows to come."""
        self.time_ms = time_ms
        self.times.append((len(self.numbers), time_ms))

    def number(self, key: Any, shared: Shared) -> int:
        """Number a combination that is new in this batch. `shared`: its values behind those of the cause."""
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

    def leave_out(self, offset: int, count: int) -> None:
        """Skip the ordinals of rows that are not wanted."""
        row = len(self.numbers)
        if self.gaps and self.gaps[-1][0] == row:  # of another offset: no row followed, so it was none
            _, at, before = self.gaps.pop()
            count += before if at == offset else 0
        self.gaps.append((row, offset, count))

    # -- batches ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Pack what was gathered. More rows of the same event may follow."""
        offset = self.gaps[-1][1] if self.gaps and self.gaps[-1][0] == len(self.numbers) else self.offsets[-1]
        before = sum(count for _, at, count in self.gaps if at == offset)
        before += len(self.offsets) - bisect_left(self.offsets, offset)
        self.batches.append(self._packed())
        self._empty()
        self.gaps = [(0, offset, before)]

    def take(self, last: bool) -> "Iterator[pa.RecordBatch]":
        """Yields the batches that are full, and with `last` all rows."""
        if last and self.numbers:
            self.flush()
        batches, self.batches = self.batches, []
        yield from batches

    def _packed(self) -> "pa.RecordBatch":
        import pyarrow as pa

        numbers = pa.array(self.numbers, pa.int32())
        arrays = []
        for field in self.schema:
            if field.name in _PLACE:
                arrays.append(_spread([values[_PLACE[field.name]] for values in self.shared], field.type, numbers))
            else:
                arrays.append(self._own(field.name, numbers).cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _own(self, name: str, numbers: "pa.Array") -> "pa.Array":
        """A column that each row has for itself."""
        import numpy
        import pyarrow as pa

        if name == "partition":
            return pa.repeat(self.partition, len(numbers))
        if name == "offset":
            return pa.array(self.offsets, pa.int64())
        if name == "message_id":
            return pa.array(self.message_ids, pa.int64())
        if name == "ordinal":
            return pa.array(self._ordinals())
        if name == "timestamp":
            rows = numpy.diff([row for row, _ in self.times], append=len(numbers))
            times = [None if time_ms is None else time_ms * 1000 for _, time_ms in self.times]
            return pa.array(times, pa.int64()).take(pa.array(numpy.arange(len(times)).repeat(rows)))
        assert name == "size", f"{name} is no column of HISTORY"
        outcome = _PLACE["outcome"]
        published = numpy.array([values[outcome] == PUBLISHED for values in self.shared])[numbers.to_numpy()]
        sizes = numpy.zeros(len(numbers), numpy.int64)
        sizes[published] = self.sizes
        return pa.array(sizes, mask=~published)

    def _ordinals(self) -> "numpy.ndarray":
        import numpy

        offsets = numpy.array(self.offsets)
        rows = numpy.arange(len(offsets))
        firsts = numpy.flatnonzero(numpy.diff(offsets, prepend=-1))
        of_event = numpy.diff(firsts, append=len(offsets))
        ordinals = rows - firsts.repeat(of_event)
        gaps = [(row, count) for row, offset, count in self.gaps if row < len(offsets) and offsets[row] == offset]
        if gaps:
            before = numpy.zeros(len(offsets), numpy.int64)
            for row, count in gaps:
                before[row] += count
            before = before.cumsum()
            ordinals += before - numpy.concatenate(([0], before))[firsts].repeat(of_event)
        return ordinals


def history_columns(only: Sequence[str] | None) -> "pa.Schema":
    """The named columns of HISTORY, in this order; None: all of them.

    Raises BadRequest."""
    if only is None:
        return columns.HISTORY
    for name in only:
        if name not in columns.HISTORY.names:
            raise BadRequest(f"{name!r} is no column of the history; it has {', '.join(columns.HISTORY.names)}")
    if not only or len(set(only)) < len(only):
        raise BadRequest(f"columns: name each once, and at least one, not {', '.join(only) or 'none'}")
    return columns.some_of(columns.HISTORY, *only)


_PLACE = {name: place for place, name in enumerate(SHARED)}


def _spread(values: list[Any], kind: Any, numbers: "pa.Array") -> "pa.Array":
    """The column in which each row has the value of its combination."""
    import pyarrow as pa

    first = values[0]
    if all(value == first for value in values):
        if first is None:
            return pa.nulls(len(numbers), kind)
        return pa.repeat(pa.scalar(first, kind), len(numbers))
    return pa.array(values, kind).take(numbers)
