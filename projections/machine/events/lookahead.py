"""The lookahead of a consumer: messages that it holds beyond its prefetch, and that no client has seen yet.

    held by the consumer    [ sent to the client, at most the prefetch ][ the lookahead ]       in the order of delivery

On a log that is read back an ack makes room only once it is read. With a lookahead the node already has the next
messages, and sends one at once for each message that the client settles (engine/amqp/lookahead.py). The fold does not
know which ones are sent.

    Credited, credit >= 0    the consumer may hold `credit` beyond its prefetch. 0: no lookahead
    Credited, credit < 0     the lookahead ends. Message -1 - credit and those delivered after it were not sent:
                             they are ready again, unchanged

Rules of this file
- A consumer has a lookahead while it is alone at its queue, whichever nodes the others are at (`may_have_lookahead`).
  When another one is attached, or the queue is paused, the lookahead is 0, and the node returns its messages.
- Messages that were not sent are not redelivered: no flag, no count, no delivery limit, no delayed retry.
- They return to their former place. In a quorum queue this is before all arrived messages and behind all returned
  ones, so messages that the client had seen, and that return at the end of its session, stay before them.
"""

from rewindmq.projections.machine.data.effects import Effect, Requeue
from rewindmq.projections.machine.data.queue import Consumer, Queue
from rewindmq.projections.machine.data.reasons import UNSENT
from rewindmq.projections.machine.events import delivery
from rewindmq.projections.machine.events.delivery import run, run_after_taking, serve_again, set_lookahead
from rewindmq.projections.machine.events.settlement import settled, unhold
from rewindmq.projections.machine.state import State, quarantine
from rewindmq.schemas.events import Credited
from rewindmq.schemas.values import Actor


def on_credited(state: State, offset: int, actor: Actor, event: Credited, effects: list[Effect]) -> None:
    """Give credit to a consumer without prefetch, or change the lookahead of one with a prefetch.

    Quarantined: credit for a consumer that takes none, and the return of a message that is in no lookahead."""
    queue = state.by_name.get((event.vhost, event.queue))
    holder = queue.holders.get(event.consumer) if queue is not None else None
    if queue is None or holder is None or holder.windowed or queue.stream:
        delivery.on_credited(state, offset, actor, event, effects)
    elif event.credit < 0:
        _give_back_unsent(state, queue, holder, event, effects)
    elif not holder.attached:
        quarantine(state, event, f"a lookahead for consumer {event.consumer}, which was cancelled", effects)
    else:
        state.touch(queue)
        set_lookahead(holder, event.credit if may_have_lookahead(queue, holder) else 0)
        serve_again(holder)
        run_after_taking(state, queue, effects)


def may_have_lookahead(queue: Queue, consumer: Consumer) -> bool:
    """Return True if no other consumer and no later message has to wait for messages in the consumer's lookahead."""
    return (
        len(queue.consuming) == 1
        and consumer.attached
        and consumer.limiter is None
        and queue.prioritized is None
        and queue.serves
        and not (queue.single_active or queue.stream)
    )


def _give_back_unsent(state: State, queue: Queue, holder: Consumer, event: Credited, effects: list[Effect]) -> None:
    first = -1 - event.credit
    if first not in holder.held or queue.prioritized is not None:
        quarantine(state, event, f"consumer {event.consumer} has no message {first} in lookahead", effects)
        return
    state.touch(queue)
    ids = list(holder.held)
    del ids[: ids.index(first)]
    messages = unhold(queue, holder, ids)
    if queue.quorum:
        for message_id, word, expiry in reversed(list(messages.rows())):
            queue.arrived.put_first(message_id, word, expiry)
    else:
        queue.returned.insert_all(messages.by_id())
    queue.messages_ready += len(ids)
    queue.message_bytes_ready += messages.message_bytes
    effects.append(Requeue(queue, ids, holder.consumer, UNSENT))
    if holder.attached:
        set_lookahead(holder, 0)
    settled(state, queue, holder, effects)
    run(state, queue, effects)
