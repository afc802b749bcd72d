"""pika's blocking client, as tests use it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.running import RunningBroker


def connect(broker: RunningBroker, **options: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port, **options))


@contextmanager
def confirming(broker: RunningBroker) -> Iterator[BlockingChannel]:
    """A channel with publisher confirms, on a connection of its own, which a test may close."""
    connection = connect(broker)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        if connection.is_open:
            connection.close()


def count(channel: BlockingChannel, queue: str) -> int:
    """The number of ready messages."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def take(channel: BlockingChannel, queue: str, number: int, **options: Any) -> list[tuple[Any, Any, bytes]]:
    """Consume so many messages. Returns methods, properties and bodies."""
    taken: list[tuple[Any, Any, bytes]] = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=10, **options):
        assert method is not None, f"only {len(taken)} of {number} came"
        taken.append((method, properties, body))
        if len(taken) == number:
            return taken
    raise AssertionError("the consumer was cancelled")


def pump(connection: pika.BlockingConnection, condition: Callable[[], bool], seconds: float = 30) -> None:
    """Let callbacks run until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        connection.process_data_events(time_limit=0.05)
