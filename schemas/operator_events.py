"""Events of an operator's actions on a queue: on single messages, and on its deliveries.

They are in queue partitions. Rules as in `events.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageRemoved:
    """An operator removed messages from a queue. Ready or delayed ones leave; all others stay.

    `messages`: ranges of ids, ascending, each of consecutive ids. `moved`: they are published to `exchange` with
    `routing_key`, like dead letters; otherwise they are deleted. `reason`: in the operator's words, or empty."""

    vhost: str
    queue: str
    messages: tuple[tuple[int, int], ...]
    reason: str
    moved: bool
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class QueuePaused:
    """From here on the queue only accepts publishes and lets time pass. `reason`: as in MessageRemoved."""

    vhost: str
    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueResumed:
    """The queue delivers again."""

    vhost: str
    queue: str


OperatorEvent = MessageRemoved | QueuePaused | QueueResumed
