"""The views of `format("rewindmq")` that show the log as it is: its events, records and partitions.

    view=events        the table EVENTS: decoded. includeBodies=false leaves `body` out; includeHeaders=true adds
                       `headers`, decoded from `properties`
    view=records       the table RECORDS: undecoded, without bodies, for `fold.fold_frame`; of Kafka KAFKA_RECORDS
    view=partitions    the table PARTITIONS, one row a partition of the log

The column `record` has the record without its body, as its log has it: in Kafka an Avro single object, in a data
directory the envelope alone, brought up to today's schema.

A row stands for itself here, so a range can be cut anywhere: with `minPartitions` a partition of the log becomes
several of Spark's, each with a range of about the same length, in order.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rewindmq.projections.rewind import OutsideHistory
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.location.ranges import OffsetRange, divide
from rewindmq.spark_replay.source.options import TableOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader
    from rewindmq.projections.replay import PartitionLog, RecordGroup

# Rows and bytes after which a batch is passed on: at the limit that is reached first
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024


class LogInputPartition(InputPartition):
    """One Spark partition: a range of one log partition."""

    def __init__(self, offset_range: OffsetRange) -> None:
        super().__init__(offset_range)


class LogReader(DataSourceReader):
    """Reads the views events and records."""

    def __init__(self, table: TableOptions) -> None:
        self.table = table

    def partitions(self) -> list[InputPartition]:
        """Return the ranges to read, planned in the driver."""
        from rewindmq.spark_replay.location.marks import resolved

        log = self.table.location.open()
        ranges = resolved(log, wanted(log, self.table), self.table.options)
        return [LogInputPartition(offset_range) for offset_range in divide(ranges, self.table.least)]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one range, in a Spark task."""
        if partition is None:  # Spark says so when there are no partitions
            return iter(())
        return read_range(partition.value, self.table)


def wanted(log: "HistoryReader", table: TableOptions) -> "list[HistoryPartition]":
    """Return the partitions that the options `log` and `partitions` name.

    Raises BadRequest, LogError."""
    from rewindmq.spark_replay.location.log import selected

    return selected(log, table.options.get("log", "queues"), table.options.get("partitions"))


def read_range(offset_range: OffsetRange, table: TableOptions) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a range, as events or as records, in a Spark task.

    Raises OutsideHistory when some records were lost since the range was planned, and failOnDataLoss holds;
    CorruptLog, LogError."""
    from rewindmq.spark_replay.location.log import groups_in, partition_of

    if offset_range.start == offset_range.end:
        return
    log = partition_of(table.location, offset_range.partition)
    if table.strict:
        _require_there(log, offset_range)
    groups = groups_in(log, offset_range.start, offset_range.end, BATCH_ROWS, BATCH_BYTES)
    rows = _records if table.view == "records" else _events
    yield from rows(log, groups, table.columns)


def _require_there(log: "PartitionLog", offset_range: OffsetRange) -> None:
    first, last = log.start_offset, log.next_offset
    if offset_range.start < first or last < offset_range.end:
        requested = f"offsets {offset_range.start} to {offset_range.end} are to be read"
        raise OutsideHistory(f"failOnDataLoss: {log.name} has offsets {first} to {last} by now, and {requested}")


def _records(log: "PartitionLog", groups: "Iterator[RecordGroup]", schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    stored = _stored_of(log)
    for offsets, records, times in groups:
        values = {"offset": offsets, "timestamp_ms": times, "record": [stored(record) for record in records]}
        name = pa.repeat(pa.scalar(log.name, schema[0].type), len(records))
        arrays = [name, *(pa.array(values[column.name], column.type) for column in [*schema][1:])]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _events(log: "PartitionLog", groups: "Iterator[RecordGroup]", schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    from itertools import repeat

    from rewindmq.projections.replay import decoder_for
    from rewindmq.schemas.codec import UndecodableRecord
    from rewindmq.schemas.single_object import HEADER_SIZE
    from rewindmq.spark_replay.history.events import EventTable

    decoder, stored = decoder_for(log), _stored_of(log)
    table = EventTable(schema, log.name)
    bodies = "body" in schema.names
    for offsets, records, times in groups:
        for offset, record, logged_ms in zip(offsets, records, times or repeat(None)):  # noqa: B905  repeat has no end
            try:
                timestamp_ms, actor, event = decoder.decode(record, bodies)
                at_ms = timestamp_ms if logged_ms is None else logged_ms
                table.add(offset, at_ms, actor, event, stored(record))
            except UndecodableRecord as error:
                table.add_undecodable(offset, str(error), record if log.shared else record[HEADER_SIZE:])
        yield table.take()


def _stored_of(log: "PartitionLog") -> Callable[[bytes], bytes]:
    """Return the function that makes the column `record` of a record."""
    from rewindmq.schemas.codec import UndecodableRecord, strip_body
    from rewindmq.schemas.older_schemas import of_today
    from rewindmq.schemas.single_object import HEADER_SIZE

    def bare(record: bytes) -> bytes:
        try:
            return strip_body(of_today(record))[HEADER_SIZE:]
        except UndecodableRecord:  # it is of an older schema, and not sound: nor must it seem to be of today's
            return b""

    return strip_body if log.shared else bare


class PartitionsReader(DataSourceReader):
    """Reads the view partitions: one row for each partition, as it is when the query begins."""

    def __init__(self, table: TableOptions) -> None:
        self.table = table

    def partitions(self) -> list[InputPartition]:
        """One Spark partition for each partition of the log."""
        from rewindmq.spark_replay.snapshots.external import external_snapshots

        location = self.table.location
        external_snapshots(location, self.table.snapshots)
        found = wanted(location.open(), self.table)
        return [LogInputPartition(OffsetRange(each.name, each.start_offset, each.next_offset)) for each in found]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        """Yield the row of one partition, in a Spark task."""
        from rewindmq.spark_replay.history.outcomes import batch_of
        from rewindmq.spark_replay.location.log import begin_ms, newest_ms, partition_of

        if partition is None:  # Spark says so when there are no partitions
            return
        offset_range: OffsetRange = partition.value
        log, used = partition_of(self.table.location, offset_range.partition), self.table.snapshots_used()
        newest = newest_ms(log, offset_range.start, offset_range.end)
        times = [None if ms is None else ms * 1000 for ms in (None if newest is None else begin_ms(log), newest)]
        there = [] if used is None else [at for at in used.offsets(offset_range.partition) if at <= offset_range.end]
        row = (offset_range.partition, offset_range.start, offset_range.end, *times, there)
        yield batch_of([row], columns.PARTITIONS)
