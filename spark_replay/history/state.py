"""`state_at`: every queue, and every message in it, at a moment of the history.

    state = state_at(spark, "DATA", time="2026-11-21T03:04:05.678+00:00")
    state.queues.show();  state.messages.where("queue = 'orders'").show()

State at T means: everything logged up to and including T has happened, and the clock stands at T: everything due by
then has expired, also if no event followed. State at offsets means: the events below them have happened (exclusive, as
Kafka's ending offsets), and the clock stands where the last of them left it; partitions that are not named are left
out. With neither: the whole log now.

One fold makes both tables: a queue's row, then its messages, come out of the same pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import Location
from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.history.outcomes import is_queue
from rewindmq.projections.machine.data.queue import MessageView, Queue
from rewindmq.projections.machine.serialization.digest import queue_digest
from rewindmq.projections.replay import drive
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.store.snapshots import SnapshotSet
from rewindmq.schemas.amqp.json_arguments import table_of
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import FoldInput, broker_snapshots, fold_log
from rewindmq.spark_replay.location.log import first_event_ms, located, read_messages, require_kept, selected
from rewindmq.spark_replay.location.marks import offsets_of
from rewindmq.spark_replay.location.ranges import (
    BadRequest,
    CheckpointRange,
    OffsetRange,
    ending_time_ms,
    parse_offsets,
    resolve,
)
from rewindmq.spark_replay.snapshots.checkpoints import parse_checkpoints
from rewindmq.spark_replay.snapshots.external import external_snapshots

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_PAGE = 1_000  # messages read and passed on at a time
_PAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StateTables:
    """The tables QUEUES and MESSAGES (columns.py).

    `rows` holds both, ordered within a partition; cache it to use both."""

    rows: "DataFrame"

    @property
    def queues(self) -> "DataFrame":
        """The table QUEUES."""
        return self.rows.where("queue is not null").select("queue.*")

    @property
    def messages(self) -> "DataFrame":
        """The table MESSAGES."""
        return self.rows.where("message is not null").select("message.*")


def state_at(
    spark: "SparkSession",
    location: Location | str,
    time: str | None = None,
    offsets: str | None = None,
    queue: str | None = None,
    messages: bool = True,
    snapshots: Path | None = None,
) -> StateTables:
    """Return the state at `time` (ISO 8601, or epoch milliseconds) or at `offsets` (JSON as endingOffsets).

    `queue`: only that queue ("vhost/name", or a name in "/"). `snapshots`: an auditor's own directory of snapshots
    (snapshots/build.py). Raises BadRequest, CorruptLog."""
    location = located(location)
    return state_frame(spark, plan_state(location, time, offsets, snapshots), queue, messages)


@dataclass(frozen=True, slots=True)
class StatePlan:
    """A plan for the fold of a state: partitions with the offsets (exclusive) up to which to fold.

    `clock_ms`: the time up to which the clock then advances, or None. `snapshots`: other snapshots than those beside
    the log. `checkpoints`: the offsets at which the folds of some partitions have to begin."""

    location: Location
    ends: tuple[OffsetRange, ...]
    clock_ms: int | None
    snapshots: SnapshotSet | None = None
    checkpoints: tuple[tuple[str, int], ...] = ()

    def ranges(self) -> list[OffsetRange]:
        """Ranges of no events: all events before are folded, none is shown."""
        forced = dict(self.checkpoints)
        return [
            CheckpointRange(name, end, end, forced[name]) if name in forced else OffsetRange(name, end, end)
            for name, end in ((each.partition, each.end) for each in self.ends)
        ]


def plan_state(
    location: Location,
    time: str | None = None,
    offsets: str | None = None,
    snapshots: Path | None = None,
    checkpoint: str | None = None,
) -> StatePlan:
    """Plan how far to fold each partition, and from where (`checkpoint`: snapshots/checkpoints.py). Needs no Spark.

    Raises BadRequest."""
    external = external_snapshots(location, snapshots)
    if time is not None and offsets is not None:
        raise BadRequest("state at a time or at offsets, not both")
    log = location.open()
    marked = offsets_of(log, time)
    if marked is not None:
        time, offsets = None, marked
    partitions = selected(log, "queues", None)
    first_ms = first_event_ms(log)
    clock_ms = None if time is None else ending_time_ms(time, first_ms, future=True)
    if clock_ms is not None:
        require_kept(log, partitions, clock_ms)
        ends = [OffsetRange(p.name, p.start_offset, p.offset_at(clock_ms)) for p in partitions]
    elif offsets is not None:
        named = parse_offsets(offsets, [p.name for p in partitions], "--offsets")
        ends = resolve([p for p in partitions if p.name in named], {"endingOffsets": canonical_json(named)}, first_ms)
    else:
        ends = resolve(partitions, {}, first_ms)
    forced = parse_checkpoints(checkpoint, ends, external or broker_snapshots(location))
    return StatePlan(location, tuple(ends), clock_ms, external, tuple(forced.items()))


def state_frame(spark: "SparkSession", plan: StatePlan, queue: str | None = None, messages: bool = True) -> StateTables:
    """Return the state of a plan, of all queues or of one."""
    return StateTables(
        fold_log(
            spark,
            plan.location,
            plan.ranges(),
            fold_state,
            columns.STATE,
            snapshots=plan.snapshots,
            plan=plan,
            queue=queue,
            messages=messages,
        )
    )


def fold_state(fold_input: FoldInput, plan: StatePlan, queue: str | None, messages: bool) -> "Iterator[pa.RecordBatch]":
    """The rows of one partition, in a Spark task."""
    machine, end = fold_input.machine, fold_input.offset_range
    drive(machine, fold_input.groups, fold_input.decoder)
    if plan.clock_ms is not None:
        machine.advance(plan.clock_ms, [])
    for found in list(machine.queues()):
        if queue is None or is_queue(queue, found.vhost, found.name):
            row = queue_row(found, end, machine.log_ms)
            yield _batch([{"queue": row, "message": None}])
            if messages:
                yield from _message_batches(plan.location, end.partition, found, machine.ahead_ms)


def queue_row(queue: Queue, end: OffsetRange, clock_ms: int) -> dict[str, Any]:
    """Return the row of QUEUES for a queue."""
    policy, operator_policy = queue.policy, queue.operator_policy
    return {
        "partition": end.partition,
        "offset": end.end,
        "clock": clock_ms * 1000,
        "vhost": queue.vhost,
        "queue": queue.name,
        "queue_id": queue.queue_id,
        "type": queue.type,
        "durable": queue.durable,
        "exclusive": queue.exclusive,
        "auto_delete": queue.auto_delete,
        "hidden": is_hidden(queue.name),
        "arguments": canonical_json(table_of(queue.arguments)),
        "policy": policy.name if policy else None,
        "policy_version": policy.version if policy else None,
        "operator_policy": operator_policy.name if operator_policy else None,
        "operator_policy_version": operator_policy.version if operator_policy else None,
        "effective_policy_definition": canonical_json(queue.shown_definition()),
        "messages": queue.messages_ready + queue.messages_unacked,
        "messages_ready": queue.messages_ready,
        "messages_unacknowledged": queue.messages_unacked,
        "message_bytes": queue.message_bytes_ready + queue.message_bytes_unacked,
        "message_bytes_ready": queue.message_bytes_ready,
        "message_bytes_unacknowledged": queue.message_bytes_unacked,
        "messages_dlx": queue.messages_dlx,
        "message_bytes_dlx": queue.message_bytes_dlx,
        "consumers": queue.consumer_count(),
        "counters": list(queue.counters.items()),
        "digest": queue_digest(queue),
    }


def _message_batches(location: Location, partition: str, queue: Queue, ahead_ms: int) -> "Iterator[pa.RecordBatch]":
    """Yield the messages of a queue in order, with properties and bodies read back from the log, a page at a time.

    `ahead_ms`: how far the clock of expiries is ahead of the timestamps."""
    page: list[MessageView] = []
    weight = 0
    for view in queue.messages():
        page.append(view)
        weight += view.size
        if len(page) >= _PAGE or weight >= _PAGE_BYTES:
            yield _batch(_message_rows(location, partition, queue, page, ahead_ms))
            page, weight = [], 0
    if page:
        yield _batch(_message_rows(location, partition, queue, page, ahead_ms))


def _message_rows(
    location: Location, partition: str, queue: Queue, page: list[MessageView], ahead_ms: int
) -> list[dict[str, Any]]:
    published = read_messages(location, partition, [view.message_id for view in page])
    rows = []
    for view in page:
        timestamp_ms, actor, event = published[view.message_id]
        row = {
            "partition": partition,
            "vhost": queue.vhost,
            "queue": queue.name,
            "queue_id": queue.queue_id,
            "message_id": view.message_id,
            "position": view.position,
            "state": view.state,
            "size": view.size,
            "redelivered": view.redelivered,
            "delivery_count": view.delivery_count,
            "expires": None if view.expires_ms is None else (view.expires_ms - ahead_ms) * 1000,
            "consumer": view.consumer or None,
            "published": timestamp_ms * 1000,
            "user": actor.user,
            "exchange": event.route.exchange,
            "routing_key": event.route.routing_key,
            "properties": event.properties,
            "body": event.body,
        }
        rows.append({"queue": None, "message": row})
    return rows


def _batch(rows: list[dict[str, Any]]) -> "pa.RecordBatch":
    import pyarrow as pa

    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in columns.STATE]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.STATE)
