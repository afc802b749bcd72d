"""The outcomes of a history (projections/history/outcomes.py) as Arrow batches of HISTORY (columns.py)."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rewindmq.projections.history.outcomes import Outcomes, wanted_rows
from rewindmq.spark_replay.history.outcome_rows import ArrowRows

if TYPE_CHECKING:
    import pyarrow as pa


class HistoryProduct(Outcomes["pa.RecordBatch"]):
    """The outcomes of a range of one partition.

    `queue`: only the rows of that queue. `only`: the names of the columns to make (None: all). `moves`: only rows by
    which a message came into a queue or left it."""

    def __init__(
        self, partition: str, queue: str | None = None, only: Sequence[str] | None = None, moves: bool = False
    ) -> None:
        super().__init__(ArrowRows(partition, only, wanted_rows(queue, moves)))


def batch_of(rows: Sequence[tuple[Any, ...]], schema: "pa.Schema") -> "pa.RecordBatch":
    """Rows, if there are any, as an Arrow batch. A struct is given as a tuple in the order of its fields."""
    import pyarrow as pa

    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.RecordBatch.from_arrays(_arrays(columns, schema), schema=schema)


def _arrays(values: "Iterable[Sequence[Any]]", schema: "pa.Schema") -> list[Any]:
    """Columns as Arrow arrays."""
    import pyarrow as pa

    arrays = []
    for field, column in zip(schema, values, strict=True):
        if pa.types.is_struct(field.type):
            arrays.append(pa.array(_structs(column, field.type), field.type))
        elif pa.types.is_timestamp(field.type):  # as numbers first, which takes half as long
            arrays.append(pa.array(column, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(column, field.type))
    return arrays


def _structs(values: Sequence[Any], struct: Any) -> list[dict[str, Any] | None]:
    names = [struct.field(i).name for i in range(struct.num_fields)]
    return [None if value is None else dict(zip(names, value, strict=True)) for value in values]
