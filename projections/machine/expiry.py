"""Time: messages that expire at the head of their queue, and queues that expire unused.

- A message's expiry is fixed when it is published: now + the smaller of the queue's TTL and its own (S-042, S-051). It
  keeps it when it is requeued.
- Only the head is looked at (S-044 to S-047). A head is expired when its time has come, before anything is delivered,
  so a dead message is never delivered (S-033).
- A classic message with TTL 0 is dead unless a consumer takes it at once (S-039); a quorum queue lets it live for the
  rest of the millisecond (rabbit_fifo.erl update_expiry_header, v3.13.7).
- A queue's lease runs from its last use while it has no consumer (S-053); of a quorum queue, while nobody even holds a
  message of it (rabbit_fifo.erl is_expired counts such holders).
"""

from projections.machine.dead_letter import bury
from projections.machine.effects import EXPIRED, Effect, Forget
from projections.machine.queue import NEVER, Queue
from projections.machine.ready import BY_PROPERTY, NONE, SIZE_MASK
from projections.machine.state import LEASE, State


def expiry_of(queue: Queue, now_ms: int, expiration_ms: int | None) -> int:
    """When a message published now dies; NONE for never."""
    ttl = queue.settings.message_ttl_ms
    if ttl is None or (expiration_ms is not None and expiration_ms < ttl):
        ttl = expiration_ms
    if ttl is None:
        return NONE
    if ttl == 0 and queue.quorum:
        ttl = 1
    return now_ms + ttl if now_ms + ttl < NEVER else NONE


def decided_by_property(queue: Queue, expiration_ms: int | None) -> bool:
    ttl = queue.settings.message_ttl_ms
    return expiration_ms is not None and (ttl is None or expiration_ms < ttl)


def expire_heads(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Remove the messages at the head whose time has come, and see that the next one is looked at in time."""
    now_ms = state.clock_ms
    while True:
        expiry = queue.first_expiry()
        if expiry == NONE or expiry > now_ms:
            break
        state.touch(queue)
        message_id, info, _ = queue.take()
        queue.expired += 1
        effects.append(Forget(queue, (message_id,), EXPIRED, 0, _rule(queue, info)))
        bury(queue, message_id, info & SIZE_MASK, EXPIRED, False, effects)
    state.arm_messages(queue)


def _rule(queue: Queue, info: int) -> str:
    if info & BY_PROPERTY:
        return "property expiration"
    return queue.settings.message_ttl_rule or "message-ttl, since withdrawn"


def is_unused(queue: Queue) -> bool:
    return not queue.holders if queue.quorum else queue.attached == 0


def lease_ends_ms(queue: Queue) -> int:
    """When the queue expires if it stays unused; NEVER without x-expires or while it is used."""
    expires_ms = queue.settings.expires_ms
    if expires_ms is None or not is_unused(queue):
        return NEVER
    return min(queue.last_used_ms + expires_ms, NEVER)


def renew_lease(state: State, queue: Queue) -> None:
    """The queue was used just now."""
    queue.last_used_ms = state.clock_ms
    arm_lease(state, queue)


def arm_lease(state: State, queue: Queue) -> None:
    ends_ms = lease_ends_ms(queue)
    if ends_ms < queue.lease_armed_ms:
        queue.lease_armed_ms = ends_ms
        state.push_deadline(ends_ms, queue.queue_id, LEASE)
