"""JSON that is the same for equal values."""

from typing import Any

from rewindmq.schemas.json_values import json_text


def canonical_json(value: Any) -> str:
    """Return the value as JSON with sorted keys and no spaces: equal values give equal texts."""
    return json_text(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
