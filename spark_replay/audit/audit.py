"""`audit`: checks that the history holds together, and that the live state follows from it.

    findings = audit(spark, "DATA");  all(finding.ok for finding in findings)

    chain     every block's bytes against the hash chain, also of the metadata log      log_bytes.py, by segments
    kept      (Kafka, which has no chain) the topics have everything from offset 0, and are set to keep it
    snapshots (where there are some) each is the state to which the events since the one before lead   second_fold.py
    ...       the checks of audit/fold.py, at every offset                              a Spark task a partition
    publishes what came in each session against its events in the log                   publishes.py
    ledgers   (with an auditor's own snapshots) the same from ledger to ledger      chunks.py, a task a chunk
    arrivals  dead letters, joined across partitions: each arrival was sent, each forwarded letter arrived
    policies  every policy that decided was set in the metadata log, and policies that are set are applied
    store     the RocksDB of the broker against the fold, queue by queue and body by body      second_fold.py

Snapshots and RocksDB are compared with the fold that checks all the rest, when it comes to their offsets. So a history
is folded once. (Snapshots of a history in Kafka are folded apart, a task each; ledgers: chunks.py.)

All tasks fold with the pure build, also where the broker runs the compiled one (rewindmq/builds.py): two builds of one
source check each other. The row `records` names the build. They fold event by event, while recovery, `verify` and the
broker apply publishes that are alike together: so a defect of that is a finding.

A partition whose chain is broken, or whose beginning is gone, is not folded: the records behind the break are not
history. A partition whose older part was trimmed is folded from its base on (base_beliefs.py). An audit works beside
running brokers; it reads up to the end that was durable when it began, and the state that RocksDB had persisted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import HistoryReader, InArchive, InDirectory, InKafka, Location
from rewindmq.engine.log.contract import CorruptLog
from rewindmq.projections.floors import base_differs
from rewindmq.projections.marks import topology_of
from rewindmq.projections.rules.partition_hash import number_of, partition_of
from rewindmq.projections.store.snapshots import Snapshots, SnapshotSet
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.archive_bytes import prove_archive
from rewindmq.spark_replay.audit.books import LISTED
from rewindmq.spark_replay.audit.checks import Finding, not_all_ok, of_row
from rewindmq.spark_replay.audit.chunks import AuditChunk, audit_chunk, convicted, in_sum, is_first, plan_audit
from rewindmq.spark_replay.audit.dead_letter_join import (
    ARRIVALS,
    ARRIVED,
    ARRIVED_BEFORE,
    NOTED,
    SENT,
    SORTED_BY,
    Destinations,
    LetterRows,
    check_arrivals,
)
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.kafka_retention import retention_findings
from rewindmq.spark_replay.audit.log_bytes import CHAIN, ProvenSegments, prove
from rewindmq.spark_replay.audit.policies import IS_IN_FORCE, WAS_IN_FORCE, PolicyBook, queues_since, rows_for_driver
from rewindmq.spark_replay.audit.publishes import (
    PUBLISHED_BY,
    Mark,
    PublishTally,
    SessionCounts,
    counts_in,
    pieces_in,
    publish_findings,
)
from rewindmq.spark_replay.audit.second_fold import BesideFold, compare_with_snapshot
from rewindmq.spark_replay.fold import FoldInput, broker_snapshots, fold_log, fold_range, for_each
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import located, newest_ms
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange
from rewindmq.spark_replay.location.trims import beside_trims
from rewindmq.spark_replay.session import pure_workers
from rewindmq.spark_replay.snapshots.external import (
    beyond_the_end,
    external_snapshots,
    offsets_of,
    read_about,
    write_sums,
)
from rewindmq.spark_replay.snapshots.verify import SNAPSHOTS, plan_chunks, verify_snapshots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORK = "fork"
# Rows that a partition's task leaves for the driver; they are no findings
FOR_DRIVER = (WAS_IN_FORCE, IS_IN_FORCE, NOTED, PUBLISHED_BY)


def audit(
    spark: "SparkSession", location: Location | str, snapshots: Path | None = None, since_last: bool = False
) -> list[Finding]:
    """Return the findings of all checks, in the order of checks and partitions.

    `snapshots`: an auditor's own directory of snapshots (snapshots/build.py), in place of those beside the log; the
    ledgers of the audit are kept there as well (ledger_files.py). `since_last`: audit only the events since the last
    ledgers. Raises LogError when there is no log; BadRequest."""
    location = located(location)
    external = ledger_snapshots(location, snapshots, since_last)
    with pure_workers(spark):
        findings = beside_trims(
            location, lambda: _audited_history(spark, location, external, snapshots, since_last), not_all_ok
        )
    lineage.found(findings)
    return findings


def _audited_history(
    spark: "SparkSession", location: Location, external: Snapshots | None, snapshots: Path | None, since_last: bool
) -> list[Finding]:
    log = location.open()
    reach = _reach_of_archive(log) if isinstance(location, InArchive) else ends_of(log)
    ends = ranges_of(location.open())  # later than `reach` (dead_letter_join.py)
    proven = None if external is None or not isinstance(location, InDirectory) else ProvenSegments(external.directory)
    findings = _bytes(spark, location, log, proven, since_last)
    sound = {finding.partition for finding in findings if finding.ok}
    findings += base_findings(log)
    ranges = [end for end in ends if end.partition in sound]
    if ranges:
        counts = counts_in(log.metadata) if log.metadata.name in sound else SessionCounts(())
        folded = AuditTasks(spark, location, reach, counts)
        if external is None:
            findings += folded.with_snapshots(ranges, {end.partition for end in ends} - sound, snapshots)
        else:
            folded.in_chunks(external, ranges, since_last)
        whole = len(ranges) == len(ends)
        findings += conclude(location, folded.rows, folded.letters, log.metadata.name in sound, whole, counts, ranges)
        folded.close()
        if external is not None:
            written = set(external.directory.glob("*/*.ledger")) | set(external.directory.glob("*/*.letters"))
            write_sums(external.directory, written if proven is None else written | {proven.save()})
    return findings


def _bytes(
    spark: "SparkSession", location: Location, log: HistoryReader, proven: ProvenSegments | None, since_last: bool
) -> list[Finding]:
    """Check that all bytes are there, as they were written. Returns a finding for each partition."""
    partitions = [log.metadata, *log.queues]
    if isinstance(location, InKafka):
        findings = retention_findings(location, partitions)
        if location.archive:
            findings += prove_archive(spark, InArchive(location.archive), [partition.name for partition in partitions])
        return findings
    if isinstance(location, InArchive):
        return prove_archive(spark, location, [partition.name for partition in partitions])
    return prove(spark, location.data, [partition.name for partition in partitions], proven, since_last)


def base_findings(log: HistoryReader) -> list[Finding]:
    """Return the bases of partitions that are not those with which they were trimmed, as the metadata log says."""
    bases = [base for partition in log.queues if (base := partition.base()) is not None]
    floors = topology_of(log.metadata).history.floors if bases else {}
    wrong = [(base, base_differs(base, floors)) for base in bases]
    return [Finding(CHAIN, False, base.partition, base.offset, None, None, why) for base, why in wrong if why]


def ledger_snapshots(location: Location, snapshots: Path | None, since_last: bool) -> Snapshots | None:
    """Return the auditor's own directory of snapshots in which ledgers are kept; None: no ledgers are kept.

    The audit does not write to a directory of a broker or a node. Raises BadRequest."""
    external = external_snapshots(location, snapshots)
    if snapshots is not None and read_about(snapshots) is not None:
        return external
    if since_last:
        raise BadRequest(
            "--since-last: name the directory of `cut` with the ledgers of earlier audits, with --snapshots"
        )
    return None


class AuditTasks:
    """The results of an audit's tasks.

    `rows`: rows of AUDIT. `letters`: rows of LETTERS in the order SORTED_BY."""

    def __init__(self, spark: "SparkSession", location: Location, reach: dict[str, int], counts: SessionCounts) -> None:
        self.spark = spark
        self.location = location
        self.reach = reach
        self.marks = {name: counts.marks(number_of(name)) for name in reach}
        self.rows: list[Any] = []
        self._frames: list[DataFrame] = []
        self._letters: list[DataFrame] = []

    def with_snapshots(self, ranges: Sequence[OffsetRange], broken: Set[str], directory: Path | None) -> list[Finding]:
        """Audit each partition as a whole, and verify its snapshots. Returns the findings about these.

        `broken`: the other partitions. A partition in Kafka is read by Spark, so its snapshots are verified by tasks of
        their own."""
        if isinstance(self.location, InKafka):
            found = verify_snapshots(self.spark, self.location, broken, directory)
            self.whole(ranges)
            return found
        snapshots = external_snapshots(self.location, directory) or broker_snapshots(self.location)
        chunks, beyond = plan_chunks(self.location, snapshots, broken)
        lineage.read(chunk for chunk in chunks if chunk.meets)
        meets: dict[str, list[int]] = {}
        for chunk in chunks:
            meets.setdefault(chunk.partition, []).extend(chunk.meets)
        self.whole(ranges, snapshots, meets)
        found = [of_row(row) for row in self.rows if row.check == SNAPSHOTS]
        self.rows = [row for row in self.rows if row.check != SNAPSHOTS]
        wrong = beyond + [finding for finding in found if not finding.ok]
        wrong.sort(key=lambda finding: (finding.partition, finding.offset or 0))
        doubtful = {finding.partition for finding in wrong}
        return [finding for finding in found if finding.ok and finding.partition not in doubtful] + wrong

    def whole(
        self,
        ranges: Sequence[OffsetRange],
        meets_of: SnapshotSet | None = None,
        meets: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Audit each partition from its beginning, in one task, with its RocksDB.

        `meets`: by partition, the offsets of the snapshots `meets_of` that the fold has to arrive at."""
        self._take(
            fold_log(
                self.spark,
                self.location,
                ranges,
                fold_audit,
                columns.AUDITED,
                fresh=True,
                place=None if isinstance(self.location, InKafka) else self.location,
                reach=self.reach,
                marks=self.marks,
                meets_of=meets_of,
                meets=meets,
            )
        )

    def in_chunks(self, external: Snapshots, ranges: Sequence[OffsetRange], since_last: bool) -> None:
        """Audit from ledger to ledger. If a ledger does not hold, its partition is audited again as a whole."""
        chunks = plan_audit(external, ranges, self.reach, since_last)
        lineage.read(chunks)
        settings = {"location": self.location, "external": external, "reach": self.reach, "marks": self.marks}
        self._take(for_each(self.spark, chunks, chunk_rows, columns.AUDITED, **settings))
        doubtful = convicted(self.rows)
        ends = {each.partition: each.end for each in ranges}
        taken = {name: at for name, at in offsets_of(external).items() if name in ends or name not in self.reach}
        beyond = list(beyond_the_end(taken, ends))
        self.rows += in_sum(chunks, {*doubtful, *(name for name, _, _ in beyond)})
        self.rows += [Finding(SNAPSHOTS, False, name, offset, None, None, why) for name, offset, why in beyond]
        if isinstance(self.location, InDirectory):
            sound = [each for each in ranges if each.partition not in doubtful]
            self.rows += for_each(
                self.spark, sound, store_rows, columns.AUDIT, location=self.location, external=external
            ).collect()
        if doubtful:
            self.rows = [row for row in self.rows if row.partition not in doubtful or is_first(row, doubtful)]
            self._letters = [each.where(~each.partition.isin(*doubtful)) for each in self._letters]
            self.whole([each for each in ranges if each.partition in doubtful])

    def _take(self, frame: "DataFrame") -> None:
        frame = frame.persist()
        self._frames.append(frame)
        self.rows += frame.where("finding is not null").select("finding.*").collect()
        self._letters.append(frame.where("letter is not null").select("letter.*"))

    def letters(self) -> Iterator[Any]:
        """Rows of LETTERS of all partitions, in the order SORTED_BY."""
        return reduce(lambda one, other: one.unionAll(other), self._letters).orderBy(*SORTED_BY).toLocalIterator()

    def close(self) -> None:
        """Release the results that Spark has kept."""
        for frame in self._frames:
            frame.unpersist()


def ends_of(log: HistoryReader) -> dict[str, int]:
    """Return the end of each queue partition; 0 where damage hides the end: the chain check says where."""
    found = {}
    for partition in log.queues:
        try:
            found[partition.name] = partition.next_offset
        except CorruptLog:
            found[partition.name] = 0
    return found


def ranges_of(log: HistoryReader) -> list[OffsetRange]:
    """Return the offsets of each queue partition; none where damage hides the end."""
    starts = {partition.name: partition.start_offset for partition in log.queues}
    return [OffsetRange(name, min(starts[name], end), end) for name, end in ends_of(log).items()]


def _reach_of_archive(log: HistoryReader) -> dict[str, int]:
    """Return the offsets up to which all partitions are archived: those before the earliest of their last times.

    Partitions are not archived up to the same moment, so a letter may be archived before the death that it came from.
    The last time of a partition may have more records that are not archived."""
    ends = ends_of(log)
    try:
        last = [newest_ms(each, 0, ends[each.name]) for each in log.queues]
        whole_ms = min((-1 if ms is None else ms for ms in last), default=-1)
        return {each.name: min(each.offset_at(whole_ms - 1), ends[each.name]) for each in log.queues}
    except CorruptLog:  # nothing can be joined; the proof of the objects names the place
        return dict.fromkeys(ends, 0)


def conclude(
    location: Location,
    rows: Sequence[Any],
    letters: Callable[[], Iterable[Any]],
    metadata: bool,
    whole: bool,
    counts: SessionCounts,
    ranges: Sequence[OffsetRange],
) -> list[Finding]:
    """Return the findings of the partitions' tasks, and those that follow from all of them together.

    `letters`: rows of LETTERS in the order SORTED_BY. `metadata`: the metadata log is sound, and has these `counts`.
    `whole`: the logs of all partitions are sound. `ranges`: those that were folded."""
    findings = [of_row(row) for row in rows if row.check not in FOR_DRIVER]
    for_driver = [row for row in rows if row.check in FOR_DRIVER]
    if metadata:
        book = PolicyBook(location)
        findings += book.findings([row for row in for_driver if row.check in (WAS_IN_FORCE, IS_IN_FORCE)])
        pieces = pieces_in(row for row in for_driver if row.check == PUBLISHED_BY)
        findings += publish_findings(counts, book.partition, pieces, ranges)
        for fork in book.topology.history.forks:
            findings.append(Finding(FORK, True, book.partition, fork.at, None, None, str(fork)))
        if whole:
            some = any(int(row.detail) for row in for_driver if row.check == NOTED)
            findings += arrivals(book, for_driver, letters() if some else ())
    return findings


def arrivals(book: PolicyBook, for_driver: Iterable[Any], letters: Iterable[Any]) -> list[Finding]:
    """Return the findings of the join of LETTERS rows of all partitions, which come in the order SORTED_BY."""
    queues = queues_since(for_driver, book.topology.placement)
    destinations = Destinations(book.location, book.topology, book.bound_ms, queues, book.late_ms)
    count = 0

    def counted() -> Iterator[Any]:
        nonlocal count
        for row in letters:
            count += row.kind in (SENT, ARRIVED)
            yield row

    found: list[Finding] = []
    starts = [partition.start_offset for partition in book.location.open().queues]

    placement = book.topology.placement

    def home_of(row: Any) -> int:
        if row.kind in (ARRIVED, ARRIVED_BEFORE):
            return int(row.source)
        return placement.as_origin(row.vhost, row.queue, number_of(row.partition))

    def gone(vhost: str, queue: str, queue_id: int, home: int) -> bool:
        number = home if home >= 0 else partition_of(vhost, queue, placement.made_with or len(starts))
        return queue_id < starts[number]

    for finding in check_arrivals(counted(), destinations.owed, gone, home_of):
        if len(found) < LISTED:
            found.append(finding)
    return found or [Finding(ARRIVALS, True, "all", None, None, None, f"{count} letters sent and arrived")]


def audit_frame(spark: "SparkSession", location: Location | str) -> "Any":
    """Return the findings as a DataFrame of the table FINDINGS."""
    rows = [(*finding.row(), finding.severity, finding.hint) for finding in audit(spark, location)]
    return spark.createDataFrame(rows, columns.spark_schema(columns.FINDINGS))


def fold_audit(
    fold_input: FoldInput,
    place: Location | None,
    reach: dict[str, int],
    marks: Mapping[str, Sequence[Mark]],
    meets_of: SnapshotSet | None = None,
    meets: Mapping[str, Sequence[int]] | None = None,
) -> "Iterator[pa.RecordBatch]":
    """The fold of one partition, with its snapshots and its RocksDB. In a Spark task.

    `place`: the location, where the task reads the log by itself; None: the records come from Spark."""
    partition, end = fold_input.offset_range.partition, fold_input.offset_range.end
    letter_rows = LetterRows(partition, reach[partition])
    product = AuditProduct(partition, letter_rows)
    product.publishes = tally = PublishTally(marks[partition], fold_input.offset_range.start)
    if place is None:
        yield from map(_audited, fold_range(product, fold_input))
        rows = rows_for_driver(product) + tally.rows(partition, end)
    else:
        beside = BesideFold(place, fold_input, product, meets_of, (meets or {}).get(partition, ()))
        yield from map(_audited, fold_range(product, replace(fold_input, groups=beside.groups())))
        rows = rows_for_driver(product) + tally.rows(partition, end)  # before the fold continues behind the range
        rows = beside.rows() + rows
    rows.append((NOTED, True, partition, None, None, None, str(letter_rows.count)))
    yield _audited(batch_of(rows, columns.AUDIT))


def chunk_rows(
    chunk: AuditChunk,
    location: Location,
    external: Snapshots,
    reach: dict[str, int],
    marks: Mapping[str, Sequence[Mark]],
) -> "Iterator[pa.RecordBatch]":
    """The audit of one chunk, in a Spark task."""
    yield from map(_audited, audit_chunk(chunk, location, external, reach, marks))


def store_rows(offset_range: OffsetRange, location: InDirectory, external: Snapshots) -> "Iterator[pa.RecordBatch]":
    """The RocksDB of a partition whose snapshots hold, in a Spark task."""
    yield batch_of(
        [finding.row() for finding in compare_with_snapshot(location, offset_range, external)], columns.AUDIT
    )


def _audited(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Rows of AUDIT or of LETTERS as rows of AUDITED."""
    import pyarrow as pa

    kind = "letter" if batch.schema.equals(columns.LETTERS) else "finding"
    arrays = [
        batch.to_struct_array() if field.name == kind else pa.nulls(batch.num_rows, field.type)
        for field in columns.AUDITED
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.AUDITED)
