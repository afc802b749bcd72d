"""Scenarios of what is refused: declarations and other methods, codes and texts. See scenarios.py."""

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.clients.peer import QUORUM, Peer

BAD_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "x-max-length": (-1, "1", True, 2**40),
    "x-max-length-bytes": (-1, "x"),
    "x-message-ttl": (-1, 315_360_000_001, "60000"),
    "x-expires": (0, -1),
    "x-overflow": ("drop", 1),
    "x-max-priority": (256, -1),
    "x-queue-type": ("linked", 1),
    "x-dead-letter-exchange": (1,),
    "x-dead-letter-routing-key": ("k",),
    "x-single-active-consumer": ("yes",),
    "x-unknown": ("fine",),
    "x-queue-mode": ("strange", "lazy"),
    "x-delivery-limit": (3,),
}


def bad_arguments(peer: Peer) -> Any:
    return {
        f"{key}={value!r}": peer.error(lambda channel, bad: channel.queue_declare("bad", arguments=bad), {key: value})
        for key, values in BAD_ARGUMENTS.items()
        for value in values
    }


def bad_quorum(peer: Peer) -> Any:
    def declare(more: dict[str, Any], **options: Any) -> Any:
        options.setdefault("durable", True)
        name = f"{peer.prefix} {sorted(options.items())} {more}"
        return peer.error(lambda channel: channel.queue_declare(name, arguments={**QUORUM, **more}, **options))

    return {
        "not durable": declare({}, durable=False),
        "exclusive": declare({}, exclusive=True),
        "auto-delete": declare({}, auto_delete=True),
        "priority": declare({"x-max-priority": 3}),
        "group size": declare({"x-quorum-initial-group-size": 0}),
        "server-named": peer.error(lambda channel: channel.queue_declare("", durable=True, arguments=QUORUM)),
        "reject-publish-dlx": declare({"x-overflow": "reject-publish-dlx"}),
    }


def negative_delivery_limit(peer: Peer) -> Any:
    return peer.error(
        lambda c: c.queue_declare(peer.prefix, durable=True, arguments={**QUORUM, "x-delivery-limit": -1})
    )


def inequivalent(peer: Peer) -> Any:
    queue = peer.queue({"x-max-length": 5})
    return [
        peer.error(lambda channel: channel.queue_declare(queue, durable=False, arguments={"x-max-length": 5})),
        peer.error(lambda channel: channel.queue_declare(queue, durable=True, arguments={"x-max-length": 6})),
        peer.error(lambda channel: channel.queue_declare(queue, durable=True)),
        peer.error(
            lambda channel: channel.queue_declare(queue, durable=True, auto_delete=True, arguments={"x-max-length": 5})
        ),
        peer.error(lambda channel: channel.queue_declare(queue, durable=True, arguments={"x-max-length": 5, **QUORUM})),
        peer.error(
            lambda channel: channel.queue_declare(queue, durable=True, exclusive=True, arguments={"x-max-length": 5})
        ),
        peer.error(lambda channel: channel.queue_declare(queue, passive=True)),
    ]


def refusals(peer: Peer) -> Any:
    """Errors of the other methods, codes and texts."""
    queue = peer.queue()
    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "passive": lambda c: c.queue_declare("nowhere", passive=True),
        "consume": lambda c: c.basic_consume("nowhere", print),
        "get": lambda c: c.basic_get("nowhere"),
        "purge": lambda c: c.queue_purge("nowhere"),
        "delete": lambda c: c.queue_delete("nowhere"),
        "bind to nothing": lambda c: c.queue_bind(queue, "nowhere"),
        "bind nothing": lambda c: c.queue_bind("nowhere", "amq.topic"),
        "unbind": lambda c: c.queue_unbind(queue, "amq.topic", "none"),
        "bind default": lambda c: c.queue_bind(queue, ""),
        "publish": lambda c: c.basic_publish("nowhere", "", b""),
        "exchange type": lambda c: c.exchange_declare("strange", "strange"),
        "exchange other type": lambda c: c.exchange_declare("amq.topic", "fanout", durable=True),
        "exchange reserved": lambda c: c.exchange_declare("amq.mine", "fanout"),
        "exchange passive": lambda c: c.exchange_declare("nowhere", passive=True),
        "exchange delete": lambda c: c.exchange_delete("nowhere"),
        "exchange delete amq": lambda c: c.exchange_delete("amq.topic"),
        "exchange delete default": lambda c: c.exchange_delete(""),
        "reserved": lambda c: c.queue_declare("amq.mine"),
        "long name": lambda c: c.queue_declare("x" * 255),
        "ack": lambda c: c.basic_ack(9),
        "ack multiple": lambda c: c.basic_ack(9, multiple=True),
        "ack all": lambda c: c.basic_ack(0, multiple=True),
        "nack": lambda c: c.basic_nack(9),
        "reject": lambda c: c.basic_reject(9),
        "recover": lambda c: c.basic_recover(requeue=False),
        "qos size": lambda c: c.basic_qos(prefetch_size=1),
        "expiration": lambda c: c.basic_publish("", queue, b"", pika.BasicProperties(expiration="x")),
        "expiration negative": lambda c: c.basic_publish("", queue, b"", pika.BasicProperties(expiration="-1")),
        "expiration large": lambda c: c.basic_publish("", queue, b"", pika.BasicProperties(expiration="9" * 15)),
        "user id": lambda c: c.basic_publish("", queue, b"", pika.BasicProperties(user_id="else")),
        "consumer priority": lambda c: c.basic_consume(queue, print, arguments={"x-priority": "high"}),
        "headers bind": lambda c: c.queue_bind(queue, "amq.headers", arguments={"x-match": "some"}),
        "if unused": lambda c: (c.basic_consume(queue, print), c.queue_delete(queue, if_unused=True)),
    }
    answers = {name: peer.error(act) for name, act in acts.items()}
    peer.publish(queue, "a")
    peer.until(queue, 1)
    answers["if empty"] = peer.error(lambda c: c.queue_delete(queue, if_empty=True))
    answers["same tag"] = peer.error(
        lambda c: (c.basic_consume(queue, print, consumer_tag="t"), c._impl.basic_consume(queue, consumer_tag="u"))
    )
    return answers


def exclusive_from_elsewhere(peer: Peer) -> Any:
    queue = peer.queue(durable=False, exclusive=True)
    acts: list[Callable[[BlockingChannel], Any]] = [
        lambda c: c.queue_declare(queue, passive=True),
        lambda c: c.queue_declare(queue, exclusive=True),
        lambda c: c.queue_declare(queue),
        lambda c: c.basic_consume(queue, print),
        lambda c: c.queue_delete(queue),
        lambda c: c.queue_purge(queue),
        lambda c: c.basic_get(queue),
        lambda c: c.queue_bind(queue, "amq.topic", "k"),
        lambda c: c.basic_publish("", queue, b"allowed"),
    ]
    return [peer.error(act) for act in acts]


def exclusive_consumer(peer: Peer) -> Any:
    queue = peer.queue()
    peer.consume(queue, 0, exclusive=True)
    first = peer.error(lambda c: c.basic_consume(queue, print))
    other = peer.queue(name="other")
    peer.consume(other, 0)
    return (
        first,
        peer.error(lambda c: c.basic_consume(other, print, exclusive=True)),
        peer.error(lambda c: c.basic_get(queue)),
    )
