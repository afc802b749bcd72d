"""JSON that is the same for equal values."""

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """The value as JSON with sorted keys and no spaces: equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
