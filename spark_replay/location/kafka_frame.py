"""Reads the queue topic of a Kafka as a DataFrame that can be folded, by Spark's own Kafka source.

A Kafka partition is one Spark partition, in the order of its offsets, because `minPartitions` is not set and nothing
shuffles: the fold checks it. It reads what the brokers read: every appended record (read_uncommitted, the default). It
always gives offsets: Spark's own way from times to offsets takes a time without a match for the end.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.log.shared_contract import FILLER_KEY
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.spark_replay.commands.failures import NoSpark
from rewindmq.spark_replay.location.kafka_settings import for_java
from rewindmq.spark_replay.location.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_RECORDS = "5000"  # ten times the default: so it reads half as much again in a second


def records_frame(spark: "SparkSession", topics: InKafka, ranges: Sequence[OffsetRange]) -> "DataFrame":
    """Return the records of these ranges. None of the ranges is empty.

    Raises NoSpark when Spark has no Kafka source."""
    numbers = {number_of(offset_range.partition): offset_range for offset_range in ranges}
    reader = kafka_options(spark.read.format("kafka"), topics, sorted(numbers))
    reader.option("startingOffsets", _offsets(topics, {n: offset_range.start for n, offset_range in numbers.items()}))
    reader.option("endingOffsets", _offsets(topics, {n: offset_range.end for n, offset_range in numbers.items()}))
    return to_records(load(reader))


def kafka_options(reader: Any, topics: InKafka, numbers: Sequence[int]) -> Any:
    """Set the options that a batch and a stream have in common. A lost record is an error."""
    for name, value in for_java(dict(topics.settings)).items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        reader.option("kafka.bootstrap.servers", topics.bootstrap)
        .option("assign", json.dumps({topics.queues: list(numbers)}, allow_nan=False))
        .option("kafka.max.poll.records", _POLL_RECORDS)
        .option("failOnDataLoss", "true")
    )


def load(reader: Any) -> "DataFrame":
    """`reader.load()` of a batch or a stream.

    Raises NoSpark when Spark has no Kafka source."""
    from pyspark import __version__
    from pyspark.errors import AnalysisException

    try:
        frame: DataFrame = reader.load()
        return frame
    except AnalysisException as error:
        if "kafka" not in str(error).lower():
            raise
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}"
        raise NoSpark(f"Spark has no Kafka source: PYSPARK_SUBMIT_ARGS='--packages {package} pyspark-shell'") from error


def to_records(frame: "DataFrame") -> "DataFrame":
    """Return the columns RECORDS, and Kafka's times, without fillers (engine/log/shared_contract.py).

    A partition is given by its number, because a name in each row would cost a quarter of the reading. A record without
    a value cannot be decoded."""
    events = frame.where(f"value is not null or key is null or key <> X'{FILLER_KEY.hex()}'")
    return events.selectExpr(
        "partition",
        "offset",
        "unix_millis(timestamp) as timestamp_ms",
        "coalesce(value, cast('' as binary)) as record",
    )


def _offsets(topics: InKafka, offsets: dict[int, int]) -> str:
    return json.dumps({topics.queues: {str(number): offset for number, offset in offsets.items()}}, allow_nan=False)
