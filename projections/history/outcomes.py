"""Makes the machine's effects into rows of the table HISTORY (spark_replay/columns.py): the outcomes of each event.

The machine derives outcomes and never logs them; here each becomes a row that names its cause. A message that enters a
queue, or passes straight through it, has one row `published` for that queue, before all other rows about it. A
publish that no queue took has one row `unrouted`, which names a vhost and no queue; a dead letter that no queue took
has one that names the queue in which it died. One effect
(a purge) may concern millions of messages, so every `BATCH_ROWS` rows are packed, however large the effect is
(projections/history/outcome_rows.py).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from rewindmq.projections.history.outcome_rows import (
    BATCH_ROWS,
    DUPLICATE,
    PUBLISHED,
    SHARED,
    UNROUTED,
    OutcomeRows,
    Shared,
)
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
from rewindmq.projections.machine.data.reasons import MOVED, RELOCATED, REMOVED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.projections.replay import Run
from rewindmq.schemas.amqp.properties import problem
from rewindmq.schemas.events import Checkpointed, DeadLettersForwarded, Event, Published
from rewindmq.schemas.operator_events import MessageRemoved
from rewindmq.schemas.reasons import why
from rewindmq.schemas.values import Actor, Origin, Policy, Route, Unrouted

T = TypeVar("T")

REFUSED = "refused"  # by reject-publish: the message was never in the queue
DELIVERED = "delivered"  # `final` if without acknowledgement
REQUEUED = "requeued"
POSTPONED = "postponed"  # returned, but requeued only when its delay is over (delayed retry)
DEAD_LETTERED = "dead_lettered"
CONSUMER_CANCELLED = "consumer_cancelled"
QUEUE_GONE = "queue_gone"
QUARANTINED = "quarantined"  # the event was senseless; no queue or message is named
UNDECODABLE = "Undecodable"
# ... and the reasons of rewindmq.projections.machine.data.effects: acked, expired, rejected, maxlen, delivery_limit,
# purged, deleted, transient, removed, moved, relocated

_KEPT_OUT = (Refuse, Duplicate, Quarantine)


class Outcomes(Generic[T]):
    """A `Product` (product.py): the outcomes of a range of one partition, as rows of a kind."""

    def __init__(self, rows: OutcomeRows[T]) -> None:
        self.rows = rows
        self.offset = 0  # of the event at hand
        self.removal: Event | None = None  # the last one
        self.publish: Published | None = None  # the last one

    def begin(self, machine: Machine) -> None:
        """Remember the machine (`Product`)."""
        self.machine = machine

    def before(self, offset: int, timestamp_ms: int, event: Checkpointed) -> None:
        """Do nothing: a claim is no outcome (`Product`)."""

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """Add the rows of an event's outcomes (`Product`)."""
        kind = type(event)
        unrouted = event.unrouted if isinstance(event, DeadLettersForwarded) else ()
        if kind is not Published and not (effects or unrouted):
            return
        rows = self.rows
        met = rows.by_type.get(kind)
        if met is not None and met[0] is actor:
            _, rows.cause, rows.of_cause = met
        else:
            rows.about_event(kind, actor, why(actor, event))
        if timestamp_ms != rows.time_ms:
            rows.at(timestamp_ms)
        self.offset = offset
        if kind is MessageRemoved:
            self.removal = event
        if isinstance(event, Published):
            self.publish = event
            before = self.machine.time_passed_at(offset)
            if before:
                self._follows(effects[:before])
                effects = effects[before:]
            self._published(actor, event, effects)
        if effects:
            self._follows(effects)
        if unrouted and isinstance(event, DeadLettersForwarded):
            self._unrouted_letters(event)

    def _unrouted_letters(self, event: DeadLettersForwarded) -> None:
        """Add the rows of dead letters that no queue took."""
        queue, rows = self.machine.by_id.get(event.queue_id), self.rows
        if queue is None:
            return
        for letter in event.unrouted:
            number = self._number(queue, UNROUTED, reason="dropped")
            if number >= 0:
                rows.sizes.append(letter.size)
            rows.add(number, self.offset, (letter.message_id,))

    @property
    def run(self) -> Run | None:
        """This product takes publishes that were applied together (`Product`)."""
        return self._run

    def _run(
        self,
        offset: int,
        timestamp_ms: int,
        actor: Actor,
        event: Published,
        sizes: Sequence[int],
        records: Sequence[bytes],
        effects: list[Effect],
    ) -> None:
        """Add the rows of publishes that were applied together."""
        if len(sizes) == 1:
            self.event(offset, timestamp_ms, actor, replace(event, body_size=sizes[0]), effects)
            return
        rows = self.rows
        rows.about_event(Published, actor, actor.reason)
        if timestamp_ms != rows.time_ms:
            rows.at(timestamp_ms)
        queues = self.machine.routes[event.route]
        deliveries = [effect for effect in effects if isinstance(effect, Deliver)]
        width = (
            len(queues)
            + (event.route.unrouted is not None)
            + sum(len(effect.message_ids) for effect in deliveries) // len(sizes)
        )
        begun = 0
        while begun < len(sizes) and width > 0:
            if rows.numbers and len(rows.numbers) + width > BATCH_ROWS:
                rows.flush()
            part = sizes[begun : begun + max(1, (BATCH_ROWS - len(rows.numbers)) // width)]
            self._part_of_run(event.route, queues, deliveries, offset + begun, part)
            begun += len(part)

    def _part_of_run(
        self, route: Route, queues: Sequence[Queue], deliveries: Sequence[Deliver], first: int, sizes: Sequence[int]
    ) -> None:
        """Add the rows of successive messages of a run, from the one with the id `first` on."""
        rows = self.rows
        numbers: list[int] = []  # of the rows of each message, in their order
        for queue in queues:
            number = rows.of_cause.get((queue, route))
            numbers.append(_publish(rows, queue, route, None) if number is None else number)
        if route.unrouted is not None:
            numbers.append(_lost(rows, route, route.unrouted))
        published = len(numbers)
        shares: list[tuple[int, Sequence[int]]] = []  # the number of the rows of deliveries, and the messages
        for effect in deliveries:
            key = (effect.queue, effect.consumer, effect.delivery_count, effect.redelivered, effect.final)
            number = rows.of_cause.get(key)
            ids = effect.message_ids
            share = ids[bisect_left(ids, first) : bisect_left(ids, first + len(sizes))]
            shares.append((_delivery(rows, key) if number is None else number, share))
        if all(len(share) == len(sizes) for _, share in shares):
            numbers += [number for number, _ in shares]
            rows.add_run(numbers, published, first, sizes)
            return
        of_each = [[*numbers] for _ in sizes]  # consumers took turns
        for number, share in shares:
            for message_id in share:
                of_each[message_id - first].append(number)
        rows.add_each(of_each, published, first, sizes)

    def undecodable(self, offset: int, problem: str) -> None:
        """Add the row of a quarantined record (`Product`)."""
        self.offset = offset
        self.rows.about((UNDECODABLE, None, None, None))
        self.rows.at(None)
        self.add(None, QUARANTINED, (None,), reason=problem)

    def time_passes(self, offset: int, until_ms: int) -> None:
        """Let time pass without an event: everything due by then happens. `offset`: of the next event."""
        effects: list[Effect] = []
        self.machine.advance(until_ms, effects)
        self.offset = offset
        self.rows.about((None, None, None, None))
        self.rows.at(until_ms)
        self._follows(effects)

    def take(self, last: bool) -> Iterator[T]:
        """Yield rows of HISTORY (`Product`)."""
        return self.rows.take(last)

    def _follows(self, effects: list[Effect]) -> None:
        rows, offset = self.rows, self.offset
        for effect in effects:
            if type(effect) is not Deliver:
                add = _ROWS[type(effect)]
                if add is not None:
                    add(self, effect)
                continue
            # Most rows are deliveries: one whose combination is known makes no call
            key = (effect.queue, effect.consumer, effect.delivery_count, effect.redelivered, effect.final)
            number = rows.of_cause.get(key)
            if number is None:
                number = _delivery(rows, key)
            if number < 0:
                rows.leave_out(offset, len(effect.message_ids))
                continue
            numbers = rows.numbers
            if len(effect.message_ids) > 1:
                rows.add(number, offset, effect.message_ids)
                continue
            numbers.append(number)
            rows.offsets.append(offset)
            rows.message_ids.append(effect.message_ids[0])
            if len(numbers) >= BATCH_ROWS:
                rows.flush()

    def _published(self, actor: Actor, event: Published, effects: list[Effect]) -> None:
        rows, offset, route, origin = self.rows, self.offset, event.route, event.origin
        if route.unrouted is not None and not effects:
            rows.add_run([_lost(rows, route, route.unrouted)], 1, offset, [event.body_size])
            return
        for queue in takers(self.machine, offset, actor, event, effects):
            number = rows.of_cause.get((queue, route)) if origin is None else None
            if number is None:
                number = _publish(rows, queue, route, origin)
            if number < 0:
                rows.leave_out(offset, 1)
                continue
            numbers = rows.numbers
            numbers.append(number)
            rows.offsets.append(offset)
            rows.message_ids.append(offset)
            rows.sizes.append(event.body_size)
            if len(numbers) >= BATCH_ROWS:
                rows.flush()

    def add(
        self,
        queue: Queue | None,
        outcome: str,
        message_ids: Sequence[int | None],
        final: bool = False,
        consumer: int | None = None,
        reason: str | None = None,
        rule: str | None = None,
        policy: Policy | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
    ) -> None:
        """Add a row of HISTORY about the event at hand for each of these messages."""
        number = self._number(queue, outcome, final, consumer, reason, rule, policy, exchange, routing_key)
        self.rows.add(number, self.offset, message_ids)

    def _number(
        self,
        queue: Queue | None,
        outcome: str,
        final: bool = False,
        consumer: int | None = None,
        reason: str | None = None,
        rule: str | None = None,
        policy: Policy | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
    ) -> int:
        """Return the number of a combination about the event at hand."""
        key = (queue, outcome, final, consumer, reason, rule, policy, exchange, routing_key)
        number = self.rows.of_cause.get(key)
        if number is None:
            said = (outcome, final, consumer, None, None, reason, rule)
            of_policy = (None, None) if policy is None else (policy.name, policy.version)
            number = self.rows.number(key, (*_named(queue), *said, *of_policy, exchange, routing_key, None))
        return number


def wanted_rows(queue: str | None, moves: bool) -> Callable[[Shared], bool] | None:
    """Return a filter for rows; None: all are wanted.

    `queue`: only rows of that queue. `moves`: only rows that add a message to a queue or remove it."""
    return None if queue is None and not moves else _Wanted(queue, moves)


class _Wanted:
    """A filter by the rows' shared values: rows of one queue, or rows that move a message."""

    def __init__(self, queue: str | None, moves: bool) -> None:
        self.queues = None if queue is None else called(queue)
        self.moves = moves

    def __call__(self, shared: Shared) -> bool:
        said = dict(zip(SHARED, shared, strict=True))
        if self.moves and not (said["final"] or said["outcome"] == PUBLISHED):
            return False
        return self.queues is None or (said["vhost"], said["queue"]) in self.queues


def _named(queue: Queue | None) -> tuple[str | None, str | None, int | None]:
    return (None, None, None) if queue is None else (queue.vhost, queue.name, queue.queue_id)


def _publish(
    rows: OutcomeRows[Any],
    queue: Queue,
    route: Route,
    origin: Origin | None,
    outcome: str = PUBLISHED,
    reason: str | None = None,
    rule: str | None = None,
) -> int:
    """Number the combination of a publish, or of a dropped duplicate."""
    came_from = None
    if origin is not None:
        came_from = {
            "vhost": origin.vhost,
            "queue": origin.queue,
            "queue_id": origin.queue_id,
            "message_id": origin.message_id,
            "reason": origin.reason,
        }
    way = (route.exchange, route.routing_key, came_from)
    said = (outcome, False, None, None, None, reason, rule, None, None, *way)
    key = (queue, route) if origin is None and outcome == PUBLISHED else (queue, None)
    return rows.number(key, (*_named(queue), *said))


def _lost(rows: OutcomeRows[Any], route: Route, how: Unrouted) -> int:
    """Number the combination of a publish that no queue took."""
    number = rows.of_cause.get((None, route))
    if number is not None:
        return number
    reason = "returned to its publisher" if how.returned else "dropped"
    rule = "alternate-exchange" if how.alternate else None
    said = (UNROUTED, True, None, None, None, reason, rule, None, None, route.exchange, route.routing_key, None)
    return rows.number((None, route), (route.vhost, None, None, *said))


def _delivery(rows: OutcomeRows[Any], key: tuple[Queue, int, int, bool, bool], reason: str | None = None) -> int:
    """Number the combination of a delivery."""
    queue, consumer, delivery_count, redelivered, final = key
    said = (DELIVERED, final, consumer, delivery_count, redelivered, reason, None, None, None, None, None, None)
    return rows.number(key if reason is None else (*key, reason), (*_named(queue), *said))


# -- one function an effect ----------------------------------------------------------------------------------------


def _fetched(product: Outcomes[Any], effect: FetchReply) -> None:
    if effect.message_id < 0:
        return
    key = (effect.queue, effect.consumer, effect.delivery_count, effect.redelivered, effect.final)
    number = product.rows.of_cause.get((*key, "get"))
    if number is None:
        number = _delivery(product.rows, key, "get")
    product.rows.add(number, product.offset, (effect.message_id,))


def _left(product: Outcomes[Any], effect: Forget) -> None:
    queue, rule = effect.queue, effect.rule or None
    if effect.reason in (REMOVED, MOVED):
        _taken_out(product, effect)
        return
    policy = deciding_policy(queue, rule) if rule else None
    product.add(queue, effect.reason, effect.message_ids, True, effect.consumer or None, None, rule, policy)


def _taken_out(product: Outcomes[Any], effect: Forget) -> None:
    """Add the rows of messages that an operator removed, with the reason and the target of a move."""
    event = product.removal
    assert isinstance(event, MessageRemoved)
    way = (event.exchange, event.routing_key) if event.moved else (None, None)
    reason = event.reason or None
    product.add(
        effect.queue, effect.reason, effect.message_ids, True, reason=reason, exchange=way[0], routing_key=way[1]
    )


def _requeued(product: Outcomes[Any], effect: Requeue) -> None:
    product.add(effect.queue, REQUEUED, effect.message_ids, consumer=effect.consumer, reason=effect.reason)


def _postponed(product: Outcomes[Any], effect: Delay) -> None:
    product.add(effect.queue, POSTPONED, (effect.message_id,), consumer=effect.consumer, reason=effect.reason)


def _refused(product: Outcomes[Any], effect: Refuse) -> None:
    policy = deciding_policy(effect.queue, effect.rule)
    product.add(effect.queue, REFUSED, (effect.message_id,), rule=effect.rule or None, policy=policy)


def _dead_lettered(product: Outcomes[Any], effect: DeadLetter) -> None:
    if effect.reason in (MOVED, RELOCATED):  # the row of its leaving says it
        return
    product.add(
        effect.queue,
        DEAD_LETTERED,
        effect.message_ids,
        reason=effect.reason,
        exchange=effect.exchange,
        routing_key=effect.routing_key,
    )


def _duplicate(product: Outcomes[Any], effect: Duplicate) -> None:
    event, rows = product.publish, product.rows
    assert event is not None, "a publish alone can be a duplicate"
    rule, reason, origin = effect.rule, f"duplicate of message {effect.original}", event.origin
    if effect.original < 0:
        assert origin is not None, "a message without an origin is known by its id"
        rule = f"restoration {origin.restore}" if origin.restore else "a dead letter comes once"
        reason = f"{origin.reason} before" if origin.restore else f"{origin.reason}, and seen before"
    number = _publish(rows, effect.queue, event.route, origin, DUPLICATE, reason, rule)
    if number >= 0:
        rows.sizes.append(event.body_size)
    rows.add(number, product.offset, (effect.message_id,))


def _cancelled(product: Outcomes[Any], effect: CancelConsumer) -> None:
    product.add(effect.queue, CONSUMER_CANCELLED, (None,), consumer=effect.consumer)


def _gone(product: Outcomes[Any], effect: QueueGone) -> None:
    product.add(effect.queue, QUEUE_GONE, (None,), reason=effect.reason)


def _quarantined(product: Outcomes[Any], effect: Quarantine) -> None:
    product.add(None, QUARANTINED, (None,), reason=effect.reason)


# Besides Deliver. None: another row covers it. A kept message was published, a released one was dead-lettered.
_ROWS: dict[type, Callable[[Outcomes[Any], Any], None] | None] = {
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


def takers(machine: Machine, offset: int, actor: Actor, event: Published, effects: list[Effect]) -> list[Queue]:
    """Return the queues that accepted the message: queues of its route that exist and neither refused it nor had it.

    `machine` has just applied the event, and `effects` are those of the event itself. No queue accepts a message from
    a lost node."""
    for effect in effects:
        if type(effect) in _KEPT_OUT:
            break
    else:  # no queue objected: the machine has just resolved the route to these
        return machine.routes[event.route]
    if isinstance(effects[-1], Quarantine) and effects[-1].reason.startswith(NODE_LOST):
        return []
    kept_out = [e.queue for e in effects if isinstance(e, Refuse | Duplicate) and e.message_id == offset]
    queues = [machine.queue(vhost, name) for vhost, name in targets(actor, event)]
    return [queue for queue in queues if queue is not None and queue not in kept_out]


def targets(actor: Actor, event: Published) -> list[tuple[str, str]]:
    """Return the queues that a publish names, each once; none if it cannot have happened.

    No broker checked a publish that a service itself appended (no session, and no dead letter), so it may have invalid
    properties."""
    if not 0 <= event.body_size <= SIZE_MASK or (event.expiration_ms is not None and event.expiration_ms < 0):
        return []
    if actor.session == 0 and event.origin is None and problem(event.properties):
        return []
    vhost = event.route.vhost
    return [(vhost, name) for name in dict.fromkeys(event.route.queues)]


def deciding_policy(queue: Queue, rule: str) -> Policy | None:
    """Return the policy that a rule such as "policy lim.max-length" or "operator policy cap.max-length" names."""
    if rule.startswith("operator policy "):
        return queue.operator_policy
    return queue.policy if rule.startswith("policy ") else None


def is_queue(wanted: str, vhost: str | None, name: str | None) -> bool:
    """Return True if vhost and name are those of the queue written as `vhost/name`, or as `name` in vhost `/`."""
    return (vhost, name) in called(wanted)


def called(wanted: str) -> set[tuple[str | None, str | None]]:
    """Return each vhost and name for which `is_queue` is true; any slash may separate them, as both may have some."""
    cuts = [at for at, letter in enumerate(wanted) if letter == "/"]
    return {("/", wanted), *((wanted[:at], wanted[at + 1 :]) for at in cuts)}
