"""The small JSON objects of an archive, as bytes that are checked: no byte of them can change unseen.

    {"archived_ms": 7, "base_offset": 0, ..., "check": "9f86d0..."}

- `check` is the SHA-256 of the same object without it. Keys are sorted, so that equal values are equal bytes.
- Objects of RewindMQ 0.x before this rule have no `check`. They are read if they hold the known keys and no others.
"""

import hashlib
import json
from collections.abc import Collection
from typing import Any, Final

CHECK: Final = "check"


def encode_checked(values: dict[str, Any]) -> bytes:
    """The values as JSON with their check."""
    return _encoded(values | {CHECK: hashlib.sha256(_encoded(values)).hexdigest()})


def decode_checked(stored: bytes, known: Collection[str]) -> dict[str, Any]:
    """The values in an object. `known`: the keys of one without a check.

    Raises ValueError for bytes that are not as they were written."""
    values = json.loads(stored)
    if not isinstance(values, dict) or _encoded(values) != stored:
        raise ValueError("not a JSON object as it was written")
    check = values.pop(CHECK, None)
    if check is None:
        if not values.keys() <= set(known):
            raise ValueError("no check")
    elif check != hashlib.sha256(_encoded(values)).hexdigest():
        raise ValueError("its check is that of other values")
    return values


def _encoded(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, allow_nan=False).encode() + b"\n"
