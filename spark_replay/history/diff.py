"""`diff`: the changes in the queues between two moments, by message and cause.

    diff(spark, "DATA", "2026-11-21T09:00:00Z", "2026-11-21T10:00:00Z").groupBy("queue", "outcome").sum("change").show()

A row is a row of HISTORY by which a message came into a queue (`change` 1) or left it (-1), so that for each queue

    length at the end - length at the beginning = sum(change)

and each row names the event that did it. A moment means the same as for `state_at`: everything logged up to it has
happened, and everything due by then has expired. A change that passing time alone made at the end has no event (`event`
is null).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.location import Location
from rewindmq.projections.history.diff import fold_moves
from rewindmq.projections.history.outcome_rows import PUBLISHED
from rewindmq.projections.replay import drive
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import FoldInput, fold_log
from rewindmq.spark_replay.history.outcomes import HistoryProduct
from rewindmq.spark_replay.history.state import StatePlan, plan_state
from rewindmq.spark_replay.location.log import located
from rewindmq.spark_replay.location.ranges import BACKWARDS, BadRequest, OffsetRange, ending_time_ms, require_order

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def diff(
    spark: "SparkSession", location: Location | str, start: str, end: str | None = None, queue: str | None = None
) -> "DataFrame":
    """Return the table DIFF (columns.py) from the moment `start` to the moment `end` (None: now).

    A moment is an ISO 8601 time, epoch milliseconds, or offsets as JSON ({"queues-0": 12}). `queue` ("vhost/name", or a
    name in "/"): only that queue. Raises BadRequest, OutsideHistory, CorruptLog."""
    location = located(location)
    return diff_frame(spark, *plan_moments(location, start, end), queue)


def plan_moments(location: Location, start: str, end: str | None) -> tuple[StatePlan, StatePlan]:
    """Return the plans of the two moments. Needs no Spark.

    Raises BadRequest, OutsideHistory."""
    require_order(start, end)
    plans = plan_moment(location, start, future=False), plan_moment(location, end)
    ranges_between(*plans)
    return plans


def plan_moment(location: Location, moment: str | None, future: bool = True) -> StatePlan:
    """Return the plan of a moment. Needs no Spark.

    `future`: the moment may lie after now; everything due by then has expired."""
    if moment is not None and moment.lstrip().startswith("{"):
        return plan_state(location, offsets=moment)
    plan = plan_state(location, time=moment)
    if not future and plan.clock_ms is not None:
        ending_time_ms(str(plan.clock_ms), plan.clock_ms)
    return plan


def diff_frame(spark: "SparkSession", start: StatePlan, end: StatePlan, queue: str | None) -> "DataFrame":
    """Return the table DIFF between two planned moments."""
    from pyspark.sql import functions as f

    frame = fold_log(
        spark,
        start.location,
        ranges_between(start, end),
        fold_diff,
        columns.HISTORY,
        start_ms=start.clock_ms,
        end_ms=end.clock_ms,
        queue=queue,
    )
    came = f.col("outcome") == PUBLISHED
    return frame.select(f.when(came, 1).otherwise(-1).cast("int").alias("change"), *columns.HISTORY.names)


def ranges_between(start: StatePlan, end: StatePlan) -> list[OffsetRange]:
    """Return the range of each partition between two moments. Needs no Spark.

    Raises BadRequest."""
    begins = {at.partition: at.end for at in start.ends}
    ends = {at.partition: at.end for at in end.ends}
    if begins.keys() != ends.keys():
        raise BadRequest(f"the moments are of different partitions: {', '.join(begins)}; {', '.join(ends)}")
    backwards = [name for name, at in begins.items() if at > ends[name]]
    if (start.clock_ms is not None and end.clock_ms is not None and start.clock_ms > end.clock_ms) or backwards:
        raise BadRequest(BACKWARDS)
    return [OffsetRange(name, at, ends[name]) for name, at in begins.items()]


def fold_diff(
    fold_input: FoldInput, start_ms: int | None, end_ms: int | None, queue: str | None
) -> "Iterator[pa.RecordBatch]":
    """The rows of one range, in a Spark task."""
    machine, offset_range = fold_input.machine, fold_input.offset_range
    groups = drive(machine, fold_input.groups, fold_input.decoder, offset_range.start)
    product = HistoryProduct(offset_range.partition, queue, moves=True)
    yield from fold_moves(product, machine, groups, fold_input.decoder, offset_range.end, start_ms, end_ms)
