"""Scenarios of queue.declare: arguments, equivalence, names, flags. See scenarios.py."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pika
from pika import spec

from tests.clients.peer import QUORUM, STREAM, Peer

LARGEST_TTL = 315_360_000_000
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "x-expires": (1, 0, -1, LARGEST_TTL, LARGEST_TTL + 1, "1", Decimal("1.5"), True),
    "x-message-ttl": (0, -1, LARGEST_TTL, LARGEST_TTL + 1, 2**63 - 1, "60000", False),
    "x-max-length": (0, -1, 2**40, "1", True, Decimal(2)),
    "x-max-length-bytes": (0, -1, "x"),
    "x-max-in-memory-length": (0, -1, "x"),
    "x-max-in-memory-bytes": (5, -1),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx", "drop", "", 1),
    "x-max-priority": (0, 1, 255, 256, -1, "5"),
    "x-queue-type": ("classic", "linked", "", 1),
    "x-queue-mode": ("default", "lazy", "strange", 1),
    "x-queue-version": (1, 2, 3, "2"),
    "x-dead-letter-exchange": ("", "nowhere", 1),
    "x-dead-letter-routing-key": ("k", 1),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once", "never", 1),
    "x-single-active-consumer": (True, False, "yes", 1),
    "x-delivery-limit": (3, 0, "3"),
    "x-quorum-initial-group-size": (1, 0, -1, "1"),
    "x-queue-leader-locator": ("client-local", "balanced", "random", 1),
    "x-queue-master-locator": ("min-masters", 1),
    "x-max-age": ("1h", "1", 1, "1Y", "1h30m"),
    "x-stream-max-segment-size-bytes": (1000, -1, "x", 2**40),
    "x-initial-cluster-size": (1, 0),
    "x-unknown": ("fine", None, [1], {"a": 1}),
    "unknown": (1,),
}


def arguments(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """Each argument alone with each of its values, on a queue of its own: accepted (null), or how it is refused."""

    def scenario(peer: Peer) -> Any:
        answers = {}
        for key, values in ARGUMENTS.items():
            if key in kind:
                continue
            for value in values:
                name = f"{peer.prefix}.{key}.{value!r}"[:255]
                answers[f"{key}={value!r}"] = peer.error(
                    lambda c, n, more: c.queue_declare(n, durable=True, arguments=more), name, {**kind, key: value}
                )
        return answers

    return scenario


def flags(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    def scenario(peer: Peer) -> Any:
        def declared(**options: bool) -> Any:
            name = f"{peer.prefix}.{'.'.join(options)}"
            return peer.error(lambda c: c.queue_declare(name, arguments=kind, **options))

        return {
            "transient": declared(),
            "durable": declared(durable=True),
            "exclusive": declared(exclusive=True),
            "durable exclusive": declared(durable=True, exclusive=True),
            "auto-delete": declared(auto_delete=True),
            "durable auto-delete": declared(durable=True, auto_delete=True),
            "server-named": peer.error(lambda c: c.queue_declare("", durable=True, arguments=kind)),
        }

    return scenario


def together(peer: Peer) -> Any:
    """Arguments that need or exclude each other."""
    cases: dict[str, dict[str, Any]] = {
        "key without exchange": {"x-dead-letter-routing-key": "k"},
        "key with exchange": {"x-dead-letter-routing-key": "k", "x-dead-letter-exchange": ""},
        "quorum at-least-once, drop-head": {
            **QUORUM,
            "x-dead-letter-strategy": "at-least-once",
            "x-dead-letter-exchange": "",
        },
        "quorum at-least-once without exchange": {
            **QUORUM,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
        "quorum and lazy": {**QUORUM, "x-queue-mode": "lazy"},
        "stream and ttl": {**STREAM, "x-message-ttl": 1000},
        "stream and dead letters": {**STREAM, "x-dead-letter-exchange": ""},
        "priority and single active": {"x-max-priority": 5, "x-single-active-consumer": True},
    }
    return {
        name: peer.error(
            lambda c, n, more: c.queue_declare(f"{peer.prefix}.{n}", durable=True, arguments=more), name, more
        )
        for name, more in cases.items()
    }


def equivalent(peer: Peer) -> Any:
    """The same again with values that are the same number in another type, or with arguments in another order."""
    pairs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "other integer type": ({"x-max-length": 5}, {"x-max-length": pika.compat.long(5)}),
        "other order": ({"x-max-length": 5, "x-expires": 60000}, {"x-expires": 60000, "x-max-length": 5}),
        "classic is the default": ({}, {"x-queue-type": "classic"}),
        "default named, then not": ({"x-queue-type": "classic"}, {}),
        "overflow": ({"x-overflow": "drop-head"}, {}),
        "unknown argument": ({"x-mine": 1}, {"x-mine": 2}),
        "unknown argument gone": ({"x-mine": 1}, {}),
        "dead letters elsewhere": ({"x-dead-letter-exchange": "a"}, {"x-dead-letter-exchange": "b"}),
        "ttl": ({"x-message-ttl": 1000}, {"x-message-ttl": 2000}),
        "expires": ({"x-expires": 60000}, {}),
        "single active": ({"x-single-active-consumer": True}, {}),
        "priority": ({"x-max-priority": 3}, {"x-max-priority": 4}),
        "mode": ({"x-queue-mode": "lazy"}, {}),
        "delivery limit": ({**QUORUM, "x-delivery-limit": 3}, {**QUORUM, "x-delivery-limit": 4}),
        "group size": (QUORUM, {**QUORUM, "x-quorum-initial-group-size": 1}),
        "stream": (STREAM, QUORUM),
        "max age": ({**STREAM, "x-max-age": "1h"}, {**STREAM, "x-max-age": "60m"}),
    }
    answers = {}
    for name, (first, second) in pairs.items():
        queue = f"{peer.prefix}.{name}"
        answers[name] = peer.error(
            lambda c, q, *both: [c.queue_declare(q, durable=True, arguments=one) for one in both], queue, first, second
        )
    return answers


def names(peer: Peer) -> Any:
    """Names as they are taken: reserved, long, with line ends, of other scripts."""
    declared = [peer.queue(name=name).removeprefix(peer.prefix) for name in ("очередь", " a ", "a/b", "x" * 200)]
    # (pika waits for an answer with the name that it asked for)
    peer.channel._impl._send_method(spec.Queue.Declare(queue=f"{peer.prefix}a\r\nb", nowait=True, durable=True))
    peer.channel.basic_qos(prefetch_count=1)
    declared.append(peer.error(lambda c: c.queue_declare(f"{peer.prefix}ab", passive=True)))
    generated = peer.channel.queue_declare("", exclusive=True).method.queue
    return (
        declared,
        generated.startswith("amq.gen-"),
        len(generated),
        {
            "reserved": peer.error(lambda c: c.queue_declare("amq.x")),
            "reserved, passive": peer.error(lambda c: c.queue_declare("amq.x", passive=True)),
            "the generated one from elsewhere": (peer.error(lambda c: c.queue_declare(generated)) or [None])[0],
            "reserved, of another kind": peer.error(lambda c: c.queue_declare("AMQ.x")),
        },
    )


def the_last_declared(peer: Peer) -> Any:
    """An empty name is the queue that this channel declared last."""
    channel = peer.connect().channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.fanout")
    channel.queue_bind("", "amq.direct")  # an empty key is the queue's name then
    channel.basic_publish("amq.direct", queue, b"by its name")
    got: list[Any] = []
    channel.basic_consume("", lambda _, m, p, b: got.append(b.decode()), auto_ack=True)
    peer.pump(lambda: bool(got))
    channel.queue_unbind("", "amq.fanout")
    purged = channel.queue_purge("").method.message_count
    nothing: dict[str, Callable[[Any], Any]] = {
        "consume": lambda c: c.basic_consume("", print),
        "get": lambda c: c.basic_get(""),
        "purge": lambda c: c.queue_purge(""),
        "delete": lambda c: c.queue_delete(""),
        "bind": lambda c: c.queue_bind("", "amq.fanout"),
        "unbind": lambda c: c.queue_unbind("", "amq.fanout"),
        "passive": lambda c: c.queue_declare("", passive=True),
    }
    return got, purged, {name: peer.error(act) for name, act in nothing.items()}


def passive(peer: Peer) -> Any:
    """A passive declaration reports the counts of messages and consumers, whatever its other options."""
    queue = peer.queue({"x-max-length": 3})
    peer.publish(queue, "a", "b")
    peer.until(queue, 2)
    peer.consume(queue, 1, peer.connect().channel())
    told = peer.channel.queue_declare(queue, passive=True, durable=False, arguments={"x-max-length": 9}).method
    return (
        told.message_count,
        told.consumer_count,
        peer.error(lambda c: c.queue_declare(queue, passive=True, exclusive=True)),
    )


def declared_again(peer: Peer) -> Any:
    """declare-ok of a queue that is there counts what is ready and the consumers."""
    queue = peer.queue()
    peer.publish(queue, "a", "b", "c")
    peer.until(queue, 3)
    peer.consume(queue, 3, peer.connect().channel())
    peer.publish(queue, "d")
    again = peer.channel.queue_declare(queue, durable=True).method
    return again.message_count <= 1, again.consumer_count


def exclusive_ends_with_its_connection(peer: Peer) -> Any:
    """Not with the channel; and its name is free at once."""
    connection = peer.connect()
    channel = connection.channel()
    queue = f"{peer.prefix}.q"
    channel.queue_declare(queue, exclusive=True)
    channel.close()
    kept = connection.channel().queue_declare(queue, passive=True).method.queue == queue
    locked = peer.error(lambda c: c.queue_declare(queue, passive=True))
    connection.close()
    return (
        kept,
        locked,
        peer.error(lambda c: c.queue_declare(queue, passive=True)),
        peer.error(lambda c: c.queue_declare(queue, durable=True)),
    )


def auto_delete_once_used(peer: Peer) -> Any:
    """basic.get is no consumer; the last of two consumers, and a connection's end."""
    queue = peer.queue(durable=True, auto_delete=True)
    peer.publish(queue, "a")
    peer.get(queue)
    kept = peer.count(queue)
    one, two = peer.connect(), peer.connect()
    peer.consume(queue, 0, one.channel())
    peer.consume(queue, 0, two.channel())
    one.close()
    still = peer.channel.queue_declare(queue, passive=True).method.consumer_count
    two.close()
    return kept, still, peer.gone(queue)


def deleted(peer: Peer) -> Any:
    """queue.delete of what is not there succeeds; if-unused, if-empty; the bindings go."""
    queue, used, full = peer.queue(), peer.queue(name="used"), peer.queue(name="full")
    quorum = peer.queue(QUORUM, name="quorum")
    peer.channel.queue_bind(queue, "amq.topic", peer.prefix)
    peer.publish(full, "a")
    peer.until(full, 1)
    peer.consume(used, 0)
    told = {
        "not there": peer.channel.queue_delete(f"{peer.prefix}.nowhere").method.message_count,
        "empty": peer.channel.queue_delete(queue, if_unused=True, if_empty=True).method.message_count,
        "if used": peer.error(lambda c: c.queue_delete(used, if_unused=True)),
        "if full": peer.error(lambda c: c.queue_delete(full, if_empty=True)),
        "quorum if-unused": peer.error(lambda c: c.queue_delete(quorum, if_unused=True)),
        "quorum if-empty": peer.error(lambda c: c.queue_delete(quorum, if_empty=True)),
        "full": peer.channel.queue_delete(full).method.message_count,
    }
    peer.queue()
    peer.channel.basic_publish("amq.topic", peer.prefix, b"to the binding of before")
    peer.channel.basic_qos(prefetch_count=1)
    told["bindings went with it"] = peer.count(queue) == 0
    return told


def declared_without_an_answer(peer: Peer) -> Any:
    """nowait: nothing comes back; an error closes the channel all the same."""
    channel = peer.connect().channel()
    queue = f"{peer.prefix}.q"
    channel._impl._send_method(spec.Queue.Declare(queue=queue, durable=True, nowait=True))
    channel._impl._send_method(spec.Queue.Bind(queue=queue, exchange="amq.fanout", nowait=True))
    channel._impl._send_method(spec.Queue.Purge(queue=queue, nowait=True))
    told = channel.queue_declare(queue, passive=True).method.message_count
    wrong = peer.error(lambda c: c._impl._send_method(spec.Queue.Declare(queue=queue, durable=False, nowait=True)))
    channel._impl._send_method(spec.Queue.Delete(queue=queue, nowait=True))
    channel.basic_qos(prefetch_count=1)
    return told, wrong, peer.gone(queue)


SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    "arguments, classic": arguments({}),
    "arguments, quorum": arguments(QUORUM),
    "arguments, stream": arguments(STREAM),
    "flags, classic": flags({}),
    "flags, quorum": flags(QUORUM),
    "flags, stream": flags(STREAM),
    "arguments together": together,
    "equivalent declarations": equivalent,
    "names": names,
    "the last declared queue": the_last_declared,
    "passive": passive,
    "declared again": declared_again,
    "exclusive ends with its connection": exclusive_ends_with_its_connection,
    "auto-delete once used": auto_delete_once_used,
    "deleted": deleted,
    "declared without an answer": declared_without_an_answer,
}
