"""Decodes AMQP properties and headers of a message, for people and for tables.

The log keeps them as they came (flags and values of a content header).
"""

import base64
import json
from datetime import UTC, datetime
from typing import Any

from pamqp.commands import Basic


def decoded(properties: bytes) -> dict[str, Any] | None:
    """The properties by pamqp's names; None if they cannot be decoded."""
    try:
        found = Basic.Properties()
        found.unmarshal(int.from_bytes(properties[:2], "big"), properties[2:])
        return dict(found)
    except Exception:  # pamqp names no class for what a broken table may raise
        return None


def properties_object(properties: bytes) -> Any:
    """The properties by name, without absent ones; base64 if they cannot be decoded."""
    if not properties:
        return {}
    values = decoded(properties)
    if values is None:
        return base64.b64encode(properties).decode()
    values["type"] = values.pop("message_type")
    return {name: plain(value) for name, value in values.items() if value not in (None, "")}


def headers(properties: bytes) -> list[dict[str, Any]] | None:
    """The headers as rows of HEADERS (columns.py), in their order; None when there are none, or they cannot be decoded.

    Text and bytes are given as they are, other values as JSON."""
    found = (decoded(properties) or {}).get("headers")
    return [{"key": key, "value": _value(value)} for key, value in found.items()] if found else None


def _value(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
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
