"""pika's blocking client, as tests use it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.deadlines import SECONDS
from tests.support.running import RunningBroker

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(
    broker: RunningBroker, user: str = "guest", password: str = "guest", vhost: str = "/", **options: Any
) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.amqp_port, vhost, credentials, **options)
    )


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


def publish(channel: BlockingChannel, queue: str, *bodies: str | bytes, **properties: Any) -> None:
    """Publish persistent messages. `properties`: of each, besides."""
    for body in bodies:
        given = pika.BasicProperties(delivery_mode=2, **properties)
        channel.basic_publish("", queue, body if isinstance(body, bytes) else body.encode(), given)


def publish_confirmed(broker: RunningBroker, queue: str, bodies: Iterable[str | bytes], **properties: Any) -> None:
    """Declare a durable queue and publish persistent messages, each confirmed, on a connection of their own."""
    with connect(broker, heartbeat=0) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        publish(channel, queue, *bodies, **properties)


def numbered(numbers: Iterable[int], text: str = "%d") -> list[bytes]:
    """The bodies of messages with these numbers."""
    return [(text % number).encode() for number in numbers]


def take_all(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Take what is ready, and ack it. Returns the bodies."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        assert got[2] is not None
        found.append(got[2])
    return found


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


def pump(connection: pika.BlockingConnection, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Let callbacks run until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        connection.process_data_events(time_limit=0.05)


class Reader:
    """A consumer that reads a stream or the past, and acks unless told otherwise. `got`: offsets and bodies."""

    def __init__(
        self, connection: pika.BlockingConnection, queue: str, prefetch: int = 10, ack: bool = True, **arguments: Any
    ) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got: list[tuple[int, bytes]] = []
        self.tags: list[int] = []
        self.cancelled = False
        self.ack = ack
        self.channel.add_on_cancel_callback(lambda _: setattr(self, "cancelled", True))
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.tag = self.channel.basic_consume(queue, self.take, arguments=given)

    def take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.got.append((properties.headers["x-stream-offset"], body))
        self.tags.append(method.delivery_tag)
        if self.ack:
            channel.basic_ack(method.delivery_tag)

    @property
    def ids(self) -> list[int]:
        return [offset for offset, _ in self.got]

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.got]

    def until(self, count: int) -> list[tuple[int, bytes]]:
        """Wait until so many messages have come."""
        pump(self.connection, lambda: len(self.got) >= count)
        return self.got

    def bodies_until(self, count: int) -> list[bytes]:
        self.until(count)
        return self.bodies

    def through(self) -> list[bytes]:
        """Wait until the broker cancels the consumer, at the end of what it asked for."""
        pump(self.connection, lambda: self.cancelled)
        return self.bodies


def fill(channel: BlockingChannel, queue: str, *bodies: str | bytes) -> None:
    """Declare a durable queue, and publish into it."""
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, *bodies)
