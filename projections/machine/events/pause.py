"""Pauses: a queue that is paused delivers nothing, until it is resumed (B-39).

    queue.serves        False while the queue delivers nothing (Queue.update_serving)
    queue.all_levels    the round robins of the consumers, as ever
    queue.levels        the same list; while the queue delivers nothing an empty one, so that no consumer is found

So a pause costs nothing where messages are published, delivered and acked. While a queue is paused

- consumers stay, come and go, and stand in their round robins; they keep what they hold, and settle it;
- publishes are taken and expire, limits hold, dead letters leave;
- basic.get is told that there is none (delivery.py);
- no consumer has a lookahead: the node gives back what it has not sent (lookahead.py).

A pause lasts until it is lifted, through restarts; it goes with the queue. The readers of a stream ask `queue.serves`
(engine/rewind/stream_consumers.py).
"""

from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.events.delivery import end_lookaheads, run_after_taking
from rewindmq.projections.machine.state import State, is_locked, quarantine
from rewindmq.schemas.operator_events import QueuePaused, QueueResumed
from rewindmq.schemas.values import Actor


def on_paused(state: State, offset: int, actor: Actor, event: QueuePaused, effects: list[Effect]) -> None:
    """Pause a queue. One that is paused stays so."""
    queue = _named(state, actor, event, effects)
    if queue is not None and not queue.paused:
        state.touch(queue)
        end_lookaheads(queue)
        queue.paused = True
        queue.update_serving()


def on_resumed(state: State, offset: int, actor: Actor, event: QueueResumed, effects: list[Effect]) -> None:
    """Let a queue deliver again, at once."""
    queue = _named(state, actor, event, effects)
    if queue is not None and queue.paused:
        state.touch(queue)
        queue.paused = False
        queue.update_serving()
        if not queue.stream:
            run_after_taking(state, queue, effects)


def _named(state: State, actor: Actor, event: QueuePaused | QueueResumed, effects: list[Effect]) -> Queue | None:
    """Return the queue; None if the event makes no sense, and is quarantined."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None:
        quarantine(state, event, f"no queue {event.queue!r} in vhost {event.vhost!r}", effects)
    elif is_locked(state, queue, actor, event, effects):
        return None
    return queue
