"""The views of `format("rewindmq")` that show the log as it is: events, records, and what of each partition there is.

    view=events        the table EVENTS: decoded. includeBodies=false leaves `body` out; includeHeaders=true adds
                       `headers`, decoded from `properties`
    view=records       the table RECORDS: undecoded, without bodies, for `fold.fold_frame`
    view=partitions    the table PARTITIONS, one row a partition of the log

A row stands for itself here, so a stretch can be cut anywhere: with `minPartitions` a partition of the log becomes
several of Spark's, each with a stretch of about the same length, in order.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_replay import columns
from spark_replay.ranges import Range, divide, resolve
from spark_replay.source_options import Asked

if TYPE_CHECKING:
    import pyarrow as pa

    from engine.log.reader import PartitionReader

# Rows and bytes after which a batch is handed over, whichever is first
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024


class LogStretch(InputPartition):
    """One Spark partition: a range of one log partition."""

    def __init__(self, stretch: Range) -> None:
        super().__init__(stretch)


class LogReader(DataSourceReader):
    """The views events and records."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.data = asked.path

    def partitions(self) -> list[InputPartition]:
        from spark_replay.history_log import first_event_ms, open_log
        from spark_replay.moments import by_offsets

        log = open_log(self.data)
        stretches = resolve(wanted(self.asked), by_offsets(log, self.asked.options), first_event_ms(log))
        return [LogStretch(stretch) for stretch in divide(stretches, self.asked.least)]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        if partition is None:  # so Spark says that there are no partitions
            return iter(())
        return read_stretch(self.data, partition.value, self.asked)


def wanted(asked: Asked) -> "list[PartitionReader]":
    """The partitions that the options `log` and `partitions` name. BadRequest, LogError."""
    from pathlib import Path

    from engine.log.reader import EmbeddedLogReader
    from spark_replay.history_log import selected

    log = EmbeddedLogReader(Path(asked.path))
    found = selected(log, asked.options.get("log", "queues"), asked.options.get("partitions"))
    named = {partition.name: partition for partition in log.partitions}
    return [named[partition.name] for partition in found]


def read_stretch(data: str, stretch: Range, asked: Asked) -> "Iterator[pa.RecordBatch]":
    """In a Spark task: the rows of a stretch, as events or as records."""
    return _records(data, stretch) if asked.view == "records" else _events(data, stretch, asked.columns)


def _records(data: str, stretch: Range) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    from schemas.codec import strip_body
    from spark_replay.history_log import read_groups

    schema = columns.RECORDS
    for offsets, records, _ in read_groups(data, stretch, BATCH_ROWS, BATCH_BYTES):
        stripped = [strip_body(record) for record in records]
        arrays = [
            pa.repeat(pa.scalar(stretch.partition, schema[0].type), len(stripped)),
            pa.array(offsets, schema[1].type),
            pa.array(stripped, schema[2].type),
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _events(data: str, stretch: Range, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    from schemas.codec import Decoder, UndecodableRecord, strip_body
    from spark_replay.events import EventTable
    from spark_replay.history_log import read_groups

    decoder = Decoder()
    table = EventTable(schema, stretch.partition)
    bodies = "body" in schema.names
    for offsets, records, _ in read_groups(data, stretch, BATCH_ROWS, BATCH_BYTES):
        for offset, record in zip(offsets, records, strict=True):
            try:
                timestamp_ms, actor, event = decoder.decode(record, bodies)
                table.add(offset, timestamp_ms, actor, event, strip_body(record))
            except UndecodableRecord as error:
                table.add_undecodable(offset, str(error), record)
        yield table.take()


class PartitionsReader(DataSourceReader):
    """The view partitions: one row each, of what is there when the query begins."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.data = asked.path

    def partitions(self) -> list[InputPartition]:
        from spark_replay.own_snapshots import own_snapshots

        own_snapshots(self.data, self.asked.snapshots)
        return [LogStretch(Range(each.name, each.start_offset, each.next_offset)) for each in wanted(self.asked)]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        from spark_replay.history_log import begin_ms
        from spark_replay.outcomes import batch_of

        if partition is None:  # so Spark says that there are no partitions
            return
        stretch: Range = partition.value
        [log] = [each for each in wanted(self.asked) if each.name == stretch.partition]
        first = last = None
        if stretch.start < stretch.end:
            first = begin_ms(log)
            [last] = [block.max_timestamp_ms for block in log.read(stretch.end - 1, stretch.end)]
        times = [None if ms is None else ms * 1000 for ms in (first, last)]
        there = [at for at in self.asked.snapshots_used().offsets(stretch.partition) if at <= stretch.end]
        row = (stretch.partition, stretch.start, stretch.end, *times, there)
        yield batch_of([row], columns.PARTITIONS)
