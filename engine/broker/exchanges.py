"""Exchanges and their bindings, and where a publish goes.

Rules of this file
- Codes and texts are RabbitMQ 3.13's, and so is the order of the checks (rabbit_channel.erl `handle_method/3` of
  exchange.declare and exchange.delete, `binding_action/10`).
- A channel checks a publish once for each exchange and routing key, and not once for each message: the answer holds
  until `Router.version` changes.
"""

from collections import Counter
from collections.abc import AsyncIterator, Container
from dataclasses import replace

from rewindmq.engine.broker import declarations
from rewindmq.engine.broker.access_control import ITSELF, Access
from rewindmq.engine.broker.access_log import AccessLog
from rewindmq.engine.broker.open_sessions import OpenSessions
from rewindmq.engine.broker.queues import Queues
from rewindmq.engine.errors import AccessRefused, NotFound, PreconditionFailed, resource
from rewindmq.engine.host.loop_share import Work, by_key
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.routing import exchange_types
from rewindmq.engine.routing.content import Content
from rewindmq.engine.routing.delayed_exchanges import DELAYED_EXCHANGE, HiddenQueues
from rewindmq.engine.routing.event_headers import NODE_WIDE, NODE_WIDE_TAGS
from rewindmq.engine.routing.homes import Homes
from rewindmq.engine.routing.portions import Search, at_once
from rewindmq.engine.routing.router import Destination, Router
from rewindmq.projections.history.search import ids_in
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.topology.topology import DEFAULT_VHOST, EVENT_EXCHANGE
from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared
from rewindmq.schemas.values import Actor, Argument


class Exchanges:
    """`reads_back`: the log is shared with other nodes, so a deleted exchange's hidden queue goes later."""

    def __init__(
        self,
        metadata: Metadata,
        access: Access,
        router: Router,
        hidden: HiddenQueues,
        sessions: OpenSessions,
        queues: Queues,
        homes: Homes,
        reads_back: bool,
        access_log: AccessLog,
    ) -> None:
        self._metadata = metadata
        self._topology = metadata.topology
        self._access = access
        self._router = router
        self._hidden = hidden
        self._sessions = sessions
        self._queues = queues
        self._homes = homes
        self._reads_back = reads_back
        self._access_log = access_log
        self.unrouted: Counter[tuple[str, str]] = Counter()  # clients' publishes that no queue took, by vhost and name

    # -- publishing (hot) ---------------------------------------------------------------------------------------------

    def route(
        self, session: Session, exchange: str, routing_key: str, content: Content | None
    ) -> tuple[Destination, ...]:
        """Route a publish: its destinations, or that of an unroutable one (`Router.unrouted`). The same answer is the
        same object until `Router.version` changes. `content` may be None unless `Router.needs_content`.

        NotFound (404): no such exchange. AccessRefused: no write permission, or the exchange is internal.
        RouteTakesLong: the caller runs the rest of the search in turns (engine/routing/portions.py)."""
        self.check_publish(session, exchange, routing_key)
        return at_once(self._router.search(session.vhost, exchange, routing_key, content, by_client=True))

    def count_unrouted(self, vhost: str, exchange: str, count: int) -> None:
        """Count publishes that no queue took (hot). Exchanges that are gone are forgotten now and then."""
        self.unrouted[vhost, exchange] += count
        if len(self.unrouted) > 2 * len(self._topology.exchanges):
            for gone in self.unrouted.keys() - self._topology.exchanges.keys():
                del self.unrouted[gone]

    def group_unrouted(self, actor: Actor, vhost: str, exchange: str, routing_key: str, raw: bytes) -> None:
        """Log a publish that no queue took, and that is no event, in a group if the exchange's policy says
        `unrouted: count` (access_log.py). `raw`: its properties."""
        if self._router.counts_unrouted(vhost, exchange):
            self._access_log.unrouted(actor, vhost, exchange, routing_key, ids_in(raw)[0])

    def route_by_keys(
        self, session: Session, exchange: str, routing_keys: tuple[str, ...], content: Content
    ) -> tuple[Destination, ...]:
        """As `route`, with the keys of carbon copies behind the message's own: the user needs topic permissions for
        every key."""
        return at_once(self._search_by_keys(session, exchange, routing_keys, content))

    def _search_by_keys(
        self, session: Session, exchange: str, routing_keys: tuple[str, ...], content: Content
    ) -> Search[tuple[Destination, ...]]:
        for routing_key in routing_keys:
            self.check_publish(session, exchange, routing_key)
            yield 10
        search = self._router.search_by_keys(session.vhost, exchange, routing_keys, content, by_client=True)
        return (yield from search)

    def check_publish(self, session: Session, exchange: str, routing_key: str) -> None:
        """Raise what `route` raises if the session may not publish so."""
        vhost = session.vhost
        self._access.check(session, vhost, "write", "exchange", exchange)
        declared = self._topology.exchanges.get((vhost, exchange))
        if declared is None:
            raise NotFound(f"no {resource('exchange', exchange, vhost)}")
        if declared.internal:
            raise AccessRefused(f"cannot publish to internal {resource('exchange', exchange, vhost)}")
        self._access.check_topic(session, declared, "write", routing_key)

    # -- exchanges and bindings ---------------------------------------------------------------------------------------

    async def declare(
        self,
        session: Session,
        name: str,
        type: str,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: tuple[Argument, ...],
    ) -> None:
        """Declare an exchange. Does nothing if it exists with the same properties."""
        name = declarations.strip_cr_lf(name)
        vhost = session.vhost
        if passive:
            _check_not_default(name)
            if (vhost, name) not in self._topology.exchanges:
                raise NotFound(f"no {resource('exchange', name, vhost)}")
            return
        exchange_types.check_type(type)
        _check_not_default(name)
        self._access.check(session, vhost, "configure", "exchange", name)
        known = self._topology.exchanges.get((vhost, name))
        if known is not None:
            declarations.check_exchange_equivalence(known, type, durable, auto_delete, internal, arguments)
            if type == DELAYED_EXCHANGE:
                await self._begin_delays(session, name, None)
            return
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        alternate = declarations.exchange_named_by("exchange", name, vhost, arguments, "alternate-exchange")
        if alternate is not None:
            self._access.check(session, vhost, "read", "exchange", name)
            self._access.check(session, vhost, "write", "exchange", alternate)
        declared = ExchangeDeclared(
            vhost, name, type=type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
        )
        exchange_types.type_of(declared).check_arguments(declared)
        left_over = await self._hidden.left_over(vhost, name) if type == DELAYED_EXCHANGE else None
        await self._metadata.ask(session.actor, declared)
        known = self._topology.exchanges.get((vhost, name))
        if known is None:  # deleted by another node in the same moment
            raise NotFound(f"no {resource('exchange', name, vhost)}")
        # another node's client may have been faster
        declarations.check_exchange_equivalence(known, type, durable, auto_delete, internal, arguments)
        if type == DELAYED_EXCHANGE:
            await self._begin_delays(session, name, left_over)

    async def _begin_delays(self, session: Session, name: str, left_over: Queue | None) -> None:
        if await self._hidden.begin(session.actor, session.vhost, name, left_over):
            self._router.queues_changed()

    async def delete(self, session: Session, name: str, if_unused: bool) -> None:
        """Delete an exchange with its bindings. Does nothing if there is no such exchange."""
        name = declarations.strip_cr_lf(name)
        vhost = session.vhost
        _check_not_default(name)
        if name.startswith("amq."):
            raise AccessRefused(f"deletion of system {resource('exchange', name, vhost)} not allowed")
        self._access.check(session, vhost, "configure", "exchange", name)
        if if_unused or (vhost, name) not in self._topology.exchanges:
            await self._sessions.read_to_end(session)
        exchange = self._topology.exchanges.get((vhost, name))
        if exchange is None:
            return
        if if_unused and any(self._router.is_live(bound) for bound in self._topology.bindings_from(vhost, name)):
            raise PreconditionFailed(f"{resource('exchange', name, vhost)} in use")
        await self._metadata.delete_exchange(session.actor, vhost, name)
        if self._reads_back and exchange.type == DELAYED_EXCHANGE:
            await self._hidden.until_gone(vhost, name)

    async def bind(
        self,
        session: Session,
        source: str,
        destination_type: str,
        destination: str,
        routing_key: str,
        arguments: tuple[Argument, ...],
    ) -> None:
        """Bind a queue or an exchange to a source. `destination_type`: queue or exchange."""
        source, destination = declarations.strip_cr_lf(source), declarations.strip_cr_lf(destination)
        self._check_binding(session, source, destination_type, destination, routing_key)
        vhost = session.vhost
        exchange = self._topology.exchanges.get((vhost, source))
        if exchange is None:
            raise NotFound(f"no {resource('exchange', source, vhost)}")
        bound = Bound(vhost, source, destination_type, destination, routing_key, _sorted(arguments))
        if destination_type == "queue":
            bound = replace(bound, queue_id=(await self._queues.usable(session, destination))[1].queue_id)
        elif (vhost, destination) not in self._topology.exchanges:
            raise NotFound(f"no {resource('exchange', destination, vhost)}")
        exchange_types.matching_type(exchange).check_binding(routing_key, arguments)
        self._check_node_wide(session, source, routing_key)
        await self._metadata.bind(session.actor, bound)
        while destination_type == "queue" and (now := await self._moved(session, bound)) is not None:
            await self._metadata.unbind(session.actor, bound)
            bound = now
            await self._metadata.bind(session.actor, bound)
        if not self._topology.is_bound(bound):  # another client deleted one of the two meanwhile
            for kind, name in (("exchange", source), (destination_type, destination)):
                exchanges = self._topology.exchanges
                exists = (vhost, name) in exchanges if kind == "exchange" else self._queues.get(vhost, name)
                if not exists:
                    raise NotFound(f"no {resource(kind, name, vhost)}")

    async def _moved(self, session: Session, bound: Bound) -> Bound | None:
        """The binding as it has to be, if its queue has moved to another partition while it was made; else None."""
        if not self._homes.has_moves:
            return None
        partition = await self._queues.entered(session, bound.destination)
        queue = partition.machine.queue(bound.vhost, bound.destination)
        now = bound if queue is None else replace(bound, queue_id=queue.queue_id)
        return None if now == bound or self._topology.is_bound(now) else now

    async def unbind(
        self,
        session: Session,
        source: str,
        destination_type: str,
        destination: str,
        routing_key: str,
        arguments: tuple[Argument, ...],
    ) -> None:
        """Remove a binding. Does nothing if there is no such binding."""
        source, destination = declarations.strip_cr_lf(source), declarations.strip_cr_lf(destination)
        self._check_binding(session, source, destination_type, destination, routing_key)
        ends = (session.vhost, source, destination_type, destination, routing_key, _sorted(arguments))
        if not await self._found_unbound(session, *ends):
            await self._sessions.read_to_end(session)
            await self._found_unbound(session, *ends)

    async def _found_unbound(
        self,
        session: Session,
        vhost: str,
        source: str,
        destination_type: str,
        destination: str,
        routing_key: str,
        arguments: tuple[Argument, ...],
    ) -> bool:
        """Remove the binding if it is in what this node has read. Returns whether it was."""
        bound = Bound(vhost, source, destination_type, destination, routing_key, arguments)
        if destination_type == "queue":
            await self._queues.entered(session, destination)
            if self._queues.get(vhost, destination) is None:
                return False
            bound = replace(bound, queue_id=(await self._queues.usable(session, destination))[1].queue_id)
        found = self._topology.is_bound(bound)
        await self._metadata.unbind(session.actor, bound)
        return found

    def _check_binding(
        self, session: Session, source: str, destination_type: str, destination: str, routing_key: str
    ) -> None:
        self._access.check(session, session.vhost, "write", destination_type, destination)
        if destination_type == "exchange":
            _check_not_default(destination)
        _check_not_default(source)
        self._access.check(session, session.vhost, "read", "exchange", source)
        exchange = self._topology.exchanges.get((session.vhost, source))
        if exchange is not None:
            self._access.check_topic(session, exchange, "read", routing_key)

    def _check_node_wide(self, session: Session, source: str, routing_key: str) -> None:
        """AccessRefused: the binding would tell of logins, users and vhosts, and the user may not know of them."""
        if (session.vhost, source) != (DEFAULT_VHOST, EVENT_EXCHANGE) or session.user == ITSELF:
            return
        if any(tag in self._access.tags(session) for tag in NODE_WIDE_TAGS):
            return
        key = next((each for each in NODE_WIDE if exchange_types.topic_matches(routing_key, each)), None)
        if key is not None:
            text = (
                f"'{routing_key}' matches {key}, an event of the whole node: user '{session.user}' needs the tag"
                f" {' or '.join(NODE_WIDE_TAGS)}, or narrower keys, such as queue.# and message.#"
            )
            raise AccessRefused(text, ("exchange", source))

    async def bindings_by_source(self, work: Work, vhosts: Container[str]) -> AsyncIterator[Bound]:
        """The bindings of these vhosts by vhost and source, then in the order in which they were made, in slices. The
        bindings of the default exchange are not among them."""
        topology = self._topology
        async for exchange in work.over(await by_key(work, topology.exchanges, lambda key: key[0] in vhosts)):
            async for bound in work.over(topology.bindings_from(exchange.vhost, exchange.exchange)):
                yield bound


def _sorted(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """The arguments by name: their order makes no other binding (rabbit_misc.erl `sort_field_table/1`)."""
    return tuple(sorted(arguments, key=lambda argument: argument.name))


def _check_not_default(exchange: str) -> None:
    if exchange == "":
        raise AccessRefused("operation not permitted on the default exchange")
