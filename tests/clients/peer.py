"""A broker under comparison, as the scenarios see it. What takes time waits for its effect, not for a moment."""

import base64
import contextlib
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVarTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker, StreamLostError

QUORUM = {"x-queue-type": "quorum"}
STREAM = {"x-queue-type": "stream"}

Given = TypeVarTuple("Given")


class Peer:
    """A broker under comparison, and a connection to it. Queues of a scenario begin with its name."""

    def __init__(self, port: int, http_port: int, prefix: str) -> None:
        self.port = port
        self.http_port = http_port
        self.prefix = prefix
        self.connections: list[pika.BlockingConnection] = []
        self.made: list[str] = []  # paths of the management API, to be deleted at the end
        self.connection = self.connect()
        self.channel = self.connection.channel()

    def connect(self, user: str = "guest", password: str = "guest", vhost: str = "/", **how: Any) -> Any:
        self.connections.append(
            pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", self.port, vhost, pika.PlainCredentials(user, password), **how)
            )
        )
        return self.connections[-1]

    def close(self) -> None:
        for connection in self.connections:
            if connection.is_open:
                connection.close()
        self.unmade()

    # -- what operators do ---------------------------------------------------------------------------------------------

    def manage(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """A request to the management API, `path` in parts: status and answer. What is PUT goes with the scenario."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}/api/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        if method == "PUT" and status < 300:
            self.made.append(path)
        return status, json.loads(text or "null")

    def policy(
        self,
        definition: dict[str, Any],
        name: str = "p",
        kind: str = "policies",
        to: str = "queues",
        pattern: str | None = None,
        priority: int = 0,
    ) -> tuple[int, Any]:
        """A policy for all that begins with the scenario's name (or its `pattern`)."""
        path = f"{kind}/%2F/{urllib.parse.quote(f'{self.prefix} {name}', safe='')}"
        pattern = "^" + re.escape(self.prefix) + re.escape("." if pattern is None else pattern)
        body = {"pattern": pattern.replace("\\ ", " "), "definition": definition, "apply-to": to, "priority": priority}
        return self.manage("PUT", path, body)

    def unmade(self) -> None:
        """Delete everything that operators have made over the management API."""
        while self.made:
            self.manage("DELETE", self.made.pop())

    def user(self, name: str, configure: str, write: str, read: str) -> str:
        """A user with these permissions in vhost /, password "secret"."""
        full = f"{self.prefix}.{name}"
        path = urllib.parse.quote(full, safe="")
        self.manage("PUT", f"users/{path}", {"password": "secret", "tags": ""})
        body = {"configure": configure, "write": write, "read": read}
        self.manage("PUT", f"permissions/%2F/{path}", body)
        return full

    # -- what clients do -----------------------------------------------------------------------------------------------

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

    def until(self, queue: str, count: int, seconds: float = 5) -> None:
        deadline = time.monotonic() + seconds
        while self.count(queue) != count and time.monotonic() < deadline:
            time.sleep(0.01)

    def returns(self, act: Callable[[BlockingChannel], Any]) -> Any:
        """Return the messages that come back from the publishes of `act`, in order."""
        connection = self.connect()
        channel = connection.channel()
        seen: list[Any] = []
        channel.add_on_return_callback(
            lambda _, m, p, b: seen.append(
                (m.reply_code, m.reply_text, m.exchange, m.routing_key, b[:20].decode(), len(b), p.__dict__)
            )
        )
        act(channel)
        channel.basic_qos(prefetch_count=1)
        self.pump(lambda: False, seconds=0.3)
        return seen

    def gone(self, queue: str) -> Any:
        """Return the error of a passive declaration once the queue is gone; None if it is there after 5 seconds."""
        deadline = time.monotonic() + 5
        while (answer := self.error(lambda c: c.queue_declare(queue, passive=True))) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return answer

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

    def error(self, act: Callable[[BlockingChannel, *Given], object], *given: *Given, connection: Any = None) -> Any:
        """(code, text, closes the connection) of what `act` is refused with."""
        other = connection or self.connect()
        try:
            channel = other.channel()
            act(channel, *given)
            channel.basic_qos(prefetch_count=1)
        except ChannelClosedByBroker as error:
            return error.reply_code, error.reply_text, False
        except ConnectionClosedByBroker as error:
            return error.reply_code, error.reply_text, True
        except StreamLostError:
            return "the connection was cut"
        finally:
            if connection is None and other.is_open:
                with contextlib.suppress(AMQPError):
                    other.close()
        return None
