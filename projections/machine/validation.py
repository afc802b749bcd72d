"""Checks every invariant of the machine's state by brute force. For tests: `Machine.validate()`."""

from rewindmq.projections.machine.data import stream
from rewindmq.projections.machine.data.declaration import NO_EPOCH
from rewindmq.projections.machine.data.delayed_order import Timed
from rewindmq.projections.machine.data.id_windows import KEY_SIZE, MOST_EXCHANGES, MOST_REMEMBERED, OWN, SPACE
from rewindmq.projections.machine.data.message_order import CHUNK, NONE, Order, first_number, space_of
from rewindmq.projections.machine.data.message_word import LEVEL_SHIFT, SIZE_MASK, seconds_of
from rewindmq.projections.machine.data.priority_order import Prioritized
from rewindmq.projections.machine.data.queue import NEVER, Consumer, Queue
from rewindmq.projections.machine.events.lookahead import may_have_lookahead
from rewindmq.projections.machine.rules.expiry import lease_ends_ms
from rewindmq.projections.machine.rules.limits import is_over
from rewindmq.projections.machine.rules.settings import DROP_HEAD, resolve
from rewindmq.projections.machine.state import EPOCHS_REMEMBERED, DeadlineKind, State, epoch_of
from rewindmq.schemas.values import EPOCH_SHIFT


def validate(state: State) -> None:
    """Check every invariant of the state. Raises AssertionError if one is broken."""
    for (vhost, name), queue in state.by_name.items():
        assert (queue.vhost, queue.name) == (vhost, name)
        assert state.by_id[queue.queue_id] is queue
        assert not queue.gone
    assert list(state.by_id) == sorted(state.by_id)
    for queue_id, queue in state.by_id.items():
        assert queue.queue_id == queue_id
        assert queue.gone == (state.by_name.get((queue.vhost, queue.name)) is not queue)
        assert queue.outbox or not queue.gone
        _validate_queue(state, queue)
    owned = {q.queue_id: q for of_session in state.owned.values() for q in of_session.values()}
    assert owned == {q.queue_id: q for q in state.by_name.values() if q.exclusive}
    assert all(q.owner == session for session, of in state.owned.items() for q in of.values())
    _validate_epochs(state)
    _validate_sessions(state)
    _validate_limiters(state)
    assert state.next_deadline_ms == (state.deadlines[0][0] if state.deadlines else NEVER)
    for route, queues in state.routes.items():
        assert [q.name for q in queues] == list(route.queues)
        assert all(state.by_name[(route.vhost, q.name)] is q for q in queues)
    assert all(queue.dirty for queue in state.dirty_queues)


def _validate_queue(state: State, queue: Queue) -> None:
    for order in queue.orders():
        _validate_order(order)
    if queue.prioritized is not None:
        _validate_levels(queue, queue.prioritized)
    ready = [*queue.returned.items(), *queue.arrived.items()]
    held = [(message_id, word) for h in queue.holders.values() for message_id, word in h.held.items()]
    waiting = [] if queue.delayed is None else list(queue.delayed.items())
    ids = [m[0] for m in ready] + [m[0] for m in held] + [m[0] for m in waiting]
    assert len(set(ids)) == len(ids), "a message is in two places"
    if not queue.quorum:
        by_level = [(-(m[1] >> LEVEL_SHIFT) if queue.prioritized else 0, m[0]) for m in ready]
        assert by_level == sorted(by_level), "a classic queue is out of order"
    assert queue.messages_ready == len(ready)
    assert queue.message_bytes_ready == sum(word & SIZE_MASK for _, word, _ in ready)
    assert queue.messages_unacked == len(held)
    assert queue.message_bytes_unacked == sum(word & SIZE_MASK for _, word in held)
    assert set(queue.held_expiries) <= {m[0] for m in [*held, *waiting]}
    assert queue.messages_delayed == len(waiting)
    assert queue.message_bytes_delayed == sum(word & SIZE_MASK for _, word, _ in waiting)
    if queue.delayed is not None:
        due = [(due_ms, message_id) for message_id, _, due_ms in waiting]
        assert due == sorted(due)
        assert queue.gone or not due or due[0][0] > state.clock_ms, "a message waits although its time has come"
    if not queue.gone:
        accounted = queue.acked + queue.delivered + queue.expired + queue.maxlen + queue.rejected
        accounted += queue.delivery_limited + queue.purged + queue.lost + len(ready) + len(held)
        accounted += queue.forwarded + len(waiting) + queue.removed + queue.moved + queue.relocated
        assert queue.published == accounted, "conservation (B-18)"
    kept = [entry for entry in queue.outbox.values() if entry.at_least_once]
    assert queue.messages_dlx == len(kept)
    assert queue.message_bytes_dlx == sum(entry.size for entry in kept)
    assert list(queue.outbox) == sorted(queue.outbox)
    assert all(sequence < queue.next_sequence for sequence in queue.outbox)
    _validate_remembered(state, queue, dict.fromkeys(ids))
    _validate_consumers(queue)
    _validate_at_rest(state, queue)
    if queue.stream:
        _validate_stream(queue)


def _validate_remembered(state: State, queue: Queue, there: dict[int, None]) -> None:
    spaces = [ids.space for ids in queue.remembered.values()]
    assert len(set(spaces)) == len(spaces)
    assert not (queue.gone and any(ids.messages for ids in queue.remembered.values()))
    for exchange, ids in queue.remembered.items():
        assert (exchange == OWN) == (ids.space == SPACE)
        assert SPACE <= ids.space <= SPACE + MOST_EXCHANGES
        assert list(ids.messages) == sorted(ids.messages)
        assert len(ids.messages) <= MOST_REMEMBERED or exchange == OWN
        assert all(ids.messages[message_id][0] == key for key, message_id in ids.by_key.items())
        for message_id, (key, expiry) in ids.messages.items():
            assert len(key) == KEY_SIZE
            assert ids.by_key.get(key, -1) >= message_id or expiry <= state.clock_ms
        assert not ids.dirty or queue.dirty
        numbers = dict.fromkeys(ids.numbers())
        assert all(number in ids.dirty or number in numbers for number in ids.stored)
        if exchange == OWN:
            assert queue.deduplicates or not ids.messages
            assert state.remembers_messages
            assert all(message_id in there for message_id in ids.messages), "it remembers a message that is gone"


def _validate_levels(queue: Queue, levels: Prioritized) -> None:
    assert queue.arrived is levels
    assert all(0 <= level <= levels.highest for level in levels.levels)
    for level, orders in levels.levels.items():
        assert [(order.returned, order.space) for order in orders] == [(True, level), (False, level)]
        assert (levels.used >> level & 1 > 0) == (orders[0].count + orders[1].count > 0)
        words = [word for order in orders for _, word, _ in order.items()]
        assert all(word >> LEVEL_SHIFT & levels.mask == level for word in words)
    assert levels.used >> levels.highest + 1 == 0
    assert levels.count == sum(order.count for order in levels.orders())
    assert levels.expiring == sum(order.expiring for order in levels.orders())


def _validate_order(order: Order) -> None:
    assert order.chunks
    assert order.head is order.chunks[0]
    assert order.tail is order.chunks[-1]
    first = first_number(order.returned, order.space)
    numbers = [chunk.number for chunk in order.chunks]
    if isinstance(order, Timed):
        assert len(set(numbers)) == len(numbers)
        assert max(numbers) < order.next_number
    else:
        step = -1 if order.returned else 1
        assert numbers == sorted(set(numbers), reverse=step < 0)  # gaps are where a whole chunk was removed
    assert all((number < 0) == (first < 0) and space_of(number) == order.space for number in numbers)
    assert order.count == sum(1 for _ in order.items())
    assert order.expiring == sum(1 for _, _, expiry in order.items() if expiry != NONE)
    assert order.start < max(1, len(order.head.ids))
    for chunk in order.chunks:
        assert len(chunk.ids) == len(chunk.words) <= 2 * CHUNK
        assert chunk.expiries is None or len(chunk.expiries) == len(chunk.ids)
        assert not chunk.dirty or chunk in order.changed
        assert len(chunk.ids) > 0 or order.count == 0


def _validate_consumers(queue: Queue) -> None:
    attached = [holder for holder in queue.holders.values() if holder.attached]
    assert list(queue.consuming.values()) == attached
    ahead = [holder for holder in attached if not holder.windowed and len(holder.held) > holder.prefetch]
    assert ahead in ([], [queue.ahead]), "more than one consumer has a lookahead"
    alone = len(attached) <= 1 or queue.stream
    assert alone or not any(holder.exclusive for holder in attached), "an exclusive consumer is not alone"
    assert not queue.exclusive or all(holder.session in (queue.owner, 0) for holder in queue.holders.values())
    _validate_single_active(queue, attached)
    assert queue.levels is queue.all_levels or not queue.serves
    assert queue.serves or not queue.levels
    priorities = [level.priority for level in queue.all_levels]
    assert priorities == sorted(set(priorities), reverse=True)
    for level in queue.all_levels:
        assert level.members == sum(1 for holder in attached if holder.level is level) > 0
    for holder in queue.holders.values():
        assert holder.attached or holder.held, "a holder of nothing"
        assert holder.attached == (holder.level is not None)
        assert holder.serviced == (holder.level is not None and holder in holder.level.service.values())
        if holder.attached and not queue.stream:
            assert holder.serviced or holder.blocked or holder.waiting or not holder.has_room()
            assert not queue.quorum or holder.has_room() or not (holder.serviced or holder.blocked)
        assert holder.lookahead == 0 or (may_have_lookahead(queue, holder) and not holder.windowed)


def _validate_single_active(queue: Queue, attached: list[Consumer]) -> None:
    waiting = [holder for holder in queue.holders.values() if holder.waiting]
    assert not any(holder.serviced or holder.blocked for holder in waiting)
    assert {holder.consumer for holder in waiting} <= {entry[3] for entry in queue.waiting}
    assert len(queue.waiting) <= 2 * len(queue.consuming) + 16 or not queue.consuming
    if queue.single_active:
        assert (queue.active is None) == (not attached)
        assert [h for h in waiting if h is not queue.active] == [h for h in attached if h is not queue.active]
        assert queue.active is None or queue.active in attached
        if queue.active is not None and queue.quorum and queue.profile.gives_way:
            assert queue.active.held or not queue.active.waiting
            assert queue.active.waiting or all(h.priority <= queue.active.priority for h in waiting)
        else:
            assert queue.active not in waiting
    else:
        assert queue.active is None
        assert waiting == []


def _validate_at_rest(state: State, queue: Queue) -> None:
    """Check the invariants that hold after every event."""
    policies = (queue.policy, queue.operator_policy)
    assert queue.settings == resolve(queue.type, queue.arguments, *policies, queue.profile, queue.version)
    if queue.gone:
        assert not queue.holders
        assert queue.messages_ready == 0
        return
    expiry = queue.next_deadline_ms()
    assert expiry == NONE or expiry > state.clock_ms, "a dead message at the head"
    if expiry != NONE:
        assert (queue.messages_armed_ms, queue.queue_id, DeadlineKind.MESSAGES) in state.deadlines
        assert queue.messages_armed_ms <= expiry
    ends_ms = lease_ends_ms(queue)
    if ends_ms != NEVER:
        assert ends_ms > state.clock_ms
        assert (queue.lease_armed_ms, queue.queue_id, DeadlineKind.LEASE) in state.deadlines
        assert queue.lease_armed_ms <= ends_ms
    for level in queue.levels:
        for consumer in level.service.values():
            limiter = consumer.limiter
            full = limiter is not None and limiter.outstanding >= limiter.limit
            able = consumer.has_room() and not full
            assert queue.messages_ready == 0 or not able, "a message waits although a consumer has room"
    if queue.settings.overflow == DROP_HEAD:
        assert queue.messages_ready <= queue.least_ready or not is_over(queue), "over its limit (S-007)"
    if not queue.quorum and queue.settings.overflow != DROP_HEAD:
        assert not queue.blocked
    if queue.blocked:
        assert queue.quorum
        assert queue.limited


def _validate_stream(queue: Queue) -> None:
    ids = list(queue.ready_ids())
    first = stream.first_number(queue)
    assert [stream.id_of(queue, first + position) for position in range(len(ids))] == ids
    assert not any(holder.held or holder.serviced for holder in queue.holders.values()), "something was taken"
    seconds = [seconds_of(word) for _, word, _ in queue.arrived.items()]
    assert seconds == sorted(seconds)
    assert queue.published == first + len(ids)
    assert queue.returned.count == 0


def _validate_epochs(state: State) -> None:
    assert len(state.lost_epochs) <= EPOCHS_REMEMBERED
    for session in state.sessions:
        assert session == 0 or session >> EPOCH_SHIFT not in state.lost_epochs, "a lost node's session is there"
    for queue in state.by_name.values():
        assert queue.epoch not in state.lost_epochs, "a lost node's transient queue is there"
        assert queue.epoch == NO_EPOCH or not (queue.durable or queue.exclusive)
    if state.admitted is not None:
        assert epoch_of(state.admitted) not in state.lost_epochs


def _validate_sessions(state: State) -> None:
    holders = {(q.queue_id, h.consumer): h for q in state.by_id.values() for h in q.holders.values()}
    indexed = {key: h for of_session in state.sessions.values() for key, h in of_session.items()}
    assert holders == indexed
    assert {key: h for of_channel in state.channels.values() for key, h in of_channel.items()} == indexed
    for session, of_session in state.sessions.items():
        assert of_session
        assert all(h.session == session for h in of_session.values())


def _validate_limiters(state: State) -> None:
    for (session, channel), limiter in state.limiters.items():
        assert (limiter.session, limiter.channel) == (session, channel)
        assert limiter.limit > 0
        members = [h for of in state.sessions.values() for h in of.values() if h.limiter is limiter]
        assert limiter.members == len(members) > 0
        assert all(h.channel == channel for h in members)
        assert limiter.outstanding == sum(len(h.held) for h in members)
        assert all(h.blocked and h in members for h in limiter.blocked.values())
        assert not limiter.blocked or limiter.outstanding >= limiter.limit
