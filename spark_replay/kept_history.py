"""The table HISTORY kept as Parquet files that grow: each run adds what is new since the last.

    OUT/run=000000/part-*.parquet        the rows of a stretch of each partition
    OUT/run=000001/...                   spark.read.parquet("OUT") reads all of them, with a column `run`
    OUT/_progress.json                   {"runs": 2, "offsets": {"queues-0": 1200, "queues-1": 318}}

A run's files are written whole before the progress is (by a rename), so a run that was cut short is done again under
the same number, in place of what it left: no row is missing and none is there twice.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_replay.history import history_frame, plan_history
from spark_replay.history_log import Place
from spark_replay.ranges import BadRequest, Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS = "_progress.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a run added: `stretches` of the log, and so many `rows`."""

    run: int
    stretches: tuple[Range, ...]
    rows: int


def keep_history(spark: "SparkSession", place: Place, out: Path, queue: str | None = None) -> Kept:
    """Add what is new. BadRequest when `out` is no directory of ours, or was kept of another queue or a longer log."""
    runs, offsets = read_progress(out, queue)
    ends = {each.partition: each.end for each in plan_history(place, {})}
    for partition, offset in offsets.items():
        if offset > ends.get(partition, 0):
            raise BadRequest(f"{out} has {partition} up to offset {offset}, the log ends at {ends.get(partition, 0)}")
    options = {"startingOffsets": json.dumps(offsets), "endingOffsets": json.dumps(ends)}
    stretches = [each for each in plan_history(place, options) if each.start < each.end]
    if not stretches:
        return Kept(runs, (), 0)
    path = out / f"run={runs:06d}"
    history_frame(spark, place, stretches, queue).write.mode("overwrite").parquet(str(path))
    rows = spark.read.parquet(str(path)).count()
    _write_progress(out, {"runs": runs + 1, "offsets": ends, "queue": queue})
    return Kept(runs, tuple(stretches), rows)


def read_progress(out: Path, queue: str | None) -> tuple[int, dict[str, int]]:
    """How many runs there were, and up to which offsets. BadRequest."""
    try:
        found: Any = json.loads((out / _PROGRESS).read_text())
    except FileNotFoundError:
        if out.exists() and any(path.name != "run=000000" for path in out.iterdir()):
            raise BadRequest(f"{out} is no kept history: it has no {_PROGRESS}") from None
        return 0, {}
    except ValueError:
        raise BadRequest(f"{out / _PROGRESS}: not JSON") from None
    if found["queue"] != queue:
        raise BadRequest(f"{out} was kept of {found['queue'] or 'all queues'}")
    return found["runs"], found["offsets"]


def _write_progress(out: Path, progress: dict[str, Any]) -> None:
    new = out / f"{_PROGRESS}.new"
    with new.open("w") as file:
        file.write(json.dumps(progress) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, out / _PROGRESS)
