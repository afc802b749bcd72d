"""`spark.readStream.format("rewindmq")`: the log as a stream, for as long as brokers add to it.

    events = spark.readStream.format("rewindmq").option("path", "DATA").load()         # or kafka.bootstrap.servers

    batch N      from the end of batch N - 1 to the end that was durable when it was triggered
    its offset   {"queues-0": 8134, "queues-1": 7020}, exclusive: in Spark's checkpoint, and good as startingOffsets

- Offsets name records for ever, so a batch that is done again after a crash has the same rows. Spark's checkpoint
  counts each row exactly once, and with an idempotent sink no row is lost or comes twice.
- Only durable records are given out, since a record that a crash of the machine takes back would leave its offset to
  another. Records that a broker has written and not synced yet are synced here (`PartitionReader.durable_offset`);
  Kafka gives out no record before its replicas have it.
- In Kafka some offsets are no record (where transactions end): a batch may have fewer rows than offsets, also none.
- A start below the log's beginning, and an end below the start (a log that was restored from a backup, or is another
  one), are errors, unless failOnDataLoss is false: then missing records are left out.
- The views are those whose rows stand for themselves, events and records. A fold keeps its state from batch to batch,
  which this source cannot do: `watch` does.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rewindmq.projections.rewind import OutsideHistory
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange, divide
from rewindmq.spark_replay.source.log import LogInputPartition, read_range, wanted
from rewindmq.spark_replay.source.options import TableOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader


@dataclass(frozen=True, slots=True)
class DurablePartition:
    """The durable part of a partition, in the form that location/ranges.py needs."""

    log: "HistoryPartition"
    name: str
    start_offset: int
    next_offset: int

    @classmethod
    def of(cls, log: "HistoryPartition") -> "DurablePartition":
        """Return the durable part of the partition as it is now."""
        return cls(log, log.name, log.start_offset, log.durable_offset)

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset of the first durable record after this time."""
        return min(self.log.offset_at(timestamp_ms), self.next_offset)


def added_later(log: "HistoryReader", names: Iterable[str]) -> set[str]:
    """Return the given partitions that were added to the log after it was made.

    An archive may have a partition before it has the event that added it. Raises CorruptLog, LogError."""
    from rewindmq.engine.keeping.archive.reader import ArchivedLog
    from rewindmq.engine.keeping.location import InArchive

    wanted = set(names)
    first = log.topology().placement.made_with if wanted else 0
    if not first and isinstance(log.location, InArchive):
        first = ArchivedLog(log.location.url).identity.begun_with
    return set() if not first else wanted & {each.name for each in log.queues[first:]}


class LogStream(DataSourceStreamReader):
    """The stream of the log. `commit` does nothing: the log keeps the records that were read.

    Options that a stream cannot have are refused at its first call: if `streamReader` raises an error, PySpark reports
    only UnboundLocalError (python_streaming_source_runner.py stops a reader that it does not have)."""

    def __init__(self, table: TableOptions) -> None:
        self.table = table

    def initialOffset(self) -> dict[str, int]:
        """Return the start of a query without a checkpoint."""
        from rewindmq.spark_replay.location.marks import resolved

        log = self._opened()
        ranges = resolved(log, self._durable(log).values(), self.table.options)
        return {offset_range.partition: offset_range.start for offset_range in ranges}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # Spark 4.2 has more, and also takes that of before
        """Return the end of the durable log now, by partition."""
        durable = self._durable(self._opened())
        return {name: partition.next_offset for name, partition in durable.items()}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        """The ranges of a batch, planned in the driver. Partitions that came since are read from their beginning.

        Raises BadRequest when the checkpoint is of other partitions; OutsideHistory."""
        log = self._opened()
        there = self._durable(log)
        for each in (start, end):
            if each.keys() - there.keys() or (there.keys() - each.keys()) - added_later(
                log, there.keys() - each.keys()
            ):
                was, now = ", ".join(sorted(each)), ", ".join(sorted(there))
                raise BadRequest(f"the checkpoint of this query is of {was}, but the query is of {now}")
        ranges = [self._range(there[name], start.get(name, 0), end[name]) for name in end]
        return [LogInputPartition(each) for each in divide(ranges, self.table.least) if each.start < each.end]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of one range, in a Spark task."""
        return read_range(partition.value, self.table)

    def _opened(self) -> "HistoryReader":

        if self.table.view not in ("events", "records"):
            raise BadRequest(f"a stream has the view events or records; {self.table.view} is for spark.read")
        endings = sorted(name for name in self.table.options if name.startswith("ending"))
        if endings:
            raise BadRequest(f"{endings[0]}: a stream has no end")
        return self.table.location.open()

    def _durable(self, log: "HistoryReader") -> dict[str, DurablePartition]:
        return {each.name: DurablePartition.of(each) for each in wanted(log, self.table)}

    def _range(self, there: DurablePartition, start: int, end: int) -> OffsetRange:
        """Return the range from start to end, as far as it exists.

        Raises OutsideHistory when some of it is missing, and failOnDataLoss holds."""
        name, first, last = there.name, there.start_offset, there.next_offset
        if self.table.strict and not first <= start <= end <= last:
            requested = f"the query stands at {start}" + (f" and asks up to {end}" if end > last else "")
            raise OutsideHistory(f"failOnDataLoss: {name} has offsets {first} to {min(end, last)}, {requested}")
        begin = min(max(start, first), last)
        return OffsetRange(name, begin, max(begin, min(end, last)))
