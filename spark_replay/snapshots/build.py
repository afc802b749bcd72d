"""`cut`: makes snapshots at regular offsets of a history that has few or none, in an auditor's own directory.

    cut(spark, "DATA", every=1_000_000, out=Path("OWN"))          # or InKafka("localhost:9092")

It makes one pass over each partition, in a task each. The pass trusts nothing but the log and the snapshots that were
cut into the directory before: a second run goes on there. Afterwards `verify`, `state_at` and `history` start and work
in parallel from these snapshots (`--snapshots OWN`). external.py describes the directory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.log.contract import LogError
from rewindmq.projections.replay import decoder_for, drive
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import begun_at, for_each, from_snapshot, groups_up_to
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import Place, open_log, partition_of
from rewindmq.spark_replay.location.ranges import BadRequest, Range
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
class Cut:
    """The result of a run.

    `snapshots`: how many it made. `in_all`: how many exist now. `up_to`: the end of the log, by partition. `sha256`:
    the SHA-256 of SHA256SUMS."""

    snapshots: int
    in_all: int
    up_to: dict[str, int]
    sha256: str


def prepare(place: Place, every: int, out: Path) -> list[Range]:
    """The stretches to fold: each partition as it is now. Needs no Spark.

    Raises BadRequest when `out` is no such directory, or of another log; LogError when the log lost events that were
    cut before."""
    about = read_about(out)
    if about is None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadRequest(f"{out} is there already, and no directory of cuts")
        about = {"every": every, "begins": {}}
    if about["every"] != every:
        raise BadRequest(f"{out} was cut every {about['every']} events")
    require_same_log(place, out, about)
    taken = offsets_of(Snapshots(out))
    stretches = [Range(partition.name, 0, partition.next_offset) for partition in open_log(place).queues]
    for name, _, why in beyond_the_end(taken, {stretch.partition: stretch.end for stretch in stretches}):
        raise LogError(f"{out}: {name}: {why}")
    out.mkdir(parents=True, exist_ok=True)
    write_about(out, {"every": every, "begins": begins_of(place)})
    return stretches


def cut(spark: "SparkSession", place: Place, every: int, out: Path) -> Cut:
    """Make a snapshot at every `every`-th offset of each partition, or at the record before a gap there.

    Raises BadRequest, CorruptLog, LogError, OSError."""
    stretches = prepare(place, every, out)
    own = Snapshots(out.resolve())
    lineage.read(begun_at(own, (Range(each.partition, each.end, each.end) for each in stretches)))
    frame = for_each(spark, stretches, cut_partition, columns.RECORDS, place=place, own=own, every=every)
    made = {own.path(row.partition, row.offset) for row in frame.collect()}
    digest = write_sums(own.directory, made)
    in_all = sum(len(own.offsets(stretch.partition)) for stretch in stretches)
    return Cut(len(made), in_all, {stretch.partition: stretch.end for stretch in stretches}, digest)


def cut_partition(stretch: Range, place: Place, own: Snapshots, every: int) -> "Iterator[pa.RecordBatch]":
    """Cut one partition, in a Spark task. Yields a row of RECORDS (without a record) for each snapshot."""
    log = partition_of(place, stretch.partition)
    machine = from_snapshot(own, log, stretch.end)
    decoder = decoder_for(log)
    for due in range((machine.next_offset // every + 1) * every, stretch.end + 1, every):
        before = machine.next_offset
        drive(machine, groups_up_to(log, before, due), decoder)
        if machine.next_offset > before:
            own.take(machine)
            yield batch_of([(stretch.partition, machine.next_offset, None)], columns.RECORDS)
