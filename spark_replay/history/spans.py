"""`spans`: messages with a header traceparent become spans of OpenTelemetry, and go to a collector.

    export_spans(spark, "DATA", "http://localhost:4318", since="2026-11-21T00:00:00+00:00").show()

    fold, a range a task       ->  rows of messages that may have a trace, and the trace of each publish
    sorted, a message a group  ->  projections/traces/spans.py, and each task sends what it made

The spans are those of `rewindmq spans`, with the same ids. So a task that Spark repeats doubles nothing.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import Location
from rewindmq.projections.history.outcome_rows import PUBLISHED
from rewindmq.projections.history.outcomes import wanted_rows
from rewindmq.projections.rewind import parse_time
from rewindmq.projections.traces.trace_outcomes import PublishTraces, TracedOutcomes
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import FoldInput, fold_log, fold_range
from rewindmq.spark_replay.history.history import plan_history
from rewindmq.spark_replay.history.outcome_rows import ArrowRows, history_columns
from rewindmq.spark_replay.location.log import located
from rewindmq.spark_replay.location.marks import time_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from rewindmq.projections.traces.spans import Span

ONLY = (
    "partition",
    "offset",
    "ordinal",
    "timestamp",
    "vhost",
    "queue",
    "outcome",
    "final",
    "message_id",
    "size",
    "consumer",
    "delivery_count",
    "redelivered",
    "reason",
    "rule",
    "exchange",
    "routing_key",
    "origin",
)
KEY = ("partition", "message_id", "vhost", "queue")
SPAN_BATCH = 512
TRACED = columns.traced(history_columns(ONLY))


def traced_rows(
    spark: "SparkSession", location: Location, since: str | None, until: str | None, queue: str | None = None
) -> "DataFrame":
    """Return the outcomes of messages that were published from `since` to `until` and may have a trace, up to now.

    A row `published` has the message's `trace`, as JSON. Raises BadRequest, LogError, RewindError."""
    log = location.open()
    first_ms, last_ms = (None if text is None else parse_time(time_of(log, text)) for text in (since, until))
    ranges = plan_history(location, {} if first_ms is None else {"startingTimestamp": str(first_ms)})
    bounds = {
        each.name: (
            0 if first_ms is None else each.offset_at(first_ms - 1),
            each.next_offset if last_ms is None else each.offset_at(last_ms),
        )
        for each in log.queues
    }
    return fold_log(spark, location, ranges, fold_traced, TRACED, bounds=bounds, queue=queue)


def fold_traced(
    fold_input: FoldInput, bounds: Mapping[str, tuple[int, int]], queue: str | None
) -> "Iterator[pa.RecordBatch]":
    """The rows of one range, in a Spark task."""
    import json
    from dataclasses import asdict

    import pyarrow as pa

    found = fold_input.offset_range
    first, end = bounds[found.partition]
    traces = PublishTraces(first, end, found.start)
    product = TracedOutcomes(ArrowRows(found.partition, ONLY, wanted_rows(queue, False)), traces)
    for batch in fold_range(product, fold_input):
        outcomes, ids = batch.column("outcome").to_pylist(), batch.column("message_id").to_pylist()
        kept = pa.array([message_id in traces for message_id in ids], pa.bool_())
        told = [
            json.dumps(asdict(traces.of[message_id]), allow_nan=False)
            if outcome == PUBLISHED and message_id in traces.of
            else None
            for outcome, message_id in zip(outcomes, ids, strict=True)
        ]
        arrays = [*batch.columns, pa.array(told, pa.string())]
        yield pa.RecordBatch.from_arrays(arrays, schema=TRACED).filter(kept)


def export_spans(
    spark: "SparkSession",
    location: Location | str,
    otlp: str,
    headers: Mapping[str, str] | None = None,
    since: str | None = None,
    until: str | None = None,
    queue: str | None = None,
) -> "DataFrame":
    """Send the spans of messages that were published from `since` to `until` to the collector at `otlp`.

    Returns one row of SPANS_SENT. `queue` as in `history`. Raises BadRequest, LogError; BadCollector, CollectorAway,
    SpansRefused in a task."""
    location = located(location)
    rows = traced_rows(spark, location, since, until, queue)
    grouped = rows.repartition("partition", "message_id").sortWithinPartitions(*KEY, "offset", "ordinal")
    task = partial(_send, otlp, dict(headers or {}))
    sent = grouped.mapInArrow(task, columns.spark_schema(columns.SPANS_SENT)).collect()  # once
    total = {name: sum(row[name] for row in sent) for name in ("sent", "rejected", "waiting")}
    reason = next((row.reason for row in sent if row.reason), "")
    return spark.createDataFrame([(*total.values(), reason)], columns.spark_schema(columns.SPANS_SENT))


def _send(otlp: str, headers: dict[str, str], batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Make the spans of a task's rows, and send them."""
    from rewindmq.projections.traces.otlp import Collector
    from rewindmq.spark_replay.history.outcomes import batch_of

    waiting, ready = 0, list["Span"]()
    with Collector(otlp, headers) as collector:
        for spans, left in spans_of(row for batch in batches for row in batch.to_pylist()):
            ready += spans
            waiting += left
            if len(ready) >= SPAN_BATCH:
                collector.send(ready)
                ready = []
        collector.send(ready)
        yield batch_of([(collector.sent, collector.rejected, waiting, collector.reason)], columns.SPANS_SENT)


def spans_of(rows: "Iterator[dict[str, Any]]") -> "Iterator[tuple[list[Span], int]]":
    """Yields, for each message in a queue, its spans, and 1 if its stay has not ended. Rows are sorted by KEY."""
    import json

    from rewindmq.projections.traces.spans import Spans
    from rewindmq.projections.traces.trace_context import Trace

    for _, group in groupby(rows, lambda row: tuple(row[name] for name in KEY)):
        found, spans = Spans(), list["Span"]()
        for row in group:
            if row["timestamp"] is None or row["message_id"] is None:
                continue
            trace = None if row["trace"] is None else Trace(**json.loads(row["trace"]))
            spans += found.add(row, round(row["timestamp"].timestamp() * 1_000), trace)
        yield spans, found.waiting
