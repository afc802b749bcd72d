"""Pauses: a paused queue delivers nothing until it is resumed (B-39).

    queue.serves        False while the queue delivers nothing (Queue.update_serving)
    queue.all_levels    the round robins of the consumers, unchanged
    queue.levels        the same list, or an empty one while the queue delivers nothing, so that no consumer is found

So a pause costs publishes, deliveries and acks nothing. While a queue is paused

- consumers may attach and leave, and stay in their round robins; they keep their messages, and settle them;
- publishes are accepted and expire, limits apply, dead letters leave;
- basic.get finds no message (delivery.py);
- no consumer has a lookahead: the node returns unsent messages (lookahead.py).

A pause lasts until it is lifted, across restarts, or until the queue is deleted. The readers of a stream check
`queue.serves` (engine/rewind/stream_consumers.py).
"""

from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.events.delivery import end_lookaheads, run_after_taking
from rewindmq.projections.machine.state import State, is_locked, quarantine
from rewindmq.schemas.operator_events import QueuePaused, QueueResumed
from rewindmq.schemas.values import Actor


def on_paused(state: State, offset: int, actor: Actor, event: QueuePaused, effects: list[Effect]) -> None:
    """Pause a queue. A paused queue stays paused."""
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
    """Return the queue; None if the event makes no sense and was quarantined."""
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None:
        quarantine(state, event, f"no queue {event.queue!r} in vhost {event.vhost!r}", effects)
    elif is_locked(state, queue, actor, event, effects):
        return None
    return queue
