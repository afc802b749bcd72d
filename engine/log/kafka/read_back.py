"""Reads records back from Kafka as they are written: in the loop while there are many, otherwise in a waiting thread.

    idle:  the thread waits in librdkafka for one record, takes the other available ones, passes them to the loop
           after a batch of `BUSY_RECORDS`                                                                  -> busy
    busy:  the loop itself polls every millisecond (librdkafka's own threads fetch the records); the thread only
           serves the producer; after a while with fewer                                                    -> idle

Passing every batch between threads costs a busy node a tenth of its throughput; polling a thousand times a second would
cost a quiet one CPU time and latency. Only one of the two reads the consumer at any time (`_reading`). The loop takes a
batch at a time. Records for which it has no time stay in librdkafka's queues, and when these are full nothing is
fetched. Records that librdkafka delivers twice (as it has done after elections) are skipped. Records of open and
aborted transactions are included: a record in the log is a record, and a service's open transaction must not delay all
nodes. The current reader also pauses and resumes partitions, so everything that it took before a pause is in the loop
before the pause has taken effect.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import KafkaClients, text_of
from rewindmq.engine.log.kafka.reader import KafkaPartition
from rewindmq.engine.log.shared_contract import FILLER_KEY, REMOVED, Arrived

logger = logging.getLogger(__name__)

BATCH_RECORDS = 500
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.001  # the interval at which the busy loop polls
_EACH_SECONDS = 0.02
BUSY_RECORDS = 32  # this many in a batch: the loop reads; fewer in `_WHILE_SECONDS`: the thread reads
_WHILE_SECONDS = 0.02
_BEHIND_SECONDS = 0.2  # a loop that has not polled for this long is busy enough
_ASK_SECONDS = 0.5
_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
}


class KafkaFollowing:
    """A follower of partitions of Kafka that passes their records to the loop.

    `arrived` is called in the loop. Called in the loop or in the thread: `read(batch)` before a batch is passed on,
    `gone()` if a topic seems to be gone, `failed(error)` when reading ends. Called in the thread: `each()` many times a
    second. `compacted`: names of partitions in which a key may have no value. `away`: no broker can be reached.
    `waiting`: the loop has enough to do. `ends`: the end of each partition, as stated when its records were last read.
    """

    def __init__(
        self,
        clients: KafkaClients,
        partitions: Mapping[KafkaPartition, int],
        loop: asyncio.AbstractEventLoop,
        *,
        arrived: Callable[[list[Arrived]], None],
        read: Callable[[list[Arrived]], None],
        each: Callable[[], None],
        gone: Callable[[], None],
        failed: Callable[[LogError], None],
        compacted: Container[str] = (),
    ) -> None:
        self.away = False
        self._compacted = compacted
        self._partitions = dict(partitions)
        self._names: dict[tuple[str | None, int | None], str]
        self._names = {(each.topic, each.number): each.name for each in partitions}
        self._places = {each.name: TopicPartition(each.topic, each.number) for each in partitions}
        self.ends: dict[str, int] = {}
        self._given = {each.name: offset for each, offset in partitions.items()}  # every record below has arrived
        self._reaching: list[tuple[Mapping[str, int], asyncio.Future[None]]] = []  # offsets to reach, a waiting reader
        self._next = {each.name: offset for each, offset in partitions.items()}  # every record below has been taken
        self._loop = loop
        self._arrived, self._read, self._each, self._gone, self._failed = arrived, read, each, gone, failed
        self._paused: set[str] = set()  # names of partitions
        # Changes of the followed partitions: name, and the offset to continue from, or a future for a pause.
        self._changes: deque[tuple[str, int | asyncio.Future[None]]] = deque()
        self._reading = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._behind = False  # the last batch was full: there is more
        self._looked = 0.0
        self._while_ends = 0.0
        self._came = 0  # records in this period
        self._stopping = False
        # Kafka reports the end of a partition as an error, because the last offsets may have no record (`reached`).
        self._consumer = clients.consumer({"error_cb": self._error, "enable.partition.eof": True}, logs=True)
        self._thread = threading.Thread(target=self._run, name="kafka-following", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, so that no record arrives after this. Does not wait for the thread, as `join` does."""
        self._stopping = True

    def join(self, seconds: float) -> None:
        """Wait for the thread, up to this many seconds."""
        self._thread.join(seconds)

    async def pause(self, name: str) -> None:
        """Stop following a partition. After this, no record of it will arrive. In the loop."""
        paused: asyncio.Future[None] = self._loop.create_future()
        self._paused.add(name)
        self._changes.append((name, paused))
        self._tell_readers()
        await paused

    def resume(self, name: str, offset: int) -> None:
        """Follow a paused partition again, from this offset on. In the loop."""
        self._paused.remove(name)
        self._given[name] = offset
        self._changes.append((name, offset))

    def _change(self) -> None:
        """Carry out the requests of `pause` and `resume`. Called by the current reader."""
        while self._changes:
            name, change = self._changes.popleft()
            at = self._places[name]
            if isinstance(change, int):
                self._next[name] = change
                self._consumer.incremental_assign([TopicPartition(at.topic, at.partition, change)])
            else:
                self._consumer.incremental_unassign([at])
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._is_paused, change)  # after the batches already taken

    def _is_paused(self, paused: asyncio.Future[None]) -> None:
        if not paused.done():
            paused.set_result(None)

    @property
    def waiting(self) -> bool:
        """Return True if records wait because the loop is busy."""
        busy = not self._idle.is_set()
        return busy and (self._behind or time.monotonic() - self._looked > _BEHIND_SECONDS)

    def _run(self) -> None:
        consumer = self._consumer
        consumer.assign([TopicPartition(each.topic, each.number, at) for each, at in self._partitions.items()])
        try:
            while not self._stopping:
                if self._idle.wait(_EACH_SECONDS):
                    with self._reading, self._ending():
                        self._wait()
                with self._ending():
                    self._each()
        finally:
            with self._reading:
                consumer.close()

    def _wait(self) -> None:
        self._change()
        first = self._consumer.poll(_POLL_SECONDS)
        if first is None:
            if self.away:
                self._ask()
            return
        messages = [first, *self._consumer.consume(BATCH_RECORDS - 1, 0)]
        batches, positions = self._taken(messages)
        busy = len(messages) >= BUSY_RECORDS
        if busy:
            self._looked = time.monotonic()
            self._idle.clear()
        try:
            self._loop.call_soon_threadsafe(self._in_loop, batches, positions, busy)
        except RuntimeError:  # the loop is closed
            self._stopping = True

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """End the reading if an error is raised inside, and report the error."""
        try:
            yield
        except LogError as error:
            self._stopping = True
            self._failed(error)
        except KafkaException as error:
            self._stopping = True
            self._failed(LogError(f"Kafka: {text_of(error)}"))
        except Exception as error:  # no other code would learn of it
            self._stopping = True
            logger.exception("reading back from Kafka ended")
            self._failed(LogError(f"Kafka: {error}"))

    # In the loop.

    def _in_loop(self, batches: list[Arrived], positions: dict[str, int], busy: bool) -> None:
        if busy:
            self._while_ends, self._came = 0.0, BUSY_RECORDS
            self._loop.call_soon(self._look)
        if not self._stopping:
            self._give(batches, positions)

    def _give(self, batches: list[Arrived], positions: dict[str, int]) -> None:
        if batches:
            self._arrived(batches)
        for name, position in positions.items():
            self._given[name] = max(self._given[name], position)
        if self._reaching:
            self._tell_readers()

    async def reached(self, ends: Mapping[str, int]) -> None:
        """Wait until every record below these offsets has arrived. In the loop."""
        reached: asyncio.Future[None] = self._loop.create_future()
        self._reaching.append((ends, reached))
        self._tell_readers()
        await reached

    def _tell_readers(self) -> None:
        for reading in list(self._reaching):
            ends, reached = reading
            if all(name in self._paused or self._given[name] >= end for name, end in ends.items()):
                self._reaching.remove(reading)
                if not reached.done():
                    reached.set_result(None)

    def _look(self) -> None:
        batches: list[Arrived] = []
        positions: dict[str, int] = {}
        now = self._looked = time.monotonic()
        with self._reading, self._ending():
            if self._stopping:
                return
            self._change()
            messages = self._consumer.consume(BATCH_RECORDS, 0)
            self._behind = len(messages) == BATCH_RECORDS
            self._came += len(messages)
            batches, positions = self._taken(messages)
        if now > self._while_ends:
            if self._came < BUSY_RECORDS:
                self._idle.set()
            self._while_ends, self._came = now + _WHILE_SECONDS, 0
        if not self._idle.is_set():
            self._loop.call_later(0 if self._behind else _LOOK_SECONDS, self._look)
        if positions:
            self._give(batches, positions)

    # In either.

    def _taken(self, messages: Sequence[Message]) -> tuple[list[Arrived], dict[str, int]]:
        """Return the records by partition, and the offsets up to which all records have been taken."""
        positions: dict[str, int] = {}
        batches: dict[str, Arrived] = {}
        batch = Arrived("", [], [], [])
        topic: str | None = None
        number: int | None = None
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # after the records before it, maybe after markers
                    positions[self._names[message.topic(), message.partition()]] = message.offset() or 0
                else:
                    self._told(error)
                continue
            if message.partition() != number or message.topic() != topic:
                topic, number = message.topic(), message.partition()
                name = self._names[topic, number]
                batch = batches.setdefault(name, Arrived(name, [], [], []))
            offset = message.offset() or 0
            if offset < self._next[name]:
                logger.debug("%s: offset %d came once more", name, offset)
                continue
            self._next[name] = offset + 1
            value = message.value()
            if value is None:
                key = message.key()
                if key == FILLER_KEY:
                    continue
                if name in self._compacted:
                    value = REMOVED + (key or b"")
            batch.offsets.append(offset)
            batch.timestamps_ms.append(message.timestamp()[1])
            batch.values.append(value or b"")
        taken = [batch for batch in batches.values() if batch.offsets]
        if taken:
            self.away = False
            self._read(taken)
            self._look_ahead(taken)
        for batch in taken:
            positions[batch.partition] = max(positions.get(batch.partition, 0), batch.offsets[-1] + 1)
        return taken, positions

    def _look_ahead(self, batches: list[Arrived]) -> None:
        """Note the ends of the partitions, which Kafka states with every batch."""
        for batch in batches:
            at = self._places[batch.partition]
            self.ends[batch.partition] = self._consumer.get_watermark_offsets(at, cached=True)[1]

    def _told(self, error: KafkaError) -> None:
        """Handle an error reported by the consumer, which itself recovers from most.

        Raises LogError."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
            raise LogError(f"Kafka: the place in the history is gone: {text_of(error)}")
        logger.warning("Kafka: %s", text_of(error))
        if error.code() in _GONE:
            self._gone()

    def _error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.away = True

    def _ask(self) -> None:
        """Ask whether Kafka is still unreachable, because librdkafka does not report its return."""
        partition = next(iter(self._partitions))
        try:
            self._consumer.get_watermark_offsets(TopicPartition(partition.topic, partition.number), _ASK_SECONDS)
        except KafkaException:
            return
        self.away = False
