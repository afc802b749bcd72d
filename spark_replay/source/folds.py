"""The views of `format("rewindmq")` that are folds: the outcomes of events, and the content of queues.

    view=history             the table HISTORY. readChangeFeed=true means the same in the words of Spark's state source,
                             with changeStartOffset and changeEndOffset for startingOffsets and endingOffsets
    view=queues, messages    the tables QUEUES and MESSAGES at asOfOffset or asOfTimestamp, else now
    queue                    only this queue
    snapshots                a directory of snapshots (snapshots/build.py), instead of those beside the log
    fromCheckpoint           begin at exactly this snapshot (snapshots/checkpoints.py)

They are the functions `history` and `state_at`, for SQL and for users of Spark's own options. The driver plans, and a
task folds a stretch, from the nearest snapshot on. A fold needs its state, so a stretch is cut only at snapshots, and
there always; `minPartitions` cuts no further.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rewindmq.spark_replay.location.ranges import Range
from rewindmq.spark_replay.source.options import Asked

if TYPE_CHECKING:
    import pyarrow as pa


class FoldStretch(InputPartition):
    """One Spark partition: a range of one log partition, and the time up to which the clock then goes on."""

    def __init__(self, stretch: Range, clock_ms: int | None) -> None:
        super().__init__((stretch, clock_ms))


class FoldReader(DataSourceReader):
    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def partitions(self) -> list[InputPartition]:
        from rewindmq.spark_replay.history.history import plan_history
        from rewindmq.spark_replay.history.state import plan_state

        place, options, own = self.asked.place, self.asked.options, self.asked.snapshots
        if self.asked.view == "history":
            return [FoldStretch(stretch, None) for stretch in plan_history(place, options, own)]
        moment = options.get("asOfTimestamp"), options.get("asOfOffset")
        plan = plan_state(place, *moment, own, options.get("fromCheckpoint"))
        return [FoldStretch(stretch, plan.clock_ms) for stretch in plan.stretches()]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        from rewindmq.spark_replay.fold import log_task
        from rewindmq.spark_replay.history.history import fold_history
        from rewindmq.spark_replay.history.state import StatePlan, fold_state

        if partition is None:  # Spark says so when there are no partitions
            return iter(())
        stretch, clock_ms = partition.value
        place, view, queue = self.asked.place, self.asked.view, self.asked.options.get("queue")
        used = self.asked.snapshots_used()
        if view == "history":
            return log_task(stretch, place, used, fold_history, {"queue": queue})
        plan = StatePlan(place, (stretch,), clock_ms)
        settings = {"plan": plan, "queue": queue, "messages": view == "messages"}
        return _of(view.removesuffix("s"), log_task(stretch, place, used, fold_state, settings))


def _of(kind: str, rows: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The queues or the messages out of the table STATE."""
    import pyarrow as pa

    for batch in rows:
        found = batch.column(kind).drop_null()
        if len(found):
            yield pa.RecordBatch.from_struct_array(found)
