"""The broker of a node: its parts, and how they are put together. Without sockets; one asyncio loop, one thread.

    queues.py, exchanges.py, consumers.py    declared, bound, routed to, consumed, as in AMQP 0-9-1
    open_sessions.py                         clients' sessions, and ids for sessions and consumers
    users.py, access_control.py              users and permissions; what a user or a token may do
    login_brake.py                           failed logins, braked
    access_log.py, callers.py                who came and what was refused, for the history; sessions of HTTP clients
    policies.py, parameters.py, vhosts.py    what operators set
    declarations.py, limits.py, passwords.py what a declaration may ask for; limits; hashes
    marks.py                                 named moments of the history
    turns.py                                 turns of work, group commits, durability
    alarms.py, clock_watch.py                memory and disk; the clocks
    history_size.py, archive_status.py       what history costs; how its archive does
    history_trims.py                         its end: trims while the broker runs

A caller takes the part that it needs. Three groups hold the parts that messages do not pass through: `broker.access`,
`broker.history` and `broker.host`. A request that is refused raises a `rewindmq.engine.errors.AmqpError` with
RabbitMQ's code and text. A method that changes something is a coroutine: on an embedded log it never waits
(engine/host/eager.py), on Kafka it ends when its event was read back. To answer a client only when the change is
durable (declare-ok, HTTP 201 ...), call `turns.when_durable`, too.

    broker = open_broker(config)                                  # in the loop; engine/process.py
    session = broker.sessions.open(user, vhost, peer, client_properties)
    await broker.queues.declare(session, ...)
    broker.turns.end()                                            # after each batch of work: effects out, group commit
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rewindmq.engine.broker.access_control import Access
from rewindmq.engine.broker.access_log import AccessLog
from rewindmq.engine.broker.alarms import Alarms
from rewindmq.engine.broker.archive_status import ArchiveStatus, LogEnd
from rewindmq.engine.broker.callers import Callers
from rewindmq.engine.broker.clock_watch import ClockWatch
from rewindmq.engine.broker.consumers import Consumers
from rewindmq.engine.broker.exchanges import Exchanges
from rewindmq.engine.broker.followers import Followers, Following
from rewindmq.engine.broker.history_size import HistorySize
from rewindmq.engine.broker.history_trims import HistoryTrims
from rewindmq.engine.broker.login_brake import LoginBrake
from rewindmq.engine.broker.marks import Marks
from rewindmq.engine.broker.open_sessions import OpenSessions
from rewindmq.engine.broker.parameters import Parameters
from rewindmq.engine.broker.policies import EffectivePolicies, Policies
from rewindmq.engine.broker.queues import Queues
from rewindmq.engine.broker.removals import Removals
from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.broker.users import Users
from rewindmq.engine.broker.vhosts import Vhosts
from rewindmq.engine.config import Config
from rewindmq.engine.erasure.day_expiry import Expiry
from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.erasures import Erasures
from rewindmq.engine.host.admission import ConnectionQuota, Listeners
from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.host.loop_watch import LoopWatch
from rewindmq.engine.host.memory import MemoryAccount
from rewindmq.engine.host.watermarks import memory_of_machine
from rewindmq.engine.identity.tokens import Tokens
from rewindmq.engine.partition.certainty import Certainty
from rewindmq.engine.partition.counters import LOGINS_BRAKED, all_counters
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.log_clock import LogClock
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.session_counts import SessionCounts
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.placement.repartition import Repartition
from rewindmq.engine.rewind.id_index_process import IdIndexProcess
from rewindmq.engine.rewind.restorations import Restorations
from rewindmq.engine.rewind.stream_consumers import Readings
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.engine.routing.dead_letters import Forwarder
from rewindmq.engine.routing.delayed_exchanges import HiddenQueues
from rewindmq.engine.routing.event_exchange import EventExchange
from rewindmq.engine.routing.firehose import Firehose
from rewindmq.engine.routing.homes import Homes
from rewindmq.engine.routing.router import Router
from rewindmq.projections.machine.data.effects import DeadLetter
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.schemas.access_events import AccessRefused, LoginRefused, SessionCounted, SessionOpened, UnroutedCounted
from rewindmq.schemas.events import BrokerStarted, Event, MachineUpgraded, NodeLost, PastRead, SessionClosed
from rewindmq.schemas.metadata_events import (
    BodiesExpired,
    Bound,
    NodeJoined,
    OperatorPolicyCleared,
    OperatorPolicySet,
    PolicyCleared,
    PolicySet,
    SubjectErased,
    Unbound,
    UserDeleted,
    VhostDeleted,
)
from rewindmq.schemas.placement_events import PlacementEvent, QueueMoveBegan, QueueMoveEnded

# Events of the metadata log that change nothing: no route and no permission is decided anew.
QUIET: Final = (
    BrokerStarted,
    SessionOpened,
    SessionClosed,
    SessionCounted,
    LoginRefused,
    AccessRefused,
    UnroutedCounted,
    PastRead,
)


@dataclass(frozen=True, slots=True)
class AccessParts:
    """Who may do what, and who did."""

    control: Access
    tokens: Tokens
    users: Users
    log: AccessLog
    callers: Callers


@dataclass(frozen=True, slots=True)
class HistoryParts:
    """The past of the queues: questions about it, its size, and its end. `archive` None: there is no archive."""

    past: WorkerPool
    id_index: IdIndexProcess
    marks: Marks
    restorations: Restorations
    size: HistorySize
    archive: ArchiveStatus | None
    trims: HistoryTrims
    erasures: Erasures
    expiry: Expiry

    def stop(self) -> None:
        """Stop the timers."""
        self.size.stop()
        self.trims.stop()
        self.expiry.stop()


@dataclass(slots=True)
class HostParts:
    """The machine and the process that the broker runs on. `listeners` and `quotas` come with the AMQP server."""

    memory: MemoryAccount
    alarms: Alarms
    loop_share: LoopShare
    loop_watch: LoopWatch
    clock_watch: ClockWatch
    listeners: Listeners | None = None
    quotas: tuple[ConnectionQuota, ...] = ()

    def stop(self) -> None:
        """Stop the timers."""
        self.alarms.stop()
        self.clock_watch.stop()


class Broker:
    """Put together by `open_broker` and `open_node` (engine/process.py). It is the listener of its partitions
    (`PartitionListener`) and of the metadata log (`MetadataListener`)."""

    def __init__(
        self,
        config: Config,
        log_clock: LogClock,
        metadata: Metadata,
        partitions: Sequence[Partition],
        keeper: Keeper,
        past: WorkerPool,
    ) -> None:
        self.config = config
        self.metadata = metadata
        self.topology = topology = metadata.topology
        self.partitions = partitions
        self.keeper = keeper
        self.nodes = nodes = keeper.nodes
        self.clock = clock = log_clock.now_ms
        self.counters = counters = all_counters()
        self.followers: Followers | None = None
        self.following: Following | None = None
        self.subjects = Subjects.of(config, topology, clock)
        loop_share = LoopShare()
        machine_bytes = memory_of_machine()
        memory = MemoryAccount(config.vm_memory_high_watermark.of(machine_bytes), machine_bytes)

        self.homes = homes = Homes(topology.placement, partitions)
        self.router = router = Router(topology, homes.locate, homes.of, loop_share)
        self.turns = turns = Turns(metadata, partitions, clock, keeper, loop_share.mark)
        self.certainty = Certainty(nodes.read_to_end, lambda: router.version)
        tokens = Tokens(config.tokens)
        access = Access(topology, tokens, LoginBrake(self._login_braked))
        self.session_counts = SessionCounts(metadata, nodes, turns.when_durable, turns.end)
        access_log = AccessLog(metadata, nodes, clock, turns.end, counters, self.session_counts, config.read_only)
        self.sessions = sessions = OpenSessions(
            topology, access, keeper, self.certainty, clock, counters, self._session_ended, turns.written
        )
        callers = Callers(sessions, access_log, keeper, turns.end, config.read_only)
        self.access = AccessParts(access, tokens, Users(metadata, access), access_log, callers)

        self.firehose = Firehose(config, router, sessions.by_id, keeper, counters)
        self.forwarder = Forwarder(router, clock, counters, self.certainty, keeper, turns.end, homes)
        self.readings = Readings(
            config, clock, sessions.ask, sessions.check_open, topology, len(partitions), memory, past
        )
        turns.start(self.forwarder, self.readings)
        self.hidden = HiddenQueues(topology, homes, turns.when_durable)
        self.queues = queues = Queues(metadata, access, partitions, homes, sessions, router, counters, config.semantics)
        self.removals = Removals(access, queues, sessions, router)
        self.exchanges = Exchanges(
            metadata, access, router, self.hidden, sessions, queues, homes, nodes.reads_back, access_log
        )
        self.consumers = Consumers(access, queues, homes, sessions, self.firehose, self.readings, turns.end)
        self.vhosts = Vhosts(metadata, partitions, turns)
        self.effective_policies = EffectivePolicies(topology, partitions, homes, turns, nodes)
        self.policies = Policies(metadata, self.effective_policies, config.semantics, operator=False)
        self.operator_policies = Policies(metadata, self.effective_policies, config.semantics, operator=True)
        self.parameters = Parameters(metadata, self.operator_policies, config.cluster_name)
        self.events = EventExchange(config, router, metadata, partitions, homes, keeper, counters, turns, loop_share)
        self.repartition = Repartition(
            config, metadata, partitions, keeper, loop_share, queues.enter_all, turns.when_durable, turns.end
        )

        self.host = self._host(log_clock, memory, loop_share)
        self.history = self._history(log_clock, past)

    def _host(self, log_clock: LogClock, memory: MemoryAccount, loop_share: LoopShare) -> HostParts:
        config, metadata, partitions, turns = self.config, self.metadata, self.partitions, self.turns
        alarms = Alarms(config, memory, turns, self.sessions.by_id, partitions)
        memory.start(alarms.look_soon)
        alarms.on_alarm.append(self.events.alarm)
        loop_watch = LoopWatch(loop_share, config.loop_warning_ms / 1_000)
        clock_watch = ClockWatch(config.node, log_clock, metadata, partitions, self.keeper, turns)
        return HostParts(memory, alarms, loop_share, loop_watch, clock_watch)

    def _history(self, log_clock: LogClock, past: WorkerPool) -> HistoryParts:
        config, metadata, partitions, turns, host = self.config, self.metadata, self.partitions, self.turns, self.host
        sessions, subjects, share = self.sessions, self.subjects, host.loop_share
        in_kafka = not self.keeper.holds_log
        size = HistorySize(config.data, lambda: host.alarms.disk_limit_bytes, in_kafka=in_kafka)
        ends: list[LogEnd] = [metadata, *partitions]
        url = config.archive.url
        return HistoryParts(
            past=past,
            id_index=IdIndexProcess(config),
            marks=Marks(metadata, partitions),
            restorations=Restorations(
                self.access.control, sessions, self.queues, self.exchanges, self.topology, turns, self.keeper
            ),
            size=size,
            archive=ArchiveStatus(url, ends, self.clock, in_kafka=size.take) if url else None,
            trims=HistoryTrims(config.keep_history_ms, metadata, partitions, turns),
            erasures=Erasures(metadata, subjects),
            expiry=Expiry(config, log_clock, metadata, partitions, self.nodes, subjects, turns.end, share),
        )

    def _session_ended(self, session: Session) -> None:
        self.access.log.ended(session)
        self.homes.session_ended(session.session_id)  # it may wait for a name

    def _login_braked(self) -> None:
        self.counters[LOGINS_BRAKED] += 1

    def serve(self, listeners: Listeners, quotas: tuple[ConnectionQuota, ...]) -> None:
        """Clients may come: through these listeners of the AMQP server, and as many as these quotas let in. They are no
        arguments of the constructor: the server is made with the broker, and so after it."""
        self.host.listeners = listeners
        self.host.quotas = quotas

    def lead(self, followers: Followers) -> None:
        """Other machines may follow. The followers come after the broker: they call its turns."""
        self.followers = followers
        followers.start(self.turns)

    def follow(self, status: Following) -> None:
        """This broker follows another one."""
        self.following = status

    def apply_settings(self, config: Config) -> None:
        """Go on with changed settings (engine/reload.py). A limit that was set while the broker runs stays as it is, if
        its setting did not change."""
        before, self.config = self.config, config
        if config.vm_memory_high_watermark != before.vm_memory_high_watermark:
            self.host.alarms.set_memory_limit(config.vm_memory_high_watermark)
        if config.disk_free_limit != before.disk_free_limit:
            self.host.alarms.set_disk_limit(config.disk_free_limit)

    def close(self) -> None:
        """Stop cleanly: everything is durable, RocksDB is written, each partition ends with a Checkpointed event."""
        self.events.stop()
        self.access.tokens.stop()
        self.sessions.departures.stop()
        for session in list(self.sessions.by_id.values()):
            self.sessions.close(session)
        self.homes.placement_changed()  # clients that wait for a name are gone
        self.access.callers.close()
        self.access.log.close()
        self.host.stop()
        self.readings.close()
        self.repartition.stop()
        self.history.stop()
        self.keeper.stop()

    @property
    def quarantined(self) -> dict[str, QuarantineReport]:
        """The records of each partition of the log that made no sense and were skipped."""
        found = {self.metadata.name: self.metadata.quarantine}
        return found | {partition.name: partition.projector.quarantine for partition in self.partitions}

    # -- what partitions tell -----------------------------------------------------------------------------------------

    def queue_declared(self) -> None:
        self.router.queues_changed()

    def queue_gone(self, partition: Partition, queue: Queue, reason: str) -> None:
        self.router.queues_changed()
        if self.homes.has_moves and not self._was_the_queue(partition, queue):
            return
        self.counters["queues_deleted_total"] += 1
        self.keeper.queue_gone(partition, queue)

    def _was_the_queue(self, partition: Partition, queue: Queue) -> bool:
        """Return True if a deleted queue was the one that clients see, not its remainder in another partition."""
        home = self.homes.of(queue.vhost, queue.name)
        moving = self.topology.placement.moving.get((queue.vhost, queue.name))
        if home is partition or moving is None:
            return home is partition
        is_left = moving.from_id == queue.queue_id and home.current  # else the owner of that partition repairs it
        return is_left and home.machine.queue(queue.vhost, queue.name) is None

    def undelivered(self, partition: Partition, consumer_id: int) -> None:
        """Close the consumer's connection: with its end the queue gets back what the consumer holds."""
        for session in self.sessions.by_id.values():
            if any(consumer_id in attached.get(partition, ()) for attached in session.attached.values()):
                asyncio.get_running_loop().call_soon(self._close_for, session)  # not in the middle of what it does

    def _close_for(self, session: Session) -> None:
        if session.close is not None and session.session_id in self.sessions.by_id:
            session.close("a message could not be delivered, see the broker's log")
            self.turns.end()

    def dead_letter(self, partition: Partition, effect: DeadLetter) -> None:
        self.forwarder.take(partition, effect)

    def _placement_changed(self, event: PlacementEvent) -> None:
        self.router.queues_changed()
        if isinstance(event, QueueMoveEnded):
            self.consumers.moved(event.vhost, event.queue)
        elif isinstance(event, QueueMoveBegan):
            began = (event.vhost, event.queue) in self.topology.placement.moving  # else the move was given up
            (self.consumers.moves.began if began else self.consumers.moved)(event.vhost, event.queue)
        if isinstance(event, QueueMoveBegan | QueueMoveEnded):
            self.homes.name_freed(event.vhost, event.queue)
        else:
            self.homes.placement_changed()

    # -- what the metadata log tells ----------------------------------------------------------------------------------

    def metadata_changed(self, event: Event) -> None:
        if isinstance(event, QUIET):
            return
        if isinstance(event, MachineUpgraded):
            self.keeper.upgrade()
            return
        if isinstance(event, PlacementEvent | NodeJoined | NodeLost):
            self.repartition.changed(event)
        if isinstance(event, PlacementEvent):
            self._placement_changed(event)
            return
        if isinstance(event, Bound | Unbound):
            if (event.vhost, event.source) not in self.topology.exchanges:  # auto-deleted, and perhaps others with it
                self.router.exchanges_changed()
        else:
            self.router.exchanges_changed()
            self.access.control.changed()
        self.hidden.changed(event)
        self.events.metadata_changed(event)
        if isinstance(event, PolicySet | PolicyCleared | OperatorPolicySet | OperatorPolicyCleared):
            if self.nodes.reads_back:  # else no partition is ever paused
                self.effective_policies.changed()
        elif isinstance(event, SubjectErased | BodiesExpired):
            self.subjects.erased(event.key_ids)
        elif isinstance(event, VhostDeleted):
            self.firehose.switch(event.vhost, False)
            vhost = event.vhost
            self.sessions.close_connections(f"vhost '{vhost}' is deleted", lambda session: session.vhost == vhost)
        elif isinstance(event, UserDeleted):
            name = event.name
            self.sessions.close_connections(f"user '{name}' is deleted", lambda session: session.user == name)
