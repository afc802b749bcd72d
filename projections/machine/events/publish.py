"""Publishes: the way of a message to the queues of its route.

written to the log by another service, and not a valid AMQP message     -> quarantined
seen?     (a dead letter forwarded, or a message restored, once more;   -> Duplicate
          with the id of an earlier message: rules/deduplication.py)
refused?  (classic: would go over a reject limit; quorum: blocked;      -> Refuse (with reject-publish-dlx also a
          rules/limits.py `refuses`)                                       dead letter, S-012)
nothing ready and a consumer with room                                  -> straight to it, past the ready order
otherwise                                                               -> to the tail; limits; expiry of the head

A message from its queue's old partition (relocation.py) was already in the queue, so it is not refused, and its id is
not checked. It keeps its state and its expiry.
"""

from array import array
from collections.abc import Sequence

from rewindmq.projections.machine.data.effects import Duplicate, Effect, Keep, Refuse
from rewindmq.projections.machine.data.message_order import NONE, Order, Stretch
from rewindmq.projections.machine.data.message_word import BY_PROPERTY, LEVEL_SHIFT, PERSISTENT, SIZE_MASK
from rewindmq.projections.machine.data.queue import NEVER, Queue
from rewindmq.projections.machine.data.reasons import MAXLEN, RELOCATED
from rewindmq.projections.machine.data.restored_ids import as_it_was
from rewindmq.projections.machine.data.stream import word_of
from rewindmq.projections.machine.events.delivery import deal, hand_over, in_turns, next_consumer, serve_next
from rewindmq.projections.machine.events.settlement import place_of_returned
from rewindmq.projections.machine.rules.dead_letters import bury, is_repeated, remember
from rewindmq.projections.machine.rules.deduplication import (
    MessageIdentity,
    identity_of,
    original_of,
    remember_message,
)
from rewindmq.projections.machine.rules.expiry import decided_by_property, expire_heads, expiry_of, release_due, wait
from rewindmq.projections.machine.rules.limits import counted, enforce, refuses, rule_broken
from rewindmq.projections.machine.rules.settings import REJECT_PUBLISH_DLX
from rewindmq.projections.machine.state import QUEUES_REMEMBERED, ROUTES_REMEMBERED, State, quarantine
from rewindmq.schemas.amqp.errors import Unacceptable
from rewindmq.schemas.amqp.properties import EXPIRATION, expiration, problem, walk
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Route


def on_published(
    state: State, offset: int, actor: Actor, event: Published, effects: list[Effect], sizes: Sequence[int] = ()
) -> int:
    """Put a message into each queue of its route, by the rules at the head of this file; or a run of messages.

    `sizes`: of the bodies of a run; its messages have the ids from `offset` on, and differ from `event` only in their
    bodies. Returns the number of messages that were taken, from the first on: the next one has to be decided by itself.
    Quarantined: with an impossible size or expiration, and from outside a session with properties other than AMQP's."""
    sizes = sizes or (event.body_size,)
    size = sizes[0]
    expiration_ms = event.expiration_ms
    if size < 0 or size > SIZE_MASK or (expiration_ms is not None and expiration_ms < 0):
        quarantine(state, event, f"a body of {size} bytes with expiration {expiration_ms} cannot be", effects)
        return 1
    if actor.session == 0 and event.origin is None:  # not from a session, so no broker has checked it
        wrong = problem(event.properties)
        if wrong:
            quarantine(state, event, wrong, effects)
            return 1
    queues = state.routes.get(event.route)
    if queues is None:
        queues = _resolve(state, event, effects)
        if event.route not in state.routes:
            sizes = sizes[:1]  # each of them is quarantined
    count = len(sizes)
    if count > 1:
        for queue in queues:
            count = min(count, _alike(state, queue, event, sizes, len(queues) == 1))
        count = max(1, count)
        sizes = sizes[:count]
    for queue in queues:
        if not queue.dirty:
            state.touch(queue)
        _publish(state, queue, offset, event, sizes, effects)
    return count


def _alike(state: State, queue: Queue, event: Published, sizes: Sequence[int], alone: bool) -> int:
    """Return how many of these messages the queue treats alike: its consumers take all of them in turns, or none.

    None of them is refused, dropped, or remembered by itself. `alone`: the messages go to no other queue.
    0: the first one has to be decided by itself."""
    if event.origin is not None or event.route.deduplication is not None or queue.deduplicates:
        return 0
    if queue.has_own_publish and not queue.stream:
        return 0
    if NONE != expiry_of(queue, state.clock_ms, event.expiration_ms) <= state.clock_ms:
        return 0
    count = len(sizes)
    if max(sizes) > SIZE_MASK or min(sizes) < 0:
        return 0
    if queue.limited:
        count = _room(queue, sizes)
    if queue.messages_ready == 0 and queue.consuming and not queue.stream:
        for level in queue.levels:
            if level.service:
                return in_turns(level, count, alone)
    return count


def _room(queue: Queue, sizes: Sequence[int]) -> int:
    """Return how many messages of these sizes the queue takes before one of its limits is reached."""
    if queue.blocked:
        return 0
    messages, message_bytes = counted(queue)
    room = queue.max_bytes_or_never - message_bytes
    most = max(0, min(len(sizes), queue.max_length_or_never - messages))
    if sum(sizes[:most]) <= room:
        return most
    for at in range(most):
        room -= sizes[at]
        if room < 0:
            return at
    return most


def _resolve(state: State, event: Published, effects: list[Effect]) -> list[Queue]:
    """Return the queues of a route. The list is remembered only when all queues exist and none is named twice."""
    route: Route = event.route
    queues: dict[Queue, None] = {}
    sound = True
    for name in route.queues:
        queue = state.by_name.get((route.vhost, name))
        if queue is None:
            quarantine(state, event, f"no queue {name!r} in vhost {route.vhost!r}", effects)
            sound = False
        elif queue in queues:
            quarantine(state, event, f"queue {name!r} is named twice", effects)
            sound = False
        else:
            queues[queue] = None
    found = list(queues)
    if sound:
        if len(state.routes) >= ROUTES_REMEMBERED or len(state.routes) * len(found) > QUEUES_REMEMBERED:
            state.routes.clear()
        state.routes[route] = found
    return found


def _publish(
    state: State, queue: Queue, first: int, event: Published, sizes: Sequence[int], effects: list[Effect]
) -> None:
    """Put messages with the ids from `first` on into a queue that treats them alike (`_alike`)."""
    size, count = sizes[0], len(sizes)
    origin = event.origin
    relocated = origin is not None and origin.reason == RELOCATED
    if origin is not None and is_repeated(queue, origin, relocated):
        queue.duplicates += 1
        effects.append(Duplicate(queue, first))
        return
    identity: MessageIdentity | None = None
    if event.route.deduplication is not None or queue.deduplicates:
        identity = identity_of(event.properties)
        if identity is not None and not relocated:
            original, rule = original_of(state, queue, identity.key, event.route.duplicates)
            if original >= 0:
                if origin is not None and not origin.restore:
                    remember(queue, origin, False)
                queue.duplicates += 1
                effects.append(Duplicate(queue, first, original, rule))
                return
    if queue.limited and not relocated and refuses(queue, size):
        _refuse(queue, first, size, effects)
        return
    if origin is not None:
        remember(queue, origin, relocated)
    if identity is not None:
        dies = _kept_expiry(state, event) if relocated else expiry_of(queue, state.clock_ms, event.expiration_ms)
        remember_message(state, queue, first, identity, event.route.duplicates, dies)
    queue.published += count
    ids: Sequence[int] = (first,) if count == 1 else range(first, first + count)
    if queue.has_own_publish:
        if queue.stream:
            _keep_in_stream(state, queue, ids, sizes, effects)
        else:
            _keep_waiting(state, queue, ids, size, event.expiration_ms, effects)
        return
    flags = PERSISTENT if event.persistent or queue.quorum else 0
    expiry = NONE
    arrives_at = queue.arrived
    if relocated and origin is not None:
        expiry = _kept_expiry(state, event)
        if expiry != NONE and _decided_by_own(queue, event.properties):
            flags |= BY_PROPERTY
        if queue.quorum and (origin.delivery_count > 0 or origin.acquired_count > 0):
            arrives_at = place_of_returned(queue)
    elif event.expiration_ms is not None or queue.settings.message_ttl_ms is not None:
        expiry = expiry_of(queue, state.clock_ms, event.expiration_ms)
        if decided_by_property(queue, event.expiration_ms):
            flags |= BY_PROPERTY
    if queue.prioritized is not None:
        flags |= queue.prioritized.level_of(event.priority) << LEVEL_SHIFT
    if origin is not None and (origin.restore or relocated):
        flags = as_it_was(queue, flags, origin)

    if queue.messages_ready == 0 and queue.consuming:
        if count > 1:
            if deal(queue, ids, [each | flags for each in sizes], expiry, effects):
                return
        elif (consumer := next_consumer(queue)) is not None:
            hand_over(queue, consumer, ids, (size | flags,), expiry, effects, arriving=True)
            serve_next(consumer)
            return
    effects.append(Keep(queue, ids))
    _put_behind(arrives_at, queue, ids, sizes, flags, expiry)
    if queue.limited:
        enforce(state, queue, effects)
    if expiry != NONE and queue.messages_ready > 0:
        expire_heads(state, queue, effects)


def _put_behind(order: Order, queue: Queue, ids: Sequence[int], sizes: Sequence[int], flags: int, expiry: int) -> None:
    """Put messages at the end of an order of ready ones."""
    if len(ids) == 1:
        order.append(ids[0], sizes[0] | flags, expiry)
        queue.message_bytes_ready += sizes[0]
    else:
        words = array("q", [size | flags for size in sizes])
        expiries = None if expiry == NONE else array("q", [expiry]) * len(ids)
        order.append_all(Stretch(array("q", ids), words, expiries))
        queue.message_bytes_ready += sum(sizes)
    queue.messages_ready += len(ids)


def _keep_waiting(
    state: State, queue: Queue, ids: Sequence[int], size: int, delay_ms: int | None, effects: list[Effect]
) -> None:
    effects.append(Keep(queue, ids))
    wait(state, queue, ids[0], size | PERSISTENT, min(state.clock_ms + (delay_ms or 0), NEVER - 1))
    release_due(state, queue, effects)


def _keep_in_stream(
    state: State, queue: Queue, ids: Sequence[int], sizes: Sequence[int], effects: list[Effect]
) -> None:
    effects.append(Keep(queue, ids))
    _put_behind(queue.arrived, queue, ids, sizes, word_of(queue, 0, state.clock_ms), NONE)
    if queue.limited:
        enforce(state, queue, effects)
    state.arm_messages(queue)


def _kept_expiry(state: State, event: Published) -> int:
    """Return the expiry that a relocated message had in its old partition, whatever the queue's TTL is now."""
    left_ms = event.expiration_ms
    return NONE if left_ms is None or left_ms >= NEVER - state.clock_ms else state.clock_ms + left_ms


def _decided_by_own(queue: Queue, properties: bytes) -> bool:
    """Return True if the message's own expiration, one of its properties, decided its expiry."""
    for bit, start, end in walk(properties)[0]:
        if bit == EXPIRATION:
            try:
                return decided_by_property(queue, expiration(properties[start:end]))
            except Unacceptable:
                return False
    return False


def _refuse(queue: Queue, message_id: int, size: int, effects: list[Effect]) -> None:
    """Refuse a message. With reject-publish-dlx and a dead-letter exchange it becomes a dead letter."""
    queue.refused += 1
    if queue.quorum:
        rule = rule_broken(queue, *counted(queue))
    else:
        rule = rule_broken(queue, queue.messages_ready + 1, queue.message_bytes_ready + size)
    effects.append(Refuse(queue, message_id, rule))
    if queue.settings.overflow == REJECT_PUBLISH_DLX and queue.settings.dead_letter_exchange is not None:
        effects.append(Keep(queue, (message_id,)))
        bury(queue, (message_id,), (size,), MAXLEN, effects, refused=True)
