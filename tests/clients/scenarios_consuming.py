"""Scenarios of consumers: who gets what, single active, cancelled, held back; basic.get. See scenarios.py."""

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.clients.peer import QUORUM, Peer

SINGLE = {"x-single-active-consumer": True}


def bodies(taken: list[Any]) -> list[str]:
    return [body for *_, body in taken]


def settle(peer: Peer, seconds: float = 0.3) -> None:
    """Until what is under way has come."""
    peer.pump(lambda: False, seconds)


# -- single active consumer --------------------------------------------------------------------------------------------


def single_active_takes_over(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """By cancel, with messages still out at the one before; by the end of a channel. The publishes in between wake
    RabbitMQ's classic queues, which do not serve a new active consumer before something comes."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue({**kind, **SINGLE})
        channels = [peer.connect().channel() for _ in range(2)]
        for channel in channels:
            channel.basic_qos(prefetch_count=2)
        taken = [peer.consume(queue, 0, channel, consumer_tag=f"t{n}") for n, channel in enumerate(channels)]
        peer.publish(queue, *"abc")
        peer.pump(lambda: len(taken[0]) == 2)
        told = [[bodies(got) for got in taken]]
        channels[0].basic_cancel("t0")
        peer.publish(queue, "d")
        peer.pump(lambda: len(taken[1]) == 2)
        told.append([bodies(got) for got in taken])
        channels[0].basic_ack(taken[0][1][0].delivery_tag, multiple=True)
        third = peer.consume(queue, 0, channels[0])
        peer.publish(queue, "e")
        settle(peer)
        told.append([bodies(got) for got in taken])
        channels[1].close()
        peer.publish(queue, "f")
        peer.pump(lambda: len(third) == 2)
        return told, bodies(third)

    return scenario


def single_active_refuses(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    def scenario(peer: Peer) -> Any:
        queue = peer.queue({**kind, **SINGLE})
        exclusive = peer.error(lambda c: c.basic_consume(queue, print, exclusive=True))
        peer.publish(queue, "a")
        peer.until(queue, 1)
        return exclusive, peer.error(lambda c: c.basic_get(queue))

    return scenario


def single_active_with_priority(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """A consumer of higher priority comes later."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue({**kind, **SINGLE})
        first, second = (peer.connect().channel() for _ in range(2))
        for channel in (first, second):
            channel.basic_qos(prefetch_count=1)
        low = peer.consume(queue, 0, first, arguments={"x-priority": 1})
        peer.publish(queue, "a")
        peer.pump(lambda: len(low) == 1)
        high = peer.consume(queue, 0, second, arguments={"x-priority": 9})
        peer.publish(queue, "b", "c")
        settle(peer)
        told = [bodies(low), bodies(high)]
        first.basic_ack(low[0][0].delivery_tag)
        settle(peer)
        return told, bodies(low), bodies(high)

    return scenario


def exclusive(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """A consumer that wants the queue alone, before and after another."""

    def scenario(peer: Peer) -> Any:
        alone, shared = peer.queue(kind, name="alone"), peer.queue(kind, name="shared")
        peer.consume(alone, 0, exclusive=True, consumer_tag="t")
        peer.consume(shared, 0)
        told = [
            peer.error(lambda c: c.basic_consume(alone, print)),
            peer.error(lambda c: c.basic_consume(shared, print, exclusive=True)),
            peer.error(lambda c: c.basic_get(alone)),
        ]
        peer.channel.basic_cancel("t")
        return told, peer.error(lambda c: c.basic_consume(alone, print, exclusive=True))

    return scenario


# -- the end of a consumer ---------------------------------------------------------------------------------------------


def cancel_notify(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """basic.cancel from the server when the queue goes; acks of what was out are no error."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(kind)
        peer.publish(queue, "a", "b")
        peer.until(queue, 2)
        channel = peer.connect().channel()
        seen: list[str] = []
        channel.add_on_cancel_callback(lambda frame: seen.append(frame.method.consumer_tag))
        taken = peer.consume(queue, 2, channel, consumer_tag="told")
        peer.channel.queue_delete(queue)
        peer.pump(lambda: bool(seen))
        channel.basic_ack(taken[-1][0].delivery_tag, multiple=True)
        channel.basic_cancel("told")
        channel.basic_qos(prefetch_count=1)
        return seen, channel.is_open

    return scenario


def no_notify_wanted(peer: Peer) -> Any:
    """A client without the capability is not told."""
    queue = peer.queue()
    connection = peer.connect(client_properties={"capabilities": {"consumer_cancel_notify": False}})
    channel = connection.channel()
    seen: list[str] = []
    channel.add_on_cancel_callback(lambda frame: seen.append(frame.method.consumer_tag))
    peer.consume(queue, 0, channel, consumer_tag="silent")
    peer.channel.queue_delete(queue)
    settle(peer)
    channel.basic_qos(prefetch_count=1)
    return seen


def tags(peer: Peer) -> Any:
    """A tag of a cancelled consumer is free; one in use closes the connection; unknown ones are cancelled quietly."""
    queue = peer.queue()
    channel = peer.connect().channel()
    peer.consume(queue, 0, channel, consumer_tag="t")
    channel.basic_cancel("t")
    peer.consume(queue, 0, channel, consumer_tag="t")
    generated = channel._impl
    from pika import spec

    def twice(c: BlockingChannel) -> None:
        for _ in range(2):
            c._impl._send_method(spec.Basic.Consume(queue=queue, consumer_tag="same", nowait=True))

    def unknown(c: BlockingChannel) -> None:
        c._impl._send_method(spec.Basic.Cancel(consumer_tag="nobody", nowait=True))

    other = peer.connect().channel()
    peer.consume(queue, 0, other, consumer_tag="t")  # a tag is the channel's own
    return generated.is_open, peer.error(twice), peer.error(unknown)


def channel_closed_with_deliveries(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Two channels of a connection: what each held comes back as it was held."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(kind)
        peer.publish(queue, *"abcdef")
        peer.until(queue, 6)
        connection = peer.connect()
        one, two = connection.channel(), connection.channel()
        for channel in (one, two):
            channel.basic_qos(prefetch_count=2)
            peer.consume(queue, 2, channel)
        one.close()
        peer.until(queue, 4)
        first = peer.count(queue)
        two.close()
        peer.until(queue, 6)
        return first, peer.drain(queue)

    return scenario


# -- prefetch ----------------------------------------------------------------------------------------------------------


def prefetch_of_each(peer: Peer) -> Any:
    """basic.qos counts for consumers that come after it; 0 is no limit; acks multiple let as many follow."""
    queue = peer.queue()
    peer.publish(queue, *(f"{number}" for number in range(30)))
    peer.until(queue, 30)
    channel = peer.connect().channel()
    channel.basic_qos(prefetch_count=3)
    taken = peer.consume(queue, 3, channel)
    channel.basic_qos(prefetch_count=5)
    settle(peer)
    told = [len(taken)]
    channel.basic_ack(taken[1][0].delivery_tag, multiple=True)
    peer.pump(lambda: len(taken) == 5)
    told.append(len(taken))
    channel.basic_nack(taken[2][0].delivery_tag, requeue=False)
    peer.pump(lambda: len(taken) == 6)
    other = peer.consume(queue, 5, channel)
    settle(peer)
    return *told, len(taken), len(other), bodies(other)


def no_ack(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Nothing is out; prefetch does not hold; acks of such tags are unknown."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(kind)
        peer.publish(queue, *"abc")
        peer.until(queue, 3)
        channel = peer.connect().channel()
        channel.basic_qos(prefetch_count=1)
        taken = peer.consume(queue, 3, channel, auto_ack=True)
        left = peer.count(queue)
        wrong = peer.error(lambda c: (c.basic_get(queue, auto_ack=True), c.basic_ack(1)))
        return bodies(taken), left, wrong

    return scenario


def consumer_priorities(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Highest first while it has room; equal ones in turn; negative and large priorities."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(kind)
        taken = {}
        for name, priority in {"low": -5, "none": None, "ten": 10, "ten again": 10}.items():
            channel = peer.connect().channel()
            channel.basic_qos(prefetch_count=2)
            arguments = {} if priority is None else {"x-priority": priority}
            taken[name] = peer.consume(queue, 0, channel, arguments=arguments)
        settle(peer, 0.1)
        for number in range(9):
            peer.publish(queue, f"{number}")
            want = min(number + 1, 8)
            peer.pump(lambda: sum(map(len, taken.values())) >= want)  # noqa: B023
        return {name: bodies(got) for name, got in taken.items()}

    return scenario


# -- basic.get and settlement ------------------------------------------------------------------------------------------


def got(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """message_count of get-ok, tags that count up over get and consume, empty."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(kind)
        peer.publish(queue, *"abc")
        peer.until(queue, 3)
        first, second = peer.get(queue, auto_ack=False), peer.get(queue, auto_ack=False)
        assert first
        assert second
        rest = peer.consume(queue, 1)
        empty = peer.get(queue, seconds=0.1)
        tags = first[0].delivery_tag, second[0].delivery_tag, rest[0][0].delivery_tag
        return first[0].message_count, second[0].message_count, tags, empty, first[0].exchange, first[0].routing_key

    return scenario


def settled_twice(peer: Peer) -> Any:
    """A tag can be settled once, in any order; zero means all."""
    queue = peer.queue()
    peer.publish(queue, *"a" * 20)
    peer.until(queue, 20)

    def take(c: BlockingChannel, count: int) -> list[int]:
        return [c.basic_get(queue)[0].delivery_tag for _ in range(count)]

    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "ack twice": lambda c: (take(c, 1), c.basic_ack(1), c.basic_ack(1)),
        "ack below multiple": lambda c: (take(c, 2), c.basic_ack(2, multiple=True), c.basic_ack(1)),
        "reject then ack": lambda c: (take(c, 1), c.basic_reject(1), c.basic_ack(1)),
        "later first": lambda c: (take(c, 2), c.basic_ack(2), c.basic_ack(1)),
        "multiple over a gap": lambda c: (take(c, 3), c.basic_ack(2), c.basic_ack(3, multiple=True)),
        "multiple again": lambda c: (take(c, 2), c.basic_ack(2, multiple=True), c.basic_ack(2, multiple=True)),
        "zero, nothing out": lambda c: c.basic_ack(0, multiple=True),
        "zero, one": lambda c: c.basic_ack(0),
        "nack zero": lambda c: c.basic_nack(0, multiple=True),
        "from another channel": lambda c: (take(c, 1), (d := c.connection.channel()).basic_ack(1), d.basic_qos()),
        "ahead": lambda c: (take(c, 1), c.basic_ack(5, multiple=True)),
        "reject zero": lambda c: c.basic_reject(0),
    }
    return {name: peer.error(act) for name, act in acts.items()}


def nacked_in_parts(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Acks, rejects and nacks mixed over six messages: what remains, in order, with its counts."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(kind)
        peer.publish(queue, *"abcdefgh")
        peer.until(queue, 8)
        channel = peer.connect().channel()
        channel.basic_qos(prefetch_count=6)
        taken = peer.consume(queue, 6, channel, consumer_tag="t")
        channel.basic_cancel("t")
        tags = [method.delivery_tag for method, *_ in taken]
        channel.basic_ack(tags[1])
        channel.basic_reject(tags[4], requeue=True)
        channel.basic_nack(tags[2], multiple=True, requeue=True)
        channel.basic_reject(tags[3], requeue=False)
        peer.until(queue, 5)
        out = [peer.get(queue) for _ in range(5)]
        channel.basic_nack(tags[5], requeue=True)
        peer.until(queue, 1)
        out.append(peer.get(queue))
        return [(g[2], g[0].redelivered, (g[1].headers or {}).get("x-delivery-count")) for g in out if g]

    return scenario


def recovered(peer: Peer) -> Any:
    """basic.recover gives everything of the channel back, to any consumer."""
    queue = peer.queue()
    peer.publish(queue, *"abc")
    peer.until(queue, 3)
    channel = peer.connect().channel()
    taken = peer.consume(queue, 3, channel)
    channel.basic_ack(taken[0][0].delivery_tag)
    channel.basic_recover(requeue=True)
    peer.pump(lambda: len(taken) == 5)
    again = [(method.delivery_tag, method.redelivered, body) for method, _, body in taken[3:]]
    return again, peer.error(lambda c: c.basic_recover(requeue=False))


def purged(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """A purge takes what is ready and leaves what is out; that returns to an empty queue."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(kind)
        peer.publish(queue, *"abcd")
        peer.until(queue, 4)
        held = peer.get(queue, auto_ack=False)
        assert held
        count = peer.channel.queue_purge(queue).method.message_count
        peer.publish(queue, "e")
        peer.until(queue, 1)
        peer.channel.basic_reject(held[0].delivery_tag, requeue=True)
        peer.until(queue, 2)
        return count, peer.drain(queue)

    return scenario


def delivery_limit(limit: int) -> Callable[[Peer], Any]:
    """A poison message is redelivered with rising counts until it dies at the limit; another is acked meanwhile."""

    def scenario(peer: Peer) -> Any:
        dead = peer.queue(name="dead")
        more = {"x-delivery-limit": limit, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        queue = peer.queue({**QUORUM, **more})
        peer.publish(queue, "poison", "fine")
        peer.until(queue, 2)
        seen: list[Any] = []
        channel = peer.connect().channel()
        channel.basic_qos(prefetch_count=1)

        def on_message(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            seen.append((body.decode(), method.redelivered, (properties.headers or {}).get("x-delivery-count")))
            if body == b"poison":
                channel.basic_nack(method.delivery_tag, requeue=True) if len(seen) % 2 else channel.basic_reject(
                    method.delivery_tag, requeue=True
                )
            else:
                channel.basic_ack(method.delivery_tag)

        channel.basic_consume(queue, on_message)
        peer.pump(lambda: peer.count(dead) == 1 and len(seen) >= limit + 2, seconds=4)
        letter = peer.get(dead)
        assert letter
        return seen[:12], (letter[2], letter[0].redelivered, (letter[1].headers or {}).get("x-delivery-count"))

    return scenario


KINDS: dict[str, dict[str, Any]] = {"classic": {}, "quorum": QUORUM}
SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    **{
        f"{what}, {kind}": make(arguments)
        for what, make in {
            "single active takes over": single_active_takes_over,
            "single active refuses": single_active_refuses,
            "exclusive consumers": exclusive,
            "single active with priority": single_active_with_priority,
            "cancel notify": cancel_notify,
            "channel closed with deliveries": channel_closed_with_deliveries,
            "no ack": no_ack,
            "consumer priorities": consumer_priorities,
            "got": got,
            "nacked in parts": nacked_in_parts,
            "purged": purged,
        }.items()
        for kind, arguments in KINDS.items()
    },
    "no notify wanted": no_notify_wanted,
    "tags": tags,
    "prefetch of each": prefetch_of_each,
    "settled twice": settled_twice,
    "recovered": recovered,
    **{f"delivery limit {limit}": delivery_limit(limit) for limit in (0, 1, 3)},
}
