"""A queue's limits as an auditor reads them: from arguments and policy definitions, without asking the machine.

Written apart from `projections.machine.settings` on purpose, from BEHAVIOURS S-003, S-029, S-160 and S-167, so that the
audit convicts a machine that merges wrongly. Numbers: the smallest of argument, policy and operator policy. Overflow:
a classic queue's argument comes before its policy, a quorum queue's after it; an operator policy overrides the policy.
A dead-letter exchange: the argument's before the operator policy's before the policy's.
"""

import json
from dataclasses import dataclass

from schemas.events import Argument, Policy


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no such limit."""

    max_length: int | None
    max_length_bytes: int | None
    message_ttl_ms: int | None
    delivery_limit: int | None
    drops_head: bool
    dead_letter_exchange: str | None


def read_limits(
    queue_type: str, arguments: tuple[Argument, ...], policy: Policy | None, operator_policy: Policy | None
) -> Limits:
    given = {argument.name: argument.value for argument in arguments}
    below = json.loads(policy.definition) if policy else {}
    above = json.loads(operator_policy.definition) if operator_policy else {}

    def smallest(key: str) -> int | None:
        found = [source.get(name) for source, name in ((given, f"x-{key}"), (below, key), (above, key))]
        numbers = [value for value in found if type(value) is int and value >= 0]
        return min(numbers, default=None)

    by_policy = above.get("overflow", below.get("overflow"))
    by_argument = given.get("x-overflow")
    ranked = (by_argument, by_policy) if queue_type == "classic" else (by_policy, by_argument)
    overflow = next((value for value in ranked if value is not None), "drop-head")
    if queue_type == "quorum" and overflow == "reject-publish-dlx":
        overflow = "drop-head"  # S-025
    key = "dead-letter-exchange"
    exchanges = (given.get(f"x-{key}"), above.get(key), below.get(key))
    return Limits(
        smallest("max-length"),
        smallest("max-length-bytes"),
        smallest("message-ttl"),
        smallest("delivery-limit") if queue_type == "quorum" else None,
        overflow == "drop-head",
        next((value for value in exchanges if isinstance(value, str)), None),
    )
