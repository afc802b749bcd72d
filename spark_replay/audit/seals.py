"""Checks the seals of a history in Spark: each range of the log against its signed statement.

    findings = check_seals(spark, location, keys, copies)

Every seal states the hash chain at the end of its range, so ranges are examined at the same time, each by itself.
The driver checks the seals among themselves. `engine/keeping/seals/sealer.py` does all of it; no broker is needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.location import InArchive, Location
from rewindmq.engine.keeping.seals.partitions import sealable_partitions
from rewindmq.engine.keeping.seals.seal import Keys, StoredSeal
from rewindmq.engine.keeping.seals.sealer import Harm, Sealable, Step, astray, examine, plan
from rewindmq.projections.verify import NOT_CHECKED
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.checks import Finding, not_all_ok, of_row
from rewindmq.spark_replay.fold import for_each
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import located
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange
from rewindmq.spark_replay.location.trims import beside_trims

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SEALS = "seals"
_TASKS_A_CORE = 4


def check_seals(
    spark: "SparkSession", location: Location | str, keys: Keys | None = None, copies: Sequence[StoredSeal] = ()
) -> list[Finding]:
    """Return the findings about seals that do not hold, with their places, and one for each partition whose seals hold.

    Without `keys` signatures are not checked, and a history without seals gives no finding. Raises LogError."""
    location = located(location)
    if isinstance(location, InArchive) and (keys is not None or copies):
        raise BadRequest("--public-key and --copies: an archive holds no seals; audit the data directory")
    findings = beside_trims(location, lambda: _checked(spark, location, keys, copies), not_all_ok)
    lineage.found(findings)
    return findings


def _checked(
    spark: "SparkSession", location: Location, keys: Keys | None, copies: Sequence[StoredSeal]
) -> list[Finding]:
    partitions = sealable_partitions(location)
    bad = [_finding(harm) for harm in astray(partitions, copies)]
    steps: list[tuple[Sealable, list[Step]]] = []
    for partition in partitions:
        if keys is None and not copies and not any(partition.seals()):
            continue
        planned, harms = plan(partition, keys, copies)
        bad += map(_finding, harms)
        steps.append((partition, planned))
    work = _shared_out(steps, spark.sparkContext.defaultParallelism * _TASKS_A_CORE)
    lineage.read(work)
    rows = for_each(spark, list(work), examine_rows, columns.AUDIT, location=location, work=work).collect()
    bad += map(of_row, rows)
    bad.sort(key=lambda finding: (finding.partition, finding.offset or 0))
    harmed = {finding.partition for finding in bad}
    return bad + [_sound(each, planned, keys) for each, planned in steps if each.name not in harmed]


def examine_rows(
    offset_range: OffsetRange, location: Location, work: Mapping[OffsetRange, Sequence[Step]]
) -> "Iterator[pa.RecordBatch]":
    """Yield rows of AUDIT about harms in some successive ranges, in a Spark task."""
    [partition] = [each for each in sealable_partitions(location) if each.name == offset_range.partition]
    harms = (examine(partition, step) for step in work[offset_range])
    rows = [_finding(harm).row() for harm in harms if harm is not None]
    if rows:
        yield batch_of(rows, columns.AUDIT)


def _shared_out(steps: Sequence[tuple[Sealable, list[Step]]], tasks: int) -> dict[OffsetRange, list[Step]]:
    """Successive ranges for each task, with about equal numbers of records."""
    records = sum(_records(step) for _, planned in steps for step in planned)
    work: dict[OffsetRange, list[Step]] = {}
    for partition, planned in steps:
        some: list[Step] = []
        for number, step in enumerate(planned, 1):
            some.append(step)
            if number == len(planned) or sum(map(_records, some)) * tasks >= records:
                seals = some[0].stored.seal, some[-1].stored.seal
                offset_range = OffsetRange(partition.name, seals[0].base_offset, seals[1].next_offset)
                work.setdefault(offset_range, []).extend(some)  # there may be two seals of one range
                some = []
    return work


def _records(step: Step) -> int:
    return step.stored.seal.next_offset - step.stored.seal.base_offset


def _finding(harm: Harm) -> Finding:
    return Finding(SEALS, False, harm.partition, harm.offset, None, None, harm.what)


def _sound(partition: Sealable, steps: Sequence[Step], keys: Keys | None) -> Finding:
    reached = max((step.stored.seal.next_offset for step in steps), default=0)
    signed = ", ".join(sorted({step.stored.key[:16] for step in steps})) or "nobody"
    unsealed = partition.next_offset - reached
    detail = "" if steps else f"{NOT_CHECKED}there are no seals; "
    detail += f"{len(steps)} seals up to offset {reached}, {unsealed} offsets behind it not sealed"
    start = partition.beginning[0]
    if trimmed := sum(step.stored.seal.base_offset < start for step in steps):
        detail += f"; of {trimmed} seals what is below offset {start} is not checked: it was trimmed"
    detail += f", signed by {signed}" if keys is not None else ", signatures not checked (--public-key)"
    return Finding(SEALS, True, partition.name, None, None, None, detail)
