"""A broker under comparison, as the scenarios see it. What takes time waits for its effect, not for a moment."""

import time
from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

QUORUM = {"x-queue-type": "quorum"}


class Peer:
    """A broker under comparison, and a connection to it. Queues of a scenario begin with its name."""

    def __init__(self, parameters: pika.ConnectionParameters, prefix: str) -> None:
        self.parameters = parameters
        self.prefix = prefix
        self.connections: list[pika.BlockingConnection] = []
        self.connection = self.connect()
        self.channel = self.connection.channel()

    def connect(self) -> pika.BlockingConnection:
        self.connections.append(pika.BlockingConnection(self.parameters))
        return self.connections[-1]

    def close(self) -> None:
        for connection in self.connections:
            if connection.is_open:
                connection.close()

    def queue(self, arguments: dict[str, Any] | None = None, name: str = "q", **options: Any) -> str:
        full = f"{self.prefix}.{name}"
        options.setdefault("durable", True)
        self.channel.queue_declare(full, arguments=arguments or {}, **options)
        return full

    def publish(self, queue: str, *bodies: str, **properties: Any) -> None:
        for body in bodies:
            self.channel.basic_publish("", queue, body.encode(), pika.BasicProperties(**properties))

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def until(self, queue: str, count: int) -> None:
        deadline = time.monotonic() + 5
        while self.count(queue) != count and time.monotonic() < deadline:
            time.sleep(0.01)

    def get(self, queue: str, auto_ack: bool = True, seconds: float = 3) -> tuple[Any, Any, str] | None:
        deadline = time.monotonic() + seconds
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=auto_ack)
            if method is not None:
                return method, properties, body.decode()
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)

    def drain(self, queue: str) -> list[tuple[str, bool]]:
        """(body, redelivered) of all that is ready."""
        taken = []
        while (got := self.get(queue, seconds=0.3)) is not None:
            taken.append((got[2], got[0].redelivered))
        return taken

    def consume(self, queue: str, count: int, channel: BlockingChannel | None = None, **options: Any) -> list[Any]:
        """[(method, properties, body)] of `count` deliveries; the consumer stays, fewer after two seconds."""
        channel = channel or self.channel
        taken: list[Any] = []
        channel.basic_consume(
            queue, lambda _, method, properties, body: taken.append((method, properties, body.decode())), **options
        )
        self.pump(lambda: len(taken) >= count)
        return taken

    def pump(self, done: Callable[[], bool], seconds: float = 2) -> None:
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline:
            for connection in self.connections:
                if connection.is_open:
                    connection.process_data_events(time_limit=0.01)

    def error(self, act: Callable[[BlockingChannel], Any], connection: pika.BlockingConnection | None = None) -> Any:
        """(code, text, closes the connection) of what `act` is refused with."""
        other = connection or self.connect()
        try:
            channel = other.channel()
            act(channel)
            channel.basic_qos(prefetch_count=1)
        except ChannelClosedByBroker as error:
            return error.reply_code, error.reply_text, False
        except ConnectionClosedByBroker as error:
            return error.reply_code, error.reply_text, True
        return None
