"""The broker's half that routes: exchanges, their bindings, and where a publish goes.

Rules of this file
- Codes and texts are RabbitMQ 3.13's, and so is the order of the checks (rabbit_channel.erl `handle_method/3` of
  exchange.declare and exchange.delete, `binding_action/10`).
- A publish is judged once for each exchange and key that a channel uses, not once for each message: what is answered
  holds until `routing_version` moves.
"""

from abc import ABC, abstractmethod

from rewindmq.engine.broker import declarations
from rewindmq.engine.broker.administration import Administration
from rewindmq.engine.errors import AccessRefused, NotFound, PreconditionFailed, resource
from rewindmq.engine.routing import exchange_types
from rewindmq.engine.routing.delayed_exchanges import DELAYED_EXCHANGE, HiddenQueues
from rewindmq.engine.routing.matches import Content
from rewindmq.engine.routing.router import Destination, Router
from rewindmq.engine.runtime.metadata import NOT_RECORDED
from rewindmq.engine.runtime.partition import Partition
from rewindmq.engine.runtime.sessions import Session
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared
from rewindmq.schemas.values import Argument


class Exchanges(Administration, ABC):
    router: Router
    hidden: HiddenQueues

    @abstractmethod
    def queues_changed(self) -> None: ...

    @property
    @abstractmethod
    def folds_what_is_durable(self) -> bool: ...

    @abstractmethod
    def queue(self, vhost: str, name: str) -> Queue | None: ...

    @abstractmethod
    async def _usable(self, session: Session, name: str) -> tuple[Partition, Queue]:
        """The queue, if it exists and is not another connection's exclusive one."""

    @abstractmethod
    async def read_to_end(self, session: Session) -> None:
        """What another node has made up to now is known here, too, and the session is still there."""

    # -- publishing (hot) ---------------------------------------------------------------------------------------------

    def route(
        self, session: Session, exchange: str, routing_key: str, content: Content | None
    ) -> tuple[Destination, ...]:
        """Where a publish goes: () when unroutable. NotFound 404 for an unknown exchange, AccessRefused without write
        permission or for an internal exchange. Interned: the same answer is the same objects, until
        `routing_version` moves. `content` is only looked at where `needs_content(vhost, exchange)`."""
        self.check_publish(session, exchange, routing_key)
        return self.router.route(session.vhost, exchange, routing_key, content)

    def route_by_keys(
        self, session: Session, exchange: str, routing_keys: tuple[str, ...], content: Content
    ) -> tuple[Destination, ...]:
        """As `route`, with the keys of carbon copies behind the message's own: it takes topic permissions for all."""
        for routing_key in routing_keys:
            self.check_publish(session, exchange, routing_key)
        return self.router.route_by_keys(session.vhost, exchange, routing_keys, content)

    def check_publish(self, session: Session, exchange: str, routing_key: str) -> None:
        vhost = session.vhost
        self.access.check(session.user, vhost, "write", "exchange", exchange)
        declared = self.topology.exchanges.get((vhost, exchange))
        if declared is None:
            raise NotFound(f"no {resource('exchange', exchange, vhost)}")
        if declared.internal:
            raise AccessRefused(f"cannot publish to internal {resource('exchange', exchange, vhost)}")
        self.access.check_topic(session.user, declared, "write", routing_key)

    def needs_content(self, vhost: str, exchange: str) -> bool:
        """Routing from this exchange looks at more than the routing key."""
        return self.router.needs_content(vhost, exchange)

    # -- exchanges and bindings ---------------------------------------------------------------------------------------

    async def declare_exchange(
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
        name = strip_cr_lf(name)
        vhost = session.vhost
        if passive:
            _check_not_default(name)
            if (vhost, name) not in self.topology.exchanges:
                raise NotFound(f"no {resource('exchange', name, vhost)}")
            return
        exchange_types.check_type(type)
        _check_not_default(name)
        self.access.check(session.user, vhost, "configure", "exchange", name)
        known = self.topology.exchanges.get((vhost, name))
        if known is not None:
            declarations.check_exchange_equivalence(known, type, durable, auto_delete, internal, arguments)
            if type == DELAYED_EXCHANGE:
                await self._begin_delays(session, name, None)
            return
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        alternate = declarations.exchange_named_by("exchange", name, vhost, arguments, "alternate-exchange")
        if alternate is not None:
            self.access.check(session.user, vhost, "read", "exchange", name)
            self.access.check(session.user, vhost, "write", "exchange", alternate)
        declared = ExchangeDeclared(vhost, name, type, durable, auto_delete, internal, arguments)
        exchange_types.check_arguments(declared)
        left_over = self.hidden.left_over(vhost, name) if type == DELAYED_EXCHANGE else None
        await self.metadata.ask(session.actor, declared)
        known = self.topology.exchanges.get((vhost, name))
        if known is None:  # deleted by another node in the same moment
            raise NotFound(f"no {resource('exchange', name, vhost)}")
        # another node's client may have been faster
        declarations.check_exchange_equivalence(known, type, durable, auto_delete, internal, arguments)
        if type == DELAYED_EXCHANGE:
            await self._begin_delays(session, name, left_over)

    async def _begin_delays(self, session: Session, name: str, left_over: Queue | None) -> None:
        if await self.hidden.begin(session.actor, session.vhost, name, left_over):
            self.queues_changed()

    async def delete_exchange(self, session: Session, name: str, if_unused: bool) -> None:
        """No error when there is no such exchange."""
        name = strip_cr_lf(name)
        vhost = session.vhost
        _check_not_default(name)
        if name.startswith("amq."):
            raise AccessRefused(f"deletion of system {resource('exchange', name, vhost)} not allowed")
        self.access.check(session.user, vhost, "configure", "exchange", name)
        if if_unused or (vhost, name) not in self.topology.exchanges:
            await self.read_to_end(session)
        if (vhost, name) not in self.topology.exchanges:
            return
        if if_unused and any(self.router.is_live(bound) for bound in self.topology.bindings_from(vhost, name)):
            raise PreconditionFailed(f"{resource('exchange', name, vhost)} in use")
        await self.metadata.delete_exchange(session.actor, vhost, name)
        if self.folds_what_is_durable:
            await self.hidden.until_gone(vhost, name)

    async def bind(
        self,
        session: Session,
        source: str,
        destination_type: str,
        destination: str,
        routing_key: str,
        arguments: tuple[Argument, ...],
    ) -> None:
        """`destination_type`: queue or exchange."""
        source, destination = strip_cr_lf(source), strip_cr_lf(destination)
        self._check_binding(session, source, destination_type, destination, routing_key)
        vhost = session.vhost
        exchange = self.topology.exchanges.get((vhost, source))
        if exchange is None:
            raise NotFound(f"no {resource('exchange', source, vhost)}")
        queue_id = NOT_RECORDED
        if destination_type == "queue":
            queue_id = (await self._usable(session, destination))[1].queue_id
        elif (vhost, destination) not in self.topology.exchanges:
            raise NotFound(f"no {resource('exchange', destination, vhost)}")
        exchange_types.check_binding(exchange, routing_key, arguments)
        bound = Bound(vhost, source, destination_type, destination, routing_key, _sorted(arguments), queue_id)
        await self.metadata.bind(session.actor, bound)
        if not self.topology.is_bound(bound):  # somebody was faster, and deleted what it was to bind
            for kind, name in (("exchange", source), (destination_type, destination)):
                there = (vhost, name) in self.topology.exchanges if kind == "exchange" else self.queue(vhost, name)
                if not there:
                    raise NotFound(f"no {resource(kind, name, vhost)}")

    async def unbind(
        self,
        session: Session,
        source: str,
        destination_type: str,
        destination: str,
        routing_key: str,
        arguments: tuple[Argument, ...],
    ) -> None:
        """No error when there is no such binding."""
        source, destination = strip_cr_lf(source), strip_cr_lf(destination)
        self._check_binding(session, source, destination_type, destination, routing_key)
        ends = (session.vhost, source, destination_type, destination, routing_key, _sorted(arguments))
        if not await self._found_unbound(session, *ends):
            await self.read_to_end(session)
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
        """The binding was there, as far as this node has read."""
        queue_id = NOT_RECORDED
        if destination_type == "queue" and self.queue(vhost, destination) is not None:
            queue_id = (await self._usable(session, destination))[1].queue_id
        found = False
        for each in dict.fromkeys((queue_id, NOT_RECORDED)):
            bound = Bound(vhost, source, destination_type, destination, routing_key, arguments, each)
            found = found or self.topology.is_bound(bound)
            await self.metadata.unbind(session.actor, bound)
        return found

    def _check_binding(
        self, session: Session, source: str, destination_type: str, destination: str, routing_key: str
    ) -> None:
        self.access.check(session.user, session.vhost, "write", destination_type, destination)
        if destination_type == "exchange":
            _check_not_default(destination)
        _check_not_default(source)
        self.access.check(session.user, session.vhost, "read", "exchange", source)
        exchange = self.topology.exchanges.get((session.vhost, source))
        if exchange is not None:
            self.access.check_topic(session.user, exchange, "read", routing_key)


def strip_cr_lf(name: str) -> str:
    """As RabbitMQ does with names of queues and exchanges."""
    return name.replace("\n", "").replace("\r", "")


def _sorted(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Bindings that differ in the order of their arguments only are the same (rabbit_misc.erl `sort_field_table/1`)."""
    return tuple(sorted(arguments, key=lambda argument: argument.name))


def _check_not_default(exchange: str) -> None:
    if exchange == "":
        raise AccessRefused("operation not permitted on the default exchange")
