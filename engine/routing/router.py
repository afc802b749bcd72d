"""Finds the queues for an exchange and routing keys (AMQP 0-9-1 section 3.1; rabbit_exchange.erl `route/3`).

It follows the default exchange, exchange-to-exchange bindings, alternate exchanges and delays. exchange_types.py finds
the matches of one exchange.

Rules of this file
- A route is resolved once and remembered by (vhost, exchange, routing key): the same answer is the same objects, so the
  encoder and the machine may keep things per `Route`. A route that depends on the rest of the message, or is random, is
  not remembered, but its `Route` objects are the same too.
- An exchange is visited once a route, so cycles of exchange bindings end; a queue is named once.
- Queues come in the order of binding, exchanges nearest first. Queues that do not exist (any longer) are left out.
- An alternate exchange (argument or policy `alternate-exchange`) is asked when an exchange matched nothing at all, with
  all of the message's keys (its own, CC, BCC).
- An x-delayed-message exchange that a message with a delay comes to keeps it in its hidden queue, and routes it when it
  is due. The routes through other exchanges hold at once.
- The `Route` of a queue that is reached only through x-message-deduplication exchanges says so. Of several on its
  way, the one nearest to the queue counts. So the exchanges that are reached otherwise are visited first.
- A client's publish that reaches no queue is an event as well: its one `Destination` has a route without queues, in a
  partition that follows from exchange and key (`unrouted`). The broker's own publishes have no destination then.

    router.route("/", "amq.topic", "a.b", None) -> (Destination(partition 0, Route), Destination(partition 1, Route))
"""

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.routing import exchange_types
from rewindmq.engine.routing.content import NO_CONTENT, Content
from rewindmq.engine.routing.deduplication import deduplication_of
from rewindmq.engine.routing.exchange_types import ExchangeType
from rewindmq.engine.routing.portions import PORTION, Search, to_the_end
from rewindmq.projections.machine.data.delayed_order import queue_of
from rewindmq.projections.machine.rules.versions import UNROUTED
from rewindmq.projections.rules.internal_queues import is_delay_queue
from rewindmq.projections.topology.topology import EVENT_EXCHANGE, Topology
from rewindmq.schemas.metadata_events import Bound
from rewindmq.schemas.values import Deduplication, Route, Unrouted

KEY_BYTES = 255  # of a routing key (S-062)
REMEMBERED_ROUTES = 65_536  # then all are forgotten: publishers with unbounded keys must not fill the memory
REMEMBERED_QUEUES = 1_048_576  # in all these routes together

RouteNote = Deduplication | Unrouted | None  # `Route.deduplication`


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """The part of a route in one partition. `delay_ms`: to the hidden queue of an x-delayed-message exchange."""

    partition: Partition
    route: Route
    delay_ms: int | None = None


def cut_key(key: str) -> str:
    """Return a key with a queue's name in it, no longer than AMQP allows: the end of a long name is cut off."""
    return key if len(key) * 4 <= KEY_BYTES else key.encode()[:KEY_BYTES].decode(errors="ignore")


@dataclass(frozen=True, slots=True)
class Way:
    """The way in which a queue is reached. `delay_ms`: as in `Destination`. `deduplication`: as in `Route`."""

    delay_ms: int | None = None
    deduplication: Deduplication | None = None


DIRECT = Way()


def _is_full(routes: int, queues: int) -> bool:
    """Return True if a cache of `routes` routes has no room for another one, to `queues` queues."""
    return routes >= REMEMBERED_ROUTES or routes * queues > REMEMBERED_QUEUES


class Router:
    def __init__(
        self,
        topology: Topology,
        locate: Callable[[str, str], Partition | None],
        home: Callable[[str, str], Partition],
        share: LoopShare | None = None,
    ) -> None:
        """`locate(vhost, queue)`: the queue's partition, or None if it does not exist. `home(vhost, name)`: the
        partition in which a queue of this name would be. `share`: the loop's, for searches that take long
        (portions.py)."""
        self.topology = topology
        topology.watch_bindings(self._binding_changed)
        self.locate = locate
        self.home = home
        self.share = LoopShare() if share is None else share
        # Changes with everything that a route, or the right to publish, depends on: caches of routes key on it.
        self.version = 1
        self._answers: dict[tuple[str, str, str, bool], tuple[Destination, ...]] = {}
        self._destinations: dict[tuple[str, str, str, int, tuple[str, ...], RouteNote], Destination] = {}
        self._deduplications: dict[tuple[str, str], Deduplication | None] = {}
        self._matchers: dict[tuple[str, str], ExchangeType] = {}  # changed with each binding
        self._pickers: dict[tuple[str, str], None] = {}  # of these, those that depend on queues
        self._needs_content: dict[tuple[str, str], bool] = {}

    def invalidate(self) -> None:
        """Make each cache of routes ask again."""
        self.version += 1

    def queues_changed(self) -> None:
        self.version += 1
        self._answers.clear()
        for key in self._pickers:
            self._matchers.pop(key, None)
        self._pickers.clear()

    def _binding_changed(self, bound: Bound, is_there: bool) -> None:
        self.version += 1
        self._answers.clear()
        if bound.destination_type == "exchange":
            self._needs_content.clear()
        source = (bound.vhost, bound.source)
        matcher = self._matchers.get(source)
        if matcher is None:
            return
        if matcher.picks_one or matcher.missing or self.topology.exchanges.get(source) is not matcher.exchange:
            del self._matchers[source]
        elif is_there:
            matcher.add(bound)
        else:
            matcher.remove(bound)

    def exchanges_changed(self) -> None:
        """Note that exchanges, policies (which may name alternate exchanges), or permissions changed."""
        self.version += 1
        self._answers.clear()
        self._needs_content.clear()
        self._deduplications.clear()
        exchanges = self.topology.exchanges
        if len(self._matchers) > len(exchanges):  # some are of exchanges that are gone
            self._matchers = {key: each for key, each in self._matchers.items() if exchanges.get(key) is each.exchange}

    def route(self, vhost: str, exchange: str, routing_key: str, content: Content | None) -> tuple[Destination, ...]:
        """Route a message. Returns () if the exchange does not exist or nothing matches.

        `content` may be None unless `needs_content`."""
        return to_the_end(self.search(vhost, exchange, routing_key, content))

    def search(
        self, vhost: str, exchange: str, routing_key: str, content: Content | None, by_client: bool = False
    ) -> Search[tuple[Destination, ...]]:
        """Return the same in portions. `by_client`: as in `search_by_keys`."""
        key = (vhost, exchange, routing_key, by_client)
        answer = self._answers.get(key)
        if answer is None:
            version = self.version
            answer = yield from self.search_by_keys(vhost, exchange, (routing_key,), content, by_client=by_client)
            if version == self.version and not self.needs_content(vhost, exchange):
                if _is_full(len(self._answers), sum(len(to.route.queues) for to in answer)):
                    self._answers.clear()
                self._answers[key] = answer
        return answer

    def search_by_keys(
        self,
        vhost: str,
        exchange: str,
        routing_keys: tuple[str, ...],
        content: Content | None,
        published_to: str | None = None,
        by_client: bool = False,
    ) -> Search[tuple[Destination, ...]]:
        """Route a message with carbon copies, in portions: a binding matches if any of the keys does.

        Otherwise as `route`. The route has the first key, and the exchange `published_to` if it is not None.
        `by_client`: a publish that reaches no queue has the destination `unrouted`."""
        keys = tuple(dict.fromkeys(routing_keys))
        reached, alternate = yield from self._reached(vhost, exchange, keys, content or NO_CONTENT)
        key = (vhost, exchange if published_to is None else published_to, routing_keys[0])
        found = self._intern(key, reached)
        return found if found or not by_client else self.unrouted(*key, Unrouted(alternate, returned=False))

    def unrouted(self, vhost: str, exchange: str, routing_key: str, how: Unrouted) -> tuple[Destination, ...]:
        """Return the destination of a client's publish that reaches no queue, or () if its partition follows a machine
        version without such events, or the exchange's policy has such publishes counted.

        A publish to the default exchange is where the queue would be that it names."""
        partition = self.home(vhost, f"{exchange}\0{routing_key}" if exchange else routing_key)
        if partition.machine.machine_version < UNROUTED or self.counts_unrouted(vhost, exchange):
            return ()
        return (self._interned(partition, (vhost, exchange, routing_key), (), how),)

    def counts_unrouted(self, vhost: str, exchange: str) -> bool:
        """Return True if publishes to this exchange that reach no queue are counted, and not kept one by one."""
        if self.topology.machine_version < UNROUTED:
            return False
        policy = self.topology.effective_exchange_policy(vhost, exchange)
        return policy is not None and json.loads(policy.definition).get("unrouted") == "count"

    def returned(self, destinations: tuple[Destination, ...]) -> tuple[Destination, ...]:
        """Return the destinations of a mandatory publish, given those that it would have otherwise."""
        for to in destinations:
            route = to.route
            if route.unrouted is not None:
                how = Unrouted(route.unrouted.alternate, returned=True)
                return self.unrouted(route.vhost, route.exchange, route.routing_key, how)
        return destinations

    def needs_content(self, vhost: str, exchange: str) -> bool:
        """Return True if a message to this exchange can reach an exchange that reads more than routing keys."""
        key = (vhost, exchange)
        needs = self._needs_content.get(key)
        if needs is None:
            reached = {exchange: None}
            for name in (todo := [exchange]):
                for follower in self._followers(vhost, name):
                    if follower not in reached:
                        reached[follower] = None
                        todo.append(follower)
            needs = any(
                exchange_types.type_of(found).needs_content(found)
                for name in reached
                if (found := self.topology.exchanges.get((vhost, name))) is not None
            )
            self._needs_content[key] = needs
        return needs

    def _reached(
        self, vhost: str, exchange: str, routing_keys: tuple[str, ...], content: Content
    ) -> Search[tuple[dict[str, Way], bool]]:
        """Return the names of the queues that the bindings lead to, each with its way; and whether an alternate
        exchange was asked.

        A queue that the default exchange names need not exist."""
        if exchange == "":
            return {key: DIRECT for key in routing_keys if not is_delay_queue(key)}, False
        asked_alternate = False
        queues: dict[str, Way] = {}
        seen: dict[str, None] = {}
        todo: deque[tuple[str, Deduplication | None]] = deque()
        behind: deque[tuple[str, Deduplication | None]] = deque()  # deduplicating exchanges: visited when todo is empty
        first = self._deduplication(vhost, exchange)
        (todo if first is None else behind).append((exchange, first))
        while todo or behind:
            name, deduplication = todo.popleft() if todo else behind.popleft()
            matcher = None if name in seen else self._matcher(vhost, name)
            if matcher is None:
                continue
            seen[name] = None
            if matcher.missing:
                yield from matcher.fill()
            if matcher.delays and content.delay_ms is not None:
                queues[queue_of(name)] = Way(content.delay_ms, deduplication)
                continue
            found = yield from matcher.search(routing_keys, content)
            matched: list[Bound] = []
            for start in range(0, len(found), PORTION):
                part = found[start : start + PORTION]
                matched += [bound for bound in part if self.is_live(bound)]
                yield 4 * len(part)
            way = DIRECT if deduplication is None else Way(None, deduplication)
            for bound in matched:
                if bound.destination_type == "queue":
                    queues.setdefault(bound.destination, way)
            exchanges = [bound.destination for bound in matched if bound.destination_type == "exchange"]
            if not matched and (alternate := self.alternate(vhost, name)):  # never the default exchange, as RabbitMQ
                exchanges.append(alternate)
                asked_alternate = True
            for follower in exchanges:
                asked = self._deduplication(vhost, follower) or deduplication
                (todo if asked is None else behind).append((follower, asked))
        return queues, asked_alternate

    def _deduplication(self, vhost: str, exchange: str) -> Deduplication | None:
        """Return the deduplication that the exchange asks of the queues behind it, if any."""
        key = (vhost, exchange)
        if key in self._deduplications:
            return self._deduplications[key]
        declared = self.topology.exchanges.get(key)
        if declared is None:
            return None
        asked = deduplication_of(declared, self.topology.effective_exchange_policy(vhost, exchange))
        self._deduplications[key] = asked
        return asked

    def is_live(self, bound: Bound) -> bool:
        """Return True if the binding's queue exists and is the incarnation that was bound."""
        if bound.destination_type != "queue":
            return True
        moving = self.topology.placement.moving.get((bound.vhost, bound.destination))
        if moving is not None:  # its messages wait until it has arrived, and are then routed again
            return bound.queue_id == moving.from_id
        partition = self.locate(bound.vhost, bound.destination)
        if partition is None or not partition.current:  # without the fold a binding shows that its queue was there
            return partition is not None
        queue = partition.machine.queue(bound.vhost, bound.destination)
        return queue is not None and bound.queue_id == queue.queue_id

    def alternate(self, vhost: str, exchange: str) -> str | None:
        """Return the alternate exchange in the exchange's argument, or in its policy.

        The exchange of events has none: a policy would lead events to people who may not bind a queue to them."""
        if exchange == EVENT_EXCHANGE:
            return None
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
        names = self.topology.followers(vhost, exchange)
        alternate = self.alternate(vhost, exchange)
        return names if alternate is None else [*names, alternate]

    def _matcher(self, vhost: str, exchange: str) -> ExchangeType | None:
        declared = self.topology.exchanges.get((vhost, exchange))
        if declared is None:
            return None
        matcher = self._matchers.get((vhost, exchange))
        if matcher is None or matcher.exchange is not declared:
            matcher = exchange_types.matcher(declared, self.topology.bindings_from(vhost, exchange), self.is_live)
            self._matchers[vhost, exchange] = matcher
            if matcher.picks_one:
                self._pickers[vhost, exchange] = None
        return matcher

    def _intern(self, key: tuple[str, str, str], queues: dict[str, Way]) -> tuple[Destination, ...]:
        shares: dict[tuple[int, Deduplication | None], tuple[Partition, list[str]]] = {}
        delayed = []
        for queue, way in queues.items():
            partition = self.locate(key[0], queue)
            if partition is None:
                continue
            if way.delay_ms is None:
                shares.setdefault((partition.index, way.deduplication), (partition, []))[1].append(queue)
            else:
                route = self._interned(partition, key, (queue,), way.deduplication).route
                delayed.append(Destination(partition, route, way.delay_ms))
        at_once = [
            self._interned(partition, key, tuple(names), deduplication)
            for (_, deduplication), (partition, names) in shares.items()
        ]
        return tuple(at_once + delayed)

    def narrowed(self, destination: Destination, queues: tuple[str, ...]) -> Destination:
        """Return the same destination with fewer queues."""
        return self.placed(destination, destination.partition, queues)

    def placed(self, destination: Destination, partition: Partition, queues: tuple[str, ...]) -> Destination:
        """Return the same destination with these queues of it, which are in this partition now."""
        route = destination.route
        if route.queues == queues and destination.partition is partition:
            return destination
        key = (route.vhost, route.exchange, route.routing_key)
        return self._interned(partition, key, queues, route.deduplication)

    def first_held(self, destinations: Iterable[Destination]) -> tuple[str, str] | None:
        """Return the first queue of these, by vhost and name, that is on its way to another partition."""
        moving = self.topology.placement.moving
        if not moving:
            return None
        names = ((to.route.vhost, name) for to in destinations for name in to.route.queues)
        return next((name for name in names if name in moving), None)

    def to_queue(self, partition: Partition, vhost: str, exchange: str, routing_key: str, queue: str) -> Destination:
        """One queue of a partition, for a message that came through this exchange with this key before."""
        return self._interned(partition, (vhost, exchange, routing_key), (queue,), None)

    def _interned(
        self,
        partition: Partition,
        key: tuple[str, str, str],
        queues: tuple[str, ...],
        note: RouteNote,
    ) -> Destination:
        identity = (*key, partition.index, queues, note)
        destination = self._destinations.get(identity)
        if destination is None:
            if _is_full(len(self._destinations), len(queues)):
                self._destinations.clear()
            destination = Destination(partition, Route(*key, queues, note))
            self._destinations[identity] = destination
        return destination
