"""Decodes AMQP properties and headers of a message for the broker's answers and Spark's tables.

The log keeps them as they arrived (flags and values of a content header). AMQP allows values that JSON and the calendar
cannot hold, so each value is decoded separately, and an odd one spoils no other:

    a time after the year 9999                      the whole number
    a short string, text or name that is not UTF-8  base64
    NaN and Infinity                                their names as text (`json_text`)
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from rewindmq.schemas.amqp import properties, tables
from rewindmq.schemas.amqp.errors import Malformed
from rewindmq.schemas.amqp.json_arguments import text_of
from rewindmq.schemas.json_values import json_text

YEAR_2106 = 0xFFFF_FFFF  # in seconds; a later time is read as milliseconds, because some clients send those


def decoded(raw: bytes, times: bool = True) -> dict[str, Any] | None:
    """Return the properties by name; None for bytes that are not properties, which no client can publish.

    `times`: timestamps as datetimes, not as numbers."""
    try:
        return {name: _property(name, value, times) for name, value in properties.values(raw).items()}
    except Malformed:
        return None


def _property(name: str, value: int | bytes, times: bool) -> Any:
    if isinstance(value, int):
        return _typed("timestamp", value, times) if name == "timestamp" else value
    return _typed("table", tables.parse(value), times) if name == "headers" else text_of(value)


def _typed(kind: str, value: Any, times: bool) -> Any:
    if kind == "table":
        return {_name(name): _typed(inner, each, times) for name, inner, each in value}
    if kind == "array":
        return [_typed(inner, each, times) for inner, each in value]
    if kind == "timestamp" and times:
        return _moment(value)
    return Decimal(value) if kind == "decimal" else value


def _name(name: str) -> str:
    return text_of(tables.name_bytes(name))


def _moment(value: int) -> datetime | int:
    try:
        return datetime.fromtimestamp(value if value <= YEAR_2106 else value / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # microseconds, or a number that is not a time
        return value


def properties_object(raw: bytes) -> Any:
    """Return the properties by name, without absent ones; base64 if they cannot be decoded."""
    if not raw:
        return {}
    values = decoded(raw)
    if values is None:
        return base64.b64encode(raw).decode()
    return {name: json_form(value) for name, value in values.items() if value != ""}


def headers(raw: bytes) -> list[dict[str, Any]] | None:
    """Return the headers in order, each as `key` and `value`; None if there are none, or they cannot be decoded.

    These are rows of HEADERS (spark_replay/columns.py). Text and bytes are unchanged, other values are JSON."""
    try:
        found = properties.headers_of(raw)
    except Malformed:
        return None
    return [{"key": _name(name), "value": _value(_typed(kind, value, True))} for name, kind, value in found] or None


def _value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json_text(json_form(value), ensure_ascii=False)).encode()


def json_form(value: Any) -> Any:
    """Return a value in a form that `json_text` takes."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, bytes | bytearray):
        return text_of(bytes(value))
    if isinstance(value, Mapping):
        return {str(name): json_form(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_form(item) for item in value]
    return str(value) if isinstance(value, Decimal) else value
