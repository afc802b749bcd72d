"""Tells which event a queue needs to have the policies that match it.

applied = outstanding(topology, queue)      a PolicyApplied for the queue's partition; None: the queue has them

A queue that is on its way to another partition, and what is left of it where it was, have their policies without
`expires`: nobody can use them, so that their leases would end although clients use the queue.
"""

import json
from dataclasses import replace

from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import PolicyApplied
from rewindmq.schemas.values import Policy

EXPIRES = "expires"


def outstanding(topology: Topology, queue: Queue, leased: bool = True) -> PolicyApplied | None:
    """Return the event that gives a queue the policies that match it. None: the queue has them.

    `leased`: clients may use the queue, so that it may expire."""
    if is_hidden(queue.name):
        return None
    policy = topology.effective_policy(queue.vhost, queue.name, queue.type)
    operator_policy = topology.effective_operator_policy(queue.vhost, queue.name, queue.type)
    if not leased:
        policy, operator_policy = without_lease(policy), without_lease(operator_policy)
    if policy == queue.policy and operator_policy == queue.operator_policy:
        return None
    return PolicyApplied(queue.vhost, queue.name, policy, operator_policy)


def without_lease(policy: Policy | None) -> Policy | None:
    """Return the policy, but for `expires`."""
    if policy is None or EXPIRES not in policy.definition:
        return policy
    kept = {key: value for key, value in json.loads(policy.definition).items() if key != EXPIRES}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return replace(policy, definition=text)
