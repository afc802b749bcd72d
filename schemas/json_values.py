"""JSON: the types of its values, the values that may enter history, and their text."""

import json
import math
from typing import Any

from rewindmq.schemas.views import View

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

MAX_DEPTH = 34  # of a document's values, because AMQP tables may be nested 32 deep, and a document holds one


class UnfitJson(Exception):
    """The value may not enter history. The text says why, for people."""


def require_sane(value: Json, depth: int) -> None:
    """Refuse values that only Python accepts as JSON, before they enter history.

    These are half a surrogate pair and infinite numbers (ValueError). Nesting that no AMQP table could hold is also
    refused (UnfitJson)."""
    if depth > MAX_DEPTH:
        raise UnfitJson(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        if not value.isascii():
            value.encode()
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("not finite")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise UnfitJson(f"{value} does not fit in 64 bits")
    elif isinstance(value, list):
        for each in value:
            require_sane(each, depth + 1)
    elif isinstance(value, dict):
        for name, each in value.items():
            require_sane(name, depth + 1)
            require_sane(each, depth + 1)


def json_text(value: object, **form: Any) -> str:
    """Return a value, including its views, as JSON (RFC 8259). `form`: options of `json.dumps`.

    NaN and Infinity, which only AMQP has, become the texts "NaN", "Infinity" and "-Infinity"."""
    try:
        return json.dumps(value, allow_nan=False, **{"default": _fields_of} | form)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **form)


def compact_text(value: object) -> str:
    """Return the same without spaces, by a single, faster encoder."""
    try:
        return _COMPACT.encode(value)
    except ValueError:
        return _COMPACT.encode(_finite(value))


def _fields_of(value: object) -> dict[str, object]:
    if isinstance(value, View):
        return value.__dict__
    raise TypeError(f"{type(value).__name__} is no JSON")


_COMPACT = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False, default=_fields_of
)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, View):
        value = value.__dict__
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
