"""The declaration of a queue: all that its QueueDeclared event decided for ever."""

from dataclasses import dataclass
from typing import Final

from rewindmq.projections.machine.rules.settings import QueueType
from rewindmq.schemas.values import Argument

NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class Declaration:
    """What stays as it is while the queue lives. Policies may change, and are not part of it.

    `queue_id`: the offset of the event. `owner`: the session of an exclusive queue, else 0. `epoch`: of a transient
    queue that is not exclusive: the node whose loss deletes it. `version`: the machine version at the declaration, as
    later rules do not hold for the queue. `created_ms`: of a stream: the times of its messages count from here."""

    vhost: str
    name: str
    queue_id: int
    type: QueueType
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    owner: int = 0
    epoch: int = NO_EPOCH
    version: int = 1
    arguments: tuple[Argument, ...] = ()
    semantics: str = ""
    created_ms: int = 0
