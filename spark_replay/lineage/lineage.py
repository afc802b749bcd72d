"""Lineage: a job reports by itself what it reads and writes (docs/behaviours/interfaces.md#lineage).

Plan-based lineage cannot look into Python.

    with lineage.run("audit", "DATA", spark):        START here; COMPLETE, FAIL or (interrupted) ABORT at the end
        audit(spark, "DATA")

Each command is such a run, which begins when Spark is there; a command that was refused before has not run. Code that
folds a history reports to the caller's run, if there is one: `read`, `found`, `wrote_queue`. At its end the run knows
the ranges that were read, and adds the hash chain there. Lineage is off unless OpenLineage is configured
(settings.py). Events that cannot be sent fail no job: the first such error is a line on stderr.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import HistoryPartition, InArchive, InKafka, Location
from rewindmq.engine.log.contract import LogError
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.commands.failures import cause_of
from rewindmq.spark_replay.lineage.settings import PREFIX, LineageSettings, dataset_at, heard, read_settings
from rewindmq.spark_replay.location.log import located, partition_of
from rewindmq.spark_replay.location.ranges import OffsetRange, joined

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunState
    from pyspark.sql import SparkSession

CLOSE_SECONDS = 30.0  # for transports that send in the background

_current: ContextVar["LineageRun | None"] = ContextVar("lineage", default=None)


@contextmanager
def run(
    command: str,
    location: Location | str,
    spark: "SparkSession | None" = None,
    queue: str | None = None,
    files: Iterable[Path | InArchive | None] = (),
) -> Iterator["LineageRun"]:
    """A run of `command` around the code inside; without `spark` it begins at `begin`.

    `files`: directories, files and object storage that it writes. Raises BadRequest when its configuration is
    senseless."""
    outputs = [
        ("file", str(each.resolve())) if isinstance(each, Path) else dataset_at(each.url)
        for each in files
        if each is not None
    ]
    this = LineageRun(command, located(location), queue, outputs, read_settings({}))
    before = _current.set(this)
    try:
        if spark is not None:
            this.begin(spark)
        yield this
    except BaseException as error:
        this.end(error)
        raise
    else:
        this.end(None)
    finally:
        _current.reset(before)


def begin(spark: "SparkSession") -> None:
    """Begin the caller's run, if there is one: Spark is there.

    Raises BadRequest."""
    if (this := _current.get()) is not None:
        this.begin(spark)


def read(ranges: Iterable[OffsetRange]) -> None:
    """Report ranges that are read; they are looked at only if there is a run."""
    if (this := _begun()) is not None:
        this.read(ranges)


def found(findings: Sequence[Finding]) -> None:
    """Report findings to the caller's run, if there is one."""
    if (this := _begun()) is not None:
        this.findings += findings


def wrote_queue(url: str, vhost: str, queue: str) -> None:
    """Report a queue that was written, of the broker whose management API is at `url`."""
    if (this := _begun()) is not None:
        from rewindmq.spark_replay.lineage.events import queue_at

        this.outputs.append(queue_at(url, vhost, queue))


def _begun() -> "LineageRun | None":
    this = _current.get()
    return this if this is not None and this.id is not None else None


class LineageRun:
    """The lineage of one run.

    `id` is None, and nothing is kept or sent, until it has begun, and where there is no lineage. `settings`: those of
    the environment, until Spark's are known."""

    def __init__(
        self,
        command: str,
        location: Location,
        queue: str | None,
        outputs: list[tuple[str, str]],
        settings: LineageSettings | None,
    ) -> None:
        self.command = command
        self.location = location
        self.queue = queue
        self.outputs = outputs
        self.ranges: dict[str, OffsetRange] = {}
        self.findings: list[Finding] = []
        self.settings = settings
        self.id: str | None = None
        self._spark = ""
        self._say: Callable[[str], None] = _on_stderr
        self._warned = False

    def begin(self, spark: "SparkSession") -> None:
        """Send START.

        Raises BadRequest."""
        conf = dict(spark.sparkContext.getConf().getAll())
        if any(name.startswith(PREFIX) for name in conf):
            self._close()
            self.settings = read_settings(conf)
        if self.settings is not None:
            from openlineage.client.event_v2 import RunState
            from openlineage.client.uuid import generate_new_uuid

            self.id, self._spark = str(generate_new_uuid()), spark.version
            if "SPARK_ENV_LOADED" in os.environ:
                self._say = partial(_on_stderr_of_jvm, spark)
            self._emit(RunState.START, None)

    def read(self, ranges: Iterable[OffsetRange]) -> None:
        """Note ranges that are read; those of one partition are joined into one."""
        self.ranges = joined([*self.ranges.values(), *ranges])

    def end(self, error: BaseException | None) -> None:
        """Send COMPLETE, FAIL or ABORT. `error`: the error that ended the run, or None."""
        if self.id is None:
            self._close()
            return
        from openlineage.client.event_v2 import RunState

        if error is None:
            self._emit(RunState.COMPLETE, None)
        elif isinstance(error, Exception) and type(error).__name__ != "Abort":  # click's word for Ctrl-C
            self._emit(RunState.FAIL, cause_of(error)[1])
        else:
            self._emit(RunState.ABORT, None)
        self._close()

    def _close(self) -> None:
        if self.settings is None:
            return
        settings, self.settings = self.settings, None
        with heard(self._warn, self._say):
            try:
                if not settings.client.close(CLOSE_SECONDS):
                    self._warn(f"not all events were sent within {CLOSE_SECONDS:.0f} seconds")
            except Exception as unsent:
                self._warn(str(unsent))

    def _emit(self, state: "RunState", error: str | None) -> None:
        from rewindmq.spark_replay.lineage.events import RunFacts, run_event

        assert self.settings is not None
        assert self.id is not None
        with heard(self._warn, self._say):
            try:
                facts = RunFacts(
                    self.id,
                    self.command,
                    location=self.location,
                    queue=self.queue,
                    spark=self._spark,
                    partitions=self._partitions(),
                    findings=self.findings,
                    outputs=list(dict.fromkeys(self.outputs)),
                    error=error,
                )
                self.settings.client.emit(run_event(self.settings, state, facts))
            except Exception as unsent:
                self._warn(str(unsent))

    def _warn(self, said: str) -> None:
        """Print a warning once: an error at the start mostly comes again at the end."""
        if not self._warned:
            self._warned = True
            line = " ".join(said.split())
            self._say(f"spark_replay: lineage is not sent: {line}")

    def _partitions(self) -> dict[str, dict[str, Any]]:
        """Return the ranges in the form of the facet `rewindmq_offsets`."""
        return {
            name: {
                "start": offset_range.start,
                "end": offset_range.end,
                **chain_at(self.location, name, offset_range.end),
            }
            for name, offset_range in self.ranges.items()
        }


def _on_stderr(line: str) -> None:
    """Print a line on stderr, events of the console transport too: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def _on_stderr_of_jvm(spark: "SparkSession", line: str) -> None:
    """Print a line under spark-submit, which lets a program's stderr run into stdout."""
    try:
        spark._jvm.System.err.println(line)  # type: ignore[union-attr]
    except Exception:  # the JVM is gone
        _on_stderr(line)


def chain_at(location: Location, partition: str, end: int) -> dict[str, Any]:
    """Return the partition's hash chain behind the last block that ends at or before offset `end`.

    Empty where there is none: in Kafka, before the end of the first block, and where damage hides it."""
    if isinstance(location, InKafka):
        return {}
    try:
        return _chain_behind(partition_of(location, partition), end)
    except LogError:
        return {}


def _chain_behind(log: HistoryPartition, end: int) -> dict[str, Any]:
    """Return the chain at `end`; if a block goes on beyond `end`, the chain before that block."""
    while end > 0:
        block = next(iter(log.read(end - 1, end)), None)
        if block is None:
            return {}
        behind = block.first_offset + len(block.records)
        if behind <= end:
            return {"chain": block.chain.hex(), "chain_offset": behind}
        end = block.first_offset
    return {}
