"""Time: messages that expire at the head of their queue or wait until they are due, and unused queues that expire.

- A message's expiry is fixed when it is published: now + the smaller of the queue's TTL and its own (S-042, S-051). A
  requeued message keeps its expiry.
- Only the head is checked (S-044 to S-047). An expired head is removed before any message is delivered, so a dead
  message is never delivered (S-033).
- A classic message with TTL 0 is dead unless a consumer takes it at once (S-039); a quorum queue lets it live for the
  rest of the millisecond (rabbit_fifo.erl update_expiry_header, v3.13.7).
- A queue's lease runs from its last use while it has no consumer (S-053). The lease of a quorum queue runs only while
  it also has no holder of a message (rabbit_fifo.erl is_expired counts such holders).
"""

from collections.abc import Iterator
from typing import Final

from rewindmq.projections.machine.data.effects import Effect, Forget, Requeue
from rewindmq.projections.machine.data.message_order import NONE, Stretch
from rewindmq.projections.machine.data.message_word import BY_PROPERTY, SIZE_MASK, UPPER
from rewindmq.projections.machine.data.queue import NEVER, Queue
from rewindmq.projections.machine.data.reasons import DELAYED, EXPIRED
from rewindmq.projections.machine.data.stream import old_messages
from rewindmq.projections.machine.rules.dead_letters import bury, hand_on
from rewindmq.projections.machine.state import DeadlineKind, State

_BY_PROPERTY: Final = BY_PROPERTY >> UPPER  # as it is in the upper half of a word


def expiry_of(queue: Queue, now_ms: int, expiration_ms: int | None) -> int:
    """Return the time at which a message published now dies; NONE for never."""
    ttl = queue.settings.message_ttl_ms
    if ttl is None or (expiration_ms is not None and expiration_ms < ttl):
        ttl = expiration_ms
    if ttl is None:
        return NONE
    if ttl == 0 and queue.quorum:
        ttl = 1
    return now_ms + ttl if now_ms + ttl < NEVER else NONE


def decided_by_property(queue: Queue, expiration_ms: int | None) -> bool:
    """Return True if the message's own expiration, rather than the queue's TTL, decides when it expires."""
    ttl = queue.settings.message_ttl_ms
    return expiration_ms is not None and (ttl is None or expiration_ms < ttl)


def expire_heads(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Remove the expired messages at the head, and arm the deadline of the next one."""
    now_ms = state.clock_ms
    if queue.stream:
        _cut_old(state, queue, now_ms, effects)
        return
    if NONE != queue.first_expiry() <= now_ms:
        state.touch(queue)
        dead = queue.take_expired(now_ms)
        queue.expired += len(dead.ids)
        for by_property, first, end in _by_rule(dead):
            ids = dead.ids if end - first == len(dead.ids) else dead.ids[first:end]
            effects.append(Forget(queue, ids, EXPIRED, 0, _rule(queue, by_property)))
        bury(queue, dead.ids, dead.words, EXPIRED, effects)
    state.arm_messages(queue)


def _by_rule(dead: Stretch) -> Iterator[tuple[bool, int, int]]:
    """Yield stretches of messages with one rule: True if their own expiration decided, first index, end."""
    decided = bytes([upper & _BY_PROPERTY for upper in dead.uppers()])
    first = 0
    while first < len(decided):
        end = decided.find(_BY_PROPERTY - decided[first], first)
        end = len(decided) if end < 0 else end
        yield decided[first] > 0, first, end
        first = end


def _cut_old(state: State, queue: Queue, now_ms: int, effects: list[Effect]) -> None:
    """Remove all too old messages of a stream at once."""
    if NONE != queue.first_expiry() <= now_ms:
        old = queue.take_first(old_messages(queue, now_ms))
        state.touch(queue)
        queue.expired += len(old.ids)
        effects.append(Forget(queue, old.ids, EXPIRED, 0, queue.settings.max_age_rule))
    state.arm_messages(queue)


def wait(state: State, queue: Queue, message_id: int, word: int, due_ms: int) -> None:
    """Keep a message until it is due; `release_due` releases it."""
    assert queue.delayed is not None
    queue.delayed.append(message_id, word, due_ms)
    queue.messages_delayed += 1
    queue.message_bytes_delayed += word & SIZE_MASK
    state.arm_messages(queue)


def release_due(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Make the delayed messages that are due ready again; those of a delayed exchange leave for the outbox."""
    delayed = queue.delayed
    if delayed is None:
        return
    due = delayed.take_first(delayed.expired(state.clock_ms))
    if due.ids:
        state.touch(queue)
        queue.messages_delayed -= len(due.ids)
        queue.message_bytes_delayed -= due.message_bytes
        if queue.type == DELAYED:
            queue.forwarded += len(due.ids)
            effects.append(Forget(queue, due.ids, DELAYED, 0, ""))
            hand_on(queue, due.ids, due.words, effects)
        else:
            due.expiries = queue.take_expiries(due.ids)
            queue.returned.append_all(due)
            queue.messages_ready += len(due.ids)
            queue.message_bytes_ready += due.message_bytes
            effects.append(Requeue(queue, due.ids, 0, DELAYED))
    state.arm_messages(queue)


def _rule(queue: Queue, by_property: bool) -> str:
    if by_property:
        return "property expiration"
    return queue.settings.message_ttl_rule or "message-ttl, since withdrawn"


def is_unused(queue: Queue) -> bool:
    """Return True if the queue's lease runs: it has no consumer and, as a quorum queue, no holder of a message."""
    return not queue.holders if queue.quorum else not queue.consuming


def lease_ends_ms(queue: Queue) -> int:
    """Return the time at which the queue expires if it stays unused; NEVER without x-expires or while it is used."""
    expires_ms = queue.settings.expires_ms
    if expires_ms is None or not is_unused(queue):
        return NEVER
    return min(queue.last_used_ms + expires_ms, NEVER)


def renew_lease(state: State, queue: Queue) -> None:
    """Note that the queue was used just now."""
    queue.last_used_ms = state.clock_ms
    arm_lease(state, queue)


def arm_lease(state: State, queue: Queue) -> None:
    """Set a deadline at the end of the queue's lease."""
    ends_ms = lease_ends_ms(queue)
    if ends_ms < queue.lease_armed_ms:
        queue.lease_armed_ms = ends_ms
        state.push_deadline(ends_ms, queue.queue_id, DeadlineKind.LEASE)
