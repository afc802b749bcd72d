"""The settings of a basic.consume, the same for a consumer of a queue and for a reader of its history."""

from dataclasses import dataclass

from rewindmq.engine.runtime.sessions import Session
from rewindmq.schemas.values import Argument


@dataclass(frozen=True, slots=True)
class Subscription:
    """The settings of one basic.consume.

    `prefetch` is the consumer's, `global_prefetch` its whole channel's. 0: unlimited."""

    session: Session
    channel: int
    tag: str
    no_ack: bool = False
    exclusive: bool = False
    prefetch: int = 0
    global_prefetch: int = 0
    arguments: tuple[Argument, ...] = ()
