"""Single active consumer (argument x-single-active-consumer, S-109, S-110): one consumer of the queue gets messages,
the others wait.

    attached, nobody is active      -> active
    attached, somebody is           -> waits, and is in no round robin
    the active one leaves           -> who comes next is active at once, and gets what is ready; what the former one
                                       holds stays with it until it is settled or its channel closes

Who comes next has waited longest; of a classic queue, longest of those with the highest priority (measured on 3.10.8,
rabbit_queue_consumers.erl `get_consumer/1`; the documents say that it ignores priorities). Who is active stays so.

A quorum queue of profile rabbitmq-4.3 goes by priority, then by the larger prefetch, then by who came first (measured
on 4.3.6, rabbit_fifo.erl `sort_waiting/1`). There the active one gives way to a higher priority:

    it holds nothing      -> it waits, the other is active
    it holds messages     -> it gets no more (`active` and `waiting`); when it holds nothing, the best of all is active

RabbitMQ's classic queue does not look at its messages when the active consumer is cancelled: they lie there until
another consumer comes, and the next publish ends its process (3.10.8). Here they are delivered.
"""

from rewindmq.projections.machine.data.consumer import Consumer
from rewindmq.projections.machine.data.queue import Queue

ARGUMENT = "x-single-active-consumer"
UNLIMITED = 2_000  # what no prefetch counts as (rabbit_quorum_queue.erl)


def is_single_active(queue: Queue) -> bool:
    """The queue was declared so."""
    return not queue.stream and queue.asks_for(ARGUMENT) is True


def enter(queue: Queue, consumer: Consumer) -> None:
    """A consumer was attached."""
    if queue.active is None:
        queue.active = consumer
    else:
        consumer.waiting = True


def leave(queue: Queue, consumer: Consumer) -> Consumer | None:
    """A consumer is attached no longer; the one that is active now instead of it, if it was."""
    consumer.waiting = False
    return _activate(queue, _best(queue)) if consumer is queue.active else None


def give_way(queue: Queue) -> Consumer | None:
    """A consumer came, or the active one settled something: who is active now instead of it, if anybody is. Who was so
    far may still stand in the round robin."""
    active = queue.active
    if active is None or not queue.quorum or not queue.profile.gives_way:
        return None
    if active.waiting:
        return None if active.held else _activate(queue, _best(queue))
    best = _best(queue)
    if best is None or best.priority <= active.priority:
        return None
    active.waiting = True
    return None if active.held else _activate(queue, best)


def _activate(queue: Queue, consumer: Consumer | None) -> Consumer | None:
    queue.active = consumer
    if consumer is not None:
        consumer.waiting = False
    return consumer


def _best(queue: Queue) -> Consumer | None:
    """Of those that wait; the first of equals."""
    waiting = [holder for holder in queue.holders.values() if holder.waiting]
    if not waiting:
        return None
    if not queue.quorum:
        return max(waiting, key=lambda consumer: consumer.priority)
    if queue.profile.gives_way:
        return max(waiting, key=lambda consumer: (consumer.priority, consumer.prefetch or UNLIMITED))
    return waiting[0]
