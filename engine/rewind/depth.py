"""The depth of a queue over a range of time: its length and its outcomes at evenly spaced moments.

    found = depth(history, "/", "orders", None, At(time_ms=...), At(time_ms=...), 200, marks, deadline)

    state --fold--> point 0 --fold--> point 1 --fold--> ... point n
                            ticks: what people did meanwhile (a purge, a policy, a restart, a restoration)

One fold runs from the nearest snapshot before the range. A point is the state at its time (projections/rewind.py), and
the outcomes since the previous point are the difference of the machine's own counters. So the fold applies publishes
that are alike together.
The fold leaves waypoints behind, for the moments that the reader of the chart asks for next.

Points and ticks are bounded in number, and time by a deadline: an answer that is not `complete` has the points up to
then. A range that begins before the history begins with the history.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader, Location, retry_if_trimmed
from rewindmq.engine.rewind.outcomes import Deadline, OutOfTime, timely
from rewindmq.engine.rewind.partition_visits import lineage_of, log_at, partition_visits
from rewindmq.engine.rewind.queue_at import waypoints_of
from rewindmq.projections.history.outcomes import takers
from rewindmq.projections.machine.data.effects import Effect, Forget, QueueGone
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import MOVED, PURGED, REMOVED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import RecordGroup, decoder_for, drive, events_of
from rewindmq.projections.rewind import At, BelowFloor, OutsideHistory, begin_ms, format_time, oldest, state_at
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.waypoints import Waypoints
from rewindmq.schemas.events import (
    BrokerStarted,
    Event,
    NodeLost,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
)
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused, QueueResumed
from rewindmq.schemas.values import BROKER, Actor, Policy

MOST_TICKS = 500
RESTORED = "restored"


@dataclass(slots=True)
class DepthTick:
    """An event that a person looks for. `kind`: purged, policy, restart, mark, restored, declared or deleted.

    `count`: the number of messages of a purge or a restoration. `why`: the reason that the user gave, unless the text
    is it."""

    time_ms: int
    offset: int
    kind: str
    text: str
    user: str
    count: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """The queue at a moment. `offset`: of the first event behind it. `ready`, `unacked`: None while there is no queue.

    `outcomes`: by name, how many messages came and went since the point before."""

    time_ms: int
    offset: int
    ready: int | None
    unacked: int | None
    outcomes: dict[str, int]


@dataclass(slots=True)
class Depth:
    """The answer. `floor`: the offset at which the history begins, if the range would begin before it.

    `more_ticks`: so many are not in `ticks`. `complete`: the end of the range was reached."""

    partition: str
    points: list[Point] = field(default_factory=list)
    ticks: list[DepthTick] = field(default_factory=list)
    more_ticks: int = 0
    floor: int | None = None
    complete: bool = True


class NeverThere(OutsideHistory):
    """The queue did not exist in the range. The text says so, for people."""


def depth(
    history: Location,
    vhost: str,
    queue: str,
    queue_id: int | None,
    start: At,
    end: At,
    count: int,
    marks: Mapping[str, Sequence[DepthTick]],
    deadline: Deadline,
) -> Depth:
    """The depth of a queue at `count` moments from `start` to `end`. `queue_id`: only of this incarnation.

    Of a queue that moved meanwhile: from its arrival in the last partition on. `marks`: those that the user may see, as
    ticks by partition. Raises NeverThere, OutsideHistory, LogError."""

    def ask() -> Depth:
        reader = history.open()
        log, begun = place_of(reader, vhost, queue, start, end)
        same = None if queue_id is None else lineage_of(reader.placement, vhost, queue, queue_id).ids_in(log.name)
        fold = _Fold(log, vhost, queue, same, deadline, waypoints_of(history))
        fold.run(history.snapshots, begun, end, count)
        found = fold.found
        if fold.never_there() and found.complete:
            first, last = (format_time(found.points[at].time_ms) for at in (0, -1))
            raise NeverThere(f"no queue '{queue}' in vhost '{vhost}' from {first} to {last}")
        begin, behind = found.points[0].offset, found.points[-1].offset
        _add_ticks(found, [each for each in marks.get(log.name, ()) if begin <= each.offset <= behind])
        return found

    return retry_if_trimmed(ask)


def place_of(reader: HistoryReader, vhost: str, queue: str, start: At, end: At) -> tuple[HistoryPartition, At]:
    """The partition in which the queue was at the end of the range, and where the range begins there.

    Raises BetweenPartitions, OutsideHistory."""
    log = log_at(reader, vhost, queue, end)
    came_ms = next(
        (each.since_ms for each in reversed(partition_visits(reader, vhost, queue)) if each.log is log), None
    )
    if came_ms is None:
        return log, start
    if start.partition not in (None, log.name) or (start.time_ms is not None and start.time_ms < came_ms):
        return log, At(time_ms=came_ms)
    return log, start


def _add_ticks(found: Depth, marks: Sequence[DepthTick]) -> None:
    ticks = sorted((*found.ticks, *marks), key=lambda each: (each.offset, each.time_ms))
    found.ticks = ticks[:MOST_TICKS]
    found.more_ticks += len(ticks) - len(found.ticks)


def times_between(start_ms: int, end_ms: int, count: int) -> list[int]:
    """At most `count` times, evenly spaced, with both ends. Times are whole milliseconds."""
    steps = max(1, min(count - 1, end_ms - start_ms))
    return [start_ms + (end_ms - start_ms) * step // steps for step in range(steps + 1)]


class _Fold:
    def __init__(
        self,
        log: HistoryPartition,
        vhost: str,
        queue: str,
        queue_ids: frozenset[int] | None,
        deadline: Deadline,
        waypoints: Waypoints,
    ) -> None:
        self.log = log
        self.waypoints = waypoints
        self.durable = log.durable_offset
        self.vhost = vhost
        self.name = queue
        self.queue_ids = queue_ids  # None: any queue of this name
        self.deadline = deadline
        self.found = Depth(log.name)
        self.met: list[tuple[Queue, dict[str, int]]] = []  # since the point before; counters as they were there

    def run(self, snapshots: Snapshots | None, start: At, end: At, count: int) -> None:
        """Fold the range, a point after the other. Raises OutsideHistory, LogError."""
        self.machine, start_ms = self._begun(snapshots, start)
        end_ms, behind = self._end_of(end)
        if end_ms <= start_ms:
            raise OutsideHistory(
                f"{self.log.name}: the range ends at {format_time(end_ms)}, and begins at {format_time(start_ms)}"
            )
        self._meet(self._queue(), {})
        self._add_point(start_ms)
        groups: Iterator[RecordGroup] = timely(self.log, self.machine.next_offset, behind, self.deadline)
        try:
            for time_ms in times_between(start_ms, end_ms, count)[1:]:
                self.deadline.check()
                groups = self._fold_to(groups, min(behind, self.log.offset_at(time_ms)))
                effects: list[Effect] = []
                self.machine.advance(time_ms, effects)
                self._note_gone(self.machine.next_offset, time_ms, BROKER, effects)
                self._add_point(time_ms)
        except OutOfTime:
            self.found.complete = False

    def never_there(self) -> bool:
        """Return True if no point and no tick shows the queue."""
        return all(point.ready is None and not point.outcomes for point in self.found.points) and not any(
            tick.kind in ("declared", "deleted") for tick in self.found.ticks
        )

    def _begun(self, snapshots: Snapshots | None, start: At) -> tuple[Machine, int]:
        """The machine at the beginning of the range, and the time there."""
        try:
            machine = state_at(self.log, snapshots, start, self.waypoints, self.durable)
        except BelowFloor as error:
            self.found.floor = error.start
            # Each point is behind all events of its millisecond. The history may begin between them.
            return self._begun(snapshots, At(time_ms=oldest(self.log).log_ms))
        if start.time_ms is None:
            return machine, machine.log_ms
        first_ms = begin_ms(self.log) if machine.next_offset == self.log.start_offset == 0 else None
        return machine, start.time_ms if first_ms is None else max(start.time_ms, first_ms)

    def _end_of(self, end: At) -> tuple[int, int]:
        """The time at which the range ends, and the offset behind its last event."""
        if end.time_ms is not None:
            return end.time_ms, self.log.durable_offset
        assert end.offset is not None, "a moment is a time or an offset"
        if not self.machine.next_offset < end.offset <= self.log.next_offset:
            raise OutsideHistory(f"{self.log.name}: the end {end.offset} lies before the beginning, or after now")
        time_ms = next((at_ms for _, at_ms, _, _ in events_of(self.log, end.offset - 1)), self.machine.log_ms)
        return time_ms, end.offset

    def _fold_to(self, groups: Iterator[RecordGroup], offset: int) -> Iterator[RecordGroup]:
        if offset <= self.machine.next_offset:
            return groups
        decoder = decoder_for(self.log)
        begun = end = self.machine.next_offset
        while end < offset:
            end = min(offset, self.waypoints.next_after(self.log.name, end))
            groups = drive(self.machine, groups, decoder, end, after=self._see, run=self._see_run)
            if begun < self.machine.next_offset <= self.durable:  # else only time has passed, since the point before
                self.waypoints.leave(self.machine)
        return groups

    # -- points -------------------------------------------------------------------------------------------------------

    def _queue(self) -> Queue | None:
        found = self.machine.queue(self.vhost, self.name)
        return found if found is not None and self._is_mine(found) else None

    def _meet(self, queue: Queue | None, counters: dict[str, int]) -> None:
        if queue is not None and all(queue is not each for each, _ in self.met):
            self.met.append((queue, counters))

    def _add_point(self, time_ms: int) -> None:
        queue = self._queue()
        outcomes: dict[str, int] = {}
        for each, before in self.met if self.found.points else []:
            for name, number in each.counters.items():
                if number != before.get(name, 0):
                    outcomes[name] = outcomes.get(name, 0) + number - before.get(name, 0)
        self.met = [] if queue is None else [(queue, queue.counters)]
        ready, unacked = (None, None) if queue is None else (queue.messages_ready, queue.messages_unacked)
        self.found.points.append(Point(time_ms, self.machine.next_offset, ready, unacked, outcomes))

    # -- ticks --------------------------------------------------------------------------------------------------------

    def _see(self, offset: int, time_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        tell = _TICKS.get(type(event))
        if tell is not None:
            tell(self, DepthTick(time_ms, offset, "", "", actor.user, why=actor.reason), actor, event, effects)
        if effects:
            self._note_gone(offset, time_ms, actor, effects)

    def _see_run(
        self,
        offset: int,
        time_ms: int,
        actor: Actor,
        event: Published,
        _sizes: Sequence[int],
        _records: Sequence[bytes],
        effects: list[Effect],
    ) -> None:
        self._see(offset, time_ms, actor, event, effects)

    def _note_gone(self, offset: int, time_ms: int, actor: Actor, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is QueueGone and self._is_mine(effect.queue):
                text = f"deleted ({effect.reason})"
                self._add(DepthTick(time_ms, offset, "deleted", text, actor.user, why=actor.reason))

    def _is_mine(self, queue: Queue) -> bool:
        named = (queue.vhost, queue.name) == (self.vhost, self.name)
        return named and (self.queue_ids is None or queue.queue_id in self.queue_ids)

    def _add(self, tick: DepthTick) -> None:
        if len(self.found.ticks) < MOST_TICKS:
            self.found.ticks.append(tick)
        else:
            self.found.more_ticks += 1

    def published(self, tick: DepthTick, actor: Actor, event: Published, effects: list[Effect]) -> None:
        """A restored message: those of one restoration that follow each other are one tick."""
        origin = event.origin
        if origin is None or origin.reason != RESTORED:
            return
        if not any(self._is_mine(each) for each in takers(self.machine, tick.offset, actor, event, effects)):
            return
        ticks = self.found.ticks
        last = ticks[-1] if ticks and ticks[-1].kind == RESTORED else None
        if last is None or (last.text, last.user) != (origin.restore, tick.user):
            tick.kind, tick.text = RESTORED, origin.restore
            self._add(tick)
            last = tick
        last.count += 1

    def purged(self, tick: DepthTick, actor: Actor, event: Purged, effects: list[Effect]) -> None:
        """A purge of the queue."""
        if (event.vhost, event.queue) == (self.vhost, self.name) and self._queue() is not None:
            gone = (each for each in effects if type(each) is Forget and each.reason == PURGED)
            tick.kind, tick.count = "purged", sum(len(each.message_ids) for each in gone)
            self._add(tick)

    def removed(self, tick: DepthTick, actor: Actor, event: MessageRemoved, effects: list[Effect]) -> None:
        """An operator took messages out."""
        if (event.vhost, event.queue) == (self.vhost, self.name) and self._queue() is not None:
            gone = (each for each in effects if type(each) is Forget and each.reason in (REMOVED, MOVED))
            tick.kind, tick.text = MOVED if event.moved else REMOVED, event.reason
            tick.count = sum(len(each.message_ids) for each in gone)
            self._add(tick)

    def paused(self, tick: DepthTick, actor: Actor, event: QueuePaused | QueueResumed, effects: list[Effect]) -> None:
        """A pause of the queue, or its end."""
        if (event.vhost, event.queue) == (self.vhost, self.name) and self._queue() is not None:
            tick.kind, tick.text = ("paused", event.reason) if isinstance(event, QueuePaused) else ("resumed", "")
            self._add(tick)

    def policy(self, tick: DepthTick, actor: Actor, event: PolicyApplied, effects: list[Effect]) -> None:
        """Another policy, or none."""
        if (event.vhost, event.queue) == (self.vhost, self.name) and self._queue() is not None:
            tick.kind, tick.text = "policy", policies_in_words(event.policy, event.operator_policy)
            self._add(tick)

    def declared(self, tick: DepthTick, actor: Actor, event: QueueDeclared, effects: list[Effect]) -> None:
        """A new incarnation of the queue."""
        queue = self._queue()
        if queue is not None and queue.queue_id == tick.offset:
            self._meet(queue, {})
            came = f", moved from queues-{event.moved_from.partition}" if event.moved_from is not None else ""
            tick.kind, tick.text = "declared", f"declared ({event.type}{came})"
            self._add(tick)

    def started(self, tick: DepthTick, actor: Actor, event: BrokerStarted, effects: list[Effect]) -> None:
        """A node began to run."""
        tick.kind = "restart"
        tick.text = f"{event.node} started, {event.version}" + (", after a crash" if event.after_crash else "")
        self._add(tick)

    def lost(self, tick: DepthTick, actor: Actor, event: NodeLost, effects: list[Effect]) -> None:
        """A node was lost."""
        tick.kind, tick.text = "restart", f"{event.node} was lost"
        self._add(tick)


def policies_in_words(policy: Policy | None, operator_policy: Policy | None) -> str:
    """The policies of a queue, for people."""
    named = [] if policy is None else [f"policy {policy.name} {policy.definition}"]
    if operator_policy is not None:
        named.append(f"operator policy {operator_policy.name} {operator_policy.definition}")
    return ", ".join(named) or "no policy"


# Methods by the type of event; each is called with what is known of the tick, and adds it or not
_TICKS: dict[type, Callable[..., None]] = {
    Published: _Fold.published,
    Purged: _Fold.purged,
    MessageRemoved: _Fold.removed,
    QueuePaused: _Fold.paused,
    QueueResumed: _Fold.paused,
    PolicyApplied: _Fold.policy,
    QueueDeclared: _Fold.declared,
    BrokerStarted: _Fold.started,
    NodeLost: _Fold.lost,
}
