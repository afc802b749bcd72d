"""Makes the machine's effects into rows of the table HISTORY (columns.py): the outcomes of each event.

The machine derives outcomes and never logs them; here each becomes a row that names its cause. A message that is
published to a queue and stays there, or passes straight through it, has one row `published` for that queue, which comes
before all other rows about it. One effect may concern millions of messages (a purge): every `BATCH_ROWS` rows are
packed, however large an effect is.

Nearly all rows repeat a few combinations of user, queue, outcome, rule and so on. Each such combination is kept once a
batch; a row has the combination's number and its own values. Arrow spreads the combination over the columns:

    said    0: Published service / hot published ...    1: Published service / hot delivered, consumer 1 ...
    rows    numbers 0 1 0 1 1 ...    and as long lists of offset, ordinal, timestamp, message_id, size
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rewindmq.projections.machine.data.effects import (
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
)
from rewindmq.projections.machine.data.message_word import SIZE_MASK
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.schemas.amqp.properties import problem
from rewindmq.schemas.events import Checkpointed, Event, Published
from rewindmq.schemas.values import Actor, Policy
from rewindmq.spark_replay import columns

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISHED = "published"
REFUSED = "refused"  # by reject-publish: the message never was in the queue
DUPLICATE = "duplicate"  # a dead letter that the target had seen
DELIVERED = "delivered"  # `final` when without acknowledgement
REQUEUED = "requeued"
POSTPONED = "postponed"  # as requeued, but ready only when its delay is over (delayed retry): then it is requeued
DEAD_LETTERED = "dead_lettered"
CONSUMER_CANCELLED = "consumer_cancelled"
QUEUE_GONE = "queue_gone"
QUARANTINED = "quarantined"  # the event was senseless; no queue or message is named
UNDECODABLE = "Undecodable"
# ... and the reasons of rewindmq.projections.machine.data.effects: acked, expired, rejected, maxlen, delivery_limit,
# purged, deleted, transient

BATCH_ROWS = 10_000

# The columns that rows share, and the columns that each row has for itself
_SAID = columns.some_of(
    columns.HISTORY,
    "event",
    "user",
    "session",
    "vhost",
    "queue",
    "queue_id",
    "outcome",
    "final",
    "consumer",
    "delivery_count",
    "redelivered",
    "reason",
    "rule",
    "policy",
    "policy_version",
    "exchange",
    "routing_key",
    "origin",
)
_OWN = columns.some_of(columns.HISTORY, "offset", "ordinal", "timestamp", "message_id", "size")

_Row = tuple[Any, ...]
# The gathered rows, column by column: the number of the shared values, then _OWN
_Rows = tuple[list[Any], ...]
_Said = tuple[Any, ...]  # the values of _SAID in their order, with the queue instead of its vhost, name and id
# What the rows of one event share: offset, timestamp in microseconds, event, user, session
_Cause = tuple[int, int | None, str | None, str | None, int | None]

_KEPT_OUT = (Refuse, Duplicate, Quarantine)


class HistoryProduct:
    """A `fold.Product`: the rows of a range of one partition; with `queue`, only those of that queue."""

    def __init__(self, partition: str, queue: str | None = None) -> None:
        self.partition = partition
        self.wanted = None if queue is None else called(queue)
        self.rows: _Rows = ([], [], [], [], [], [])
        self.said: dict[_Said, int] = {}
        self.batches: list[pa.RecordBatch] = []
        self.ordinal = 0
        self.cause: _Cause = (0, 0, "", "", 0)

    def begin(self, machine: Machine) -> None:
        """Remember the machine (`fold.Product`)."""
        self.machine = machine

    def before(self, offset: int, timestamp_ms: int, event: Checkpointed) -> None:
        """Do nothing: a claim is no outcome (`fold.Product`)."""

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """Add the rows of an event's outcomes (`fold.Product`)."""
        kind = type(event)
        if kind is not Published and not effects:
            return
        self.ordinal = 0
        self.cause = (offset, timestamp_ms * 1000, kind.__name__, actor.user, actor.session)
        if isinstance(event, Published):
            before = self.machine.time_passed_at(offset)
            if before:
                self._follows(effects[:before])
                effects = effects[before:]
            self._published(offset, actor, event, effects)
        self._follows(effects)

    def undecodable(self, offset: int, why: str) -> None:
        """Add the row of a quarantined record (`fold.Product`)."""
        self.ordinal = 0
        self.cause = (offset, None, UNDECODABLE, None, None)
        self.add(None, QUARANTINED, (None,), reason=why)

    def time_passes(self, offset: int, until_ms: int) -> None:
        """Let time pass without an event: everything due until then happens. `offset`: of the next event."""
        effects: list[Effect] = []
        self.machine.advance(until_ms, effects)
        self.ordinal = 0
        self.cause = (offset, until_ms * 1000, None, None, None)
        self._follows(effects)

    def take(self, last: bool) -> "Iterator[pa.RecordBatch]":
        """Yields rows of HISTORY (`fold.Product`)."""
        if last and self.rows[0]:
            self._flush()
        batches, self.batches = self.batches, []
        yield from batches

    def _flush(self) -> None:
        self.batches.append(_packed(self.partition, self.rows, self.said))
        self.rows = ([], [], [], [], [], [])
        self.said = {}

    def _follows(self, effects: list[Effect]) -> None:
        for effect in effects:
            add = _ROWS[type(effect)]
            if add is not None:
                add(self, effect)

    def _published(self, offset: int, actor: Actor, event: Published, effects: list[Effect]) -> None:
        route, origin = event.route, event.origin
        came_from: _Row | None = None
        if origin is not None:
            came_from = (origin.vhost, origin.queue, origin.queue_id, origin.message_id, origin.reason)
        for queue in self._takers(offset, actor, event, effects):
            self.add(
                queue,
                PUBLISHED,
                (offset,),
                False,
                event.body_size,
                None,
                None,
                None,
                None,
                None,
                None,
                route.exchange,
                route.routing_key,
                came_from,
            )

    def _takers(self, offset: int, actor: Actor, event: Published, effects: list[Effect]) -> list[Queue]:
        """The queues that took the message: queues of its route that exist and neither refused it nor had seen it.

        No queue took a message from a node that was lost."""
        for effect in effects:
            if type(effect) in _KEPT_OUT:
                break
        else:  # no queue objected: the machine has just resolved the route to these
            return self.machine.routes[event.route]
        if isinstance(effects[-1], Quarantine) and effects[-1].reason.startswith(NODE_LOST):
            return []
        kept_out = [e.queue for e in effects if isinstance(e, Refuse | Duplicate) and e.message_id == offset]
        queues = [self.machine.queue(vhost, name) for vhost, name in targets(actor, event)]
        return [queue for queue in queues if queue is not None and queue not in kept_out]

    def add(
        self,
        queue: Queue | None,
        outcome: str,
        message_ids: Sequence[int | None],
        final: bool = False,
        size: int | None = None,
        consumer: int | None = None,
        delivery_count: int | None = None,
        redelivered: bool | None = None,
        reason: str | None = None,
        rule: str | None = None,
        policy: Policy | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
        origin: _Row | None = None,
    ) -> None:
        """Add a row of HISTORY about the event at hand for each of these messages."""
        ordinal = self.ordinal
        self.ordinal = ordinal + len(message_ids)
        if self.wanted is not None and (queue is None or (queue.vhost, queue.name) not in self.wanted):
            return
        policy_name = version = None
        if policy is not None:
            policy_name, version = policy.name, policy.version
        offset, timestamp, event, user, session = self.cause
        said = (
            event,
            user,
            session,
            queue,
            outcome,
            final,
            consumer,
            delivery_count,
            redelivered,
            reason,
            rule,
            policy_name,
            version,
            exchange,
            routing_key,
            origin,
        )
        number = self.said.setdefault(said, len(self.said))
        numbers, offsets, ordinals, timestamps, ids, sizes = self.rows
        for message_id in message_ids:
            numbers.append(number)
            offsets.append(offset)
            ordinals.append(ordinal)
            timestamps.append(timestamp)
            ids.append(message_id)
            sizes.append(size)
            ordinal += 1
            if len(numbers) >= BATCH_ROWS:
                self._flush()
                numbers, offsets, ordinals, timestamps, ids, sizes = self.rows
                number = self.said.setdefault(said, 0)


# -- one function an effect ----------------------------------------------------------------------------------------


def _delivered(product: HistoryProduct, effect: Deliver) -> None:
    product.add(
        effect.queue,
        DELIVERED,
        (effect.message_id,),
        effect.final,
        None,
        effect.consumer,
        effect.delivery_count,
        effect.redelivered,
    )


def _fetched(product: HistoryProduct, effect: FetchReply) -> None:
    if effect.message_id >= 0:
        product.add(
            effect.queue,
            DELIVERED,
            (effect.message_id,),
            effect.final,
            None,
            effect.consumer,
            effect.delivery_count,
            effect.redelivered,
            "get",
        )


def _left(product: HistoryProduct, effect: Forget) -> None:
    queue, rule = effect.queue, effect.rule or None
    policy = deciding_policy(queue, rule) if rule else None
    product.add(
        queue, effect.reason, effect.message_ids, True, None, effect.consumer or None, None, None, None, rule, policy
    )


def _requeued(product: HistoryProduct, effect: Requeue) -> None:
    product.add(effect.queue, REQUEUED, effect.message_ids, consumer=effect.consumer, reason=effect.reason)


def _postponed(product: HistoryProduct, effect: Delay) -> None:
    product.add(effect.queue, POSTPONED, (effect.message_id,), consumer=effect.consumer, reason=effect.reason)


def _refused(product: HistoryProduct, effect: Refuse) -> None:
    policy = deciding_policy(effect.queue, effect.rule)
    product.add(effect.queue, REFUSED, (effect.message_id,), rule=effect.rule or None, policy=policy)


def _dead_lettered(product: HistoryProduct, effect: DeadLetter) -> None:
    product.add(
        effect.queue,
        DEAD_LETTERED,
        (effect.message_id,),
        reason=effect.reason,
        exchange=effect.exchange,
        routing_key=effect.routing_key,
    )


def _duplicate(product: HistoryProduct, effect: Duplicate) -> None:
    product.add(effect.queue, DUPLICATE, (effect.message_id,))


def _cancelled(product: HistoryProduct, effect: CancelConsumer) -> None:
    product.add(effect.queue, CONSUMER_CANCELLED, (None,), consumer=effect.consumer)


def _gone(product: HistoryProduct, effect: QueueGone) -> None:
    product.add(effect.queue, QUEUE_GONE, (None,), reason=effect.reason)


def _quarantined(product: HistoryProduct, effect: Quarantine) -> None:
    product.add(None, QUARANTINED, (None,), reason=effect.reason)


# None: another row says it already. A kept message was published, a released one was dead-lettered.
_ROWS: dict[type, Callable[[HistoryProduct, Any], None] | None] = {
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
    Keep: None,
    Release: None,
}

# -- meaning of an event and its effects ----------------------------------------------------------------------------


def targets(actor: Actor, event: Published) -> list[tuple[str, str]]:
    """The queues that a publish names, each once; none when it cannot have happened.

    A publish that a service appended by itself (no session, and no dead letter) was checked by no broker, and may have
    invalid properties."""
    if not 0 <= event.body_size <= SIZE_MASK or (event.expiration_ms is not None and event.expiration_ms < 0):
        return []
    if actor.session == 0 and event.origin is None and problem(event.properties):
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
    return (vhost, name) in called(wanted)


def called(wanted: str) -> set[tuple[str | None, str | None]]:
    """Every vhost and name for which `is_queue` is true. Both may contain slashes, so each slash may separate them."""
    cuts = [at for at, letter in enumerate(wanted) if letter == "/"]
    return {("/", wanted), *((wanted[:at], wanted[at + 1 :]) for at in cuts)}


def batch_of(rows: Sequence[_Row], schema: "pa.Schema") -> "pa.RecordBatch":
    """Rows as an Arrow batch. A struct is given as a tuple in the order of its fields."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(_arrays(zip(*rows, strict=True), schema), schema=schema)


def _packed(partition: str, rows: _Rows, said: Iterable[_Said]) -> "pa.RecordBatch":
    """The gathered rows as a batch of HISTORY."""
    import pyarrow as pa

    things = []
    for event, user, session, queue, *more in said:
        of_queue = (None, None, None) if queue is None else (queue.vhost, queue.name, queue.queue_id)
        things.append((event, user, session, *of_queue, *more))
    numbers, *values = rows
    repeated = batch_of(things, _SAID).take(pa.array(numbers, pa.int32()))
    found = {
        "partition": pa.repeat(partition, len(numbers)),
        **dict(zip(_SAID.names, repeated.columns, strict=True)),
        **dict(zip(_OWN.names, _arrays(values, _OWN), strict=True)),
    }
    return pa.RecordBatch.from_arrays([found[name] for name in columns.HISTORY.names], schema=columns.HISTORY)


def _arrays(values: "Iterable[Sequence[Any]]", schema: "pa.Schema") -> list[Any]:
    """Columns as Arrow arrays."""
    import pyarrow as pa

    arrays = []
    for field, column in zip(schema, values, strict=True):
        if pa.types.is_struct(field.type):
            arrays.append(pa.array(_structs(column, field.type), field.type))
        elif pa.types.is_timestamp(field.type):  # as numbers first, which takes half as long
            arrays.append(pa.array(column, pa.int64()).cast(field.type))
        else:
            arrays.append(pa.array(column, field.type))
    return arrays


def _structs(values: Sequence[Any], struct: Any) -> list[dict[str, Any] | None]:
    names = [struct.field(i).name for i in range(struct.num_fields)]
    return [None if value is None else dict(zip(names, value, strict=True)) for value in values]
