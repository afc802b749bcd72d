"""The plan of a restoration, made in a process of the past: a queue as it was, the messages that a purge or a deletion
took, or messages by their ids. The broker carries it out (restorations.py)."""

from collections import Counter
from dataclasses import dataclass, replace

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader, Location, OtherHistory, retry_if_trimmed
from rewindmq.engine.keeping.single_records import record_digest
from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.rewind.bindings_at import bindings_at
from rewindmq.engine.rewind.fates import fates_since
from rewindmq.engine.rewind.partition_visits import NOT_YET, PartitionVisit, first_in, log_named, partition_visits
from rewindmq.engine.rewind.queue_at import NoSuchQueue, folded_queue, published_at
from rewindmq.projections.machine.data.reasons import (
    ACKED,
    DELETED,
    DELIVERED,
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    MOVED,
    PURGED,
    REJECTED,
    REMOVED,
    TRANSIENT,
)
from rewindmq.projections.machine.machine import NewerHistory
from rewindmq.projections.replay import decoder_for, groups_of
from rewindmq.projections.rewind import At, OutsideHistory, RewindError, format_time
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Published, Purged, QueueDeleted
from rewindmq.schemas.metadata_events import Bound
from rewindmq.schemas.operator_events import MessageRemoved
from rewindmq.schemas.values import Actor, Argument

LOST = (EXPIRED, MAXLEN, REJECTED, DELIVERY_LIMIT, PURGED, REMOVED, DELETED, TRANSIENT)
CONSUMED = (ACKED, DELIVERED)
ELSEWHERE = (MOVED,)
THERE = ("ready", "unacked")
FATES = (*LOST, *CONSUMED, *ELSEWHERE, *THERE)

UNDONE: dict[str, type[Purged | QueueDeleted | MessageRemoved]] = {
    "purge": Purged,
    "delete": QueueDeleted,
    "remove": MessageRemoved,
}
# without messages that consumers held and rejected later
UNDONE_FATES = {"purge": (PURGED,), "delete": (DELETED,), "remove": (REMOVED,)}

NO_INCARNATION = -1
PORTIONS_APART_MS = 10_000  # the longest time between two portions of a removal


@dataclass(frozen=True, slots=True)
class RestoredMessage:
    """A message that is to come back, as it was then. `left_ms`: the time until it would have expired; None: never."""

    message_id: int
    size: int
    delivery_count: int
    redelivered: bool
    left_ms: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages that would come back, in order. `declared`: the queue as it was (type, durable, auto-delete,
    arguments), and its `bindings`. `fates`: how many of all messages that were in it met which fate since. A plan for
    messages by their ids has none of these three. `home`: the partition as `Origin` names it."""

    vhost: str
    queue: str
    queue_id: int
    partition: str
    offset: int
    time_ms: int
    declared: tuple[str, bool, bool, tuple[Argument, ...]] | None
    messages: tuple[RestoredMessage, ...]
    fates: dict[str, int]
    bindings: tuple[Bound, ...] = ()
    home: int = -1

    def name_within(self, name: str) -> str:
        """The name in the log of a restoration that is called `name`.

        A queue that moved has messages with the same ids in several partitions. None may be taken for another one."""
        return name if self.home < 0 else f"{name} ({self.partition})"


@dataclass(frozen=True, slots=True)
class NoPlan:
    """The reason why there is no plan, for people. `missing`: there was no such queue or event. `away`: what has the
    history does not answer. `foreign`: the ids are of another history. Else the request makes no sense."""

    reason: str
    missing: bool
    away: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A question to a worker: which messages are to come back?

    With a moment `at`: the messages that were in the queue then and have met one of `fates` since; only those among
    `ids`, if there are any. With `undo`: the same for the moment before the last purge, delete or remove. With
    neither: the messages that `ids` names, as they were published, with any fate."""

    history: Location
    vhost: str
    queue: str
    at: At | None
    undo: str
    fates: tuple[str, ...]
    ids: frozenset[int]
    incarnation: int | None = None  # a queue id; None: the queue that bore the name then
    partition: str | None = None  # the one that `ids` are of; None: any in which the queue was
    records: tuple[tuple[int, str], ...] = ()  # ids, and the `record_digest` that they have where they were found

    def answer(self) -> Plan | NoPlan:
        """Make the plan, in the worker."""
        try:
            return retry_if_trimmed(self._plan)
        except NoSuchQueue as error:
            return NoPlan(str(error), True)
        except NoAnswer as error:
            return NoPlan(str(error), False, True)
        except OtherHistory as error:
            return NoPlan(str(error), False, foreign=True)
        except (RewindError, LogError, NewerHistory, UndecodableRecord) as error:
            return NoPlan(str(error), False)

    def _plan(self) -> Plan:
        reader = self.history.open()
        if self.at is None and not self.undo:
            return self._named(reader)
        at = self.at
        if at is None:
            at = self._undone(reader)
        log, machine, queue = folded_queue(self.history, reader, self.vhost, self.queue, at, self.incarnation)
        offset, clock_ms, time_ms = machine.next_offset, machine.clock_ms, machine.log_ms  # before the fold goes on
        there = [
            RestoredMessage(
                view.message_id,
                view.size,
                view.delivery_count,
                view.redelivered,
                None if view.expires_ms is None else max(1, view.expires_ms - clock_ms),
            )
            for view in queue.messages()
        ]
        declared = (queue.type, queue.durable, queue.auto_delete, queue.arguments)
        ids = {each.message_id for each in there}
        became = fates_since(reader, self.history.snapshots, log, machine, queue, ids)
        messages = tuple(
            each
            for each in there
            if became[each.message_id] in self.fates and (not self.ids or each.message_id in self.ids)
        )
        bindings = bindings_at(reader.metadata, self.history.snapshots, log, self.vhost, self.queue, queue.queue_id, at)
        return Plan(
            self.vhost,
            self.queue,
            queue.queue_id,
            log.name,
            offset,
            time_ms,
            declared,
            messages,
            dict(Counter(became[each.message_id] for each in there)),
            bindings,
            self._home(reader, log),
        )

    def _home(self, reader: HistoryReader, log: HistoryPartition) -> int:
        return reader.placement.as_origin(self.vhost, self.queue, number_of(log.name))

    def _stays(self, reader: HistoryReader) -> list[tuple[PartitionVisit, int]]:
        """The partitions of the queue, the newest first, with the offset of its declaration in each."""
        every = partition_visits(reader, self.vhost, self.queue)
        firsts = [first_in(each, reader.placement, self.vhost, self.queue, self.incarnation) for each in every]
        found = [(each, first) for each, first in zip(every, firsts, strict=True) if first is not None]
        return [(each, first) for each, first in reversed(found) if each.since_ms != NOT_YET]

    def _named(self, reader: HistoryReader) -> Plan:
        """The plan for messages by their ids. All are of one partition, in which the queue is or was."""
        plans: list[Plan] = []
        error: Exception | None = None
        for log, start in {stay.log: first for stay, first in self._stays(reader)}.items():
            if self.partition not in (None, log.name):
                continue
            try:
                plans.append(replace(self._named_in(log, start), home=self._home(reader, log)))
            except (OutsideHistory, UndecodableRecord) as problem:
                error = error or problem
        if len(plans) > 1:
            places = " and ".join(each.partition for each in plans)
            raise OutsideHistory(
                f"queue '{self.queue}' moved, and has messages with these ids in {places}: give a moment"
            )
        if not plans:
            raise error or OutsideHistory(f"queue '{self.queue}' has no such messages")
        return plans[0]

    def _named_in(self, log: HistoryPartition, start: int) -> Plan:
        messages = []
        time_ms = 0
        for message_id, digest in self.records:
            if message_id >= log.next_offset or record_digest(log, message_id) != digest:
                raise OtherHistory(
                    f"message {message_id} of {log.name} is another one in this broker's history: the ids are of"
                    " another history, or of one that branched off before. Restore into the broker whose history it is"
                )
        beyond = [each for each in self.ids if not start <= each < log.next_offset]
        if beyond:
            raise OutsideHistory(f"{log.name} has no message {min(beyond)}")
        for message_id, (published_ms, event) in published_at(log, self.ids):
            route = event.route
            if route.vhost != self.vhost or self.queue not in route.queues:
                raise OutsideHistory(f"message {message_id} was not published to queue '{self.queue}'")
            time_ms = max(time_ms, published_ms)
            messages.append(RestoredMessage(message_id, event.body_size, 0, False, event.expiration_ms))
        return Plan(
            self.vhost,
            self.queue,
            NO_INCARNATION,
            log.name,
            log.next_offset,
            time_ms,
            None,
            tuple(messages),
            {},
        )

    def _undone(self, reader: HistoryReader) -> At:
        """The moment of the last purge, deletion or removal of the requested incarnation. NoSuchQueue."""
        for stay, first in self._stays(reader):
            log, end = stay.log, None
            start = max(log.start_offset, first)
            if stay.since_ms is not None:  # what happened here before is told with an older stay
                start = max(start, log.offset_at(stay.since_ms - 1))
            if stay.until_ms is not None:  # the queue was deleted here when it had moved
                end = log.offset_at(stay.until_ms - 1)
            found = self._undone_in(log, start, end)
            if found >= 0:
                return At(offset=found, partition=log.name)
        what = "remove messages of" if self.undo == "remove" else self.undo
        raise NoSuchQueue(f"nobody has asked to {what} queue '{self.queue}' in vhost '{self.vhost}'")

    def _undone_in(self, log: HistoryPartition, start: int, end: int | None) -> int:
        """The offset of the last such event; -1: there is none."""
        kind, found = UNDONE[self.undo], -1
        decode = decoder_for(log).decode
        before: _Portion | None = None
        for offsets, records, times in groups_of(log, start, end):
            for index, (offset, record) in enumerate(zip(offsets, records, strict=True)):
                if offset < start or (end is not None and offset >= end):
                    continue
                try:
                    envelope_ms, actor, event = decode(record, False)
                except UndecodableRecord:
                    continue
                if not isinstance(event, Purged | QueueDeleted | MessageRemoved):
                    continue
                if (event.vhost, event.queue) != (self.vhost, self.queue):
                    continue
                if isinstance(event, MessageRemoved) and not event.moved:
                    portion = _Portion(envelope_ms if times is None else times[index], actor, event)
                    if kind is MessageRemoved and not portion.follows(before):
                        found = offset
                    before = portion
                elif isinstance(event, kind) and not isinstance(event, MessageRemoved):
                    found = offset
                if self.incarnation is not None and isinstance(event, QueueDeleted):
                    return found
        return found


@dataclass(frozen=True, slots=True)
class _Portion:
    """A removal, or a portion of a large one: an event names a thousand messages at most."""

    time_ms: int
    actor: Actor
    event: MessageRemoved

    def follows(self, before: "_Portion | None") -> bool:
        """Return True if both are portions of one removal: a client asks for one after the other, and ids ascend."""
        return (
            before is not None
            and (before.actor, before.event.reason) == (self.actor, self.event.reason)
            and self.time_ms - before.time_ms <= PORTIONS_APART_MS
            and bool(before.event.messages and self.event.messages)
            and before.event.messages[-1][1] < self.event.messages[0][0]
        )


@dataclass(frozen=True, slots=True)
class Bodies:
    """A question to a worker: the messages themselves, read from the log."""

    history: Location
    partition: str
    ids: tuple[int, ...]

    def answer(self) -> "dict[int, tuple[int, Published]] | NoAnswer":
        """Read the messages with the times of their publishes, in the worker."""
        try:
            reader = self.history.open()
            log = log_named(reader, self.partition)
            return dict(published_at(log, self.ids))
        except NoAnswer as error:
            return error


def name_of(plan: Plan) -> str:
    """The name of a restoration, unless the client chooses one: the same for the same moment. All restorations of a
    queue's messages by their ids share one name."""
    if plan.declared is None:
        return f"{plan.queue}, by id"
    return f"{plan.queue}@{format_time(plan.time_ms)}/{plan.offset}"
