"""The version of a stored form, and the line with which a reader refuses another one (docs/formats.md lists all forms).

    text = formatted({"url": url})              {"format": 1, "url": ...}
    values = values_in(text, path, LogError)    {"url": ...}, or LogError: PATH: format 2, this program reads format 1

A form has its version where its reader looks first: JSON in its first field, an Avro container file in the metadata of
its header, and any other file in its first bytes, which end with the digit of the version.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

FORMAT: Final = "format"
IN_METADATA: Final = "rewindmq.format"  # of an Avro container file


def other_format(found: object, ours: object = 1) -> str:
    """Return the reason for a refusal. `found`: the stored version; `ours`: the one that this program reads."""
    found, ours = (str(each, errors="replace") if isinstance(each, bytes) else each for each in (found, ours))
    return f"format {found}, this program reads format {ours}"


def formatted(values: Mapping[str, Any], ours: int = 1) -> str:
    """Return the values as JSON that begins with its format."""
    return json.dumps({FORMAT: ours, **values}, allow_nan=False)


def values_in(text: str | bytes, place: object, refusal: type[Exception], ours: int = 1) -> dict[str, Any]:
    """Return the values in the JSON at `place`, without their format.

    Raises `refusal` for another format; ValueError for text other than a JSON object with a format."""
    values = json.loads(text)
    if not isinstance(values, dict) or FORMAT not in values:
        raise ValueError("not a JSON object with a format")
    found = values.pop(FORMAT)
    if found != ours:
        raise refusal(f"{place}: {other_format(found, ours)}")
    return values


def other_magic(found: bytes, ours: bytes) -> str | None:
    """Return the reason for refusing bytes that begin like ours except for the version's digit; otherwise None."""
    version = found[len(ours) - 1 : len(ours)]
    if not found.startswith(ours[:-1]) or not version.isdigit() or version == ours[-1:]:
        return None
    return other_format(version, ours[-1:])
