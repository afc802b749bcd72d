"""JSON in events of the metadata log: values of parameters, definitions of policies, limits.

The fold checks it, because another program may have written anything to the log.
"""

import json
import re

NESTED_MOST = 100  # three times the depth that the HTTP API accepts
BRACKETS = re.compile(r"[\[\]{}]")
STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)

Limits = dict[str, int]  # max-connections, max-channels, max-queues; without a limit the key is missing, or negative


class Nonsense(Exception):
    """An event that no broker writes; the text gives the fault. A handler raises it before it changes anything."""


def limits_in(definition: str) -> Limits:
    """Return the limits that a definition sets: its integers.

    It reads leniently, because another program may have written anything to the log, which must not stop a fold."""
    try:
        given = json.loads(definition)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(given, dict):
        return {}
    return {name: value for name, value in sorted(given.items()) if type(value) is int}


def require_json(what: str, text: str) -> None:
    """Raise Nonsense unless the text is JSON that can be read and shown to others.

    Half a surrogate pair and infinite numbers cannot be shown. The nesting is limited here: how deep the parser gets
    depends on the stack above it, and the result of a fold must not."""
    depth = deepest = 0
    for bracket in BRACKETS.findall(STRINGS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > NESTED_MOST:
        raise Nonsense(f"{what} is nested deeper than {NESTED_MOST}")
    try:
        json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise Nonsense(f"{what} is not JSON: {error}") from None
