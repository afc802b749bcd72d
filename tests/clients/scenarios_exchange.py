"""Scenarios of exchanges and routing. See scenarios.py."""

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.clients.peer import Peer


def exchange(peer: Peer, kind: str, name: str = "x", arguments: dict[str, Any] | None = None, **options: Any) -> str:
    full = f"{peer.prefix}.{name}"
    peer.channel.exchange_declare(full, kind, arguments=arguments, **options)
    return full


def bound(peer: Peer, exchange: str, *keys: str, arguments: dict[str, Any] | None = None) -> list[str]:
    """A queue for each key, bound with it."""
    queues = [peer.queue(name=f"{exchange} {key} {arguments}"[-100:]) for key in keys]
    for queue, key in zip(queues, keys, strict=True):
        peer.channel.queue_bind(queue, exchange, key, arguments=arguments)
    return queues


def published(peer: Peer, exchange: str, *keys: str, **properties: Any) -> None:
    """One message a key, the key as its body."""
    for key in keys:
        peer.channel.basic_publish(exchange, key, key.encode(), pika.BasicProperties(**properties))
    peer.channel.basic_qos(prefetch_count=1)


def arrived(peer: Peer, queues: list[str]) -> list[list[str]]:
    return [[body for body, _ in peer.drain(queue)] for queue in queues]


def topics(peer: Peer) -> Any:
    """Every pattern against every key."""
    patterns = (
        "",
        "#",
        "*",
        "a",
        "a.b",
        "a.*",
        "*.b",
        "a.#",
        "#.b",
        "a.#.b",
        "#.#",
        "*.#",
        "#.*",
        "a.*.#",
        "*.*",
        "..",
        "a..",
        "a.*.*",
        "#.a.#",
        "a#",
        "*a",
    )
    keys = ("", "a", "b", "a.b", "a.b.c", ".", "..", "a.", ".b", "a..b", "a#", "#", "*", "x.a.y", "a.a.b.b")
    topic = exchange(peer, "topic")
    queues = bound(peer, topic, *patterns)
    published(peer, topic, *keys)
    return dict(zip(patterns, arrived(peer, queues), strict=True))


def headers(peer: Peer) -> Any:
    """Every binding against every message; x-headers, types, void values, the four kinds of x-match."""
    bindings: dict[str, dict[str, Any]] = {
        "all": {"x-match": "all", "k": 1},
        "none named": {"k": 1},
        "any": {"x-match": "any", "k": 1, "s": "x"},
        "empty all": {"x-match": "all"},
        "empty any": {"x-match": "any"},
        "nothing": {},
        "void": {"x-match": "all", "k": None},
        "x-": {"x-match": "all", "x-mine": 1},
        "all-with-x": {"x-match": "all-with-x", "x-mine": 1},
        "any-with-x": {"x-match": "any-with-x", "x-mine": 1},
        "true": {"x-match": "all", "k": True},
        "text": {"x-match": "all", "k": "1"},
        "list": {"x-match": "all", "k": [1]},
        "table": {"x-match": "all", "k": {"a": 1}},
    }
    messages: dict[str, dict[str, Any] | None] = {
        "k": {"k": 1},
        "large k": {"k": 2**40},
        "k text": {"k": "1"},
        "s": {"s": "x"},
        "both": {"k": 1, "s": "x"},
        "x-": {"x-mine": 1},
        "true": {"k": True},
        "list": {"k": [1]},
        "table": {"k": {"a": 1}},
        "none": None,
        "empty": {},
    }
    name = exchange(peer, "headers")
    queues = {key: peer.queue(name=key) for key in bindings}
    refused = {}
    for key, arguments in bindings.items():
        refused[key] = peer.error(lambda c, q, a: c.queue_bind(q, name, "ignored", arguments=a), queues[key], arguments)
    for key, table in messages.items():
        peer.channel.basic_publish(name, "any", key.encode(), pika.BasicProperties(headers=table))
    peer.channel.basic_qos(prefetch_count=1)
    return {key: refused[key] or [body for body, _ in peer.drain(queue)] for key, queue in queues.items()} | {
        "x-match none": peer.error(lambda c: c.queue_bind(queues["all"], name, arguments={"x-match": "none"})),
        "x-match 1": peer.error(lambda c: c.queue_bind(queues["all"], name, arguments={"x-match": 1})),
    }


def direct_and_fanout(peer: Peer) -> Any:
    direct, fanout = exchange(peer, "direct"), exchange(peer, "fanout", "f")
    queues = [*bound(peer, direct, "a", "b", ""), *bound(peer, fanout, "a", "b")]
    peer.channel.queue_bind(queues[0], direct, "b")
    published(peer, direct, "a", "b", "c", "")
    published(peer, fanout, "z")
    return arrived(peer, queues)


def alternates(peer: Peer) -> Any:
    """A chain of alternate exchanges, a cycle, one that is missing; mandatory and confirms with them."""
    last = exchange(peer, "fanout", "last")
    middle = exchange(peer, "direct", "middle", {"alternate-exchange": last})
    first = exchange(peer, "direct", "first", {"alternate-exchange": middle})
    queues = [*bound(peer, first, "1"), *bound(peer, middle, "2"), *bound(peer, last, "3")]
    published(peer, first, "1", "2", "x")
    one = exchange(peer, "direct", "one", {"alternate-exchange": f"{peer.prefix}.two"})
    exchange(peer, "direct", "two", {"alternate-exchange": one})
    missing = exchange(peer, "direct", "missing", {"alternate-exchange": f"{peer.prefix}.nowhere"})
    came = peer.returns(lambda c: [c.basic_publish(x, "k", b"m", mandatory=True) for x in (first, one, missing)])
    return (
        arrived(peer, queues),
        came,
        {
            "wrong type": peer.error(
                lambda c: c.exchange_declare(f"{peer.prefix}.e", arguments={"alternate-exchange": 1})
            ),
            "inequivalent": peer.error(lambda c: c.exchange_declare(first, "direct")),
            "inequivalent value": peer.error(
                lambda c: c.exchange_declare(first, "direct", arguments={"alternate-exchange": last})
            ),
        },
    )


def alternate_of_a_policy(peer: Peer) -> Any:
    """The argument wins over the policy; a policy's end is felt at once."""
    a, b = exchange(peer, "fanout", "a"), exchange(peer, "fanout", "b")
    plain, argued = exchange(peer, "direct", "plain"), exchange(peer, "direct", "argued", {"alternate-exchange": a})
    queues = [*bound(peer, a, "a"), *bound(peer, b, "b")]
    status, _ = peer.policy({"alternate-exchange": b}, to="exchanges")
    published(peer, plain, "p1")
    published(peer, argued, "a1")
    peer.unmade()
    published(peer, plain, "p2")
    return status, arrived(peer, queues)


def between_exchanges(peer: Peer) -> Any:
    """A diamond gives one copy, a cycle ends, keys are kept, an unbound one is out."""
    top, left, right, bottom = (exchange(peer, kind, kind) for kind in ("fanout", "topic", "direct", "headers"))
    queue = peer.queue()
    peer.channel.exchange_bind(left, top)
    peer.channel.exchange_bind(right, top)
    peer.channel.exchange_bind(bottom, left, "a.#")
    peer.channel.exchange_bind(bottom, right, "a.b")
    peer.channel.exchange_bind(top, bottom, arguments={"x-match": "all"})  # round again
    peer.channel.queue_bind(queue, bottom, arguments={"x-match": "all"})
    published(peer, top, "a.b", "a.c", "b")
    first = arrived(peer, [queue])
    peer.channel.exchange_unbind(bottom, left, "a.#")
    published(peer, top, "a.b", "a.c")
    second = arrived(peer, [queue])
    peer.channel.exchange_delete(right)
    published(peer, top, "a.b")
    return (
        first,
        second,
        arrived(peer, [queue]),
        {
            "from default": peer.error(lambda c: c.exchange_bind(top, "")),
            "to default": peer.error(lambda c: c.exchange_bind("", top)),
            "from nothing": peer.error(lambda c: c.exchange_bind(top, "nowhere")),
            "to nothing": peer.error(lambda c: c.exchange_bind("nowhere", top)),
            "unbind what is not": peer.error(lambda c: c.exchange_unbind(top, left, "none")),
            "unbind from nothing": peer.error(lambda c: c.exchange_unbind(top, "nowhere")),
        },
    )


def internal(peer: Peer) -> Any:
    """Only other exchanges publish to it."""
    inner, outer = exchange(peer, "fanout", "inner", internal=True), exchange(peer, "fanout", "outer")
    queues = bound(peer, inner, "k")
    peer.channel.exchange_bind(inner, outer)
    published(peer, outer, "through")
    return arrived(peer, queues), {
        "publish": peer.error(lambda c: c.basic_publish(inner, "k", b"")),
        "inequivalent": peer.error(lambda c: c.exchange_declare(inner, "fanout")),
    }


def auto_delete(peer: Peer) -> Any:
    """Gone with its last binding as a source; never bound, it stays."""
    never = exchange(peer, "fanout", "never", auto_delete=True)
    once = exchange(peer, "fanout", "once", auto_delete=True)
    source = exchange(peer, "fanout", "source", auto_delete=True)
    target = exchange(peer, "fanout", "target", auto_delete=True)
    queues = [*bound(peer, once, "a", "b")]
    peer.channel.exchange_bind(target, source)
    told = [peer.error(lambda c, x: c.exchange_declare(x, passive=True), x) for x in (never, once)]
    peer.channel.queue_unbind(queues[0], once, "a")
    told.append(peer.error(lambda c: c.exchange_declare(once, passive=True)))
    peer.channel.queue_delete(queues[1])
    told.append(peer.error(lambda c: c.exchange_declare(once, passive=True)))
    peer.channel.exchange_delete(target)
    told += [peer.error(lambda c, x: c.exchange_declare(x, passive=True), x) for x in (source, never)]
    return told


def declared(peer: Peer) -> Any:
    name = exchange(peer, "direct", durable=True)
    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "again": lambda c: c.exchange_declare(name, "direct", durable=True),
        "other durability": lambda c: c.exchange_declare(name, "direct"),
        "other type": lambda c: c.exchange_declare(name, "topic", durable=True),
        "other auto-delete": lambda c: c.exchange_declare(name, "direct", durable=True, auto_delete=True),
        "other internal": lambda c: c.exchange_declare(name, "direct", durable=True, internal=True),
        "other arguments": lambda c: c.exchange_declare(name, "direct", durable=True, arguments={"mine": 1}),
        "passive, other type": lambda c: c.exchange_declare(name, "topic", passive=True),
        "unknown type": lambda c: c.exchange_declare(f"{name}.other", "x-strange"),
        "no type": lambda c: c.exchange_declare(f"{name}.other", ""),
        "no name": lambda c: c.exchange_declare("", "direct"),
        "no name, passive": lambda c: c.exchange_declare("", passive=True),
        "reserved": lambda c: c.exchange_declare("amq.mine", "direct"),
        "reserved, there": lambda c: c.exchange_declare("amq.topic", "topic", durable=True),
        "reserved, passive": lambda c: c.exchange_declare("amq.mine", passive=True),
        "bind to default": lambda c: c.queue_bind(peer.queue(), "", "k"),
        "unbind from default": lambda c: c.queue_unbind(peer.queue(), "", "k"),
        "unbind unknown queue": lambda c: c.queue_unbind("nowhere", name, "k"),
        "unbind unknown exchange": lambda c: c.queue_unbind(peer.queue(), "nowhere", "k"),
        "delete if-unused": lambda c: (c.queue_bind(peer.queue(), name, "k"), c.exchange_delete(name, if_unused=True)),
        "delete": lambda c: c.exchange_delete(name),
        "delete again": lambda c: c.exchange_delete(name),
        "delete reserved": lambda c: c.exchange_delete("amq.fanout"),
        "publish": lambda c: c.basic_publish(name, "k", b""),
    }
    return {key: peer.error(act) for key, act in acts.items()}


def bound_twice(peer: Peer) -> Any:
    """The same binding again is one; other arguments make another, and each is unbound by its own."""
    name, queue = exchange(peer, "direct"), peer.queue()
    for arguments in ({}, {}, {"a": 1}):
        peer.channel.queue_bind(queue, name, "k", arguments=arguments)
    counts = []
    for arguments in ({"a": 2}, {}, {"a": 1}):
        peer.channel.queue_unbind(queue, name, "k", arguments=arguments)
        published(peer, name, "k")
        counts.append(len(peer.drain(queue)))
    return counts


def copies(peer: Peer) -> Any:
    """CC and BCC: who gets one, what they see, and what is refused."""
    name = exchange(peer, "direct")
    queues = bound(peer, name, "a", "b", "c")
    table = {"CC": ["b", "b", "nowhere"], "BCC": ["c", "a"]}
    peer.channel.basic_publish(name, "a", b"x", pika.BasicProperties(headers=table))
    seen = [peer.get(queue) for queue in queues]
    told = [(got[0].routing_key, got[1].headers) for got in seen if got], [peer.count(queue) for queue in queues]
    wrong = {
        f"{key}={value!r}": peer.error(
            lambda c, h: c.basic_publish(name, "a", b"", pika.BasicProperties(headers=h)), {key: value}
        )
        for key in ("CC", "BCC")
        for value in ("b", 1, [1], ["b", 1], {"b": 1}, None, [])
    }
    return told, wrong


def mandatory(peer: Peer) -> Any:
    """A mandatory message that no queue takes comes back whole."""
    properties = pika.BasicProperties(headers={"a": 1}, delivery_mode=2, correlation_id="7", expiration="1000")
    name = exchange(peer, "topic")
    bound(peer, name, "here")

    def act(channel: BlockingChannel) -> None:
        channel.basic_publish(name, "here", b"routed", mandatory=True)
        channel.basic_publish(name, "there", b"body" * 50_000, properties, mandatory=True)
        channel.basic_publish("", "there", b"", mandatory=True)

    return peer.returns(act)


def consistent_hash(peer: Peer) -> Any:
    """Each message to one queue, always the same for a key; weights that are no numbers are refused."""
    name = exchange(peer, "x-consistent-hash")
    queues = bound(peer, name, "1") + bound(peer, name, "2")
    by_header = exchange(peer, "x-consistent-hash", "h", {"hash-header": "k"})
    others = bound(peer, by_header, "10") + bound(peer, by_header, "11")
    keys = [f"key {number}" for number in range(200)]
    published(peer, name, *keys, *keys)
    for number in range(60):
        peer.channel.basic_publish(by_header, "same", b"", pika.BasicProperties(headers={"k": f"{number % 20}"}))
    peer.channel.basic_qos(prefetch_count=1)
    came = arrived(peer, queues)
    counts = [peer.count(queue) for queue in others]
    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "weight": lambda c: c.queue_bind(queues[0], name, "heavy"),
        "weight 0": lambda c: c.queue_bind(queues[0], name, "0"),
        "weight -1": lambda c: c.queue_bind(queues[0], name, "-1"),
        "both": lambda c: c.exchange_declare(
            f"{name}.e", "x-consistent-hash", arguments={"hash-header": "k", "hash-property": "message_id"}
        ),
        "property": lambda c: c.exchange_declare(f"{name}.f", "x-consistent-hash", arguments={"hash-property": "x"}),
        "property fine": lambda c: c.exchange_declare(
            f"{name}.g", "x-consistent-hash", arguments={"hash-property": "message_id"}
        ),
        "header": lambda c: c.exchange_declare(f"{name}.h", "x-consistent-hash", arguments={"hash-header": 1}),
    }
    return {
        "all": sum(map(len, came)),
        "each twice": all(bodies.count(body) == 2 for bodies in came for body in bodies),
        "both have some": all(came) and all(counts),
        "by header": sum(counts),
        "more weight, more": len(came[0]) < len(came[1]),
        **{key: peer.error(act) for key, act in acts.items()},
    }


def random(peer: Peer) -> Any:
    """Each message to one of the queues, whatever the key."""
    name = exchange(peer, "x-random")
    queues = bound(peer, name, "a", "b", "c")
    published(peer, name, *(f"{number}" for number in range(90)))
    came = arrived(peer, queues)
    return sum(map(len, came)), all(came)


def unbound_under_way(peer: Peer) -> Any:
    """A topic exchange whose patterns come and go routes by what is there."""
    name, queue = exchange(peer, "topic"), peer.queue()
    told = []
    for bind, pattern in ((1, "a.*"), (1, "a.#"), (0, "a.*"), (0, "a.#"), (1, "#"), (0, "#")):
        (peer.channel.queue_bind if bind else peer.channel.queue_unbind)(queue, name, pattern)
        published(peer, name, "a", "a.b", "a.b.c")
        told.append(arrived(peer, [queue])[0])
    return told


SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    "topics": topics,
    "headers": headers,
    "direct and fanout": direct_and_fanout,
    "alternate exchanges": alternates,
    "alternate exchange of a policy": alternate_of_a_policy,
    "between exchanges": between_exchanges,
    "internal exchange": internal,
    "auto-delete exchange": auto_delete,
    "exchange declared": declared,
    "bound twice": bound_twice,
    "copies": copies,
    "mandatory": mandatory,
    "consistent hash": consistent_hash,
    "random exchange": random,
    "unbound under way": unbound_under_way,
}
