"""`spark.read.format("rewindmq")` and `spark.readStream`: the log and its folds as Spark tables.

    spark.read.format("rewindmq").option("path", "DATA").load()

Where RewindMQ is installed, Spark finds it by itself (pyspark_rewindmq.py); elsewhere `register(spark)`.

    path                 the broker's data directory; or else
    archive              the URL of an archive; credentials come from the environment of each process; or else Kafka:
    kafka.bootstrap.servers, kafkaPrefix (rewindmq)
                         host:port, comma separated, and the beginning of its topics' names
    kafka.*              any setting of librdkafka's, as for the broker; Spark needs no connector
    view                 events (default), records, partitions: the log (log.py, stream_reader.py)
                         history, queues, messages: folds (folds.py)
    log                  of the log: queues (default), metadata or all
    partitions           only these, comma separated
    minPartitions        the number of Spark partitions that is wished for
    startingOffsets, endingOffsets, startingTimestamp, endingTimestamp, startingOffsetsByTimestamp,
    endingOffsetsByTimestamp, startingOffsetsByTimestampStrategy, failOnDataLoss
                         the range (location/ranges.py)

A log partition is one Spark partition or more, in offset order. Rows are never packed or split by size, as Spark's file
sources do: a fold needs them in order. Spark does not tell a Python data source which columns are selected, hence
`view` and `includeBodies`. The class travels to workers by pickle; modules that it needs are imported where they are
used.
"""

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from rewindmq.spark_replay.columns import spark_schema
from rewindmq.spark_replay.source.folds import FoldReader
from rewindmq.spark_replay.source.log import LogReader, PartitionsReader
from rewindmq.spark_replay.source.options import TableOptions
from rewindmq.spark_replay.source.stream_reader import LogStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


OPTIONS: Final = "rewindmq.options"


class RewindSource(DataSource):
    """The data source; it only reads options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "rewindmq"

    def schema(self) -> "StructType":
        """Return the columns of the view.

        A catalog keeps the columns of a table, and does not give its options to the reader (Spark 4.1 to 4.3). So they
        are in the metadata of the first column."""
        table = TableOptions(self.options)
        found = spark_schema(table.columns)
        if table.of_catalog:
            found.fields[0].metadata = {OPTIONS: json.dumps(table.of_catalog, allow_nan=False)}
        return found

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Return the reader of the view."""
        table = self._options(schema)
        if table.view == "partitions":
            return PartitionsReader(table)
        return LogReader(table) if table.view in ("events", "records") else FoldReader(table)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        """Return the stream of the view."""
        return LogStream(self._options(schema))

    def _options(self, schema: "StructType") -> TableOptions:
        kept = schema.fields[0].metadata.get(OPTIONS) if schema.fields else None
        return TableOptions(self.options if kept is None else json.loads(kept) | self.options)


def register(spark: "SparkSession") -> None:
    """Make the format known to the session. Spark 4.0 refuses that where it has found the format by itself."""
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(RewindSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
