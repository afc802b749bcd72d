"""Removals: an operator takes single messages out of a queue, to delete them or to move them to other queues.

    remove   read permission for the queue, as for a purge
    move     besides write permission for the exchange, as for a publish

Messages that are ready or delayed leave (machine/events/removal.py); the others are told with the reason. A moved
message is forwarded as dead letters are (engine/routing/dead_letters.py). What cannot be forwarded now is refused
beforehand: then the message keeps its place.

A message id is an offset, so in the partition to which a queue has moved it may be that of another message. A request
for such a queue has to name the partition of its ids.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rewindmq.engine.broker.access_control import Access
from rewindmq.engine.broker.open_sessions import OpenSessions
from rewindmq.engine.broker.queues import Queues, check_not_gone
from rewindmq.engine.errors import AccessRefused, NotFound, NotImplementedByBroker, PreconditionFailed, resource
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.routing.router import Destination, Router
from rewindmq.projections.machine.data.effects import DeadLetter, Effect, Forget
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import MOVED, REMOVED
from rewindmq.projections.machine.events.removal import removable
from rewindmq.projections.machine.rules.limits import refuses
from rewindmq.projections.rules.internal_queues import is_delay_queue
from rewindmq.schemas.operator_events import MessageRemoved

ARRIVAL_SECONDS: Final = 5.0  # the longest wait for messages that were moved
LOOK_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Removal:
    """The outcome of a removal: the messages that left, and the reasons of those that stayed, by message id.

    `queue`: from which. `letters`: the numbers of the first and last moved message in its outbox; (1, 0) for none.
    `held`: some stayed because consumers have them."""

    queue: Queue
    left: list[int]
    stayed: dict[int, str]
    held: bool
    letters: tuple[int, int] = (1, 0)


class Removals:
    def __init__(self, access: Access, queues: Queues, sessions: OpenSessions, router: Router) -> None:
        self._access = access
        self._queues = queues
        self._sessions = sessions
        self._router = router

    async def remove(
        self, session: Session, name: str, ids: Collection[int], ids_of: str | None, reason: str
    ) -> Removal:
        """Delete those of these messages that are ready or delayed. `ids_of`: the partition that the ids are of."""
        partition, queue = await self._taken_from(session, name, ids_of)
        spans = _spans(queue, ids)
        event = MessageRemoved(queue.vhost, queue.name, spans, reason=reason, moved=False, exchange="", routing_key="")
        return _removal(queue, ids, await self._ask(session, partition, queue, event) if spans else [])

    async def move(
        self,
        session: Session,
        name: str,
        ids: Collection[int],
        ids_of: str | None,
        exchange: str,
        routing_key: str,
        reason: str,
    ) -> Removal:
        """Move those of these messages that are ready or delayed to the queues of this route.

        NotFound: there is no such exchange. PreconditionFailed: the route leads nowhere, or a queue refuses publishes
        at its limit, so that a message would have to wait."""
        partition, queue = await self._taken_from(session, name, ids_of)
        await self._check_route(session, queue.vhost, exchange, routing_key)
        partition, queue = await self._taken_from(session, name, ids_of)  # it may have moved meanwhile
        spans = _spans(queue, ids)
        event = MessageRemoved(
            queue.vhost, queue.name, spans, reason=reason, moved=True, exchange=exchange, routing_key=routing_key
        )
        effects = await self._ask(session, partition, queue, event) if spans else []
        return _removal(queue, ids, effects)

    async def _taken_from(self, session: Session, name: str, ids_of: str | None) -> tuple[Partition, Queue]:
        """The queue that messages are to leave. That of a delayed exchange has scheduled messages.

        Raises AccessRefused, NotFound, ResourceLocked; NotImplementedByBroker: it is a stream; PreconditionFailed: the
        ids are of another partition."""
        self._access.check(session, session.vhost, "read", "queue", name)
        if is_delay_queue(name):
            partition = await self._queues.entered(session, name)
            found = partition.machine.queue(session.vhost, name)
            if found is None:
                raise NotFound(f"no {resource('queue', name, session.vhost)}")
            queue = found
        else:
            partition, queue = await self._queues.usable(session, name)
        if queue.stream:
            where = resource("queue", name, session.vhost)
            raise NotImplementedByBroker(f"{where} is a stream: single messages cannot be taken out of it")
        here = f"{resource('queue', name, session.vhost)} is in partition {partition.name}"
        if ids_of is not None and ids_of != partition.name:
            raise PreconditionFailed(f"{here}: ids of {ids_of} are of other messages")
        if ids_of is None and self._has_moved(queue):
            raise PreconditionFailed(f"{here}, and has moved: name the partition of the ids")
        return partition, queue

    def _has_moved(self, queue: Queue) -> bool:
        moves = self._router.topology.placement.moves.get((queue.vhost, queue.name), ())
        return any(move.from_id != -1 and move.to_id == queue.queue_id for move in moves)

    async def _check_route(self, session: Session, vhost: str, exchange: str, routing_key: str) -> None:
        """Raise the error that keeps a message from going this way."""
        self._access.check(session, vhost, "write", "exchange", exchange)
        declared = self._router.topology.exchanges.get((vhost, exchange))
        if declared is None and exchange:
            await self._sessions.read_to_end(session)
            declared = self._router.topology.exchanges.get((vhost, exchange))
        where = resource("exchange", exchange, vhost)
        if declared is None and exchange:
            raise NotFound(f"no {where}")
        if declared is not None:
            if declared.internal:
                raise AccessRefused(f"cannot publish to internal {where}")
            self._access.check_topic(session, declared, "write", routing_key)
        if self._router.needs_content(vhost, exchange):
            raise PreconditionFailed(f"{where} routes by more than routing keys: name the queue instead")
        destinations = await self._destinations(session, vhost, exchange, routing_key)
        if not destinations and not exchange:
            raise NotFound(f"no {resource('queue', routing_key, vhost)}")
        if not destinations:
            raise PreconditionFailed(f"no queue is bound to {where} with routing key '{routing_key}'")
        for destination in destinations:
            for name in destination.route.queues:
                target = destination.partition.machine.queue(vhost, name)
                if target is not None and refuses(target, 0):
                    raise PreconditionFailed(f"{resource('queue', name, vhost)} is at its limit, and refuses publishes")

    async def _destinations(
        self, session: Session, vhost: str, exchange: str, routing_key: str
    ) -> tuple[Destination, ...]:
        """The queues of a route. Their partitions are folded: only the fold knows whether a queue is there, or full."""
        while True:
            destinations = self._router.route(vhost, exchange, routing_key, None)
            if not destinations:
                await self._sessions.read_to_end(session)
                destinations = self._router.route(vhost, exchange, routing_key, None)
            homes = [destination.partition for destination in destinations]
            if not destinations and not exchange:
                homes = [self._queues.partition_for(vhost, routing_key)]
            paused = [partition for partition in homes if not partition.current]
            if not paused:
                return destinations
            for partition in paused:
                await partition.enter()
            self._sessions.check_open(session)

    async def _ask(self, session: Session, partition: Partition, queue: Queue, event: MessageRemoved) -> list[Effect]:
        effects = await self._sessions.ask(session, partition, event)
        check_not_gone(queue)
        return effects


async def has_arrived(removal: Removal) -> bool:
    """Wait until all that was moved is durable where it belongs, but not for long.

    False: some of it is under way, or came back to the queue, which it does if no queue of the route takes it. It is
    called behind the end of a turn."""
    queue, (first, last) = removal.queue, removal.letters
    loop = asyncio.get_running_loop()
    ends = loop.time() + ARRIVAL_SECONDS
    while queue.outbox.first(last + 1) <= last:
        if loop.time() > ends:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    own = (queue.vhost, queue.name, queue.queue_id)
    back = [sequence for source, sequence in queue.letters_seen.items() if source[:3] == own and not source[4]]
    return not any(first <= sequence <= last for sequence in back)


def _spans(queue: Queue, ids: Collection[int]) -> tuple[tuple[int, int], ...]:
    """The messages that can leave now, as the event names them: a removal of nothing is not logged."""
    return tuple((message_id, message_id) for message_id in removable(queue, sorted(set(ids))))


def _removal(queue: Queue, ids: Collection[int], effects: list[Effect]) -> Removal:
    left = [
        message_id
        for effect in effects
        if isinstance(effect, Forget) and effect.queue is queue and effect.reason in (REMOVED, MOVED)
        for message_id in effect.message_ids
    ]
    holders = {
        message_id: holder for holder in queue.holders.values() for message_id in ids if message_id in holder.held
    }
    stayed: dict[int, str] = {}
    for message_id in sorted(set(ids).difference(left)):
        holder = holders.get(message_id)
        if holder is None:
            stayed[message_id] = "it is not in the queue"
        else:
            by = f"consumer '{holder.tag}'" if holder.tag else "a client that took it by basic.get"
            stayed[message_id] = f"{by} of user '{holder.user}' has it: it can be removed when it comes back"
    letters = (1, 0)
    for effect in effects:
        if isinstance(effect, DeadLetter) and effect.reason == MOVED:
            letters = (effect.sequence, effect.sequence + len(effect.message_ids) - 1)
    return Removal(queue, left, stayed, bool(holders), letters)
