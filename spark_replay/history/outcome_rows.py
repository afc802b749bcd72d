"""Packs the rows of HISTORY (columns.py) as Arrow batches.

Rows share their values by combinations (projections/history/outcome_rows.py), and Arrow spreads these over the columns.
Only the columns that are asked for are made: Spark does not tell which those are, and each value that goes into the JVM
costs more there than here.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rewindmq.projections.history.outcome_rows import PLACE, SIZED, OutcomeRows, Shared
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.location.ranges import BadRequest

if TYPE_CHECKING:
    import numpy
    import pyarrow as pa


class ArrowRows(OutcomeRows["pa.RecordBatch"]):
    """The rows of one partition, as Arrow batches. `only`: the names of the columns to make (None: all of HISTORY)."""

    def __init__(
        self,
        partition: str,
        only: Sequence[str] | None = None,
        wanted: Callable[[Shared], bool] | None = None,
    ) -> None:
        super().__init__(partition, wanted)
        self.schema = history_columns(only)

    def packed(self) -> "pa.RecordBatch":
        """Return the gathered rows as an Arrow batch."""
        import pyarrow as pa

        numbers = pa.array(self.numbers, pa.int32())
        arrays = []
        for field in self.schema:
            if field.name in PLACE:
                arrays.append(_spread([values[PLACE[field.name]] for values in self.shared], field.type, numbers))
            else:
                arrays.append(self._own(field.name, numbers).cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _own(self, name: str, numbers: "pa.Array") -> "pa.Array":
        """Return a column that each row has for itself."""
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
        assert name == "size", f"{name} is not a column of HISTORY"
        outcome = PLACE["outcome"]
        sized = numpy.array([values[outcome] in SIZED for values in self.shared])[numbers.to_numpy()]
        sizes = numpy.zeros(len(numbers), numpy.int64)
        sizes[sized] = self.sizes
        return pa.array(sizes, mask=~sized)

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
    """Return the named columns of HISTORY, in this order; None: all of them.

    Raises BadRequest."""
    if only is None:
        return columns.HISTORY
    for name in only:
        if name not in columns.HISTORY.names:
            raise BadRequest(f"the history has no column {name!r}; it has {', '.join(columns.HISTORY.names)}")
    if not only or len(set(only)) < len(only):
        raise BadRequest(f"columns: name each once, and at least one, not {', '.join(only) or 'none'}")
    return columns.some_of(columns.HISTORY, *only)


def _spread(values: list[Any], kind: Any, numbers: "pa.Array") -> "pa.Array":
    """Return the column in which each row has the value of its combination."""
    import pyarrow as pa

    first = values[0]
    if all(value == first for value in values):
        if first is None:
            return pa.nulls(len(numbers), kind)
        return pa.repeat(pa.scalar(first, kind), len(numbers))
    return pa.array(values, kind).take(numbers)
