"""Removals: an operator deletes single messages from a queue, or moves them (B-38).

    ready      it leaves                           deleted: reason `removed`
    delayed    it leaves                           moved: reason `moved`, and into the outbox, as a dead letter
    unacked    it stays: a client may be working on it
    not there  nothing: a removal may be repeated

A moved message is then in the outbox, and in no queue, until it is durable in the queues of its new route. So it is in
one place at each moment, and a crash leaves it there. Its number in the queue's sequence lets a target drop a repeat
(rules/dead_letters.py). Because it did not die, it has no x-death, and counts towards no limit. A stream never gives up
a message.
"""

from typing import Final

from rewindmq.projections.machine.data.effects import Effect, Forget
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.message_word import SIZE_MASK
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import MOVED, REMOVED
from rewindmq.projections.machine.rules.dead_letters import move
from rewindmq.projections.machine.rules.expiry import expire_heads
from rewindmq.projections.machine.rules.limits import enforce
from rewindmq.projections.machine.state import STREAM, State, is_locked, quarantine
from rewindmq.schemas.operator_events import MessageRemoved
from rewindmq.schemas.values import Actor

MOST_REMOVED: Final = 1_000  # messages that one event may name


def on_removed(state: State, offset: int, actor: Actor, event: MessageRemoved, effects: list[Effect]) -> None:
    """Remove the ready and delayed messages; leave those that a consumer holds.

    Quarantined: without the queue, of a stream, and with invalid or too large ranges."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None:
        quarantine(state, event, f"no queue {event.queue!r} in vhost {event.vhost!r}", effects)
        return
    if is_locked(state, queue, actor, event, effects):
        return
    if queue.stream:
        quarantine(state, event, f"no message of {STREAM} {event.queue!r} can be removed", effects)
        return
    named = sum(last - first + 1 for first, last in event.messages)
    if named > MOST_REMOVED or any(first > last for first, last in event.messages):
        quarantine(state, event, f"ranges of {named} messages: at most {MOST_REMOVED} are removed at once", effects)
        return
    ids = [message_id for first, last in event.messages for message_id in range(first, last + 1)]
    removed = _take_out(queue, list(dict.fromkeys(ids)))
    if not removed:
        return
    state.touch(queue)
    message_ids = [message_id for message_id, _ in removed]
    effects.append(Forget(queue, message_ids, MOVED if event.moved else REMOVED, 0, ""))
    if event.moved:
        queue.moved += len(removed)
        move(queue, message_ids, [word for _, word in removed], event.exchange, event.routing_key, effects)
    else:
        queue.removed += len(removed)
    expire_heads(state, queue, effects)  # another message may be the first
    enforce(state, queue, effects)


def removable(queue: Queue, ids: list[int]) -> list[int]:
    """Return the ids of the given messages that a removal would remove now, ascending."""
    found = [message_id for order in (queue.returned, queue.arrived) for message_id in order.among(ids, queue.quorum)]
    if queue.delayed is not None:
        found += queue.delayed.among(ids, True)
    return sorted(found)


def _take_out(queue: Queue, ids: list[int]) -> list[tuple[int, int]]:
    """Remove these messages from the orders. Return (id, word) of each, in the order of delivery."""
    removed: list[tuple[int, int]] = []
    for order in (queue.returned, queue.arrived):
        for message_id, word, _ in order.remove(ids, queue.quorum):
            removed.append((message_id, word))
            queue.messages_ready -= 1
            queue.message_bytes_ready -= word & SIZE_MASK
    if queue.delayed is not None:
        for message_id, word, _ in queue.delayed.remove(ids, True):
            removed.append((message_id, word))
            queue.messages_delayed -= 1
            queue.message_bytes_delayed -= word & SIZE_MASK
            queue.held_expiries.pop(message_id, NONE)
    return removed
