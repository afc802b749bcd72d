"""The broker: what a connection, the HTTP API and the CLI can ask for. Sans-socket; one asyncio loop, one thread.

Names as in AMQP 0-9-1; every method that is refused raises an `rewindmq.engine.errors.AmqpError` with RabbitMQ's code
and text. What changes something is a coroutine: with an embedded log it never waits (engine/runtime/eager.py), on a log
that is read back it ends when the event was. Whoever needs durability before it answers (declare-ok, bind-ok,
delete-ok, purge-ok, HTTP 201 ...) waits with `when_durable`, too. A session may end while something waits: nothing may
be appended for it then.

    broker = open_broker(config)                  # in the loop; recovers: log -> store -> fold -> BrokerStarted
    session = broker.open_session(user, vhost, peer, client_properties)
    ...
    broker.end_of_turn()                          # after each batch of work: effects out, group commit kicked

Where things are
    exchanges.py, users.py, administration.py   exchanges, bindings; users; policies, vhosts, parameters
    access_control.py, declarations.py          who may do what; what a declaration may ask for
    limits.py, passwords.py                     limits of vhosts and users; hashes, ours and RabbitMQ's
    runtime/partition.py, runtime/metadata.py   one queue partition, live; the metadata log, live
    broker/turns.py                            turns of work, group commits, durability
    runtime/memory.py, broker/alarms.py        what is held for clients; publishers held back for memory and disk
    routing/                                    from exchange and routing key to queues; dead letters and their headers
    rewind/                                     consumers of streams and of the past; restorations
    embedded/, cluster/                         a broker alone with its log; a node among others on Kafka
    erasure/, definitions/                      encryption and erasure; all of it as one document

A session or consumer id is (epoch << 24) | count, the epoch being the offset of this broker's BrokerStarted in the
metadata log: unique in the whole history.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar

from rewindmq.engine.broker import declarations, limits
from rewindmq.engine.broker.access_control import ITSELF, Access
from rewindmq.engine.broker.alarms import Alarms
from rewindmq.engine.broker.clock_watch import ClockWatch
from rewindmq.engine.broker.exchanges import Exchanges, strip_cr_lf
from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.config import Config
from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.errors import (
    AccessRefused,
    ConnectionForced,
    NotAllowed,
    NotFound,
    NotImplementedByBroker,
    PreconditionFailed,
    resource,
)
from rewindmq.engine.log.placement import partition_of
from rewindmq.engine.rewind.arguments import check_stream_sizes, is_past_asked
from rewindmq.engine.rewind.reader import Asked, ReadingConsumer
from rewindmq.engine.rewind.stream_consumers import Readings
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.engine.routing.dead_letters import Forwarder
from rewindmq.engine.routing.delayed_exchanges import HiddenQueues, check_not_hidden
from rewindmq.engine.routing.firehose import Firehose
from rewindmq.engine.routing.router import Destination, Router
from rewindmq.engine.runtime.admission import Door, Listeners
from rewindmq.engine.runtime.certainty import Certainty
from rewindmq.engine.runtime.counters import all_counters
from rewindmq.engine.runtime.flow_control import Flow
from rewindmq.engine.runtime.lifecycle import Keeper
from rewindmq.engine.runtime.log_clock import LogClock
from rewindmq.engine.runtime.loop_share import LoopShare
from rewindmq.engine.runtime.memory import MemoryAccount
from rewindmq.engine.runtime.metadata import Metadata
from rewindmq.engine.runtime.partition import Confirms, FetchTarget, Partition, Surroundings
from rewindmq.engine.runtime.sessions import ChannelStatus, Link, Session
from rewindmq.engine.runtime.watermarks import memory_of_machine
from rewindmq.projections.machine.data.effects import PURGED, DeadLetter, Effect, Forget, QueueGone
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_reply_queue
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.schemas.events import (
    BrokerStarted,
    ConsumerAttached,
    ConsumerCancelled,
    Event,
    Fetched,
    GlobalPrefetchSet,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    SessionClosed,
)
from rewindmq.schemas.metadata_events import Bound, SubjectErased, Unbound, UserDeleted, VhostDeleted
from rewindmq.schemas.values import Actor, Argument

__all__ = [
    "CREDIT_WINDOW",
    "Broker",
    "ChannelStatus",
    "Config",
    "Confirms",
    "Destination",
    "Partition",
    "Session",
]

# Deliveries that a consumer without prefetch (or with no_ack) starts with (`ConsumerAttached.credit`): few, because
# nobody knows yet how large they are. Its channel gives more by `Credited`, in windows that fit the size of its
# messages, while the client's socket takes what was sent.
CREDIT_WINDOW = 16
EPOCH_IDS = 1 << 24


P = TypeVar("P", bound=Partition)


class Broker(Exchanges):
    """Put together by `open_broker` or `open_node` (engine/process.py). `make_partitions`, then `make_keeper` are
    called once: the parts need the broker, and the broker needs them."""

    def __init__(
        self,
        config: Config,
        log_clock: LogClock,
        metadata: Metadata,
        make_partitions: Callable[[Surroundings], list[P]],
        make_keeper: Callable[["Broker", list[P]], Keeper],
        past: WorkerPool,
    ) -> None:
        self.config = config
        self.past = past
        self.metadata = metadata
        self.topology = metadata.topology
        self.clock = clock = log_clock.now_ms
        self.sessions = {}
        self.leaving_vhosts = {}
        self.counters = all_counters()
        machine_bytes = memory_of_machine()
        self.memory = MemoryAccount(config.vm_memory_high_watermark.of(machine_bytes), machine_bytes)
        self.http_share = LoopShare()  # of the management API
        self.doors: tuple[Door, ...] = ()  # limits of connections, once there are listeners
        self.listeners: Listeners | None = None  # the AMQP server's, once it listens
        # moves with every change of exchanges, bindings, queues and permissions: caches of routes key on it
        self.routing_version = 1
        erased = self.topology.erased_keys
        self.subjects = Subjects(config.subject_header, KeyStore(config.keys_directory, erased), erased)
        made = make_partitions(self)
        self.partitions = list(made)
        self.keeper = keeper = make_keeper(self, made)
        self.certainty = Certainty(keeper.read_to_end, lambda: self.routing_version)
        self.access = Access(self.topology)
        self.router = Router(self.topology, self._locate)
        self.firehose = Firehose(config, self.router, self.sessions, self._routes_changed)
        self.forwarder = Forwarder(self.router, clock, self.counters, self.certainty, self.end_of_turn)
        self._epoch = -1
        self._ids = 0
        self.alarms = Alarms(self)  # not looked at before `start`
        self.readings = Readings(config, clock, self._ask, self.check_open, self.topology.marks, self.memory, past)
        self.turns = Turns(metadata, self.partitions, self.forwarder, clock, keeper, self.readings.landed)
        self.hidden = HiddenQueues(self.topology, self.partition_for, self.when_durable)
        self.clock_watch = ClockWatch(self, log_clock)

    def close(self) -> None:
        """Stop cleanly: everything durable, RocksDB persisted, a Checkpointed event per partition."""
        for session in list(self.sessions.values()):
            self.close_session(session)
        self.alarms.stop()
        self.readings.close()
        self.clock_watch.stop()
        self.keeper.stop()

    # -- sessions -----------------------------------------------------------------------------------------------------

    def open_session(
        self,
        user: str,
        vhost: str,
        peer: str,
        client_properties: dict[str, object],
        link: Link | None = None,
        close: Callable[[str], None] | None = None,
    ) -> Session:
        """NotAllowed when the vhost does not exist or the user may not enter it (530). ConnectionForced while the node
        is joining again after it was lost (320). `link`, `close`: of the connection, where the session has
        one of its own."""
        if not self.keeper.joined:
            raise ConnectionForced("the node was declared lost and is joining again")
        if vhost not in self.topology.vhosts:
            raise NotAllowed(f"vhost {vhost} not found")
        if not self.access.may_enter(user, vhost):
            raise NotAllowed(f"access to vhost '{vhost}' refused for user '{user}'")
        session_id = self._next_id()
        session = Session(
            session_id,
            user,
            vhost,
            peer,
            Actor(user, session_id),
            client_properties,
            self.clock(),
            link=link,
            close=close,
        )
        self.sessions[session_id] = session
        self.counters["connections_opened_total"] += 1
        return session

    def own_session(self, user: str, vhost: str) -> Session:
        """The broker's own, which may do everything, for what `user` had it do (definitions). ConnectionForced."""
        if not self.keeper.joined:
            raise ConnectionForced("the node was declared lost and is joining again")
        session = Session(self._next_id(), ITSELF, vhost, "definitions", Actor(user, 0), {}, self.clock())
        self.sessions[session.session_id] = session
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
        check_not_hidden(name)
        partition = self.partition_for(session.vhost, name)
        await self._catch_up(session, partition)
        queue = partition.machine.queue(session.vhost, name)
        if queue is None:
            raise NotFound(f"no {resource('queue', name, session.vhost)}")
        _check_owner(session, queue)
        return partition, queue

    async def _catch_up(self, session: Session, partition: Partition) -> None:
        await partition.catch_up()
        self.check_open(session)  # else its end is in the log by now: nothing may follow that

    async def read_to_end(self, session: Session) -> None:
        """What any node had made by now is known here. ConnectionForced: the session is gone meanwhile."""
        await self.certainty.wait()
        self.check_open(session)

    def check_open(self, session: Session) -> None:
        """What has to wait may outlive its connection."""
        if session.session_id not in self.sessions:
            raise ConnectionForced("the connection is gone")

    async def _ask(
        self, session: Session, partition: Partition, event: Event, folded: Callable[[], None] | None = None
    ) -> list[Effect]:
        effects = await partition.ask(session.actor, event, folded)
        self.check_open(session)  # else it may not have been done: the node was lost
        return effects

    async def declare_queue(
        self,
        session: Session,
        name: str,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: tuple[Argument, ...],
    ) -> Queue:
        """The queue, made or as it was. An empty name is given one by the broker (amq.gen-..., S-064)."""
        name = strip_cr_lf(name)
        if passive:
            return await self._renewed(session, *await self._usable(session, name))
        vhost = session.vhost
        self.counters["queues_declared_total"] += 1
        durable = durable and not exclusive  # S-084
        default = self.topology.default_queue_type(vhost)
        arguments = declarations.with_default_type(default, durable, exclusive, auto_delete, arguments)
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
                raise declarations.locked(queue)
            declarations.check_queue_equivalence(queue, durable, auto_delete, arguments)
            return await self._renewed(session, partition, queue)
        dead_letter_exchange = declarations.exchange_named_by("queue", name, vhost, arguments, "x-dead-letter-exchange")
        if dead_letter_exchange is not None:
            self.access.check(session.user, vhost, "read", "queue", name)
            self.access.check(session.user, vhost, "write", "exchange", dead_letter_exchange)
        kind, semantics = self.check_queue_arguments(vhost, name, arguments)
        limits.check_queue(self.topology, self.partitions, vhost, name)
        declarations.check_queue_properties(vhost, name, kind, durable, exclusive, auto_delete)
        if exclusive:
            session.owns_queues_in[partition] = None
        await self._ask(
            session,
            partition,
            QueueDeclared(
                vhost,
                name,
                kind,
                durable,
                exclusive,
                auto_delete,
                session.session_id if exclusive else 0,
                arguments,
                semantics,
                self.topology.effective_policy(vhost, name, kind),
                self.topology.effective_operator_policy(vhost, name, kind),
            ),
        )
        self.counters["queues_created_total"] += 1
        self.queues_changed()
        queue = partition.machine.queue(vhost, name)
        if queue is None:  # deleted by another node in the same moment, or this node was declared lost
            raise NotFound(f"no {resource('queue', name, vhost)}")
        if queue.exclusive != exclusive or (exclusive and queue.owner != session.session_id):
            raise declarations.locked(queue)  # another node's client was faster
        declarations.check_queue_equivalence(queue, durable, auto_delete, arguments)
        return queue

    def check_queue_arguments(self, vhost: str, name: str, arguments: tuple[Argument, ...]) -> tuple[str, str]:
        """The type and the semantics that a new queue's arguments ask for."""
        kind = declarations.queue_type(vhost, name, arguments)
        semantics = declarations.semantics_of(vhost, name, arguments, self.config.semantics)
        declarations.check_queue_arguments(vhost, name, kind, arguments, semantics)
        version = self.partition_for(vhost, name).machine.machine_version
        declarations.check_machine_version(vhost, name, kind, arguments, version)
        if kind == "stream":
            check_stream_sizes(arguments)
        return kind, semantics

    def _generated_name(self, vhost: str, arguments: tuple[Argument, ...]) -> str:
        kind = declarations.queue_type(vhost, "", arguments)
        if kind != "classic":
            raise PreconditionFailed(f"Cannot declare a server-named queue for type {declarations.TYPE_MODULES[kind]}")
        return f"amq.gen-{secrets.token_urlsafe(16)}"

    async def _renewed(self, session: Session, partition: Partition, queue: Queue) -> Queue:
        """Declaring a queue that exists, passively too, renews its lease (S-053; of quorum queues not, S-059)."""
        if queue.settings.expires_ms is not None and queue.type == "classic":
            await self._ask(session, partition, declarations.renewal(queue, partition.machine.machine_version))
            _check_not_gone(queue)
        return queue

    async def delete_queue(self, session: Session, name: str, if_unused: bool, if_empty: bool) -> int:
        """Number of messages deleted with it (ready). 0 when there is no such queue: that is no error (AMQP)."""
        name = strip_cr_lf(name)
        self.access.check(session.user, session.vhost, "configure", "queue", name)
        await self.partition_for(session.vhost, name).catch_up()
        if self.queue(session.vhost, name) is None:
            await self.read_to_end(session)
        if self.queue(session.vhost, name) is None:
            return 0
        partition, queue = await self._usable(session, name)
        where = resource("queue", name, session.vhost)
        if queue.stream:
            if_unused = if_empty = False  # RabbitMQ deletes a stream whatever is asked, and counts no messages
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
        return 0 if queue.stream else sum(effect.messages for effect in gone)

    async def purge_queue(self, session: Session, name: str) -> int:
        """Number of ready messages dropped."""
        self.access.check(session.user, session.vhost, "read", "queue", name)
        partition, queue = await self._usable(session, name)
        if queue.stream:
            where = resource("queue", name, session.vhost)
            raise NotImplementedByBroker(f"queue.purge not supported by stream queues {where}")
        effects = await self._ask(session, partition, Purged(session.vhost, name))
        _check_not_gone(queue)
        return sum(
            len(effect.message_ids)
            for effect in effects
            if isinstance(effect, Forget) and effect.queue is queue and effect.reason == PURGED
        )

    # -- consuming ----------------------------------------------------------------------------------------------------

    async def consume(
        self,
        session: Session,
        channel: int,
        consumer: ReadingConsumer,
        queue: str,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        global_prefetch: int,
        arguments: tuple[Argument, ...],
        attached: Callable[[Partition, Queue, int], None],
    ) -> None:
        """Attach. `attached(partition, queue, consumer id)` is called when it is done, before the first delivery."""
        if not is_reply_queue(queue):
            self.access.check(session.user, session.vhost, "read", "queue", queue)
        partition, found = await self._usable(session, queue)
        where = resource("queue", queue, session.vhost)
        if found.stream or is_past_asked(arguments):
            await self.readings.begin(
                partition,
                found,
                Asked(
                    session,
                    channel,
                    self._next_id(),
                    consumer,
                    tag,
                    no_ack,
                    exclusive,
                    prefetch,
                    global_prefetch,
                    arguments,
                ),
                attached,
            )
            return
        if global_prefetch > 0 and found.type == "quorum":
            raise NotImplementedByBroker(f"{where} does not support global qos")
        declarations.check_consumer_arguments(found, arguments)
        exclusive = exclusive and found.type != "quorum"  # which pays no heed to it (S-112)
        declarations.check_exclusive_use(found, exclusive)
        priority = argument_of(arguments, "x-priority")
        consumer_id = self._next_id()
        credit = 0 if prefetch > 0 and not no_ack else CREDIT_WINDOW
        partition.attach(consumer_id, self.firehose.tapped(session, channel, consumer))
        session.note(channel, partition, consumer_id)
        is_attached = False

        def folded() -> None:
            nonlocal is_attached
            if consumer_id in found.holders:
                is_attached = True
                attached(partition, found, consumer_id)

        await self._ask(
            session,
            partition,
            ConsumerAttached(
                session.vhost,
                queue,
                consumer_id,
                channel,
                tag,
                no_ack,
                exclusive,
                prefetch,
                credit,
                global_prefetch,
                int(priority.value) if priority is not None and isinstance(priority.value, int) else 0,
                arguments,
            ),
            folded,
        )
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
        if consumer_id in queue.holders:  # else it reads the past, or the queue is gone
            await partition.ask(session.actor, ConsumerCancelled(queue.vhost, queue.name, consumer_id))
            partition.carry_out()
        partition.detach(consumer_id)
        session.forget(partition, consumer_id)
        self.readings.landed()

    async def fetch(
        self, session: Session, channel: int, getter: FetchTarget, queue: str, no_ack: bool, count: int = 1
    ) -> tuple[Partition, Queue, int]:
        """basic.get, `count` of them at once: `getter.fetched(...)` is called with each answer when its effects are
        carried out, at the latest at `end_of_turn`. Returns the partition, the queue and the holder's id, under which
        the messages are acked."""
        self.access.check(session.user, session.vhost, "read", "queue", queue)
        partition, found = await self._usable(session, queue)
        declarations.check_fetch(found)
        key = (channel, partition.index, found.queue_id)
        holder_id = session.holders.get(key)
        if holder_id is None:
            holder_id = session.holders[key] = self._next_id()
            session.note(channel, partition, holder_id)
        partition.attach_getter(holder_id, self.firehose.tapped_getter(session, channel, getter))
        get = Fetched(session.vhost, queue, holder_id, channel, no_ack)
        for _ in range(count - 1):
            partition.append(session.actor, get)
        await self._ask(session, partition, get)
        _check_not_gone(found)
        return partition, found, holder_id

    # settle: partition.append(session.actor, Acked(...)) / Nacked(...), ranges built by the channel

    # -- what partitions and the metadata log tell --------------------------------------------------------------------

    def queue_gone(self, partition: Partition, queue: Queue, reason: str) -> None:
        self.counters["queues_deleted_total"] += 1
        self.queues_changed()
        self.keeper.queue_gone(partition, queue)

    def undelivered(self, partition: Partition, consumer_id: int) -> None:
        """The client is told by the end of its connection, which gives back what it holds."""
        for session in self.sessions.values():
            if any(consumer_id in attached.get(partition, ()) for attached in session.attached.values()):
                asyncio.get_running_loop().call_soon(self._close_for, session)  # not in the middle of what it does

    def _close_for(self, session: Session) -> None:
        if session.close is not None and session.session_id in self.sessions:
            session.close("a message could not be delivered, see the broker's log")
            self.end_of_turn()

    def dead_letter(self, partition: Partition, effect: DeadLetter, message: Published | None) -> None:
        self.forwarder.take(partition, effect, message)

    def queues_changed(self) -> None:
        self._routes_changed()
        self.router.queues_changed()

    def _routes_changed(self) -> None:
        self.routing_version += 1

    def metadata_changed(self, offset: int, event: Event) -> None:
        self.routing_version += 1
        if isinstance(event, Bound | Unbound):
            self.router.bindings_changed(event.vhost, event.source)
            if (event.vhost, event.source) not in self.topology.exchanges:  # auto-deleted, and perhaps others with it
                self.router.exchanges_changed()
        elif not isinstance(event, BrokerStarted):
            self.router.exchanges_changed()
            self.access.changed()
        self.hidden.changed(event)
        if isinstance(event, SubjectErased):
            self.subjects.erased(event.key_ids)
        elif isinstance(event, VhostDeleted):
            self.firehose.switch(event.vhost, False)
            self._close_sessions(f"vhost '{event.vhost}' is deleted", lambda session: session.vhost == event.vhost)
        elif isinstance(event, UserDeleted):
            self._close_sessions(f"user '{event.name}' is deleted", lambda session: session.user == event.name)

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
    def quarantined(self) -> dict[str, QuarantineReport]:
        """The records of each partition of the log that made no sense and were skipped."""
        found = {self.metadata.name: self.metadata.quarantine}
        return found | {partition.name: partition.projector.quarantine for partition in self.partitions}

    @property
    def folds_what_is_durable(self) -> bool:
        """What was folded is durable already: the log is read back (Kafka), so an answer need not wait any longer."""
        return self.keeper.reads_back

    @property
    def atomic_commits(self) -> bool:
        """What a tx.commit does to a queue is there as a whole or not at all, whenever this broker dies. On Kafka its
        records are appended one after the other, and Kafka may have taken some of them only."""
        return not self.keeper.reads_back

    @property
    def blocked(self) -> str | None:
        """Why publishing is held back (the disk is full ...), in words for connection.blocked; None: it is not."""
        return self.turns.blocked

    @property
    def flow(self) -> Flow:
        """Holds connections that publish back while enough is on its way into the log."""
        return self.turns.flow

    @property
    def on_blocked(self) -> list[Callable[[], None]]:
        """Called when `blocked` changed."""
        return self.turns.on_blocked


def _check_not_gone(queue: Queue) -> None:
    """Time passes with every event: a queue whose lease had ended is gone before the event that asked for it."""
    if queue.gone:
        raise NotFound(f"no {resource('queue', queue.name, queue.vhost)}")


def _check_owner(session: Session, queue: Queue) -> None:
    if queue.exclusive and queue.owner != session.session_id:
        raise declarations.locked(queue)
