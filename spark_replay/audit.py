"""`audit`: does the history hold together, and is the live state what it says?

    findings = audit(spark, "DATA");  all(finding.ok for finding in findings)

    chain     every block's bytes against the hash chain, also of the metadata log           engine.log
    kept      (Kafka, which has no chain) the topics have everything from offset 0, and are set to keep it
    snapshots (where there are some) each is what the events lead to from the one before      chunks.py, a task each
    ...       the checks of audit_fold.py, at every offset                                    a Spark task a partition
    arrivals  dead letters, joined across partitions: none that was not sent, none that was forwarded and is not there
    policies  every policy that decided was set in the metadata log, and those set are applied
    store     the RocksDB of the broker against a fresh fold, queue by queue and body by body  projections.verify

A partition whose chain is broken, or whose beginning is gone, is not folded: what comes behind is not history. An audit
works beside running brokers; it looks at what was durable when it began, and at the state that RocksDB had persisted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.log.base import CorruptLog
from engine.log.directory import partition_directory
from engine.log.verify import verify_chain
from projections.store import StateStore, StoreError
from projections.verify import verify_partition
from spark_replay import columns, lineage
from spark_replay.audit_fold import LISTED, AuditProduct
from spark_replay.audit_policies import IS_IN_FORCE, WAS_IN_FORCE, PolicyBook, queues_since, rows_for_driver
from spark_replay.chunks import verify_snapshots
from spark_replay.findings import Finding, of_row
from spark_replay.fold import Feed, fold_feed, fold_log, for_each
from spark_replay.history_log import HistoryLog, InKafka, Place, open_log, partition_of
from spark_replay.kept import what_is_kept
from spark_replay.letters import ARRIVALS, ARRIVED, SENT, SORTED_BY, Destinations, Post, check_arrivals
from spark_replay.outcomes import batch_of
from spark_replay.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CHAIN, STORE = "chain", "store"
# Rows that a partition's task leaves for the driver; they are no findings
LETTERS = "letters"
FOR_DRIVER = (WAS_IN_FORCE, IS_IN_FORCE, LETTERS)


def audit(spark: "SparkSession", place: Place, snapshots: Path | None = None) -> list[Finding]:
    """Everything that was checked, in the order of checks and partitions. `snapshots`: a directory of an auditor's own
    (cutting.py), in place of those beside the log. LogError when there is no log."""
    log = open_log(place)
    reach = ends_of(log)
    ends = [Range(name, 0, end) for name, end in ends_of(open_log(place)).items()]  # later than `reach` (letters.py)
    findings = _bytes(spark, place, log)
    sound = {finding.partition for finding in findings if finding.ok}
    stretches = [end for end in ends if end.partition in sound]
    if stretches:
        findings += verify_snapshots(spark, place, {end.partition for end in ends} - sound, snapshots)
        store = None if isinstance(place, InKafka) else place
        frame = fold_log(
            spark, place, stretches, fold_audit, columns.AUDITED, fresh=True, store=store, reach=reach
        ).persist()  # fmt: skip
        rows = frame.where("finding is not null").select("finding.*").collect()
        letters = frame.where("letter is not null").select("letter.*").orderBy(*SORTED_BY)
        whole = len(stretches) == len(ends)
        findings += concluded(place, rows, letters.toLocalIterator, log.metadata.name in sound, whole)
        frame.unpersist()
    lineage.found(findings)
    return findings


def ends_of(log: HistoryLog) -> dict[str, int]:
    """0 where damage keeps the end from being found: the chain check says where."""
    found = {}
    for partition in log.queues:
        try:
            found[partition.name] = partition.next_offset
        except CorruptLog:
            found[partition.name] = 0
    return found


def concluded(
    place: Place, rows: Sequence[Any], letters: Callable[[], Iterable[Any]], metadata: bool, whole: bool
) -> list[Finding]:
    """What partitions' tasks found, and what follows from all of them together. `letters`: rows of LETTERS in the order
    SORTED_BY; `metadata`: its log is sound; `whole`: so are those of all partitions."""
    findings = [of_row(row) for row in rows if row.check not in FOR_DRIVER]
    for_driver = [row for row in rows if row.check in FOR_DRIVER]
    if metadata:
        book = PolicyBook(place)
        findings += book.findings([row for row in for_driver if row.check != LETTERS])
        if whole:
            some = any(int(row.detail) for row in for_driver if row.check == LETTERS)
            findings += arrivals(book, for_driver, letters() if some else ())
    return findings


def arrivals(book: PolicyBook, for_driver: Iterable[Any], letters: Iterable[Any]) -> list[Finding]:
    """Rows of LETTERS of all partitions, in the order SORTED_BY, joined."""
    queues = queues_since(for_driver)
    destinations = Destinations(book.place, book.topology, book.bound_ms, queues, book.late_ms)
    count = 0

    def counted() -> Iterator[Any]:
        nonlocal count
        for row in letters:
            count += row.kind in (SENT, ARRIVED)
            yield row

    found: list[Finding] = []
    for finding in check_arrivals(counted(), destinations.owed):
        if len(found) < LISTED:
            found.append(finding)
    return found or [Finding(ARRIVALS, True, "all", None, None, None, f"{count} letters sent and arrived")]


def audit_frame(spark: "SparkSession", place: Place) -> "Any":
    """The findings as a DataFrame of the table AUDIT."""
    rows = [finding.row() for finding in audit(spark, place)]
    return spark.createDataFrame(rows, columns.spark_schema(columns.AUDIT))


def fold_audit(feed: Feed, store: str | None, reach: dict[str, int]) -> "Iterator[pa.RecordBatch]":
    """In a Spark task: the fold, then the same partition's RocksDB, in the data directory `store`."""
    partition = feed.stretch.partition
    post = Post(partition, reach[partition])
    product = AuditProduct(partition, post)
    yield from map(_audited, fold_feed(product, feed))
    rows = rows_for_driver(product)
    rows.append((LETTERS, True, partition, None, None, None, str(post.count)))
    if store is not None:
        rows = [finding.row() for finding in _store(store, feed.stretch)] + rows
    yield _audited(batch_of(rows, columns.AUDIT))


def _audited(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Rows of AUDIT or of LETTERS as rows of AUDITED."""
    import pyarrow as pa

    kind = "letter" if batch.schema.equals(columns.LETTERS) else "finding"
    arrays = [
        batch.to_struct_array() if field.name == kind else pa.nulls(batch.num_rows, field.type)
        for field in columns.AUDITED
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.AUDITED)


# -- is it all there, as it was written ---------------------------------------------------------------------------


def _bytes(spark: "SparkSession", place: Place, log: HistoryLog) -> list[Finding]:
    """A finding for each partition."""
    partitions = [log.metadata, *log.queues]
    if isinstance(place, InKafka):
        return what_is_kept(place, partitions)
    stretches = [Range(partition.name, 0, 0) for partition in partitions]
    rows = for_each(spark, stretches, chain_rows, columns.AUDIT, data=place).collect()
    return [of_row(row, corrupt=not row.ok) for row in rows]


def chain_rows(stretch: Range, data: str) -> "Iterator[pa.RecordBatch]":
    """In a Spark task: the bytes of one partition, as they are now."""
    blocks = records = unproven = torn = 0
    chain = b""
    ok, offset = True, None
    try:
        for segment in verify_chain(partition_directory(Path(data), stretch.partition)):
            blocks += segment.blocks
            records += segment.records
            unproven += segment.unproven_blocks
            torn += segment.torn_bytes
            chain = segment.chain
        detail = f"{records} records in {blocks} blocks, chain {chain.hex()[:16]}"
        if unproven:
            detail += f", {unproven} blocks whole but unproven (their index was lost)"
        if torn:
            detail += f", {torn} bytes behind the last whole block"
    except CorruptLog as broken:
        ok, offset, detail = False, broken.offset, str(broken)
    yield batch_of([(CHAIN, ok, stretch.partition, offset, None, None, detail)], columns.AUDIT)


def _store(data: str, stretch: Range) -> list[Finding]:
    """RocksDB against a fresh fold of its own, read-only."""
    path = Path(data) / "state"

    def finding(
        ok: bool, detail: str, offset: int | None = None, queue: str | None = None, message_id: int | None = None
    ) -> Finding:
        return Finding(STORE, ok, stretch.partition, offset, queue, message_id, detail)

    if not path.exists():
        return [finding(True, "no state directory: a broker that starts rebuilds it")]
    try:
        store = StateStore.open(path, read_only=True)
    except StoreError as error:
        return [finding(False, str(error))]
    try:
        report = verify_partition(partition_of(data, stretch.partition), store)
    except StoreError as error:
        return [finding(False, str(error))]
    finally:
        store.close()
    if report.equal:
        detail = f"{report.queues} queues, {report.messages} bodies, {report.result} at offset {report.offset}"
        return [finding(True, detail)]
    found = [
        finding(False, f"{each.key} {each.what}", report.offset, each.queue or None, each.message_id)
        for each in report.differences
    ]
    if report.difference_count > len(found):
        found.append(finding(False, f"and {report.difference_count - len(found)} more differences", report.offset))
    return found
