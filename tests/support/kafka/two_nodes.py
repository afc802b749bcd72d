"""Steps at either of two nodes on one Kafka."""

import uuid
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.deadlines import SECONDS

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def take(channel: BlockingChannel, queue: str, count: int) -> list[tuple[bytes, bool, dict[str, Any]]]:
    """Consume and ack so many messages. Returns bodies, redelivered flags and headers."""
    taken: list[tuple[bytes, bool, dict[str, Any]]] = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=SECONDS):
        assert method is not None, f"{len(taken)} of {count} came"
        channel.basic_ack(method.delivery_tag)
        taken.append((body, method.redelivered, properties.headers or {}))
        if len(taken) == count:
            break
    channel.cancel()
    return taken


def counts(channel: BlockingChannel, queue: str) -> tuple[int, int]:
    method = channel.queue_declare(queue, passive=True).method
    return method.message_count, method.consumer_count


def catch_up(channel: BlockingChannel) -> None:
    """Wait until a node has read everything that was answered to any client before.

    A node reads another's writes some milliseconds later. Its own write comes after them in the log, and is answered
    when it has been read."""
    name = f"catch-up-{uuid.uuid4().hex}"
    channel.exchange_declare(name)
    channel.exchange_delete(name)
    for queue in in_each_partition(name):
        channel.queue_declare(queue)
        channel.queue_delete(queue)


def in_each_partition(name: str) -> list[str]:
    """A queue's name for each partition."""
    names = [f"{name}-{number}" for number in range(100)]
    return [next(each for each in names if partition_of("/", each, 2) == partition) for partition in range(2)]
