"""Resolves a queue's effective settings: its arguments, its policy and the operator policy, merged by its type's rules.

How policies and arguments come together, from the outside in:

    which policy applies      projections/topology/policies.py: pattern, apply-to, foreign keys, then priority and name
    two policies merge        here, `_Given.of_policies`: the smaller number; for everything else the operator's value
                              (S-167; rabbit_policies.erl merge_policy_value, v3.13.7)
    with the argument         here, `_Given.pick`: the table of keys says which holds, by queue type (keys.py, `merge`)
                              (3.13.7: rabbit_amqqueue_process.erl process_args_policy, rabbit_quorum_queue.erl
                              ra_machine_config, rabbit_stream_queue.erl policy_precedence)
    the queue is told         engine/broker/policies.py: a `PolicyApplied` for each queue whose policies are now others,
                              which projections/topology/outstanding_policies.py finds
    people are shown          here, `shown_definition`: both policies merged, with the values that hold

Exceptions, beside the table:

- Profile rabbitmq-4.3 takes the smaller `expires` of quorum queues, where 3.13 takes the policy's (S-060).
- A negative delivery limit means none in 4.3. Where several values are given and one is negative, the larger one holds.
  If no value is given, the limit is 20 (S-160).
- An operator's delayed-retry-min is a lower bound (rabbit_quorum_queue.erl merge_policy_value).
- An operator policy does not speak of x-message-deduplication, as RabbitMQ's plugin does not know it there.

A value of the wrong kind counts as absent (the broker refuses it at the door, but another program may have written the
log), and so does a key that is newer than the queue (versions.py). Each number and the overflow come with the rule that
decided, in words for people: `argument x-max-length`, `policy lim.max-length`, `operator policy cap.max-length`.
"""

import json
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from rewindmq.projections.machine.rules.keys import (
    BY_NAME,
    DEDUPLICATES,
    KEYS,
    OVERFLOWS,
    QUEUE_TYPES,
    RETRIES,
    Key,
    Overflow,
    Precedence,
    QueueType,
    Retry,
    since,
)
from rewindmq.projections.machine.rules.legal_values import Flag, Number, age_ms
from rewindmq.projections.machine.rules.profile import RABBITMQ_3_13, Profile
from rewindmq.schemas.values import Argument, Policy

Word = TypeVar("Word", bound=str)

DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
NESTING: Final = 100  # brackets in a definition
LARGEST: Final = (1 << 62) - 1  # a larger number is no limit at all; keeps all arithmetic within 64 bits

# The numbers of the table that have no rule of their own below.
NUMBERS: Final[dict[QueueType, list[Key]]] = {
    queue_type: [
        key for key in KEYS if queue_type in key.merge and isinstance(key.values, Number) and not key.policy_4_3
    ]
    for queue_type in QUEUE_TYPES
}


@dataclass
class QueueSettings:
    """The settings of a queue now.

    None: not set. Durations in ms, sizes in bytes. `*_rule` names the argument or policy that decided."""

    max_length: int | None = None
    max_length_rule: str = ""
    max_length_bytes: int | None = None
    max_length_bytes_rule: str = ""
    overflow: Overflow = "drop-head"
    overflow_rule: str = ""
    message_ttl_ms: int | None = None
    message_ttl_rule: str = ""
    expires_ms: int | None = None
    expires_rule: str = ""
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    at_least_once: bool = False
    delivery_limit: int | None = None
    delivery_limit_rule: str = ""
    consumer_timeout_ms: int | None = None  # decides nothing in a fold: the code that closes channels asks
    max_age_ms: int | None = None
    max_age_rule: str = ""
    deduplicates: bool = False
    retry: Retry | Literal[""] = ""  # which returned messages wait before they are ready again
    retry_min_ms: int = 0
    retry_max_ms: int = 0

    def retries_later(self, failed: bool) -> bool:
        """Return True if a message that comes back to the queue waits before it is ready again."""
        return self.retry == "all" or self.retry == ("failed" if failed else "returned")


def definition(policy: Policy | None) -> dict[str, object]:
    """Return a policy's definition.

    Raises ValueError when it is not a JSON object, or is nested deeper than any policy (how deep the parser gets
    depends on the stack above it, and the result of a fold must not)."""
    if policy is None:
        return {}
    if policy.definition.count("[") + policy.definition.count("{") > NESTING:
        raise ValueError(f"definition of policy {policy.name!r} is not one of a queue policy")
    parsed = json.loads(policy.definition)
    if not isinstance(parsed, dict):
        raise ValueError(f"definition of policy {policy.name!r} is not an object")
    return parsed


def shown_definition(policy: Policy | None, operator_policy: Policy | None) -> dict[str, object]:
    """Merge policy and operator policy as `effective_policy_definition` of list_queues shows them (S-167).

    `resolve` decides for queues; the values here are those that it takes."""
    merged = definition(policy)
    for key, value in definition(operator_policy).items():
        merged[key] = _shown(key, merged[key], value) if key in merged else value
    return {key: merged[key] for key in sorted(merged)}


def _shown(key: str, value: object, operator_value: object) -> object:
    numbers = [
        each
        for each in (value, operator_value)
        if isinstance(each, int) and not isinstance(each, bool) and each <= LARGEST
        if each >= 0 or key == "delivery-limit"
    ]
    if not numbers:
        return operator_value
    larger = key == "delayed-retry-min" or (key == "delivery-limit" and min(numbers) < 0)
    return max(numbers) if larger else min(numbers)


class _Given:
    """The words of a queue's arguments and policies."""

    def __init__(
        self,
        queue_type: QueueType,
        arguments: tuple[Argument, ...],
        policy: Policy | None,
        operator_policy: Policy | None,
        version: int,
    ) -> None:
        self.queue_type = queue_type
        self.arguments: dict[str, object] = {a.name: a.value for a in arguments if since(a.name) <= version}
        self.policy = _known(definition(policy), version)
        self.operator_policy = _known(definition(operator_policy), version)
        self.policy_name = policy.name if policy else ""
        self.operator_name = operator_policy.name if operator_policy else ""

    def of_policies(self, key: Key) -> tuple[object, str]:
        """Return the value of the effective policy for the key, and the rule that decided."""
        value, operator_value = _valid(key, self.policy.get(key.name)), _valid(key, self.operator_policy.get(key.name))
        if operator_value is not None and (
            value is None or not isinstance(key.values, Number) or _less(operator_value, value)
        ):
            return operator_value, f"operator policy {self.operator_name}.{key.name}"
        return value, f"policy {self.policy_name}.{key.name}"

    def pick(self, key: Key, rule: Precedence | None = None) -> tuple[object, str]:
        """Return the value that holds for the key, and the rule that decided; (None, "") without any valid value.

        `rule`: another one than the table's."""
        argument = _valid(key, self.arguments.get(key.argument))
        value, source = self.of_policies(key)
        if argument is None:
            return (None, "") if value is None else (value, source)
        rule = rule or key.merge[self.queue_type]
        if value is None or rule is Precedence.ARGUMENT or (rule is Precedence.SMALLER and not _less(value, argument)):
            return argument, f"argument {key.argument}"
        return value, source


def resolve(
    queue_type: QueueType,
    arguments: tuple[Argument, ...],
    policy: Policy | None,
    operator_policy: Policy | None,
    profile: Profile = RABBITMQ_3_13,
    version: int = 1,
) -> QueueSettings:
    """Merge arguments and policies for a queue of `queue_type`, which was declared under machine version `version`.

    Raises ValueError for an unreadable definition."""
    given = _Given(queue_type, arguments, policy, operator_policy, version)
    settings = QueueSettings()
    for key in NUMBERS[queue_type]:
        smaller = key.name == "expires" and profile.smaller_expires
        value, source = given.pick(key, Precedence.SMALLER if smaller else None)
        if value is not None:
            assert isinstance(value, int)
            _set_number(settings, key.name, value, source)
    if queue_type == "stream":
        age, source = given.pick(BY_NAME["max-age"])
        settings.max_age_ms = age_ms(str(age))
        settings.max_age_rule = source if settings.max_age_ms is not None else ""
        return settings
    if queue_type == "delayed":
        return settings
    _set_deduplication(settings, given, arguments)
    if queue_type == "quorum" and profile.delivery_limit is not None:
        _set_delivery_limit(settings, profile.delivery_limit, given)
    if queue_type == "quorum" and profile.delayed_retry:
        _set_retry(settings, given)
    word, source = given.pick(BY_NAME["overflow"])
    overflow = _one_of(word, OVERFLOWS)
    if overflow is not None and not (queue_type == "quorum" and overflow == REJECT_PUBLISH_DLX):  # S-025
        settings.overflow, settings.overflow_rule = overflow, source
    exchange, _ = given.pick(BY_NAME["dead-letter-exchange"])
    if exchange is not None:
        settings.dead_letter_exchange = str(exchange)
        word, _ = given.pick(BY_NAME["dead-letter-routing-key"])
        settings.dead_letter_routing_key = None if word is None else str(word)
        if queue_type == "quorum" and settings.overflow == REJECT_PUBLISH:  # S-146, S-147
            strategy, _ = given.pick(BY_NAME["dead-letter-strategy"])
            settings.at_least_once = strategy == "at-least-once"
    return settings


def _set_deduplication(settings: QueueSettings, given: _Given, arguments: tuple[Argument, ...]) -> None:
    given.operator_policy.pop(DEDUPLICATES, None)
    for argument in reversed(arguments):  # of an argument that is there twice the first holds, of all others the last
        if argument.name == DEDUPLICATES and DEDUPLICATES in given.arguments:
            given.arguments[DEDUPLICATES] = argument.value
    value, _ = given.pick(BY_NAME[DEDUPLICATES])
    settings.deduplicates = value is True


def _set_delivery_limit(settings: QueueSettings, default: int, given: _Given) -> None:
    """Set the limit in a profile that has a default (rabbit_quorum_queue.erl resolve_delivery_limit)."""
    limit, rule = default, "default delivery-limit"
    spoken = False
    for value, source in (
        (given.policy.get("delivery-limit"), f"policy {given.policy_name}.delivery-limit"),
        (given.operator_policy.get("delivery-limit"), f"operator policy {given.operator_name}.delivery-limit"),
        (given.arguments.get("x-delivery-limit"), "argument x-delivery-limit"),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value > LARGEST:
            continue
        if not spoken or (value > limit if min(value, limit) < 0 else value < limit):
            limit, rule = value, source
        spoken = True
    settings.delivery_limit, settings.delivery_limit_rule = (None, "") if limit < 0 else (limit, rule)


def _set_retry(settings: QueueSettings, given: _Given) -> None:
    """Set the delayed retry (rabbit_quorum_queue.erl get_delayed_retry_config): none without a type and a minimum."""
    kind, _ = given.pick(BY_NAME["delayed-retry-type"])
    key = BY_NAME["delayed-retry-min"]
    ruled = [_valid(key, each.get(key.name)) for each in (given.policy, given.operator_policy)]
    bound = max((value for value in ruled if isinstance(value, int)), default=None)
    least = _smallest(_valid(key, given.arguments.get(key.argument)), bound)
    most, _ = given.pick(BY_NAME["delayed-retry-max"])
    retry = _one_of(kind, RETRIES)
    if retry is not None and least:
        settings.retry, settings.retry_min_ms = retry, least
        settings.retry_max_ms = most if isinstance(most, int) and most > 0 else least


def _known(keys: dict[str, object], version: int) -> dict[str, object]:
    return {name: value for name, value in keys.items() if since(name) <= version}


def _one_of(value: object, words: tuple[Word, ...]) -> Word | None:
    """Return the one of these words that the value is; None if it is none of them."""
    return next((word for word in words if word == value), None)


def _smallest(a: object, b: object) -> int | None:
    return min((value for value in (a, b) if isinstance(value, int)), default=None)


def _set_number(settings: QueueSettings, key: str, value: int, source: str) -> None:
    if key == "max-length":
        settings.max_length, settings.max_length_rule = value, source
    elif key == "max-length-bytes":
        settings.max_length_bytes, settings.max_length_bytes_rule = value, source
    elif key == "message-ttl":
        settings.message_ttl_ms, settings.message_ttl_rule = value, source
    elif key == "consumer-timeout":
        settings.consumer_timeout_ms = value
    elif key == "expires":
        if value > 0:  # S-057
            settings.expires_ms, settings.expires_rule = value, source
    else:
        assert key == "delivery-limit", f"nobody keeps the number of {key}"
        settings.delivery_limit, settings.delivery_limit_rule = value, source


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _valid(key: Key, value: object) -> object:
    if isinstance(key.values, Number):
        return value if _is_number(value) else None
    return value if isinstance(value, bool if isinstance(key.values, Flag) else str) else None


def _less(a: object, b: object) -> bool:
    assert isinstance(a, int)
    assert isinstance(b, int)
    return a < b
