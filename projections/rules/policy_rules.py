"""Checks policies: their definitions, patterns, priorities and apply-to.

Rules of this file
- Keys, values and texts are RabbitMQ 3.13's (rabbit_policies.erl, rabbit_policy.erl, rabbit_parameter_validation.erl;
  S-013, S-162, S-167). Keys of plugins are not recognised.
- Keys of mirrored queues (`ha-*`, `queue-master-locator`) are taken, so that the definitions of a RabbitMQ 3 can be
  imported. They decide nothing: a queue's content is in the log, and the log has the copies.
- A pattern is searched in the name (not anchored). patterns.py says which patterns are valid.
"""

import re
from collections.abc import Callable, Mapping

from rewindmq.projections.machine.rules.deduplication import LONGEST_TTL_MS, MOST_REMEMBERED
from rewindmq.projections.machine.rules.profile import RABBITMQ_4_3
from rewindmq.projections.rules.erlang_terms import erlang_term
from rewindmq.projections.rules.patterns import refusal

APPLY_TO = ("all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams")
OPERATOR_KEYS = frozenset(
    (
        "expires",
        "message-ttl",
        "max-length",
        "max-length-bytes",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "delivery-limit",
        "queue-version",
        "overflow",
        "delayed-retry-type",
        "delayed-retry-min",
        "delayed-retry-max",
    )
)
MAX_AGE = re.compile(r"[1-9][0-9]*[YMDhms]")
MAX_SEGMENT_BYTES = 3_000_000_000


def definition_problem(name: str, definition: object, operator: bool, semantics: str) -> str | None:
    """The fault in a policy's definition, in RabbitMQ's words; None if there is none.

    `semantics`: the profile under which the definition is to hold."""
    settings = _SETTINGS_OF.get(semantics, _SETTINGS)
    if not isinstance(definition, Mapping):
        return f"parse error while reading policy {name}: {erlang_term(definition)}. Validator: policy_validator."
    if not definition:
        return "no policy provided"
    unknown = []
    for key in sorted(definition):
        check = settings.get(key)
        if check is None or (operator and key not in OPERATOR_KEYS):
            unknown.append(key)
        elif not check[0](definition[key]):
            return f"{erlang_term(definition[key])} is not a valid {check[1]}"
    if unknown:
        pairs = ",".join(f"{{{erlang_term(key)},{erlang_term(definition[key])}}}" for key in unknown)
        return f"[{pairs}] are not recognised policy settings"
    return _mirroring_problem(definition) or _retry_problem(definition)


def _mirroring_problem(definition: Mapping[str, object]) -> str | None:
    """The fault in the `ha-` keys (rabbit_mirror_queue_misc.erl validate_policy, and that of each mode)."""
    mode, params = definition.get("ha-mode"), definition.get("ha-params")
    if mode is None:
        if any(key.startswith("ha-") for key in definition):
            return "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
        return None
    if mode == "all":
        return None if params is None else 'ha-mode="all" does not take parameters'
    given = f"{erlang_term(params)} was given"
    if mode == "exactly":
        return None if _at_least(1)(params) else f'ha-mode="exactly" takes an integer, {given}'
    if not isinstance(params, list):
        return f'ha-mode="nodes" takes a list, {given}'
    if not params:
        return 'ha-mode="nodes" list must be non-empty'
    return None if all(map(_text, params)) else f'ha-mode="nodes" takes a list of strings, {given}'


def _retry_problem(definition: Mapping[str, object]) -> str | None:
    """The fault in the retry keys (rabbit_quorum_queue.erl validate_delayed_retry_constraints)."""
    kind, least, most = (definition.get(f"delayed-retry-{key}") for key in ("type", "min", "max"))
    if kind not in (None, "disabled") and least is None:
        return f"delayed-retry-min is required when delayed-retry-type is {kind}"
    if isinstance(least, int) and isinstance(most, int) and most < least:
        return f"delayed-retry-max ({most}) must not be smaller than delayed-retry-min ({least})"
    return None


def apply_to_problem(apply_to: object) -> str | None:
    """The fault in a policy's apply-to, in RabbitMQ's words; None if there is none."""
    if apply_to in APPLY_TO:
        return None
    return (
        f"apply-to '{apply_to}' unrecognised; should be one of: 'queues', 'classic_queues', "
        " 'quorum_queues', 'streams', 'exchanges', or 'all'"
    )


def pattern_problem(pattern: object) -> str | None:
    """The fault in a policy's pattern, in RabbitMQ's words; None if there is none."""
    if not isinstance(pattern, str):
        return f"pattern should be a binary but was {erlang_term(pattern)}"
    wrong = refusal(pattern)
    if wrong is None:
        return None
    return f'pattern should be regular expression but is invalid: {{"{wrong.reason}",{wrong.position}}}'


def priority_problem(priority: object) -> str | None:
    """The fault in a policy's priority, in RabbitMQ's words; None if there is none."""
    if isinstance(priority, int) and not isinstance(priority, bool):
        return None
    return f"priority should be a number, actually was {erlang_term(priority)}"


def _at_least(least: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: any(type(value) is type(known) and value == known for known in values)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _max_age(value: object) -> bool:
    return isinstance(value, str) and MAX_AGE.fullmatch(value) is not None


def _segment_bytes(value: object) -> bool:
    return _at_least(0)(value) and isinstance(value, int) and value <= MAX_SEGMENT_BYTES


def _filter_bytes(value: object) -> bool:
    return isinstance(value, int) and 16 <= value <= 255


def _remembered(value: object) -> bool:
    return _at_least(1)(value) and isinstance(value, int) and value <= MOST_REMEMBERED


def _cache_ttl(value: object) -> bool:
    return _at_least(1)(value) and isinstance(value, int) and value <= LONGEST_TTL_MS


_Settings = dict[str, tuple[Callable[[object], bool], str]]
_SETTINGS: _Settings = {
    "alternate-exchange": (_text, "alternate exchange name"),
    "consumer-timeout": (_at_least(0), "consumer timeout"),
    "dead-letter-exchange": (_text, "dead letter exchange name"),
    "dead-letter-routing-key": (_text, "dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "dead letter strategy"),
    "message-ttl": (_at_least(0), "message TTL"),
    "expires": (_at_least(1), "queue expiry"),
    "max-length": (_at_least(0), "maximum length"),
    "max-length-bytes": (_at_least(0), "maximum length in bytes"),
    "max-in-memory-length": (_at_least(0), "maximum memory in bytes"),
    "max-in-memory-bytes": (_at_least(0), "maximum memory in bytes"),
    "queue-mode": (_one_of("default", "lazy"), "queue-mode value"),
    "queue-version": (_one_of(1, 2), "queue-version value"),
    "overflow": (_one_of("drop-head", "reject-publish", "reject-publish-dlx"), "overflow value"),
    "delivery-limit": (_at_least(0), "delivery limit"),
    "max-age": (_max_age, "max age"),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
    ),
    "initial-cluster-size": (_at_least(0), "cluster size"),
    "stream-max-segment-size-bytes": (_segment_bytes, "segment size"),
    "stream-filter-size-bytes": (_filter_bytes, "filter size. Valid range is 16-255"),
    # Of RabbitMQ's plugin rabbitmq-message-deduplication
    "x-message-deduplication": (_one_of(True, False), "x-message-deduplication: it must be a boolean"),
    "x-cache-size": (_remembered, f"x-cache-size: it must be an integer from 1 to {MOST_REMEMBERED}"),
    "x-cache-ttl": (_cache_ttl, "x-cache-ttl: it must be an integer greater than 0"),
    "x-cache-persistence": (_one_of("disk", "memory"), "x-cache-persistence: it must be either disk or memory"),
    "ha-mode": (_one_of("all", "exactly", "nodes"), "ha-mode value"),
    "ha-params": (lambda value: True, ""),  # its valid values depend on the mode (_mirroring_problem)
    "ha-sync-mode": (_one_of("manual", "automatic"), "ha-sync-mode value"),
    "ha-sync-batch-size": (_at_least(1), "ha-sync-batch-size value"),
    "ha-promote-on-shutdown": (_one_of("always", "when-synced"), "ha-promote-on-shutdown value"),
    "ha-promote-on-failure": (_one_of("always", "when-synced"), "ha-promote-on-failure value"),
    "queue-master-locator": (_one_of("min-masters", "client-local", "random"), "queue master locator value"),
}

# For nodes of another profile. A queue that asks for the profile by argument has its own arguments.
_SETTINGS_OF: dict[str, _Settings] = {
    RABBITMQ_4_3.name: _SETTINGS
    | {
        "delivery-limit": (_integer, "delivery limit"),
        "delayed-retry-type": (
            _one_of("all", "failed", "returned", "disabled"),
            "delayed retry type. Must be one of: all, failed, returned, disabled",
        ),
        "delayed-retry-min": (_at_least(1), "delayed retry minimum delay. Must be a positive integer"),
        "delayed-retry-max": (_at_least(1), "delayed retry maximum delay. Must be a positive integer"),
    },
}
