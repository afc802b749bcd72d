"""basic.qos global, set and changed while consumers are there. One queue a scenario: RewindMQ counts a channel's limit
by the partition (docs/differences.md)."""

import time
from typing import Any

from tests.clients.peer import Peer


def held(peer: Peer, *consumers: list[Any]) -> list[int]:
    """Return the number of each consumer's deliveries, once none has arrived for 0.3 seconds."""
    counts: list[int] = []
    while counts != (now := [len(consumer) for consumer in consumers]):
        counts = now
        until = time.monotonic() + 0.3
        peer.pump(lambda: time.monotonic() > until)  # noqa: B023
    return counts


def tag(delivery: Any) -> int:
    return int(delivery[0].delivery_tag)


def changed_under_way(peer: Peer) -> Any:
    """Set after the consumer came, raised, lowered, lifted, with its own prefetch of eight."""
    queue, channel = peer.queue(), peer.connect().channel()
    channel.basic_qos(prefetch_count=8)
    taken = peer.consume(queue, 0, channel)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    peer.publish(queue, *(f"{number}" for number in range(40)))
    told = [held(peer, taken)]
    for prefetch in (5, 3):
        channel.basic_qos(prefetch_count=prefetch, global_qos=True)
        told.append(held(peer, taken))
    for each in (0, 1, 2):
        channel.basic_ack(tag(taken[each]))
        told.append(held(peer, taken))
    channel.basic_qos(prefetch_count=0, global_qos=True)
    told.append(held(peer, taken))
    return told


def set_late(peer: Peer) -> Any:
    """A late global prefetch counts earlier deliveries, also those of a cancelled consumer.

    A basic.qos that is not global lifts it."""
    queue, channel = peer.queue(), peer.connect().channel()
    peer.publish(queue, *(f"{number}" for number in range(30)))
    channel.basic_qos(prefetch_count=2)
    first = peer.consume(queue, 2, channel, consumer_tag="first")
    second = peer.consume(queue, 2, channel)
    channel.basic_cancel("first")
    channel.basic_qos(prefetch_count=3, global_qos=True)
    third = peer.consume(queue, 0, channel)
    told = [held(peer, first, second, third)]
    channel.basic_ack(tag(first[0]))
    told.append(held(peer, first, second, third))
    channel.basic_ack(tag(first[1]))
    told.append(held(peer, first, second, third))
    channel.basic_qos(prefetch_count=1)
    told.append(held(peer, first, second, third))
    return told


def no_ack_is_held_back(peer: Peer) -> Any:
    """A limit that is reached stops the channel's consumers with no_ack too, though theirs never counts."""
    queue, channel = peer.queue(), peer.connect().channel()
    channel.basic_qos(prefetch_count=2, global_qos=True)
    holds = peer.consume(queue, 0, channel)
    peer.publish(queue, "a", "b", "c")
    told = [held(peer, holds)]
    free = peer.consume(queue, 0, channel, auto_ack=True)
    told.append(held(peer, holds, free))
    channel.basic_cancel(holds[0][0].consumer_tag)
    channel.basic_ack(tag(holds[0]))
    peer.publish(queue, "d", "e")
    told.append(held(peer, holds, free))
    return told
