"""The types of exchanges: they match messages with bindings, and check exchanges and bindings.

    direct, fanout, topic    the routing key
    headers                  headers (rabbit_exchange_type_headers.erl)
    x-consistent-hash        one binding: a hash of the routing key, a header or a property (S-168)
    x-modulus-hash           one binding: a hash of the routing key modulo their number
    x-random                 one binding, by chance
    x-federation-upstream    all, but for messages that have been where they would go (below)
    x-message-deduplication  all; the queues drop duplicates (deduplication.py)
    x-delayed-message        as the type in its argument x-delayed-type, which the messages meet when they are due

Rules of this file
- Codes and texts are RabbitMQ 3.13's: rabbit_exchange.erl `check_type/1`, rabbit_exchange_type_headers.erl, and of its
  plugins rabbit_exchange_type_consistent_hash.erl and rabbit_exchange_type_delayed_message.erl.
- A message may have several routing keys, its own and those of its CC and BCC headers. A hash takes the first.
- Consistent hashing is RabbitMQ's plugin's: a binding has as many buckets as its routing key says, in the order of
  binding, and Lamping and Veach's jump hash picks one. So a new binding takes its share from the others and moves
  nothing else. A destination that is bound twice counts once. The hash function is not Erlang's `phash2`.
- RabbitMQ's federation declares an x-federation-upstream exchange at its upstream, for each of its links. A message's
  header x-received-from has an entry for each cluster that federation took it through (rabbit_federation_util.erl
  `should_forward/4`).
- A caller may remember a route that follows from the routing key alone; `needs_content` says where that is not so.
"""

import hashlib
import json
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import ClassVar, Final

from rewindmq.engine.errors import PreconditionFailed, resource
from rewindmq.engine.routing import deduplication
from rewindmq.engine.routing.content import Content, whole_number
from rewindmq.engine.routing.deduplication import DEDUPLICATING_EXCHANGE
from rewindmq.engine.routing.delayed_exchanges import DELAYED_EXCHANGE
from rewindmq.projections.rules.erlang_terms import erlang_term
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared
from rewindmq.schemas.values import Argument

HASH_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")


class ExchangeType:
    """An exchange with its bindings, indexed by its type's criterion.

    This class itself matches nothing. It is for an exchange in the log whose type this version does not know."""

    description: ClassVar[str] = ""
    picks_one: ClassVar[bool] = False  # the match is among the bindings whose queues exist, so it depends on queues

    def __init__(self, exchange: ExchangeDeclared, bindings: Sequence[Bound]) -> None:
        self.bindings = bindings
        self.delays = exchange.type == DELAYED_EXCHANGE

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        """The bindings that a message with these routing keys matches."""
        return ()

    @classmethod
    def needs_content(cls, exchange: ExchangeDeclared) -> bool:
        """Whether a match depends on more than the routing key, or is random."""
        return False

    @classmethod
    def check_arguments(cls, exchange: ExchangeDeclared) -> None:
        """Raise PreconditionFailed if the exchange may not have these arguments."""

    @classmethod
    def check_binding(cls, routing_key: str, arguments: tuple[Argument, ...]) -> None:
        """Raise PreconditionFailed if a binding may not have this routing key, or these arguments."""


class Direct(ExchangeType):
    description: ClassVar[str] = "AMQP direct exchange, as per the AMQP specification"

    def __init__(self, exchange: ExchangeDeclared, bindings: Sequence[Bound]) -> None:
        super().__init__(exchange, bindings)
        self.by_key: dict[str, list[Bound]] = {}
        for bound in bindings:
            self.by_key.setdefault(bound.routing_key, []).append(bound)

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return [bound for key in routing_keys for bound in self.by_key.get(key, ())]


class Fanout(ExchangeType):
    description: ClassVar[str] = "AMQP fanout exchange, as per the AMQP specification"

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return self.bindings


class Topic(ExchangeType):
    description: ClassVar[str] = "AMQP topic exchange, as per the AMQP specification"

    def __init__(self, exchange: ExchangeDeclared, bindings: Sequence[Bound]) -> None:
        super().__init__(exchange, bindings)
        self.trie = TopicTrie()
        for position, bound in enumerate(bindings):
            self.trie.add(position, bound)

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return [bound for key in routing_keys for bound in self.trie.match(key)]


class Headers(ExchangeType):
    description: ClassVar[str] = "AMQP headers exchange, as per the AMQP specification"

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return [bound for bound in self.bindings if headers_match(bound.arguments, content.headers)]

    @classmethod
    def needs_content(cls, exchange: ExchangeDeclared) -> bool:
        return True

    @classmethod
    def check_binding(cls, routing_key: str, arguments: tuple[Argument, ...]) -> None:
        argument = argument_of(arguments, "x-match")
        if argument is None:
            return
        value = erlang_term(argument.value)
        if argument.type != "longstr":
            raise PreconditionFailed(f"Invalid x-match field type {argument.type} (value {value}); expected longstr")
        if argument.value not in ("all", "any", "all-with-x", "any-with-x"):
            raise PreconditionFailed(
                f"Invalid x-match field value {value}; expected all, any, all-with-x, or any-with-x"
            )


class ConsistentHash(ExchangeType):
    description: ClassVar[str] = "Consistent Hashing Exchange"
    picks_one: ClassVar[bool] = True

    def __init__(self, exchange: ExchangeDeclared, bindings: Sequence[Bound]) -> None:
        super().__init__(exchange, bindings)
        self.ring = Ring(bindings)
        self.hash_on = hash_on(exchange)

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        picked = self.ring.pick(hashed(self._to_hash(routing_keys[0], content))) if self.bindings else None
        return () if picked is None else (picked,)

    def _to_hash(self, routing_key: str, content: Content) -> object:
        """The text to hash.

        All messages without the header or property go to the same place, as in the plugin."""
        if self.hash_on is None:
            return routing_key
        kind, name = self.hash_on
        return content.headers.get(name) if kind == "header" else content.property(name)

    @classmethod
    def needs_content(cls, exchange: ExchangeDeclared) -> bool:
        return hash_on(exchange) is not None

    @classmethod
    def check_arguments(cls, exchange: ExchangeDeclared) -> None:
        header = argument_of(exchange.arguments, "hash-header")
        named = argument_of(exchange.arguments, "hash-property")
        for argument in (header, named):
            if argument is not None and argument.type != "longstr":
                where = resource("exchange", exchange.exchange, exchange.vhost)
                raise PreconditionFailed(f"invalid type '{argument.type}' for arg '{argument.name}' in {where}")
        if header is not None and named is not None:
            raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
        if named is not None and named.value not in HASH_PROPERTIES:
            raise PreconditionFailed(f"Unsupported property: {named.value!s}")

    @classmethod
    def check_binding(cls, routing_key: str, arguments: tuple[Argument, ...]) -> None:
        buckets = whole_number(routing_key)
        if buckets is None:
            raise PreconditionFailed(f"The binding key must be an integer: {erlang_term(routing_key)}")
        if buckets < 1:
            raise PreconditionFailed("The binding key must be greater than 0")


class ModulusHash(ExchangeType):
    description: ClassVar[str] = "Modulus Hashing Exchange"
    picks_one: ClassVar[bool] = True

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return (self.bindings[hashed(routing_keys[0]) % len(self.bindings)],) if self.bindings else ()


class Random(ExchangeType):
    description: ClassVar[str] = "AMQP random exchange. Like a direct exchange, but randomly chooses who to route to."
    picks_one: ClassVar[bool] = True

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return (random.choice(self.bindings),) if self.bindings else ()

    @classmethod
    def needs_content(cls, exchange: ExchangeDeclared) -> bool:
        return True


class DelayedMessage(ExchangeType):
    """A delayed-message exchange. The type in its argument matches its bindings (`matching_type`)."""

    description: ClassVar[str] = "Delayed Message Exchange."

    @classmethod
    def needs_content(cls, exchange: ExchangeDeclared) -> bool:
        return True

    @classmethod
    def check_arguments(cls, exchange: ExchangeDeclared) -> None:
        delayed = argument_of(exchange.arguments, "x-delayed-type")
        if delayed is None or not isinstance(delayed.value, str):
            raise PreconditionFailed("Invalid argument, 'x-delayed-type' must be an existing exchange type")
        if delayed.value == DELAYED_EXCHANGE:
            raise PreconditionFailed(f"Invalid argument, '{DELAYED_EXCHANGE}' can't be used for 'x-delayed-type'")
        check_type(delayed.value)
        EXCHANGE_TYPES[delayed.value].check_arguments(exchange)


class MessageDeduplication(Fanout):
    """A fanout that tells the queues behind it to drop duplicates (deduplication.py)."""

    description: ClassVar[str] = "Message Deduplication Exchange."

    @classmethod
    def check_arguments(cls, exchange: ExchangeDeclared) -> None:
        deduplication.check_arguments(exchange)


class FederationUpstream(Fanout):
    """The exchange by which a RabbitMQ that federates reads an exchange here: a fanout that ends circles."""

    description: ClassVar[str] = "Federation upstream helper exchange"

    def __init__(self, exchange: ExchangeDeclared, bindings: Sequence[Bound]) -> None:
        super().__init__(exchange, bindings)
        hops = argument_of(exchange.arguments, "x-max-hops")
        self.max_hops = hops.value if hops is not None and isinstance(hops.value, int) else 0
        self.to = tuple(_text(exchange, f"x-downstream-{part}") or "" for part in ("name", "vhost"))

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        been = content.headers.get("x-received-from")
        if not isinstance(been, list):
            return self.bindings
        places = [(each.get("cluster-name"), each.get("vhost")) for each in been if isinstance(each, dict)]
        return self.bindings if len(been) < self.max_hops and self.to not in places else ()

    @classmethod
    def needs_content(cls, exchange: ExchangeDeclared) -> bool:
        return True

    @classmethod
    def check_arguments(cls, exchange: ExchangeDeclared) -> None:
        hops = argument_of(exchange.arguments, "x-max-hops")
        if hops is None or isinstance(hops.value, bool) or not isinstance(hops.value, int):
            raise PreconditionFailed("Invalid argument, 'x-max-hops' must be a number")


EXCHANGE_TYPES: Final[dict[str, type[ExchangeType]]] = {
    "direct": Direct,
    "fanout": Fanout,
    "headers": Headers,
    "topic": Topic,
    "x-federation-upstream": FederationUpstream,
    "x-consistent-hash": ConsistentHash,
    DELAYED_EXCHANGE: DelayedMessage,
    DEDUPLICATING_EXCHANGE: MessageDeduplication,
    "x-modulus-hash": ModulusHash,
    "x-random": Random,
}


def check_type(name: str) -> None:
    """Raise PreconditionFailed if there is no such type."""
    if name not in EXCHANGE_TYPES:
        raise PreconditionFailed(f"{'unknown' if name else 'invalid'} exchange type '{name}'")


def type_of(exchange: ExchangeDeclared) -> type[ExchangeType]:
    """The exchange's type."""
    return EXCHANGE_TYPES.get(exchange.type, ExchangeType)


def matching_type(exchange: ExchangeDeclared) -> type[ExchangeType]:
    """The type by which the exchange's bindings are matched."""
    name = _text(exchange, "x-delayed-type") if exchange.type == DELAYED_EXCHANGE else exchange.type
    return ExchangeType if name is None else EXCHANGE_TYPES.get(name, ExchangeType)


def matcher(exchange: ExchangeDeclared, bindings: Sequence[Bound], is_live: Callable[[Bound], bool]) -> ExchangeType:
    """An exchange with its bindings. `is_live`: whether a binding leads to a queue that exists."""
    kind = matching_type(exchange)
    return kind(exchange, [bound for bound in bindings if is_live(bound)] if kind.picks_one else bindings)


# -- topic ------------------------------------------------------------------------------------------------------------


class TopicTrie:
    """Binding keys by word; `*` stands for one word, `#` for any number of them, also none.

    An empty key has no words at all (rabbit_db_topic_exchange.erl `split_topic_key/1`)."""

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


def topic_matches(binding_key: str, routing_key: str) -> bool:
    """Whether a topic exchange takes a message with `routing_key` to a binding with `binding_key`."""
    trie = TopicTrie()
    trie.add(0, Bound("", "", "queue", "", binding_key, (), 0))
    return trie.match(routing_key) != []


# -- headers ----------------------------------------------------------------------------------------------------------


def headers_match(arguments: tuple[Argument, ...], headers: Mapping[str, object]) -> bool:
    """Whether headers match a binding's arguments (rabbit_exchange_type_headers.erl).

    `x-match`: all (default), any, all-with-x, any-with-x. Without `-with-x` the arguments that begin with `x-` don't
    count. If there is nothing to compare, `all` matches and `any` does not."""
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


def hash_on(exchange: ExchangeDeclared) -> tuple[str, str] | None:
    """The input of a consistent-hash exchange's hash: header or property, and its name. None: the routing key."""
    for kind in ("header", "property"):
        name = _text(exchange, f"hash-{kind}")
        if name is not None:
            return kind, name
    return None


def _text(exchange: ExchangeDeclared, name: str) -> str | None:
    argument = argument_of(exchange.arguments, name)
    return None if argument is None else str(argument.value)


def hashed(value: object) -> int:
    """A hash of 64 bits, the same in every process."""
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
                weights.append(max(1, whole_number(bound.routing_key) or 1))
        self.ends = list(accumulate(weights))

    def pick(self, key: int) -> Bound | None:
        if not self.bindings:
            return None
        return self.bindings[bisect_right(self.ends, jump(key, self.ends[-1]))]
