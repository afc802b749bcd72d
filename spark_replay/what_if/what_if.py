"""`what_if`: folds the recorded history under other policies, arguments or rules, and shows changed fates (B-04).

    tried = what_if(spark, "DATA", [Candidate("longer", "^orders$", {"max-length": 10000})])
    tried.fates.groupBy("candidate", "queue", "before", "after").count().show();  tried.depth.show()

Each partition is read once. Each candidate has its own copy of the machine, which folds the same events with the
candidate in place of the queues' settings (projections/what_if/alternative.py). A row of `fates` is a message
that ended differently there. The actions of consumers stay as recorded, and `assumptions` counts where that was not
possible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import Location
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.replay import drive
from rewindmq.projections.what_if.alternative import Alternative, Candidate
from rewindmq.projections.what_if.later_outcomes import FateDifference, LaterOutcomes
from rewindmq.schemas.events import EVENT_TYPES, Event
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import FoldInput, fold_log
from rewindmq.spark_replay.location.log import located
from rewindmq.spark_replay.location.marks import plan_ranges
from rewindmq.spark_replay.what_if.candidates import check
from rewindmq.spark_replay.what_if.depths import Depths, standing
from rewindmq.spark_replay.what_if.exclusion import with_descendants

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The tables FATES, DEPTHS and ASSUMPTIONS (columns.py). `rows` holds all three; cache it to use several."""

    rows: "DataFrame"

    @property
    def fates(self) -> "DataFrame":
        """The table FATES: messages that would have ended differently."""
        return self.rows.where("fate is not null").select("fate.*")

    @property
    def summary(self) -> "DataFrame":
        """The number of messages of each queue that would have ended differently, by their ends before and after."""
        keys = ("candidate", "vhost", "queue", "before", "after")
        return self.fates.groupBy(*keys).count().withColumnRenamed("count", "messages").orderBy(*keys)

    @property
    def depth(self) -> "DataFrame":
        """The table DEPTHS: lengths of queues over time, as recorded and under each candidate."""
        return self.rows.where("depth is not null").select("depth.*")

    @property
    def standing(self) -> "DataFrame":
        """The messages at the end in the queue that was asked for."""
        return self.rows.where("standing is not null").select("standing.*").orderBy("candidate", "position")

    @property
    def assumptions(self) -> "DataFrame":
        """The assumptions, summed over partitions."""
        from pyspark.sql import functions as f

        assumed = self.rows.where("assumed is not null").select("assumed.*")
        counts = [f.sum(name).alias(name) for name in columns.ASSUMPTIONS.names if name != "candidate"]
        return assumed.groupBy("candidate").agg(*counts).orderBy("candidate")


def what_if(
    spark: "SparkSession",
    location: Location | str,
    candidates: Sequence[Candidate],
    start: str | None = None,
    end: str | None = None,
    every_ms: int = 60_000,
    queue: str | None = None,
) -> WhatIf:
    """Return the history up to `end` (None: all of it) under each candidate.

    A candidate is in force from `start` on (None: from the beginning; arguments and semantics always are). Depths are
    taken every `every_ms` of the log's time in which an event happened. `queue`: the queue whose messages at the end
    are `standing`. Raises BadRequest, OutsideHistory, CorruptLog."""
    location = located(location)
    check(candidates, start, every_ms)
    ranges = plan_ranges(location, start, end)
    tried = [
        each if each.without is None else replace(each, without=with_descendants(spark, location, each.without, ranges))
        for each in candidates
    ]
    return WhatIf(
        fold_log(
            spark,
            location,
            ranges,
            fold_alternatives,
            columns.WHAT_IF,
            candidates=tried,
            every_ms=every_ms,
            queue=queue,
        )
    )


def fold_alternatives(
    fold_input: FoldInput, candidates: list[Candidate], every_ms: int, queue: str | None = None
) -> "Iterator[pa.RecordBatch]":
    """The rows of one range, in a Spark task."""
    machine = fold_input.machine
    start = fold_input.offset_range.start
    groups = drive(machine, fold_input.groups, fold_input.decoder, start)
    alternatives = [Alternative(candidate, machine) for candidate in candidates]
    fates = [LaterOutcomes(alternative, machine) for alternative in alternatives]
    depths = Depths(alternatives, machine, every_ms)
    rows: list[dict[str, Any]] = []

    def before(_offset: int, timestamp_ms: int, _event: Event) -> None:
        rows.extend(depths.before(timestamp_ms))

    def after(offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        for fate in fates:
            found = fate.event(offset, timestamp_ms, actor, event, effects)
            rows.extend(_fate(fate, each) for each in found)

    def undecodable(offset: int, _reason: str) -> None:
        for fate in fates:
            fate.undecodable(offset)

    of_all = dict.fromkeys(EVENT_TYPES, before)
    for group in groups:
        drive(machine, (group,), fold_input.decoder, before=of_all, after=after, undecodable=undecodable)
        if len(rows) >= _BATCH_ROWS:
            yield _batch(fold_input.offset_range.partition, rows)
            rows.clear()
    rows += depths.at_end()
    for alternative, fate in zip(alternatives, fates, strict=True):
        rows += [_fate(fate, each) for each in fate.at_end()]
        rows.append({"assumed": {"candidate": alternative.candidate.name, **alternative.assumed}})
        rows += [] if queue is None else standing(alternative, queue)
    yield _batch(fold_input.offset_range.partition, rows)


def _fate(fates: LaterOutcomes, found: FateDifference) -> dict[str, Any]:
    return {
        "fate": {
            "candidate": fates.alternative.candidate.name,
            "vhost": found.vhost,
            "queue": found.queue,
            "message_id": found.message_id,
            "before": found.before[0],
            "before_at": found.before[1] * 1000,
            "before_rule": found.before[2] or None,
            "after": found.after[0],
            "after_at": found.after[1] * 1000,
            "after_rule": found.after[2] or None,
        }
    }


def _batch(partition: str, rows: list[dict[str, Any]]) -> "pa.RecordBatch":
    import pyarrow as pa

    for row in rows:
        for kind in ("fate", "depth", "standing"):
            if kind in row:
                row[kind]["partition"] = partition
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in columns.WHAT_IF]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.WHAT_IF)
