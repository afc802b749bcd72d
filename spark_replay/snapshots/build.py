"""`cut`: makes snapshots at regular offsets of a history that has few or none, in an auditor's own directory.

    cut(spark, "DATA", every=1_000_000, out=Path("OWN"))          # or InKafka("localhost:9092")

It makes one pass over each partition, in a task each. The pass trusts nothing but the log and the snapshots that were
cut into the directory before: a second run continues there. Afterwards `verify`, `state_at` and `history` start and
work in parallel from these snapshots (`--snapshots OWN`). external.py describes the directory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.location import Location
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.replay import decoder_for, drive
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import for_each, from_snapshot, groups_up_to, ranges_read
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import located, partition_of
from rewindmq.spark_replay.location.ranges import BadRequest, OffsetRange
from rewindmq.spark_replay.snapshots.external import (
    begins_of,
    beyond_the_end,
    offsets_of,
    read_about,
    require_same_log,
    write_about,
    write_sums,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CutResult:
    """The result of a run.

    `snapshots`: how many it made. `in_all`: how many exist now. `up_to`: the end of the log, by partition. `sha256`:
    the SHA-256 of SHA256SUMS."""

    snapshots: int
    in_all: int
    up_to: dict[str, int]
    sha256: str


def prepare(location: Location, every: int, out: Path) -> list[OffsetRange]:
    """Return the ranges to fold: each partition as it is now. Needs no Spark.

    Raises BadRequest when `out` is not such a directory, or belongs to another log; LogError when the log lost events
    that were cut before."""
    about = read_about(out)
    if about is None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadRequest(f"{out} exists already, and is not a directory of `cut`")
        about = {"every": every, "begins": {}}
    if about["every"] != every:
        raise BadRequest(f"{out} was cut every {about['every']} events")
    require_same_log(location, out, about)
    taken = offsets_of(Snapshots(out))
    ranges = [OffsetRange(partition.name, 0, partition.next_offset) for partition in location.open().queues]
    for name, _, why in beyond_the_end(taken, {offset_range.partition: offset_range.end for offset_range in ranges}):
        raise LogError(f"{out}: {name}: {why}")
    out.mkdir(parents=True, exist_ok=True)
    write_about(out, {"every": every, "begins": begins_of(location)})
    return ranges


def cut(spark: "SparkSession", location: Location | str, every: int, out: Path) -> CutResult:
    """Make a snapshot at every `every`-th offset of each partition, or at the record before a gap there.

    Raises BadRequest, CorruptLog, LogError, OSError."""
    location = located(location)
    ranges = prepare(location, every, out)
    external = Snapshots(out.resolve())
    lineage.read(ranges_read(external, (OffsetRange(each.partition, each.end, each.end) for each in ranges)))
    frame = for_each(spark, ranges, cut_partition, columns.RECORDS, location=location, external=external, every=every)
    made = {external.path(row.partition, row.offset) for row in frame.collect()}
    digest = write_sums(external.directory, made)
    in_all = sum(len(external.offsets(offset_range.partition)) for offset_range in ranges)
    return CutResult(len(made), in_all, {offset_range.partition: offset_range.end for offset_range in ranges}, digest)


def cut_partition(
    offset_range: OffsetRange, location: Location, external: Snapshots, every: int
) -> "Iterator[pa.RecordBatch]":
    """Cut one partition, in a Spark task. Yields a row of RECORDS (without a record) for each snapshot."""
    log = partition_of(location, offset_range.partition)
    machine = from_snapshot(external, log, offset_range.end)
    decoder = decoder_for(log)
    for due in range((machine.next_offset // every + 1) * every, offset_range.end + 1, every):
        before = machine.next_offset
        drive(machine, groups_up_to(log, before, due), decoder)
        if machine.next_offset > before:
            external.take(machine)
            yield batch_of([(offset_range.partition, machine.next_offset, None)], columns.RECORDS)
