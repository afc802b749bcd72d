"""Keeps the table HISTORY in files that grow, as Parquet or as a Delta table.

Each run adds the rows since the last one.

    OUT/run=000000/part-*.parquet    the rows of a range of each partition
    OUT/run=000001/...               spark.read.format(FORMAT).load("OUT") reads all of them, with a column `run`
    OUT/_delta_log/                  (delta) the files that count
    OUT/_progress.json               {"format": 1, "runs": 2, "offsets": {"queues-0": 1200, "queues-1": 318}, "kept_as":
                                     "parquet", "begins": as cut.json has them (snapshots/external.py), ...}

A run's rows are written whole before the progress is (by a rename). So a run that was cut short is done again under the
same number, in place of its incomplete rows: no row is missing and none is there twice. A Delta table shows a run as a
whole or not at all, also to programs that read meanwhile.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import Location
from rewindmq.projections import system_calls
from rewindmq.schemas.formats import formatted, values_in
from rewindmq.spark_replay.commands.table_writer import save
from rewindmq.spark_replay.history.history import history_frame, plan_history
from rewindmq.spark_replay.location.log import located
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange
from rewindmq.spark_replay.snapshots.external import begins_of, begins_otherwise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROGRESS = "_progress.json"


@dataclass(frozen=True, slots=True)
class HistoryRun:
    """The result of a run: the ranges of the log that it added, and the number of rows."""

    run: int
    ranges: tuple[OffsetRange, ...]
    rows: int


def keep_history(
    spark: "SparkSession", location: Location | str, out: Path, queue: str | None = None, form: str = "parquet"
) -> HistoryRun:
    """Add the rows since the last run.

    Raises BadRequest when `out` is not a directory of ours, or was kept of another queue, in another format or of a
    longer log; NoSpark when Spark has no such format."""
    location = located(location)
    runs, offsets, noted = read_progress(out, queue, form)
    begins = begins_of(location)
    other = begins_otherwise(noted, begins)
    if other is not None:
        raise BadRequest(f"{out} was kept of another history: its {other} does not begin as the one here")
    ends = {each.partition: each.end for each in plan_history(location, {})}
    for partition, offset in offsets.items():
        if offset > ends.get(partition, 0):
            raise BadRequest(f"{out} has {partition} up to offset {offset}, the log ends at {ends.get(partition, 0)}")
    options = {
        "startingOffsets": json.dumps(offsets, allow_nan=False),
        "endingOffsets": json.dumps(ends, allow_nan=False),
    }
    ranges = [each for each in plan_history(location, options) if each.start < each.end]
    if not ranges:
        return HistoryRun(runs, (), 0)
    progress = {"runs": runs, "offsets": offsets, "queue": queue, "kept_as": form, "begins": begins}
    _write_progress(out, progress)  # the directory is ours from now on
    rows = save_run(history_frame(spark, location, ranges, queue), out, form, runs)
    _write_progress(out, progress | {"runs": runs + 1, "offsets": ends})
    return HistoryRun(runs, tuple(ranges), rows)


def save_run(frame: "DataFrame", out: Path, form: str, run: int) -> int:
    """Write the rows of a run, in place of any rows of this run. Returns how many it has."""
    from pyspark.sql import functions as f

    spark = frame.sparkSession
    if form == "parquet":
        path = str(out / f"run={run:06d}")
        frame.write.mode("overwrite").parquet(path)
        return spark.read.parquet(path).count()
    of_run = f"run = {run}"
    writer = frame.withColumn("run", f.lit(run)).write.partitionBy("run").mode("overwrite")
    save(writer.option("replaceWhere", of_run), form, out)
    return spark.read.format(form).load(str(out)).where(of_run).count()


def read_progress(out: Path, queue: str | None, form: str = "parquet") -> tuple[int, dict[str, int], dict[str, str]]:
    """Return the number of runs, the offset up to which each partition was read, and the beginnings of the history.

    Raises BadRequest."""
    try:
        found = values_in((out / _PROGRESS).read_text(), out / _PROGRESS, BadRequest)
    except FileNotFoundError:
        if out.exists() and any(out.iterdir()):
            raise BadRequest(f"{out} is not a kept history: it has no {_PROGRESS}") from None
        return 0, {}, {}
    except ValueError as error:
        raise BadRequest(f"{out / _PROGRESS}: {error}") from None
    if found["queue"] != queue:
        raise BadRequest(f"{out} was kept of {found['queue'] or 'all queues'}")
    if found["kept_as"] != form:
        raise BadRequest(f"{out} is kept as {found['kept_as']}, not as {form}")
    return found["runs"], found["offsets"], found["begins"]


def _write_progress(out: Path, progress: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    new = out / f"{_PROGRESS}.new"
    with new.open("w") as file:
        file.write(formatted(progress) + "\n")
        file.flush()
        system_calls.sync(file.fileno())
    os.rename(new, out / _PROGRESS)
