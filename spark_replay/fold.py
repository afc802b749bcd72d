"""Folds the machine in Spark tasks: one range of one log partition a task, in order, without a shuffle.

    over a log              spark.range(ranges) -> mapInArrow: each task reads its range from the log and folds it
    over Kafka              Spark's Kafka source -> mapInArrow: a Kafka partition is a Spark partition (kafka_frame.py)
    over a frame            records -> mapInArrow: the rows of a DataFrame (partition, offset, record), from any source

The same `rewindmq.projections.machine` runs here that runs in the broker. In the first way no record travels between
Python and the JVM: that journey costs more than the fold. There a task begins at the nearest snapshot, so a long
partition with snapshots can be cut into ranges that are folded at the same time. A data directory and
an archive are read in this way, and so is Kafka where an auditor has made snapshots of it (`snapshots/build.py`):
Spark's source reads one range of a partition at a time, and cannot begin at a snapshot. Memory is the machine's state
and one group of records.

A `Product` makes the rows of a fold (projections/history/product.py). Every fold skips a record that cannot be decoded
(docs/design.md#one-idea), and shows it to the product.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import InArchive, InDirectory, InKafka, Location
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.history.product import Product, fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import PartitionLog, RecordGroup, beginning, decoder_for, drive
from rewindmq.projections.store.snapshots import SnapshotError, SnapshotSet
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.single_object import HEADER
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.kafka_frame import records_frame
from rewindmq.spark_replay.location.log import groups_in, partition_of
from rewindmq.spark_replay.location.ranges import BadRequest, CheckpointRange, OffsetRange, joined

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

GROUP_ROWS = 10_000
GROUP_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class FoldInput:
    """The input of a task: a range, whose records come in `groups`.

    The records begin where `machine` stands: at the range's start, or before it at the nearest snapshot."""

    offset_range: OffsetRange
    machine: Machine
    groups: Iterator[RecordGroup]
    decoder: Decoder


def fold_range(product: "Product[pa.RecordBatch]", fold_input: FoldInput) -> "Iterator[pa.RecordBatch]":
    """Show `product` every event of the range."""
    machine, decoder = fold_input.machine, fold_input.decoder
    groups = drive(machine, fold_input.groups, decoder, fold_input.offset_range.start, one_by_one=product.run is None)
    return fold_events(product, machine, groups, decoder)


def fold_log(
    spark: "SparkSession",
    location: Location,
    ranges: Sequence[OffsetRange],
    task: "Callable[..., Iterator[pa.RecordBatch]]",
    schema: "pa.Schema",
    fresh: bool = False,
    snapshots: SnapshotSet | None = None,
    **settings: Any,
) -> "DataFrame":
    """Yields, as a DataFrame, the rows that `task(fold_input, **settings)` makes of each range, in their order.

    `fresh`: fold each range from the beginning of its partition, and trust no snapshot. `snapshots`: use these, and
    not those beside the log. Raises LogError when the beginning is gone."""
    used = None if fresh else snapshots or broker_snapshots(location)
    lineage.read(ranges_read(used, ranges))
    if used is None and isinstance(location, InKafka) and not location.archive:
        return _fold_topics(spark, location, ranges, partial(_topic_task, list(ranges), task, settings), schema)
    return for_each(spark, ranges, log_task, schema, location=location, snapshots=used, fold=task, settings=settings)


def for_each(
    spark: "SparkSession",
    items: Sequence[Any],
    task: "Callable[..., Iterator[pa.RecordBatch]]",
    schema: "pa.Schema",
    **settings: Any,
) -> "DataFrame":
    """Return the rows that `task(item, **settings)` makes of each item, in the items' order; one Spark task an item."""
    if not items:
        return spark.createDataFrame([], columns.spark_schema(schema))
    plan = spark.range(0, len(items), 1, len(items))
    return plan.mapInArrow(partial(_tasks, list(items), task, settings), columns.spark_schema(schema))


def _tasks(items: list[Any], task: Any, settings: dict[str, Any], batches: "Iterator[pa.RecordBatch]") -> Any:
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield from task(items[number], **settings)


# -- over a log ----------------------------------------------------------------------------------------------------


def log_task(
    offset_range: OffsetRange, location: Location, snapshots: SnapshotSet | None, fold: Any, settings: dict[str, Any]
) -> "Iterator[pa.RecordBatch]":
    """Fold a range, in a Spark task. Without snapshots the fold begins at the beginning of the partition, or its base.

    Raises CorruptLog, LogError, SnapshotError."""
    log = partition_of(location, offset_range.partition)
    if isinstance(offset_range, CheckpointRange):
        assert snapshots is not None, "a checkpoint is a snapshot that is there"
        machine = at_snapshot(snapshots, log, offset_range.checkpoint)
    else:
        machine = from_snapshot(snapshots, log, offset_range.start)
    groups = groups_up_to(log, machine.next_offset, offset_range.end)
    yield from fold(FoldInput(offset_range, machine, groups, decoder_for(log)), **settings)


def groups_up_to(log: PartitionLog, start: int, end: int) -> Iterator[RecordGroup]:
    """Yield the records of a range, in portions that fit into a task's memory.

    Raises CorruptLog, LogError."""
    if start < end:
        yield from groups_in(log, start, end, GROUP_ROWS, GROUP_BYTES)


def log_groups(data: Path, partition: str, start: int, end: int) -> Iterator[RecordGroup]:
    """Yield the records of a range of a data directory's log.

    Raises CorruptLog."""
    return groups_up_to(partition_of(InDirectory(data), partition), start, end)


def broker_snapshots(location: Location) -> SnapshotSet | None:
    """Return the snapshots that a broker keeps beside its log, or those of the archive. Topics have none.

    Raises LogError for those of another history."""
    if isinstance(location, InDirectory):
        return location.snapshots
    url = location.url if isinstance(location, InArchive) else location.archive
    if not url:
        return None
    from rewindmq.engine.keeping.archive.snapshots import ArchivedSnapshots

    return ArchivedSnapshots(url)


def from_snapshot(snapshots: SnapshotSet | None, log: PartitionLog, offset: int) -> Machine:
    """Return the machine at the nearest sound snapshot at or before `offset`, or else at the beginning of the log.

    A snapshot saves time and decides nothing: a damaged one is skipped. Raises LogError when the log no longer has the
    events behind the snapshot."""
    start = log.start_offset
    if snapshots is not None:
        for at in reversed([each for each in snapshots.offsets(log.name) if min(start, offset) <= each <= offset]):
            try:
                return snapshots.load(log.name, at)
            except SnapshotError:
                continue
    machine = beginning(log)
    _require_what_follows(machine, log, offset)
    return machine


def at_snapshot(snapshots: SnapshotSet, log: PartitionLog, offset: int) -> Machine:
    """Return the machine at exactly this snapshot.

    Raises SnapshotError when the snapshot is damaged or of another offset; LogError."""
    machine = snapshots.load(log.name, offset)
    if (machine.partition, machine.next_offset) != (log.name, offset):
        place = snapshots.place(log.name, offset)
        raise SnapshotError(f"{place}: it is of {machine.partition} at offset {machine.next_offset}")
    _require_what_follows(machine, log, log.next_offset)
    return machine


def _require_what_follows(machine: Machine, log: PartitionLog, offset: int) -> None:
    if machine.next_offset < min(log.start_offset, offset):
        raise LogError(f"{log.name} begins at offset {log.start_offset}: the events before it are gone")


def ranges_read(snapshots: SnapshotSet | None, ranges: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the range that is read for these ranges, by partition: from the nearest snapshot on, or else all."""
    for name, offset_range in joined(ranges).items():
        offsets = [] if snapshots is None else snapshots.offsets(name)
        begin = max((at for at in offsets if at <= offset_range.start), default=0)
        yield OffsetRange(name, begin, offset_range.end)


def cut_at_snapshots(
    location: Location, ranges: Iterable[OffsetRange], snapshots: SnapshotSet | None = None
) -> list[OffsetRange]:
    """Return the same ranges, in as many pieces as can be folded at the same time.

    A Kafka partition without snapshots stays one piece."""
    used = snapshots or broker_snapshots(location)
    if used is None:
        return list(ranges)
    pieces = []
    for offset_range in ranges:
        inside = [at for at in used.offsets(offset_range.partition) if offset_range.start < at < offset_range.end]
        bounds = [offset_range.start, *inside, offset_range.end]
        pieces += [OffsetRange(offset_range.partition, a, b) for a, b in pairwise(bounds)]
    return pieces


# -- over Kafka ----------------------------------------------------------------------------------------------------


def _fold_topics(
    spark: "SparkSession", topics: InKafka, ranges: Sequence[OffsetRange], tasks: Any, schema: "pa.Schema"
) -> "DataFrame":
    """Fold each partition from its beginning, by Spark's Kafka source."""
    named = [offset_range.partition for offset_range in ranges]
    for partition in topics.open().queues:
        if partition.name in named and partition.start_offset:
            raise LogError(f"{partition.name} begins at offset {partition.start_offset}: the events before it are gone")
    reading = [OffsetRange(offset_range.partition, 0, offset_range.end) for offset_range in ranges if offset_range.end]
    if not reading:
        return spark.createDataFrame([], columns.spark_schema(schema))
    return records_frame(spark, topics, reading).mapInArrow(tasks, columns.spark_schema(schema))


def _topic_task(
    ranges: list[OffsetRange], task: Any, settings: dict[str, Any], batches: "Iterator[pa.RecordBatch]"
) -> "Iterator[pa.RecordBatch]":
    """Fold the records of one partition, in a Spark task."""
    partition, groups = groups_of(batches)
    for offset_range in ranges:
        if offset_range.partition == partition:
            yield from task(FoldInput(offset_range, Machine(partition), groups, SharedDecoder()), **settings)


# -- over a frame --------------------------------------------------------------------------------------------------


def fold_frame(
    records: "DataFrame", product: "Callable[[str], Product[pa.RecordBatch]]", schema: "pa.Schema"
) -> "DataFrame":
    """Return the rows that `product(partition)` makes of a DataFrame with the columns RECORDS or KAFKA_RECORDS.

    Each Spark partition of it must hold one log partition from its beginning, in order (as the data source's view
    `records` gives it)."""
    of_kafka = "timestamp_ms" in records.columns
    frame = records.select(*(columns.KAFKA_RECORDS if of_kafka else columns.RECORDS).names)
    return frame.mapInArrow(partial(_fold_rows, product, of_kafka), columns.spark_schema(schema))


def _fold_rows(
    product: "Callable[[str], Product[pa.RecordBatch]]", of_kafka: bool, batches: "Iterator[pa.RecordBatch]"
) -> "Iterator[pa.RecordBatch]":
    partition, groups = groups_of(batches)
    first = next(groups, None)
    if partition is not None and first is not None:
        if first[0][0] != 0:
            why = f"it has {partition} from offset {first[0][0]} on (startingOffsets, minPartitions)"
            raise BadRequest(f"a fold of a frame begins with the beginning of a partition: {why}")
        groups = chain((first,), groups)
        if not of_kafka:  # the records are bare
            groups = ((offsets, [HEADER + each for each in records], times) for offsets, records, times in groups)
        decoder = SharedDecoder() if of_kafka else Decoder()
        yield from fold_events(product(partition), Machine(partition), groups, decoder, stripped=True)


def groups_of(batches: "Iterator[pa.RecordBatch]") -> tuple[str | None, Iterator[RecordGroup]]:
    """The partition that a task was given, and its records; None when it has no records.

    The batches have the columns RECORDS, KAFKA_RECORDS or those of `kafka_frame.to_records`."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return None, iter(())
    partition = first.column("partition")[0].as_py()
    name = f"queues-{partition}" if isinstance(partition, int) else partition
    return name, _frame_groups(partition, chain((first,), filled))


def _frame_groups(partition: str | int, batches: "Iterator[pa.RecordBatch]") -> Iterator[RecordGroup]:
    """Yield groups, verified to be of one partition and to ascend: mixed rows would make a fold wrong in silence."""
    expected = 0
    for batch in batches:
        offsets: list[int] = batch.column("offset").to_numpy().tolist()
        found = {batch.column("partition")[at].as_py() for at in (0, len(offsets) - 1)}
        if found != {partition} or offsets[0] < expected:
            raise RuntimeError(f"a fold of {partition} at offset {expected} was given {found} offset {offsets[0]}")
        expected = offsets[-1] + 1
        times = batch.column("timestamp_ms").to_numpy().tolist() if "timestamp_ms" in batch.schema.names else None
        yield offsets, binary_values(batch.column("record")), times


def binary_values(column: Any) -> list[bytes]:
    """Return a binary column without nulls as `bytes`, cut out of the one buffer in which it is stored.

    A scalar object for each row would cost more than the fold."""
    import numpy
    import pyarrow as pa

    width = numpy.int64 if pa.types.is_large_binary(column.type) else numpy.int32
    _, bounds, data = column.buffers()
    if data is None:
        return [b""] * len(column)
    ends = numpy.frombuffer(bounds, dtype=width)[column.offset : column.offset + len(column) + 1].tolist()
    base = ends[0]
    whole = data.slice(base, ends[-1] - base).to_pybytes()
    return [whole[start - base : end - base] for start, end in pairwise(ends)]
