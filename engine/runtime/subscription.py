"""The settings of a basic.consume, the same for a consumer of a queue and for a reader of its history."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rewindmq.engine.runtime.partition import DeliveryTarget, Partition
from rewindmq.engine.runtime.sessions import Session
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.values import Argument

Attached = Callable[[Partition, Queue, int], None]
Name = tuple[str, str]  # vhost and queue
Place = tuple[int, int, str]  # of a consumer: session id, channel and tag


class MovableConsumer(Protocol):
    """A consumer that can go on in another partition, as its channel has it (engine/amqp/basic_consume.py)."""

    @property
    def target(self) -> DeliveryTarget:
        """It gets the deliveries."""

    def attached(self, partition: Partition, queue: Queue, consumer_id: int) -> None:
        """It is attached, and gets its first delivery next."""

    def leave(self) -> None:
        """Ask its partition for nothing more."""

    def give_back(self) -> None:
        """Give back the messages that were not sent to the client."""

    def cancelled(self) -> None:
        """Tell the client that the broker has cancelled it."""

    def successor(self) -> "Subscription | None":
        """The subscription by which the client's consumer goes on; None: the client does not want it any more."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The settings of one basic.consume.

    `prefetch` is the consumer's, `global_prefetch` its whole channel's. 0: unlimited. `movable`: how the consumer goes
    on when its queue moves to another partition; None: it is cancelled then."""

    session: Session
    channel: int
    tag: str
    no_ack: bool = False
    exclusive: bool = False
    prefetch: int = 0
    global_prefetch: int = 0
    arguments: tuple[Argument, ...] = ()
    movable: MovableConsumer | None = None


@dataclass(eq=False, slots=True)
class Attachment:
    """A live consumer of a client of this node, in the partition in which it is attached.

    `stands_by`: another one is its queue's single active consumer, or was when the queue began to move."""

    partition: Partition
    queue: Queue
    subscription: Subscription
    consumer_id: int
    detached: bool = False
    stands_by: bool = False

    @property
    def name(self) -> Name:
        """Vhost and name of its queue."""
        return self.queue.vhost, self.queue.name

    @property
    def place(self) -> Place:
        """Where the client has it."""
        of = self.subscription
        return of.session.session_id, of.channel, of.tag
