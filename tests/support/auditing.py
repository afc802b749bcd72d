"""The audit of a data directory without Spark: the tasks' own code, a partition after the other, in this process."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.history.product import fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import beginning, decoder_for
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.audit import conclude, ends_of
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.dead_letter_join import NOTED, SORTED_BY, LetterRows
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.policies import rows_for_driver
from rewindmq.spark_replay.audit.publishes import PublishTally, counts_in
from rewindmq.spark_replay.fold import FoldInput, fold_range, groups_up_to, log_groups
from rewindmq.spark_replay.location.ranges import OffsetRange


def findings_of(data: Path) -> list[Finding]:
    """All that the fold, the join of dead letters and the join of policies find. CorruptLog."""
    log = InDirectory(data).open()
    reach = ends_of(log)
    rows: list[dict[str, Any]] = []
    letters: list[dict[str, Any]] = []
    counts, ranges = counts_in(log.metadata), []
    for partition in log.queues:
        letter_rows = LetterRows(partition.name, reach[partition.name])
        product = AuditProduct(partition.name, letter_rows)
        offset_range = OffsetRange(partition.name, partition.start_offset, reach[partition.name])
        ranges.append(offset_range)
        product.publishes = tally = PublishTally(counts.marks(number_of(partition.name)), offset_range.start)
        groups = groups_up_to(partition, offset_range.start, offset_range.end)
        fold_input = FoldInput(offset_range, beginning(partition), groups, decoder_for(partition))
        for batch in fold_range(product, fold_input):
            kept = letters if batch.schema.equals(columns.LETTERS) else rows
            kept += batch.to_pylist()
        told = rows_for_driver(product) + tally.rows(partition.name, offset_range.end)
        rows += [dict(zip(columns.AUDIT.names, row, strict=True)) for row in told]
        rows.append(dict.fromkeys(columns.AUDIT.names) | {"check": NOTED, "ok": True, "detail": str(letter_rows.count)})
    letters.sort(key=lambda row: [row[name] for name in SORTED_BY])
    return conclude(
        InDirectory(data),
        [SimpleNamespace(**row) for row in rows],
        lambda: [SimpleNamespace(**row) for row in letters],
        metadata=True,
        whole=True,
        counts=counts,
        ranges=ranges,
    )


def fold_audit(data: Path, number: int, machine: Machine) -> list[dict[str, Any]]:
    partition = EmbeddedLogReader(data).queues[number]
    groups = log_groups(data, partition.name, 0, partition.next_offset)
    batches = fold_events(AuditProduct(partition.name), machine, groups)
    return [row for batch in batches for row in batch.to_pylist()]
