"""Effects of the machine as rows of the table HISTORY (columns.py): what came of each event.

The machine derives outcomes and never logs them; here each becomes a row that names its cause. A message that is
published to a queue and stays there, or passes straight through it, has one row `published` for that queue, which comes
before everything else about it. One effect may concern millions of messages (a purge): every `BATCH_ROWS` rows are
packed, however large an effect is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from projections.machine.effects import (
    CancelConsumer,
    DeadLetter,
    Delay,
    Deliver,
    Duplicate,
    Effect,
    FetchReply,
    Forget,
    Keep,
    Quarantine,
    QueueGone,
    Refuse,
    Release,
    Requeue,
)  # fmt: skip
from projections.machine.machine import Machine
from projections.machine.queue import Queue
from projections.machine.ready import SIZE_MASK
from projections.machine.state import NODE_LOST
from schemas.events import Actor, Checkpointed, Event, Policy, Published
from schemas.properties import flaw
from spark_replay import columns

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISHED = "published"
REFUSED = "refused"  # by reject-publish: it never was in the queue
DUPLICATE = "duplicate"  # a dead letter that the target had seen
DELIVERED = "delivered"  # `final` when without acknowledgement
REQUEUED = "requeued"
POSTPONED = "postponed"  # as requeued, but ready only when its delay is over (delayed retry): then it is requeued
DEAD_LETTERED = "dead_lettered"
CONSUMER_CANCELLED = "consumer_cancelled"
QUEUE_GONE = "queue_gone"
QUARANTINED = "quarantined"  # the event made no sense; no queue or message is named
UNDECODABLE = "Undecodable"
# ... and the reasons of projections.machine.effects: acked, expired, rejected, maxlen, delivery_limit, purged, deleted,
# transient

BATCH_ROWS = 10_000

_Row = tuple[Any, ...]
# What the rows of one event share: offset, timestamp in microseconds, event, user, session
_Cause = tuple[int, int | None, str | None, str | None, int | None]


class HistoryProduct:
    """A `fold.Product`: the rows of a stretch of one partition; with `queue`, only those of that queue."""

    def __init__(self, partition: str, queue: str | None = None) -> None:
        self.partition = partition
        self.wanted = queue
        self.rows: list[_Row] = []
        self.batches: list[pa.RecordBatch] = []
        self.ordinal = 0
        self.cause: _Cause = (0, 0, "", "", 0)

    def begin(self, machine: Machine) -> None:
        self.machine = machine

    def before(self, offset: int, event: Checkpointed) -> None:
        pass  # a claim is no outcome

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        kind = type(event)
        if kind is not Published and not effects:
            return
        self.ordinal = 0
        self.cause = (offset, timestamp_ms * 1000, kind.__name__, actor.user, actor.session)
        if isinstance(event, Published):
            before = self.machine.time_passed_at(offset)
            for effect in effects[:before]:
                _ROWS[type(effect)](self, effect)
            self._published(offset, actor, event, effects)
            effects = effects[before:]
        for effect in effects:
            _ROWS[type(effect)](self, effect)

    def undecodable(self, offset: int, why: str) -> None:
        self.ordinal = 0
        self.cause = (offset, None, UNDECODABLE, None, None)
        self.row(None, QUARANTINED, None, reason=why)

    def time_passes(self, offset: int, until_ms: int) -> None:
        """With no event: what is due until then happens. `offset`: of the event that would come next."""
        effects: list[Effect] = []
        self.machine.advance(until_ms, effects)
        self.ordinal = 0
        self.cause = (offset, until_ms * 1000, None, None, None)
        for effect in effects:
            _ROWS[type(effect)](self, effect)

    def take(self, last: bool) -> "Iterator[pa.RecordBatch]":
        if self.rows and last:
            self._flush()
        batches, self.batches = self.batches, []
        yield from batches

    def _flush(self) -> None:
        self.batches.append(batch_of(self.rows, columns.HISTORY))
        self.rows = []

    def _published(self, offset: int, actor: Actor, event: Published, effects: list[Effect]) -> None:
        """The queues that took the message: those of its route that exist and neither refused nor had seen it. None did
        when it came from a node that was lost."""
        if effects and isinstance(effects[-1], Quarantine) and effects[-1].reason.startswith(NODE_LOST):
            return
        kept_out = [e.queue for e in effects if isinstance(e, Refuse | Duplicate) and e.message_id == offset]
        route, origin = event.route, event.origin
        came_from: _Row | None = None
        if origin is not None:
            came_from = (origin.vhost, origin.queue, origin.queue_id, origin.message_id, origin.reason)
        for vhost, name in targets(actor, event):
            queue = self.machine.queue(vhost, name)
            if queue is not None and queue not in kept_out:
                self.row(
                    queue, PUBLISHED, offset, size=event.body_size, exchange=route.exchange,
                    routing_key=route.routing_key, origin=came_from,
                )  # fmt: skip

    def row(
        self, queue: Queue | None, outcome: str, message_id: int | None, final: bool = False, size: int | None = None,
        consumer: int | None = None, delivery_count: int | None = None, redelivered: bool | None = None,
        reason: str | None = None, rule: str | None = None, policy: Policy | None = None, exchange: str | None = None,
        routing_key: str | None = None, origin: _Row | None = None,
    ) -> None:  # fmt: skip
        """Add a row of HISTORY about the event at hand."""
        ordinal = self.ordinal
        self.ordinal = ordinal + 1
        vhost = name = queue_id = policy_name = version = None
        if queue is not None:
            vhost, name, queue_id = queue.vhost, queue.name, queue.queue_id
        if self.wanted is not None and not is_queue(self.wanted, vhost, name):
            return
        if policy is not None:
            policy_name, version = policy.name, policy.version
        offset, timestamp, event, user, session = self.cause
        self.rows.append(
            (self.partition, offset, ordinal, timestamp, event, user, session, vhost, name, queue_id, outcome, final,
             message_id, size, consumer, delivery_count, redelivered, reason, rule, policy_name, version, exchange,
             routing_key, origin)
        )  # fmt: skip
        if len(self.rows) >= BATCH_ROWS:
            self._flush()


# -- one function an effect ----------------------------------------------------------------------------------------


def _delivered(product: HistoryProduct, effect: Deliver) -> None:
    product.row(
        effect.queue, DELIVERED, effect.message_id, effect.final, None, effect.consumer, effect.delivery_count,
        effect.redelivered,
    )  # fmt: skip


def _fetched(product: HistoryProduct, effect: FetchReply) -> None:
    if effect.message_id >= 0:
        product.row(
            effect.queue, DELIVERED, effect.message_id, effect.final, None, effect.consumer, effect.delivery_count,
            effect.redelivered, "get",
        )  # fmt: skip


def _left(product: HistoryProduct, effect: Forget) -> None:
    queue, reason, rule = effect.queue, effect.reason, effect.rule or None
    policy = deciding_policy(queue, rule) if rule else None
    consumer = effect.consumer or None
    for message_id in effect.message_ids:
        product.row(queue, reason, message_id, True, None, consumer, None, None, None, rule, policy)


def _requeued(product: HistoryProduct, effect: Requeue) -> None:
    for message_id in effect.message_ids:
        product.row(effect.queue, REQUEUED, message_id, consumer=effect.consumer, reason=effect.reason)


def _postponed(product: HistoryProduct, effect: Delay) -> None:
    product.row(effect.queue, POSTPONED, effect.message_id, consumer=effect.consumer, reason=effect.reason)


def _refused(product: HistoryProduct, effect: Refuse) -> None:
    policy = deciding_policy(effect.queue, effect.rule)
    product.row(effect.queue, REFUSED, effect.message_id, rule=effect.rule or None, policy=policy)


def _dead_lettered(product: HistoryProduct, effect: DeadLetter) -> None:
    product.row(
        effect.queue, DEAD_LETTERED, effect.message_id, reason=effect.reason, exchange=effect.exchange,
        routing_key=effect.routing_key,
    )  # fmt: skip


def _duplicate(product: HistoryProduct, effect: Duplicate) -> None:
    product.row(effect.queue, DUPLICATE, effect.message_id)


def _cancelled(product: HistoryProduct, effect: CancelConsumer) -> None:
    product.row(effect.queue, CONSUMER_CANCELLED, None, consumer=effect.consumer)


def _gone(product: HistoryProduct, effect: QueueGone) -> None:
    product.row(effect.queue, QUEUE_GONE, None, reason=effect.reason)


def _quarantined(product: HistoryProduct, effect: Quarantine) -> None:
    product.row(None, QUARANTINED, None, reason=effect.reason)


def _said_already(product: HistoryProduct, effect: Keep | Release) -> None:
    """What is kept was published, what is released was dead-lettered: those rows are there."""


_ROWS: dict[type, Callable[[HistoryProduct, Any], None]] = {
    Deliver: _delivered,
    FetchReply: _fetched,
    Forget: _left,
    Requeue: _requeued,
    Delay: _postponed,
    Refuse: _refused,
    DeadLetter: _dead_lettered,
    Duplicate: _duplicate,
    CancelConsumer: _cancelled,
    QueueGone: _gone,
    Quarantine: _quarantined,
    Keep: _said_already,
    Release: _said_already,
}

# -- what an event and its effects mean -----------------------------------------------------------------------------


def targets(actor: Actor, event: Published) -> list[tuple[str, str]]:
    """The queues that a publish names, each once; none when it cannot have happened. What a service appends by itself
    (no session, and no dead letter) comes through no door, and may have properties that are none."""
    if not 0 <= event.body_size <= SIZE_MASK or (event.expiration_ms is not None and event.expiration_ms < 0):
        return []
    if actor.session == 0 and event.origin is None and flaw(event.properties):
        return []
    vhost = event.route.vhost
    return [(vhost, name) for name in dict.fromkeys(event.route.queues)]


def deciding_policy(queue: Queue, rule: str) -> Policy | None:
    """The policy that a rule such as "policy lim.max-length" or "operator policy cap.max-length" names."""
    if rule.startswith("operator policy "):
        return queue.operator_policy
    return queue.policy if rule.startswith("policy ") else None


def is_queue(wanted: str, vhost: str | None, name: str | None) -> bool:
    """Whether vhost and name are the queue that a person calls `vhost/name`, or `name` alone in the vhost `/`."""
    return wanted == f"{vhost}/{name}" or (vhost == "/" and wanted == name)


def batch_of(rows: list[_Row], schema: "pa.Schema") -> "pa.RecordBatch":
    """Rows as an Arrow batch. A struct is given as a tuple in the order of its fields."""
    import pyarrow as pa

    arrays = []
    for field, values in zip(schema, zip(*rows, strict=True), strict=True):
        arrays.append(pa.array(_structs(values, field.type) if pa.types.is_struct(field.type) else values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _structs(values: Sequence[Any], struct: Any) -> list[dict[str, Any] | None]:
    names = [struct.field(i).name for i in range(struct.num_fields)]
    return [None if value is None else dict(zip(names, value, strict=True)) for value in values]
