"""`spark.read.format("rewindmq")`: the log as a Spark table, one Spark partition per log partition, in offset order.

    spark.dataSource.register(RewindSource)
    spark.read.format("rewindmq").option("path", "DATA").load()

Options (all are strings; ranges.py explains the ones that choose a stretch)
    path                 the broker's data directory
    log                  queues (default), metadata or all
    view                 events (default): decoded; records: undecoded, without bodies, for `fold.fold_frame`;
                         history, queues, messages: folds (source_folds.py has their options)
    includeBodies        events: true (default) or false
    partitions           events, records, history: only these, comma separated
    startingOffsets, endingOffsets, startingTimestamp, endingTimestamp, startingOffsetsByTimestamp,
    endingOffsetsByTimestamp, startingOffsetsByTimestampStrategy, failOnDataLoss

Rows are never packed or split by size, as Spark's file sources do: a fold needs each partition whole and in order.
A Python data source is told of no column selection, hence `view` and `includeBodies`. The class travels to workers by
pickle; what it needs is imported where it is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_replay import columns
from spark_replay.ranges import STRETCH, BadRequest, Range, resolve, true_or_false
from spark_replay.source_folds import OPTIONS, VIEWS, FoldReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

# Rows and bytes after which a batch is handed over, whichever is first
BATCH_ROWS = 10_000
BATCH_BYTES = 8 * 1024 * 1024


class RewindSource(DataSource):
    """The data source; it only reads options."""

    @classmethod
    def name(cls) -> str:
        return "rewindmq"

    def schema(self) -> "StructType":
        return columns.spark_schema(self._columns())

    def _columns(self) -> "pa.Schema":
        view = self._view()
        if view in VIEWS:
            return VIEWS[view]
        if view == "records":
            return columns.RECORDS
        return columns.EVENTS_WITH_BODY if self._bodies() else columns.EVENTS

    def reader(self, schema: "StructType") -> DataSourceReader:
        options, view = self._spelled(), self._view()
        if view not in VIEWS:
            other = [name for name in OPTIONS if name in options and name != "readChangeFeed"]
            if other:
                raise BadRequest(f"{other[0]} is no option of the view {view}")
            return LogReader(options, view, self._bodies())
        return FoldReader(_path(options), view, options)

    def _spelled(self) -> dict[str, str]:
        """Spark hands option names over in lower case; give back the spelling used here. BadRequest for an unknown one,
        which would quietly be another question."""
        known = ("path", "data", "log", "partitions", *STRETCH, *OPTIONS)
        unknown = {name.lower() for name in self.options} - {name.lower() for name in (*known, "view", "includeBodies")}
        if unknown:
            raise BadRequest(f"{min(unknown)} is no option of rewindmq")
        return {name: str(self.options[name]) for name in known if self.options.get(name) is not None}

    def _view(self) -> str:
        feed = true_or_false(self.options, "readChangeFeed", False)
        as_of = any(self.options.get(name) is not None for name in ("asOfOffset", "asOfTimestamp"))
        view = str(self.options.get("view", "history" if feed else "queues" if as_of else "events"))
        if view not in ("events", "records", *VIEWS):
            raise BadRequest(f"view: {view!r} is none of events, records, {', '.join(VIEWS)}")
        if feed and view != "history":
            raise BadRequest(f"readChangeFeed is the view history, not {view}")
        return view

    def _bodies(self) -> bool:
        return true_or_false(self.options, "includeBodies", True)


def _path(options: dict[str, str]) -> str:
    path = options.get("path") or options.get("data")
    if not path:
        raise BadRequest('option "path": which data directory?')
    return path


class LogStretch(InputPartition):
    """One Spark partition: a range of one log partition."""

    def __init__(self, stretch: Range) -> None:
        super().__init__(stretch)


class LogReader(DataSourceReader):
    def __init__(self, options: dict[str, str], view: str, bodies: bool) -> None:
        self.options = options
        self.data = _path(options)
        self.view = view
        self.bodies = bodies

    def partitions(self) -> list[InputPartition]:
        from spark_replay.history_log import first_event_ms, open_log, selected
        from spark_replay.moments import by_offsets

        log = open_log(self.data)
        wanted = selected(log, self.options.get("log", "queues"), self.options.get("partitions"))
        return [LogStretch(stretch) for stretch in resolve(wanted, by_offsets(log, self.options), first_event_ms(log))]

    def read(self, partition: InputPartition | None) -> "Iterator[pa.RecordBatch]":
        if partition is None:  # so Spark says that there are no partitions
            return iter(())
        stretch: Range = partition.value
        return self._records(stretch) if self.view == "records" else self._events(stretch)

    def _records(self, stretch: Range) -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from schemas.codec import strip_body
        from spark_replay.history_log import read_groups

        schema = columns.RECORDS
        for offsets, records, _ in read_groups(self.data, stretch, BATCH_ROWS, BATCH_BYTES):
            stripped = [strip_body(record) for record in records]
            arrays = [
                pa.repeat(pa.scalar(stretch.partition, schema[0].type), len(stripped)),
                pa.array(offsets, schema[1].type),
                pa.array(stripped, schema[2].type),
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _events(self, stretch: Range) -> "Iterator[pa.RecordBatch]":
        from schemas.codec import Decoder, UndecodableRecord, strip_body
        from spark_replay.events import EventTable
        from spark_replay.history_log import read_groups

        decoder = Decoder()
        table = EventTable(columns.EVENTS_WITH_BODY if self.bodies else columns.EVENTS, stretch.partition)
        for offsets, records, _ in read_groups(self.data, stretch, BATCH_ROWS, BATCH_BYTES):
            for offset, record in zip(offsets, records, strict=True):
                try:
                    timestamp_ms, actor, event = decoder.decode(record, self.bodies)
                    table.add(offset, timestamp_ms, actor, event, strip_body(record))
                except UndecodableRecord as error:
                    table.add_undecodable(offset, str(error), record)
            yield table.take()


def register(spark: "SparkSession") -> None:
    """Make the format known to the session."""
    spark.dataSource.register(RewindSource)
