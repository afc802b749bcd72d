"""Names of the broker's internal queues.

They are for delayed messages (engine/routing/delayed_exchanges.py) and direct replies (engine/broker/direct_reply.py).
No listing shows them, no limit counts them, no policy applies to them.
"""

from rewindmq.projections.machine.data.delayed_order import PREFIX as DELAYED

REPLY_TO = "amq.rabbitmq.reply-to"  # the pseudo queue; a requester's queue is named REPLY_TO.<token>


def is_delay_queue(queue: str) -> bool:
    """Return True if the queue is that of a delayed exchange."""
    return queue.startswith(DELAYED)


def is_reply_queue(queue: str) -> bool:
    """Return True if the queue is the pseudo queue for direct replies, or a requester's queue."""
    return queue.startswith(REPLY_TO + ".") or queue == REPLY_TO


def is_hidden(queue: str) -> bool:
    """Return True if the queue is internal to the broker."""
    return is_delay_queue(queue) or is_reply_queue(queue)
