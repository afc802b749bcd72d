"""Sources of the messages that consumers of a queue's past get (history_consumers.py).

    LogSource      all that was ever published to the queue, from a start on
    MomentSource   the messages that were in the queue at a moment

Threads read the log, a bounded piece at a time, through a reader of their own that touches nothing of the live broker.
"""

from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Generator, Iterator
from itertools import pairwise

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader, Location
from rewindmq.engine.log.contract import BelowStart
from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.engine.rewind.arguments import FIRST, LAST, NEXT, NUMBER, TIME, Start
from rewindmq.engine.rewind.outcomes import APART_MS
from rewindmq.engine.rewind.partition_visits import NOT_YET, came_from, first_in, log_named, partition_visits
from rewindmq.engine.rewind.queue_at import published_at
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.replay import decoder_for
from rewindmq.schemas.events import Published

PIECE, PIECE_BYTES = 256, 1_048_576  # messages that are fetched at a time, and bytes of their bodies
SCANNED_BYTES = 8_388_608  # of the log that are scanned at a time
UNREAD = -1  # in place of a number that says how far something was read
LOOK_BACK = 4_096  # records before the end, among which the last message is looked for first

Found = list[tuple[int, Published]]
Scan = Generator[tuple[int, Published | None], None, None]


class MessageSource(ABC):
    """The source of a past consumer's messages. `fetch` runs in a thread, one at a time."""

    def __init__(self, history: Location, partition: str) -> None:
        self.history = history
        self.partition_name = partition
        self.closed = False
        self._opened: HistoryReader | None = None

    @property
    def reader(self) -> HistoryReader:
        """The history, opened at the first use."""
        if self._opened is None:
            self._opened = self.history.open()
        return self._opened

    @property
    def log(self) -> HistoryPartition:
        """The partition with the messages."""
        return log_named(self.reader, self.partition_name)

    @abstractmethod
    def fetch(self, end: int) -> Found:
        """Read the next piece of the history below offset `end`."""

    @abstractmethod
    def has_more(self) -> bool:
        """Return True if there may be something to fetch."""

    @abstractmethod
    def is_through(self) -> bool:
        """Return True if there will never be anything more to fetch."""

    def follow(self, history: Location, partition: PartitionReading, queue: Queue) -> bool:
        """The queue is in this partition now; `history` knows it. False: not yet, ask again at the next step."""
        return True

    @abstractmethod
    def shut(self) -> None:
        """Close what is open. Called in a thread, since Kafka's client takes its time."""


class LogSource(MessageSource):
    """The log itself. `position`: everything of the queue below it has been fetched; None: the start is not found
    yet.

    Of a queue that moved, the partitions in which it was come first, if the start lies there. Then messages that moved
    with it are not read a second time."""

    def __init__(self, history: Location, partition: PartitionReading, queue: Queue, start: Start) -> None:
        super().__init__(history, partition.machine.partition)
        self.partition = partition
        self.queue = queue
        self.start = start
        self._attached_at = partition.next_offset
        self.position: int | None = self._attached_at if start.kind == NEXT else None
        self._seen = UNREAD if start.kind != NEXT else self._published()
        self._behind = False  # at the last read, some folded events were not durable yet
        self._scan: Scan | None = None
        self._scan_end = 0
        self._earlier: deque[tuple[HistoryPartition, int, int]] = deque()  # ranges of other partitions, to read first
        # Of queues that this one was before it moved: the offsets up to which their messages are told before, or were
        # published before the start. (partition, incarnation) -> offset
        self._told: dict[tuple[str, int], int] = {}
        self._read_here: tuple[str, int, int] | None = None  # before the queue moved: partition, incarnation, position
        self._begun = False

    def _published(self) -> int:
        """A number that moves with each event that publishes to the queue."""
        return self.queue.published + self.queue.refused + self.queue.duplicates

    def has_more(self) -> bool:
        """Return True if messages may have been published since the last read."""
        if self.position is None or self._scan is not None or self._earlier:
            return True
        news = self._behind or self._seen != self._published()
        return news and self.partition.durable_offset > self.position

    def is_through(self) -> bool:
        """Never: more may be published."""
        return False

    def follow(self, history: Location, partition: PartitionReading, queue: Queue) -> bool:
        """Go on in this partition, where the queue is now. False: something is being read still."""
        if self._scan is not None or self.position is None:
            return False
        if self._read_here is None:  # else nothing was read since it moved before
            self._read_here = self.partition_name, self.queue.queue_id, self.position
        self.history, self.partition_name, self._opened = history, partition.machine.partition, None
        self.partition, self.queue, self.position, self._seen = partition, queue, None, UNREAD
        return True

    def shut(self) -> None:
        """End the scan of the log."""
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def about_to_fetch(self) -> None:
        """Note the state of the queue. Called in the loop, before `fetch`."""
        if self._scan is None:
            self._seen = self._published()
            self._behind = self.partition.machine.next_offset > self.partition.durable_offset

    def fetch(self, end: int) -> Found:
        """Scan a piece of the log."""
        if not self._begun and self.start.kind in (FIRST, TIME, NEXT):
            self._told = {(log.name, declared): end for log, declared, end in self._left()}
        self._begun = True
        if self.position is None and self._read_here is not None:
            self._earlier.extend(self._since(*self._read_here))
            self._read_here, self.position = None, self._beginning
        elif self.position is None:
            self.position = self._first_offset(end)
            self._earlier.extend(self._before())
        if self._scan is None and self._earlier:
            self._scan, self._scan_end = self._publishes(*self._earlier.popleft()), UNREAD
        elif self._scan is None:
            self._scan = self._publishes(self.log, self.position, end)
            self._scan_end = end
        found: Found = []
        room = PIECE_BYTES
        try:
            for offset, message in self._scan:
                if message is None:
                    return found
                found.append((offset, message))
                room -= message.body_size
                if len(found) >= PIECE or room <= 0:
                    return found
        except BelowStart:
            self._scan, begins = None, self.log.start_offset
            if begins <= self.position:
                raise
            self.position, self._seen = begins, UNREAD  # what lies between was trimmed while it was read
            return found
        self._scan = None
        if self._scan_end == UNREAD:
            self._seen = UNREAD  # now the partition in which the queue is
        else:
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
        found = min(log.offset_at(start.value - 1), self._attached_at)  # a future time means from now on
        return max(found, self._beginning)

    def _before(self) -> list[tuple[HistoryPartition, int, int]]:
        """Return the ranges to read in the partitions that the queue was in before.

        There are none if the start is an offset, which always refers to the present partition."""
        if self.start.kind not in (FIRST, TIME):
            return []
        found = []
        for log, declared, end in self._left():
            first = max(declared, log.start_offset)
            if self.start.kind == TIME:
                first = max(first, log.offset_at(self.start.value - 1))
            found.append((log, first, end))
        return [each for each in found if each[1] < each[2]]

    def _since(self, partition: str, queue_id: int, position: int) -> list[tuple[HistoryPartition, int, int]]:
        """Return the ranges to read in the partitions that the queue has left, from this position in one of them on."""
        found, begun = [], False
        for log, declared, end in self._left():
            first = max(declared, log.start_offset)
            if (log.name, declared) == (partition, queue_id):
                first, begun = position, True
            if begun:
                self._told[log.name, declared] = max(first, end)
                found.append((log, first, end))
        return [each for each in found if each[1] < each[2]]

    def _left(self) -> Iterator[tuple[HistoryPartition, int, int]]:
        """Yields the partitions that the queue has left, in order: with its declaration there, and where it left.

        Clocks of two partitions may differ: what has come to this queue a little later belongs to it, too."""
        vhost, name = self.queue.vhost, self.queue.name
        every = partition_visits(self.reader, vhost, name)
        firsts = [first_in(each, self.reader.placement, vhost, name, self.queue.queue_id) for each in every]
        for at, (stay, following) in enumerate(pairwise(every)):
            declared, left_ms = firsts[at], following.since_ms
            if declared is None or left_ms is None or left_ms == NOT_YET:
                continue
            log = stay.log
            back = [first for other, first in zip(every[at + 1 :], firsts[at + 1 :], strict=True) if other.log is log]
            end = min(log.durable_offset, log.offset_at(left_ms + APART_MS))
            yield log, declared, min([end, *(first for first in back if first is not None)])

    @property
    def _beginning(self) -> int:
        """The first offset that may be read: the queue's declaration, or the log's first record."""
        return max(self.queue.queue_id, self.log.start_offset)

    def _last(self, end: int) -> int:
        """The offset of the last message, `end` when there is none. The search goes back from the end, in growing
        windows."""
        start, window, behind = self._beginning, LOOK_BACK, end
        while behind > start:
            first = max(start, behind - window)
            found = [offset for offset, message in self._publishes(self.log, first, behind) if message is not None]
            if found:
                return found[-1]
            behind, window = first, window * 2
        return end

    def _publishes(self, log: HistoryPartition, first: int, end: int) -> Scan:
        """Yield the messages that were published to the queue, and None after each SCANNED_BYTES of the log."""
        vhost, name = self.queue.vhost, self.queue.name
        needle = name.encode()
        decode = decoder_for(log).decode
        scanned = 0
        if first >= end:
            return
        for block in log.read_ranges([(first, end)]):
            for index, record in enumerate(block.records):
                scanned += len(record)
                offset = block.first_offset + index
                if needle not in record or not first <= offset < end:
                    continue
                event = decode(record)[2]
                if type(event) is not Published or event.route.vhost != vhost or name not in event.route.queues:
                    continue
                if not self._is_told(event):
                    yield offset, event
            if self.closed:
                return
            if scanned >= SCANNED_BYTES:
                scanned = 0
                yield block.first_offset, None

    def _is_told(self, published: Published) -> bool:
        """Return True if the message moved along with the queue, and an earlier partition's range covers its publish.

        A message that a lost node published after the end of that range is read where it arrived."""
        origin = published.origin
        if origin is None or not self._told:
            return False
        log = came_from(self.reader, origin)
        return log is not None and origin.message_id < self._told.get((log.name, origin.queue_id), 0)


class MomentSource(MessageSource):
    """The messages that were in the queue, in `partition`: their `ids` and `sizes`, in the order of delivery."""

    def __init__(self, history: Location, partition: str, ids: "array[int]", sizes: "array[int]") -> None:
        super().__init__(history, partition)
        self.ids = ids
        self.sizes = sizes
        self.at = 0

    def has_more(self) -> bool:
        """Return True if messages are left."""
        return self.at < len(self.ids)

    def is_through(self) -> bool:
        """Return True if all messages are fetched."""
        return self.at >= len(self.ids)

    def shut(self) -> None:
        """Nothing is open."""

    def fetch(self, end: int) -> Found:
        """Read the bodies of the next messages."""
        behind, room = self.at, PIECE_BYTES
        while behind < len(self.ids) and behind - self.at < PIECE and room > 0:
            room -= self.sizes[behind]
            behind += 1
        wanted = self.ids[self.at : behind]
        published = dict(published_at(self.log, wanted))
        self.at = behind
        return [(message_id, published[message_id][1]) for message_id in wanted]
