"""Decodes AMQP properties and headers of a message, for people and for tables.

The log keeps them as they came (flags and values of a content header).
"""

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from rewindmq.schemas.amqp import properties, tables

YEAR_2106 = 0xFFFF_FFFF  # in seconds; some clients send milliseconds, and a later time is taken for that


def decoded(raw: bytes) -> dict[str, Any] | None:
    """The properties by name, times as datetimes; None when the bytes cannot be decoded."""
    try:
        return {name: _property(name, value) for name, value in properties.values(raw).items()}
    except (ValueError, OverflowError, OSError):  # damaged, a short string that is no text, or a time that is none
        return None


def _property(name: str, value: int | bytes) -> Any:
    if isinstance(value, int):
        return _typed("timestamp", value) if name == "timestamp" else value
    return _typed("table", tables.parse(value)) if name == "headers" else value.decode()


def _typed(kind: str, value: Any) -> Any:
    if kind == "table":
        return {name: _typed(inner, each) for name, inner, each in value}
    if kind == "array":
        return [_typed(inner, each) for inner, each in value]
    if kind == "timestamp":
        return datetime.fromtimestamp(value if value <= YEAR_2106 else value / 1000, UTC)
    return Decimal(value) if kind == "decimal" else value


def properties_object(raw: bytes) -> Any:
    """The properties by name, without absent ones; base64 if they cannot be decoded."""
    if not raw:
        return {}
    values = decoded(raw)
    if values is None:
        return base64.b64encode(raw).decode()
    return {name: plain(value) for name, value in values.items() if value != ""}


def headers(raw: bytes) -> list[dict[str, Any]] | None:
    """The headers in their order, each as `key` and `value`; None when there are none, or they cannot be decoded.

    These are rows of HEADERS (spark_replay/columns.py). Text and bytes are given as they are, other values as JSON."""
    found = (decoded(raw) or {}).get("headers")
    return [{"key": key, "value": _value(value)} for key, value in found.items()] if found else None


def _value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, default=str)
    return text.encode("utf-8", "surrogateescape")


def plain(value: Any) -> Any:
    """A value in a form that JSON has."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
