"""Base class of consumers that read and take nothing out of a queue: of streams (stream_consumers.py), and of the past
(history_consumers.py)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rewindmq.engine.host.memory import MemoryAccount
from rewindmq.engine.partition.partition import DeliveryTarget, Partition
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.engine.rewind.arguments import Filter, filter_of
from rewindmq.projections.machine.data.effects import Deliver
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.amqp.properties import around
from rewindmq.schemas.events import Published

T = TypeVar("T")

SHARE, SHARE_BYTES = 64, 1_048_576  # messages that a reader delivers in one step, and bytes of their bodies
OFFSET = b"x-stream-offset"


class ReadingConsumer(DeliveryTarget, Protocol):
    """The consumer of a reader (rewindmq.engine.amqp.consumer implements it)."""

    def moved(self, partition: Partition, queue: Queue) -> None:
        """Its queue is in this partition now, where the consumer has the same id."""

    def reads_by(self, reader: "Reader") -> None:
        """The consumer's deliveries come from this reader. `credited` tells the reader which are settled."""

    @property
    def congested(self) -> bool:
        """Return True if the client's socket takes no more for now."""

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once the socket takes more."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A subscription to a stream or to the past, with its consumer and the id that the consumer was given."""

    subscription: Subscription
    consumer_id: int
    consumer: ReadingConsumer


class ReaderQueue(Protocol):
    """The queue in which readers take turns (rewindmq.engine.rewind.stream_consumers.Readings)."""

    memory: MemoryAccount

    def ready(self, reader: "Reader") -> None:
        """The reader may have something to do."""

    def later(self, reader: "Reader") -> None:
        """There is no memory for what the reader would read: call `ready` in a while."""

    def when_done(self, future: "Future[T]", callback: Callable[[T | None], None]) -> None:
        """Call back in the loop with a thread's result. None: the thread failed, which is logged."""


class Reader(ABC):
    """A consumer that reads. `step` is called when it has credit, and may be called again at any time."""

    def __init__(self, turns: ReaderQueue, partition: Partition, queue: Queue, request: ReadRequest) -> None:
        self.turns = turns
        self.partition = partition
        self.queue = queue
        self.session = request.subscription.session
        self.channel = request.subscription.channel
        self.consumer_id = request.consumer_id
        self.consumer = request.consumer
        self.credit = request.subscription.prefetch
        self.filter: Filter | None = filter_of(request.subscription.arguments)
        self.in_queue = False  # for its turn
        self.resting = False  # until its client's socket takes more
        self._properties: bytes | None = None
        self._around = (b"", b"")
        request.consumer.reads_by(self)

    @property
    def over(self) -> bool:
        """Return True if the reader's consumer is gone: cancelled, or closed with its channel."""
        return self.consumer_id not in self.partition.deliveries.consumers  # where it may be wrapped: firehose.py

    def credited(self, count: int) -> None:
        """So many deliveries were settled: go on."""
        self.credit += count
        self.turns.ready(self)

    @abstractmethod
    def step(self) -> bool:
        """Deliver a share. True: there is more to do at once. False: there is nothing more until credit or news
        come."""

    @abstractmethod
    def has_news(self) -> bool:
        """Return True if something arrived that the reader may read. Called while it waits."""

    def has_something(self) -> bool:
        """Return True if the reader has to read or to end. Called while it waits."""
        return self.over or self.queue.gone or (self.credit > 0 and not self.resting and self.has_news())

    def rest(self) -> None:
        """Read nothing until the client's socket takes more."""
        if not self.resting:
            self.resting = True
            self.consumer.when_relieved(self._rested)

    def _rested(self) -> None:
        self.resting = False
        self.turns.ready(self)

    def deliver(self, message_id: int, message: Published, offset: int) -> None:
        """Deliver a message with the header x-stream-offset."""
        self.credit -= 1
        if message.properties != self._properties:  # often they are those of the message before
            self._properties = message.properties
            self._around = around(message.properties, OFFSET, b"l", 8)
        before, behind = self._around
        numbered = Published(
            message.route,
            before + offset.to_bytes(8, "big") + behind,
            expiration_ms=message.expiration_ms,
            priority=message.priority,
            persistent=message.persistent,
            origin=message.origin,
            encryption=message.encryption,
            body=message.body,
            body_size=message.body_size,
        )
        effect = Deliver(self.queue, (message_id,), self.consumer_id, False, 0, False)
        self.consumer.deliver(self.partition, effect, message_id, numbered)

    @abstractmethod
    def close(self) -> None:
        """Stop: it reads no more."""

    def end(self) -> None:
        """Cancel the consumer: there is nothing more to read."""
        self.close()
        self.partition.deliveries.detach(self.consumer_id)
        self.session.forget(self.partition, self.consumer_id)
        self.consumer.cancelled()
