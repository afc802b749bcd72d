"""Queues: where each one is, and how clients declare, delete and purge them, and operators pause them.

Codes, texts and the order of the checks are RabbitMQ 3.13's (rabbit_channel.erl `handle_method/3` of queue.declare and
queue.delete). What a declaration may ask for is in declarations.py.
"""

import secrets
from collections import deque
from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeVar

from rewindmq.engine.broker import declarations, limits
from rewindmq.engine.broker.access_control import Access
from rewindmq.engine.broker.open_sessions import OpenSessions
from rewindmq.engine.errors import AccessRefused, NotFound, NotImplementedByBroker, PreconditionFailed, resource
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.partition.flow_control import LARGE_BYTES
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.queue_counters import Listed
from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.placement.leftover_queues import is_to_follow, letters_of
from rewindmq.engine.rewind.arguments import check_stream_sizes
from rewindmq.engine.routing.delayed_exchanges import check_not_hidden
from rewindmq.engine.routing.homes import Homes
from rewindmq.engine.routing.router import Router
from rewindmq.projections.machine.data.effects import Effect, Forget, QueueGone
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import PURGED
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.schemas.events import LeaseRenewed, Purged, QueueDeclared, QueueDeleted
from rewindmq.schemas.operator_events import QueuePaused, QueueResumed
from rewindmq.schemas.values import BROKER, Argument


def is_next_large(queue: Queue) -> bool:
    """Return True if the next ready message has a large body: reading it takes milliseconds in the loop."""
    return queue.message_bytes_ready >= LARGE_BYTES and next(queue.messages()).size >= LARGE_BYTES


Q = TypeVar("Q", bound=Listed)


class Queues:
    """`semantics`: of queues whose arguments ask for none."""

    def __init__(
        self,
        metadata: Metadata,
        access: Access,
        partitions: Sequence[Partition],
        homes: Homes,
        sessions: OpenSessions,
        router: Router,
        counters: dict[str, int],
        semantics: str,
    ) -> None:
        self._metadata = metadata
        self._topology = metadata.topology
        self._access = access
        self._partitions = partitions
        self._homes = homes
        self._sessions = sessions
        self._router = router
        self._counters = counters
        self._semantics = semantics

    # -- finding ------------------------------------------------------------------------------------------------------

    def partition_for(self, vhost: str, name: str) -> Partition:
        """The partition that holds the queue of this name, or would hold it."""
        return self._homes.of(vhost, name)

    def get(self, vhost: str, name: str) -> Queue | None:
        queue = self._homes.queue(vhost, name)
        return queue if self._sessions.departures.owner_of(queue) is None else None

    async def entered(self, session: Session, name: str) -> Partition:
        """The partition of this name, once the name is not held and this node folds the partition. What is appended for
        the name is appended before anything else is awaited.

        ConnectionForced: the session ended meanwhile."""
        homes, vhost = self._homes, session.vhost
        while True:
            if homes.is_held(vhost, name):
                await homes.wait_until_free(
                    vhost, name, lambda: not self._sessions.is_open(session), session.session_id
                )
                self._sessions.check_open(session)
            partition = homes.of(vhost, name)
            await self._sessions.catch_up(session, partition)
            if homes.is_home(partition, vhost, name) and not homes.is_held(vhost, name) and partition.current:
                queue = partition.machine.queue(vhost, name)
                owner = self._sessions.departures.owner_of(queue)
                if queue is None or owner is None:
                    return partition
                await partition.ask(owner.actor, QueueDeleted(vhost, name, if_unused=False, if_empty=False))
                await self.carry_out_end(partition, queue)

    async def usable(self, session: Session, name: str) -> tuple[Partition, Queue]:
        """The queue of this name, for a client that names it.

        NotFound. AccessRefused: the name is that of a hidden queue. ResourceLocked: another connection's exclusive
        queue."""
        check_not_hidden(name)
        partition = await self.entered(session, name)
        queue = partition.machine.queue(session.vhost, name)
        if queue is None:
            raise NotFound(f"no {resource('queue', name, session.vhost)}")
        if queue.exclusive and queue.owner != session.session_id:
            raise declarations.locked(queue)
        return partition, queue

    async def enter_all(self) -> None:
        """Make sure that this node folds every partition."""
        while True:
            for partition in self._partitions:
                await partition.enter()
            if all(partition.current for partition in self._partitions):  # none was paused meanwhile
                return

    async def enter_uncounted(self) -> None:
        """Make sure that this node folds each partition whose queues' counters it does not have."""
        while waiting := [partition for partition in self._partitions if partition.must_enter]:
            for partition in waiting:
                await partition.enter()

    async def enter_unlisted(self) -> None:
        """Make sure that this node folds each partition whose queues' consumers it does not have all."""
        while waiting := [
            each for each in self._partitions if each.must_enter or (each.counted and each.counted.crowded)
        ]:
            for partition in waiting:
                await partition.enter()

    def all(self, vhost: str | None = None) -> list[Queue]:
        """The queues of a vhost (None: of all vhosts), by vhost and name. Hidden queues are among them.

        Those of paused partitions are not: `enter_all` first."""
        found = [
            (key, queue)
            for partition in self._partitions
            if partition.current
            for key, queue in partition.machine.by_name.items()
            if (vhost is None or key[0] == vhost) and self._is_listed(partition, key)
        ]
        found.sort(key=itemgetter(0))
        return [queue for _, queue in found]

    async def by_name(self, work: Work, vhosts: Container[str]) -> list[tuple[PartitionReading, Queue]]:
        """The queues of these vhosts that clients can see, each with its partition, by vhost and name, in slices.

        Those of paused partitions are not among them: `enter_all` first."""
        return await self._in_order(
            work, vhosts, [(each, each.machine.by_name) for each in self._partitions if each.current]
        )

    async def listed(self, work: Work, vhosts: Container[str]) -> list[tuple[PartitionReading, Listed]]:
        """The same as `by_name`, and the counters of the queues that this node does not fold, as far as it has them."""
        found: list[tuple[PartitionReading, Mapping[tuple[str, str], Listed]]] = []
        for partition in self._partitions:
            if partition.current:
                found.append((partition, partition.machine.by_name))
            elif (table := partition.counted) is not None:
                found.append((partition, table.queues))
        return await self._in_order(work, vhosts, found)

    async def _in_order(
        self, work: Work, vhosts: Container[str], found: Sequence[tuple[PartitionReading, Mapping[tuple[str, str], Q]]]
    ) -> list[tuple[PartitionReading, Q]]:
        """The queues of these vhosts that clients can see, by vhost and name, in slices."""
        entries = [
            (key, (partition, queue))
            for partition, by_name in found
            async for key, queue in work.over(list(by_name.items()))
            if key[0] in vhosts and not is_hidden(key[1]) and self._is_listed(partition, key)
        ]
        return await work.in_order(entries)

    def _is_listed(self, partition: PartitionReading, name: tuple[str, str]) -> bool:
        departures = self._sessions.departures
        if departures.leaving and departures.owner_of(partition.machine.queue(*name)) is not None:
            return False
        return not self._homes.has_moves or self._homes.is_listed(partition, *name)

    # -- declaring ----------------------------------------------------------------------------------------------------

    async def declare(
        self,
        session: Session,
        name: str,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: tuple[Argument, ...],
    ) -> Queue:
        """Declare a queue: the new queue, or the queue as it was. An empty name is replaced by a generated one
        (amq.gen-..., S-064)."""
        name = declarations.strip_cr_lf(name)
        if passive:
            return await self._renewed(session, *await self.usable(session, name))
        vhost = session.vhost
        self._counters["queues_declared_total"] += 1
        durable = durable and not exclusive  # S-084
        default = self._topology.default_queue_type(vhost)
        arguments = declarations.with_default_type(default, durable, exclusive, auto_delete, arguments)
        if name == "":
            name = self._generated_name(vhost, arguments)
        elif name.startswith("amq."):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        self._access.check(session, vhost, "configure", "queue", name)
        partition = await self.entered(session, name)
        queue = partition.machine.queue(vhost, name)
        if queue is not None:
            _check_same(session, queue, durable, exclusive, auto_delete, arguments)
            return await self._renewed(session, partition, queue)
        dead_letter_exchange = declarations.exchange_named_by("queue", name, vhost, arguments, "x-dead-letter-exchange")
        if dead_letter_exchange is not None:
            self._access.check(session, vhost, "read", "queue", name)
            self._access.check(session, vhost, "write", "exchange", dead_letter_exchange)
        kind, semantics = self.check_arguments(vhost, name, arguments)
        if limits.has_queue_limit(self._topology, vhost):
            await self.enter_all()
            await self._sessions.departures.over()
            self._sessions.check_open(session)
            partition = await self.entered(session, name)
        limits.check_queue(self._topology, self._homes, self._partitions, vhost, name)
        declarations.check_queue_properties(vhost, name, kind, durable, exclusive, auto_delete)
        if exclusive:
            session.owns_queues_in[partition] = None
        await self._sessions.ask(
            session,
            partition,
            QueueDeclared(
                vhost,
                name,
                type=kind,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                owner=session.session_id if exclusive else 0,
                arguments=arguments,
                semantics=semantics,
                policy=self._topology.effective_policy(vhost, name, kind),
                operator_policy=self._topology.effective_operator_policy(vhost, name, kind),
            ),
        )
        self._counters["queues_created_total"] += 1
        self._router.queues_changed()
        queue = partition.machine.queue(vhost, name)
        if queue is None:  # deleted by another node in the same moment, or this node was declared lost
            raise NotFound(f"no {resource('queue', name, vhost)}")
        _check_same(session, queue, durable, exclusive, auto_delete, arguments)  # another node's client may be faster
        return queue

    def check_arguments(self, vhost: str, name: str, arguments: tuple[Argument, ...]) -> tuple[str, str]:
        """Check the arguments of a new queue: the type and the semantics that they ask for. PreconditionFailed."""
        kind = declarations.queue_type(vhost, name, arguments)
        semantics = declarations.semantics_of(vhost, name, arguments, self._semantics)
        declarations.check_queue_arguments(vhost, name, kind, arguments, semantics)
        version = self.partition_for(vhost, name).machine.machine_version
        declarations.check_machine_version(kind, arguments, version)
        if kind == "stream":
            check_stream_sizes(arguments)
        return kind, semantics

    def _generated_name(self, vhost: str, arguments: tuple[Argument, ...]) -> str:
        kind = declarations.queue_type(vhost, "", arguments)
        if kind != "classic":
            raise PreconditionFailed(f"Cannot declare a server-named queue for type {declarations.TYPE_MODULES[kind]}")
        return f"amq.gen-{secrets.token_urlsafe(16)}"

    async def _renewed(self, session: Session, partition: Partition, queue: Queue) -> Queue:
        """Declaring a queue that exists renews its lease, also a passive declaration (S-053). A quorum queue's lease
        is not renewed (S-059)."""
        if queue.settings.expires_ms is not None and queue.type == "classic":
            await self._sessions.ask(session, partition, LeaseRenewed(queue.vhost, queue.name, queue.queue_id))
            check_not_gone(queue)
        return queue

    # -- deleting and purging -----------------------------------------------------------------------------------------

    async def delete(self, session: Session, name: str, if_unused: bool, if_empty: bool) -> int:
        """Delete a queue: the number of ready messages that went with it. 0 if there is no such queue: in AMQP that
        is no error."""
        name = declarations.strip_cr_lf(name)
        self._access.check(session, session.vhost, "configure", "queue", name)
        await self.entered(session, name)
        if self.get(session.vhost, name) is None:
            await self._sessions.read_to_end(session)
        if self.get(session.vhost, name) is None:
            return 0
        partition, queue = await self.usable(session, name)
        where = resource("queue", name, session.vhost)
        if queue.stream:
            if_unused = if_empty = False  # RabbitMQ ignores both for a stream, and counts no messages
        for flag, text in ((if_unused, "if-unused"), (if_empty, "if-empty")):
            if flag and queue.type == "quorum":
                raise NotImplementedByBroker(
                    f"cannot delete {where}. queue.delete operations with {text} flag set"
                    " are not supported by quorum queues"
                )
        if if_unused and queue.consumer_count() > 0:
            raise PreconditionFailed(f"{where} in use")
        if if_empty and (queue.messages_ready > 0 or await self._has_left_messages(session, name)):
            raise PreconditionFailed(f"{where} not empty")
        deleted = QueueDeleted(session.vhost, name, if_unused, if_empty)
        effects = await self._sessions.ask(session, partition, deleted)
        gone = [effect for effect in effects if isinstance(effect, QueueGone) and effect.queue is queue]
        if not gone and not queue.gone:  # another node's client was faster: it is used, or not empty any more
            raise PreconditionFailed(f"{where} {'in use' if if_unused else 'not empty'}")
        await self.carry_out_end(partition, queue)
        left = [each async for each in self._strays(session.vhost, name)]
        for other, stray in left:
            effects = await self._sessions.ask(session, other, QueueDeleted(session.vhost, name, False, False))
            other.carry_out()
            gone += [effect for effect in effects if isinstance(effect, QueueGone) and effect.queue is stray]
        return 0 if queue.stream else sum(effect.messages for effect in gone)

    async def _strays(self, vhost: str, name: str) -> AsyncIterator[tuple[Partition, Queue]]:
        """Yields what is left of a queue in the partitions that it has left. It ends with the queue, too."""
        for partition, queue_id in list(self._homes.strays(vhost, name)):
            await partition.enter()
            stray = partition.machine.queue(vhost, name)
            if stray is not None and stray.queue_id == queue_id and not self._homes.is_home(partition, vhost, name):
                yield partition, stray

    async def _has_left_messages(self, session: Session, name: str) -> bool:
        """Return True if messages of a queue came back to a partition that it has left, and have yet to follow it."""
        left = [is_to_follow(stray) or letters_of(stray) > 0 async for _, stray in self._strays(session.vhost, name)]
        self._sessions.check_open(session)
        return any(left)

    async def carry_out_end(self, partition: Partition, queue: Queue) -> None:
        """Perform the effects of an event that may have ended the queue.

        If the queue is gone, so are its bindings: what this connection does next must not meet them."""
        partition.carry_out()
        if queue.gone:
            await self._metadata.until_unbound(BROKER, queue)

    async def purge(self, session: Session, name: str) -> int:
        """Drop the ready messages of a queue: their number."""
        self._access.check(session, session.vhost, "read", "queue", name)
        partition, queue = await self.usable(session, name)
        if queue.stream:
            where = resource("queue", name, session.vhost)
            raise NotImplementedByBroker(f"queue.purge not supported by stream queues {where}")
        effects = await self._sessions.ask(session, partition, Purged(session.vhost, name))
        check_not_gone(queue)
        purged = _purged(queue, effects)
        left = [each async for each in self._strays(session.vhost, name)]
        for other, stray in left:  # messages that came back to where the queue was, and have not followed it yet
            purged += _purged(stray, await self._sessions.ask(session, other, Purged(session.vhost, name)))
        return purged

    # -- pausing ------------------------------------------------------------------------------------------------------

    async def pause(self, session: Session, name: str, reason: str) -> None:
        """Let a queue deliver nothing until it is resumed. A queue that is paused stays so."""
        await self._pausable(session, name, QueuePaused(session.vhost, name, reason))

    async def resume(self, session: Session, name: str) -> None:
        """Let a queue deliver again."""
        await self._pausable(session, name, QueueResumed(session.vhost, name))

    async def _pausable(self, session: Session, name: str, event: QueuePaused | QueueResumed) -> None:
        """Log the event, unless the queue is as it asks for. The errors are those of a purge."""
        self._access.check(session, session.vhost, "configure", "queue", name)
        partition, queue = await self.usable(session, name)
        if queue.paused != isinstance(event, QueuePaused):
            await self._sessions.ask(session, partition, event)
            check_not_gone(queue)


def queues_in(partitions: Sequence[Partition], vhost: str | None) -> Iterator[tuple[Partition, Queue]]:
    """The queues that a vhost has at the call (None: that all have), except those that go before their turn. The
    iterator drops each queue as it yields it: to free 10,000 of them at once takes 50 ms."""
    there = [(partition, deque(partition.machine.by_name.values())) for partition in partitions]
    for partition, queues in there:
        while queues:
            queue = queues.popleft()
            if vhost in (None, queue.vhost) and not queue.gone:
                yield partition, queue


def _purged(queue: Queue, effects: list[Effect]) -> int:
    """The number of messages that a purge dropped."""
    return sum(
        len(effect.message_ids)
        for effect in effects
        if isinstance(effect, Forget) and effect.queue is queue and effect.reason == PURGED
    )


def check_not_gone(queue: Queue) -> None:
    """NotFound: time passes with every event, so a queue whose lease had ended went before the event that named it."""
    if queue.gone:
        raise NotFound(f"no {resource('queue', queue.name, queue.vhost)}")


def _check_same(
    session: Session,
    queue: Queue,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    arguments: tuple[Argument, ...],
) -> None:
    if queue.exclusive != exclusive or (exclusive and queue.owner != session.session_id):
        raise declarations.locked(queue)
    declarations.check_queue_equivalence(queue, durable, auto_delete, arguments)
