"""Policies and operator policies: set, cleared, and applied to the queues that they match.

Rules of this file
- Every change is an event in the metadata log, with the user who made it.
- A change is applied at once: every queue whose effective policy is now another one gets a `PolicyApplied` event in its
  own partition (S-028, S-167).
- A node folds the partitions of all queues that a change may concern. A pattern matches any names, and another node may
  have declared such a queue a moment ago: so these are all partitions, unless the patterns are plain names.
- A policy's keys: the table in projections/machine/rules/keys.py. Which policy applies, and how two merge with the
  arguments: projections/machine/rules/settings.py.
"""

import json
import re
from collections import deque
from collections.abc import Sequence
from typing import Final

from rewindmq.engine.broker.queues import queues_in
from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.broker.vhosts import check_vhost
from rewindmq.engine.errors import NotFound, PreconditionFailed
from rewindmq.engine.host.eager import to_the_end
from rewindmq.engine.host.slices import Pace, in_slices
from rewindmq.engine.partition.lifecycle import Nodes
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.routing.homes import Homes
from rewindmq.engine.upgrades.since_version import require
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.rules.keys import DEDUPLICATES
from rewindmq.projections.machine.rules.settings import REJECT_PUBLISH, REJECT_PUBLISH_DLX
from rewindmq.projections.rules.policy_rules import (
    apply_to_problem,
    definition_problem,
    pattern_problem,
    priority_problem,
)
from rewindmq.projections.rules.queue_arguments import argument_of
from rewindmq.projections.topology.outstanding_policies import outstanding
from rewindmq.projections.topology.policies import PolicyRule
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import PolicyApplied
from rewindmq.schemas.metadata_events import OperatorPolicyCleared, OperatorPolicySet, PolicyCleared, PolicySet
from rewindmq.schemas.values import Actor

EXCHANGES = "exchanges"
REFUSALS: Final = (REJECT_PUBLISH, REJECT_PUBLISH_DLX)
PLAIN_NAME = re.compile(r"\^((?:[A-Za-z0-9_/:@-]|\\\.)+)\$")  # a pattern that matches one name
MOST_REMEMBERED: Final = 1_000  # policies that ended; after more of them every queue may refuse

Key = tuple[type, str, str]  # PolicySet or OperatorPolicySet, vhost, policy name


class EffectivePolicies:
    """Keeps the policies that each queue has in step with those that match it.

    A node that has paused a partition cannot see which policy is active there. A policy that ended stays active until a
    later `PolicyApplied` is in the partition. So the node remembers each ended policy that made queues refuse messages,
    until every queue is known to have been told (engine/cluster/policy_proofs.py)."""

    def __init__(
        self, topology: Topology, partitions: Sequence[Partition], homes: Homes, turns: Turns, nodes: Nodes
    ) -> None:
        self._topology = topology
        self._partitions = partitions
        self._homes = homes
        self._turns = turns
        self._nodes = nodes
        self._refusing = self._rules_that_refuse()
        # In order, each with the offset of the metadata log behind its end. The oldest makes room beyond the limit.
        self._ended: deque[tuple[int, PolicyRule]] = deque(maxlen=MOST_REMEMBERED + 1)

    def changed(self) -> None:
        """Remember the policies that the last event of the metadata log has ended."""
        before, self._refusing = self._refusing, self._rules_that_refuse()
        for key, rule in before.items():
            successor = self._refusing.get(key)
            if successor is None or successor.event != rule.event:  # otherwise it was only set again, unchanged
                self._ended.append((self._topology.next_offset, rule))

    @property
    def ended_below(self) -> int:
        """The offset of the metadata log below which all remembered policies ended; 0 if none is remembered."""
        return self._ended[-1][0] if self._ended else 0

    def forget_ended(self, offset: int) -> None:
        """Forget the policies that ended below `offset`: every queue has the policies of the metadata log up to it."""
        while self._ended and self._ended[0][0] <= offset:
            self._ended.popleft()

    def _rules_that_refuse(self) -> dict[Key, PolicyRule]:
        return {
            (type(rule.event), rule.event.vhost, rule.event.name): rule
            for rule in self._topology.rules()
            if refuses(json.loads(rule.event.definition))
        }

    async def apply(self, actor: Actor, vhost: str | None = None, names: frozenset[str] | None = None) -> None:
        """Append a `PolicyApplied` for every queue of the vhost (None: of all vhosts) that needs one, in slices: other
        work gets turns in between. A queue that is declared meanwhile begins with the policies of that moment.

        `names`: the change concerns only queues of these names; None: it may concern any."""
        partitions = self._partitions
        if vhost is not None and names is not None and not self._homes.has_moves:  # else a stray has policies, too
            homes = [self._homes.of(vhost, name) for name in sorted(names)]
            partitions = list(dict.fromkeys(homes))
        for partition in partitions:
            await partition.enter()
        pace = Pace(self._turns.written)
        begun, known = self._topology.next_offset, 0  # every node decides by the metadata log up to `known`
        async for partition, queue in in_slices(queues_in(partitions, vhost)):
            applied = self.outstanding(queue)
            while applied is not None and may_refuse(queue, applied) and known < max(begun, newest(applied)):
                known = self._topology.next_offset
                await self._nodes.until_known(known)
                applied = None if queue.gone else self.outstanding(queue)  # others may have set policies meanwhile
            if applied is not None:
                partition.append(actor, applied)
                await pace.changed()
        for partition in partitions:
            await partition.folded()

    def apply_now(self, actor: Actor) -> None:
        """Append a `PolicyApplied` for every queue that needs one, for a start: no client is connected yet."""
        for partition, queue in queues_in(self._partitions, None):
            applied = self.outstanding(queue)
            if applied is not None:
                partition.append(actor, applied)

    def may_refuse(self, queue: Queue) -> bool:
        """Return True if the queue may refuse messages, for a node that does not see its policies change.

        That includes a queue whose change of policy is pending, or for which an ended policy may still be active."""
        if queue.may_nack or self.outstanding(queue) is not None:
            return True
        return len(self._ended) > MOST_REMEMBERED or any(
            rule.event.vhost == queue.vhost and rule.fits_queue(queue.name, queue.type) for _, rule in self._ended
        )

    def outstanding(self, queue: Queue) -> PolicyApplied | None:
        """The event that gives a queue the policies that match it. None: the queue has them, as far as it may now."""
        homes, name = self._homes, (queue.vhost, queue.name)
        leased = not homes.has_moves or (homes.of(*name).machine.queue(*name) is queue and not homes.is_held(*name))
        return outstanding(self._topology, queue, leased)


def may_refuse(queue: Queue, applied: PolicyApplied) -> bool:
    """Return True if the queue may refuse messages, because an argument or one of these policies asks for it."""
    asked = argument_of(queue.arguments, "x-overflow")
    if queue.deduplicates or (asked is not None and asked.value in REFUSALS):
        return True
    policies = [policy for policy in (applied.policy, applied.operator_policy) if policy is not None]
    return any(refuses(json.loads(policy.definition)) for policy in policies)


def refuses(definition: dict[str, object]) -> bool:
    """Return True if a policy with this definition makes a queue refuse duplicates, or any message while it is full."""
    return definition.get("overflow") in REFUSALS or definition.get(DEDUPLICATES) is True


def newest(applied: PolicyApplied) -> int:
    """The offset of the metadata log behind the newer one of these policies."""
    return 1 + max((policy.version for policy in (applied.policy, applied.operator_policy) if policy), default=-1)


class Policies:
    """The policies of all vhosts, or (`operator`) their operator policies. `semantics`: of the node's queues."""

    def __init__(self, metadata: Metadata, effective: EffectivePolicies, semantics: str, operator: bool) -> None:
        self._metadata = metadata
        self._topology = metadata.topology
        self._effective = effective
        self._semantics = semantics
        self._operator = operator

    async def set(
        self,
        actor: Actor,
        vhost: str,
        name: str,
        pattern: str,
        definition: dict[str, object],
        priority: int,
        apply_to: str,
    ) -> None:
        """Set a policy and apply it.

        NotFound: the vhost. PreconditionFailed, with RabbitMQ's text: the pattern, a key or a value is wrong."""
        check_vhost(self._topology, vhost)
        asked = (name, pattern, definition, priority, apply_to)
        text = checked_definition(*asked, self._operator, self._semantics, self._topology.machine_version)
        kind = OperatorPolicySet if self._operator else PolicySet
        changed = kind(vhost, name, pattern, text, priority, apply_to)
        before = self._known.get((vhost, name))
        if before != changed:
            await self._metadata.ask(actor, changed)
            await to_the_end(self._effective.apply(actor, vhost, names_concerned(changed, before)))

    async def clear(self, actor: Actor, vhost: str, name: str) -> None:
        """Clear a policy; queues that had it get the next one that matches. NotFound."""
        if (vhost, name) not in self._known:
            what = "operator policy" if self._operator else "policy"
            raise NotFound(f"{what} '{name}' in vhost '{vhost}' does not exist")
        before = self._known[vhost, name]
        cleared = OperatorPolicyCleared if self._operator else PolicyCleared
        await self._metadata.ask(actor, cleared(vhost, name))
        await to_the_end(self._effective.apply(actor, vhost, names_concerned(before)))

    @property
    def _known(self) -> dict[tuple[str, str], PolicySet] | dict[tuple[str, str], OperatorPolicySet]:
        return self._topology.operator_policies if self._operator else self._topology.policies


def names_concerned(*policies: PolicySet | OperatorPolicySet | None) -> frozenset[str] | None:
    """The names of all queues that these policies may match; None: they may match others, too."""
    names = set()
    for policy in policies:
        if policy is None or policy.apply_to == EXCHANGES:
            continue
        found = PLAIN_NAME.fullmatch(policy.pattern)
        if found is None:
            return None
        names.add(found[1].replace("\\.", "."))
    return frozenset(names)


def checked_definition(
    name: str,
    pattern: object,
    definition: object,
    priority: object,
    apply_to: object,
    operator: bool,
    semantics: str,
    version: int,
) -> str:
    """The canonical JSON of a definition (sorted keys, no spaces).

    PreconditionFailed with all that is wrong, or because machine version `version` does not know a key."""
    problems = [
        definition_problem(name, definition, operator, semantics),
        apply_to_problem(apply_to),
        pattern_problem(pattern),
        priority_problem(priority),
    ]
    found = [problem for problem in problems if problem is not None]
    if found:
        raise PreconditionFailed("Validation failed\n\n" + "".join(f"{problem}\n" for problem in found))
    assert isinstance(definition, dict)
    for key in definition:
        require(key, version)
    return json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
