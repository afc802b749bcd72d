"""Consumers of a queue's past: all messages that were ever published to it, or the queue as it was at a moment.

    x-stream-offset    LogSource      the log of the queue's partition, from there to its end and on. A message's
                                      x-stream-offset is its id: the offset at which it was published
    x-rewind-to        MomentSource   the messages that were in the queue then: the ready ones in delivery order, then
                                      the unacked. When all are delivered the broker cancels the consumer

Threads read the log (message_sources.py). Worker processes fold the queue as it was (worker.py).

Both sources read about the present incarnation of the queue, and about those that it was before it moved to another
partition. An earlier queue of the same name is not read.

A queue may move while it is read (`PastReader.follow`). Its log is read to where it left its partition, and then from
its new declaration on; numbers are those of the new partition from there on. A moment stays where it is.
"""

from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rewindmq.engine.errors import NotFound, PreconditionFailed, resource
from rewindmq.engine.host.memory import MemoryKind
from rewindmq.engine.keeping.location import Location
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.rewind.message_sources import PIECE_BYTES, Found, LogSource, MessageSource, MomentSource
from rewindmq.engine.rewind.queue_at import NoSuchQueue, messages_at
from rewindmq.engine.rewind.reader import SHARE, SHARE_BYTES, Reader, ReaderQueue, ReadRequest
from rewindmq.engine.rewind.worker import ProcessEnded, TooManyQuestions, WorkerPool
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rewind import At, RewindError
from rewindmq.schemas.events import Published

THREADS = 2  # for all consumers of the past together


class PastReader(Reader):
    """A consumer of a queue's past."""

    def __init__(
        self,
        turns: ReaderQueue,
        partition: Partition,
        queue: Queue,
        request: ReadRequest,
        source: MessageSource,
        threads: ThreadPoolExecutor,
    ) -> None:
        super().__init__(turns, partition, queue, request)
        self.source = source
        self._threads = threads
        self._fetched: deque[tuple[int, Published]] = deque()
        self._fetching = False
        self._held_bytes = 0  # of bodies that are fetched and not delivered
        self._moved: tuple[Location, Partition, Queue] | None = None  # the queue moved, and the source has to follow

    def follow(self, history: Location, partition: Partition, queue: Queue) -> None:
        """The queue has moved to this partition: go on there. `history` knows about it."""
        if self.over:
            return
        consumer = self.partition.deliveries.consumers[self.consumer_id]
        self.partition.deliveries.detach(self.consumer_id)
        self.session.forget(self.partition, self.consumer_id)
        self.partition, self.queue = partition, queue
        partition.deliveries.attach(self.consumer_id, consumer)
        self.session.note(self.channel, partition, self.consumer_id)
        self.consumer.moved(partition, queue)
        self._moved = history, partition, queue
        self.turns.ready(self)

    def has_news(self) -> bool:
        """Return True if a step would do something."""
        return not self._fetching and (bool(self._fetched) or self.source.has_more() or self.source.is_through())

    def step(self) -> bool:
        """Deliver what is fetched, then fetch more."""
        fetched = self._fetched
        room = SHARE_BYTES
        for _ in range(SHARE):
            if not fetched or self.credit <= 0 or room <= 0:
                break
            message_id, message = fetched.popleft()
            room -= message.body_size
            self._hold(-len(message.body))
            if self.filter is None or self.filter.passes(message):
                self.deliver(message_id, message, message_id)
        if fetched:
            return self.credit > 0
        if self._fetching:
            return False
        if self._moved is not None and self.source.follow(*self._moved):
            self._moved = None
        if self.source.is_through():
            self.end()
        elif self.credit > 0 and self.source.has_more():
            if self.turns.memory.room(PIECE_BYTES):
                self._fetch()
            else:
                self.turns.later(self)
        return False

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self.turns.memory.take(MemoryKind.PAST, size)

    def _fetch(self) -> None:
        self._fetching = True
        if isinstance(self.source, LogSource):
            self.source.about_to_fetch()
            end = self.source.partition.durable_offset
        else:
            end = self.partition.durable_offset
        fetch = self._threads.submit(self.source.fetch, end)
        self.turns.when_done(fetch, self._have)

    def _have(self, found: Found | None) -> None:
        """A piece has come; None: it could not be read, which is logged already."""
        self._fetching = False
        if self.over:
            self.close()
            return
        if found is None:
            self.end()
            return
        self._fetched.extend(found)
        self._hold(sum(len(message.body) for _, message in found))
        self.turns.ready(self)

    def close(self) -> None:
        """Drop what is fetched, and close the source."""
        self.source.closed = True
        self._hold(-self._held_bytes)
        self._fetched.clear()
        if not self._fetching:  # else when that is done
            self._threads.submit(self.source.shut)


@dataclass(frozen=True, slots=True)
class MessagesAtMoment:
    """A question to a worker: which messages were in the queue at a moment? The answer is the partition, and their ids
    and sizes, or an error."""

    history: Location
    vhost: str
    queue: str
    at: At
    incarnation: int

    def answer(self) -> "tuple[str, array[int], array[int]] | Exception":
        """Fold the queue, in the worker."""
        try:
            return messages_at(self.history, self.vhost, self.queue, self.at, self.incarnation)
        except (NoSuchQueue, RewindError, LogError) as error:
            return NoSuchQueue(str(error)) if isinstance(error, NoSuchQueue) else RewindError(str(error))


async def moment_source(past: WorkerPool, history: Location, queue: Queue, at: At, user: str) -> MomentSource:
    """The source for a moment. NotFound: the queue did not exist then. PreconditionFailed: the moment can't be read."""
    found: tuple[str, array[int], array[int]] | Exception
    try:
        found = await past.ask(MessagesAtMoment(history, queue.vhost, queue.name, at, queue.queue_id), user)
    except (ProcessEnded, TooManyQuestions, RuntimeError) as error:
        found = error
    if isinstance(found, NoSuchQueue):
        raise NotFound(str(found))
    if isinstance(found, Exception):
        where = resource("queue", queue.name, queue.vhost)
        raise PreconditionFailed(f"invalid arg 'x-rewind-to' for {where}: {found}")
    return MomentSource(history, *found)
