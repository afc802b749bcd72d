"""Copies a history's topics into ones that Kafka's consoles and UIs can read.

    <prefix>.metadata    C3 01, fingerprint, record    ->    <prefix>.metadata.console    00, id (4 bytes), record
    <prefix>.queues                                    ->    <prefix>.queues.console

Consoles support Avro only in the form of Confluent's serializers: a zero byte, the id of the schema in a registry, the
record. Ours are Avro single objects. The record after either header is the same bytes, so nothing is decoded.

Rules
- A record stays in its partition, with its key, headers and time. Its original offset, which is the id of a message, is
  in the header `rewindmq-offset`.
- The copy itself shows the progress: a starting copier continues after the last record of each partition. So a killed
  copier leaves out nothing and repeats nothing, and keeps no state. Two at once duplicate their common records.
- A value that is not a single object (a service wrote something else) is counted but not copied. Fillers are skipped.
- A copy has Kafka's own retention, because only people read it.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.kafka.clients import TIMEOUT_SECONDS, UNHEARD, KafkaClients, text_of
from rewindmq.engine.log.kafka.topics import MAX_COPY_BYTES, KafkaTopics
from rewindmq.engine.log.shared_contract import FILLER_KEY
from rewindmq.schemas.single_object import HEADER, MARKER

logger = logging.getLogger(__name__)

OFFSET_HEADER = "rewindmq-offset"
BATCH = 1_000
PAUSE_SECONDS = 0.2
TOLD_SECONDS = 60.0
MOST_BYTES = 64 * 1024 * 1024  # of copies in flight
MOST_RECORDS = 100_000
Ids = Mapping[str, Mapping[str, int]]  # the id in the registry, by topic of the copy and fingerprint


class UnknownFingerprint(LogError):
    """A record has a schema that this program does not know."""


def confluent_form(value: bytes, ids: Mapping[str, int]) -> bytes | None:
    """Return the record of a single object after Confluent's header; None: the value is not a single object.

    `ids`: by fingerprint. Raises UnknownFingerprint."""
    if not value.startswith(MARKER) or len(value) < len(HEADER):
        return None
    fingerprint = value[len(MARKER) : len(HEADER)].hex()
    if fingerprint not in ids:
        raise UnknownFingerprint(
            f"a record has the schema {fingerprint}, which this version does not know: use a newer one"
        )
    return b"\0" + ids[fingerprint].to_bytes(4, "big") + value[len(HEADER) :]


class ConsoleTopics:
    """The topics of a history, and their copies."""

    def __init__(self, clients: KafkaClients, prefix: str) -> None:
        self._clients = clients
        self._topics = KafkaTopics(clients, prefix)
        self.pairs = {name: f"{name}.console" for name in (self._topics.metadata, self._topics.queues)}

    def copy(self, ids: Ids, stopped: Callable[[], bool]) -> None:
        """Copy until `stopped()`.

        Raises LogError, NoAnswer."""
        counts = self._topics.create_console(self.pairs)
        errors: list[KafkaError] = []
        limit = {"message.max.bytes": MAX_COPY_BYTES}
        producer = self._clients.producer({"on_delivery": partial(_delivered, errors), **limit})
        reader = self._clients.consumer({"fetch.message.max.bytes": 1024 * 1024}, logs=True)
        try:
            reader.assign(
                [
                    TopicPartition(source, number, self._start(source, copied, number))
                    for (source, copied), count in zip(self.pairs.items(), counts, strict=True)
                    for number in range(count)
                ]
            )
            self._run(reader, producer, ids, stopped, errors)
        except KafkaException as error:
            raise LogError(f"Kafka: {text_of(error)}") from error
        finally:
            reader.close()
            producer.purge()

    def _run(
        self,
        reader: Consumer,
        producer: Producer,
        ids: Ids,
        stopped: Callable[[], bool],
        errors: list[KafkaError],
    ) -> None:
        copied = skipped = bytes_sent = 0
        told_at = time.monotonic()
        while not stopped():
            messages = reader.consume(BATCH, PAUSE_SECONDS)
            for message in messages:
                if (error := message.error()) is not None:
                    if error.retriable() or error.code() in UNHEARD:
                        continue  # librdkafka recovers by itself
                    raise LogError(f"Kafka: {message.topic()} can't be read: {text_of(error)}")
                if (size := self._produce(producer, message, ids)) is None:
                    skipped += 1
                    continue
                copied += 1
                bytes_sent += size
                if bytes_sent > MOST_BYTES or len(producer) > MOST_RECORDS:
                    _flushed(producer, stopped)
                    bytes_sent = 0
            producer.poll(0)
            if errors:
                raise LogError(f"Kafka refused a copy: {text_of(errors[0])}")
            if time.monotonic() - told_at >= TOLD_SECONDS:
                told_at = time.monotonic()
                logger.info("%d records copied, %d skipped that are not events", copied, skipped)
        if producer.flush(TIMEOUT_SECONDS):
            raise NoAnswer(f"Kafka did not accept all copies within {TIMEOUT_SECONDS:.0f} seconds: start again")
        if errors:
            raise LogError(f"Kafka refused a copy: {text_of(errors[0])}")
        logger.info("%d records copied, %d skipped that are not events", copied, skipped)

    def _produce(self, producer: Producer, message: Message, ids: Ids) -> int | None:
        """Append the copy of a record. Return its size, or None if it is not an event."""
        topic, number, offset, value = message.topic(), message.partition(), message.offset(), message.value()
        assert topic is not None
        assert number is not None
        assert offset is not None
        if message.key() == FILLER_KEY or value is None:
            return None
        copied = confluent_form(value, ids[self.pairs[topic]])
        if copied is None:
            logger.warning("%s %d:%d is not an event, and is not copied", topic, number, offset)
            return None
        headers = [*(message.headers() or []), (OFFSET_HEADER, str(offset).encode())]
        producer.produce(
            self.pairs[topic], copied, message.key(), number, timestamp=message.timestamp()[1], headers=headers
        )
        return len(copied)

    def _start(self, source: str, copied: str, number: int) -> int:
        """Return the offset of the first uncopied record."""
        oldest, _ = self._clients.watermarks(source, number)
        first, end = self._clients.watermarks(copied, number)
        if first == end:
            return oldest
        reader = self._clients.consumer({})
        try:
            reader.assign([TopicPartition(copied, number, end - 1)])
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while time.monotonic() < deadline:
                message = reader.poll(PAUSE_SECONDS)
                if message is None or message.error() is not None:
                    continue
                found = dict(message.headers() or []).get(OFFSET_HEADER)
                if not isinstance(found, bytes) or not found.isdigit():
                    raise LogError(
                        f"Kafka: the last record of {copied} is not a copy: delete this topic, and start again"
                    )
                return max(oldest, int(found) + 1)
        finally:
            reader.close()
        raise NoAnswer(f"Kafka: no answer about the last record of {copied} within {TIMEOUT_SECONDS:.0f} seconds")


def _delivered(errors: list[KafkaError], error: KafkaError | None, _: Message) -> None:
    if error is not None:
        errors.append(error)


def _flushed(producer: Producer, stopped: Callable[[], bool]) -> None:
    """Wait until all copies are accepted, or `stopped()`."""
    while producer.flush(PAUSE_SECONDS) and not stopped():
        pass
