"""Resolves a queue's effective settings: its arguments, its policy and the operator policy, merged by its type's rules.

The rule is written only here.

    effective policy = policy merged with operator policy: the smaller number; for everything else the operator's value
                       (S-167; rabbit_policies.erl merge_policy_value, v3.13.7)
    setting          = argument merged with the effective policy, where both give a value:

    | setting                                             | classic  | quorum   |
    | max-length, max-length-bytes, message-ttl           | smaller  | smaller  |  S-003
    | delivery-limit                                      | -        | smaller  |  S-160 (4.3: see below)
    | consumer-timeout                                    | smaller  | smaller  |  docs/behaviours/profiles.md
    | expires                                             | smaller  | policy   |  S-060 (4.3: smaller)
    | delayed-retry-type; -min, -max (4.3)                | -        | policy; smaller
    | overflow                                            | argument | policy   |  S-029
    | dead-letter-exchange, -routing-key, -strategy       | argument | argument |

The policy's x-message-deduplication goes before the argument, as in RabbitMQ's plugin.

A stream has max-length-bytes and max-age only, and its policy wins (rabbit_stream_queue.erl policy_precedence).

In profile rabbitmq-4.3 a negative delivery limit means none. Where several values are given and one is negative, the
larger one holds. If no value is given, the limit is 20. An operator's delayed-retry-min is a lower bound
(rabbit_quorum_queue.erl merge_policy_value).

A value of the wrong kind counts as absent (the broker refuses it at the door, but another program may have written the
log). Each number and the overflow come with the rule that decided, in words for people: `argument x-max-length`,
`policy lim.max-length`, `operator policy cap.max-length`.
"""

import json
from enum import Enum, auto
from typing import Final, Literal, TypeGuard, TypeVar, get_args

from rewindmq.projections.machine.rules.profile import RABBITMQ_3_13, Profile
from rewindmq.schemas.values import Argument, Policy

Text = TypeVar("Text", bound=str)
QueueType = Literal["classic", "quorum", "stream", "delayed"]
Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
Retry = Literal["all", "failed", "returned"]

DEDUPLICATES: Final = "x-message-deduplication"  # of an argument and of a policy's key, in the plugin of RabbitMQ
DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
OVERFLOWS: Final[tuple[Overflow, ...]] = get_args(Overflow)


class Precedence(Enum):
    """Which value holds where an argument and the effective policy both give one."""

    SMALLER = auto()
    POLICY = auto()
    ARGUMENT = auto()


# How an argument is merged with the effective policy, by queue type (3.13.7: rabbit_amqqueue_process.erl
# process_args_policy, rabbit_quorum_queue.erl ra_machine_config).
NUMBERS: Final[dict[QueueType, dict[str, Precedence]]] = {
    "classic": {
        "max-length": Precedence.SMALLER,
        "max-length-bytes": Precedence.SMALLER,
        "message-ttl": Precedence.SMALLER,
        "expires": Precedence.SMALLER,
        "consumer-timeout": Precedence.SMALLER,
    },
    "quorum": {
        "max-length": Precedence.SMALLER,
        "max-length-bytes": Precedence.SMALLER,
        "message-ttl": Precedence.SMALLER,
        "expires": Precedence.POLICY,
        "delivery-limit": Precedence.SMALLER,
        "consumer-timeout": Precedence.SMALLER,
    },
    "stream": {"max-length-bytes": Precedence.POLICY, "consumer-timeout": Precedence.SMALLER},
    "delayed": {},
}
WORDS: Final[dict[QueueType, dict[str, Precedence]]] = {
    "classic": {
        "overflow": Precedence.ARGUMENT,
        "dead-letter-exchange": Precedence.ARGUMENT,
        "dead-letter-routing-key": Precedence.ARGUMENT,
    },
    "quorum": {
        "overflow": Precedence.POLICY,
        "dead-letter-exchange": Precedence.ARGUMENT,
        "dead-letter-routing-key": Precedence.ARGUMENT,
        "dead-letter-strategy": Precedence.ARGUMENT,
    },
}
RETRIES: Final[tuple[Retry, ...]] = get_args(Retry)
QUEUE_TYPES: Final[tuple[QueueType, ...]] = get_args(QueueType)
SECONDS_OF: Final = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
NESTING: Final = 100  # brackets in a definition
LARGEST: Final = (1 << 62) - 1  # a larger number is no limit at all; keeps all arithmetic within 64 bits


class Settings:
    """The settings of a queue now.

    None: not set. Durations in ms, sizes in bytes. `*_rule` names the argument or policy that decided."""

    def __init__(self) -> None:
        self.max_length: int | None = None
        self.max_length_rule = ""
        self.max_length_bytes: int | None = None
        self.max_length_bytes_rule = ""
        self.overflow: Overflow = DROP_HEAD
        self.overflow_rule = ""
        self.message_ttl_ms: int | None = None
        self.message_ttl_rule = ""
        self.expires_ms: int | None = None
        self.expires_rule = ""
        self.dead_letter_exchange: str | None = None
        self.dead_letter_routing_key: str | None = None
        self.at_least_once = False
        self.delivery_limit: int | None = None
        self.delivery_limit_rule = ""
        self.consumer_timeout_ms: int | None = None  # decides nothing in a fold: the code that closes channels asks
        self.max_age_ms: int | None = None
        self.max_age_rule = ""
        self.deduplicates: bool | None = None  # as the policy says; None: it does not say
        self.retry: Retry | Literal[""] = ""  # which returned messages wait before they are ready again
        self.retry_min_ms = 0
        self.retry_max_ms = 0

    def retries_later(self, failed: bool) -> bool:
        """Return True if a message that comes back to the queue waits before it is ready again."""
        return self.retry == "all" or self.retry == ("failed" if failed else "returned")


def is_queue_type(text: str) -> TypeGuard[QueueType]:
    """Return True if the text names a type of queue."""
    return text in QUEUE_TYPES


def definition(policy: Policy | None) -> dict[str, object]:
    """A policy's definition.

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


def effective_definition(policy: Policy | None, operator_policy: Policy | None) -> dict[str, object]:
    """Policy and operator policy merged, as `effective_policy_definition` of list_queues shows it (S-167)."""
    merged = definition(policy)
    for key, value in definition(operator_policy).items():
        merged[key] = _operator_merge(merged[key], value) if key in merged else value
    return {key: merged[key] for key in sorted(merged)}


def _operator_merge(value: object, operator_value: object) -> object:
    if _is_number(value) and _is_number(operator_value):
        assert isinstance(value, int)
        assert isinstance(operator_value, int)
        return min(value, operator_value)
    return operator_value


def resolve(
    queue_type: QueueType,
    arguments: tuple[Argument, ...],
    policy: Policy | None,
    operator_policy: Policy | None,
    profile: Profile = RABBITMQ_3_13,
) -> Settings:
    """Merge arguments and policies for a queue of `queue_type`.

    Raises ValueError for an unreadable definition."""
    given: dict[str, object] = {a.name: a.value for a in arguments}
    policies = (definition(policy), definition(operator_policy))
    names = (policy.name if policy else "", operator_policy.name if operator_policy else "")

    settings = Settings()
    for key, rule in NUMBERS[queue_type].items():
        if key == "expires" and profile.smaller_expires:
            rule = Precedence.SMALLER
        value, source = _pick(key, rule, given, policies, names, True)
        if value is not None:
            assert isinstance(value, int)
            _set_number(settings, key, value, source)
    if queue_type == "stream":
        age, source = _pick("max-age", Precedence.POLICY, given, policies, names, False)
        settings.max_age_ms = age_ms(str(age))
        settings.max_age_rule = source if settings.max_age_ms is not None else ""
        return settings
    if queue_type == "delayed":
        return settings
    deduplicates = policies[0].get(DEDUPLICATES)
    settings.deduplicates = deduplicates if isinstance(deduplicates, bool) else None
    if queue_type == "quorum" and profile.delivery_limit is not None:
        _set_delivery_limit(settings, profile.delivery_limit, given, policies, names)
    if queue_type == "quorum" and profile.delayed_retry:
        _set_retry(settings, given, policies, names)
    words = WORDS[queue_type]
    word, source = _pick("overflow", words["overflow"], given, policies, names, False)
    overflow = _known(word, OVERFLOWS)
    if overflow is not None and not (queue_type == "quorum" and overflow == REJECT_PUBLISH_DLX):  # S-025
        settings.overflow, settings.overflow_rule = overflow, source
    exchange, _ = _pick("dead-letter-exchange", words["dead-letter-exchange"], given, policies, names, False)
    if exchange is not None:
        settings.dead_letter_exchange = str(exchange)
        word, _ = _pick("dead-letter-routing-key", words["dead-letter-routing-key"], given, policies, names, False)
        settings.dead_letter_routing_key = None if word is None else str(word)
        if "dead-letter-strategy" in words and settings.overflow == REJECT_PUBLISH:  # S-146, S-147
            strategy, _ = _pick("dead-letter-strategy", words["dead-letter-strategy"], given, policies, names, False)
            settings.at_least_once = strategy == "at-least-once"
    return settings


def _set_delivery_limit(
    settings: Settings,
    default: int,
    arguments: dict[str, object],
    policies: tuple[dict[str, object], dict[str, object]],
    names: tuple[str, str],
) -> None:
    """Set the limit in a profile that has a default (rabbit_quorum_queue.erl resolve_delivery_limit)."""
    limit, rule = default, "default delivery-limit"
    spoken = False
    for value, source in (
        (policies[0].get("delivery-limit"), f"policy {names[0]}.delivery-limit"),
        (policies[1].get("delivery-limit"), f"operator policy {names[1]}.delivery-limit"),
        (arguments.get("x-delivery-limit"), "argument x-delivery-limit"),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value > LARGEST:
            continue
        if not spoken or (value > limit if min(value, limit) < 0 else value < limit):
            limit, rule = value, source
        spoken = True
    settings.delivery_limit, settings.delivery_limit_rule = (None, "") if limit < 0 else (limit, rule)


def _set_retry(
    settings: Settings,
    arguments: dict[str, object],
    policies: tuple[dict[str, object], dict[str, object]],
    names: tuple[str, str],
) -> None:
    """Set the delayed retry (rabbit_quorum_queue.erl get_delayed_retry_config): none without a type and a minimum."""
    kind, _ = _pick("delayed-retry-type", Precedence.POLICY, arguments, policies, names, False)
    argument = _valid(arguments.get("x-delayed-retry-min"), True)
    ruled = [_valid(each.get("delayed-retry-min"), True) for each in policies]
    least = _smallest(argument, max((value for value in ruled if isinstance(value, int)), default=None))
    most, _ = _pick("delayed-retry-max", Precedence.SMALLER, arguments, policies, names, True)
    retry = _known(kind, RETRIES)
    if retry is not None and least:
        settings.retry, settings.retry_min_ms = retry, least
        settings.retry_max_ms = most if isinstance(most, int) and most > 0 else least


def _known(value: object, texts: tuple[Text, ...]) -> Text | None:
    """The one of these texts that the value is; None if it is none of them."""
    return next((text for text in texts if text == value), None)


def _smallest(a: object, b: object) -> int | None:
    return min((value for value in (a, b) if isinstance(value, int)), default=None)


def age_ms(text: str) -> int | None:
    """Milliseconds of an age like 7D or 1h (units Y, M, D, h, m, s; check_max_age in rabbit_amqqueue.erl).

    None for any other text, and for 0."""
    digits, seconds = text[:-1], SECONDS_OF.get(text[-1:])
    if seconds is None or not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        return None
    return int(digits) * seconds * 1000 or None


def _set_number(settings: Settings, key: str, value: int, source: str) -> None:
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
        settings.delivery_limit, settings.delivery_limit_rule = value, source


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _pick(
    key: str,
    rule: Precedence,
    arguments: dict[str, object],
    policies: tuple[dict[str, object], dict[str, object]],
    names: tuple[str, str],
    number: bool,
) -> tuple[object, str]:
    """The value that holds for `key`, and the rule that decided; (None, "") when no valid value is given."""
    argument = _valid(arguments.get("x-" + key), number)
    value, operator_value = _valid(policies[0].get(key), number), _valid(policies[1].get(key), number)
    source = f"policy {names[0]}.{key}"
    if operator_value is not None and (value is None or not number or _less(operator_value, value)):
        value, source = operator_value, f"operator policy {names[1]}.{key}"
    if argument is None:
        return (None, "") if value is None else (value, source)
    if value is None or rule is Precedence.ARGUMENT or (rule is Precedence.SMALLER and not _less(value, argument)):
        return argument, f"argument x-{key}"
    return value, source


def _valid(value: object, number: bool) -> object:
    if number:
        return value if _is_number(value) else None
    return value if isinstance(value, str) else None


def _less(a: object, b: object) -> bool:
    assert isinstance(a, int)
    assert isinstance(b, int)
    return a < b
