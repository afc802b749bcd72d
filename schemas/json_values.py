"""JSON from outside: the types of its values, and which of them may get into history."""

import math

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

MAX_DEPTH = 34  # of a document's values: AMQP tables may be nested 32 deep, and a document holds one


class UnfitJson(Exception):
    """The value may not get into history. The text says why, for people."""


def require_sane(value: Json, depth: int) -> None:
    """Refuse values that Python takes for JSON and other readers do not, before they get into history.

    These are half a surrogate pair and infinite numbers (ValueError). Nesting that no AMQP table could hold is refused
    too (UnfitJson)."""
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
