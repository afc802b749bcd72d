"""One consumer that reads, and what it needs around it. Who reads what: stream_consumers.py (streams),
history_consumers.py."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rewindmq.engine.rewind.arguments import Filter, filter_of
from rewindmq.engine.runtime.memory import MemoryAccount
from rewindmq.engine.runtime.partition import Consumer, Partition
from rewindmq.engine.runtime.subscription import Subscription
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.amqp.properties import around
from rewindmq.schemas.events import Published

T = TypeVar("T")

SHARE, SHARE_BYTES = 64, 1_048_576
OFFSET = b"x-stream-offset"


class ReadingConsumer(Consumer, Protocol):
    """What a reader needs of its consumer (rewindmq.engine.amqp.consumer implements it)."""

    reader: "Reader | None"  # told of what is settled: `credited`

    @property
    def congested(self) -> bool:
        """The client's socket takes no more for now."""

    def when_relieved(self, callback: Callable[[], None]) -> None:
        """Call back once it is not congested any more."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A subscription to a stream or to the history, with its consumer and the id that the consumer was given."""

    subscription: Subscription
    consumer_id: int
    consumer: ReadingConsumer


class Line(Protocol):
    """Where readers stand (rewindmq.engine.rewind.stream_consumers.Readings)."""

    memory: MemoryAccount

    def ready(self, reader: "Reader") -> None:
        """It may have something to do."""

    def later(self, reader: "Reader") -> None:
        """There is no memory for what it would read: it is asked again in a while."""

    def when_done(self, future: "Future[T]", callback: Callable[[T | None], None]) -> None:
        """Call back in the loop with what a thread has done; None when it failed, which is then logged."""


class Reader(ABC):
    """One consumer that reads. `step` is called when it has credit, and may be called again at any time."""

    def __init__(self, line: "Line", partition: Partition, queue: Queue, request: ReadRequest) -> None:
        self.line = line
        self.partition = partition
        self.queue = queue
        self.session = request.subscription.session
        self.consumer_id = request.consumer_id
        self.consumer = request.consumer
        self.credit = request.subscription.prefetch
        self.filter: Filter | None = filter_of(request.subscription.arguments)
        self.in_line = False
        self.resting = False  # until its client's socket takes more
        self._properties: bytes | None = None
        self._around = (b"", b"")
        request.consumer.reader = self

    @property
    def over(self) -> bool:
        """Its consumer is gone: cancelled, or with its channel."""
        return self.partition.consumers.get(self.consumer_id) is not self.consumer

    def credited(self, count: int) -> None:
        """So many deliveries were settled."""
        self.credit += count
        self.line.ready(self)

    @abstractmethod
    def step(self) -> bool:
        """Deliver a share. True: there is more to do at once. False: nothing more until there is credit, or news."""

    @abstractmethod
    def has_news(self) -> bool:
        """Something came that it may read. Asked while it waits."""

    def has_something(self) -> bool:
        """While it waits: to read, or to end."""
        return self.over or self.queue.gone or (self.credit > 0 and not self.resting and self.has_news())

    def rest(self) -> None:
        """Nothing is read for a client that takes no more."""
        if not self.resting:
            self.resting = True
            self.consumer.when_relieved(self._rested)

    def _rested(self) -> None:
        self.resting = False
        self.line.ready(self)

    def deliver(self, message_id: int, message: Published, offset: int) -> None:
        self.credit -= 1
        if message.properties != self._properties:  # often they are those of the message before
            self._properties = message.properties
            self._around = around(message.properties, OFFSET, b"l", 8)
        before, behind = self._around
        numbered = Published(
            message.route,
            before + offset.to_bytes(8, "big") + behind,
            message.expiration_ms,
            message.priority,
            message.persistent,
            message.origin,
            message.encryption,
            message.body,
            message.body_size,
        )
        self.consumer.deliver(self.partition, self.queue, message_id, numbered, False, 0, False)

    @abstractmethod
    def close(self) -> None:
        """It reads no more."""

    def end(self) -> None:
        """There is nothing more to read: basic.cancel."""
        self.close()
        self.partition.detach(self.consumer_id)
        self.session.forget(self.partition, self.consumer_id)
        self.consumer.cancelled()
