"""The declaration of a queue: everything that its QueueDeclared event decided for ever."""

from dataclasses import dataclass
from typing import Final

from rewindmq.projections.machine.rules.policy_keys import QueueType
from rewindmq.schemas.values import Argument

NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class Declaration:
    """The properties of a queue that stay the same while it lives. Policies may change, so they are not among them.

    `queue_id`: the offset of the event. `owner`: the session of an exclusive queue, otherwise 0. `epoch`: for a
    transient queue that is not exclusive, the node whose loss deletes it. `version`: the machine version at the
    declaration, because later rules do not apply to the queue. `created_ms`: for a stream, the time from which the
    times of its messages count."""

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
