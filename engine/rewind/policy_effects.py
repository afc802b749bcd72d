"""The immediate effects of a change of a policy on the messages that are queued now in its virtual host.

    change = PolicySet("/", "short", "^orders", '{"max-length":10}', 0, "all")
    found = policy_effects(history, change, now_ms, 20, deadline)

The change is applied to a topology and to machines that are folded here for this question, by the rules that the broker
has (projections/topology, projections/machine). So no rule is stated twice, and nothing is changed.

Partitions are folded one after the other, up to now. Memory is the state of the largest partition, and the messages
that leave its longest queue. If time runs out, the answer names the partitions that it has not seen.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rewindmq.engine.keeping.location import HistoryPartition, Location, retry_if_trimmed
from rewindmq.engine.rewind.outcomes import Deadline, OutOfTime
from rewindmq.engine.rewind.queue_at import waypoints_of
from rewindmq.projections.machine.data.effects import DeadLetter, Effect, Forget
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.limits import refuses
from rewindmq.projections.rewind import At, RewindError, state_at
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.projections.topology.outstanding_policies import outstanding
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import PolicyApplied
from rewindmq.schemas.metadata_events import OperatorPolicyCleared, OperatorPolicySet, PolicyCleared, PolicySet
from rewindmq.schemas.values import BROKER, Policy

Change = PolicySet | PolicyCleared | OperatorPolicySet | OperatorPolicyCleared


@dataclass(slots=True)
class QueueEffect:
    """A queue whose policy would be another one. `messages`: ready and unacked, before.

    `before`, `after`: the policy of the changed kind. `removed`: messages that would leave at once, by outcome, rule.
    `refuses`: the queue would refuse the next message."""

    vhost: str
    queue: str
    messages: int
    before: Policy | None
    after: Policy | None
    removed: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead_lettered: int = 0
    refuses: bool = False

    @property
    def weight(self) -> tuple[int, bool, int]:
        """The harm to the queue, for comparison: a greater weight is worse."""
        return self.removed.total(), self.refuses, self.messages


@dataclass(slots=True)
class PolicyEffects:
    """The effects of the change. `matched`, `matched_now`: queues with this policy after the change, and now.

    `changed`: queues whose policy would have another name or definition. `refusing`: queues that would refuse the next
    message. `worst`: queues that would lose most, the worst first. `not_seen`: partitions that time did not allow."""

    matched: int = 0
    matched_now: int = 0
    changed: int = 0
    refusing: int = 0
    removed: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead_lettered: int = 0
    worst: list[QueueEffect] = field(default_factory=list)
    not_seen: list[str] = field(default_factory=list)


def policy_effects(history: Location, change: Change, now_ms: int, most: int, deadline: Deadline) -> PolicyEffects:
    """The effects of a change at this time, with at most `most` queues. Raises RewindError, LogError."""

    def ask() -> PolicyEffects:
        reader = history.open()
        topology = reader.topology()
        nonsense = topology.apply(topology.next_offset, now_ms, BROKER, change)
        if nonsense:
            raise RewindError(nonsense)
        trial = _Trial(topology, change, most, deadline)
        for log in reader.queues:
            trial.see(history, log, now_ms)
        return trial.found

    return retry_if_trimmed(ask)


class _Trial:
    def __init__(self, topology: Topology, change: Change, most: int, deadline: Deadline) -> None:
        self.topology = topology
        self.change = change
        self.most = most
        self.deadline = deadline
        self.operator = isinstance(change, OperatorPolicySet | OperatorPolicyCleared)
        self.found = PolicyEffects()

    def see(self, history: Location, log: HistoryPartition, now_ms: int) -> None:
        """Try the change on a partition. Raises OutsideHistory, LogError."""
        found = self.found
        try:
            self.deadline.check()
            end = log.durable_offset
            machine = state_at(log, history.snapshots, At(offset=end), waypoints_of(history), end)
            ignored: list[Effect] = []
            machine.advance(now_ms, ignored)
            number, moves = number_of(log.name), self.topology.placement.moves
            for queue in machine.queues():
                left = moves.get((queue.vhost, queue.name), ())
                if (number, queue.queue_id) in [(move.source, move.from_id) for move in left]:
                    continue  # what is left here of a queue that is in another partition, where it counts
                if queue.vhost == self.change.vhost:
                    self.deadline.check()
                    self.count(machine, queue)
        except OutOfTime:
            found.not_seen.append(log.name)

    def count(self, machine: Machine, queue: Queue) -> None:
        """Note what the change does to a queue."""
        found = self.found
        applied = outstanding(self.topology, queue)
        before = self.policy_of(queue)
        after = before if applied is None else self.policy_of(applied)
        found.matched_now += before is not None and before.name == self.change.name
        found.matched += after is not None and after.name == self.change.name
        if applied is None or said(before) == said(after):
            return
        found.changed += 1
        effect = self.tried(machine, queue, applied, before, after)
        found.removed += effect.removed
        found.dead_lettered += effect.dead_lettered
        found.refusing += effect.refuses
        found.worst = heapq.nlargest(self.most, [*found.worst, effect], key=lambda each: each.weight)

    def tried(
        self, machine: Machine, queue: Queue, applied: PolicyApplied, before: Policy | None, after: Policy | None
    ) -> QueueEffect:
        """Apply the event to the machine, and say what left the queue."""
        messages = queue.messages_ready + queue.messages_unacked
        effect = QueueEffect(queue.vhost, queue.name, messages, before, after)
        effects: list[Effect] = []
        machine.apply(machine.next_offset, machine.log_ms, BROKER, applied, effects)
        for each in _of(effects, queue):
            if isinstance(each, Forget):
                effect.removed[each.reason, each.rule] += len(each.message_ids)
            else:
                effect.dead_lettered += len(each.message_ids)
        effect.refuses = refuses(queue, 0)
        return effect

    def policy_of(self, having: Queue | PolicyApplied) -> Policy | None:
        """The policy of the kind that is changed."""
        return having.operator_policy if self.operator else having.policy


def said(policy: Policy | None) -> tuple[str, str] | None:
    """Return a policy's name and definition. The version is left out: setting the same policy again changes nothing."""
    return None if policy is None else (policy.name, policy.definition)


def _of(effects: list[Effect], queue: Queue) -> Iterator[Forget | DeadLetter]:
    """Return the effects by which messages left a queue. Effects of other queues' deadlines are left out."""
    return (each for each in effects if isinstance(each, Forget | DeadLetter) and each.queue is queue)
