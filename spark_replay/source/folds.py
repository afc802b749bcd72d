"""The views of `format("rewindmq")` that are folds: the outcomes of events, and the content of queues.

    view=history             the table HISTORY. readChangeFeed=true means the same in the words of Spark's state source,
                             with changeStartOffset and changeEndOffset for startingOffsets and endingOffsets
    view=queues, messages    the tables QUEUES and MESSAGES at asOfOffset or asOfTimestamp, else now
    queue                    only this queue
    columns                  (history) only these columns, comma separated: Spark does not say which ones a query reads
    snapshots                a directory of snapshots (snapshots/build.py), instead of those beside the log
    fromCheckpoint           begin at exactly this snapshot (snapshots/checkpoints.py)

They are the functions `history` and `state_at`, for SQL and for users of Spark's own options. The driver plans, and a
task folds a range, from the nearest snapshot on. A fold needs its state, so a range is cut only at snapshots, and
there always; `minPartitions` cuts no further.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rewindmq.spark_replay.location.ranges import OffsetRange
from rewindmq.spark_replay.source.options import TableOptions

if TYPE_CHECKING:
    import pyarrow as pa


class FoldInputPartition(InputPartition):
    """One Spark partition: a range of one log partition, and the time to which the clock then advances."""

    def __init__(self, offset_range: OffsetRange, clock_ms: int | None) -> None:
        super().__init__((offset_range, clock_ms))


class FoldReader(DataSourceReader):
    """Reads the views history, queues and messages."""

    def __init__(self, table: TableOptions) -> None:
        self.table = table

    def partitions(self) -> list[InputPartition]:
        """Return the ranges to fold, planned in the driver."""
        from rewindmq.spark_replay.history.history import plan_history
        from rewindmq.spark_replay.history.state import plan_state

        location, options, external = self.table.location, self.table.options, self.table.snapshots
        if self.table.view == "history":
            return [
                FoldInputPartition(offset_range, None) for offset_range in plan_history(location, options, external)
            ]
        moment = options.get("asOfTimestamp"), options.get("asOfOffset")
        plan = plan_state(location, *moment, external, options.get("fromCheckpoint"))
        return [FoldInputPartition(offset_range, plan.clock_ms) for offset_range in plan.ranges()]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one range, in a Spark task."""
        from rewindmq.spark_replay.fold import log_task
        from rewindmq.spark_replay.history.history import fold_history
        from rewindmq.spark_replay.history.state import StatePlan, fold_state

        if partition is None:  # Spark says so when there are no partitions
            return iter(())
        offset_range, clock_ms = partition.value
        location, view, queue = self.table.location, self.table.view, self.table.options.get("queue")
        used = self.table.snapshots_used()
        if view == "history":
            return log_task(offset_range, location, used, fold_history, {"queue": queue, "only": self.table.only})
        plan = StatePlan(location, (offset_range,), clock_ms)
        settings = {"plan": plan, "queue": queue, "messages": view == "messages"}
        return _of(view.removesuffix("s"), log_task(offset_range, location, used, fold_state, settings))


def _of(kind: str, rows: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The queues or the messages out of the table STATE."""
    import pyarrow as pa

    for batch in rows:
        found = batch.column(kind).drop_null()
        if len(found):
            yield pa.RecordBatch.from_struct_array(found)
