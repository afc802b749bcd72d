"""The views of `format("rewindmq")` that show the log as it is: its events, records and partitions.

    view=events        the table EVENTS: decoded. includeBodies=false leaves `body` out; includeHeaders=true adds
                       `headers`, decoded from `properties`
    view=records       the table RECORDS: undecoded, without bodies, for `fold.fold_frame`; of Kafka KAFKA_RECORDS
    view=partitions    the table PARTITIONS, one row a partition of the log

The column `record` has the record as its log has it: bare in a data directory, an Avro single object in Kafka.

A row stands for itself here, so a stretch can be cut anywhere: with `minPartitions` a partition of the log becomes
several of Spark's, each with a stretch of about the same length, in order.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rewindmq.projections.rewind import OutsideHistory
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.location.ranges import Range, divide, resolve
from rewindmq.spark_replay.source.options import Asked

if TYPE_CHECKING:
    import pyarrow as pa

    from rewindmq.engine.log.location import HistoryPartition
    from rewindmq.projections.replay import PartitionLog, RecordGroup
    from rewindmq.spark_replay.location.log import HistoryLog

# Rows and bytes after which a batch is passed on: at the limit that is reached first
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024


class LogStretch(InputPartition):
    """One Spark partition: a range of one log partition."""

    def __init__(self, stretch: Range) -> None:
        super().__init__(stretch)


class LogReader(DataSourceReader):
    """Reads the views events and records."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def partitions(self) -> list[InputPartition]:
        from rewindmq.spark_replay.location.log import first_event_ms, open_log
        from rewindmq.spark_replay.location.marks import by_offsets

        log = open_log(self.asked.place)
        stretches = resolve(wanted(log, self.asked), by_offsets(log, self.asked.options), first_event_ms(log))
        return [LogStretch(stretch) for stretch in divide(stretches, self.asked.least)]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        if partition is None:  # Spark says so when there are no partitions
            return iter(())
        return read_stretch(partition.value, self.asked)


def wanted(log: "HistoryLog", asked: Asked) -> "list[HistoryPartition]":
    """The partitions that the options `log` and `partitions` name.

    Raises BadRequest, LogError."""
    from rewindmq.spark_replay.location.log import selected

    return selected(log, asked.options.get("log", "queues"), asked.options.get("partitions"))


def read_stretch(stretch: Range, asked: Asked) -> "Iterator[pa.RecordBatch]":
    """Yields the rows of a stretch, as events or as records, in a Spark task.

    Raises OutsideHistory when some records were lost since the stretch was planned, and failOnDataLoss holds;
    CorruptLog, LogError."""
    from rewindmq.spark_replay.location.log import groups_in, partition_of

    if stretch.start == stretch.end:
        return
    log = partition_of(asked.place, stretch.partition)
    if asked.strict:
        _require_there(log, stretch)
    groups = groups_in(log, stretch.start, stretch.end, BATCH_ROWS, BATCH_BYTES)
    rows = _records if asked.view == "records" else _events
    yield from rows(log, groups, asked.columns)


def _require_there(log: "PartitionLog", stretch: Range) -> None:
    first, last = log.start_offset, log.next_offset
    if stretch.start < first or last < stretch.end:
        asked = f"offsets {stretch.start} to {stretch.end} are to be read"
        raise OutsideHistory(f"failOnDataLoss: {log.name} has offsets {first} to {last} by now, and {asked}")


def _records(log: "PartitionLog", groups: "Iterator[RecordGroup]", schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    strip = _strip_of(log)
    for offsets, records, times in groups:
        values = {"offset": offsets, "timestamp_ms": times, "record": [strip(record) for record in records]}
        name = pa.repeat(pa.scalar(log.name, schema[0].type), len(records))
        arrays = [name, *(pa.array(values[column.name], column.type) for column in [*schema][1:])]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _events(log: "PartitionLog", groups: "Iterator[RecordGroup]", schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    from itertools import repeat

    from rewindmq.projections.replay import decoder_for
    from rewindmq.schemas.codec import UndecodableRecord
    from rewindmq.spark_replay.history.events import EventTable

    decoder, strip = decoder_for(log), _strip_of(log)
    table = EventTable(schema, log.name)
    bodies = "body" in schema.names
    for offsets, records, times in groups:
        for offset, record, logged_ms in zip(offsets, records, times or repeat(None)):  # noqa: B905  repeat has no end
            try:
                timestamp_ms, actor, event = decoder.decode(record, bodies)
                at_ms = timestamp_ms if logged_ms is None else logged_ms
                table.add(offset, at_ms, actor, event, strip(record))
            except UndecodableRecord as error:
                table.add_undecodable(offset, str(error), record)
        yield table.take()


def _strip_of(log: "PartitionLog") -> Callable[[bytes], bytes]:
    from rewindmq.schemas.codec import strip_body
    from rewindmq.schemas.single_object import strip_framed_body

    return strip_framed_body if log.framed else strip_body


class PartitionsReader(DataSourceReader):
    """Reads the view partitions: one row for each partition, as it is when the query begins."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def partitions(self) -> list[InputPartition]:
        from rewindmq.spark_replay.location.log import open_log
        from rewindmq.spark_replay.snapshots.external import own_snapshots

        place = self.asked.place
        own_snapshots(place, self.asked.snapshots)
        found = wanted(open_log(place), self.asked)
        return [LogStretch(Range(each.name, each.start_offset, each.next_offset)) for each in found]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        from rewindmq.spark_replay.history.outcomes import batch_of
        from rewindmq.spark_replay.location.log import begin_ms, newest_ms, partition_of

        if partition is None:  # Spark says so when there are no partitions
            return
        stretch: Range = partition.value
        log, used = partition_of(self.asked.place, stretch.partition), self.asked.snapshots_used()
        newest = newest_ms(log, stretch.start, stretch.end)
        times = [None if ms is None else ms * 1000 for ms in (None if newest is None else begin_ms(log), newest)]
        there = [] if used is None else [at for at in used.offsets(stretch.partition) if at <= stretch.end]
        row = (stretch.partition, stretch.start, stretch.end, *times, there)
        yield batch_of([row], columns.PARTITIONS)
