"""Prints the progress of a Spark job on stderr while the job runs.

with progress(spark, "audit", shown, lambda: "12 ledgers kept"):
    findings = audit(...)
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.5
_CLEAR = "\r\x1b[K"  # to the beginning of the line, which is wiped


@contextmanager
def progress(
    spark: "SparkSession", what: str, shown: bool | None, also: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Print the progress of the code inside.

    `shown`: whether to print; None: only at a terminal. `also`: a few words more for the line."""
    terminal = sys.stderr.isatty()
    if not (terminal if shown is None else shown):
        yield
        return
    stopping = threading.Event()
    begun = time.monotonic()

    def show() -> None:
        last = ""
        while not stopping.wait(LOOK_SECONDS):
            parts = [f"{what}: {round(time.monotonic() - begun)} s", _tasks(spark), also()]
            line = ", ".join(part for part in parts if part)
            if terminal:
                sys.stderr.write(_CLEAR + line)
            elif line.partition(",")[2] != last.partition(",")[2]:  # in a file a line only for what is new
                sys.stderr.write(line + "\n")
            sys.stderr.flush()
            last = line
        if terminal and last:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _tasks(spark: "SparkSession") -> str:
    """Return the tasks of the running stages that are done, in words; empty when no stage runs."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    if not known:
        return ""
    return f"{sum(stage.numCompletedTasks for stage in known)} of {sum(stage.numTasks for stage in known)} tasks done"
