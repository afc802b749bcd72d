"""What one exchange does with a message: which of its bindings match, by the exchange's type.

    direct, fanout, topic                    the routing key
    headers                                  headers (rabbit_exchange_type_headers.erl)
    x-consistent-hash                        one binding: a hash of the routing key, a header or a property (S-168)
    x-modulus-hash                           one binding: a hash of the routing key modulo their number
    x-random                                 one binding, by chance

Rules of this file
- A message may have several routing keys, its own and those of its CC and BCC headers. A hash takes the first.
- Consistent hashing is RabbitMQ's plugin's: a binding has as many buckets as its routing key says, in the order of
  binding, and Lamping and Veach's jump hash picks one. So a new binding takes its share from the others and moves
  nothing else. A destination that is bound twice counts once. The hash function is ours, not Erlang's `phash2`.
- What decides nothing but the routing key may be remembered by the caller; `needs_content` says where that is not so.
"""

import hashlib
import json
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import accumulate

from rewindmq.engine.routing.delayed_exchanges import DELAYED_EXCHANGE
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Malformed
from rewindmq.schemas.amqp.properties import headers_of, values
from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared
from rewindmq.schemas.values import Argument

PICK_ONE = ("x-consistent-hash", "x-modulus-hash", "x-random")
HASH_PROPERTIES = ("correlation_id", "message_id", "timestamp")
MAX_DELAY_MS = 4_294_967_295  # what an Erlang timer takes: the plugin does not delay for longer, nor do we
INTEGERS = ("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint")


class Content:
    """A message's properties, read as far as routing asks. Malformed when a header can't be read."""

    def __init__(self, properties: bytes) -> None:
        self.raw = properties

    @cached_property
    def entries(self) -> list[tables.Entry]:
        return headers_of(self.raw)

    @cached_property
    def headers(self) -> dict[str, object]:
        return {name: tables.plain(kind, value) for name, kind, value in self.entries}

    def property(self, name: str) -> str | None:
        """One of HASH_PROPERTIES, as text; None: it is not there."""
        value = values(self.raw).get(name)
        if value is None:
            return None
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    @cached_property
    def delay_ms(self) -> int | None:
        """What the header x-delay asks for (rabbit_delayed_message_utils.erl `get_delay/1`): a number, or text that
        is one. None: no delay."""
        for name, kind, value in self.entries:
            if name == "x-delay":
                delay = _whole(kind, value)
                return delay if delay is not None and 0 < delay <= MAX_DELAY_MS else None
        return None


def _whole(kind: str, value: object) -> int | None:
    if kind in INTEGERS and isinstance(value, int):
        return value
    if kind in ("float", "double") and isinstance(value, float) and abs(value) <= MAX_DELAY_MS:
        return int(value)
    if kind in ("longstr", "binary") and isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        return weight(text)
    return None


NO_CONTENT = Content(b"\0\0")  # of a message that is routed by its routing key alone


def readable(properties: bytes) -> Content:
    """What can be read of properties that may be damaged: a message in the log is forwarded all the same."""
    content = Content(properties)
    try:
        content.headers  # noqa: B018  reads them
    except Malformed:
        return NO_CONTENT
    return content


# -- topic ------------------------------------------------------------------------------------------------------------


class TopicTrie:
    """Binding keys by word; `*` stands for one word, `#` for any number of them, also none. An empty key has no
    words at all (rabbit_db_topic_exchange.erl `split_topic_key/1`)."""

    def __init__(self) -> None:
        self.children: dict[str, TopicTrie] = {}
        self.bindings: list[tuple[int, Bound]] = []

    def add(self, position: int, bound: Bound) -> None:
        node = self
        for word in words_of(bound.routing_key):
            node = node.children.setdefault(word, TopicTrie())
        node.bindings.append((position, bound))

    def match(self, routing_key: str) -> list[Bound]:
        """The bindings that match, in the order of their positions. Every (node, word) is visited once, so that keys
        with many `#` cost words times nodes and no more."""
        words = words_of(routing_key)
        found: dict[int, Bound] = {}
        seen: set[tuple[int, int]] = set()
        todo: list[tuple[TopicTrie, int]] = [(self, 0)]
        while todo:
            node, index = todo.pop()
            if (id(node), index) in seen:
                continue
            seen.add((id(node), index))
            if index == len(words):
                found.update(node.bindings)
            else:
                for word in (words[index], "*"):
                    if word in node.children and word != "#":
                        todo.append((node.children[word], index + 1))
            rest = node.children.get("#")
            if rest is not None:
                todo.extend((rest, taken) for taken in range(index, len(words) + 1))
        return [found[position] for position in sorted(found)]


def words_of(key: str) -> list[str]:
    return key.split(".") if key else []


# -- headers ----------------------------------------------------------------------------------------------------------


def headers_match(arguments: tuple[Argument, ...], headers: Mapping[str, object]) -> bool:
    """rabbit_exchange_type_headers.erl: `x-match` all (default), any, all-with-x, any-with-x; without `-with-x` the
    arguments that begin with `x-` don't count. Nothing to compare: all matches, any does not."""
    mode = next((argument.value for argument in arguments if argument.name == "x-match"), "all")
    with_x = mode in ("all-with-x", "any-with-x")
    results = [
        argument.name in headers and (argument.type == "void" or _same(argument, headers[argument.name]))
        for argument in arguments
        if (argument.name != "x-match" if with_x else not argument.name.startswith("x-"))
    ]
    return any(results) if mode in ("any", "any-with-x") else all(results)


def _same(argument: Argument, value: object) -> bool:
    if isinstance(value, datetime):
        value = int(value.timestamp())
    expected: object = argument.value
    if argument.type in ("table", "array"):
        expected = json.loads(str(argument.value))
    return type(expected) is type(value) and expected == value  # True is not 1, 1 is not 1.0


# -- hashes -----------------------------------------------------------------------------------------------------------


def weight(key: str) -> int | None:
    """A whole number in decimal digits, as Erlang's `list_to_integer/1` reads one; else None."""
    digits = key[1:] if key[:1] in ("+", "-") else key
    return int(key) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def hashed(value: object) -> int:
    """64 bits, the same in every process."""
    text = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def jump(key: int, buckets: int) -> int:
    """The bucket of a 64-bit key (Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm")."""
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        key = (key * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket


class Ring:
    """The bindings of a consistent-hash exchange, each with its buckets."""

    def __init__(self, bindings: Sequence[Bound]) -> None:
        self.bindings: list[Bound] = []
        weights = []
        bound_already = set()
        for bound in bindings:
            destination = (bound.destination_type, bound.destination)
            if destination not in bound_already:
                bound_already.add(destination)
                self.bindings.append(bound)
                weights.append(max(1, weight(bound.routing_key) or 1))
        self.ends = list(accumulate(weights))

    def pick(self, key: int) -> Bound | None:
        if not self.bindings:
            return None
        return self.bindings[bisect_right(self.ends, jump(key, self.ends[-1]))]


# -- one exchange -----------------------------------------------------------------------------------------------------


def type_of(exchange: ExchangeDeclared) -> str:
    """By which its bindings match: that of an x-delayed-message exchange is in its arguments."""
    return str(_text(exchange, "x-delayed-type")) if exchange.type == DELAYED_EXCHANGE else exchange.type


def needs_content(exchange: ExchangeDeclared) -> bool:
    """Where a message goes does not follow from its routing key alone, or is chance."""
    if exchange.type in (DELAYED_EXCHANGE, "headers", "x-random"):
        return True
    return exchange.type == "x-consistent-hash" and hash_on(exchange) is not None


def hash_on(exchange: ExchangeDeclared) -> tuple[str, str] | None:
    """(header or property, its name); None: the routing key."""
    for kind in ("header", "property"):
        name = _text(exchange, f"hash-{kind}")
        if name is not None:
            return kind, name
    return None


def _text(exchange: ExchangeDeclared, name: str) -> str | None:
    return next((str(each.value) for each in exchange.arguments if each.name == name), None)


class ExchangeMatcher:
    """The bindings of one exchange, indexed by what its type asks."""

    def __init__(
        self, exchange: ExchangeDeclared, bindings: tuple[Bound, ...], is_live: Callable[[Bound], bool]
    ) -> None:
        self.type = type_of(exchange)
        self.delays = exchange.type == DELAYED_EXCHANGE
        self.picks_one = self.type in PICK_ONE  # among bindings that lead somewhere, so it looks at queues, too
        self.hash_on = hash_on(exchange)
        self.bindings = [bound for bound in bindings if not self.picks_one or is_live(bound)]
        self.by_key: dict[str, list[Bound]] = {}
        self.trie = TopicTrie()
        self.ring = Ring(self.bindings if self.type == "x-consistent-hash" else ())
        if self.type == "direct":
            for bound in bindings:
                self.by_key.setdefault(bound.routing_key, []).append(bound)
        elif self.type == "topic":
            for position, bound in enumerate(bindings):
                self.trie.add(position, bound)

    def match(self, routing_keys: tuple[str, ...], content: Content) -> list[Bound]:
        if self.type == "direct":
            return [bound for key in routing_keys for bound in self.by_key.get(key, ())]
        if self.type == "topic":
            return [bound for key in routing_keys for bound in self.trie.match(key)]
        if self.type == "fanout":
            return self.bindings
        if self.type == "headers":
            return [bound for bound in self.bindings if headers_match(bound.arguments, content.headers)]
        return self._one_of_them(routing_keys[0], content)

    def _one_of_them(self, routing_key: str, content: Content) -> list[Bound]:
        if not self.bindings:
            return []
        if self.type == "x-random":
            return [random.choice(self.bindings)]
        if self.type == "x-modulus-hash":
            return [self.bindings[hashed(routing_key) % len(self.bindings)]]
        picked = self.ring.pick(hashed(self._to_hash(routing_key, content)))
        return [] if picked is None else [picked]

    def _to_hash(self, routing_key: str, content: Content) -> object:
        """A message without the header or property: always the same place, as in the plugin."""
        if self.hash_on is None:
            return routing_key
        kind, name = self.hash_on
        return content.headers.get(name) if kind == "header" else content.property(name)
