"""Appends to Kafka beside RewindMQ."""

from confluent_kafka import Producer


def ordered_producer(bootstrap: str, **settings: str) -> Producer:
    """A producer with these settings of librdkafka's, which keeps its order.

    Without idempotence, a batch that a new partition refuses because it has no leader yet is stored behind the next
    batch."""
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
