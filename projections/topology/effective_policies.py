"""Tells which event a queue needs to have the policies that match it.

applied = outstanding(topology, queue)      a PolicyApplied for the queue's partition; None: the queue has them
"""

from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import PolicyApplied


def outstanding(topology: Topology, queue: Queue) -> PolicyApplied | None:
    """The event that gives a queue the policies that match it. None: the queue has them."""
    if is_hidden(queue.name):
        return None
    policy = topology.effective_policy(queue.vhost, queue.name, queue.type)
    operator_policy = topology.effective_operator_policy(queue.vhost, queue.name, queue.type)
    if policy == queue.policy and operator_policy == queue.operator_policy:
        return None
    return PolicyApplied(queue.vhost, queue.name, policy, operator_policy)
