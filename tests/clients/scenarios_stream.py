"""Scenarios of streams: offsets, retention, what they refuse. See scenarios.py."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.clients.peer import STREAM, Peer


def filled(peer: Peer, count: int = 10, arguments: dict[str, Any] | None = None) -> str:
    queue = peer.queue({**STREAM, **(arguments or {})})
    channel = peer.connect().channel()
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, f"{number}".encode())
    return queue


def read(peer: Peer, queue: str, offset: Any, count: int, seconds: float = 0.6) -> list[Any]:
    """(body, offset) of the first `count` from `offset`, or fewer."""
    channel = peer.connect().channel()
    channel.basic_qos(prefetch_count=100)
    taken: list[Any] = []
    arguments = {} if offset is None else {"x-stream-offset": offset}
    channel.basic_consume(
        queue,
        lambda _, m, p, b: taken.append((b.decode(), (p.headers or {}).get("x-stream-offset"))),
        arguments=arguments,
    )
    peer.pump(lambda: len(taken) >= count, seconds)
    channel.close()
    return taken


def offsets(peer: Peer) -> Any:
    """From each kind of offset: what is read, and that all can be read again."""
    queue = filled(peer)
    asked: dict[str, tuple[Any, int]] = {
        "none": (None, 0),
        "first": ("first", 10),
        "next": ("next", 0),
        "0": (0, 10),
        "7": (7, 3),
        "99": (99, 0),
        "an hour ago": ("1h", 10),
        "a time ago": (datetime(2020, 1, 1), 10),
        "a time to come": (datetime(2100, 1, 1), 0),
    }
    told = {name: read(peer, queue, offset, count) for name, (offset, count) in asked.items()}
    # "last" is the last chunk, and how much that holds is the broker's matter
    last = read(peer, queue, "last", 1, 2)
    return {**told, "last ends with": last[-1]}


def next_then_more(peer: Peer) -> Any:
    """A consumer at the end gets what comes."""
    queue = filled(peer, 3)
    channel = peer.connect().channel()
    channel.basic_qos(prefetch_count=10)
    taken = peer.consume(queue, 0, channel, arguments={"x-stream-offset": "next"})
    peer.publish(queue, "new")
    peer.pump(lambda: bool(taken))
    return [(body, properties.headers, method.redelivered) for method, properties, body in taken]


def credit(peer: Peer) -> Any:
    """A prefetch holds; acks let on, one by one or many at once."""
    queue = filled(peer, 6)
    channel = peer.connect().channel()
    channel.basic_qos(prefetch_count=2)
    taken = peer.consume(queue, 2, channel, arguments={"x-stream-offset": "first"})
    peer.pump(lambda: False, seconds=0.3)
    told = [[body for *_, body in taken]]
    channel.basic_ack(taken[0][0].delivery_tag)
    peer.pump(lambda: len(taken) == 3)
    channel.basic_ack(taken[2][0].delivery_tag, multiple=True)
    peer.pump(lambda: len(taken) == 5)
    peer.pump(lambda: False, seconds=0.3)
    told.append([body for *_, body in taken])
    return told


def readers_apart(peer: Peer) -> Any:
    """Two readers of a channel get everything each; one is cancelled, the other reads on."""
    queue = filled(peer, 4)
    channel = peer.connect().channel()
    channel.basic_qos(prefetch_count=50)
    one = peer.consume(queue, 4, channel, arguments={"x-stream-offset": "first"}, consumer_tag="one")
    two = peer.consume(queue, 2, channel, arguments={"x-stream-offset": 2})
    channel.basic_cancel("one")
    peer.publish(queue, "after")
    peer.pump(lambda: len(two) == 3)
    return [body for *_, body in one], [body for *_, body in two]


def refused(peer: Peer) -> Any:
    queue = filled(peer, 1)

    def consume(**options: Any) -> Callable[[BlockingChannel], Any]:
        def act(channel: BlockingChannel) -> None:
            channel.basic_qos(prefetch_count=5)
            channel.basic_consume(queue, lambda *_: None, **options)

        return act

    def settle(how: Callable[[BlockingChannel], Any]) -> Callable[[BlockingChannel], Any]:
        def act(channel: BlockingChannel) -> None:
            consume(arguments={"x-stream-offset": "first"})(channel)
            channel.connection.process_data_events(time_limit=0.3)
            how(channel)

        return act

    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "without prefetch": lambda c: c.basic_consume(queue, lambda *_: None),
        "without acks": consume(auto_ack=True),
        "exclusive": consume(exclusive=True),
        "get": lambda c: c.basic_get(queue),
        "purge": lambda c: c.queue_purge(queue),
        "global qos": lambda c: (c.basic_qos(prefetch_count=5, global_qos=True), c.basic_consume(queue, print)),
        "offset text": consume(arguments={"x-stream-offset": "middle"}),
        "offset negative": consume(arguments={"x-stream-offset": -1}),
        "offset list": consume(arguments={"x-stream-offset": [1]}),
        "offset interval": consume(arguments={"x-stream-offset": "1x"}),
        "priority": consume(arguments={"x-priority": 5}),
        "priority text": consume(arguments={"x-priority": "high"}),
        "delete if-unused": lambda c: c.queue_delete(peer.queue(STREAM, name="unused"), if_unused=True),
        "delete if-empty": lambda c: c.queue_delete(peer.queue(STREAM, name="empty"), if_empty=True),
        "reject": settle(lambda c: c.basic_reject(1, requeue=False)),
        "nack": settle(lambda c: c.basic_nack(1, requeue=True)),
        "offset on a classic queue": lambda c: (
            c.queue_declare(f"{peer.prefix}.c"),
            c.basic_qos(prefetch_count=1),
            c.basic_consume(f"{peer.prefix}.c", lambda *_: None, arguments={"x-stream-offset": "middle"}),
        ),
    }
    return {name: peer.error(act) for name, act in acts.items()}


def counted(peer: Peer) -> Any:
    """declare-ok counts what is there, delete-ok nothing; a message that is read stays."""
    queue = filled(peer, 5)
    read(peer, queue, "first", 5)
    peer.until(queue, 5)
    return peer.count(queue), peer.channel.queue_delete(queue).method.message_count, peer.gone(queue)


def expiring(peer: Peer) -> Any:
    """A message's expiration means nothing to a stream; its properties and headers come out as they were."""
    queue = peer.queue(STREAM)
    given = pika.BasicProperties(expiration="1", headers={"a": 1}, priority=3, message_id="m", delivery_mode=1)
    peer.channel.basic_publish("", queue, b"x", given)
    time.sleep(0.1)
    channel = peer.connect().channel()
    channel.basic_qos(prefetch_count=1)
    taken = peer.consume(queue, 1, channel, arguments={"x-stream-offset": "first"})
    return [(body, properties.__dict__) for _, properties, body in taken]


def letters_to_a_stream(peer: Peer) -> Any:
    """A stream as the target of dead letters, and of a fanout with other queues."""
    stream = peer.queue(STREAM, name="stream")
    queue = peer.queue({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": stream})
    peer.channel.exchange_declare(f"{peer.prefix}.x", "fanout")
    for one in (stream, queue):
        peer.channel.queue_bind(one, f"{peer.prefix}.x")
    peer.channel.basic_publish(f"{peer.prefix}.x", "", b"both")
    got = peer.get(queue, auto_ack=False)
    assert got
    peer.channel.basic_reject(got[0].delivery_tag, requeue=False)
    peer.until(stream, 2)
    return peer.count(stream), read(peer, stream, "first", 2, 3)


SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    "stream offsets": offsets,
    "stream, next then more": next_then_more,
    "stream credit": credit,
    "stream, readers apart": readers_apart,
    "stream refuses": refused,
    "stream counted": counted,
    "stream, expiring messages": expiring,
    "stream of dead letters": letters_to_a_stream,
}
