"""Reads a history in Kafka by offsets: for start, rewinds, `verify` and other tools.

    log = KafkaLogReader("localhost:9092", "rewindmq")
    for block in log.queues[0].read(offset): ...

It creates no topic, starts no thread of ours and joins no group. Every call asks Kafka and waits, and raises NoAnswer
if Kafka does not answer for `TIMEOUT_SECONDS`. Offsets have gaps at the ends of transactions (each marker takes an
offset), and at the fillers of a recovered history (shared_contract.py).
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from rewindmq.engine.log.contract import BelowStart, Block, LogError, NoAnswer
from rewindmq.engine.log.kafka.clients import TIMEOUT_SECONDS, KafkaClients, asked, text_of
from rewindmq.engine.log.kafka.topics import KafkaTopics
from rewindmq.engine.log.shared_contract import FILLER_KEY

BLOCK_RECORDS = 1_000
_JUMPING = {"fetch.message.max.bytes": 256 * 1024, "queued.min.messages": 1}


class KafkaPartition:
    """A readable partition. `name` is RewindMQ's, `topic` and `number` are Kafka's."""

    shared = True

    def __init__(self, clients: KafkaClients, topic: str, number: int, name: str) -> None:
        self._clients = clients
        self.topic = topic
        self.number = number
        self.name = name

    @property
    def start_offset(self) -> int:
        """Return the offset of the oldest record, by asking Kafka."""
        return self._watermarks()[0]

    @property
    def next_offset(self) -> int:
        """Return the end of the readable records, by asking Kafka."""
        return self._watermarks()[1]

    @property
    def durable_offset(self) -> int:
        """Return the end of the durable records, because Kafka shows no record that its replicas lack."""
        return self.next_offset

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the first offset whose timestamp is greater than `timestamp_ms`; `next_offset` when there is none."""
        after = TopicPartition(self.topic, self.number, max(0, timestamp_ms + 1))
        [found] = asked(
            f"the offset of a time in {self.name}",
            lambda: self._clients.asking.offsets_for_times([after], timeout=TIMEOUT_SECONDS),
        )
        if found.error is not None:
            raise LogError(f"Kafka: the offset of a time in {self.name}: {text_of(found.error)}")
        return found.offset if found.offset >= 0 else self.next_offset

    def base(self) -> None:
        """Return None, because a log in Kafka keeps no bases."""

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield blocks (runs of consecutive offsets) from `offset` up to `end`.

        `end`: exclusive; None: the current readable end. Records below `start_offset` no longer exist, and are skipped.
        """
        at = offset
        while True:
            low, high = self._watermarks()
            at, behind = max(at, low), high if end is None else min(end, high)
            try:
                for block in self._read(at, behind):
                    yield block
                    at = block.first_offset + len(block.records)
                return
            except BelowStart:  # they were removed in the meantime
                if self.start_offset <= at:
                    raise

    def read_kept(self, offset: int, end: int | None = None) -> Iterator[Block]:
        """Yield blocks as `read`.

        Raises BelowStart if Kafka no longer has the records from `offset` on, also during the read."""
        low, high = self._watermarks()
        if offset < low:
            raise BelowStart(f"Kafka: {self.name} begins at offset {low}: offset {offset} is no longer kept")
        yield from self._read(offset, high if end is None else min(end, high))

    def _read(self, offset: int, end: int) -> Iterator[Block]:
        if offset < end:
            yield from self._consume([(offset, end)], {})

    def batches(self, offset: int, end: int) -> Iterator[list[Message]]:
        """Yield the records from `offset` up to `end` (exclusive) in Kafka's form, some at a time, without fillers.

        Both offsets are in the log. Raises BelowStart, LogError, NoAnswer."""
        consumer = self._clients.consumer({"enable.partition.eof": True})
        try:
            if offset < end:
                consumer.assign([TopicPartition(self.topic, self.number, offset)])
                for messages in self._batches(consumer, end):
                    yield [each for each in messages if each.value() is not None or each.key() != FILLER_KEY]
        finally:
            consumer.close()

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """Yield the blocks of many short ranges (first offset, end). All ranges are in the log.

        One consumer jumps from one range to the next, without fetching much ahead. Raises BelowStart if Kafka no longer
        has a range."""
        yield from self._consume(ranges, _JUMPING)

    def record(self, offset: int, seconds: float) -> bytes | None:
        """Return the record at an offset below `next_offset`; None: the offset is a gap.

        Raises NoAnswer if Kafka does not answer within `seconds`, and BelowStart."""
        consumer = self._clients.consumer({"enable.partition.eof": True, **_JUMPING})
        try:
            consumer.assign([TopicPartition(self.topic, self.number, offset)])
            return next((block.records[0] for block in self._blocks(consumer, offset + 1, seconds)), None)
        finally:
            consumer.close()

    def _consume(self, ranges: Iterable[tuple[int, int]], settings: Mapping[str, Any]) -> Iterator[Block]:
        consumer = self._clients.consumer({"enable.partition.eof": True, **settings})
        try:
            for offset, end in ranges:
                consumer.assign([TopicPartition(self.topic, self.number, offset)])
                yield from self._blocks(consumer, end)
        finally:
            consumer.close()

    def _blocks(self, consumer: Consumer, end: int, seconds: float = TIMEOUT_SECONDS) -> Iterator[Block]:
        for messages in self._batches(consumer, end, seconds):
            yield from self._runs(messages)

    def _batches(self, consumer: Consumer, end: int, seconds: float = TIMEOUT_SECONDS) -> Iterator[list[Message]]:
        deadline = time.monotonic() + seconds
        while True:
            if time.monotonic() > deadline:
                raise NoAnswer(f"Kafka: {self.name} cannot be read: no answer within {seconds:.0f} seconds")
            first = consumer.poll(min(1.0, seconds))
            if first is None:
                continue
            messages = []
            done = False
            for message in (first, *consumer.consume(BLOCK_RECORDS, 0)):
                error = message.error()
                if error is not None:
                    self._check(error)
                # Kafka reports the end of a partition as an error, because markers at the end are not messages.
                at = message.offset()
                if at is not None and at >= end:
                    done = True
                    break
                if error is None:
                    messages.append(message)
            yield messages
            if done or (messages and messages[-1].offset() == end - 1):
                return
            if messages:
                deadline = time.monotonic() + seconds

    def _runs(self, messages: list[Message]) -> Iterator[Block]:
        records: list[bytes] = []
        times: list[int] = []
        first = 0
        for message in messages:
            value = message.value()
            if value is None and message.key() == FILLER_KEY:
                continue
            offset = message.offset() or 0
            if records and offset != first + len(records):
                yield self._block(first, records, times)
                records, times = [], []
            if not records:
                first = offset
            records.append(value or b"")
            times.append(message.timestamp()[1])
        if records:
            yield self._block(first, records, times)

    def _block(self, first: int, records: list[bytes], times: list[int]) -> Block:
        return Block(first, records, max(times), b"", Path(self.topic) / str(self.number), first, times)

    def _check(self, error: KafkaError) -> None:
        """Raise LogError for an error from which the consumer does not recover; BelowStart if the offset is gone."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
            kind = LogError if error.fatal() else BelowStart
            raise kind(f"Kafka: {self.name} cannot be read: {text_of(error)}")

    def delete_below(self, offset: int) -> None:
        """Let Kafka drop the records below an offset for good, unless they are gone.

        Raises LogError, NoAnswer."""
        below = TopicPartition(self.topic, self.number, offset)

        def delete() -> None:
            for future in self._clients.admin().delete_records([below], request_timeout=TIMEOUT_SECONDS).values():
                future.result(TIMEOUT_SECONDS + 1)

        asked(f"the removal of the records of {self.name} below offset {offset}", delete)

    def _watermarks(self) -> tuple[int, int]:
        return self._clients.watermarks(self.topic, self.number)


class KafkaLogReader:
    """The partitions of a history in Kafka, for `verify`, Spark and other tools. `settings` as in `KafkaLog.open`."""

    def __init__(self, bootstrap: str, prefix: str = "rewindmq", settings: Mapping[str, str] | None = None) -> None:
        self.clients = KafkaClients(bootstrap, settings)
        self.topics = KafkaTopics(self.clients, prefix)

    @classmethod
    def of(cls, clients: KafkaClients, prefix: str) -> Self:
        """Return the partitions of a history, read by these clients."""
        log = cls(clients.bootstrap, prefix)
        log.clients = clients
        log.topics = KafkaTopics(clients, prefix)
        return log

    @cached_property
    def metadata(self) -> KafkaPartition:
        return KafkaPartition(self.clients, self.topics.metadata, 0, "metadata-0")

    @cached_property
    def queues(self) -> list[KafkaPartition]:
        topic = self.topics.queues
        return [KafkaPartition(self.clients, topic, n, f"queues-{n}") for n in range(self.topics.partitions())]

    @cached_property
    def identity(self) -> str:
        """Return the identity of the history, as `KafkaLog.identity`."""
        return self.topics.identity()
