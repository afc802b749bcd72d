"""The holders of a queue's messages: consumers, the holders that basic.get leaves behind, and shared limits.

A holder is known by its consumer id and lives as long as it is attached or holds a message. `held` are its
unacknowledged messages in the order in which they were delivered: {message id: word} (message_word.py).
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

from rewindmq.schemas.values import Argument

if TYPE_CHECKING:
    from rewindmq.projections.machine.data.queue import Queue


class Limiter:
    """The limit that the consumers of a channel share (basic.qos global), beside each consumer's own limit.

    It holds within one partition of the log."""

    def __init__(self, session: int, channel: int, limit: int) -> None:
        self.session = session
        self.channel = channel
        self.limit = limit
        self.outstanding = 0
        self.members = 0  # holders that refer to it
        # Those that were turned away because the limit was reached, in that order.
        self.blocked: OrderedDict[tuple[int, int], Consumer] = OrderedDict()  # by `Consumer.key`


class Level:
    """The round robin of the consumers of one priority: the first is served next."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.members = 0  # attached consumers of this priority, with room or without
        self.service: OrderedDict[int, Consumer] = OrderedDict()  # by consumer id: any of thousands may leave


class Consumer:
    """A consumer of a queue, or a holder that basic.get left behind.

    `attached`: gets deliveries (not cancelled, not a mere holder of basic.get). `serviced`: stands in its queue's round
    robin; `blocked`: waits for its limiter instead; `waiting`: gets nothing, as another consumer is the single active
    one, or will be (machine/rules/single_active.py). A `windowed` consumer is limited by `credit`, any other by
    `limit`: its prefetch and its `lookahead` (machine/events/lookahead.py)."""

    def __init__(self, queue: "Queue", consumer: int, session: int, channel: int, user: str) -> None:
        self.queue = queue
        self.consumer = consumer
        self.session = session
        self.channel = channel
        self.user = user
        self.attached = False
        self.arrival = 0  # its number among the consumers that its queue had
        self.tag = ""
        self.no_ack = False
        self.exclusive = False
        self.prefetch = 0
        self.priority = 0
        self.arguments: tuple[Argument, ...] = ()
        self.credit = 0
        self.windowed = True
        self.limit = 0
        self.lookahead = 0
        self.limiter: Limiter | None = None
        self.level: Level | None = None
        self.serviced = False
        self.blocked = False
        self.waiting = False
        self.held: dict[int, int] = {}

    @property
    def key(self) -> tuple[int, int]:
        """The holder's key among those of all queues."""
        return self.queue.queue_id, self.consumer

    def has_room(self) -> bool:
        """Return True if the consumer's own limits let it take one more delivery."""
        if self.windowed:
            return self.credit > 0
        return len(self.held) < self.limit
