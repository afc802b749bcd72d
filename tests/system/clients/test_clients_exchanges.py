"""Delayed messages, alternate exchanges and hash exchanges work with pika, mandatory flag and confirms included.

scenarios_exchange.py has the cases that can be compared with Debian's RabbitMQ, which has no delayed messages.
"""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.support.pika_clients import connect
from tests.support.running import RunningBroker


@pytest.fixture
def name() -> str:
    return f"x-{uuid.uuid4().hex[:8]}"


def later(channel: BlockingChannel, name: str, kind: str = "direct") -> None:
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments={"x-delayed-type": kind})


def queue(channel: BlockingChannel, exchange: str, name: str, key: str = "k") -> str:
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, exchange, key)
    return name


def send(channel: BlockingChannel, exchange: str, body: str, delay: Any, key: str = "k", **more: Any) -> None:
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay}, **more)
    channel.basic_publish(exchange, key, body.encode(), properties, mandatory=True)


def taken(channel: BlockingChannel, queue: str, count: int, seconds: float = 30) -> list[tuple[str, Any]]:
    """(body, headers), in order."""
    found: list[tuple[str, Any]] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append((body.decode(), properties.headers))
        else:
            assert time.monotonic() < deadline, f"{queue}: {found}"
            time.sleep(0.01)
    return found


def test_delayed_messages_come_by_their_time_and_are_never_returned(channel: BlockingChannel, name: str) -> None:
    later(channel, name)
    queue(channel, name, name)
    started = time.monotonic()
    send(channel, name, "second", 600)
    send(channel, name, "first", "200")
    send(channel, name, "nowhere", 100, key="other")  # mandatory, but whether it can be routed shows later
    with pytest.raises(UnroutableError):
        send(channel, name, "nowhere", 0, key="other")
    send(channel, name, "at once", 0)
    assert taken(channel, name, 3) == [
        ("at once", {"x-delay": 0}),
        ("first", {"x-delay": -200}),
        ("second", {"x-delay": -600}),
    ]
    assert time.monotonic() - started >= 0.6


def test_in_a_transaction_the_delay_begins_with_the_commit(broker: RunningBroker, name: str) -> None:
    connection = connect(broker)
    channel = connection.channel()
    later(channel, name)
    queue(channel, name, name)
    channel.tx_select()
    send(channel, name, "m", 1)
    time.sleep(0.1)
    assert channel.basic_get(name)[0] is None
    channel.tx_commit()
    assert taken(channel, name, 1) == [("m", {"x-delay": -1})]
    connection.close()


def test_delayed_messages_outlive_a_kill(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    first = start_broker(tmp_path / "data")
    connection = connect(first)
    channel = connection.channel()
    channel.confirm_delivery()
    later(channel, "later", "fanout")
    queue(channel, "later", "q")
    for number in range(10):
        send(channel, "later", f"{number}", 6_000 - 500 * number)
    first.kill()
    second = start_broker(tmp_path / "data")
    connection = connect(second)
    channel = connection.channel()
    assert [body for body, _ in taken(channel, "q", 10)] == [f"{number}" for number in reversed(range(10))]
    time.sleep(0.5)
    assert channel.basic_get("q")[0] is None
    connection.close()


def test_what_the_alternate_exchange_takes_is_not_returned(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "topic", arguments={"alternate-exchange": f"{name}-spare"})
    with pytest.raises(UnroutableError):  # it may come later
        channel.basic_publish(name, "a.b", b"m", mandatory=True)
    channel.exchange_declare(f"{name}-spare", "fanout", internal=True)
    queue(channel, f"{name}-spare", name)
    channel.basic_publish(name, "a.b", b"m", mandatory=True)
    assert [body for body, _ in taken(channel, name, 1)] == ["m"]


def test_a_hash_exchange_keeps_what_belongs_together(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "x-consistent-hash", arguments={"hash-header": "customer"})
    shards = [queue(channel, name, f"{name}-{shard}", "10") for shard in range(4)]
    for number in range(200):
        headers = {"customer": f"c{number % 20}"}
        channel.basic_publish(name, f"{number}", b"", pika.BasicProperties(headers=headers), mandatory=True)
    found = [{headers["customer"] for _, headers in drained(channel, shard)} for shard in shards]
    assert sum(map(len, found)) == 20  # each customer in one of them
    assert all(found)


def drained(channel: BlockingChannel, queue: str) -> list[tuple[str, Any]]:
    return taken(channel, queue, channel.queue_declare(queue, passive=True).method.message_count)


def test_the_hidden_queue_is_nobodys(broker: RunningBroker, channel: BlockingChannel, name: str) -> None:
    later(channel, name)
    other = connect(broker)
    acts: tuple[Callable[[BlockingChannel], object], ...] = (
        lambda c: c.queue_declare(f"amq.delayed.{name}", passive=True),
        lambda c: c.basic_get(f"amq.delayed.{name}"),
        lambda c: c.queue_delete(f"amq.delayed.{name}"),
    )
    for act in acts:
        with pytest.raises(ChannelClosedByBroker) as refused:
            act(other.channel())
        assert refused.value.reply_code == 403
    with pytest.raises(UnroutableError):
        channel.basic_publish("", f"amq.delayed.{name}", b"", mandatory=True)
    other.close()
