"""Consumers of streams, and the turns that all readers take (a reader of the past: history_consumers.py). Readers take
nothing out of a queue.

    basic.consume -> Readings.begin -> Reader, `credit` = its prefetch
    credit, or something new   -> ready(reader) -> step() in the loop's next turn -> deliveries with x-stream-offset
    an ack, nack or reject     -> credited(): more may follow. None of them is logged, and all three do the same, as in
                                  RabbitMQ (settle/5 of a stream)

Rules of this file
- Only durable messages are read: the number under which a client remembers a message never comes to mean another one.
- Work is bounded: a reader takes at most SHARE messages and SHARE_BYTES, and all readers together ROUND messages,
  before the loop goes on. A reader with more to do queues behind the others. A reader that waits costs one look at each
  commit.
- Memory is bounded: nothing is read for a client whose socket takes no more.
- When a queue moves to another partition the readers of its past go on there, under their tags.
- A reader of a stream that is paused waits until the event of its end is durable. Readers of the past go on.
- A stream's reader is attached in the machine like any consumer, so it is listed at every node and cancelled when the
  stream is deleted. A reader of the past is not among the queue's consumers: the history has only the event PastRead.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from rewindmq.engine.config import Config
from rewindmq.engine.errors import ConnectionForced, NotFound, PreconditionFailed, resource
from rewindmq.engine.host.memory import MemoryAccount
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.rewind.arguments import FIRST, LAST, NEXT, NUMBER, Start, check_reader, moment_of, start_of
from rewindmq.engine.rewind.history_consumers import THREADS, PastReader, moment_source
from rewindmq.engine.rewind.message_sources import LogSource
from rewindmq.engine.rewind.partition_visits import is_unclear
from rewindmq.engine.rewind.queue_at import history_of
from rewindmq.engine.rewind.reader import SHARE, SHARE_BYTES, Reader, ReaderQueue, ReadRequest
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import NEVER, Queue
from rewindmq.projections.machine.data.stream import first_number, id_of, number_from
from rewindmq.projections.rewind import At
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import ConsumerAttached, ConsumerCancelled, Event, PastRead

logger = logging.getLogger(__name__)

MOST_OF_USER = 100  # readers of the past that one user may have
ROOM_SECONDS = 0.2  # between two checks whether there is memory again
ROUND = 256  # messages that all readers together deliver in a turn of the loop

T = TypeVar("T")
Attached = Callable[[Partition, Queue, int], None]
Entered = Callable[[Session, str], Awaitable[Partition]]
Ask = Callable[[Session, Partition, Event, Callable[[], None] | None], Awaitable[list[Effect]]]


class StreamReader(Reader):
    """A consumer of a stream. `number`: of the message that it reads next."""

    def __init__(
        self, turns: ReaderQueue, partition: Partition, queue: Queue, request: ReadRequest, start: Start
    ) -> None:
        super().__init__(turns, partition, queue, request)
        first = first_number(queue)
        if start.kind == FIRST:
            self.number = first
        elif start.kind == NEXT:
            self.number = queue.published
        elif start.kind == LAST:
            self.number = max(first, queue.published - 1)
        elif start.kind == NUMBER:
            self.number = max(first, start.value)
        else:
            self.number = number_from(queue, start.value)

    def has_news(self) -> bool:
        """Return True if the next message is there and durable, and the queue delivers."""
        return self.queue.serves and self._next_id() < self.partition.durable_offset

    def _next_id(self) -> int:
        """The id of the message to be read next; NEVER: it is still to come."""
        queue = self.queue
        if self.number >= queue.published:
            return NEVER
        first = first_number(queue)
        if self.number < first:  # retention was faster
            self.number = first
            if first == queue.published:
                return NEVER
        return id_of(queue, self.number)

    def close(self) -> None:
        """Nothing is open."""

    def end(self) -> None:
        """Cancel the consumer, also in the history."""
        super().end()
        if not self.queue.gone and not self.partition.read_only:
            event = ConsumerCancelled(self.queue.vhost, self.queue.name, self.consumer_id)
            self.partition.append(self.session.actor, event)

    def step(self) -> bool:
        """Deliver messages from the store."""
        queue, partition = self.queue, self.partition
        if not queue.serves:
            return False
        room = SHARE_BYTES
        for _ in range(SHARE):
            if self.credit <= 0:
                return False
            message_id = self._next_id()
            if message_id >= partition.durable_offset:
                return False
            message = partition.message(queue.queue_id, message_id)
            if self.filter is None or self.filter.passes(message):
                self.deliver(message_id, message, self.number)
                partition.deliveries.note_read(queue)
            self.number += 1
            room -= message.body_size
            if room <= 0:
                break
        return True


class Readings:
    """All readers of a broker, and the queue for their turns. `ask`: logs an event for a session, and waits until it is
    folded. `check_open`: raises when the session has ended meanwhile. `topology`: kept up to date.
    `partitions`: the number of queue partitions."""

    def __init__(
        self,
        config: Config,
        clock: Callable[[], int],
        ask: Ask,
        check_open: Callable[[Session], None],
        topology: Topology,
        partitions: int,
        memory: MemoryAccount,
        past: WorkerPool,
    ) -> None:
        self.past = past
        self._config = config
        self._clock = clock
        self._ask = ask
        self._check_open = check_open
        self._topology = topology
        self._partitions = partitions
        self._threads: ThreadPoolExecutor | None = None
        self._loop = asyncio.get_running_loop()
        self.memory = memory
        self._queue: deque[Reader] = deque()  # for a turn
        self._waiting: dict[Reader, None] = {}  # for credit or news
        self._scheduled = False
        self.closed = False
        self._following: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Close all readers."""
        self.closed = True
        for reader in (*self._queue, *self._waiting):
            reader.close()
        self._queue.clear()
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self.past.close()

    async def begin(self, partition: Partition, queue: Queue, request: ReadRequest, attached: Attached) -> None:
        """Begin a consumer that reads. `attached` is called when it is there, before its first delivery. Raises
        AmqpError."""
        subscription, arguments = request.subscription, request.subscription.arguments
        check_reader(queue, arguments, subscription.no_ack, subscription.prefetch, subscription.global_prefetch)
        moment = moment_of(queue, arguments, self._topology, self._partitions)
        start = start_of(queue, arguments, self._clock())
        if queue.stream and moment is None:
            await self._read_stream(partition, queue, request, start, attached)
        else:
            await self._read_past(partition, queue, request, start, moment, attached)

    async def _read_stream(
        self, partition: Partition, queue: Queue, request: ReadRequest, start: Start, attached: Attached
    ) -> None:
        subscription = request.subscription
        reader: StreamReader | None = None

        def folded() -> None:
            nonlocal reader
            if partition.read_only or request.consumer_id in queue.holders:
                reader = StreamReader(self, partition, queue, request, start)
                attached(partition, queue, request.consumer_id)

        self.attach(partition, request)
        await self._ask(
            subscription.session,
            partition,
            ConsumerAttached(
                queue.vhost,
                queue.name,
                request.consumer_id,
                channel=subscription.channel,
                tag=subscription.tag,
                no_ack=False,
                exclusive=subscription.exclusive,
                prefetch=subscription.prefetch,
                credit=0,
                global_prefetch=0,
                priority=0,
                arguments=subscription.arguments,
            ),
            folded,
        )
        if reader is None:
            self.detach(partition, request)
            raise NotFound(f"no {resource('queue', queue.name, queue.vhost)}")
        self.ready(reader)

    async def _read_past(
        self,
        partition: Partition,
        queue: Queue,
        request: ReadRequest,
        start: Start,
        moment: At | None,
        attached: Attached,
    ) -> None:
        subscription = request.subscription
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="past")
        self._check_readers(subscription.session.user)
        placement = self._topology.placement.only(queue.vhost, queue.name)
        history = history_of(self._config, placement)
        if start.kind == NUMBER and start.value > partition.next_offset and placement.moves:
            where = resource("queue", queue.name, queue.vhost)
            told = f"{partition.machine.partition}, where the queue is now, ends at offset {partition.next_offset}"
            raise PreconditionFailed(f"invalid arg 'x-stream-offset' for {where}: it moved; {told}: give a timestamp")
        if is_unclear(placement, queue.vhost, queue.name, queue.queue_id):
            where = resource("queue", queue.name, queue.vhost)
            raise PreconditionFailed(f"the past of {where} can't be read: an earlier queue had its number elsewhere")
        source = None
        if moment is not None:
            source = await moment_source(self.past, history, queue, moment, subscription.session.user)
            self._check_open(subscription.session)
            if queue.gone:
                raise NotFound(f"no {resource('queue', queue.name, queue.vhost)}")
        reader: PastReader | None = None

        def folded() -> None:
            nonlocal reader
            assert self._threads is not None
            from_there = source or LogSource(history, partition, queue, start)
            reader = PastReader(self, partition, queue, request, from_there, self._threads)
            attached(partition, queue, request.consumer_id)

        self.attach(partition, request)
        await self._ask(
            subscription.session,
            partition,
            PastRead(
                queue.vhost,
                queue.name,
                request.consumer_id,
                subscription.channel,
                subscription.tag,
                subscription.arguments,
            ),
            folded,
        )
        assert reader is not None
        self.ready(reader)

    def moved(self, vhost: str, name: str, entered: Entered) -> None:
        """Let readers of a queue's past go on in the partition in which it is now. While it moves they stay."""
        placement = self._topology.placement
        if (vhost, name) in placement.moving:
            return
        home = placement.home(vhost, name, self._partitions)
        for reader in (*self._queue, *self._waiting):
            if (reader.queue.vhost, reader.queue.name) != (vhost, name) or reader.partition.index == home:
                continue
            if isinstance(reader, PastReader) and not reader.over:
                task = asyncio.ensure_future(self._go_after(reader, entered))
                self._following.add(task)
                task.add_done_callback(self._following.discard)

    async def _go_after(self, reader: PastReader, entered: Entered) -> None:
        vhost, name = reader.queue.vhost, reader.queue.name
        try:
            partition = await entered(reader.session, name)
        except ConnectionForced:  # the session has ended
            return
        queue = partition.machine.queue(vhost, name)
        if queue is None:
            reader.end()
        elif partition is not reader.partition:
            reader.follow(history_of(self._config, self._topology.placement.only(vhost, name)), partition, queue)

    def _check_readers(self, user: str) -> None:
        """Raise PreconditionFailed when the user has as many readers of the past as a user may have."""
        readers = (*self._queue, *self._waiting)
        count = sum(isinstance(each, PastReader) and each.session.user == user and not each.over for each in readers)
        if count >= MOST_OF_USER:
            raise PreconditionFailed(f"user '{user}' has {count} consumers that read the past, which is the limit")

    def attach(self, partition: Partition, request: ReadRequest) -> None:
        """Let the partition and the session know the consumer."""
        partition.deliveries.attach(request.consumer_id, request.consumer)
        request.subscription.session.note(request.subscription.channel, partition, request.consumer_id)

    def detach(self, partition: Partition, request: ReadRequest) -> None:
        """Undo `attach`."""
        partition.deliveries.detach(request.consumer_id)
        request.subscription.session.forget(partition, request.consumer_id)

    # -- turns --------------------------------------------------------------------------------------------------------

    def ready(self, reader: Reader) -> None:
        """Give the reader a turn: it may have something to do."""
        if reader.in_queue or self.closed:
            return
        self._waiting.pop(reader, None)
        reader.in_queue = True
        self._queue.append(reader)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._round)

    def later(self, reader: Reader) -> None:
        """Give the reader a turn in a while: there may be memory then."""
        self._loop.call_later(ROOM_SECONDS, self.ready, reader)

    def when_done(self, future: "Future[T]", callback: Callable[[T | None], None]) -> None:
        """Call back in the loop with a thread's result. None: the thread failed, which is logged."""

        def done(finished: "asyncio.Future[T]") -> None:
            if self.closed or finished.cancelled():
                return
            error = finished.exception()
            if error is not None:
                logger.error("the past can't be read", exc_info=error)
            callback(None if error is not None else finished.result())

        asyncio.wrap_future(future, loop=self._loop).add_done_callback(done)

    @property
    def awaits_log(self) -> bool:
        """Return True if a reader waits for more, or for its client."""
        return bool(self._waiting)

    def landed(self) -> None:
        """More is durable, or a consumer has left: readers that waited for it go on, or end."""
        if self._waiting:
            for reader in [each for each in self._waiting if each.has_something()]:
                self.ready(reader)

    def _round(self) -> None:
        self._scheduled = False
        for _ in range(min(len(self._queue), ROUND // SHARE)):
            reader = self._queue.popleft()
            reader.in_queue = False
            if reader.over:
                reader.close()
                continue
            if reader.queue.gone:
                reader.end()
            elif reader.consumer.congested:
                reader.rest()
                self._waiting[reader] = None
            elif self._step(reader):
                self.ready(reader)
            elif not reader.over:
                self._waiting[reader] = None
        if self._queue and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._round)

    def _step(self, reader: Reader) -> bool:
        try:
            return reader.step()
        except Exception:  # a defect, or a store that can't be read, must not cost the others their deliveries
            logger.exception("%s: reading on is not possible", resource("queue", reader.queue.name, reader.queue.vhost))
            reader.end()
            return False
