"""The small JSON objects of an archive, as checked bytes: no byte can change unnoticed.

    {"format": 1, "archived_ms": 7, "base_offset": 0, ..., "check": "9f86d0..."}

- `check` is the SHA-256 of the object without it. The format comes first, and the other keys are sorted, so that
  equal values are equal bytes.
"""

import hashlib
from typing import Any

from rewindmq.engine.keeping.archive.objects import ArchiveError
from rewindmq.schemas.formats import formatted, values_in


def encode_checked(values: dict[str, Any]) -> bytes:
    """Return the values as JSON with their format and check."""
    return _encoded(values | {"check": hashlib.sha256(_encoded(values)).hexdigest()})


def decode_checked(stored: bytes, place: str) -> dict[str, Any]:
    """Return the values in the object at `place`.

    Raises ArchiveError for another format, ValueError for bytes that are not as they were written."""
    values = values_in(stored, place, ArchiveError)
    if _encoded(values) != stored:
        raise ValueError("not the JSON object that was written")
    if values.pop("check", None) != hashlib.sha256(_encoded(values)).hexdigest():
        raise ValueError("its check does not match its values")
    return values


def _encoded(values: dict[str, Any]) -> bytes:
    return formatted({name: values[name] for name in sorted(values)}).encode() + b"\n"
