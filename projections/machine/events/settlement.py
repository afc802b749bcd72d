"""Settlement: acks, nacks and rejects, and the return of messages whose holder is gone.

The place of a returned message (S-091, S-095; measured on RabbitMQ 3.10.8, see tests/unit/machine):
    classic                                      to its original place (in its level, if it has priorities)
    quorum, holder gone                          to the end of `returned`, which is served first
    quorum, given back, with a delivery limit    the same
    quorum, given back, without one              behind all ready messages (rabbit_fifo.erl handle_aux turns the return
                                                 into a `requeue`, which appends)
Several messages at once return in the order of their delivery. (RabbitMQ treats each basic.get as a separate consumer.
So when a channel with messages held by get closes, they return to a quorum queue in the textual order of their tags;
not copied.)
Every return of a quorum message raises its delivery count (3.13: return_one, requeue); above the limit it dies. In
profile rabbitmq-4.3 only failures raise it (machine/rules/profile.py), no message goes behind the others under any
limit (measured on 4.3.6), and with delayed retry a returned message waits first (machine/data/delayed_order.py).
"""

from array import array
from collections.abc import Sequence

from rewindmq.projections.machine.data.effects import Delay, Effect, Forget, Requeue
from rewindmq.projections.machine.data.message_order import NONE, Order, Stretch, stretch_of
from rewindmq.projections.machine.data.message_word import (
    DELIVERIES_MAX_4_3,
    LEVEL_SHIFT,
    REDELIVERED,
    SIZE_MASK,
    UPPER,
    returned,
    returned_or_failed,
)
from rewindmq.projections.machine.data.queue import Consumer, Queue
from rewindmq.projections.machine.data.reasons import ACKED, DELIVERY_LIMIT, REJECTED
from rewindmq.projections.machine.events.delivery import change_over, run, run_after_taking, serve_again, unblock
from rewindmq.projections.machine.rules.dead_letters import bury
from rewindmq.projections.machine.rules.expiry import renew_lease, wait
from rewindmq.projections.machine.rules.profile import FAILURES
from rewindmq.projections.machine.state import State, quarantine
from rewindmq.schemas.events import Acked, Nacked
from rewindmq.schemas.values import Actor


def on_acked(state: State, offset: int, actor: Actor, event: Acked, effects: list[Effect]) -> None:
    """Remove acked messages from their holder and the queue. Ids that it does not hold are quarantined."""
    queue = state.by_name.get((event.vhost, event.queue))
    holder = queue.holders.get(event.consumer) if queue is not None else None
    if queue is None or holder is None or queue.stream:
        quarantine(state, event, f"consumer {event.consumer} holds nothing of queue {event.queue!r}", effects)
        return
    if not queue.dirty:
        state.touch(queue)
    held = holder.held
    count = 0
    message_bytes = 0
    for first, last in event.messages:
        if first == last and (word := held.pop(first, -1)) >= 0:
            count += 1
            message_bytes += word & SIZE_MASK
            effects.append(Forget(queue, (first,), ACKED, event.consumer, ""))
            if queue.held_expiries:
                queue.held_expiries.pop(first, NONE)
            continue
        ids: Sequence[int] = range(first, last + 1)
        if last - first >= len(held) or first > last:
            ids = _those_held(state, holder, event, first, last, effects)
        missing: list[int] = []
        for message_id in ids:
            word = held.pop(message_id, -1)
            if word < 0:
                missing.append(message_id)
            else:
                message_bytes += word & SIZE_MASK
        if missing:
            absent = dict.fromkeys(missing)
            ids = [message_id for message_id in ids if message_id not in absent]
            quarantine(state, event, f"consumer {event.consumer} does not hold {_some(missing)}", effects)
        if ids:
            count += len(ids)
            effects.append(Forget(queue, ids, ACKED, event.consumer, ""))
            if queue.held_expiries:
                for message_id in ids:
                    queue.held_expiries.pop(message_id, NONE)
    queue.acked += count
    queue.messages_unacked -= count
    queue.message_bytes_unacked -= message_bytes
    if holder.limiter is not None:
        holder.limiter.outstanding -= count
    settled(state, queue, holder, effects)
    if queue.messages_ready > 0:
        run_after_taking(state, queue, effects)


def on_nacked(state: State, offset: int, actor: Actor, event: Nacked, effects: list[Effect]) -> None:
    """Return or dead-letter messages of a holder. Ids that it does not hold are quarantined."""
    queue = state.by_name.get((event.vhost, event.queue))
    holder = queue.holders.get(event.consumer) if queue is not None else None
    if queue is None or holder is None:
        quarantine(state, event, f"consumer {event.consumer} holds nothing of queue {event.queue!r}", effects)
        return
    ids: list[int] = []
    for first, last in event.messages:
        ids.extend(_those_held(state, holder, event, first, last, effects))
    if not ids:
        return
    state.touch(queue)
    ids = _in_order(holder, ids, len(event.messages) > 1)
    if event.requeue:
        give_back(state, queue, holder, ids, event.method, effects)
    else:
        _reject(queue, holder, ids, effects)
    settled(state, queue, holder, effects)
    run(state, queue, effects)


def _those_held(
    state: State, holder: Consumer, event: Acked | Nacked, first: int, last: int, effects: list[Effect]
) -> list[int]:
    """Return the ids of first..last that the holder holds, ascending. The event is quarantined for the missing ids."""
    held = holder.held
    if last - first < len(held):
        ids = list(filter(held.__contains__, range(first, last + 1)))
    else:
        ids = sorted(message_id for message_id in held if first <= message_id <= last)
    if not ids or len(ids) <= last - first:
        what = f"consumer {holder.consumer} holds only {len(ids)} of messages {first} to {last}"
        quarantine(state, event, what, effects)
    return ids


def _in_order(holder: Consumer, ids: list[int], may_repeat: bool) -> list[int]:
    """Return the ids without repetitions, in the order of their delivery, in which they return or are dead-lettered."""
    if len(ids) == 1:
        return ids
    if len(ids) == len(holder.held) and not may_repeat:
        return list(holder.held)
    wanted = dict.fromkeys(ids)
    return [message_id for message_id in holder.held if message_id in wanted]


def _some(ids: list[int]) -> str:
    return f"message {ids[0]}" if len(ids) == 1 else f"{len(ids)} messages from {ids[0]} on"


def unhold(queue: Queue, holder: Consumer, ids: Sequence[int]) -> Stretch:
    """Take held messages from their holder."""
    held = holder.held
    if len(ids) == len(held):
        words = array("q", map(held.__getitem__, ids))
        held.clear()
    else:
        words = array("q", map(held.pop, ids))
    messages = Stretch(array("q", ids), words, queue.take_expiries(ids))
    queue.messages_unacked -= len(ids)
    queue.message_bytes_unacked -= messages.message_bytes
    if holder.limiter is not None:
        holder.limiter.outstanding -= len(ids)
    return messages


def settled(state: State, queue: Queue, holder: Consumer, effects: list[Effect]) -> None:
    """Let a holder that settled messages take new ones; remove it if it is detached and holds nothing."""
    limiter = holder.limiter
    if holder is queue.active:
        change_over(queue)
    if holder.attached:
        if not holder.serviced:
            serve_again(holder)
    elif not holder.held:
        state.forget_holder(holder)
        if queue.quorum:
            renew_lease(state, queue)
    if limiter is not None:
        unblock(state, limiter, effects)


def _reject(queue: Queue, holder: Consumer, ids: list[int], effects: list[Effect]) -> None:
    """Reject messages. In a classic queue the highest priority dies first (rabbit_priority_queue.erl ackfold)."""
    if queue.prioritized is not None and not queue.quorum:
        ids = sorted(ids, key=lambda message_id: holder.held[message_id] >> LEVEL_SHIFT, reverse=True)
    rejected = unhold(queue, holder, ids)
    queue.rejected += len(ids)
    effects.append(Forget(queue, rejected.ids, REJECTED, holder.consumer, ""))
    bury(queue, rejected.ids, rejected.words, REJECTED, effects)


def give_back(
    state: State,
    queue: Queue,
    holder: Consumer,
    ids: list[int],
    reason: str,
    effects: list[Effect],
    requeued: bool = True,
) -> None:
    """Make the holder's messages ready again.

    `requeued`: they return by nack, reject or recover; otherwise the holder is gone."""
    if queue.quorum:
        _give_back_quorum(state, queue, holder, ids, reason, effects, requeued)
        return
    back = unhold(queue, holder, ids)
    effects.append(Requeue(queue, back.ids, holder.consumer, reason))
    back.change_uppers({upper: upper | REDELIVERED >> UPPER for upper in dict.fromkeys(back.uppers())})
    place = queue.returned if queue.prioritized is None else queue.prioritized
    place.insert_all(back.by_id())
    queue.messages_ready += len(ids)
    queue.message_bytes_ready += back.message_bytes


def place_of_returned(queue: Queue) -> Order:
    """Return the order that receives the messages that a consumer of a quorum queue gave back."""
    behind = queue.settings.delivery_limit is None and queue.profile.returns_behind
    return queue.arrived if behind else queue.returned


def _give_back_quorum(
    state: State, queue: Queue, holder: Consumer, ids: list[int], reason: str, effects: list[Effect], requeued: bool
) -> None:
    settings, separate, failed = queue.settings, queue.profile.failures_count, reason in FAILURES
    limit = settings.delivery_limit
    back = unhold(queue, holder, ids)
    changes: dict[int, int] = {}  # by the upper half of a word; many words have the same
    counts: dict[int, int] = {}
    dying: dict[int, None] = {}
    for upper in dict.fromkeys(back.uppers()):
        word = upper << UPPER
        word = REDELIVERED | (returned_or_failed(word, failed) if separate else returned(word))
        changes[upper] = word >> UPPER
        count = counts[word >> UPPER] = queue.counts(word)[0]
        if limit is not None and (count > limit or (separate and count == DELIVERIES_MAX_4_3)):  # S-159
            dying[word >> UPPER] = None
    back.change_uppers(changes)
    dead: Stretch | None = None
    if dying:
        rows = list(back.rows())
        dead = stretch_of([row for row in rows if row[1] >> UPPER in dying])
        back = stretch_of([row for row in rows if row[1] >> UPPER not in dying])
    if settings.retries_later(failed):
        for message_id, word, expiry in back.rows():
            due_ms = state.clock_ms + min(settings.retry_min_ms * max(counts[word >> UPPER], 1), settings.retry_max_ms)
            if expiry != NONE:
                queue.held_expiries[message_id] = expiry
            effects.append(Delay(queue, message_id, holder.consumer, reason, due_ms))
            wait(state, queue, message_id, word, due_ms)
    elif back.ids:
        (place_of_returned(queue) if requeued else queue.returned).append_all(back)
        queue.messages_ready += len(back.ids)
        queue.message_bytes_ready += back.message_bytes
        effects.append(Requeue(queue, back.ids, holder.consumer, reason))
    if dead is not None:
        _exceed_limit(queue, holder, dead, effects)


def _exceed_limit(queue: Queue, holder: Consumer, dead: Stretch, effects: list[Effect]) -> None:
    queue.delivery_limited += len(dead.ids)
    rule = queue.settings.delivery_limit_rule
    effects.append(Forget(queue, dead.ids, DELIVERY_LIMIT, holder.consumer, rule))
    bury(queue, dead.ids, dead.words, DELIVERY_LIMIT, effects)
