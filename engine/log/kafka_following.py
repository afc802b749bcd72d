"""Reading back what happens in Kafka, as it happens: a thread that fetches, and hands over to the loop.

The thread waits for one record, takes what else is there, and gives it to the loop sorted by partition. It is ahead of
the loop by a few batches at most; then it waits, and librdkafka's own queues fill, and then nothing is fetched.
What librdkafka gives once more (it has done so after elections) is passed over.
Records of transactions that are open are given too, and of those that were given up: a record in the log is a record,
and a service's open transaction must not hold up all nodes.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from engine.log.base import LogError
from engine.log.kafka_clients import KafkaClients, text_of
from engine.log.kafka_reading import KafkaPartition
from engine.log.shared import Arrived

logger = logging.getLogger(__name__)

BATCH_RECORDS = 500
BATCHES_AHEAD = 4
_POLL_SECONDS = 0.1
_ASK_SECONDS = 0.5
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,
         KafkaError.UNKNOWN_TOPIC_ID, KafkaError.INCONSISTENT_TOPIC_ID}  # fmt: skip


class KafkaFollowing:
    """`arrived` is called in the loop; the others in this thread: `read(batch)` before a batch is handed over,
    `each()` many times a second, `gone()` when a topic seems to be gone, `failed(error)` at the end of the thread.
    `away` says that no broker can be reached, `waiting` that the loop has enough to do, `ends` where each partition was
    said to end when something was last read of it."""

    def __init__(
        self, clients: KafkaClients, partitions: Mapping[KafkaPartition, int], loop: asyncio.AbstractEventLoop, *,
        arrived: Callable[[list[Arrived]], None], read: Callable[[list[Arrived]], None], each: Callable[[], None],
        gone: Callable[[], None], failed: Callable[[LogError], None],
    ) -> None:  # fmt: skip
        self.away = False
        self.waiting = False
        self._partitions = dict(partitions)
        self._names: dict[tuple[str | None, int | None], str]
        self._names = {(each.topic, each.number): each.name for each in partitions}
        self._places = {each.name: TopicPartition(each.topic, each.number) for each in partitions}
        self.ends: dict[str, int] = {}
        self._next = {each.name: offset for each, offset in partitions.items()}  # what is below has been taken
        self._loop = loop
        self._arrived, self._read, self._each, self._gone, self._failed = arrived, read, each, gone, failed
        self._ahead = threading.Semaphore(BATCHES_AHEAD)
        self._stopping = False
        self._consumer = clients.consumer({"error_cb": self._error}, logs=True)
        self._thread = threading.Thread(target=self._run, name="kafka-following", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After this nothing arrives. Does not wait: `join`."""
        self._stopping = True

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        consumer = self._consumer
        consumer.assign([TopicPartition(each.topic, each.number, at) for each, at in self._partitions.items()])
        try:
            while not self._stopping:
                first = consumer.poll(_POLL_SECONDS)
                if first is not None:
                    self._take([first, *consumer.consume(BATCH_RECORDS - 1, 0)])
                elif self.away:
                    self._ask()
                self._each()
        except LogError as error:
            self._failed(error)
        except KafkaException as error:
            self._failed(LogError(f"Kafka: {text_of(error)}"))
        except Exception as error:  # nobody else would hear of it
            logger.exception("the thread that reads back from Kafka ended")
            self._failed(LogError(f"Kafka: {error}"))
        finally:
            consumer.close()

    def _take(self, messages: Sequence[Message]) -> None:
        batches: dict[str, Arrived] = {}
        batch = Arrived("", [], [], [])
        topic: str | None = None
        number: int | None = None
        for message in messages:
            error = message.error()
            if error is not None:
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
            batch.offsets.append(offset)
            batch.timestamps_ms.append(message.timestamp()[1])
            batch.values.append(message.value() or b"")
        if batches:
            self.away = False
            self._hand_over([batch for batch in batches.values() if batch.offsets])

    def _hand_over(self, batches: list[Arrived]) -> None:
        self._read(batches)
        self._look_ahead(batches)
        self.waiting = not self._ahead.acquire(blocking=False)
        if self.waiting:
            while not self._ahead.acquire(timeout=_POLL_SECONDS):
                self._each()
                self._look_ahead(batches)
                if self._stopping:
                    return
            self.waiting = False
        try:
            self._loop.call_soon_threadsafe(self._in_loop, batches)
        except RuntimeError:  # the loop is closed
            self._stopping = True

    def _look_ahead(self, batches: list[Arrived]) -> None:
        """Kafka says with all that it gives where the partition ends."""
        for batch in batches:
            at = self._places[batch.partition]
            self.ends[batch.partition] = self._consumer.get_watermark_offsets(at, cached=True)[1]

    def _in_loop(self, batches: list[Arrived]) -> None:
        self._ahead.release()
        if not self._stopping:
            self._arrived(batches)

    def _told(self, error: KafkaError) -> None:
        """Most of what a consumer reports on its way it mends itself."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
            raise LogError(f"Kafka: the place in the history is gone: {text_of(error)}")
        logger.warning("Kafka: %s", text_of(error))
        if error.code() in _GONE:
            self._gone()

    def _error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.away = True

    def _ask(self) -> None:
        """Whether Kafka is still away: librdkafka does not say when it is back."""
        partition = next(iter(self._partitions))
        try:
            self._consumer.get_watermark_offsets(TopicPartition(partition.topic, partition.number), _ASK_SECONDS)
        except KafkaException:
            return
        self.away = False
