"""`slo`: how long messages waited and stayed, and how often they came back, exactly, for any span of time (B-14).

    slo(spark, "DATA", "2026-11-21T09:00:00Z", "2026-11-21T10:00:00Z", every="5 minutes").show()

Each figure counts at the moment at which it is known: a wait at the first delivery, a stay at the end (acked, expired,
dropped ...). So a range shows what its consumers experienced, also with messages published long before. Times are of
the log, in whole milliseconds; percentiles are exact (interpolated between neighbours, as numpy does).
"""

import re
from typing import TYPE_CHECKING

from rewindmq.projections.rewind import parse_time
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.history.history import history_frame, plan_history
from rewindmq.spark_replay.history.outcomes import DELIVERED, PUBLISHED
from rewindmq.spark_replay.location.log import Location, open_log
from rewindmq.spark_replay.location.marks import plan_ranges, time_of
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BY = ("queue", "consumer")
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_EVERY = re.compile(r"([1-9][0-9]{0,11}) (second|minute|hour|day)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_MOST_DAYS = 36_500


def slo(
    spark: "SparkSession",
    location: Location,
    start: str | None = None,
    end: str | None = None,
    queue: str | None = None,
    by: str = "queue",
    every: str | None = None,
) -> "DataFrame":
    """The table SLO (columns.py), with a row for each queue, or (`by` consumer) for each queue and consumer.

    `every` ("5 minutes", aligned to UTC): a row for each such span of time; None: one row for all. Times as in
    `history`, the end inclusive. Raises BadRequest, OutsideHistory, CorruptLog."""
    check(by, every)
    ranges, start_ms = plan_slo(location, start, end)
    return slo_of(history_frame(spark, location, ranges, queue), start_ms, by, every)


def plan_slo(location: Location, start: str | None, end: str | None) -> tuple[list[OffsetRange], int | None]:
    """The ranges to fold, and the start. Needs no Spark.

    All events up to the end are folded, since messages may be older than the start. Raises BadRequest,
    OutsideHistory."""
    plan_ranges(location, start, end)
    ranges = plan_history(location, {} if end is None else {"endingTimestamp": end})
    return ranges, None if start is None else parse_time(time_of(open_log(location), start))


def check(by: str, every: str | None) -> None:
    """Raise BadRequest when the arguments are senseless. Needs no Spark."""
    if by not in BY:
        raise BadRequest(f"by {by!r}: it is one of {', '.join(BY)}")
    if every is None:
        return
    given = _EVERY.fullmatch(every)
    if given is None or int(given[1]) * _SECONDS[given[2]] > _MOST_DAYS * _SECONDS["day"]:
        such = f"5 minutes, 1 hour; at most {_MOST_DAYS} days"
        raise BadRequest(f"every {every!r}: it is a number and a unit, such as {such}")


def slo_of(history: "DataFrame", start_ms: int | None, by: str, every: str | None) -> "DataFrame":
    """The table SLO of rows of HISTORY.

    The rows have to begin where the messages do. Of rows before `start_ms` only the publishing matters."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_message = Window.partitionBy("partition", "queue_id", "message_id")
    rows_of_messages = history.where(f.col("message_id").isNotNull() & f.col("queue_id").isNotNull())
    delivered = f.col("outcome") == DELIVERED
    position = f.struct("offset", "ordinal")
    rows_of_messages = rows_of_messages.select(
        "vhost",
        "queue",
        "consumer",
        "timestamp",
        "outcome",
        "final",
        f.min(f.when(f.col("outcome") == PUBLISHED, f.col("timestamp"))).over(of_message).alias("began"),
        (delivered & (position == f.min(f.when(delivered, position)).over(of_message))).alias("first"),
    )
    if start_ms is not None:
        rows_of_messages = rows_of_messages.where(f.col("timestamp") >= f.timestamp_millis(f.lit(start_ms)))
    since_ms = f.unix_millis("timestamp") - f.unix_millis("began")
    keys: list[Column] = [f.col("vhost"), f.col("queue")]
    keys.append(f.col("consumer") if by == "consumer" else f.lit(None).cast("long").alias("consumer"))
    keys.append(
        f.lit(None).cast("timestamp").alias("since")
        if every is None
        else f.window("timestamp", every).start.alias("since")
    )
    if by == "consumer":
        rows_of_messages = rows_of_messages.where(f.col("consumer").isNotNull())
    rows = rows_of_messages.groupBy(*keys).agg(
        f.count_if(f.col("outcome") == PUBLISHED).alias("published"),
        f.count_if(delivered).alias("delivered"),
        f.count_if(delivered & ~f.col("first")).alias("redelivered"),
        f.count_if("final").alias("ended"),
        *_spread("wait", f.when(f.col("first"), since_ms)),
        *_spread("stay", f.when(f.col("final"), since_ms)),
    )
    rate = f.when(f.col("delivered") > 0, f.col("redelivered") / f.col("delivered"))
    return (
        rows.withColumn("redelivery_rate", rate)
        .select(*columns.SLO.names)
        .orderBy("vhost", "queue", "consumer", "since")
    )


def _spread(name: str, value: "Column") -> "list[Column]":
    from pyspark.sql import functions as f

    found = [f.percentile(value, at).alias(f"{name}_{label}_ms") for label, at in PERCENTILES.items()]
    return [*found, f.max(value).alias(f"{name}_max_ms")]
