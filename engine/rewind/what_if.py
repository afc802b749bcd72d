"""A policy's hypothetical effects on one queue: its recorded events, folded a second time under the policy.

    what_if(reader, snapshots, "/", "orders", None, candidate_for("orders", {"max-length": 1000}, None),
            start, end, 100, deadline)

The rules are Spark's (projections/what_if). The policy is active from `start` on. Both folds are at the same offset all
the time, so if time runs out, the answer is complete up to that offset.

Memory is twice the state of the queue's partition, and MOST_APART messages that ended in one of the two folds only.
"""

import heapq
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rewindmq.engine.keeping.location import HistoryPartition, HistoryReader
from rewindmq.engine.rewind.outcomes import Deadline, OutOfTime, timely
from rewindmq.engine.rewind.partition_visits import log_between, lowest, partition_visits
from rewindmq.engine.rewind.queue_at import NoSuchQueue
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.replay import decoder_for, drive
from rewindmq.projections.rewind import At, OutsideHistory, require_above_floor, state_at
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.what_if.alternative import Alternative, Candidate
from rewindmq.projections.what_if.later_outcomes import FateDifference, LaterOutcomes, TooManyApart, length
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import Actor

POLICY_NAME = "what-if"  # in rules: "policy what-if.max-length"
MOST_APART = 1_000_000  # messages, some 300 bytes each
SORTED_AT_ONCE = 10_000
TIME, MEMORY = "time", "memory"  # why an answer ends before its end


@dataclass(slots=True)
class World:
    """A queue in one of the two folds. `outcomes`: messages that ended, by outcome and rule ("": none)."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    greatest_depth: int = 0
    depth: int = 0  # at the end


@dataclass(slots=True)
class WhatIf:
    """A queue as it was, and as it would have been, from offset `start` up to `reached` (exclusive).

    `end`: the offset up to which the answer was wanted. `stopped`: why it was not reached (TIME, MEMORY). `changed`:
    messages by outcome and rule, before and after. `first`: those with the lowest ids."""

    partition: str
    start: int
    end: int
    reached: int
    before: World = field(default_factory=World)
    after: World = field(default_factory=World)
    changed: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    first: list[FateDifference] = field(default_factory=list)
    assumed: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None


def candidate_for(
    queue: str, definition: dict[str, object] | None, operator_definition: dict[str, object] | None
) -> Candidate:
    """The candidate that gives these policies to the queues of this name. None: the policy stays as recorded."""
    return Candidate(POLICY_NAME, f"^{re.escape(queue)}$", definition, operator_definition=operator_definition)


def what_if(
    reader: HistoryReader,
    snapshots: Snapshots | None,
    vhost: str,
    queue: str,
    queue_id: int | None,
    candidate: Candidate,
    start: At,
    end: At,
    most: int,
    deadline: Deadline,
) -> WhatIf:
    """The queue under the candidate between two moments, with at most `most` messages.

    `queue_id`: the only incarnation that the user may read; the answer begins at its declaration or later.
    Raises NoSuchQueue, LogError, OutsideHistory, BetweenPartitions."""
    log = log_between(reader, vhost, queue, start, end)
    begun, behind = offsets_between(log, start, end)
    if queue_id is not None:
        first = lowest(partition_visits(reader, vhost, queue), reader.placement, vhost, queue, queue_id).get(log)
        begun = behind if first is None else min(max(begun, first), behind)
    machine = state_at(log, snapshots, At(offset=begun))
    trial = _Trial(
        vhost, queue, LaterOutcomes(Alternative(candidate, machine), machine, (vhost, queue), MOST_APART), most
    )
    found = trial.found(log, begun, behind, deadline)
    if not trial.seen and found.stopped is None:
        raise NoSuchQueue(f"no queue '{queue}' in vhost '{vhost}' between these moments")
    return found


def offsets_between(log: HistoryPartition, start: At, end: At) -> tuple[int, int]:
    """The offsets from one moment to another one: events at either time belong to them. Raises OutsideHistory."""
    if start.time_ms is not None:
        require_above_floor(log, start.time_ms)
    first = log.offset_at(start.time_ms - 1) if start.time_ms is not None else start.offset or 0
    behind = log.offset_at(end.time_ms) if end.time_ms is not None else end.offset or 0
    behind = min(behind, log.durable_offset)
    backwards = None not in (start.time_ms, end.time_ms) and (start.time_ms or 0) > (end.time_ms or 0)
    if first > behind or backwards:
        raise OutsideHistory(f"{log.name}: the moments are in the wrong order, or lie after now")
    return first, behind


class _Trial:
    def __init__(self, vhost: str, queue: str, fates: LaterOutcomes, most: int) -> None:
        self.vhost = vhost
        self.queue = queue
        self.fates = fates
        self.most = most
        self.machine = fates.machine
        self.before = World(fates.ended_before)
        self.after = World(fates.ended_after)
        self.changed: Counter[tuple[str, str, str, str]] = Counter()
        self.first: list[FateDifference] = []
        self.new: list[FateDifference] = []
        self.seen = False
        self.measure()

    def found(self, log: HistoryPartition, begun: int, end: int, deadline: Deadline) -> WhatIf:
        """The answer for these offsets. Raises LogError."""
        decoder, stopped, reached = decoder_for(log), None, begun
        try:
            for group in timely(log, begun, end, deadline):
                drive(self.machine, (group,), decoder, after=self.event, undecodable=self.undecodable)
                self.keep(self.take())
            reached = end
        except OutOfTime:
            stopped, reached = TIME, self.machine.next_offset
        except TooManyApart:
            stopped, reached = MEMORY, self.machine.next_offset - 1
        self.keep(self.take())
        try:
            self.keep(self.fates.at_end())
        except TooManyApart:  # the candidate alone ends so many messages, at once
            stopped, reached = MEMORY, begun
        assumed = self.fates.alternative.assumed
        return WhatIf(
            partition=log.name,
            start=begun,
            end=end,
            reached=reached,
            before=self.before,
            after=self.after,
            changed=self.changed,
            first=self.first,
            assumed=assumed,
            stopped=stopped,
        )

    def event(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        """Called when the recorded fold has just applied an event."""
        self.new += self.fates.event(offset, timestamp_ms, actor, event, effects)
        self.measure()

    def undecodable(self, offset: int, _why: str) -> None:
        """Called when the recorded fold has just skipped a record."""
        self.fates.undecodable(offset)

    def measure(self) -> None:
        """Look how long the queue is in both folds."""
        for machine, world in ((self.machine, self.before), (self.fates.alternative.machine, self.after)):
            world.depth = length(machine, self.vhost, self.queue)
            world.greatest_depth = max(world.greatest_depth, world.depth)
        self.seen = self.seen or self.machine.queue(self.vhost, self.queue) is not None

    def take(self) -> list[FateDifference]:
        """The differences since the last call."""
        new, self.new = self.new, []
        return new

    def keep(self, found: Iterable[FateDifference]) -> None:
        """Count these differences, and keep the first."""
        gathered: list[FateDifference] = []
        for each in found:
            self.changed[each.before[0], each.before[2], each.after[0], each.after[2]] += 1
            gathered.append(each)
            if len(gathered) >= SORTED_AT_ONCE:
                self.sort_in(gathered)
                gathered = []
        self.sort_in(gathered)

    def sort_in(self, found: list[FateDifference]) -> None:
        """Keep those with the lowest ids."""
        self.first = heapq.nsmallest(self.most, self.first + found, key=lambda each: each.message_id)
