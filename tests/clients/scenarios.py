"""Scenarios with an outcome that can be compared between brokers: small functions of a `Peer`, by name in SCENARIOS.

An outcome holds no times, generated names or tags. What takes time waits for its effect, not for a moment.
"""

import time
from collections.abc import Callable
from typing import Any

import pika

from tests.clients import (
    scenarios_channel,
    scenarios_consuming,
    scenarios_death,
    scenarios_declare,
    scenarios_exchange,
    scenarios_policy,
    scenarios_priority,
    scenarios_stream,
)
from tests.clients.peer import QUORUM, Peer
from tests.clients.scenarios_dying import (
    dead_letter,
    dead_letter_by_topic,
    dead_letter_cycle,
    dead_letter_twice,
    expires,
    expiry_behind_the_head,
    expiry_of_requeued,
    full_and_fanned_out,
    limit,
    limit_counts_ready_only,
    rejected_with_copies,
    smaller_ttl_wins,
    ttl_zero,
)
from tests.clients.scenarios_prefetch import changed_under_way, no_ack_is_held_back, set_late
from tests.clients.scenarios_refused import (
    bad_arguments,
    bad_quorum,
    exclusive_consumer,
    exclusive_from_elsewhere,
    inequivalent,
    negative_delivery_limit,
    refusals,
)

# -- order after requeue -----------------------------------------------------------------------------------------------


def requeue_order(arguments: dict[str, Any], how: str) -> Callable[[Peer], Any]:
    """Take 3 of 5, give the first and third back, then all that are out: in which order does everything come?"""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(arguments)
        peer.publish(queue, "a", "b", "c", "d", "e")
        peer.until(queue, 5)
        taken = [peer.get(queue, auto_ack=False) for _ in range(3)]
        tags = [got[0].delivery_tag for got in taken if got]
        if how == "reject":
            for tag in (tags[0], tags[2]):
                peer.channel.basic_reject(tag, requeue=True)
        elif how == "nack multiple":
            peer.channel.basic_nack(tags[2], multiple=True, requeue=True)
        elif how == "reverse":
            for tag in reversed(tags):
                peer.channel.basic_nack(tag, requeue=True)
        else:
            peer.channel.basic_recover(requeue=True)
        peer.until(queue, 4 if how == "reject" else 5)
        return peer.drain(queue)

    return scenario


def requeue_to_a_consumer(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    """A consumer with prefetch 2 rejects the first message it sees, twice: what it sees, in order."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(arguments)
        peer.publish(queue, "a", "b", "c", "d")
        peer.until(queue, 4)
        channel = peer.connect().channel()
        channel.basic_qos(prefetch_count=1)
        seen: list[Any] = []

        def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
            headers = properties.headers or {}
            seen.append((body.decode(), method.redelivered, headers.get("x-delivery-count")))
            if len(seen) <= 2:
                channel.basic_reject(method.delivery_tag, requeue=True)
            else:
                channel.basic_ack(method.delivery_tag)

        channel.basic_consume(queue, on_message)
        peer.pump(lambda: len(seen) >= 6)
        return seen

    return scenario


def connection_loss(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    """A consumer dies with all it holds: order, flags and counts of the second delivery."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(arguments)
        peer.publish(queue, "a", "b", "c", "d")
        peer.until(queue, 4)
        other = peer.connect()
        channel = other.channel()
        channel.basic_qos(prefetch_count=3)
        peer.consume(queue, 3, channel)
        other.close()
        peer.until(queue, 4)
        got = [peer.get(queue) for _ in range(4)]
        return [(g[2], g[0].redelivered, (g[1].headers or {}).get("x-delivery-count")) for g in got if g]

    return scenario


# -- consumers ---------------------------------------------------------------------------------------------------------


def round_robin(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    """Three consumers with prefetch 2, ten messages: who gets which, and who gets the next after an ack."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(arguments)
        seen: dict[str, list[Any]] = {"x": [], "y": [], "z": []}
        channels = {}
        for name, got in seen.items():
            channel = channels[name] = peer.connect().channel()
            channel.basic_qos(prefetch_count=2)
            channel.basic_consume(queue, lambda _, m, p, b, g=got: g.append((m.delivery_tag, b.decode())))
        for number in range(10):
            peer.publish(queue, str(number))
            time.sleep(0.02)
        peer.pump(lambda: sum(map(len, seen.values())) == 6)
        channels["y"].basic_ack(1)
        peer.pump(lambda: sum(map(len, seen.values())) == 7)
        channels["x"].basic_ack(2, multiple=True)
        peer.pump(lambda: sum(map(len, seen.values())) == 9)
        return {name: [body for _, body in got] for name, got in seen.items()}, peer.count(queue)

    return scenario


def consumer_priority(arguments: dict[str, Any]) -> Callable[[Peer], Any]:
    def scenario(peer: Peer) -> Any:
        queue = peer.queue(arguments)
        seen: dict[int, list[str]] = {0: [], 5: [], 2: []}
        for priority, got in seen.items():
            channel = peer.connect().channel()
            channel.basic_qos(prefetch_count=2)
            channel.basic_consume(
                queue, lambda _, m, p, b, g=got: g.append(b.decode()), arguments={"x-priority": priority}
            )
        for number in range(5):
            peer.publish(queue, str(number))
            time.sleep(0.02)
        peer.pump(lambda: sum(map(len, seen.values())) == 5)
        return seen

    return scenario


def single_active_consumer(peer: Peer) -> Any:
    queue = peer.queue({"x-single-active-consumer": True})
    first, second = peer.connect(), peer.connect()
    one, two = peer.consume(queue, 0, first.channel()), peer.consume(queue, 0, second.channel())
    peer.publish(queue, "a", "b")
    peer.pump(lambda: len(one) + len(two) >= 2)
    before = [body for *_, body in one], [body for *_, body in two]
    first.close()
    peer.pump(lambda: len(two) >= 2)
    return before, [(body, method.redelivered) for method, _, body in two]


def global_prefetch(peer: Peer) -> Any:
    """basic.qos global: one limit for the channel; on a quorum queue refused (S-097)."""
    queue = peer.queue()
    channel = peer.connect().channel()
    channel.basic_qos(prefetch_count=3, global_qos=True)
    one, two = peer.consume(queue, 0, channel), peer.consume(queue, 0, channel)
    peer.publish(queue, *"abcdef")
    peer.pump(lambda: len(one) + len(two) > 3, seconds=0.5)
    quorum = peer.queue(QUORUM, name="quorum")
    refused = peer.error(lambda c: (c.basic_qos(prefetch_count=3, global_qos=True), c.basic_consume(quorum, print)))
    return len(one) + len(two), refused


def cancel_and_requeue(peer: Peer) -> Any:
    """A cancelled consumer keeps what it holds; closing the channel gives it back."""
    queue = peer.queue()
    peer.publish(queue, "a", "b", "c")
    peer.until(queue, 3)
    channel = peer.connect().channel()
    channel.basic_qos(prefetch_count=2)
    peer.consume(queue, 2, channel, consumer_tag="t")
    channel.basic_cancel("t")
    held = peer.count(queue)
    channel.close()
    peer.until(queue, 3)
    return held, peer.drain(queue)


def counts(peer: Peer) -> Any:
    """purge-ok, delete-ok, declare-ok count what is ready."""
    queue = peer.queue()
    peer.publish(queue, *"abcde")
    peer.until(queue, 5)
    peer.get(queue, auto_ack=False)
    declared = peer.count(queue)
    purged = peer.channel.queue_purge(queue).method.message_count
    peer.publish(queue, "f", "g")
    peer.until(queue, 2)
    return declared, purged, peer.channel.queue_delete(queue).method.message_count


def auto_delete(peer: Peer) -> Any:
    """S-070, S-088."""
    queue = peer.queue(durable=False, auto_delete=True)
    kept = peer.error(lambda c: c.queue_declare(queue, passive=True))
    channel = peer.connect().channel()
    peer.consume(queue, 0, channel, consumer_tag="t")
    channel.basic_cancel("t")
    return kept, peer.error(lambda c: c.queue_declare(queue, passive=True))


def returned(peer: Peer) -> Any:
    channel = peer.connection.channel()
    seen: list[Any] = []
    channel.add_on_return_callback(lambda _, m, p, b: seen.append((m.reply_code, m.reply_text, m.exchange, b)))
    channel.basic_publish("", "nowhere", b"x", mandatory=True)
    channel.basic_publish("amq.direct", "nowhere", b"", mandatory=True)
    channel.basic_publish("amq.direct", "nowhere", b"dropped")
    peer.pump(lambda: len(seen) >= 2)
    return seen


def routing(peer: Peer) -> Any:
    """Topic patterns, headers matches, alternate exchange, exchange to exchange, CC and BCC."""
    channel = peer.channel
    name = peer.prefix
    queues = {key: peer.queue(name=key) for key in ("star", "hash", "all", "any", "lost", "cc", "bcc")}
    channel.exchange_declare(f"{name}.lost", "fanout")
    channel.exchange_declare(f"{name}.t", "topic", arguments={"alternate-exchange": f"{name}.lost"})
    channel.exchange_declare(f"{name}.h", "headers")
    channel.exchange_declare(f"{name}.up", "fanout")
    channel.exchange_bind(f"{name}.t", f"{name}.up")
    channel.queue_bind(queues["lost"], f"{name}.lost")
    channel.queue_bind(queues["star"], f"{name}.t", "a.*.c")
    channel.queue_bind(queues["hash"], f"{name}.t", "a.#")
    channel.queue_bind(queues["all"], f"{name}.h", arguments={"x-match": "all", "k": 1, "s": "x"})
    channel.queue_bind(queues["any"], f"{name}.h", arguments={"x-match": "any", "k": 1, "s": "x"})
    for key in ("a.b.c", "a", "a..c", "b", "", "a.b.c.d"):
        channel.basic_publish(f"{name}.t", key, key.encode())
    channel.basic_publish(f"{name}.up", "a.x.c", b"through")
    for headers in ({"k": 1, "s": "x"}, {"k": 1}, {"k": "1"}, {"s": "x", "z": 2}, {}):
        channel.basic_publish(f"{name}.h", "", str(headers).encode(), pika.BasicProperties(headers=headers))
    copies = {"CC": [queues["cc"]], "BCC": [queues["bcc"]]}
    channel.basic_publish("", "nowhere", b"copies", pika.BasicProperties(headers=copies))
    time.sleep(0.2)
    seen_headers = [(got[1].headers, got[0].routing_key) for key in ("cc", "bcc") if (got := peer.get(queues[key]))]
    return {key: [body for body, _ in peer.drain(queue)] for key, queue in queues.items()}, seen_headers


def settled_after_delete(peer: Peer) -> Any:
    """Acks and nacks of what was in a queue that is gone are no error; the new queue of the name is another."""
    queue = peer.queue()
    peer.publish(queue, "a", "b", "c")
    peer.until(queue, 3)
    taken = [peer.get(queue, auto_ack=False) for _ in range(3)]
    tags = [got[0].delivery_tag for got in taken if got]
    deleted = peer.channel.queue_delete(queue).method.message_count
    peer.queue()
    peer.channel.basic_ack(tags[0])
    peer.channel.basic_nack(tags[1], requeue=True)
    time.sleep(0.1)
    after = peer.count(queue)
    peer.channel.basic_ack(tags[2], multiple=True)
    peer.channel.basic_qos(prefetch_count=1)
    return deleted, after


def one_copy_a_queue(peer: Peer) -> Any:
    """Several bindings match, by several ways: one copy."""
    queue = peer.queue()
    for exchange, key in (("amq.topic", "a.*"), ("amq.topic", "#"), ("amq.topic", "a.b"), ("amq.direct", "a.b")):
        peer.channel.queue_bind(queue, exchange, key)
    peer.channel.exchange_bind("amq.direct", "amq.topic", "a.b")
    peer.channel.basic_publish("amq.topic", "a.b", b"x")
    time.sleep(0.1)
    count = peer.count(queue)
    peer.channel.exchange_unbind("amq.direct", "amq.topic", "a.b")
    peer.channel.queue_delete(queue)
    return count


def nack_over_two_queues(peer: Peer) -> Any:
    """One channel consumes two queues; nack multiple gives both back."""
    queues = [peer.queue(name=name) for name in ("left", "right")]
    for queue in queues:
        peer.publish(queue, "a", "b", "c")
        peer.until(queue, 3)
    channel = peer.connect().channel()
    one, two = (peer.consume(queue, 3, channel, consumer_tag=queue) for queue in queues)
    for queue in queues:
        channel.basic_cancel(queue)
    channel.basic_ack(one[0][0].delivery_tag)
    channel.basic_nack(two[1][0].delivery_tag, multiple=True, requeue=True)
    for queue, count in zip(queues, (2, 2), strict=True):
        peer.until(queue, count)
    return [peer.drain(queue) for queue in queues]


KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": QUORUM,
    "quorum with delivery limit": {**QUORUM, "x-delivery-limit": 9},
}

SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    **{
        f"requeue by {how}, {kind}": requeue_order(arguments, how)
        for how in ("reject", "nack multiple", "reverse", "recover")
        for kind, arguments in KINDS.items()
    },
    **{
        f"{what}, {kind}": scenario(arguments)
        for what, scenario in (("requeue to a consumer", requeue_to_a_consumer), ("connection loss", connection_loss))
        for kind, arguments in KINDS.items()
    },
    **{f"dead letter {reason}, classic": dead_letter(reason) for reason in ("rejected", "expired", "maxlen")},
    **{
        f"dead letter {reason}, quorum": dead_letter(reason, QUORUM)
        for reason in ("rejected", "expired", "maxlen", "delivery_limit")
    },
    "dead letter twice": dead_letter_twice,
    "dead letter cycle": dead_letter_cycle,
    "max-length drop-head": limit({"x-max-length": 2}),
    "max-length drop-head, quorum": limit({"x-max-length": 2, **QUORUM}),
    "max-length reject-publish": limit({"x-max-length": 2, "x-overflow": "reject-publish"}),
    "max-length reject-publish-dlx": limit({"x-max-length": 2, "x-overflow": "reject-publish-dlx"}),
    "max-length-bytes": limit({"x-max-length-bytes": 10}, ("aaaa", "bbbb", "cccc", "d" * 11, "ee")),
    "max-length 0": limit({"x-max-length": 0}),
    "limit counts ready only": limit_counts_ready_only,
    "ttl 0": ttl_zero,
    "expiry behind the head": expiry_behind_the_head,
    "smaller ttl wins": smaller_ttl_wins,
    "bad arguments": bad_arguments,
    "bad quorum": bad_quorum,
    "negative delivery limit": negative_delivery_limit,
    "inequivalent": inequivalent,
    "refusals": refusals,
    "exclusive from elsewhere": exclusive_from_elsewhere,
    "exclusive consumer": exclusive_consumer,
    "round robin": round_robin({}),
    "round robin, quorum": round_robin(QUORUM),
    "consumer priority": consumer_priority({}),
    "consumer priority, quorum": consumer_priority(QUORUM),
    "single active consumer": single_active_consumer,
    "global prefetch": global_prefetch,
    "global prefetch changed under way": changed_under_way,
    "global prefetch set late": set_late,
    "global prefetch and no_ack": no_ack_is_held_back,
    "cancel and requeue": cancel_and_requeue,
    "counts": counts,
    "auto-delete": auto_delete,
    "returned": returned,
    "settled after delete": settled_after_delete,
    "one copy a queue": one_copy_a_queue,
    "nack over two queues": nack_over_two_queues,
    "rejected with copies": rejected_with_copies,
    "dead letter by topic": dead_letter_by_topic,
    "expiry of requeued": expiry_of_requeued,
    "expires": expires,
    "full and fanned out": full_and_fanned_out,
    "routing": routing,
    **scenarios_declare.SCENARIOS,
    **scenarios_exchange.SCENARIOS,
    **scenarios_consuming.SCENARIOS,
    **scenarios_channel.SCENARIOS,
    **scenarios_policy.SCENARIOS,
    **scenarios_stream.SCENARIOS,
    **scenarios_death.SCENARIOS,
    **scenarios_priority.SCENARIOS,
}
