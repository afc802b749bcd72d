"""Readers of the past: all that was ever published to a queue, or the queue as it was at a moment.

    x-stream-offset    LogSource      the log of the queue's partition, from there to its end and on; the message's id,
                                      the offset at which it was published, is its x-stream-offset
    x-rewind-to        MomentSource   the messages that were in the queue then: the ready ones in delivery order, then
                                      the unacked; when all are delivered the broker cancels the consumer

The log is read in threads, a bounded piece at a time, through a reader of its own: nothing of the live broker is
touched. What was in the queue is folded by the process that reads the past (worker.py).

Both tell of the queue that stands there now: another one that had its name before it is none of its readers' business.
"""

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rewindmq.engine.errors import NotFound, PreconditionFailed, resource
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.location import History, HistoryPartition
from rewindmq.engine.rewind.arguments import FIRST, LAST, NEXT, NUMBER, Start
from rewindmq.engine.rewind.queue_at import NoSuchQueue, messages_at, published_at
from rewindmq.engine.rewind.reader import SHARE, SHARE_BYTES, Line, Reader, ReadRequest
from rewindmq.engine.rewind.worker import PastProcess, ProcessEnded, TooManyQuestions
from rewindmq.engine.runtime.memory import Kind
from rewindmq.engine.runtime.partition import Partition
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.replay import decoder_for
from rewindmq.projections.rewind import At, RewindError
from rewindmq.schemas.events import Published

THREADS = 2  # of all readers of the past together
PIECE, PIECE_BYTES = 256, 1_048_576  # messages at a time, and their bodies
SCANNED_BYTES = 8_388_608  # of the log at a time, whatever is found in it
LOOK_BACK = 4_096  # records: how far behind the end the last message is looked for first

Found = list[tuple[int, Published]]
Scan = Generator[tuple[int, Published | None], None, None]


class Source(ABC):
    """Where a reader of the past has its messages from. `fetch` runs in a thread, one at a time."""

    def __init__(self, history: History, index: int) -> None:
        self.history = history
        self.index = index
        self.closed = False
        self._opened: HistoryPartition | None = None

    @property
    def log(self) -> HistoryPartition:
        if self._opened is None:
            self._opened = self.history.open().queues[self.index]
        return self._opened

    @abstractmethod
    def fetch(self, end: int) -> Found:
        """The next piece, of what lies below offset `end`."""

    @abstractmethod
    def has_more(self) -> bool:
        """There may be something to fetch."""

    @abstractmethod
    def is_through(self) -> bool:
        """There will never be anything more."""

    @abstractmethod
    def shut(self) -> None:
        """Let go of what is open. In a thread, as Kafka's client takes its time."""


class LogSource(Source):
    """`position`: everything of the queue below it has been fetched; None: where to begin has to be found first."""

    def __init__(self, history: History, partition: Partition, queue: Queue, start: Start) -> None:
        super().__init__(history, partition.index)
        self.partition = partition
        self.queue = queue
        self.start = start
        self._attached_at = partition.next_offset
        self.position: int | None = self._attached_at if start.kind == NEXT else None
        self._seen = -1 if start.kind != NEXT else self._published()
        self._behind = False  # something was folded, and not durable yet, when the log was read last
        self._scan: Scan | None = None
        self._scan_end = 0

    def _published(self) -> int:
        """Moves with each event that publishes to the queue."""
        return self.queue.published + self.queue.refused + self.queue.duplicates

    def has_more(self) -> bool:
        if self.position is None or self._scan is not None:
            return True
        news = self._behind or self._seen != self._published()
        return news and self.partition.durable_offset > self.position

    def is_through(self) -> bool:
        return False

    def shut(self) -> None:
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def about_to_fetch(self) -> None:
        """In the loop, before `fetch`."""
        if self._scan is None:
            self._seen = self._published()
            self._behind = self.partition.machine.next_offset > self.partition.durable_offset

    def fetch(self, end: int) -> Found:
        if self.position is None:
            self.position = self._first_offset(end)
        if self._scan is None:
            self._scan = self._publishes(self.position, end)
            self._scan_end = end
        found: Found = []
        room = PIECE_BYTES
        for offset, message in self._scan:
            if message is None:
                return found
            found.append((offset, message))
            room -= message.body_size
            if len(found) >= PIECE or room <= 0:
                return found
        self._scan = None
        self.position = max(self.position, self._scan_end)
        return found

    def _first_offset(self, end: int) -> int:
        start, log = self.start, self.log
        if start.kind == FIRST:
            return self._beginning
        if start.kind == NUMBER:
            return max(start.value, self._beginning)
        if start.kind == LAST:
            return self._last(end)
        found = min(log.offset_at(start.value - 1), self._attached_at)  # a time to come: what is published from now on
        return max(found, self._beginning)

    @property
    def _beginning(self) -> int:
        """Of what may be read: the queue's declaration, or the log's first record."""
        return max(self.queue.queue_id, self.log.start_offset)

    def _last(self, end: int) -> int:
        """The offset of the last message; `end` when there is none. Looked for from the end, in windows that grow."""
        start, window, behind = self._beginning, LOOK_BACK, end
        while behind > start:
            first = max(start, behind - window)
            found = [offset for offset, message in self._publishes(first, behind) if message is not None]
            if found:
                return found[-1]
            behind, window = first, window * 2
        return end

    def _publishes(self, first: int, end: int) -> Scan:
        """What was published to the queue; None each time that much of the log has been looked through."""
        vhost, name = self.queue.vhost, self.queue.name
        mark = name.encode()
        decode = decoder_for(self.log).decode
        scanned = 0
        if first >= end:
            return
        for block in self.log.read_ranges([(first, end)]):
            for index, record in enumerate(block.records):
                scanned += len(record)
                offset = block.first_offset + index
                if mark not in record or not first <= offset < end:
                    continue
                event = decode(record)[2]
                if type(event) is Published and event.route.vhost == vhost and name in event.route.queues:
                    yield offset, event
            if self.closed:
                return
            if scanned >= SCANNED_BYTES:
                scanned = 0
                yield block.first_offset, None


class MomentSource(Source):
    """`ids` and `sizes` of the messages, in the order in which they are delivered."""

    def __init__(self, history: History, partition: Partition, ids: "array[int]", sizes: "array[int]") -> None:
        super().__init__(history, partition.index)
        self.ids = ids
        self.sizes = sizes
        self.at = 0

    def has_more(self) -> bool:
        return self.at < len(self.ids)

    def is_through(self) -> bool:
        return self.at >= len(self.ids)

    def shut(self) -> None:
        """Nothing is."""

    def fetch(self, end: int) -> Found:
        behind, room = self.at, PIECE_BYTES
        while behind < len(self.ids) and behind - self.at < PIECE and room > 0:
            room -= self.sizes[behind]
            behind += 1
        wanted = self.ids[self.at : behind]
        published = dict(published_at(self.log, wanted))
        self.at = behind
        return [(message_id, published[message_id][1]) for message_id in wanted]


class PastReader(Reader):
    def __init__(
        self,
        line: Line,
        partition: Partition,
        queue: Queue,
        request: ReadRequest,
        source: Source,
        threads: ThreadPoolExecutor,
    ) -> None:
        super().__init__(line, partition, queue, request)
        self.source = source
        self._threads = threads
        self._fetched: deque[tuple[int, Published]] = deque()
        self._fetching = False
        self._held_bytes = 0  # of what is fetched and not delivered

    def has_news(self) -> bool:
        return not self._fetching and (bool(self._fetched) or self.source.has_more() or self.source.is_through())

    def step(self) -> bool:
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
        if self.source.is_through():
            self.end()
        elif self.credit > 0 and self.source.has_more():
            if self.line.memory.room(PIECE_BYTES):
                self._fetch()
            else:
                self.line.later(self)
        return False

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self.line.memory.take(Kind.PAST, size)

    def _fetch(self) -> None:
        self._fetching = True
        if isinstance(self.source, LogSource):
            self.source.about_to_fetch()
        fetch = self._threads.submit(self.source.fetch, self.partition.durable_offset)
        self.line.when_done(fetch, self._have)

    def _have(self, found: Found | None) -> None:
        """A piece has come; None: it could not be read, which has been said."""
        self._fetching = False
        if self.over:
            self.close()
            return
        if found is None:
            self.end()
            return
        self._fetched.extend(found)
        self._hold(sum(len(message.body) for _, message in found))
        self.line.ready(self)

    def close(self) -> None:
        self.source.closed = True
        self._hold(-self._held_bytes)
        self._fetched.clear()
        if not self._fetching:  # else when that is done
            self._threads.submit(self.source.shut)


@dataclass(frozen=True, slots=True)
class WhatWasThere:
    """A question to the process that folds: which messages were in the queue then? Their ids and sizes, or why not."""

    history: History
    vhost: str
    queue: str
    at: At
    incarnation: int

    def answer(self) -> "tuple[array[int], array[int]] | Exception":
        try:
            return messages_at(self.history, self.vhost, self.queue, self.at, self.incarnation)
        except (NoSuchQueue, RewindError, LogError) as error:
            return type(error)(str(error))


async def moment_source(
    past: PastProcess, history: History, partition: Partition, queue: Queue, at: At, user: str
) -> MomentSource:
    """NotFound when the queue did not exist then; PreconditionFailed when the moment can't be read."""
    found: tuple[array[int], array[int]] | Exception
    try:
        found = await past.ask(WhatWasThere(history, queue.vhost, queue.name, at, queue.queue_id), user)
    except (ProcessEnded, TooManyQuestions, RuntimeError) as error:
        found = error
    if isinstance(found, NoSuchQueue):
        raise NotFound(str(found))
    if isinstance(found, Exception):
        where = resource("queue", queue.name, queue.vhost)
        raise PreconditionFailed(f"invalid arg 'x-rewind-to' for {where}: {found}")
    return MomentSource(history, partition, *found)
