"""From exchange and routing key to queues: direct, fanout, topic, headers, the default exchange, exchange-to-exchange
bindings, alternate exchanges (AMQP 0-9-1 section 3.1; rabbit_exchange.erl `route/3`).

Rules of this file
- A route is resolved once and remembered by (vhost, exchange, routing key): the same answer is the same objects, so the
  encoder and the machine may keep things per `Route`. What headers exchanges decide depends on the message and is
  not remembered, but its `Route` objects are the same too.
- An exchange is visited once a route, so cycles of exchange bindings end; a queue is named once.
- Queues come in the order of binding, exchanges nearest first. Queues that don't exist (any more) are left out.
- An alternate exchange (argument or policy `alternate-exchange`) is asked when an exchange matched nothing at all.

    router.route("/", "amq.topic", "a.b", None) -> (Destination(partition 0, Route), Destination(partition 1, Route))
"""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from engine.metadata import NOT_RECORDED
from projections.topology import Topology
from schemas.events import Argument, Bound, ExchangeDeclared, Route

if TYPE_CHECKING:
    from engine.partition import Partition

REMEMBERED_ROUTES = 65_536  # then all are forgotten: publishers with unbounded keys must not fill the memory
Headers = Mapping[str, object]


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """One partition's share of a route."""

    partition: "Partition"
    route: Route


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


class ExchangeMatcher:
    """The bindings of one exchange, indexed by what its type asks."""

    def __init__(self, exchange: ExchangeDeclared, bindings: tuple[Bound, ...]) -> None:
        self.type = exchange.type
        self.bindings = list(bindings)
        self.by_key: dict[str, list[Bound]] = {}
        self.trie = TopicTrie()
        if self.type == "direct":
            for bound in bindings:
                self.by_key.setdefault(bound.routing_key, []).append(bound)
        elif self.type == "topic":
            for position, bound in enumerate(bindings):
                self.trie.add(position, bound)

    def match(self, routing_key: str, headers: Headers) -> list[Bound]:
        if self.type == "direct":
            return self.by_key.get(routing_key, [])
        if self.type == "topic":
            return self.trie.match(routing_key)
        if self.type == "fanout":
            return self.bindings
        return [bound for bound in self.bindings if headers_match(bound.arguments, headers)]


def headers_match(arguments: tuple[Argument, ...], headers: Headers) -> bool:
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


class Router:
    def __init__(self, topology: Topology, locate: "Callable[[str, str], Partition | None]") -> None:
        """`locate(vhost, queue)`: the queue's partition, or None when there is no such queue."""
        self.topology = topology
        self.locate = locate
        self._answers: dict[tuple[str, str, str], tuple[Destination, ...]] = {}
        self._destinations: dict[tuple[str, str, str, int, tuple[str, ...]], Destination] = {}
        self._matchers: dict[tuple[str, str], ExchangeMatcher] = {}
        self._needs_headers: dict[tuple[str, str], bool] = {}

    def queues_changed(self) -> None:
        self._answers.clear()

    def bindings_changed(self, vhost: str, exchange: str) -> None:
        self._answers.clear()
        self._needs_headers.clear()
        self._matchers.pop((vhost, exchange), None)

    def exchanges_changed(self) -> None:
        """Or policies, which may name alternate exchanges."""
        self._answers.clear()
        self._needs_headers.clear()
        self._matchers.clear()

    def route(self, vhost: str, exchange: str, routing_key: str, headers: Headers | None) -> tuple[Destination, ...]:
        """() when the exchange does not exist or nothing matches."""
        key = (vhost, exchange, routing_key)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._intern(key, self.queues(vhost, exchange, routing_key, headers or {}))
            if not self.needs_headers(vhost, exchange):
                if len(self._answers) >= REMEMBERED_ROUTES:
                    self._answers.clear()
                self._answers[key] = answer
        return answer

    def route_by_keys(
        self, vhost: str, exchange: str, routing_keys: tuple[str, ...], headers: Headers | None
    ) -> tuple[Destination, ...]:
        """As `route` for a message with carbon copies: the queues of all keys; the route has the first key."""
        if len(routing_keys) == 1:
            return self.route(vhost, exchange, routing_keys[0], headers)
        queues = [name for key in routing_keys for name in self.queues(vhost, exchange, key, headers or {})]
        return self._intern((vhost, exchange, routing_keys[0]), list(dict.fromkeys(queues)))

    def needs_headers(self, vhost: str, exchange: str) -> bool:
        """Whether a headers exchange can be reached from this one."""
        key = (vhost, exchange)
        needs = self._needs_headers.get(key)
        if needs is None:
            reached = {exchange: None}
            for name in (todo := [exchange]):
                for follower in self._followers(vhost, name):
                    if follower not in reached:
                        reached[follower] = None
                        todo.append(follower)
            needs = any(
                found.type == "headers" for name in reached if (found := self.topology.exchanges.get((vhost, name)))
            )
            self._needs_headers[key] = needs
        return needs

    def queues(self, vhost: str, exchange: str, routing_key: str, headers: Headers) -> list[str]:
        """Names of the queues that the bindings lead to; of the default exchange, existing or not."""
        if exchange == "":
            return [routing_key]
        queues: dict[str, None] = {}
        seen = {exchange: None}
        todo = deque([exchange])
        while todo:
            name = todo.popleft()
            matcher = self._matcher(vhost, name)
            if matcher is None:
                continue
            matched = matcher.match(routing_key, headers)
            exchanges = []
            for bound in matched:
                if bound.destination_type == "queue":
                    if self.is_live(bound):
                        queues[bound.destination] = None
                else:
                    exchanges.append(bound.destination)
            if not matched and (alternate := self.alternate(vhost, name)) is not None:
                exchanges.append(alternate)
            for follower in exchanges:
                if follower not in seen:
                    seen[follower] = None
                    if follower == "":
                        queues[routing_key] = None
                    else:
                        todo.append(follower)
        return list(queues)

    def is_live(self, bound: Bound) -> bool:
        """Not of a queue that is gone, or gone and declared anew."""
        if bound.destination_type != "queue":
            return True
        partition = self.locate(bound.vhost, bound.destination)
        queue = None if partition is None else partition.machine.queue(bound.vhost, bound.destination)
        return queue is not None and bound.queue_id in (queue.queue_id, NOT_RECORDED)

    def alternate(self, vhost: str, exchange: str) -> str | None:
        """The alternate exchange: the exchange's argument, else its policy's."""
        declared = self.topology.exchanges.get((vhost, exchange))
        for argument in declared.arguments if declared is not None else ():
            if argument.name == "alternate-exchange":
                return str(argument.value)
        policy = self.topology.effective_exchange_policy(vhost, exchange)
        if policy is not None:
            name = json.loads(policy.definition).get("alternate-exchange")
            return None if name is None else str(name)
        return None

    def _followers(self, vhost: str, exchange: str) -> list[str]:
        bindings = self.topology.bindings_from(vhost, exchange)
        names = [bound.destination for bound in bindings if bound.destination_type == "exchange"]
        alternate = self.alternate(vhost, exchange)
        return names if alternate is None else [*names, alternate]

    def _matcher(self, vhost: str, exchange: str) -> ExchangeMatcher | None:
        matcher = self._matchers.get((vhost, exchange))
        if matcher is None:
            declared = self.topology.exchanges.get((vhost, exchange))
            if declared is None:
                return None
            matcher = ExchangeMatcher(declared, self.topology.bindings_from(vhost, exchange))
            self._matchers[vhost, exchange] = matcher
        return matcher

    def _intern(self, key: tuple[str, str, str], queues: list[str]) -> tuple[Destination, ...]:
        shares: dict[int, tuple[Partition, list[str]]] = {}
        for queue in queues:
            partition = self.locate(key[0], queue)
            if partition is not None:
                shares.setdefault(partition.index, (partition, []))[1].append(queue)
        return tuple(self._interned(partition, key, tuple(names)) for partition, names in shares.values())

    def narrowed(self, destination: Destination, queues: tuple[str, ...]) -> Destination:
        """The same to fewer queues."""
        route = destination.route
        if route.queues == queues:
            return destination
        return self._interned(destination.partition, (route.vhost, route.exchange, route.routing_key), queues)

    def _interned(self, partition: "Partition", key: tuple[str, str, str], queues: tuple[str, ...]) -> Destination:
        identity = (*key, partition.index, queues)
        destination = self._destinations.get(identity)
        if destination is None:
            if len(self._destinations) >= REMEMBERED_ROUTES:
                self._destinations.clear()
            destination = Destination(partition, Route(*key, queues))
            self._destinations[identity] = destination
        return destination
