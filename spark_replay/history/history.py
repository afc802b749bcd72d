"""`history`: one row an outcome, and `biography`: the rows that concern one message.

    history(spark, "DATA").where("outcome = 'expired'").groupBy("queue", "rule").count()

Rows come in log order within a partition; (partition, offset, ordinal) orders and identifies them.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import HistoryPartition, Location
from rewindmq.projections.history.biography import Key, Source, parse_message, with_letters
from rewindmq.projections.history.outcomes import is_queue
from rewindmq.projections.topology.placement import Placement
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import FoldInput, broker_snapshots, cut_at_snapshots, fold_frame, fold_log, fold_range
from rewindmq.spark_replay.history.outcome_rows import history_columns
from rewindmq.spark_replay.history.outcomes import HistoryProduct
from rewindmq.spark_replay.location.log import located, read_messages, selected
from rewindmq.spark_replay.location.marks import resolved
from rewindmq.spark_replay.location.ranges import BadRequest, CheckpointRange, OffsetRange
from rewindmq.spark_replay.snapshots.checkpoints import parse_checkpoints
from rewindmq.spark_replay.snapshots.external import external_snapshots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def history(
    spark: "SparkSession",
    location: Location | str,
    options: Mapping[str, str] | None = None,
    queue: str | None = None,
    snapshots: Path | None = None,
    only: Sequence[str] | None = None,
) -> "DataFrame":
    """Return the table HISTORY (columns.py) of the queue log at a location.

    `options` choose the offsets (location/ranges.py). `queue` ("vhost/name", or a name in "/"): only that queue.
    `snapshots`: an auditor's own directory of snapshots (snapshots/build.py). `only`: the names of the columns to make,
    for Spark does not say which ones a query reads. Raises BadRequest, OutsideHistory, CorruptLog."""
    location = located(location)
    return history_frame(spark, location, plan_history(location, options or {}, snapshots), queue, snapshots, only)


def plan_history(location: Location, options: Mapping[str, str], snapshots: Path | None = None) -> list[OffsetRange]:
    """Return the ranges to fold, in order. Needs no Spark.

    A range that gets a checkpoint by `options` (snapshots/checkpoints.py) begins there, and is not cut. Raises
    BadRequest."""
    log = location.open()
    external = external_snapshots(location, snapshots)
    partitions = selected(log, "queues", options.get("partitions"))
    wanted = resolved(log, partitions, options)
    forced = parse_checkpoints(options.get("fromCheckpoint"), wanted, external or broker_snapshots(location))
    ranges: list[OffsetRange] = []
    for partition, offset_range in zip(partitions, wanted, strict=True):
        at = forced.get(offset_range.partition)
        if at is None:
            ranges += cut_at_snapshots(location, [offset_range], external)
            continue
        if partition.start_offset < offset_range.start < at:
            begins = f"the range asked for, which begins at {offset_range.start}"
            raise BadRequest(f"fromCheckpoint: {offset_range.partition} at {at} lies beyond the beginning of {begins}")
        ranges.append(CheckpointRange(offset_range.partition, max(at, offset_range.start), offset_range.end, at))
    return ranges


def history_frame(
    spark: "SparkSession",
    location: Location,
    ranges: list[OffsetRange],
    queue: str | None = None,
    snapshots: Path | None = None,
    only: Sequence[str] | None = None,
) -> "DataFrame":
    """Return the table HISTORY of planned ranges."""
    schema, external = history_columns(only), external_snapshots(location, snapshots)
    return fold_log(spark, location, ranges, fold_history, schema, snapshots=external, queue=queue, only=only)


def history_of(records: "DataFrame", only: Sequence[str] | None = None) -> "DataFrame":
    """Return the table HISTORY of records that are already in a DataFrame (see `fold.fold_frame`)."""
    return fold_frame(records, partial(HistoryProduct, only=only), history_columns(only))


def fold_history(
    fold_input: FoldInput, queue: str | None, only: Sequence[str] | None = None
) -> "Iterator[pa.RecordBatch]":
    """The rows of one range, in a Spark task."""
    return fold_range(HistoryProduct(fold_input.offset_range.partition, queue, only), fold_input)


def biography(spark: "SparkSession", location: Location | str, message: str, queue: str | None = None) -> "DataFrame":
    """Every row about one message, in order: from its publish to its end, and through the queues of its dead letters.

    `message` is "queues-0:123" (partition and offset of its publish), or the number alone when `queue` or a single
    partition identifies the message. Raises BadRequest when there is no such message."""
    location = located(location)
    require_message(location, message)
    partition, message_id = named_message(message)
    named = history(spark, location, only=("partition", "vhost", "queue", "message_id", "origin"))
    rows = named.where(f"message_id = {message_id} or origin is not null").collect()
    found = {
        _key(row)
        for row in rows
        if row.message_id == message_id
        and partition in (None, row.partition)
        and (queue is None or is_queue(queue, row.vhost, row.queue))
    }
    if not found:
        raise BadRequest(f"no message {message}{f' in queue {queue}' if queue else ''} in the history")
    if len({key[0] for key in found}) > 1:
        which = ", ".join(sorted({f"{key[0]}:{message_id}" for key in found}))
        raise BadRequest(f"message {message}: which partition? {which}")
    letters = [(_key(row), _source(row)) for row in rows if row.origin is not None]
    reached = with_letters(found, letters, Placement())
    placement = location.open().topology().placement
    if placement.earlier:  # the names of queues were in several partitions: some of these may be of other messages
        reached = with_letters(found, _exact(location, letters, reached), placement)
    ids = ", ".join(sorted({str(key[3]) for key in reached}))
    rows = [row for row in history(spark, location).where(f"message_id in ({ids})").collect() if _key(row) in reached]
    rows.sort(key=lambda row: (row.timestamp, row.partition, row.offset, row.ordinal))
    return spark.createDataFrame(rows, columns.spark_schema(columns.HISTORY))


def _source(row: Any) -> Source:
    """Return the source of a letter, as far as the table says it: the partition is not in it."""
    return row.origin.vhost, row.origin.queue, row.origin.message_id, -1


def _exact(location: Location, letters: Sequence[tuple[Key, Source]], wanted: Set[Key]) -> Iterator[tuple[Key, Source]]:
    """Yield the wanted letters with their sources as the messages themselves name them."""
    ids: dict[str, set[int]] = {}
    for key, _ in letters:
        if key in wanted:
            ids.setdefault(key[0], set()).add(key[3])
    read = {partition: read_messages(location, partition, sorted(of_it)) for partition, of_it in ids.items()}
    for key, (vhost, queue, message_id, _) in letters:
        if key in wanted:
            origin = read[key[0]][key[3]][2].origin
            assert origin is not None, "a letter names its source"
            yield key, (vhost, queue, message_id, origin.partition)


def _key(row: Any) -> Key:
    return row.partition, row.vhost, row.queue, row.message_id


def require_message(location: Location, message: str) -> None:
    """Raise BadRequest when no partition reaches so far, without a fold of the whole history. Needs no Spark."""
    partition, message_id = named_message(message)
    log = location.open()
    named = [each for each in log.queues if partition in (None, each.name)]
    if not named:
        raise BadRequest(f"no message {message} in the history: there is no partition {partition}")
    if not any(_has(each, message_id) for each in named):
        there = ", ".join(f"{each.name} has offsets {each.start_offset} to {each.next_offset - 1}" for each in named)
        raise BadRequest(f"no message {message} in the history: {there}")


def _has(log: HistoryPartition, message_id: int) -> bool:
    """Return True if the log has a record at this offset, or if its message was queued when a trim removed it."""
    if message_id < log.start_offset:
        base = log.base()
        return base is not None and base.record(message_id) is not None
    return message_id < log.next_offset


def named_message(text: str) -> tuple[str | None, int]:
    """Return the partition (None: not named) and the message id in a text such as `queues-0:123`. Raises BadRequest."""
    try:
        return parse_message(text)
    except ValueError as error:
        raise BadRequest(str(error)) from None
