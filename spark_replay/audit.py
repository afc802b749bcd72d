"""`audit`: does the history hold together, and is the live state what it says?

    findings = audit(spark, "DATA");  all(finding.ok for finding in findings)

    chain     every block's bytes against the hash chain, also of the metadata log           engine.log
    ...       the checks of audit_fold.py, at every offset                                    a Spark task a partition
    policies  every policy that decided was set in the metadata log, and those set are applied
    store     the RocksDB of the broker against a fresh fold, queue by queue and body by body  projections.verify

A partition whose chain is broken is not folded: what comes behind is not history. An audit works beside a running
broker; it looks at what was durable when it began, and at the state that RocksDB had persisted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.log.base import CorruptLog
from engine.log.verify import verify_chain
from projections.machine.machine import Machine
from projections.store import StateStore, StoreError
from projections.verify import verify_partition
from spark_replay import columns
from spark_replay.audit_fold import AuditProduct
from spark_replay.audit_policies import IS_IN_FORCE, WAS_IN_FORCE, check_policies, rows_for_driver
from spark_replay.findings import Finding, of_row
from spark_replay.fold import fold_events, fold_log, log_groups
from spark_replay.history_log import open_log, partition_of
from spark_replay.outcomes import batch_of
from spark_replay.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CHAIN, STORE = "chain", "store"


def audit(spark: "SparkSession", data: str) -> list[Finding]:
    """Everything that was checked, in the order of checks and partitions. LogError when there is no log."""
    log = open_log(data)
    names = [partition.name for partition in log.partitions]
    metadata = Range(log.metadata.name, 0, log.metadata.next_offset)
    ends = [Range(p.name, 0, p.next_offset) for p in log.queues]
    chains = [of_row(row, corrupt=not row.ok) for row in _chains(spark, data, names)]
    sound = {finding.partition for finding in chains if finding.ok}
    stretches = [end for end in ends if end.partition in sound]
    findings = list(chains)
    if stretches:
        rows = fold_log(spark, stretches, fold_audit, columns.AUDIT, data=data).collect()
        findings += [of_row(row) for row in rows if row.check not in (WAS_IN_FORCE, IS_IN_FORCE)]
        if metadata.partition in sound:
            told = [row for row in rows if row.check in (WAS_IN_FORCE, IS_IN_FORCE)]
            findings += check_policies(data, metadata, told)
    return findings


def audit_frame(spark: "SparkSession", data: str) -> "Any":
    """The findings as a DataFrame of the table AUDIT."""
    rows = [finding.row() for finding in audit(spark, data)]
    return spark.createDataFrame(rows, columns.spark_schema(columns.AUDIT))


def fold_audit(stretch: Range, data: str) -> "Iterator[pa.RecordBatch]":
    """In a Spark task: the fold, then the same partition's RocksDB."""
    product = AuditProduct(stretch.partition)
    yield from fold_events(product, Machine(stretch.partition), log_groups(data, stretch.partition, 0, stretch.end))
    rows = [finding.row() for finding in _store(data, stretch)] + rows_for_driver(product)
    yield batch_of(rows, columns.AUDIT)


def _chains(spark: "SparkSession", data: str, names: list[str]) -> list[Any]:
    stretches = [Range(name, 0, 0) for name in names]
    return fold_log(spark, stretches, chain_rows, columns.AUDIT, data=data).collect()


def chain_rows(stretch: Range, data: str) -> "Iterator[pa.RecordBatch]":
    """In a Spark task: the bytes of one partition, as they are now."""
    blocks = records = unproven = torn = 0
    chain = b""
    ok, offset = True, None
    try:
        for segment in verify_chain(partition_of(data, stretch.partition).directory):
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

    def finding(ok: bool, detail: str, offset: int | None = None, queue: str | None = None) -> Finding:
        return Finding(STORE, ok, stretch.partition, offset, queue, None, detail)

    if not path.is_dir():
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
        return [finding(True, f"{report.queues} queues, {report.messages} bodies, equal at offset {report.offset}")]
    found = [finding(False, f"{d.key} {d.what}", report.offset, d.queue or None) for d in report.differences]
    if report.difference_count > len(found):
        found.append(finding(False, f"and {report.difference_count - len(found)} more differences", report.offset))
    return found
