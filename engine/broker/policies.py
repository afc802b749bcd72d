"""A policy that somebody sets: refused, or in its canonical form. The rules are in
projections/rules/policy_rules.py."""

import json

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.projections.rules.policy_rules import (
    apply_to_problem,
    definition_problem,
    pattern_problem,
    priority_problem,
)


def checked_definition(
    name: str, pattern: object, definition: object, priority: object, apply_to: object, operator: bool, semantics: str
) -> str:
    """The canonical JSON of a definition (sorted keys, no spaces). PreconditionFailed with all that is wrong."""
    problems = [
        definition_problem(name, definition, operator, semantics),
        apply_to_problem(apply_to),
        pattern_problem(pattern),
        priority_problem(priority),
    ]
    found = [problem for problem in problems if problem is not None]
    if found:
        raise PreconditionFailed("Validation failed\n\n" + "".join(f"{problem}\n" for problem in found))
    return json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
