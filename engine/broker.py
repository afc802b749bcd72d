"""The broker: what a connection, the HTTP API and the CLI can ask for. Sans-socket; one asyncio loop, one thread.

Names as in AMQP 0-9-1; every method that is refused raises an `engine.errors.AmqpError` with RabbitMQ's code and text.
What changes something is a coroutine: with an embedded log it never waits (engine/eager.py), on a log that is read back
it ends when the event was. Whoever needs durability before it answers (declare-ok, bind-ok, delete-ok, purge-ok, HTTP
201 ...) waits with `when_durable`, too. A session may end while something waits: nothing may be appended for it then.

    broker = Broker.open(config)                  # in the loop; recovers: log -> store -> fold -> BrokerStarted
    session = broker.open_session(user, vhost, peer, client_properties)
    ...
    broker.end_of_turn()                          # after each batch of work: effects out, group commit kicked

Where things are
    partition.py     one queue partition: append, fold, effects, confirms     metadata.py        the metadata log, live
    routing.py       exchange and routing key -> partitions and queues        declarations.py    what may be declared
    dead_letters.py  letters on their way; deaths.py: their headers           auth.py            who may do what
    administration.py  policies, vhosts, users; policies.py: what they say    turns.py           turns and durability
    recovery.py      start and clean stop

A session or consumer id is (epoch << 24) | count, the epoch being the offset of this broker's BrokerStarted in the
metadata log: unique in the whole history.
"""

import secrets
import time
from collections.abc import Callable

from engine import declarations
from engine.administration import Administration
from engine.auth import Access
from engine.config import Config
from engine.counters import COUNTERS
from engine.dead_letters import Forwarder
from engine.declarations import argument_of, resource
from engine.errors import (
    AccessRefused,
    AmqpError,
    ConnectionForced,
    NotAllowed,
    NotFound,
    NotImplementedByBroker,
    PreconditionFailed,
    ResourceLocked,
)
from engine.keeping import Keeper
from engine.log.placement import partition_of
from engine.metadata import NOT_RECORDED, Metadata
from engine.partition import Confirms, Consumer, Partition
from engine.recovery import open_broker
from engine.routing import Destination, Router
from engine.sessions import ChannelStatus, Session
from engine.turns import Turns
from projections.machine.effects import PURGED, DeadLetter, Effect, Forget, QueueGone
from projections.machine.queue import Queue
from schemas.events import (
    Actor,
    Argument,
    Bound,
    BrokerStarted,
    ConsumerAttached,
    ConsumerCancelled,
    Event,
    ExchangeDeclared,
    Fetched,
    GlobalPrefetchSet,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    SessionClosed,
    Unbound,
    UserDeleted,
    VhostDeleted,
)

__all__ = [
    "CREDIT_WINDOW", "Broker", "ChannelStatus", "Config", "Confirms", "Consumer", "Destination", "Partition", "Session",
]  # fmt: skip

# Deliveries that a consumer without prefetch (or with no_ack) starts with (`ConsumerAttached.credit`). Its channel
# gives more by `Credited`, in windows that fit the size of its messages, while the client's socket takes what was sent.
CREDIT_WINDOW = 200
EPOCH_IDS = 1 << 24


class Broker(Administration):
    """Use `open`."""

    def __init__(
        self, config: Config, metadata: Metadata, partitions: list[Partition], keeper: Keeper,
        clock: Callable[[], int],
    ) -> None:  # fmt: skip
        self.config = config
        self.keeper = keeper
        self.metadata = metadata
        self.topology = metadata.topology
        self.partitions = partitions
        self.clock = clock
        self.sessions = {}
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        # moves with every change of exchanges, bindings, queues and permissions: caches of routes key on it
        self.routing_version = 1
        self.access = Access(self.topology)
        self.router = Router(self.topology, self._locate)
        self.forwarder = Forwarder(self.router, clock, self.counters)
        self._epoch = -1
        self._ids = 0
        self.turns = Turns(metadata, partitions, self.forwarder, clock)
        metadata.changed = self._metadata_changed
        for partition in partitions:
            partition.stand_in(self)

    @classmethod
    def open(cls, config: Config, clock: Callable[[], int] | None = None) -> "Broker":
        """Recover what the data directory holds, or begin it. Call in the loop that will run the broker. LogError,
        CorruptLog, StoreError, UndecodableRecord: the text says what is wrong and where."""
        return open_broker(cls, config, clock or wall_clock_ms)

    def close(self) -> None:
        """Stop cleanly: everything durable, RocksDB persisted, a Checkpointed event per partition."""
        for session in list(self.sessions.values()):
            self.close_session(session)
        self.keeper.stop()

    # -- sessions -----------------------------------------------------------------------------------------------------

    def open_session(self, user: str, vhost: str, peer: str, client_properties: dict[str, object]) -> Session:
        """NotAllowed when the vhost does not exist or the user may not enter it (530). ConnectionForced while the node
        is joining again after it was lost (320)."""
        if not self.keeper.joined:
            raise ConnectionForced("the node was declared lost and is joining again")
        if vhost not in self.topology.vhosts:
            raise NotAllowed(f"vhost {vhost} not found")
        if not self.access.may_enter(user, vhost):
            raise NotAllowed(f"access to vhost '{vhost}' refused for user '{user}'")
        session_id = self._next_id()
        session = Session(session_id, user, vhost, peer, Actor(user, session_id), client_properties, self.clock())
        self.sessions[session_id] = session
        self.counters["connections_opened_total"] += 1
        return session

    def close_channel(self, session: Session, channel: int) -> None:
        for partition, consumer_ids in session.attached.pop(channel, {}).items():
            for consumer_id in consumer_ids:
                partition.detach(consumer_id)
            partition.append(session.actor, SessionClosed(session.session_id, channel))
        for key in [key for key in session.holders if key[0] == channel]:
            del session.holders[key]

    def close_session(self, session: Session) -> None:
        """Its consumers are detached, what they hold returns, its exclusive queues go."""
        if self.sessions.pop(session.session_id, None) is None:
            return
        concerned = dict(session.owns_queues_in)
        for attached in session.attached.values():
            for partition, consumer_ids in attached.items():
                concerned[partition] = None
                for consumer_id in consumer_ids:
                    partition.detach(consumer_id)
        for partition in concerned:
            partition.append(session.actor, SessionClosed(session.session_id, 0))
        session.attached.clear()
        session.holders.clear()
        session.owns_queues_in.clear()
        self.counters["connections_closed_total"] += 1

    def _next_id(self) -> int:
        if self._ids == EPOCH_IDS - 1:
            self.keeper.renew_epoch()
        if self._epoch != self.keeper.epoch:
            self._epoch = self.keeper.epoch
            self._ids = 0
        elif self._ids == EPOCH_IDS - 1:  # the next epoch has to be read back first
            raise ConnectionForced("the node's ids are used up, it is joining again")
        self._ids += 1
        return self._epoch << 24 | self._ids

    # -- publishing (hot) ---------------------------------------------------------------------------------------------

    def route(
        self, session: Session, exchange: str, routing_key: str, headers: dict[str, object] | None
    ) -> tuple[Destination, ...]:
        """Where a publish goes: () when unroutable. NotFound 404 for an unknown exchange, AccessRefused without write
        permission or for an internal exchange. Interned: the same answer is the same objects, until
        `routing_version` moves. `headers` are only looked at by headers exchanges: `needs_headers(vhost, exchange)`."""
        vhost = session.vhost
        self.access.check(session.user, vhost, "write", "exchange", exchange)
        declared = self.topology.exchanges.get((vhost, exchange))
        if declared is None:
            raise NotFound(f"no {resource('exchange', exchange, vhost)}")
        if declared.internal:
            raise AccessRefused(f"cannot publish to internal {resource('exchange', exchange, vhost)}")
        return self.router.route(vhost, exchange, routing_key, headers)

    def needs_headers(self, vhost: str, exchange: str) -> bool:
        """Routing from this exchange looks at headers (a headers exchange can be reached from it)."""
        return self.router.needs_headers(vhost, exchange)

    # -- queues -------------------------------------------------------------------------------------------------------

    def partition_for(self, vhost: str, name: str) -> Partition:
        return self.partitions[partition_of(vhost, name, len(self.partitions))]

    def _locate(self, vhost: str, name: str) -> Partition | None:
        partition = self.partition_for(vhost, name)
        return None if partition.machine.queue(vhost, name) is None else partition

    def queue(self, vhost: str, name: str) -> Queue | None:
        return self.partition_for(vhost, name).machine.queue(vhost, name)

    async def _usable(self, session: Session, name: str) -> tuple[Partition, Queue]:
        """The queue, if it exists and is not another connection's exclusive one."""
        partition = self.partition_for(session.vhost, name)
        await self._catch_up(session, partition)
        queue = partition.machine.queue(session.vhost, name)
        if queue is None:
            raise NotFound(f"no {resource('queue', name, session.vhost)}")
        _check_owner(session, queue)
        return partition, queue

    async def _catch_up(self, session: Session, partition: Partition) -> None:
        await partition.catch_up()
        self._check_open(session)  # else its end is in the log by now: nothing may follow that

    def _check_open(self, session: Session) -> None:
        """What has to wait may outlive its connection."""
        if session.session_id not in self.sessions:
            raise ConnectionForced("the connection is gone")

    async def _ask(
        self, session: Session, partition: Partition, event: Event, folded: Callable[[], None] | None = None
    ) -> list[Effect]:
        effects = await partition.ask(session.actor, event, folded)
        self._check_open(session)  # else it may not have been done: the node was lost
        return effects

    async def declare_queue(
        self, session: Session, name: str, passive: bool, durable: bool, exclusive: bool, auto_delete: bool,
        arguments: tuple[Argument, ...],
    ) -> Queue:  # fmt: skip
        """The queue, made or as it was. An empty name is given one by the broker (amq.gen-..., S-064)."""
        name = strip_cr_lf(name)
        if passive:
            return await self._renewed(session, *await self._usable(session, name))
        vhost = session.vhost
        self.counters["queues_declared_total"] += 1
        durable = durable and not exclusive  # S-084
        if name == "":
            name = self._generated_name(vhost, arguments)
        elif name.startswith("amq."):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        self.access.check(session.user, vhost, "configure", "queue", name)
        partition = self.partition_for(vhost, name)
        await self._catch_up(session, partition)
        queue = partition.machine.queue(vhost, name)
        if queue is not None:
            if queue.exclusive != exclusive or (exclusive and queue.owner != session.session_id):
                raise _locked(queue)
            declarations.check_queue_equivalence(queue, durable, auto_delete, arguments)
            return await self._renewed(session, partition, queue)
        dead_letter_exchange = declarations.exchange_named_by("queue", name, vhost, arguments, "x-dead-letter-exchange")
        if dead_letter_exchange is not None:
            self.access.check(session.user, vhost, "read", "queue", name)
            self.access.check(session.user, vhost, "write", "exchange", dead_letter_exchange)
        kind = declarations.queue_type(vhost, name, arguments)
        declarations.check_queue_arguments(vhost, name, kind, arguments)
        declarations.check_queue_properties(vhost, name, kind, durable, exclusive, auto_delete)
        if exclusive:
            session.owns_queues_in[partition] = None
        await self._ask(session, partition, QueueDeclared(
            vhost, name, kind, durable, exclusive, auto_delete, session.session_id if exclusive else 0, arguments,
            declarations.SEMANTICS, self.topology.effective_policy(vhost, name, kind),
            self.topology.effective_operator_policy(vhost, name, kind),
        ))  # fmt: skip
        self.counters["queues_created_total"] += 1
        self.queues_changed()
        queue = partition.machine.queue(vhost, name)
        if queue is None:  # deleted by another node in the same moment, or this node was declared lost
            raise NotFound(f"no {resource('queue', name, vhost)}")
        if queue.exclusive != exclusive or (exclusive and queue.owner != session.session_id):
            raise _locked(queue)  # another node's client was faster
        declarations.check_queue_equivalence(queue, durable, auto_delete, arguments)
        return queue

    def _generated_name(self, vhost: str, arguments: tuple[Argument, ...]) -> str:
        kind = declarations.queue_type(vhost, "", arguments)
        if kind != "classic":
            raise PreconditionFailed(
                f"Cannot declare a server-named queue for type {declarations.TYPE_MODULES[kind]}"
            )
        return f"amq.gen-{secrets.token_urlsafe(16)}"

    async def _renewed(self, session: Session, partition: Partition, queue: Queue) -> Queue:
        """Declaring a queue that exists, passively too, renews its lease (S-053; of quorum queues not, S-059)."""
        if queue.expires_ms is not None and queue.type == "classic":
            await self._ask(session, partition, QueueDeclared(
                queue.vhost, queue.name, queue.type, queue.durable, queue.exclusive, queue.auto_delete, queue.owner,
                queue.arguments, queue.semantics, queue.policy, queue.operator_policy,
            ))  # fmt: skip
        return queue

    async def delete_queue(self, session: Session, name: str, if_unused: bool, if_empty: bool) -> int:
        """Number of messages deleted with it (ready). 0 when there is no such queue: that is no error (AMQP)."""
        name = strip_cr_lf(name)
        self.access.check(session.user, session.vhost, "configure", "queue", name)
        await self.partition_for(session.vhost, name).catch_up()
        if self.queue(session.vhost, name) is None:
            return 0
        partition, queue = await self._usable(session, name)
        where = resource("queue", name, session.vhost)
        for flag, text in ((if_unused, "if-unused"), (if_empty, "if-empty")):
            if flag and queue.type == "quorum":
                raise NotImplementedByBroker(
                    f"cannot delete {where}. queue.delete operations with {text} flag set"
                    " are not supported by quorum queues"
                )
        if if_unused and queue.consumer_count() > 0:
            raise PreconditionFailed(f"{where} in use")
        if if_empty and queue.messages_ready > 0:
            raise PreconditionFailed(f"{where} not empty")
        effects = await self._ask(session, partition, QueueDeleted(session.vhost, name, if_unused, if_empty))
        gone = [effect for effect in effects if isinstance(effect, QueueGone) and effect.queue is queue]
        if not gone and not queue.gone:  # another node's client was faster: it is used, or not empty any more
            raise PreconditionFailed(f"{where} {'in use' if if_unused else 'not empty'}")
        partition.carry_out()  # the bindings go now: what this connection does next must not meet them
        return sum(effect.messages for effect in gone)

    async def purge_queue(self, session: Session, name: str) -> int:
        """Number of ready messages dropped."""
        self.access.check(session.user, session.vhost, "read", "queue", name)
        partition, queue = await self._usable(session, name)
        effects = await self._ask(session, partition, Purged(session.vhost, name))
        _check_not_gone(queue)
        return sum(
            len(effect.message_ids) for effect in effects
            if isinstance(effect, Forget) and effect.queue is queue and effect.reason == PURGED
        )  # fmt: skip

    # -- exchanges and bindings ---------------------------------------------------------------------------------------

    async def declare_exchange(
        self, session: Session, name: str, type: str, passive: bool, durable: bool, auto_delete: bool, internal: bool,
        arguments: tuple[Argument, ...],
    ) -> None:  # fmt: skip
        name = strip_cr_lf(name)
        vhost = session.vhost
        if passive:
            _check_not_default(name)
            if (vhost, name) not in self.topology.exchanges:
                raise NotFound(f"no {resource('exchange', name, vhost)}")
            return
        if type not in declarations.EXCHANGE_TYPES:
            raise PreconditionFailed(f"unknown exchange type '{type}'")
        _check_not_default(name)
        self.access.check(session.user, vhost, "configure", "exchange", name)
        known = self.topology.exchanges.get((vhost, name))
        if known is not None:
            declarations.check_exchange_equivalence(known, type, durable, auto_delete, internal, arguments)
            return
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        alternate = declarations.exchange_named_by("exchange", name, vhost, arguments, "alternate-exchange")
        if alternate is not None:
            self.access.check(session.user, vhost, "read", "exchange", name)
            self.access.check(session.user, vhost, "write", "exchange", alternate)
        await self.metadata.ask(
            session.actor, ExchangeDeclared(vhost, name, type, durable, auto_delete, internal, arguments)
        )
        known = self.topology.exchanges.get((vhost, name))
        if known is None:  # deleted by another node in the same moment
            raise NotFound(f"no {resource('exchange', name, vhost)}")
        # another node's client may have been faster
        declarations.check_exchange_equivalence(known, type, durable, auto_delete, internal, arguments)

    async def delete_exchange(self, session: Session, name: str, if_unused: bool) -> None:
        """No error when there is no such exchange."""
        name = strip_cr_lf(name)
        vhost = session.vhost
        _check_not_default(name)
        if name.startswith("amq."):
            raise AccessRefused(f"deletion of system {resource('exchange', name, vhost)} not allowed")
        self.access.check(session.user, vhost, "configure", "exchange", name)
        if (vhost, name) not in self.topology.exchanges:
            return
        if if_unused and any(self.router.is_live(bound) for bound in self.topology.bindings_from(vhost, name)):
            raise PreconditionFailed(f"{resource('exchange', name, vhost)} in use")
        await self.metadata.delete_exchange(session.actor, vhost, name)

    async def bind(
        self, session: Session, source: str, destination_type: str, destination: str, routing_key: str,
        arguments: tuple[Argument, ...],
    ) -> None:  # fmt: skip
        """`destination_type`: queue or exchange."""
        source, destination = strip_cr_lf(source), strip_cr_lf(destination)
        self._check_binding(session, source, destination_type, destination)
        vhost = session.vhost
        exchange = self.topology.exchanges.get((vhost, source))
        if exchange is None:
            raise NotFound(f"no {resource('exchange', source, vhost)}")
        queue_id = NOT_RECORDED
        if destination_type == "queue":
            queue_id = (await self._usable(session, destination))[1].queue_id
        elif (vhost, destination) not in self.topology.exchanges:
            raise NotFound(f"no {resource('exchange', destination, vhost)}")
        declarations.check_binding_arguments(exchange, arguments)
        bound = Bound(vhost, source, destination_type, destination, routing_key, _sorted(arguments), queue_id)
        await self.metadata.bind(session.actor, bound)

    async def unbind(
        self, session: Session, source: str, destination_type: str, destination: str, routing_key: str,
        arguments: tuple[Argument, ...],
    ) -> None:  # fmt: skip
        """No error when there is no such binding."""
        source, destination = strip_cr_lf(source), strip_cr_lf(destination)
        self._check_binding(session, source, destination_type, destination)
        queue_id = NOT_RECORDED
        if destination_type == "queue" and self.queue(session.vhost, destination) is not None:
            queue_id = (await self._usable(session, destination))[1].queue_id
        for each in dict.fromkeys((queue_id, NOT_RECORDED)):
            await self.metadata.unbind(session.actor, Bound(
                session.vhost, source, destination_type, destination, routing_key, _sorted(arguments), each
            ))  # fmt: skip

    def _check_binding(self, session: Session, source: str, destination_type: str, destination: str) -> None:
        self.access.check(session.user, session.vhost, "write", destination_type, destination)
        if destination_type == "exchange":
            _check_not_default(destination)
        _check_not_default(source)
        self.access.check(session.user, session.vhost, "read", "exchange", source)

    # -- consuming ----------------------------------------------------------------------------------------------------

    async def consume(
        self, session: Session, channel: int, consumer: Consumer, queue: str, tag: str, no_ack: bool, exclusive: bool,
        prefetch: int, global_prefetch: int, arguments: tuple[Argument, ...],
        attached: Callable[[Partition, Queue, int], None],
    ) -> None:  # fmt: skip
        """Attach. `attached(partition, queue, consumer id)` is called when it is done, before the first delivery."""
        self.access.check(session.user, session.vhost, "read", "queue", queue)
        partition, found = await self._usable(session, queue)
        where = resource("queue", queue, session.vhost)
        if global_prefetch > 0 and found.type == "quorum":
            raise NotImplementedByBroker(f"{where} does not support global qos")
        declarations.check_consumer_arguments(found, arguments)
        if found.consumer_count() > 0 and (exclusive or any(each.exclusive for each in found.consumers())):
            raise AccessRefused(f"{where} in exclusive use")
        priority = argument_of(arguments, "x-priority")
        consumer_id = self._next_id()
        credit = 0 if prefetch > 0 and not no_ack else CREDIT_WINDOW
        partition.attach(consumer_id, consumer)
        session.note(channel, partition, consumer_id)
        is_attached = False

        def folded() -> None:
            nonlocal is_attached
            if consumer_id in found.holders:
                is_attached = True
                attached(partition, found, consumer_id)

        await self._ask(session, partition, ConsumerAttached(
            session.vhost, queue, consumer_id, channel, tag, no_ack, exclusive, prefetch, credit,
            global_prefetch,
            int(priority.value) if priority is not None and isinstance(priority.value, int) else 0, arguments,
        ), folded)  # fmt: skip
        if not is_attached:
            partition.detach(consumer_id)
            session.forget(partition, consumer_id)
            _check_not_gone(found)
            raise AccessRefused(f"{where} in exclusive use")  # another node's client was faster

    def set_global_prefetch(self, session: Session, channel: int, prefetch: int) -> None:
        """basic.qos global, for the consumers that the channel has. Those to come say it when they are attached."""
        for partition in session.attached.get(channel, {}):
            partition.append(session.actor, GlobalPrefetchSet(session.session_id, channel, prefetch))

    async def cancel(self, session: Session, partition: Partition, queue: Queue, consumer_id: int) -> None:
        """No deliveries after this; what was on its way is delivered first."""
        await partition.ask(session.actor, ConsumerCancelled(queue.vhost, queue.name, consumer_id))
        partition.carry_out()
        partition.detach(consumer_id)
        session.forget(partition, consumer_id)

    async def fetch(
        self, session: Session, channel: int, consumer: Consumer, queue: str, no_ack: bool
    ) -> tuple[Partition, Queue, int]:
        """basic.get: `consumer.fetched(...)` is called with the answer when its effects are carried out, at the latest
        at `end_of_turn`. Returns the partition, the queue and the holder's id, under which the message is acked."""
        self.access.check(session.user, session.vhost, "read", "queue", queue)
        partition, found = await self._usable(session, queue)
        key = (channel, partition.index, found.queue_id)
        holder_id = session.holders.get(key)
        if holder_id is None:
            holder_id = session.holders[key] = self._next_id()
            session.note(channel, partition, holder_id)
        partition.attach(holder_id, consumer)
        await self._ask(session, partition, Fetched(session.vhost, queue, holder_id, channel, no_ack))
        _check_not_gone(found)
        return partition, found, holder_id

    # settle: partition.append(session.actor, Acked(...)) / Nacked(...), ranges built by the channel

    # -- what partitions and the metadata log tell --------------------------------------------------------------------

    def queue_gone(self, partition: Partition, queue: Queue, reason: str) -> None:
        self.counters["queues_deleted_total"] += 1
        self.queues_changed()
        self.keeper.queue_gone(partition, queue)

    def dead_letter(self, partition: Partition, effect: DeadLetter, message: Published | None) -> None:
        self.forwarder.take(partition, effect, message)

    def queues_changed(self) -> None:
        self.routing_version += 1
        self.router.queues_changed()

    def _metadata_changed(self, offset: int, event: Event) -> None:
        self.routing_version += 1
        if isinstance(event, Bound | Unbound):
            self.router.bindings_changed(event.vhost, event.source)
            if (event.vhost, event.source) not in self.topology.exchanges:  # auto-deleted, and perhaps others with it
                self.router.exchanges_changed()
        elif not isinstance(event, BrokerStarted):
            self.router.exchanges_changed()
            self.access.changed()
        if isinstance(event, VhostDeleted):
            self._close_sessions(f"vhost '{event.vhost}' is deleted", lambda session: session.vhost == event.vhost)
        elif isinstance(event, UserDeleted):
            self._close_sessions(f"user '{event.name}' was deleted", lambda session: session.user == event.name)

    def _close_sessions(self, reason: str, which: Callable[[Session], bool]) -> None:
        for session in list(self.sessions.values()):
            if session.close is not None and which(session):
                session.close(reason)

    # -- turns and durability -----------------------------------------------------------------------------------------

    def end_of_turn(self) -> None:
        """Carry out what gathered, forward dead letters, arm the tick timer, kick the group commit."""
        self.turns.end()

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back in the loop once everything appended so far, in every partition, is durable."""
        self.turns.when_durable(callback)

    @property
    def folds_what_is_durable(self) -> bool:
        """What was folded is durable already: the log is read back (Kafka), so an answer need not wait any longer."""
        return self.keeper.reads_back

    @property
    def blocked(self) -> str | None:
        """Why publishing is held back (the disk is full ...), in words for connection.blocked; None: it is not."""
        return self.turns.blocked

    @property
    def on_blocked(self) -> list[Callable[[], None]]:
        """Called when `blocked` changed."""
        return self.turns.on_blocked


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def strip_cr_lf(name: str) -> str:
    """As RabbitMQ does with names of queues and exchanges."""
    return name.replace("\n", "").replace("\r", "")


def _sorted(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Bindings that differ in the order of their arguments only are the same (rabbit_misc.erl `sort_field_table/1`)."""
    return tuple(sorted(arguments, key=lambda argument: argument.name))


def _check_not_default(exchange: str) -> None:
    if exchange == "":
        raise AccessRefused("operation not permitted on the default exchange")


def _check_not_gone(queue: Queue) -> None:
    """Time passes with every event: a queue whose lease had ended is gone before the event that asked for it."""
    if queue.gone:
        raise NotFound(f"no {resource('queue', queue.name, queue.vhost)}")


def _check_owner(session: Session, queue: Queue) -> None:
    if queue.exclusive and queue.owner != session.session_id:
        raise _locked(queue)


def _locked(queue: Queue) -> AmqpError:
    return ResourceLocked(
        f"cannot obtain exclusive access to locked {resource('queue', queue.name, queue.vhost)}. It could be originally"
        " declared on another connection or the exclusive property value does not match that of the original"
        " declaration."
    )
