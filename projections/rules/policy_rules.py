"""Checks policies: their definitions, patterns, priorities and apply-to.

Rules of this file
- The table of keys (projections/machine/rules/policy_keys.py) says which keys there are, and which values each takes.
  Here are the rules between keys, and the texts.
- Texts are RabbitMQ 3.13's (rabbit_policy.erl, rabbit_parameter_validation.erl; S-013, S-162, S-167).
- A pattern is searched for in the name (not anchored). patterns.py decides which patterns are valid.
"""

from collections.abc import Mapping

from rewindmq.projections.machine.rules.legal_values import TEXT, Number
from rewindmq.projections.machine.rules.policy_keys import BY_NAME
from rewindmq.projections.rules.erlang_terms import erlang_term
from rewindmq.projections.rules.patterns import refusal

APPLY_TO = ("all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams")


def definition_problem(name: str, definition: object, operator: bool, semantics: str) -> str | None:
    """Return the fault in a policy's definition, in RabbitMQ's words; None if there is none.

    `semantics`: the profile under which the definition is to apply. (A queue that selects another profile by argument
    has its own arguments.)"""
    if not isinstance(definition, Mapping):
        return f"parse error while reading policy {name}: {erlang_term(definition)}. Validator: policy_validator."
    if not definition:
        return "no policy provided"
    unknown = []
    for given in sorted(definition):
        key = BY_NAME.get(given)
        if key is None or not key.allowed_in_policy(operator, semantics):
            unknown.append(given)
        elif not key.values_in(semantics).takes(definition[given]):
            return f"{erlang_term(definition[given])} is not a valid {key.policy}"
    if unknown:
        pairs = ",".join(f"{{{erlang_term(key)},{erlang_term(definition[key])}}}" for key in unknown)
        return f"[{pairs}] are not recognised policy settings"
    return _mirroring_problem(definition) or _retry_problem(definition)


def _mirroring_problem(definition: Mapping[str, object]) -> str | None:
    """Return the fault in the `ha-` keys (rabbit_mirror_queue_misc.erl validate_policy, and that of each mode)."""
    mode, params = definition.get("ha-mode"), definition.get("ha-params")
    if mode is None:
        if any(key.startswith("ha-") for key in definition):
            return "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
        return None
    if mode == "all":
        return None if params is None else 'ha-mode="all" does not take parameters'
    given = f"{erlang_term(params)} was given"
    if mode == "exactly":
        return None if Number(1).takes(params) else f'ha-mode="exactly" takes an integer, {given}'
    if not isinstance(params, list):
        return f'ha-mode="nodes" takes a list, {given}'
    if not params:
        return 'ha-mode="nodes" list must be non-empty'
    return None if all(map(TEXT.takes, params)) else f'ha-mode="nodes" takes a list of strings, {given}'


def _retry_problem(definition: Mapping[str, object]) -> str | None:
    """Return the fault in the retry keys (rabbit_quorum_queue.erl validate_delayed_retry_constraints)."""
    kind, least, most = (definition.get(f"delayed-retry-{key}") for key in ("type", "min", "max"))
    if kind not in (None, "disabled") and least is None:
        return f"delayed-retry-min is required when delayed-retry-type is {kind}"
    if isinstance(least, int) and isinstance(most, int) and most < least:
        return f"delayed-retry-max ({most}) must not be smaller than delayed-retry-min ({least})"
    return None


def apply_to_problem(apply_to: object) -> str | None:
    """Return the fault in a policy's apply-to, in RabbitMQ's words; None if there is none."""
    if apply_to in APPLY_TO:
        return None
    return (
        f"apply-to '{apply_to}' unrecognised; should be one of: 'queues', 'classic_queues', "
        " 'quorum_queues', 'streams', 'exchanges', or 'all'"
    )


def pattern_problem(pattern: object) -> str | None:
    """Return the fault in a policy's pattern, in RabbitMQ's words; None if there is none."""
    if not isinstance(pattern, str):
        return f"pattern should be a binary but was {erlang_term(pattern)}"
    wrong = refusal(pattern)
    if wrong is None:
        return None
    return f'pattern should be regular expression but is invalid: {{"{wrong.reason}",{wrong.position}}}'


def priority_problem(priority: object) -> str | None:
    """Return the fault in a policy's priority, in RabbitMQ's words; None if there is none."""
    if isinstance(priority, int) and not isinstance(priority, bool):
        return None
    return f"priority should be a number, actually was {erlang_term(priority)}"
