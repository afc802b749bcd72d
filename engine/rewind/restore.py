"""Bring messages back: a queue as it was, what a purge or a deletion took, or messages by their ids.

    plan = await past.ask(Wish(history, "/", "orders", At(time_ms=...), LOST), user)     # in the past's process
    done = await restore(broker, session, history, plan, "orders", name)                     # publishes in the broker

A restored message is a `Published` with an origin (reason `restored`): a new message behind those in the queue, in the
order in which they were, with its routing key, properties and body, its delivery count, and the time that it had left.
The history says by it who brought what back. The fold takes each message once under a restoration's name, so a
restoration may be repeated, and one that was cut short is finished by asking again: a deleted queue is declared, then
bound, then filled, and each step is durable before the next.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rewindmq.engine.errors import NotFound
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.location import History, HistoryPartition
from rewindmq.engine.rewind.bindings_at import Lost, bind_again, bindings_then, missing
from rewindmq.engine.rewind.queue_at import NoSuchQueue, log_of, published_at, queue_then
from rewindmq.engine.rewind.worker import PastProcess
from rewindmq.projections.machine.data.effects import (
    ACKED,
    DELETED,
    DELIVERED,
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    PURGED,
    REJECTED,
    TRANSIENT,
    Duplicate,
    Effect,
    Refuse,
    endings,
)
from rewindmq.projections.machine.machine import Machine, NewerHistory
from rewindmq.projections.replay import blocks_of, decoder_for, replay
from rewindmq.projections.rewind import At, OutsideHistory, RewindError, format_time
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Argument, Bound, Origin, Published, Purged, QueueDeleted, Route

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.runtime.partition import Partition
    from rewindmq.engine.runtime.sessions import Session

LOST = (EXPIRED, MAXLEN, REJECTED, DELIVERY_LIMIT, PURGED, DELETED, TRANSIENT)
CONSUMED = (ACKED, DELIVERED)
THERE = ("ready", "unacked")
FATES = (*LOST, *CONSUMED, *THERE)

UNDONE: dict[str, type[Purged | QueueDeleted]] = {"purge": Purged, "delete": QueueDeleted}
UNDONE_FATES = {"purge": (PURGED,), "delete": (DELETED,)}  # not what consumers held and rejected after a purge

NO_INCARNATION = -1
PAGE_MESSAGES = 500
PAGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message that is to come back, as it was then. `left_ms`: until it would have expired; None: never."""

    message_id: int
    size: int
    delivery_count: int
    redelivered: bool
    left_ms: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What would come back, in order. `declared`: the queue as it was (type, durable, auto-delete, arguments), and its
    `bindings`. `fates`: of all that was in it then, what became of them since. Of messages that were named, nothing of
    that is known."""

    vhost: str
    queue: str
    queue_id: int
    partition: str
    offset: int
    time_ms: int
    declared: tuple[str, bool, bool, tuple[Argument, ...]] | None
    wanted: tuple[Wanted, ...]
    fates: dict[str, int]
    bindings: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class NoPlan:
    """Why there is none, for people. `missing`: there was no such queue or event; else the request makes no sense."""

    reason: str
    missing: bool


@dataclass(frozen=True, slots=True)
class Restored:
    restored: int
    duplicates: int
    refused: int
    declared: bool
    bound: list[Bound]
    lost: list[Lost]


@dataclass(frozen=True, slots=True)
class Wish:
    """Of what was in the queue at a moment, the messages of which one of `fates` has become since; only those among
    `ids`, if there are any. Instead of a moment `undo`: that before the last purge or delete. With neither, the
    messages that `ids` names, whenever they were there and whatever became of them, as they were published. Asked in
    the past's process."""

    history: History
    vhost: str
    queue: str
    at: At | None
    undo: str
    fates: tuple[str, ...]
    ids: frozenset[int]
    incarnation: int | None = None  # only of this queue id; None: of whatever bore the name then

    def answer(self) -> Plan | NoPlan:
        try:
            return self._plan()
        except NoSuchQueue as error:
            return NoPlan(str(error), True)
        except (RewindError, LogError, NewerHistory, UndecodableRecord) as error:
            return NoPlan(str(error), False)

    def _plan(self) -> Plan:
        reader = self.history.open()
        if self.at is None and not self.undo:
            return self._named(log_of(reader, self.vhost, self.queue))
        at = self.at
        if at is None:
            at = At(offset=self._undone(log_of(reader, self.vhost, self.queue)))
        log, machine, queue = queue_then(self.history, reader, self.vhost, self.queue, at, self.incarnation)
        offset, clock_ms, time_ms = machine.next_offset, machine.clock_ms, machine.log_ms  # before the fold goes on
        there = [
            Wanted(
                view.message_id,
                view.size,
                view.delivery_count,
                view.redelivered,
                None if view.expires_ms is None else max(1, view.expires_ms - clock_ms),
            )
            for view in queue.messages()
        ]
        declared = (queue.type, queue.durable, queue.auto_delete, queue.arguments)
        became = fates_since(machine, log, queue.queue_id, {wanted.message_id for wanted in there})
        wanted = tuple(
            each
            for each in there
            if became[each.message_id] in self.fates and (not self.ids or each.message_id in self.ids)
        )
        bindings = bindings_then(reader.metadata, log, self.vhost, self.queue, queue.queue_id, at)
        return Plan(
            self.vhost,
            self.queue,
            queue.queue_id,
            log.name,
            offset,
            time_ms,
            declared,
            wanted,
            dict(Counter(became[each.message_id] for each in there)),
            bindings,
        )

    def _named(self, log: HistoryPartition) -> Plan:
        wanted = []
        time_ms = 0
        start = max(log.start_offset, self.incarnation or 0)
        beyond = [each for each in self.ids if not start <= each < log.next_offset]
        if beyond:
            raise OutsideHistory(f"{log.name} has no message {min(beyond)}")
        for message_id, (published_ms, event) in published_at(log, self.ids):
            route = event.route
            if route.vhost != self.vhost or self.queue not in route.queues:
                raise OutsideHistory(f"message {message_id} was not published to queue '{self.queue}'")
            time_ms = max(time_ms, published_ms)
            wanted.append(Wanted(message_id, event.body_size, 0, False, event.expiration_ms))
        return Plan(
            self.vhost,
            self.queue,
            NO_INCARNATION,
            log.name,
            log.next_offset,
            time_ms,
            None,
            tuple(wanted),
            {},
        )

    def _undone(self, log: HistoryPartition) -> int:
        """The offset of the last event of that kind, in the life of the incarnation that is asked for."""
        kind, found = UNDONE[self.undo], -1
        start = max(log.start_offset, self.incarnation or 0)
        decode = decoder_for(log).decode
        for first, records, _ in blocks_of(log, start, None):
            for offset, record in enumerate(records, first):
                if offset < start:
                    continue
                try:
                    event = decode(record, False)[2]
                except UndecodableRecord:
                    continue
                if not isinstance(event, Purged | QueueDeleted):
                    continue
                if (event.vhost, event.queue) != (self.vhost, self.queue):
                    continue
                if isinstance(event, kind):
                    found = offset
                if self.incarnation is not None and isinstance(event, QueueDeleted):
                    return self._found(found)
        return self._found(found)

    def _found(self, found: int) -> int:
        if found < 0:
            raise NoSuchQueue(f"nobody has asked to {self.undo} queue '{self.queue}' in vhost '{self.vhost}'")
        return found


def fates_since(machine: Machine, log: HistoryPartition, queue_id: int, ids: set[int]) -> dict[int, str]:
    """What became of these messages of a queue, from where the machine stands to the end of the log."""
    became: dict[int, str] = {}
    blocks = blocks_of(log, machine.next_offset, None)
    for _, _, _, _, effects in replay(machine, blocks, decoder_for(log), QuarantineReport()):
        for queue, message_id, fate, _ in endings(effects):
            if queue.queue_id == queue_id and message_id in ids:
                became[message_id] = fate
    left = machine.by_id.get(queue_id)
    held = {message_id for each in left.holders.values() for message_id in each.held} if left is not None else set()
    for message_id in ids - became.keys():
        became[message_id] = "unacked" if message_id in held else "ready"
    return became


@dataclass(frozen=True, slots=True)
class Bodies:
    """The messages themselves, read from the log."""

    history: History
    partition: str
    ids: tuple[int, ...]

    def answer(self) -> dict[int, Published]:
        reader = self.history.open()
        log = next(each for each in reader.queues if each.name == self.partition)
        return {message_id: published for message_id, (_, published) in published_at(log, self.ids)}


def name_of(plan: Plan) -> str:
    """A restoration of the same moment has the same name; and of messages by their ids, whichever they are."""
    if plan.declared is None:
        return f"{plan.queue}, by id"
    return f"{plan.queue}@{format_time(plan.time_ms)}/{plan.offset}"


async def restore(
    broker: "Broker", session: "Session", past: PastProcess, history: History, plan: Plan, target: str, name: str
) -> Restored:
    """Publish what the plan wants into `target`, in the session's vhost. A target that is gone and is the queue itself
    is declared and bound as it was; the broker's own queues are none. NotFound, AccessRefused, ResourceLocked as for
    any declaration; ConnectionForced: the node was lost meanwhile; ProcessEnded."""
    broker.access.check(session.user, session.vhost, "write", "queue", target)
    declared = False
    if is_hidden(target):
        raise NotFound(f"no queue '{target}' in vhost '{session.vhost}'")
    if broker.queues.get(session.vhost, target) is None:
        if (session.vhost, target) != (plan.vhost, plan.queue) or plan.declared is None:
            raise NotFound(f"no queue '{target}' in vhost '{session.vhost}'")
        _, durable, auto_delete, arguments = plan.declared
        await broker.queues.declare(session, target, False, durable, False, auto_delete, arguments)
        declared = True
        await until_durable(broker)
    bound, lost = await bind_again(broker, session, target, to_bind(broker, session.vhost, plan, target, name))
    await until_durable(broker)
    partition = broker.queues.partition_for(session.vhost, target)
    came: Counter[str] = Counter()
    for number, page in pages(plan.wanted):
        bodies = await past.ask(Bodies(history, plan.partition, tuple(each.message_id for each in page)), session.user)
        events = [
            as_restored(plan, each, bodies[each.message_id], session.vhost, target, name, at)
            for at, each in enumerate(page, number)
        ]
        broker.sessions.check_open(session)
        came.update(await publish(broker, session, partition, events))
        broker.sessions.check_open(session)  # else they may not be in the queue
    return Restored(came["restored"], came["duplicate"], came["refused"], declared, bound, lost)


def to_bind(broker: "Broker", vhost: str, plan: Plan, target: str, name: str) -> tuple[Bound, ...]:
    """The bindings that are made: all where the queue itself is gone. Where it is there again as it was declared, and
    nothing came back under this name yet, the restoration was cut short before: those that are missing."""
    if (vhost, target) != (plan.vhost, plan.queue) or plan.declared is None:
        return ()
    queue = broker.queues.get(vhost, target)
    if queue is None:
        return plan.bindings
    declared = (queue.type, queue.durable, queue.auto_delete, queue.arguments)
    if queue.queue_id == plan.queue_id or declared != plan.declared:
        return ()
    if (name, plan.vhost, plan.queue, plan.queue_id) in queue.restored:
        return ()
    return missing(broker, queue, plan.bindings)


async def publish(broker: "Broker", session: "Session", partition: "Partition", events: list[Published]) -> list[str]:
    """What became of each, when all are durable."""
    answers = await asyncio.gather(*(partition.ask(session.actor, event) for event in events))
    await until_durable(broker)
    return [outcome(effects) for effects in answers]


async def until_durable(broker: "Broker") -> None:
    """Wait until all that was done so far is."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broker.turns.when_durable(lambda: None if done.done() else done.set_result(None))
    broker.turns.end()
    await done


def outcome(effects: list[Effect]) -> str:
    """Of a publish, by its effects (those of the deadlines that passed before it are of other messages)."""
    if any(isinstance(effect, Duplicate) for effect in effects):
        return "duplicate"
    return "refused" if any(isinstance(effect, Refuse) for effect in effects) else "restored"


def pages(wanted: tuple[Wanted, ...]) -> Iterator[tuple[int, list[Wanted]]]:
    """Pages of a size that memory bears, each with the number of its first."""
    page: list[Wanted] = []
    begin = weight = 0
    for number, each in enumerate(wanted):
        page.append(each)
        weight += each.size
        if len(page) >= PAGE_MESSAGES or weight >= PAGE_BYTES:
            yield begin, page
            page, begin, weight = [], number + 1, 0
    if page:
        yield begin, page


def as_restored(
    plan: Plan, was: Wanted, published: Published, vhost: str, target: str, name: str, number: int
) -> Published:
    origin = Origin(
        plan.vhost,
        plan.queue,
        plan.queue_id,
        was.message_id,
        "restored",
        number + 1,
        name,
        was.delivery_count,
        was.redelivered,
    )
    route = Route(vhost, published.route.exchange, published.route.routing_key, (target,))
    return replace(published, route=route, expiration_ms=was.left_ms, origin=origin)
