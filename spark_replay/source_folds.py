"""The views of `format("rewindmq")` that are folds: what came of the events, and what was in the queues.

    view=history             the table HISTORY. readChangeFeed=true says the same in the words of Spark's state source,
                             with changeStartOffset and changeEndOffset for startingOffsets and endingOffsets
    view=queues, messages    the tables QUEUES and MESSAGES at asOfOffset or asOfTimestamp, else now

They are the functions `history` and `state_at`, for SQL and for those who know Spark's own options. The driver plans,
and a task folds a stretch, from the nearest snapshot on.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_replay import columns
from spark_replay.ranges import BadRequest, Range

if TYPE_CHECKING:
    import pyarrow as pa

VIEWS = {"history": columns.HISTORY, "queues": columns.QUEUES, "messages": columns.MESSAGES}
# options of these views, besides those of the stretch
OPTIONS = ("queue", "asOfOffset", "asOfTimestamp", "readChangeFeed", "changeStartOffset", "changeEndOffset")
_CHANGES = {"changeStartOffset": "startingOffsets", "changeEndOffset": "endingOffsets"}


class FoldStretch(InputPartition):
    """One Spark partition: a range of one log partition, and up to when time passes then."""

    def __init__(self, stretch: Range, clock_ms: int | None) -> None:
        super().__init__((stretch, clock_ms))


class FoldReader(DataSourceReader):
    """`options`: as source.py spells them."""

    def __init__(self, data: str, view: str, options: Mapping[str, str]) -> None:
        self.data = data
        self.view = view
        self.queue = options.get("queue")
        check(view, options)
        self.options = {_CHANGES.get(name, name): text for name, text in options.items()}

    def partitions(self) -> list[InputPartition]:
        from spark_replay.history import plan_history
        from spark_replay.state import plan_state

        if self.view == "history":
            return [FoldStretch(stretch, None) for stretch in plan_history(self.data, self.options)]
        plan = plan_state(self.data, self.options.get("asOfTimestamp"), self.options.get("asOfOffset"))
        return [FoldStretch(Range(end.partition, end.end, end.end), plan.clock_ms) for end in plan.ends]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        from spark_replay.fold import beside, log_task
        from spark_replay.history import fold_history
        from spark_replay.state import StatePlan, fold_state

        if partition is None:  # so Spark says that there are no partitions
            return iter(())
        stretch, clock_ms = partition.value
        if self.view == "history":
            return log_task(stretch, self.data, beside(self.data), fold_history, {"queue": self.queue})
        plan = StatePlan(self.data, (stretch,), clock_ms)
        settings = {"plan": plan, "queue": self.queue, "messages": self.view == "messages"}
        rows = log_task(stretch, self.data, beside(self.data), fold_state, settings)
        return _of(self.view.removesuffix("s"), rows)


def check(view: str, options: Mapping[str, str]) -> None:
    """BadRequest when options are given that say nothing about this view."""
    of_a_moment = [name for name in options if name.startswith("asOf")]
    of_a_stretch = [name for name in options if name.startswith(("starting", "ending", "change", "part", "fail"))]
    if view == "history" and of_a_moment:
        raise BadRequest(f"{of_a_moment[0]} is about a moment: view queues or messages")
    if view != "history" and of_a_stretch:
        raise BadRequest(f"{of_a_stretch[0]} is about a stretch, the view {view} about a moment: asOfTimestamp")
    for name, other in _CHANGES.items():
        if name in options and other in options:
            raise BadRequest(f"{name} is {other}: say one")


def _of(kind: str, rows: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The queues or the messages out of the table STATE."""
    import pyarrow as pa

    for batch in rows:
        found = batch.column(kind).drop_null()
        if len(found):
            yield pa.RecordBatch.from_struct_array(found)
