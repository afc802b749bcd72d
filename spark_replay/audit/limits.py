"""Reads a queue's limits as an auditor does: from arguments and policy definitions, without asking the machine.

It is written apart from `rewindmq.projections.machine.rules.settings` on purpose, from docs/behaviours/ (S-003, S-029,
S-160, S-167), so that the audit convicts a machine that merges wrongly. Numbers: the smallest of argument, policy and
operator policy. Overflow: a classic queue's argument comes before its policy, a quorum queue's after it; an operator
policy overrides the policy. A dead-letter exchange: the argument's before the operator policy's before the policy's. In
profile rabbitmq-4.3 a quorum queue has a delivery limit of 20, and delayed retry; a negative limit there is no limit,
and if one of two values is negative, the larger holds. A stream has only max-length-bytes and max-age, and its policy's
come before its arguments'.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from rewindmq.schemas.values import Argument, Policy

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """The limits of a queue. None: no such limit."""

    max_length: int | None
    max_length_bytes: int | None
    message_ttl_ms: int | None
    delivery_limit: int | None
    drops_head: bool
    dead_letter_exchange: str | None
    max_age_ms: int | None = None
    retry: tuple[str, int, int] | None = None  # all, failed or returned; least and most ms


def read_limits(
    queue_type: str,
    arguments: tuple[Argument, ...],
    policy: Policy | None,
    operator_policy: Policy | None,
    later: bool = False,
) -> LengthLimits:
    """Return the limits of a queue. `later`: it is a quorum queue of profile rabbitmq-4.3."""
    given = {argument.name: argument.value for argument in arguments}
    below = json.loads(policy.definition) if policy else {}
    above = json.loads(operator_policy.definition) if operator_policy else {}

    def smallest(key: str) -> int | None:
        found = [source.get(name) for source, name in ((given, f"x-{key}"), (below, key), (above, key))]
        numbers = [value for value in found if _is_number(value) and value >= 0]
        return min(numbers, default=None)

    if queue_type == "stream":
        ages = (above.get("max-age"), below.get("max-age"), given.get("x-max-age"))
        age = next((value for value in ages if isinstance(value, str)), None)
        smaller = [
            value
            for value in (below.get("max-length-bytes"), above.get("max-length-bytes"))
            if _is_number(value) and value >= 0
        ]
        most = min(smaller) if smaller else smallest("max-length-bytes")
        return LengthLimits(None, most, None, None, True, None, None if age is None else _age_ms(age))

    by_policy = above.get("overflow", below.get("overflow"))
    by_argument = given.get("x-overflow")
    ranked = (by_argument, by_policy) if queue_type == "classic" else (by_policy, by_argument)
    overflow = next((value for value in ranked if value is not None), "drop-head")
    if queue_type == "quorum" and overflow == "reject-publish-dlx":
        overflow = "drop-head"  # S-025
    key = "dead-letter-exchange"
    exchanges = (given.get(f"x-{key}"), above.get(key), below.get(key))
    return LengthLimits(
        smallest("max-length"),
        smallest("max-length-bytes"),
        smallest("message-ttl"),
        _later_limit(given, below, above) if later else smallest("delivery-limit") if queue_type == "quorum" else None,
        overflow == "drop-head",
        next((value for value in exchanges if isinstance(value, str)), None),
        None,
        _retry(given, below, above) if later else None,
    )


def _later_limit(given: Values, below: Values, above: Values) -> int | None:
    """Return the delivery limit of profile rabbitmq-4.3: of two the smaller; where one is negative, the larger."""
    limit: int | None = None
    for value in (below.get("delivery-limit"), above.get("delivery-limit"), given.get("x-delivery-limit")):
        if _is_number(value):
            limit = value if limit is None else max(limit, value) if min(limit, value) < 0 else min(limit, value)
    return 20 if limit is None else None if limit < 0 else limit


def _retry(given: Values, below: Values, above: Values) -> tuple[str, int, int] | None:
    """The delayed retry: the operator's type before the policy's; the smaller times, but the larger policy minimum."""
    kind = above.get("delayed-retry-type", below.get("delayed-retry-type", given.get("x-delayed-retry-type")))
    ruled = [rules[key] for key in ("delayed-retry-min",) for rules in (below, above) if _is_number(rules.get(key))]
    least = [max(ruled)] if ruled else []
    least += [value for value in (given.get("x-delayed-retry-min"),) if _is_number(value)]
    if kind not in ("all", "failed", "returned") or not least or min(least) <= 0:
        return None
    found = (given.get("x-delayed-retry-max"), below.get("delayed-retry-max"), above.get("delayed-retry-max"))
    most = min((value for value in found if _is_number(value) and value >= 0), default=0)
    return str(kind), min(least), most or min(least)


def _is_number(value: object) -> TypeGuard[int]:
    """Return True for an integer of at most 62 bits. A larger one is not a limit."""
    return type(value) is int and value < 1 << 62


def _age_ms(age: str) -> int | None:
    """7D, 1h ... in milliseconds; None for another text."""
    number, unit = age[:-1], age[-1:]
    seconds = {"s": 1, "m": 60, "h": 3600, "D": 86400, "M": 30 * 86400, "Y": 365 * 86400}.get(unit)
    if seconds is None or not (number.isascii() and number.isdigit()) or int(number) == 0:
        return None
    return int(number) * seconds * 1000
