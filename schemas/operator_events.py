"""Events by which an operator takes hold of a queue: of single messages, and of its deliveries.

They stand in queue partitions. Rules as in `events.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageRemoved:
    """An operator took messages out of a queue. Those that are ready or delayed leave; all others stay.

    `messages`: ranges of ids, ascending, each of consecutive ids. `moved`: they are published to `exchange` with
    `routing_key`, by the way of dead letters; else they are deleted. `reason`: in the operator's words, or empty."""

    vhost: str
    queue: str
    messages: tuple[tuple[int, int], ...]
    reason: str
    moved: bool
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class QueuePaused:
    """From here on the queue delivers nothing. Publishes are taken, and time passes. `reason`: as in MessageRemoved."""

    vhost: str
    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueResumed:
    """The queue delivers again."""

    vhost: str
    queue: str


OperatorEvent = MessageRemoved | QueuePaused | QueueResumed
