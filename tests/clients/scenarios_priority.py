"""Scenarios of priorities and delays; those of quorum queues differ between the profiles. See scenarios.py."""

from collections.abc import Callable
from typing import Any

import pika

from tests.clients.peer import QUORUM, Peer

FIVE = {"x-max-priority": 5}
MIXED = (("a", None), ("b", 1), ("c", 9), ("d", 5), ("e", 0), ("f", 4), ("g", 1))


def mixed(peer: Peer, arguments: dict[str, Any]) -> str:
    """A queue with messages of many priorities."""
    queue = peer.queue(arguments)
    for body, priority in MIXED:
        peer.publish(queue, body, **({} if priority is None else {"priority": priority}))
    peer.until(queue, min(len(MIXED), arguments.get("x-max-length", len(MIXED))))
    return queue


def order(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    return lambda peer: peer.drain(mixed(peer, arguments))


def consumed(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    """By a consumer with a prefetch of one, which acks."""

    def scenario(peer: Peer) -> Any:
        queue = mixed(peer, arguments)
        bodies: list[str] = []

        def take(channel: Any, method: Any, _: Any, body: bytes) -> None:
            bodies.append(body.decode())
            channel.basic_ack(method.delivery_tag)

        peer.channel.basic_qos(prefetch_count=1)
        peer.channel.basic_consume(queue, take)
        peer.pump(lambda: len(bodies) == len(MIXED))
        return bodies

    return scenario


def given_back(arguments: dict[str, Any], how: str) -> Callable[[Peer], Any]:
    """Four are taken and come back: in which order are all served?"""

    def scenario(peer: Peer) -> Any:
        queue = mixed(peer, arguments)
        channel = peer.connect().channel()
        tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(4)]
        if how == "nack":
            channel.basic_nack(tags[-1], multiple=True, requeue=True)
        elif how == "reject":
            for tag in reversed(tags):
                channel.basic_reject(tag, requeue=True)
        else:
            channel.close()
        peer.until(queue, len(MIXED))
        return peer.drain(queue)

    return scenario


def rejected(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    """All are taken and rejected at once: in which order do they die?"""

    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        queue = mixed(peer, {**arguments, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
        taken = peer.consume(queue, len(MIXED))
        other = peer.connect().channel()
        for body, priority in (("h", 3), ("i", 5)):
            count = len(taken) + 1
            other.basic_publish("", queue, body.encode(), pika.BasicProperties(priority=priority))
            peer.pump(lambda: len(taken) == count)  # noqa: B023 - it is done before the next
        peer.channel.basic_nack(taken[-1][0].delivery_tag, multiple=True, requeue=False)
        peer.until(dead, len(MIXED) + 2)
        return [body for body, _ in peer.drain(dead)]

    return scenario


def dropped(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    """At its limit: what is dropped, in which order, and what stays (S-030)."""

    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        more = {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        queue = mixed(peer, {**arguments, **more})
        peer.until(dead, len(MIXED) - 3)
        return [[body for body, _ in peer.drain(dead)], [body for body, _ in peer.drain(queue)]]

    return scenario


def purged(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    return lambda peer: peer.channel.queue_purge(mixed(peer, arguments)).method.message_count


def stuck(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    """Messages of a lower priority whose time is over, behind one of a higher (S-050): are they counted?"""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(arguments)
        peer.publish(queue, "high", priority=5)
        peer.publish(queue, "low", "low", priority=1, expiration="50")
        peer.pump(lambda: False, 0.4)
        counted = peer.count(queue)
        return counted, peer.drain(queue)

    return scenario


# -- how often a message came back, and when it comes again (profile 4.3) ----------------------------------------------


def counted(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    """Given back in every way there is: (redelivered, x-delivery-count, x-acquired-count) of each delivery."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue({**QUORUM, **arguments})
        peer.publish(queue, "a")
        told = []
        for how in ("nack", "reject", "recover", "close", "nack", "reject", "ack"):
            channel = peer.connect().channel()
            peer.until(queue, 1)
            method, properties, _ = channel.basic_get(queue)
            headers = properties.headers or {}
            told.append((method.redelivered, headers.get("x-delivery-count") or None, headers.get("x-acquired-count")))
            if how == "nack":
                channel.basic_nack(method.delivery_tag, requeue=True)
            elif how == "reject":
                channel.basic_reject(method.delivery_tag, requeue=True)
            elif how == "recover":
                channel.basic_recover(requeue=True)
            elif how == "ack":
                channel.basic_ack(method.delivery_tag)
            channel.close()
        return told

    return scenario


def back(peer: Peer, queue: str) -> int:
    """Wait until both messages are ready, or for 1.5 seconds, and return the number of ready messages.

    The message that was given back may wait for its retry, or be on its way."""
    peer.pump(lambda: peer.count(queue) == 2, 1.5)
    return peer.count(queue)


def retried(kind: str, how: str, more: dict[str, Any] | None = None) -> Callable[[Peer], Any]:
    """Given back with another behind it: which comes first, is it counted meanwhile, and does it come again?"""

    def scenario(peer: Peer) -> Any:
        retry = {"x-delayed-retry-type": kind, "x-delayed-retry-min": 2_500, **(more or {})}
        queue = peer.queue({**QUORUM, **retry})
        peer.publish(queue, "a", "b")
        peer.until(queue, 2)
        got = peer.get(queue, auto_ack=False)
        assert got is not None
        if how == "reject":
            peer.channel.basic_reject(got[0].delivery_tag, requeue=True)
        else:
            peer.channel.basic_nack(got[0].delivery_tag, requeue=True)
        ready = back(peer, queue)
        first = peer.get(queue)
        second = peer.get(queue)
        return ready, *((each[2], each[0].redelivered) for each in (first, second) if each)

    return scenario


def retry_purged(peer: Peer) -> Any:
    queue = peer.queue({**QUORUM, "x-delayed-retry-type": "all", "x-delayed-retry-min": 60_000})
    peer.publish(queue, "a", "b")
    peer.until(queue, 2)
    got = peer.get(queue, auto_ack=False)
    assert got is not None
    peer.channel.basic_nack(got[0].delivery_tag, requeue=True)
    back(peer, queue)
    return peer.channel.queue_purge(queue).method.message_count


def retry_and_limit(peer: Peer) -> Any:
    """One waits, one more is published than fits: what is dropped?"""
    arguments = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 2_500, "x-max-length": 2}
    queue = peer.queue({**QUORUM, **arguments})
    peer.publish(queue, "a", "b")
    peer.until(queue, 2)
    got = peer.get(queue, auto_ack=False)
    assert got is not None
    peer.channel.basic_nack(got[0].delivery_tag, requeue=True)
    back(peer, queue)
    peer.publish(queue, "c")
    peer.pump(lambda: False, 2)
    return peer.drain(queue)


def nacked_without_limit(peer: Peer) -> Any:
    queue = peer.queue({**QUORUM, "x-delivery-limit": -1})
    peer.publish(queue, "a", "b", "c")
    peer.until(queue, 3)
    got = peer.get(queue, auto_ack=False)
    assert got is not None
    peer.channel.basic_nack(got[0].delivery_tag, requeue=True)
    peer.until(queue, 3)
    return peer.drain(queue)


RETRIES: dict[str, Callable[[Peer], Any]] = {
    **{
        f"retry {kind}, {how}": retried(kind, how)
        for kind in ("all", "failed", "returned", "disabled")
        for how in ("nack", "reject")
    },
    "retry all, nack, no limit": retried("all", "nack", {"x-delivery-limit": -1}),
    "retry all, nack, maximum below minimum": retried("all", "nack", {"x-delayed-retry-max": 1}),
    "retry of nonsense": retried("sometimes", "nack"),
    "retry purged": retry_purged,
    "retry and limit": retry_and_limit,
    "counted": counted({}),
    "counted, limit 9": counted({"x-delivery-limit": 9}),
    "nacked, no limit": nacked_without_limit,
}

SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    f"priority, {kind}: {what}": scenario
    for kind, arguments in (("classic", FIVE), ("classic of 255", {"x-max-priority": 255}), ("quorum", QUORUM))
    for what, scenario in (
        ("order", order(arguments)),
        ("consumed", consumed(arguments)),
        ("nacked", given_back(arguments, "nack")),
        ("rejected with requeue", given_back(arguments, "reject")),
        ("channel closed", given_back(arguments, "close")),
        ("rejected", rejected(arguments)),
        ("dropped", dropped(arguments)),
        ("purged", purged(arguments)),
        ("stuck behind the head", stuck(arguments)),
    )
} | RETRIES
