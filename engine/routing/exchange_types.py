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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import ClassVar, Final

from rewindmq.engine.errors import PreconditionFailed, resource
from rewindmq.engine.routing import deduplication
from rewindmq.engine.routing.content import Content, whole_number
from rewindmq.engine.routing.deduplication import DEDUPLICATING_EXCHANGE
from rewindmq.engine.routing.delayed_exchanges import DELAYED_EXCHANGE
from rewindmq.engine.routing.portions import PORTION, Search, to_the_end
from rewindmq.engine.routing.topic_trie import TopicTrie
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
        self.exchange = exchange
        self.delays = exchange.type == DELAYED_EXCHANGE
        self.bindings: dict[Bound, int] = {}  # in the order of binding, with their places in it
        self.missing = list(reversed(bindings))  # those that are still to be added
        self._places = 0

    def fill(self) -> Search[None]:
        """Add the bindings that are missing. Several searches may do so by turns."""
        spent = 0
        while self.missing:
            bound = self.missing.pop()
            self.add(bound)
            spent += 8 + len(bound.routing_key) + 8 * len(bound.arguments)
            if spent >= PORTION:
                yield spent
                spent = 0
        yield spent

    def add(self, bound: Bound) -> None:
        """Add a binding behind the others."""
        self._places += 1
        self.bindings[bound] = self._places
        self.index(self._places, bound)

    def remove(self, bound: Bound) -> None:
        """Remove a binding."""
        place = self.bindings.pop(bound, None)
        if place is not None:
            self.unindex(place, bound)

    def index(self, place: int, bound: Bound) -> None:
        """Note a binding that was added."""

    def unindex(self, place: int, bound: Bound) -> None:
        """Forget a binding that was removed."""

    def search(self, routing_keys: tuple[str, ...], content: Content) -> Search[Sequence[Bound]]:
        """Find the bindings that a message with these routing keys matches."""
        yield 1
        return self.match(routing_keys, content)

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        """Return the same at once, for types whose matches cost little."""
        return ()

    @classmethod
    def needs_content(cls, exchange: ExchangeDeclared) -> bool:
        """Return True if a match depends on more than the routing key, or is random."""
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
        self.by_key: dict[str, dict[int, Bound]] = {}

    def index(self, place: int, bound: Bound) -> None:
        self.by_key.setdefault(bound.routing_key, {})[place] = bound

    def unindex(self, place: int, bound: Bound) -> None:
        of_key = self.by_key[bound.routing_key]
        del of_key[place]
        if not of_key:
            del self.by_key[bound.routing_key]

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return [bound for key in routing_keys if key in self.by_key for bound in self.by_key[key].values()]


class Fanout(ExchangeType):
    description: ClassVar[str] = "AMQP fanout exchange, as per the AMQP specification"

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return list(self.bindings)


class Topic(ExchangeType):
    description: ClassVar[str] = "AMQP topic exchange, as per the AMQP specification"

    def __init__(self, exchange: ExchangeDeclared, bindings: Sequence[Bound]) -> None:
        super().__init__(exchange, bindings)
        self.trie = TopicTrie()

    def index(self, place: int, bound: Bound) -> None:
        self.trie.add(place, bound)

    def unindex(self, place: int, bound: Bound) -> None:
        self.trie.remove(place, bound)

    def search(self, routing_keys: tuple[str, ...], content: Content) -> Search[Sequence[Bound]]:
        found: list[Bound] = []
        for key in routing_keys:
            found += yield from self.trie.match(key)
        return found


class Headers(ExchangeType):
    description: ClassVar[str] = "AMQP headers exchange, as per the AMQP specification"

    def __init__(self, exchange: ExchangeDeclared, bindings: Sequence[Bound]) -> None:
        super().__init__(exchange, bindings)
        self.patterns: dict[int, tuple[Bound, HeaderPattern]] = {}
        self.known = KnownHeaders()

    def index(self, place: int, bound: Bound) -> None:
        self.patterns[place] = bound, HeaderPattern(bound.arguments, self.known)

    def unindex(self, place: int, bound: Bound) -> None:
        self.known.forget(self.patterns.pop(place)[1].simple)

    def search(self, routing_keys: tuple[str, ...], content: Content) -> Search[Sequence[Bound]]:
        headers = content.headers
        present = self.known.among(headers)
        found: list[Bound] = []
        spent = len(headers)
        for bound, pattern in list(self.patterns.values()):
            if pattern.matches(present, headers):
                found.append(bound)
            spent += pattern.cost
            if spent >= PORTION:
                yield spent
                spent = 0
        yield spent
        return found

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
        self.ring: Ring | None = None
        self.hash_on = hash_on(exchange)

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        if self.ring is None:
            self.ring = Ring(self.bindings)
        picked = self.ring.pick(hashed(self._to_hash(routing_keys[0], content))) if self.bindings else None
        return () if picked is None else (picked,)

    def _to_hash(self, routing_key: str, content: Content) -> object:
        """Return the text to hash.

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

    def __init__(self, exchange: ExchangeDeclared, bindings: Sequence[Bound]) -> None:
        super().__init__(exchange, bindings)
        self.choice = bindings

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return (self.choice[hashed(routing_keys[0]) % len(self.choice)],) if self.choice else ()


class Random(ModulusHash):
    description: ClassVar[str] = "AMQP random exchange. Like a direct exchange, but randomly chooses who to route to."

    def match(self, routing_keys: tuple[str, ...], content: Content) -> Sequence[Bound]:
        return (random.choice(self.choice),) if self.choice else ()

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
            return list(self.bindings)
        places = [(each.get("cluster-name"), each.get("vhost")) for each in been if isinstance(each, dict)]
        return list(self.bindings) if len(been) < self.max_hops and self.to not in places else ()

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
    """Raise PreconditionFailed if the type does not exist."""
    if name not in EXCHANGE_TYPES:
        raise PreconditionFailed(f"{'unknown' if name else 'invalid'} exchange type '{name}'")


def type_of(exchange: ExchangeDeclared) -> type[ExchangeType]:
    """Return the exchange's type."""
    return EXCHANGE_TYPES.get(exchange.type, ExchangeType)


def matching_type(exchange: ExchangeDeclared) -> type[ExchangeType]:
    """Return the type by which the exchange's bindings are matched."""
    name = _text(exchange, "x-delayed-type") if exchange.type == DELAYED_EXCHANGE else exchange.type
    return ExchangeType if name is None else EXCHANGE_TYPES.get(name, ExchangeType)


def matcher(exchange: ExchangeDeclared, bindings: Sequence[Bound], is_live: Callable[[Bound], bool]) -> ExchangeType:
    """Return an exchange with its bindings. `is_live`: whether a binding leads to a queue that exists."""
    kind = matching_type(exchange)
    return kind(exchange, [bound for bound in bindings if is_live(bound)] if kind.picks_one else bindings)


def topic_matches(binding_key: str, routing_key: str) -> bool:
    """Return True if a topic exchange takes a message with `routing_key` to a binding with `binding_key`."""
    trie = TopicTrie()
    trie.add(0, Bound("", "", "queue", "", binding_key, (), 0))
    return to_the_end(trie.match(routing_key)) != []


# -- headers ----------------------------------------------------------------------------------------------------------

# A header's name with its type and value, or the name alone, which stands for any value.
Header = tuple[str, type, object] | tuple[str]


class KnownHeaders:
    """The headers that bindings of an exchange ask for, each as one object, so that sets of them are compared fast."""

    def __init__(self) -> None:
        self.headers: dict[Header, Header] = {}
        self.uses: Counter[Header] = Counter()

    def known(self, header: Header) -> Header:
        """Return the header as the bindings have it, for one more of them."""
        self.uses[header] += 1
        return self.headers.setdefault(header, header)

    def forget(self, headers: Iterable[Header]) -> None:
        """Forget the headers of a binding that is gone."""
        for header in headers:
            self.uses[header] -= 1
            if self.uses[header] == 0:
                del self.uses[header], self.headers[header]

    def among(self, headers: Mapping[str, object]) -> set[Header]:
        """Return those that a message with these headers has."""
        found: set[Header] = set()
        for name, value in headers.items():
            possible: list[Header] = [(name,)]
            if not isinstance(value, list | dict):
                plain = _plain(value)
                possible.append((name, type(plain), plain))
            found.update(self.headers[each] for each in possible if each in self.headers)
        return found


class HeaderPattern:
    """The headers that a binding asks for (rabbit_exchange_type_headers.erl).

    `x-match`: all (default), any, all-with-x, any-with-x. Without `-with-x` the arguments that begin with `x-` don't
    count. If there is nothing to compare, `all` matches and `any` does not. True is not 1, and 1 is not 1.0."""

    def __init__(self, arguments: tuple[Argument, ...], known: KnownHeaders) -> None:
        mode = next((argument.value for argument in arguments if argument.name == "x-match"), "all")
        with_x = mode in ("all-with-x", "any-with-x")
        self.any = mode in ("any", "any-with-x")
        simple: list[Header] = []
        self.nested: list[tuple[str, object]] = []  # tables and arrays
        self.cost = 1
        for argument in arguments:
            name = argument.name
            if name == "x-match" if with_x else name.startswith("x-"):
                continue
            if argument.type in ("table", "array"):
                self.nested.append((name, json.loads(str(argument.value))))
                self.cost += 1 + len(str(argument.value)) // 64
            else:
                simple.append((name,) if argument.type == "void" else (name, type(argument.value), argument.value))
        self.simple = frozenset(known.known(header) for header in dict.fromkeys(simple))
        self.cost += len(self.simple) // 16

    def matches(self, present: set[Header], headers: Mapping[str, object]) -> bool:
        """Return True if a message has the headers. `present`: those that `KnownHeaders.among` found."""
        if self.any:
            return not self.simple.isdisjoint(present) or any(_has(headers, *each) for each in self.nested)
        return self.simple <= present and all(_has(headers, *each) for each in self.nested)


def _has(headers: Mapping[str, object], name: str, expected: object) -> bool:
    value = headers.get(name)
    return type(expected) is type(value) and expected == value


def _plain(value: object) -> object:
    return int(value.timestamp()) if isinstance(value, datetime) else value


# -- hashes -----------------------------------------------------------------------------------------------------------


def hash_on(exchange: ExchangeDeclared) -> tuple[str, str] | None:
    """Return the input of a consistent-hash exchange's hash: header or property, and its name.

    None: the routing key."""
    for kind in ("header", "property"):
        name = _text(exchange, f"hash-{kind}")
        if name is not None:
            return kind, name
    return None


def _text(exchange: ExchangeDeclared, name: str) -> str | None:
    argument = argument_of(exchange.arguments, name)
    return None if argument is None else str(argument.value)


def hashed(value: object) -> int:
    """Return a hash of 64 bits, the same in every process."""
    text = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def jump(key: int, buckets: int) -> int:
    """Return the bucket of a 64-bit key (Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm")."""
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        key = (key * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket


class Ring:
    """The bindings of a consistent-hash exchange, each with its buckets."""

    def __init__(self, bindings: Iterable[Bound]) -> None:
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
