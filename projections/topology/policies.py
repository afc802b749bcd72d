"""Finds the policy that applies to a queue or an exchange.

- At most one policy applies to a queue (S-167). It applies if its pattern is found in the name, its apply-to fits, and
  the queue's type supports every key of its definition (rabbit_queue_type.erl `is_policy_applicable`). Of several the
  one with the highest priority applies. Ties go to the first by name; RabbitMQ leaves them undetermined.
- projections/machine/rules/settings.py merges the values of a policy, an operator policy and the arguments.
"""

from rewindmq.projections.machine.rules.policy_keys import BY_NAME
from rewindmq.projections.machine.rules.settings import definition
from rewindmq.projections.rules.patterns import in_history
from rewindmq.schemas.metadata_events import OperatorPolicySet, PolicySet
from rewindmq.schemas.values import Policy

FOR_EXCHANGES = ("all", "exchanges")  # values of apply-to
APPLIES_TO_QUEUES = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}


class PolicyRule:
    """A policy with its compiled pattern. `foreign`: the types of queues to which one of its keys is foreign."""

    def __init__(self, event: PolicySet | OperatorPolicySet, offset: int) -> None:
        self.event = event
        self.pattern = in_history(event.pattern)
        self.policy = Policy(event.name, event.definition, offset)
        keys = [BY_NAME[name] for name in definition(self.policy) if name in BY_NAME]
        self.foreign = frozenset(queue_type for key in keys for queue_type in key.foreign)

    def fits_queue(self, queue: str, queue_type: str) -> bool:
        """Return True if the policy may apply to a queue of this name and type."""
        apply_to = self.event.apply_to
        return (
            (apply_to in ("all", "queues") or apply_to == APPLIES_TO_QUEUES[queue_type])
            and queue_type not in self.foreign
            and self.pattern.found_in(queue)
        )

    def fits_exchange(self, exchange: str) -> bool:
        """Return True if the policy may apply to an exchange of this name."""
        return self.event.apply_to in FOR_EXCHANGES and self.pattern.found_in(exchange)


def highest_for_queue(rules: dict[str, PolicyRule], queue: str, queue_type: str) -> Policy | None:
    """Return the policy that applies to a queue; None if none does."""
    return highest([rule for rule in rules.values() if rule.fits_queue(queue, queue_type)])


def highest(rules: list[PolicyRule]) -> Policy | None:
    """Return the policy with the highest priority, the first by name among equals; None if there are no rules."""
    if not rules:
        return None
    return min(rules, key=lambda rule: (-rule.event.priority, rule.event.name)).policy
