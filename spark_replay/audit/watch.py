"""`watch`: an audit of a history in Kafka that continues as the history does (Structured Streaming).

    watch(spark, InKafka("localhost:9092"), Path("WATCH"), once=True).violations

Each micro-batch folds the new records of each partition on top of the audit that the batch before stored
(`AuditStates`), with the checks of fold.py at every offset. So a stream finds what an audit of the whole finds.
Policies are compared with the metadata log, which the driver reads on.

    WATCH/spark            Spark's own checkpoint: which offsets belong to which batch
    WATCH/queues-N         the audit of each partition after the last batches
    WATCH/reports.jsonl    one line a batch: its format, then the same as is reported
    WATCH/begins.json      how the history begins: the directory is of no other one

An unfinished batch is done again with the same offsets, on top of the audit of an earlier batch, and is reported once.
A stored audit appears whole or not at all, and the one before it is kept. `lag_ms`: how long the oldest event that
is not audited yet has been in Kafka.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.log import whole_file
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import PartitionLog, RecordGroup
from rewindmq.projections.rewind import format_time
from rewindmq.schemas.formats import formatted, values_in
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.checks import Finding, of_row
from rewindmq.spark_replay.audit.file_format import StoredAudit, packed, resumed, unpacked
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.policies import IS_IN_FORCE, WAS_IN_FORCE, PolicyBook, rows_for_driver
from rewindmq.spark_replay.fold import groups_of
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.kafka_frame import kafka_options, load, to_records
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange, joined
from rewindmq.spark_replay.session import pure_workers
from rewindmq.spark_replay.snapshots.external import begins_of, begins_otherwise, write_whole

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# By such a row a partition's task tells the driver how far it came; it is not a finding
PROGRESS = "progress"
_LOOK_SECONDS = 0.2
# The error with which Spark 4.1's Kafka source fails when it has done an unfinished batch again (SPARK-55271). The
# batch is done then, and the query can be started.
_DONE_AGAIN = '"scala.Option.get()" is null'


@dataclass(frozen=True, slots=True)
class WatchedPartition:
    """The progress in one partition.

    `offset`: of the next event. `quarantined`: events that made no sense, since the beginning."""

    offset: int
    events: int
    quarantined: int
    lag_events: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one micro-batch. `time`: when it was done, ISO 8601."""

    batch: int
    time: str
    events: int
    partitions: dict[str, WatchedPartition]
    violations: list[Finding]

    def line(self) -> str:
        """Return the report as one line for people."""
        parts = [f"batch {self.batch}: {self.events} events, {len(self.violations)} violations"]
        for name, at in self.partitions.items():
            behind = f"{at.lag_events} events ({at.lag_ms} ms) behind" if at.lag_events else "at the end"
            quarantined = f", {at.quarantined} quarantined" if at.quarantined else ""
            parts.append(f"{name} at {at.offset}, {behind}{quarantined}")
        return "; ".join(parts)


class Watch:
    """A running watch. `stop()` may be called from anywhere: the batch that is being folded is finished first."""

    def __init__(
        self, location: InKafka, directory: Path, fail_fast: bool, report: Callable[[BatchReport], None]
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = str(directory.resolve())
        self.location = location
        self.partitions: list[PartitionLog] = list(location.open().queues)
        self.book = PolicyBook(location)
        self._require_same(directory / "begins.json")
        self.reports = Reports(directory / "reports.jsonl")
        self.fail_fast = fail_fast
        self.report = report
        self.violations = 0
        self.ranges: dict[str, OffsetRange] = {}  # the ranges that this watch audited
        self.reported: set[Finding] = set()  # findings about policies, which are looked at anew after each batch
        self.stopping = threading.Event()
        self.folding = threading.Lock()

    def stop(self) -> None:
        """Ask the watch to stop. It finishes the batch that it folds."""
        self.stopping.set()

    def fold(self, frame: "DataFrame", batch: int) -> None:
        """Audit a micro-batch."""
        with self.folding:
            if self.stopping.is_set():
                raise Stopped
            task = partial(fold_batch, self.directory, batch)
            with pure_workers(frame.sparkSession):
                found = to_records(frame).mapInArrow(task, columns.spark_schema(columns.AUDIT)).collect()
            report = self._report(batch, found)
            if not self.reports.add(report):
                return
            self.violations += len(report.violations)
            self.report(report)
            if report.violations and self.fail_fast:
                self.stop()

    def _report(self, batch: int, rows: list[Any]) -> BatchReport:
        self.book.read_on()
        violations = [of_row(row) for row in rows if row.check not in (WAS_IN_FORCE, IS_IN_FORCE, PROGRESS)]
        for finding in self.book.check([row for row in rows if row.check in (WAS_IN_FORCE, IS_IN_FORCE)]):
            at_no_offset = Finding(finding.check, False, finding.partition, None, finding.queue, None, finding.detail)
            if at_no_offset not in self.reported:
                self.reported.add(at_no_offset)
                violations.append(finding)
        progress = {row.partition: json.loads(row.detail) for row in rows if row.check == PROGRESS}
        if progress.keys() - {each.name for each in self.partitions}:  # some came since
            self.partitions = list(self.location.open().queues)
        audited = [OffsetRange(name, at.pop("begun"), at["offset"]) for name, at in progress.items()]
        self.ranges = joined([*self.ranges.values(), *audited])
        partitions = {
            each.name: WatchedPartition(**progress[each.name], **_lag(each, progress[each.name]["offset"]))
            for each in self.partitions
            if each.name in progress
        }
        events = sum(at.events for at in partitions.values())
        return BatchReport(batch, format_time(int(time.time() * 1000)), events, partitions, violations)

    def _require_same(self, note: Path) -> None:
        """Check that the directory is a watch of this history, or note that it is. Raises BadRequest."""
        begins = begins_of(self.location)
        noted = values_in(note.read_text(), note, BadRequest)["begins"] if note.exists() else {}
        other = begins_otherwise(noted, begins)
        if other is not None:
            raise BadRequest(f"{self.directory} watched another history: its {other} does not begin as the one here")
        write_whole(note, formatted({"begins": noted | begins}) + "\n")

    def report_lineage(self) -> None:
        """Report the run to its lineage."""
        lineage.read([*self.ranges.values(), self.book.reach])
        what = f"{self.violations} violations, listed in {self.reports.path.name}"
        lineage.found([Finding("watch", not self.violations, "all", None, None, None, what)])

    def run(self, query: "StreamingQuery") -> None:
        """Run until the watch is stopped or the query ends; raises the error that ended the query.

        A signal to stop may have gone to the JVM too, which then no longer answers. A batch that was cut off is done
        again when the watch continues."""
        try:
            while query.isActive:
                if self.stopping.wait(_LOOK_SECONDS):
                    with self.folding:
                        pass  # a batch that had begun is finished, and no other begins
                    query.stop()
            query.awaitTermination()
        except Exception:
            if not self.stopping.is_set():
                raise


class Stopped(Exception):
    """The watch was stopped before this batch."""


def watch(
    spark: "SparkSession",
    location: InKafka,
    directory: Path,
    interval_s: float = 10.0,
    batch_events: int = 1_000_000,
    fail_fast: bool = False,
    once: bool = False,
    report: Callable[[BatchReport], None] = lambda report: None,
    started: Callable[[Watch], None] = lambda watch: None,
) -> Watch:
    """Audit the events since the watch of this directory stopped (in a new directory all events), and go on.

    It looks again every `interval_s` until it is stopped; `once`: it ends when all events that are there now are
    audited. Batches have about `batch_events`. `started` is called with the watch before it begins. Raises LogError
    when Kafka or a topic is not there."""
    watching = Watch(location, directory, fail_fast, report)
    started(watching)
    reader = kafka_options(spark.readStream.format("kafka"), location, range(len(watching.partitions)))
    stream = load(reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(batch_events)))
    writer = stream.writeStream.foreachBatch(watching.fold).option("checkpointLocation", str(directory / "spark"))
    trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{interval_s} seconds")
    try:
        watching.run(trigger.start())
    except Exception as error:
        if _DONE_AGAIN not in str(error):
            raise
        watching.run(trigger.start())
    finally:
        watching.report_lineage()
    return watching


def fold_batch(directory: str, batch: int, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Audit the new records of one partition, on top of the audit stored before this batch. In a Spark task."""
    name, groups = groups_of(batches)
    if name is None:
        return
    states = AuditStates(Path(directory), name)
    product = states.before(batch)
    events, begun = product.events, product.machine.next_offset
    for found in fold_events(product, product.machine, _on_top(product, groups), SharedDecoder()):
        bad = found.filter(_not(found.column("ok")))
        if bad.num_rows:
            yield bad
    states.save(batch, product)
    progress = {
        "begun": begun,
        "offset": product.machine.next_offset,
        "events": product.events - events,
        "quarantined": product.quarantined,
    }
    rows = [row for row in rows_for_driver(product) if row[0] == IS_IN_FORCE or row[3] >= begun]
    rows.append((PROGRESS, True, name, None, None, None, canonical_json(progress)))
    yield batch_of(rows, columns.AUDIT)


def _on_top(product: AuditProduct, groups: Iterator[RecordGroup]) -> Iterator[RecordGroup]:
    """Yield the same groups, verified to follow the records that were folded before.

    Raises LogError."""
    at = product.machine.next_offset
    for group in groups:
        first = group[0][0]
        if first < at or (at == 0 and first > 0):
            what = "its beginning is gone from Kafka, or the audit's state from the directory of the watch"
            raise LogError(f"{product.partition}: the audit stands at offset {at} and was given offset {first}: {what}")
        yield group
        at = group[0][-1] + 1


def _not(column: Any) -> Any:
    import pyarrow.compute

    return pyarrow.compute.invert(column)


def _lag(partition: PartitionLog, offset: int) -> dict[str, int]:
    """Return the lag of an audit at `offset`: the events from there on, and the age of the first one in ms.

    At the end there may be offsets without records (ends of transactions)."""
    for block in partition.read(offset):
        assert block.timestamps_ms is not None, "Kafka says times"
        waiting = int(time.time() * 1000) - block.timestamps_ms[0]
        return {"lag_events": partition.next_offset - block.first_offset, "lag_ms": max(0, waiting)}
    return {"lag_events": 0, "lag_ms": 0}


class Reports:
    """The file of reports, a line each. A batch that is done again is not reported again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last = -1
        if path.exists():
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if whole != content:  # the watch ended while it wrote a line
                path.write_bytes(whole)
            if whole:
                self.last = values_in(whole.splitlines()[-1], path, BadRequest)["batch"]

    def add(self, report: BatchReport) -> bool:
        """Write a report, unless its batch was reported before. Returns whether it was new."""
        if report.batch <= self.last:
            return False
        with self.path.open("ab") as file:
            file.write(formatted(asdict(report)).encode() + b"\n")
        self.last = report.batch
        return True


# -- stored audits -----------------------------------------------------------------------------------------------------

SUFFIX = ".audit"


class AuditStates:
    """The audits of one partition below the directory of a watch, one for each of the last batches.

    DIR/queues-0/00000000000000000007.audit      after batch 7: a StoredAudit (file_format.py)
    """

    def __init__(self, directory: Path, partition: str) -> None:
        self.directory = directory / partition
        self.partition = partition

    def before(self, batch: int) -> AuditProduct:
        """Return the audit as the earlier batches left it; a new one when there was none.

        Raises LogError for a damaged file."""
        earlier = [number for number in self._batches() if number < batch]
        if not earlier:
            product = AuditProduct(self.partition)
            product.begin(Machine(self.partition))
            return product
        path = self._path(earlier[-1])
        found = unpacked(path)
        machine = Machine.load(self.partition, found.head, found.pieces)
        if machine.digest() != found.digest:
            raise LogError(f"{path}: its state has the digest {machine.digest()}, but the file says {found.digest}")
        return resumed(machine, found.beliefs)

    def save(self, batch: int, product: AuditProduct) -> None:
        """Write the audit after a batch, and remove the files that are no longer needed."""
        machine = product.machine
        pieces = [(meta, chunks) for _, meta, chunks in machine.pieces()]
        content = packed(StoredAudit(machine.digest(), machine.head(), product, {}, pieces))
        self.directory.mkdir(parents=True, exist_ok=True)
        whole_file.write_whole(self._path(batch), content, os.replace)
        for number in [number for number in self._batches() if number < batch][:-1]:
            self._path(number).unlink(missing_ok=True)

    def _batches(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob(f"{'[0-9]' * 20}{SUFFIX}"))

    def _path(self, batch: int) -> Path:
        return self.directory / f"{batch:020d}{SUFFIX}"
