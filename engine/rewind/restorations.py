"""Restorations under way: the broker publishes the messages of a plan (restore_plan.py) into a queue.

    plan = await past.ask(RestoreRequest(history, "/", "orders", At(time_ms=...), LOST), user)     # in a worker
    restoration = Restoration(user, plan, "orders", name)
    with restorations.begun(restoration):
        result = await restorations.restore(session, past, history, restoration)                         # in the broker

A restored message is a `Published` with an origin (reason `restored`). It is a new message behind those in the queue,
in the old order, with its old routing key, properties, body and delivery count, and the time that it had left. With
the origin the history says who brought what back. A consumer sees it in a header, which replaces an earlier one:

    x-restored = {partition, id, at}    where the message was in the log, and the moment that was restored

The fold takes each message once under a restoration's name. So a restoration may be repeated, and a repetition finishes
one that was cut short: a deleted queue is declared, then bound, then filled, and each step is durable before the next.
A cancelled restoration ends behind a portion: what is back stays.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from rewindmq.engine.broker.access_control import Access
from rewindmq.engine.broker.exchanges import Exchanges
from rewindmq.engine.broker.open_sessions import OpenSessions
from rewindmq.engine.broker.queues import Queues
from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.errors import NotFound, ResourceError
from rewindmq.engine.keeping.location import Location
from rewindmq.engine.log.contract import NoAnswer
from rewindmq.engine.partition.flow_control import no_room
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.rewind.bindings_at import LostBinding, bind_again, missing
from rewindmq.engine.rewind.partition_visits import lineage_of
from rewindmq.engine.rewind.restore_plan import Bodies, Plan, RestoredMessage
from rewindmq.engine.rewind.worker import TooManyQuestions, WorkerPool
from rewindmq.projections.machine.data.effects import Duplicate, Effect, Refuse
from rewindmq.projections.rewind import format_time
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Malformed
from rewindmq.schemas.amqp.properties import MAX_PROPERTIES_BYTES, with_entry, without_restored
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import Bound
from rewindmq.schemas.values import Origin, Route

MOST_OF_USER: Final = 4  # restorations at once; each holds its plan, 160 bytes a message
MOST_RESTORATIONS: Final = 16
PAGE_MESSAGES = 500
PAGE_BYTES = 8 * 1024 * 1024
PORTIONS = 10  # a second, of a restoration with a rate
CROWDED_SECONDS = 0.02  # between two looks whether others crowd the log


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Numbers of messages by outcome; whether the queue was declared; the bindings that were made, and those that were
    not; whether it was cancelled before its end."""

    restored: int
    duplicates: int
    refused: int
    declared: bool
    bound: list[Bound]
    lost: list[LostBinding]
    cancelled: bool


class Restoration:
    """A restoration that is under way. `back`: so many of its messages are in the target."""

    def __init__(self, user: str, plan: Plan, target: str, name: str) -> None:
        self.user = user
        self.plan = plan
        self.target = target
        self.name = name
        self.back = 0
        self.ended = asyncio.Event()
        self._cancelled = asyncio.Event()

    def is_cancelled(self) -> bool:
        """Return True if `cancel` was called."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End it behind the portion that is under way."""
        self._cancelled.set()

    async def rest(self, seconds: float) -> None:
        """Sleep, unless it is cancelled meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._cancelled.wait(), seconds)


class Restorations:
    """The restorations that are under way at this broker."""

    def __init__(
        self,
        access: Access,
        sessions: OpenSessions,
        queues: Queues,
        exchanges: Exchanges,
        topology: Topology,
        turns: Turns,
        keeper: Keeper,
    ) -> None:
        self._access = access
        self._sessions = sessions
        self._queues = queues
        self._exchanges = exchanges
        self._topology = topology
        self._turns = turns
        self._keeper = keeper
        self._all: list[Restoration] = []

    @contextmanager
    def begun(self, restoration: Restoration) -> Iterator[None]:
        """Have it among them inside this context. TooManyQuestions: the user, or the broker, has too many."""
        of_user = sum(each.user == restoration.user for each in self._all)
        if of_user >= MOST_OF_USER or len(self._all) >= MOST_RESTORATIONS:
            raise TooManyQuestions(f"{of_user} restorations of yours are under way here, of {len(self._all)} in all")
        self._all.append(restoration)
        try:
            yield
        finally:
            self._all.remove(restoration)
            restoration.ended.set()

    def of(self, vhost: str, queue: str) -> list[Restoration]:
        """Return the restorations of a queue's messages."""
        return [each for each in self._all if (each.plan.vhost, each.plan.queue) == (vhost, queue)]

    async def restore(
        self,
        session: Session,
        past: WorkerPool,
        history: Location,
        restoration: Restoration,
        rate: int | None = None,
    ) -> RestoreResult:
        """Publish the plan's messages into the target in the session's vhost, at most `rate` a second. If the target is
        the queue itself and is gone, it is declared and bound as it was. The broker's own queues cannot be targets.

        Raises NotFound, AccessRefused and ResourceLocked as any declaration does; ResourceError: the disk has no room;
        ConnectionForced: the node was lost meanwhile; ProcessEnded; NoAnswer: the store of the messages does not
        answer."""
        plan, target, name = restoration.plan, restoration.target, restoration.name
        self._access.check(session, session.vhost, "write", "queue", target)
        declared = False
        if is_hidden(target):
            raise NotFound(f"no queue '{target}' in vhost '{session.vhost}'")
        await self.room(sum(each.size for each in plan.messages))
        await self._queues.entered(session, target)
        if self._queues.get(session.vhost, target) is None:
            if (session.vhost, target) != (plan.vhost, plan.queue) or plan.declared is None:
                raise NotFound(f"no queue '{target}' in vhost '{session.vhost}'")
            _, durable, auto_delete, arguments = plan.declared
            await self._queues.declare(session, target, False, durable, False, auto_delete, arguments)
            declared = True
            await self._until_durable()
        bound, lost = await bind_again(
            self._exchanges, self._topology, session, target, self.to_bind(session.vhost, plan, target, name)
        )
        await self._until_durable()
        came: Counter[str] = Counter()
        for number, page in pages(plan.messages):
            if restoration.is_cancelled():
                break
            bodies = await past.ask(
                Bodies(history, plan.partition, tuple(each.message_id for each in page)), session.user
            )
            if isinstance(bodies, NoAnswer):
                raise bodies
            events = [
                as_restored(plan, each, *bodies[each.message_id], session.vhost, target, name, at)
                for at, each in enumerate(page, number)
            ]
            step = len(events) if rate is None else max(1, rate // PORTIONS)
            for begin in range(0, len(events), step):
                if restoration.is_cancelled():
                    break
                portion = events[begin : begin + step]
                back = f"{number + begin} of {len(plan.messages)} messages are back"
                await self.room(sum(len(event.body) for event in portion), f"; {back}; ask again when there is room")
                self._sessions.check_open(session)
                self._access.check(session, session.vhost, "write", "queue", target)  # it may take days
                outcomes = Counter(await self.publish(session, target, portion))
                self._sessions.check_open(session)  # else they may not be in the queue
                came.update(outcomes)
                restoration.back = came["restored"] + came["duplicate"]
                if rate is not None:  # no consumer gets duplicates, nor what was refused
                    await restoration.rest(outcomes["restored"] / rate)
        cancelled = restoration.is_cancelled() and came.total() < len(plan.messages)
        return RestoreResult(came["restored"], came["duplicate"], came["refused"], declared, bound, lost, cancelled)

    def to_bind(self, vhost: str, plan: Plan, target: str, name: str) -> tuple[Bound, ...]:
        """Return the bindings that a restoration makes: all if the queue itself is gone; the missing ones if the queue
        exists again, declared as it was, and nothing came back under this name yet, because then a restoration was cut
        short."""
        if (vhost, target) != (plan.vhost, plan.queue) or plan.declared is None:
            return ()
        queue = self._queues.get(vhost, target)
        if queue is None:
            return plan.bindings
        declared = (queue.type, queue.durable, queue.auto_delete, queue.arguments)
        partition = self._queues.partition_for(vhost, target).machine.partition
        same = lineage_of(self._topology.placement, plan.vhost, plan.queue, queue.queue_id)
        now = same.lives or {(partition, queue.queue_id)}
        if (plan.partition, plan.queue_id) in now or declared != plan.declared:
            return ()
        if (plan.name_within(name), plan.vhost, plan.queue, plan.queue_id) in queue.restored:
            return ()
        return missing(self._topology, queue, plan.bindings)

    async def room(self, size: int, so_far: str = "") -> None:
        """Wait while others crowd the log. ResourceError: the disk has no room for `size` bytes."""
        flow = self._keeper.flow
        while self._turns.blocked is None and flow.crowded:
            await self._until_durable()
            await asyncio.sleep(CROWDED_SECONDS)
        reason = self._turns.blocked or (None if flow.has_room(size) else no_room(size))
        if reason is not None:
            raise ResourceError(f"publishing is blocked: {reason}{so_far}")

    def check_open(self, session: Session) -> None:
        """Raise ConnectionForced if the session ended meanwhile."""
        self._sessions.check_open(session)

    async def publish(self, session: Session, target: str, events: list[Published]) -> list[str]:
        """Publish into the queue `target`, and return the outcome of each when all are durable."""

        async def publish_one(event: Published) -> list[Effect]:
            partition = await self._queues.entered(session, target)
            return await partition.ask(session.actor, event)

        answers = await asyncio.gather(*map(publish_one, events))
        await self._until_durable()
        return [outcome(effects) for effects in answers]

    async def _until_durable(self) -> None:
        """Wait until everything that was done so far is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.when_durable(lambda: None if done.done() else done.set_result(None))
        self._turns.end()
        await done


def outcome(effects: list[Effect]) -> str:
    """The outcome of a publish by its effects. (Effects of deadlines that passed before it are of other messages.)"""
    if any(isinstance(effect, Duplicate) for effect in effects):
        return "duplicate"
    return "refused" if any(isinstance(effect, Refuse) for effect in effects) else "restored"


def pages(messages: tuple[RestoredMessage, ...]) -> Iterator[tuple[int, list[RestoredMessage]]]:
    """Pages of a size that memory bears, each with the number of its first message."""
    page: list[RestoredMessage] = []
    begin = weight = 0
    for number, each in enumerate(messages):
        page.append(each)
        weight += each.size
        if len(page) >= PAGE_MESSAGES or weight >= PAGE_BYTES:
            yield begin, page
            page, begin, weight = [], number + 1, 0
    if page:
        yield begin, page


def as_restored(
    plan: Plan,
    was: RestoredMessage,
    published_ms: int,
    published: Published,
    vhost: str,
    target: str,
    name: str,
    number: int,
) -> Published:
    """The publish that brings a message back."""
    origin = Origin(
        plan.vhost,
        plan.queue,
        queue_id=plan.queue_id,
        message_id=was.message_id,
        reason="restored",
        sequence=number + 1,
        restore=plan.name_within(name),
        delivery_count=was.delivery_count,
        redelivered=was.redelivered,
        partition=plan.home,
    )
    route = Route(vhost, published.route.exchange, published.route.routing_key, (target,))
    at_ms = published_ms if plan.declared is None else plan.time_ms  # by its id it comes back as it was published
    properties = with_restored(published.properties, plan.partition, was.message_id, at_ms)
    return replace(published, route=route, properties=properties, expiration_ms=was.left_ms, origin=origin)


def with_restored(properties: bytes, partition: str, message_id: int, at_ms: int) -> bytes:
    """The properties with the header x-restored. It is left out where a frame would have no room for it."""
    fields = {
        "partition": tables.longstr(partition),
        "id": b"l" + message_id.to_bytes(8, "big"),
        "at": tables.longstr(format_time(at_ms)),
    }
    table = b"F" + tables.with_length(tables.join(fields))
    own = without_restored(properties)
    try:
        marked = with_entry(own, b"x-restored", table)
    except Malformed:
        return properties
    return marked if len(marked) <= MAX_PROPERTIES_BYTES else own
