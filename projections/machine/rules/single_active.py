"""Single active consumer (argument x-single-active-consumer, S-109, S-110): one consumer gets the queue's messages.

The other consumers wait.

    attached, none is active        -> active
    attached, another is active     -> waits, and is in no round robin
    the active one leaves           -> the next consumer is active at once, and gets the ready messages; the former
                                       one's unacked messages stay with it until it settles them or its channel closes

The next consumer is the one that has waited longest; in a classic queue, among those with the highest priority
(measured on 3.10.8, rabbit_queue_consumers.erl `get_consumer/1`; the documents say that it ignores priorities). The
active consumer stays active.

A quorum queue of profile rabbitmq-4.3 takes the consumer with the highest priority, then the larger prefetch, then the
first to attach (measured on 4.3.6, rabbit_fifo.erl `sort_waiting/1`). There the active consumer gives way to a
higher priority:

    it holds nothing      -> it waits, the other is active
    it holds messages     -> it gets no more (`active` and `waiting`); once it holds none, the best of all is active

RabbitMQ's classic queue ignores its messages when the active consumer is cancelled: they stay there until another
consumer is attached, and the next publish ends its process (3.10.8). Here they are delivered.
"""

from heapq import heapify, heappop, heappush
from typing import Final

from rewindmq.projections.machine.data.queue import Consumer, Queue

UNLIMITED: Final = 2_000  # a consumer without prefetch counts as one with this prefetch (rabbit_quorum_queue.erl)


def join(queue: Queue, consumer: Consumer) -> None:
    """Make an attached consumer active, or let it wait."""
    if queue.active is None:
        queue.active = consumer
    else:
        wait(queue, consumer)


def wait(queue: Queue, consumer: Consumer) -> None:
    """Let a consumer wait until it is the best waiting consumer."""
    consumer.waiting = True
    priority = 0 if queue.quorum and not queue.profile.gives_way else consumer.priority
    prefetch = (consumer.prefetch or UNLIMITED) if queue.quorum and queue.profile.gives_way else 0
    heappush(queue.waiting, (-priority, -prefetch, consumer.arrival, consumer.consumer))
    if len(queue.waiting) > 2 * len(queue.consuming) + 16:
        queue.waiting = [entry for entry in dict.fromkeys(queue.waiting) if _waiting(queue, entry) is not None]
        heapify(queue.waiting)


def leave(queue: Queue, consumer: Consumer) -> Consumer | None:
    """Remove a consumer that is no longer attached.

    Returns the consumer that becomes active instead; None if the active one stays or there is none."""
    consumer.waiting = False
    return _activate(queue, _best(queue)) if consumer is queue.active else None


def give_way(queue: Queue) -> Consumer | None:
    """Let the active consumer give way after a consumer was attached or the active one settled a message.

    Returns the consumer that replaces it, or None. The former active one may still be in the round robin."""
    active = queue.active
    if active is None or not queue.quorum or not queue.profile.gives_way:
        return None
    if active.waiting:
        return None if active.held else _activate(queue, _best(queue))
    best = _best(queue)
    if best is None or best.priority <= active.priority:
        return None
    wait(queue, active)
    return None if active.held else _activate(queue, best)


def _activate(queue: Queue, consumer: Consumer | None) -> Consumer | None:
    queue.active = consumer
    if consumer is not None:
        consumer.waiting = False
    return consumer


def _best(queue: Queue) -> Consumer | None:
    """Return the next waiting consumer; the first of equals."""
    heap = queue.waiting
    while heap:
        best = _waiting(queue, heap[0])
        if best is not None:
            return best
        heappop(heap)
    return None


def _waiting(queue: Queue, entry: tuple[int, int, int, int]) -> Consumer | None:
    """Return the consumer of an entry of the heap; None if it no longer waits."""
    consumer = queue.consuming.get(entry[3])
    return consumer if consumer is not None and consumer.waiting and consumer.arrival == entry[2] else None
