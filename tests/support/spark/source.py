"""format("rewindmq") as Spark sees it: rows by a query, or the source itself with the options of a query."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from rewindmq.spark_replay.source.source import RewindSource


def read(spark: SparkSession, data: Path, **options: str) -> DataFrame:
    return spark.read.format("rewindmq").options(path=str(data), **options).load()


def source_with(options: dict[str, str]) -> RewindSource:
    return RewindSource(CaseInsensitiveDict(options))
