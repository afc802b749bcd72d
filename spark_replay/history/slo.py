"""`slo`: how long messages waited and stayed, and how often they came back, exactly, for any span of time (B-14).

    slo(spark, "DATA", "2026-11-21T09:00:00Z", "2026-11-21T10:00:00Z", every="5 minutes").show()

Each figure counts at the moment at which it is known: a wait at the first delivery, a stay at the end (acked, expired,
dropped ...). So a range shows what its consumers experienced, also with messages published long before. Times are of
the log, in whole milliseconds; percentiles are exact (interpolated between neighbours, as numpy does).

Each range is folded to sums, and to how many messages had each span of milliseconds (waits.py). Only steps of messages
that a snapshot lies in the life of are joined by Spark.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.location import Location
from rewindmq.projections.rewind import parse_time
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import FoldInput, fold_log, fold_range
from rewindmq.spark_replay.history.history import plan_history
from rewindmq.spark_replay.history.waits import ENDED, FIRST_DELIVERY, STILL_THERE, SloOptions, WaitsProduct
from rewindmq.spark_replay.location.log import located
from rewindmq.spark_replay.location.marks import plan_ranges, time_of
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange, joined

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

BY = ("queue", "consumer")
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_EVERY = re.compile(r"([1-9][0-9]{0,11}) (second|minute|hour|day)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_MOST_DAYS = 36_500


def slo(
    spark: "SparkSession",
    location: Location | str,
    start: str | None = None,
    end: str | None = None,
    queue: str | None = None,
    by: str = "queue",
    every: str | None = None,
) -> "DataFrame":
    """Return the table SLO (columns.py), with a row for each queue, or (`by` consumer) for each queue and consumer.

    `every` ("5 minutes", aligned to UTC): a row for each such span of time; None: one row for all. Times as in
    `history`, the end inclusive. Raises BadRequest, OutsideHistory, CorruptLog."""
    location = located(location)
    check(by, every)
    ranges, start_ms = plan_slo(location, start, end)
    frame = fold_log(
        spark,
        location,
        ranges,
        fold_waits,
        columns.WAITS,
        options=SloOptions(start_ms, queue, by == "consumer", _every_ms(every)),
        ends={name: each.end for name, each in joined(ranges).items()},
    )
    if any(each.start for each in ranges):  # a message may have been published in an earlier one
        frame = _with_steps_joined(frame)
    return _summed(frame)


def fold_waits(fold_input: FoldInput, options: SloOptions, ends: dict[str, int]) -> "Iterator[pa.RecordBatch]":
    """The rows of WAITS of one range, in a Spark task."""
    offset_range = fold_input.offset_range
    goes_on = offset_range.end < ends[offset_range.partition]
    return fold_range(WaitsProduct(offset_range.partition, options, goes_on), fold_input)


def plan_slo(location: Location, start: str | None, end: str | None) -> tuple[list[OffsetRange], int | None]:
    """Return the ranges to fold, and the start. Needs no Spark.

    All events up to the end are folded, since messages may be older than the start. Raises BadRequest,
    OutsideHistory."""
    plan_ranges(location, start, end)
    ranges = plan_history(location, {} if end is None else {"endingTimestamp": end})
    return ranges, None if start is None else parse_time(time_of(location.open(), start))


def check(by: str, every: str | None) -> None:
    """Raise BadRequest when the arguments are senseless. Needs no Spark."""
    if by not in BY:
        raise BadRequest(f"by {by!r}: it is one of {', '.join(BY)}")
    _every_ms(every)


def _every_ms(every: str | None) -> int | None:
    """Return the length of a span of time such as "5 minutes".

    Raises BadRequest."""
    if every is None:
        return None
    given = _EVERY.fullmatch(every)
    seconds = 0 if given is None else int(given[1]) * _SECONDS[given[2]]
    if not 0 < seconds <= _MOST_DAYS * _SECONDS["day"]:
        such = f"5 minutes, 1 hour; at most {_MOST_DAYS} days"
        raise BadRequest(f"every {every!r}: it is a number and a unit, such as {such}")
    return seconds * 1000


def _with_steps_joined(waits: "DataFrame") -> "DataFrame":
    """The rows of WAITS in which each step of a message became a wait, a redelivery or a stay, where it counts."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_message = Window.partitionBy("partition", "queue_id", "message_id")
    step = f.col("step")
    began = f.min(f.when(step == STILL_THERE, f.col("at_ms"))).over(of_message)
    known = f.coalesce(f.max("delivered_before").over(of_message), f.lit(False))
    earliest = f.min(f.when(step == FIRST_DELIVERY, f.col("offset"))).over(of_message)
    since_ms = f.col("at_ms") - f.col("began")
    is_first = ~f.col("known") & (f.col("offset") == f.col("earliest"))
    again = f.when((step == FIRST_DELIVERY) & ~is_first, 1).otherwise(f.col("redelivered"))
    wait_ms = f.when((step == FIRST_DELIVERY) & is_first, since_ms).otherwise(f.col("wait_ms"))
    stay_ms = f.when(step == ENDED, since_ms).otherwise(f.col("stay_ms"))
    rows = waits.withColumns({"began": began, "known": known, "earliest": earliest})
    rows = rows.withColumns({"redelivered": again, "wait_ms": wait_ms, "stay_ms": stay_ms})
    return rows.where("vhost is not null").select(*columns.WAITS.names)


def _summed(waits: "DataFrame") -> "DataFrame":
    """Return the table SLO of rows of WAITS without steps."""
    from pyspark.sql import functions as f

    counts = ("published", "delivered", "redelivered", "ended")
    rows = waits.groupBy("vhost", "queue", "consumer", "since").agg(
        *(f.sum(name).alias(name) for name in counts), *_spread("wait"), *_spread("stay")
    )
    rate = f.when(f.col("delivered") > 0, f.col("redelivered") / f.col("delivered"))
    return (
        rows.withColumn("redelivery_rate", rate)
        .select(*columns.SLO.names)
        .orderBy("vhost", "queue", "consumer", "since")
    )


def _spread(name: str) -> "list[Column]":
    from pyspark.sql import functions as f

    value = f"{name}_ms"
    found = [
        f.percentile(value, at, f.col("messages")).alias(f"{name}_{label}_ms") for label, at in PERCENTILES.items()
    ]
    return [*found, f.max(value).alias(f"{name}_max_ms")]
