"""Records of a partition in Kafka in the archive's form, and their history."""

from collections.abc import Iterator
from typing import cast

from confluent_kafka import Message

from rewindmq.engine.keeping.archive.pack import KafkaRecord, RecordHeaders
from rewindmq.engine.log.chain import TopicChain, first_chain
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.kafka.reader import KafkaPartition


def record_of(message: Message) -> KafkaRecord:
    """Return a record in the archive's form."""
    key, headers = message.key(), cast("RecordHeaders | None", message.headers())
    return KafkaRecord(message.offset() or 0, message.timestamp()[1], message.value(), key, headers or ())


def records_of(partition: KafkaPartition, start: int, end: int) -> Iterator[KafkaRecord]:
    """Yield the records of a partition from `start` up to `end` (exclusive).

    Raises LogError, NoAnswer."""
    for batch in partition.batches(start, end):
        yield from map(record_of, batch)


def history_in(metadata: KafkaPartition) -> str:
    """Return the history of a metadata log, identified by the hash chain after its first record.

    Raises LogError if there is no record yet, or the beginning is gone; NoAnswer."""
    start, end = metadata.start_offset, metadata.next_offset
    if start > 0:
        raise LogError(f"Kafka: {metadata.topic} begins at offset {start}: nothing identifies its history")
    for record in records_of(metadata, 0, end):
        links = TopicChain(0, first_chain(METADATA))
        links.add(record.offset, record.timestamp_ms, record.value)
        return links.ends_at(record.offset + 1).hex()
    raise LogError(f"Kafka: {metadata.topic} is empty: start a node first")
