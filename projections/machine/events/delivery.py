"""Deliveries: the choice of the consumer that gets the next ready message.

    service, one round robin a priority:   [ first ... last ]          highest priority first (S-096)
      the first gets a message    -> to the end; of a quorum queue only if it still has room
      the first has no room       -> out of it (a classic queue finds this out only now)
      room again (ack, credit)    -> to the end, if it is out                             (S-092, S-093)
      its channel's limit reached -> out of it, into the limiter's `blocked`, in that order
      the channel has room again  -> the first of `blocked` is served, and waits at its end when the limit is reached
                                     again, so that no queue of the channel starves

So a full consumer of a classic queue that has room again before its turn keeps its turn; a consumer of a quorum queue
goes to the end. The first follows rabbit_queue_consumers.erl, the second rabbit_fifo's service queue;
random histories were compared with 3.10.8, delivery by delivery. After every event each queue has either no ready
message or no consumer that could take one, or `queue.levels` is empty because the queue delivers nothing.

A channel's limit (basic.qos global) binds all its consumers, including those attached before it was set and those with
no_ack, whose deliveries are not counted. Only quorum queues have no such limit (rabbit_limiter.erl can_send;
rabbit_channel.erl basic.qos activates it only at classic queues). A consumer's own prefetch applies in addition.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from rewindmq.projections.machine.data.effects import Deliver, Effect, FetchReply, Keep
from rewindmq.projections.machine.data.message_order import NONE, Stretch
from rewindmq.projections.machine.data.message_word import COUNT_SHIFT, REDELIVERED, SIZE_MASK
from rewindmq.projections.machine.data.queue import Consumer, Level, Limiter, Queue
from rewindmq.projections.machine.rules.expiry import expire_heads, renew_lease
from rewindmq.projections.machine.rules.limits import enforce
from rewindmq.projections.machine.rules.single_active import give_way, join, leave
from rewindmq.projections.machine.state import IN_EXCLUSIVE_USE, STREAM, State, is_locked, quarantine
from rewindmq.schemas.events import ConsumerAttached, Credited, Fetched, GlobalPrefetchSet
from rewindmq.schemas.values import Actor


def next_consumer(queue: Queue) -> Consumer | None:
    """Take the next consumer out of the round robin; None when no consumer has room."""
    for level in queue.levels:
        service = level.service
        while service:
            consumer = service.popitem(last=False)[1]
            consumer.serviced = False
            if consumer.credit <= 0 if consumer.windowed else len(consumer.held) >= consumer.limit:
                continue  # as in `has_room`: a call for each message would be costly
            limiter = consumer.limiter
            if limiter is None or limiter.outstanding < limiter.limit:
                return consumer
            consumer.blocked = True
            limiter.blocked[consumer.key] = consumer
    return None


def room_of(consumer: Consumer) -> int:
    """Return how many messages a consumer may get at once; 0 or less: none. Others may have their turn before that."""
    room = consumer.credit if consumer.windowed else consumer.limit - len(consumer.held)
    limiter = consumer.limiter
    return room if limiter is None else min(room, limiter.limit - limiter.outstanding)


def in_turns(level: Level, count: int, alone: bool) -> int:
    """Return how many of `count` arriving messages the consumers of a level take in turns, as each has room.

    They get their shares one after the other, so each must be on its own channel, whose deliveries keep their order.
    `alone`: the messages go to no other queue. Otherwise its consumers may be under the same shared limit."""
    service = level.service
    channels: set[tuple[int, int]] = set()
    for place, consumer in enumerate(service.values()):
        if place >= count:
            break
        channel = (consumer.session, consumer.channel)
        if channel in channels or (consumer.limiter is not None and not alone):
            return place
        channels.add(channel)
        count = min(count, place + len(service) * room_of(consumer))
    return count


def deal(queue: Queue, ids: Sequence[int], words: Sequence[int], expiry: int, effects: list[Effect]) -> bool:
    """Deliver several arriving messages to consumers in turns, for which `in_turns` found room. False: nobody is next.

    Afterwards it is the turn of the consumer behind the one that got the last message."""
    for level in queue.levels:
        if len(level.service) == 1:
            consumer = level.service.popitem(last=False)[1]
            consumer.serviced = False
            hand_over(queue, consumer, ids, words, expiry, effects, arriving=True)
            serve_next(consumer)
            return True
        takers: list[Consumer] = []
        while level.service and len(takers) < len(ids):
            takers.append(level.service.popitem(last=False)[1])
        for place, consumer in enumerate(takers):
            consumer.serviced = False
            share = slice(place, None, len(takers))
            hand_over(queue, consumer, ids[share], words[share], expiry, effects, arriving=True)
        for place in range(len(takers)):
            serve_next(takers[(len(ids) + place) % len(takers)])
        if takers:
            return True
    return False


def hand_over(
    queue: Queue,
    consumer: Consumer,
    ids: Sequence[int],
    words: Sequence[int],
    expiry: int,
    effects: list[Effect],
    arriving: bool = False,
) -> None:
    """Deliver messages (out of the ready order, or just `arriving`) to a consumer that has room for them.

    Their words differ in the size alone, and all have the same expiry."""
    word = words[0]
    redelivered = word & REDELIVERED != 0
    count = acquired = 0
    if word >> COUNT_SHIFT:
        count, acquired = queue.counts(word)
    final = consumer.no_ack
    if final:
        queue.delivered += len(ids)
    else:
        if arriving:
            effects.append(Keep(queue, ids))
        hold(queue, consumer, ids, words, expiry)
    if consumer.windowed:
        consumer.credit -= len(ids)
    passed = final and arriving
    effects.append(Deliver(queue, ids, consumer.consumer, redelivered, count, final, acquired, passed))


def hold(queue: Queue, holder: Consumer, ids: Sequence[int], words: Sequence[int], expiry: int) -> None:
    """Give messages to a holder, unacked. Their words differ in the size alone."""
    if len(ids) == 1:
        holder.held[ids[0]] = words[0]
        queue.message_bytes_unacked += words[0] & SIZE_MASK
    else:
        holder.held.update(zip(ids, words, strict=True))
        queue.message_bytes_unacked += sum(words) - len(words) * (words[0] & ~SIZE_MASK)
    queue.messages_unacked += len(ids)
    if expiry != NONE:
        queue.held_expiries.update(dict.fromkeys(ids, expiry))
    if holder.limiter is not None:
        holder.limiter.outstanding += len(ids)


def serve_next(consumer: Consumer) -> None:
    """Put a consumer that got messages back into its round robin; of a quorum queue only if it still has room."""
    if not consumer.queue.quorum or consumer.has_room():
        serve(consumer)


def serve(consumer: Consumer) -> None:
    """Put a consumer that has room at the end of its round robin."""
    level = consumer.level
    assert level is not None
    level.service[consumer.consumer] = consumer
    consumer.serviced = True


def serve_again(consumer: Consumer) -> None:
    """Put the consumer back into its round robin if it has room again."""
    if (
        consumer.attached
        and not consumer.serviced
        and not consumer.blocked
        and consumer.has_room()
        and not consumer.waiting
    ):
        serve(consumer)


def deliver(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Remove expired messages, then hand out ready ones while a consumer can take them."""
    expiring = queue.arrived.expiring > 0 or queue.returned.expiring > 0
    if expiring:
        expire_heads(state, queue, effects)
    while queue.messages_ready > 0:
        consumer = next_consumer(queue)
        if consumer is None:
            break
        alone = consumer.level is not None and not consumer.level.service
        count = min(queue.messages_ready, room_of(consumer)) if alone and not expiring else 1
        if count == 1:
            message_id, word, expiry = queue.take()
            if message_id < queue.crash_offset:
                word |= REDELIVERED
            hand_over(queue, consumer, (message_id,), (word,), expiry, effects)
        else:
            for part in _alike(queue, queue.take_first(count)):
                hand_over(queue, consumer, part.ids, part.words, NONE, effects)
        serve_next(consumer)
        if expiring:
            expire_heads(state, queue, effects)


def _alike(queue: Queue, taken: Stretch) -> Iterator[Stretch]:
    """Yield messages that follow each other and have the same flags and counts. After a crash the old ones are marked.

    None of them has an expiry."""
    if queue.crash_offset > 0 and min(taken.ids) < queue.crash_offset:
        marked = [
            word | REDELIVERED if message_id < queue.crash_offset else word
            for message_id, word in zip(taken.ids, taken.words, strict=True)
        ]
        taken = Stretch(taken.ids, array("q", marked), None)
    uppers = taken.uppers()
    if uppers.count(uppers[0]) == len(uppers):
        yield taken
        return
    first = 0
    for at in range(1, len(uppers) + 1):
        if at == len(uppers) or uppers[at] != uppers[first]:
            yield taken.part(first, at)
            first = at


def run(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Bring the queue to rest after messages returned or settings changed, in the order of its type.

    A classic queue drops from the head before it delivers (rabbit_amqqueue_process.erl requeue_and_run), a quorum queue
    after it delivered (rabbit_fifo.erl checkout)."""
    if queue.quorum:
        deliver(state, queue, effects)
        enforce(state, queue, effects)
    else:
        enforce(state, queue, effects)
        deliver(state, queue, effects)


def run_after_taking(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Deliver to a consumer that has room; a queue that got shorter may accept publishes again."""
    if queue.messages_ready > 0:
        deliver(state, queue, effects)
        if queue.blocked:
            enforce(state, queue, effects)


def unblock(state: State, limiter: Limiter, effects: list[Effect]) -> None:
    """Serve consumers that wait for a shared limit, in any queue, because deliveries under it were settled."""
    while limiter.blocked and limiter.outstanding < limiter.limit:
        consumer = limiter.blocked.popitem(last=False)[1]
        consumer.blocked = False
        serve_again(consumer)
        state.touch(consumer.queue)
        run_after_taking(state, consumer.queue, effects)  # at the limit the consumer is at the end of `blocked`


def resume_all(state: State, limiter: Limiter, effects: list[Effect]) -> None:
    """Let all consumers that wait for the limiter ask again, at once."""
    waiting = list(limiter.blocked.values())
    limiter.blocked.clear()
    queues: dict[Queue, None] = {}
    for consumer in waiting:
        consumer.blocked = False
        serve_again(consumer)
        queues[consumer.queue] = None
    for queue in queues:
        state.touch(queue)
        run_after_taking(state, queue, effects)


# -- events ------------------------------------------------------------------------------------------------------------


def on_attached(state: State, offset: int, actor: Actor, event: ConsumerAttached, effects: list[Effect]) -> None:
    """Attach a consumer (basic.consume), and deliver as many messages as it may take.

    Quarantined: without the queue, with an id that is taken, with negative numbers, and if another consumer or another
    session has exclusive use of the queue."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None:
        quarantine(state, event, f"no queue {event.queue!r} in vhost {event.vhost!r}", effects)
        return
    if event.consumer in queue.holders:
        quarantine(state, event, f"consumer {event.consumer} is attached to queue {event.queue!r} already", effects)
        return
    if event.prefetch < 0 or event.credit < 0 or event.global_prefetch < 0:
        quarantine(state, event, f"negative prefetch or credit of consumer {event.consumer}", effects)
        return
    if is_locked(state, queue, actor, event, effects):
        return
    alone = event.exclusive or queue.exclusive_consumer() is not None
    if alone and (queue.consuming or queue.single_active) and not queue.stream:
        quarantine(state, event, f"queue {event.queue!r} in vhost {event.vhost!r} {IN_EXCLUSIVE_USE}", effects)
        return
    state.touch(queue)
    consumer = Consumer(queue, event.consumer, actor.session, event.channel, actor.user)
    consumer.tag = event.tag
    consumer.no_ack = event.no_ack
    consumer.exclusive = event.exclusive
    consumer.prefetch = event.prefetch
    consumer.priority = event.priority
    consumer.arguments = event.arguments
    consumer.credit = event.credit
    consumer.windowed = event.no_ack or event.prefetch == 0
    if not consumer.windowed:
        consumer.limit = event.prefetch
    if event.global_prefetch > 0:
        limiter = limiter_of(state, actor.session, event.channel)
        limiter.limit = event.global_prefetch
        join_limiter(limiter, consumer)
        unblock(state, limiter, effects)
    queue.holders[event.consumer] = consumer
    state.index_holder(consumer)
    attach(queue, consumer)
    if queue.consumer_count() == 2:
        end_lookaheads(queue)
    if queue.single_active:
        join(queue, consumer)
        change_over(queue)
    if not queue.stream:
        serve_again(consumer)
        run_after_taking(state, queue, effects)


def limiter_of(state: State, session: int, channel: int) -> Limiter:
    """Return the channel's limiter; a new one lasts as long as it has members."""
    key = (session, channel)
    limiter = state.limiters.get(key)
    if limiter is None:
        limiter = Limiter(session, channel, 0)
        state.limiters[key] = limiter
    return limiter


def join_limiter(limiter: Limiter, consumer: Consumer) -> None:
    """Put a consumer under the limit; the messages that it holds already count."""
    limiter.members += 1
    limiter.outstanding += len(consumer.held)
    consumer.limiter = limiter
    if consumer.lookahead:
        set_lookahead(consumer, 0)


def on_global_prefetch(
    state: State, offset: int, actor: Actor, event: GlobalPrefetchSet, effects: list[Effect]
) -> None:
    """Set a channel's limit. Without attached consumers it changes nothing: a later consumer brings the limit along."""
    if event.prefetch < 0:
        quarantine(state, event, f"a negative prefetch of channel {event.channel}", effects)
        return
    holders = list(state.holders_of(event.session, event.channel).values())
    if event.prefetch == 0:
        _lift_limit(state, holders, effects)
        return
    # Holders of basic.get, which have no tag, are under no limit.
    joining = [h for h in holders if h.limiter is None and h.tag and not (h.queue.quorum or h.queue.stream)]
    if not joining and (event.session, event.channel) not in state.limiters:
        return
    limiter = limiter_of(state, event.session, event.channel)
    limiter.limit = event.prefetch
    for holder in joining:
        state.touch(holder.queue)
        join_limiter(limiter, holder)
    unblock(state, limiter, effects)


def _lift_limit(state: State, holders: list[Consumer], effects: list[Effect]) -> None:
    limiter: Limiter | None = None
    for holder in holders:
        if holder.limiter is not None:
            limiter = holder.limiter
            holder.limiter = None
            state.touch(holder.queue)
    if limiter is not None:
        del state.limiters[(limiter.session, limiter.channel)]
        resume_all(state, limiter, effects)


def attach(queue: Queue, consumer: Consumer) -> None:
    """Put a consumer into the level of its priority; levels are sorted from the highest on."""
    consumer.attached = True
    queue.consuming[consumer.consumer] = consumer
    queue.arrivals += 1
    consumer.arrival = queue.arrivals
    levels = queue.all_levels
    position = bisect_left(levels, -consumer.priority, key=_rank)
    if position == len(levels) or levels[position].priority != consumer.priority:
        levels.insert(position, Level(consumer.priority))
    consumer.level = levels[position]
    levels[position].members += 1


def _rank(level: Level) -> int:
    return -level.priority


def stand_back(consumer: Consumer) -> None:
    """Take the consumer out of the round robin and out of the limiter's line."""
    if consumer.serviced:
        assert consumer.level is not None
        del consumer.level.service[consumer.consumer]
        consumer.serviced = False
    if consumer.blocked:
        assert consumer.limiter is not None
        del consumer.limiter.blocked[consumer.key]
        consumer.blocked = False


def set_lookahead(consumer: Consumer, lookahead: int) -> None:
    """Let an attached consumer hold `lookahead` messages beyond its prefetch (lookahead.py)."""
    consumer.lookahead = lookahead
    if lookahead:
        consumer.queue.ahead = consumer
    consumer.limit = consumer.prefetch + lookahead
    if consumer.queue.quorum and not consumer.has_room():
        stand_back(consumer)


def end_lookaheads(queue: Queue) -> None:
    """Let no consumer hold more than its prefetch from now on."""
    if queue.ahead is not None and queue.ahead.lookahead:
        set_lookahead(queue.ahead, 0)


def change_over(queue: Queue) -> None:
    """Let the single active consumer give way, if it must."""
    active = queue.active
    successor = give_way(queue)
    if active is not None and active.waiting:
        stand_back(active)
    if successor is not None:
        serve_again(successor)


def leave_level(queue: Queue, consumer: Consumer) -> None:
    """Detach a consumer: it gets no more messages."""
    level = consumer.level
    assert level is not None
    stand_back(consumer)
    level.members -= 1
    if level.members == 0:
        del queue.all_levels[bisect_left(queue.all_levels, -level.priority, key=_rank)]
    consumer.level = None
    consumer.attached = False
    consumer.lookahead = 0
    del queue.consuming[consumer.consumer]
    if queue.single_active:
        successor = leave(queue, consumer)
        if successor is not None:
            serve_again(successor)


def on_credited(state: State, offset: int, actor: Actor, event: Credited, effects: list[Effect]) -> None:
    """Let a consumer without prefetch take `credit` more deliveries."""
    queue = state.by_name.get((event.vhost, event.queue))
    consumer = queue.holders.get(event.consumer) if queue is not None else None
    takes = consumer is not None and consumer.attached and consumer.windowed and not consumer.queue.stream
    if queue is None or consumer is None or not takes or event.credit < 0:
        quarantine(state, event, f"credit {event.credit} for consumer {event.consumer}, which takes none", effects)
        return
    state.touch(queue)
    consumer.credit += event.credit
    serve_again(consumer)
    run_after_taking(state, queue, effects)


def on_fetched(state: State, offset: int, actor: Actor, event: Fetched, effects: list[Effect]) -> None:
    """Answer a basic.get with the next message or with none, and renew the queue's lease.

    A queue that delivers nothing answers with none.
    Quarantined: without the queue, from a stream, from a quorum queue with a single active consumer, and where the
    holder's id is that of a consumer."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None:
        quarantine(state, event, f"no queue {event.queue!r} in vhost {event.vhost!r}", effects)
        return
    if is_locked(state, queue, actor, event, effects):
        return
    if queue.stream:
        quarantine(state, event, f"nothing is taken out of {STREAM} {event.queue!r}", effects)
        return
    if queue.quorum and queue.single_active:  # S-110
        quarantine(state, event, f"basic.get of queue {event.queue!r}, which has a single active consumer", effects)
        return
    holder = queue.holders.get(event.consumer)
    if holder is not None and (holder.attached or holder.session != actor.session):
        quarantine(state, event, f"{event.consumer} is a consumer, not a holder of basic.get", effects)
        return
    state.touch(queue)
    renew_lease(state, queue)
    if queue.arrived.expiring or queue.returned.expiring:
        expire_heads(state, queue, effects)
    if queue.messages_ready == 0 or not queue.serves:
        effects.append(FetchReply(queue, -1, event.consumer, False, 0, event.no_ack, 0))
        return
    message_id, word, expiry = queue.take()
    if message_id < queue.crash_offset:
        word |= REDELIVERED
    if event.no_ack:
        queue.delivered += 1
    else:
        if holder is None:
            holder = Consumer(queue, event.consumer, actor.session, event.channel, actor.user)
            queue.holders[event.consumer] = holder
            state.index_holder(holder)
        hold(queue, holder, (message_id,), (word,), expiry)
    count, acquired = queue.counts(word)
    reply = FetchReply(
        queue, message_id, event.consumer, word & REDELIVERED != 0, count, event.no_ack, queue.messages_ready, acquired
    )
    effects.append(reply)
    if queue.arrived.expiring or queue.returned.expiring:
        expire_heads(state, queue, effects)
        reply.messages_ready = queue.messages_ready
    if queue.blocked:
        enforce(state, queue, effects)
