"""Reads candidates of `what-if` from text, and checks them.

The rules are those by which the broker takes a policy or a declaration (projections/machine/rules/policy_keys.py). So a
typing error does not give an answer as if there were no limit.

Arguments that the broker takes and no queue knows (an `x-` key of a user's own, S-072) change nothing, and are refused
here. Only the history says which profile a queue has: unless the candidate names one, a value is taken if any profile
takes it.
"""

import json
from collections.abc import Sequence

from rewindmq.projections.machine.rules.legal_values import INTEGER_TYPES
from rewindmq.projections.machine.rules.policy_keys import BY_ARGUMENT
from rewindmq.projections.machine.rules.profile import PROFILES
from rewindmq.projections.rules.patterns import refusal
from rewindmq.projections.rules.policy_rules import definition_problem
from rewindmq.projections.rules.queue_arguments import value_problem
from rewindmq.projections.what_if.alternative import Candidate, argument
from rewindmq.projections.what_if.exclusion import Exclusion
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.what_if.exclusion import parse_rule

_ARGUMENT_ONLY = ("x-queue-type", "x-single-active-consumer")


def candidate_without(texts: Sequence[str]) -> Candidate:
    """Return the candidate that leaves out everything that the `--without` texts name.

    Raises BadRequest."""
    return Candidate(f"without {', '.join(texts)}", ".", without=Exclusion(tuple(parse_rule(text) for text in texts)))


def parse_candidate(text: str) -> Candidate:
    """Return the candidate in a JSON text, with a pattern and at least one of the keys that follow it.

    {"name": "longer", "pattern": "^orders$", "definition": {"max-length": 10000}, "arguments": {"x-...": null},
    "semantics": "rabbitmq-4.3"}. Raises BadRequest."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise BadRequest(f'candidate {text!r} is not an object such as {{"pattern": "^q$", "definition": {{}}}}')
    unknown = given.keys() - {"name", "pattern", "definition", "arguments", "semantics"}
    if unknown:
        raise BadRequest(f"candidate {text!r} has the unknown key {min(unknown)!r}")
    if "pattern" not in given:
        raise BadRequest(f'candidate {text!r} names no queues: give a pattern, "." for all')
    return Candidate(
        str(given.get("name", text)),
        given["pattern"],
        given.get("definition"),
        given.get("arguments") or {},
        given.get("semantics"),
    )


def check(candidates: Sequence[Candidate], start: str | None, every_ms: int) -> None:
    """Raise BadRequest when the candidates are senseless."""
    if not candidates or every_ms < 1:
        raise BadRequest("give at least one candidate, and a time between depths of 1 ms or more")
    if len({candidate.name for candidate in candidates}) < len(candidates):
        raise BadRequest("two candidates of the same name")
    for candidate in candidates:
        where = f"candidate {candidate.name!r}"
        wrong = refusal(candidate.pattern) if isinstance(candidate.pattern, str) else "it is no text"
        if wrong is not None:
            raise BadRequest(f"{where}: pattern {candidate.pattern!r} is no regular expression: {wrong}")
        definitions = [each for each in (candidate.definition, candidate.operator_definition) if each is not None]
        says = definitions or candidate.arguments or candidate.semantics is not None
        if not says and candidate.without is None:
            raise BadRequest(f"{where} has neither definition nor arguments nor semantics")
        if not all(isinstance(each, dict) for each in definitions):
            raise BadRequest(f"{where}: the definition is no object")
        if not isinstance(candidate.arguments, dict) or any(name in _ARGUMENT_ONLY for name in candidate.arguments):
            raise BadRequest(f"{where}: arguments are an object, without {' and '.join(_ARGUMENT_ONLY)}")
        problem = _semantics_problem(candidate) or _definition_problem(candidate) or _arguments_problem(candidate)
        if problem is not None:
            raise BadRequest(f"{where}: {problem}")
        if start is not None and (candidate.arguments or candidate.semantics is not None):
            raise BadRequest(f"{where}: arguments and semantics hold from a queue's declaration on, not from a time")


def _semantics_problem(candidate: Candidate) -> str | None:
    if candidate.semantics is None or candidate.semantics in list(PROFILES):
        return None
    return f"unsupported semantics {candidate.semantics!r}; there are {', '.join(PROFILES)}"


def _definition_problem(candidate: Candidate) -> str | None:
    """Return the problem with the definitions, if any. An empty one means no policy, which a candidate may set."""
    for definition, operator in ((candidate.definition, False), (candidate.operator_definition, True)):
        if definition:
            found = [definition_problem(candidate.name, definition, operator, each) for each in _profiles(candidate)]
            if None not in found:
                return found[0]
    return None


def _arguments_problem(candidate: Candidate) -> str | None:
    profiles = _profiles(candidate)
    for name, value in candidate.arguments.items():
        key = BY_ARGUMENT.get(name)
        known = key is not None and any(map(key.has_argument, profiles))
        problem = _value_problem(name, value, profiles) if known else "no queue knows it"
        if problem is not None:
            return f"invalid arg '{name}': {problem}"
    return None


def _value_problem(name: str, value: object, profiles: Sequence[str]) -> str | None:
    """Return the problem with an argument's value, if any. The value None removes the argument."""
    if value is None:
        return None
    if not isinstance(value, str | int | float):
        return f"{json.dumps(value, allow_nan=False)} is no text, number or boolean"
    given = argument(name, value)
    if name == "x-delivery-limit" and given.type not in INTEGER_TYPES:  # 4.3 takes it, as if it were not there
        return f"expected integer, got {given.type}"
    # Arguments that it needs may be in the queue's declaration.
    found = [value_problem(given, BY_ARGUMENT, each) for each in profiles]
    return None if None in found else found[0]


def _profiles(candidate: Candidate) -> list[str]:
    return list(PROFILES) if candidate.semantics is None else [candidate.semantics]
