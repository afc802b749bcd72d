"""Scenarios of messages that die: limits, time, dead letters. See scenarios.py."""

import time
from collections.abc import Callable
from typing import Any

import pika
from pika.exceptions import NackError

from tests.clients.peer import Peer


def x_death(properties: pika.BasicProperties) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in entry.items() if key != "time"} for entry in properties.headers.get("x-death", [])
    ]


def death_headers(properties: pika.BasicProperties) -> dict[str, Any]:
    """Without x-last-death-*, which is new in 3.13 (S-155)."""
    kept = {
        key: value
        for key, value in sorted(properties.headers.items())
        if key != "x-death" and not key.startswith("x-last-death-")
    }
    return {"x-death": x_death(properties), "expiration": properties.expiration, **kept}


# -- dead letters ------------------------------------------------------------------------------------------------------


def dead_letter(reason: str, arguments: dict[str, Any] | None = None) -> Callable[[Peer], Any]:
    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        more = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, **(arguments or {})}
        if reason == "maxlen":
            more["x-max-length"] = 1
        if reason == "delivery_limit":
            more["x-delivery-limit"] = 1
        queue = peer.queue(more)
        options = {"expiration": "30"} if reason == "expired" else {"expiration": "60000"}
        peer.publish(queue, "a", **options, headers={"mine": 1})
        if reason == "maxlen":
            peer.publish(queue, "b")
        for _ in range({"rejected": 1, "delivery_limit": 2}.get(reason, 0)):
            got = peer.get(queue, auto_ack=False)
            assert got is not None
            peer.channel.basic_reject(got[0].delivery_tag, requeue=reason == "delivery_limit")
        letter = peer.get(dead)
        assert letter is not None, "no letter came"
        return letter[2], letter[0].exchange, letter[0].routing_key == dead, death_headers(letter[1])

    return scenario


def dead_letter_twice(peer: Peer) -> Any:
    """Rejected from one queue, expired in the next: both entries, the latest first; and again: counts."""
    to = "x-dead-letter-routing-key"
    peer.queue({"x-message-ttl": 30, "x-dead-letter-exchange": "", to: f"{peer.prefix}.first"}, name="second")
    first = peer.queue({"x-dead-letter-exchange": "", to: f"{peer.prefix}.second"}, name="first")
    peer.publish(first, "a")
    for _ in range(2):
        got = peer.get(first, auto_ack=False)
        assert got is not None
        peer.channel.basic_reject(got[0].delivery_tag, requeue=False)
    got = peer.get(first)
    assert got is not None
    return death_headers(got[1])


def dead_letter_cycle(peer: Peer) -> Any:
    """A cycle without a rejection ends (S-155)."""
    a = peer.queue(
        {"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{peer.prefix}.b"}, name="a"
    )
    b = peer.queue({"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": a}, name="b")
    peer.publish(a, "x")
    time.sleep(0.5)
    return peer.count(a), peer.count(b)


# -- limits ------------------------------------------------------------------------------------------------------------


def published_with_confirms(peer: Peer, queue: str, *bodies: str) -> list[str]:
    channel = peer.connection.channel()
    channel.confirm_delivery()
    answers = []
    for body in bodies:
        try:
            channel.basic_publish("", queue, body.encode(), pika.BasicProperties(delivery_mode=2))
            answers.append("ack")
        except NackError:
            answers.append("nack")
    return answers


def limit(arguments: dict[str, Any], bodies: tuple[str, ...] = ("a", "b", "c", "d", "e")) -> Callable[[Peer], Any]:
    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        queue = peer.queue({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, **arguments})
        answers = published_with_confirms(peer, queue, *bodies)
        time.sleep(0.1)
        return answers, peer.drain(queue), [body for body, _ in peer.drain(dead)]

    return scenario


def limit_counts_ready_only(peer: Peer) -> Any:
    """S-005: what is out does not count; what comes back does, and pushes the oldest out."""
    queue = peer.queue({"x-max-length": 2})
    peer.publish(queue, "a", "b")
    peer.until(queue, 2)
    taken = [peer.get(queue, auto_ack=False) for _ in range(2)]
    peer.publish(queue, "c", "d")
    peer.until(queue, 2)
    for got in taken:
        assert got is not None
        peer.channel.basic_reject(got[0].delivery_tag, requeue=True)
    time.sleep(0.1)
    return peer.drain(queue)


# -- time --------------------------------------------------------------------------------------------------------------


def ttl_zero(peer: Peer) -> Any:
    """S-039: gone when nobody takes it at once, delivered when a consumer waits."""
    queue = peer.queue({"x-message-ttl": 0})
    peer.publish(queue, "gone")
    time.sleep(0.1)
    empty = peer.get(queue, seconds=0.1)
    taken = peer.consume(queue, 0, auto_ack=True)
    peer.publish(queue, "there")
    peer.pump(lambda: bool(taken))
    return empty, [body for _, _, body in taken]


def expiry_behind_the_head(peer: Peer) -> Any:
    """S-044, S-046: an expired message behind an unexpired one still counts, and is never delivered."""
    queue = peer.queue()
    peer.publish(queue, "long", expiration="60000")
    peer.publish(queue, "short", expiration="20")
    peer.publish(queue, "none")
    time.sleep(0.3)
    return peer.count(queue), peer.drain(queue)


def smaller_ttl_wins(peer: Peer) -> Any:
    """S-042."""
    queue = peer.queue({"x-message-ttl": 60000})
    peer.publish(queue, "short", expiration="20")
    short = peer.queue({"x-message-ttl": 20}, name="short")
    peer.publish(short, "long", expiration="60000")
    time.sleep(0.3)
    return peer.count(queue), peer.count(short)


def rejected_with_copies(peer: Peer) -> Any:
    """Dead letters of a message with CC and BCC: routing-keys of x-death, headers as they come out."""
    dead = peer.queue(name="dead")
    queue = peer.queue({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    peer.publish(queue, "a", headers={"CC": ["other"], "BCC": ["secret"]})
    got = peer.get(queue, auto_ack=False)
    assert got is not None
    peer.channel.basic_reject(got[0].delivery_tag, requeue=False)
    letter = peer.get(dead)
    assert letter is not None
    return death_headers(letter[1])


def dead_letter_by_topic(peer: Peer) -> Any:
    """Without x-dead-letter-routing-key a letter keeps its key; without a DLX that exists it is dropped."""
    dead = peer.queue(name="dead")
    peer.channel.queue_bind(dead, "amq.topic", "orders.#")
    queue = peer.queue({"x-dead-letter-exchange": "amq.topic"})
    peer.channel.queue_bind(queue, "amq.direct", "orders.eu")
    nowhere = peer.queue({"x-dead-letter-exchange": "missing"}, name="nowhere")
    for exchange, key in (("amq.direct", "orders.eu"), ("", nowhere)):
        peer.channel.basic_publish(exchange, key, key.encode())
    for name in (queue, nowhere):
        got = peer.get(name, auto_ack=False)
        assert got is not None
        peer.channel.basic_reject(got[0].delivery_tag, requeue=False)
    letter = peer.get(dead)
    assert letter is not None
    return letter[0].exchange, letter[0].routing_key, death_headers(letter[1]), peer.drain(dead), peer.count(nowhere)


def expiry_of_requeued(peer: Peer) -> Any:
    """S-051: what returns keeps its time; what is out when its time comes is gone at its return."""
    dead = peer.queue(name="dead")
    queue = peer.queue({"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    peer.publish(queue, "a", "b")
    got = peer.get(queue, auto_ack=False)
    assert got is not None
    peer.until(dead, 1)
    first = peer.drain(dead)
    peer.channel.basic_reject(got[0].delivery_tag, requeue=True)
    peer.until(dead, 1)
    return first, peer.drain(dead), peer.count(queue)


def expires(peer: Peer) -> Any:
    """S-053, S-057: a queue that nobody uses goes; one that has a consumer stays."""
    queue = peer.queue({"x-expires": 1000})
    used = peer.queue({"x-expires": 1000}, name="used")
    peer.consume(used, 0)
    time.sleep(1.6)
    return peer.error(lambda c: c.queue_declare(queue, passive=True)), peer.count(used)


def full_and_fanned_out(peer: Peer) -> Any:
    """S-010, S-011: refused by one queue: nacked, and in the other all the same."""
    full = peer.queue({"x-max-length": 1, "x-overflow": "reject-publish"}, name="full")
    free = peer.queue(name="free")
    channel = peer.connection.channel()
    channel.exchange_declare(peer.prefix, "fanout")
    for queue in (full, free):
        channel.queue_bind(queue, peer.prefix)
    channel.confirm_delivery()
    answers = []
    for body in (b"a", b"b"):
        try:
            channel.basic_publish(peer.prefix, "", body)
            answers.append("ack")
        except NackError:
            answers.append("nack")
    return answers, peer.drain(full), peer.drain(free)
