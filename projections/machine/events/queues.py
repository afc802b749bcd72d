"""Queues come, change and go. When sessions and nodes end, their consumers go, and the queues that they own.

The messages that such consumers held return to their queues."""

from array import array
from collections.abc import Sequence

from rewindmq.projections.machine.data.declaration import NO_EPOCH, Declaration
from rewindmq.projections.machine.data.delayed_order import PREFIX
from rewindmq.projections.machine.data.effects import CancelConsumer, Effect, Forget, QueueGone
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.message_word import PERSISTENT, SIZE_MASK
from rewindmq.projections.machine.data.queue import Consumer, Limiter, Queue
from rewindmq.projections.machine.data.reasons import DELAYED, DELETED, PURGED, TRANSIENT, GoneReason, LeaveReason
from rewindmq.projections.machine.events.delivery import leave_level, run, run_after_taking, unblock
from rewindmq.projections.machine.events.relocation import bring_along, problem_of
from rewindmq.projections.machine.events.settlement import give_back
from rewindmq.projections.machine.rules.dead_letters import give_up_held, release_forwarded
from rewindmq.projections.machine.rules.deduplication import forget_all, forget_messages
from rewindmq.projections.machine.rules.expiry import arm_lease, expire_heads, release_due, renew_lease
from rewindmq.projections.machine.rules.limits import drop_heads, enforce
from rewindmq.projections.machine.rules.policy_keys import is_queue_type
from rewindmq.projections.machine.rules.profile import profile_of
from rewindmq.projections.machine.rules.settings import DROP_HEAD, resolve
from rewindmq.projections.machine.state import STREAM, State, epoch_of, is_locked, quarantine
from rewindmq.schemas.events import (
    BrokerStarted,
    ConsumerCancelled,
    DeadLettersForwarded,
    LeaseRenewed,
    NodeLost,
    PolicyApplied,
    Purged,
    QueueDeclared,
    QueueDeleted,
    SessionClosed,
)
from rewindmq.schemas.values import EPOCH_SHIFT, Actor


def on_declared(state: State, offset: int, actor: Actor, event: QueueDeclared, effects: list[Effect]) -> None:
    """Make a queue, with all that its declaration decides for ever; renew the lease of one that exists (S-053).

    A queue that comes from another partition keeps what it was declared under (relocation.py). Quarantined: a type that
    the machine version does not know, a policy that cannot be read, and what no queue brings along."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is not None:
        if is_locked(state, queue, actor, event, effects):
            return
        state.touch(queue)
        if not queue.quorum:  # S-059
            renew_lease(state, queue)
        return
    if not is_queue_type(event.type):
        what = f"machine version {state.machine_version} knows no queues of type {event.type!r}"
        quarantine(state, event, what, effects)
        return
    if event.type == DELAYED and not event.queue.startswith(PREFIX):
        quarantine(state, event, f"a queue of type 'delayed' is named {PREFIX}<exchange>", effects)
        return
    version = state.machine_version
    if event.moved_from is not None:
        problem = problem_of(event.moved_from, version)
        if problem:
            quarantine(state, event, problem, effects)
            return
        version = event.moved_from.version
    profile = profile_of(event.semantics)
    try:
        settings = resolve(event.type, event.arguments, event.policy, event.operator_policy, profile, version)
    except ValueError as error:
        quarantine(state, event, f"policy of queue {event.queue!r}: {error}", effects)
        return
    queue = Queue(
        Declaration(
            event.vhost,
            event.queue,
            offset,
            event.type,
            event.durable,
            event.exclusive,
            event.auto_delete,
            event.owner,
            NO_EPOCH if event.durable or event.exclusive else epoch_of(actor),
            version,
            event.arguments,
            event.semantics,
            state.clock_ms if event.type == STREAM else 0,
        )
    )
    queue.policy = event.policy
    queue.operator_policy = event.operator_policy
    queue.apply_settings(settings)
    if event.moved_from is not None:
        bring_along(queue, event.moved_from)
    state.add_queue(queue)
    state.declared += 1
    state.touch(queue)
    renew_lease(state, queue)


def on_lease_renewed(state: State, offset: int, actor: Actor, event: LeaseRenewed, effects: list[Effect]) -> None:
    """Renew the lease of a queue that was declared again (S-053). A queue deleted just before does not come back."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None or queue.queue_id != event.queue_id or is_locked(state, queue, actor, event, effects):
        return
    if not queue.quorum:  # S-059
        state.touch(queue)
        renew_lease(state, queue)


def on_policy(state: State, offset: int, actor: Actor, event: PolicyApplied, effects: list[Effect]) -> None:
    """Apply another policy, from now on and to queued messages (S-028). The lease begins anew, as in RabbitMQ.

    Nothing happens if the queue is gone: another node may have deleted it just before.

    A classic queue that drops from its head does so to the new limits even when the same change makes it refuse
    publishes from now on: RabbitMQ sets the limits first, then the strategy (process_args_policy; measured on
    3.10.8)."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None:
        return
    try:
        settings = resolve(
            queue.type, queue.arguments, event.policy, event.operator_policy, queue.profile, queue.version
        )
    except ValueError as error:
        quarantine(state, event, f"policy of queue {event.queue!r}: {error}", effects)
        return
    state.touch(queue)
    dropping = not queue.quorum and queue.settings.overflow == DROP_HEAD
    queue.policy = event.policy
    queue.operator_policy = event.operator_policy
    if queue.settings.at_least_once and not settings.at_least_once:
        queue.apply_settings(settings)
        give_up_held(state, queue, effects)
    queue.apply_settings(settings)
    if not queue.deduplicates:
        forget_messages(queue)
    renew_lease(state, queue)
    if dropping:
        drop_heads(state, queue, effects)
    if queue.stream:
        expire_heads(state, queue, effects)
    run(state, queue, effects)


def on_purged(state: State, offset: int, actor: Actor, event: Purged, effects: list[Effect]) -> None:
    """Remove every ready and delayed message of a queue. Unacked messages stay with their holders."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None:
        quarantine(state, event, f"no queue {event.queue!r} in vhost {event.vhost!r}", effects)
        return
    if is_locked(state, queue, actor, event, effects):
        return
    if queue.stream:
        quarantine(state, event, f"{STREAM} {event.queue!r} can't be purged", effects)
        return
    state.touch(queue)
    queue.purged += queue.messages_ready + queue.messages_delayed
    _forget_ready(queue, PURGED, effects)
    enforce(state, queue, effects)


def _forget_ready(queue: Queue, reason: LeaveReason, effects: list[Effect]) -> None:
    removed: list[array[int]] = queue.returned.clear() + queue.arrived.clear()
    for ids in removed:
        effects.append(Forget(queue, ids, reason, 0, ""))
    queue.messages_ready = 0
    queue.message_bytes_ready = 0
    if queue.delayed is not None:
        for message_id in queue.delayed.ids():
            queue.held_expiries.pop(message_id, NONE)
        for ids in queue.delayed.clear():
            effects.append(Forget(queue, ids, reason, 0, ""))
        queue.messages_delayed = queue.message_bytes_delayed = 0


def on_deleted(state: State, offset: int, actor: Actor, event: QueueDeleted, effects: list[Effect]) -> None:
    """Delete a queue, unless `if_unused` or `if_empty` forbids it."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None:
        quarantine(state, event, f"no queue {event.queue!r} in vhost {event.vhost!r}", effects)
        return
    if is_locked(state, queue, actor, event, effects):
        return
    if (event.if_unused and queue.consuming) or (event.if_empty and queue.messages_ready > 0):
        return
    delete(state, queue, "deleted", effects)


def delete(state: State, queue: Queue, reason: GoneReason, effects: list[Effect]) -> None:
    """Delete a queue with its messages; none is dead-lettered (S-060). Its outbox is still forwarded."""
    messages = queue.messages_ready
    _forget_ready(queue, DELETED, effects)
    freed: dict[Limiter, None] = {}
    for holder in list(queue.holders.values()):
        if holder.attached:
            effects.append(CancelConsumer(queue, holder.consumer))
            leave_level(queue, holder)
        if holder.held:
            effects.append(Forget(queue, list(holder.held), DELETED, holder.consumer, ""))
            if holder.limiter is not None:
                holder.limiter.outstanding -= len(holder.held)
                freed[holder.limiter] = None
            holder.held = {}
        state.forget_holder(holder)
    queue.messages_unacked = 0
    queue.message_bytes_unacked = 0
    queue.held_expiries = {}
    forget_all(queue)
    queue.gone = True
    effects.append(QueueGone(queue, reason, messages))
    state.remove_queue(queue)
    for limiter in freed:
        unblock(state, limiter, effects)


def on_forwarded(state: State, offset: int, actor: Actor, event: DeadLettersForwarded, effects: list[Effect]) -> None:
    """Release the dead letters that have arrived, and pass over the numbers that are taken.

    A limit that counted the letters may let publishes in again."""
    queue = state.by_id.get(event.queue_id)
    if queue is None or queue.name != event.queue or queue.vhost != event.vhost:
        quarantine(state, event, f"no queue {event.queue!r} with id {event.queue_id} waits for forwards", effects)
        return
    state.touch(queue)
    queue.next_sequence = max(queue.next_sequence, event.taken + 1)
    release_forwarded(state, queue, event.sequence, event.relocated, effects)
    if not queue.gone:
        enforce(state, queue, effects)


# -- consumers and sessions go -----------------------------------------------------------------------------------------


def on_cancelled(state: State, offset: int, actor: Actor, event: ConsumerCancelled, effects: list[Effect]) -> None:
    """Detach a consumer (basic.cancel). It keeps what it holds; an auto-delete queue goes with its last consumer."""
    queue = state.by_name.get((event.vhost, event.queue))
    consumer = queue.holders.get(event.consumer) if queue is not None else None
    if queue is None or consumer is None or not consumer.attached:
        quarantine(state, event, f"no consumer {event.consumer} at queue {event.queue!r}", effects)
        return
    state.touch(queue)
    leave_level(queue, consumer)
    if not consumer.held:
        state.forget_holder(consumer)
    _lost_consumers(state, queue, effects)
    if queue.single_active and not queue.gone:
        run_after_taking(state, queue, effects)


def _lost_consumers(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Delete an auto-delete queue whose last consumer left (S-070); else its lease begins.

    A queue that never had a consumer stays (S-088)."""
    if queue.consuming:
        return
    if queue.auto_delete:
        delete(state, queue, "auto_delete", effects)
    else:
        renew_lease(state, queue)


def on_session_closed(state: State, offset: int, actor: Actor, event: SessionClosed, effects: list[Effect]) -> None:
    """Detach the consumers of a channel, or of a connection, and return what they held.

    With a connection (`channel` 0) its exclusive queues go."""
    holders = list(state.holders_of(event.session, event.channel).values())
    if holders:
        _detach_all(state, holders, "session_closed" if event.channel == 0 else "channel_closed", effects)
    if event.channel == 0:
        _delete_owned(state, event.session, effects)


def _delete_owned(state: State, session: int, effects: list[Effect]) -> None:
    for queue in list(state.owned.get(session, {}).values()):
        delete(state, queue, "exclusive_owner_gone", effects)


def on_node_lost(state: State, offset: int, actor: Actor, event: NodeLost, effects: list[Effect]) -> None:
    """End all sessions of the epoch, as if they were one: messages of one session are not offered to the next.

    The transient queues that were declared through the node go with it, as in a RabbitMQ cluster. A second NodeLost of
    the epoch, when two nodes have noticed, changes nothing."""
    if event.epoch < 0:
        quarantine(state, event, f"there is no epoch {event.epoch}", effects)
        return
    state.lose_epoch(event.epoch)
    known = sorted(dict.fromkeys([*state.sessions, *state.owned]))
    sessions = [session for session in known if session != 0 and session >> EPOCH_SHIFT == event.epoch]
    transient = [queue for queue in state.by_id.values() if queue.epoch == event.epoch and not queue.gone]
    holders = [holder for session in sessions for holder in state.sessions.get(session, {}).values()]
    _detach_all(state, holders, "node_lost", effects)
    for session in sessions:
        _delete_owned(state, session, effects)
    for queue in transient:
        if not queue.gone:  # its auto-delete may have deleted it
            delete(state, queue, "transient", effects)


def _detach_all(state: State, holders: Sequence[Consumer], reason: str, effects: list[Effect]) -> None:
    """Remove these holders; the messages that they hold return. Queue by queue, in the order of the queues' ids."""
    by_queue: dict[int, list[Consumer]] = {}
    for holder in holders:
        by_queue.setdefault(holder.queue.queue_id, []).append(holder)
    freed: dict[Limiter, None] = {}
    for queue_id in sorted(by_queue):
        queue = state.by_id[queue_id]
        state.touch(queue)
        had = queue.consumer_count()
        for holder in by_queue[queue_id]:
            if holder.attached:
                leave_level(queue, holder)
            if holder.held:
                if holder.limiter is not None:
                    freed[holder.limiter] = None
                ids = list(holder.held) if queue.quorum else sorted(holder.held)
                give_back(state, queue, holder, ids, reason, effects, requeued=False)
            state.forget_holder(holder)
        if had > queue.consumer_count():
            _lost_consumers(state, queue, effects)
        elif queue.quorum:
            renew_lease(state, queue)
        if not queue.gone:
            run(state, queue, effects)
    for limiter in freed:
        unblock(state, limiter, effects)


def on_broker_started(state: State, offset: int, actor: Actor, event: BrokerStarted, effects: list[Effect]) -> None:
    """End every earlier session, transient and exclusive queues, and transient messages of classic queues.

    (S-074, S-075.) Leases begin anew (S-056). After a crash, any message may have been delivered by a ConsumerAttached
    or a Credited that was not durable yet."""
    for queue in [q for q in state.by_id.values() if not q.gone]:
        _detach_everybody(state, queue, effects)
        if queue.exclusive:
            delete(state, queue, "exclusive_owner_gone", effects)
        elif not queue.durable:
            delete(state, queue, "transient", effects)
        else:
            state.touch(queue)
            if event.after_crash:
                queue.crash_offset = offset
            if not (queue.quorum or queue.stream):
                _lose_transient(queue, effects)
            renew_lease(state, queue)
            run(state, queue, effects)


def _detach_everybody(state: State, queue: Queue, effects: list[Effect]) -> None:
    for holder in list(queue.holders.values()):
        if holder.attached:
            leave_level(queue, holder)
        if holder.held:
            ids = list(holder.held) if queue.quorum else sorted(holder.held)
            give_back(state, queue, holder, ids, "broker_started", effects, requeued=False)
        state.forget_holder(holder)


def _lose_transient(queue: Queue, effects: list[Effect]) -> None:
    lost: list[int] = []
    for order in (queue.returned, queue.arrived):
        if not order.has_transient():
            continue
        kept: list[tuple[int, int, int]] = []
        for message_id, word, expiry in order.items():
            if word & PERSISTENT:
                kept.append((message_id, word, expiry))
            else:
                lost.append(message_id)
                queue.message_bytes_ready -= word & SIZE_MASK
        order.clear()
        for message_id, word, expiry in kept:
            order.append(message_id, word, expiry)
    if lost:
        queue.messages_ready -= len(lost)
        queue.lost += len(lost)
        effects.append(Forget(queue, lost, TRANSIENT, 0, ""))


# -- deadlines ---------------------------------------------------------------------------------------------------------


def messages_due(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Expire the messages at the head that are due, and release the delayed messages that are due."""
    release_due(state, queue, effects)
    expire_heads(state, queue, effects)
    if queue.delayed is not None:
        run(state, queue, effects)
    elif queue.blocked:
        enforce(state, queue, effects)


def lease_due(state: State, queue: Queue, ends_ms: int, effects: list[Effect]) -> None:
    """Delete the queue if its lease has ended (x-expires)."""
    if ends_ms <= state.clock_ms:
        delete(state, queue, "expired", effects)
    else:
        arm_lease(state, queue)
