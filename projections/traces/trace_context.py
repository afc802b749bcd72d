"""Reads the trace of a message from its headers `traceparent` and `tracestate` (W3C Trace Context)."""

import re
from dataclasses import dataclass
from typing import Any

from rewindmq.projections.history.properties import decoded

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE = re.compile(r"[ -~]{1,512}")
_LONGEST = 512


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a message, the span that published it, and the applications' names for the message."""

    trace_id: str
    parent_id: str
    flags: int
    state: str = ""
    message_id: str | None = None
    correlation_id: str | None = None


def trace_of(properties: bytes) -> Trace | None:
    """Return the trace in the properties of a publish. None: there is none, or `traceparent` is invalid."""
    if b"traceparent" not in properties:
        return None
    values = decoded(properties) or {}
    headers = values.get("headers") or {}
    parent = _parsed(_text(headers.get("traceparent")))
    if parent is None:
        return None
    trace_id, parent_id, flags = parent
    state = _text(headers.get("tracestate"))
    return Trace(
        trace_id,
        parent_id,
        flags,
        state if _TRACESTATE.fullmatch(state) else "",
        values.get("message_id") or None,
        values.get("correlation_id") or None,
    )


def _parsed(text: str) -> tuple[str, str, int] | None:
    """Return trace id, span id and flags. An unknown version may have more after them, following a dash."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return trace_id, parent_id, int(flags, 16)


def _text(value: Any) -> str:
    """Return a header as text, because clients send text or bytes. Empty: neither, or too long."""
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("latin-1")
    return value if isinstance(value, str) and len(value) <= _LONGEST else ""
