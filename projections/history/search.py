"""Matches messages of a search: by message id, correlation id, a header, or a text in the body.

    criteria = Criteria("/", "orders", message_id="4711")
    criteria.needles()              # bytes that every matching record contains, so that most need not be decoded
    criteria.match(published)

All given values must match. A header's value is compared as text: text and bytes unchanged, other values as JSON. BCC
does not count as a header, because only the publisher knows it.
"""

import json
from dataclasses import dataclass, replace
from typing import Final

from rewindmq.projections.history.properties import headers
from rewindmq.schemas.amqp import properties
from rewindmq.schemas.amqp.errors import Malformed
from rewindmq.schemas.events import Published

MESSAGE_ID: Final = "message_id"
CORRELATION_ID: Final = "correlation_id"
NO_QUEUE: Final = b"\x00\x04"  # a route's empty list of queues, and the branch Unrouted
ID_FLAGS: Final = 1 << properties.MESSAGE_ID | 1 << properties.CORRELATION_ID


@dataclass(frozen=True, slots=True)
class Criteria:
    """The wanted messages of a vhost, in one queue or in all queues (None)."""

    vhost: str
    queue: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    header: tuple[str, str] | None = None
    body: bytes | None = None
    unrouted: bool = False  # only messages that no queue took

    def without_body(self) -> "Criteria":
        """Return the criteria without the body's text, which an encrypted body does not contain in the log."""
        return replace(self, body=None)

    def id(self) -> tuple[str, bytes] | None:
        """Return an id of the wanted messages and its kind (MESSAGE_ID, CORRELATION_ID), for an index of ids."""
        for kind, value in ((MESSAGE_ID, self.message_id), (CORRELATION_ID, self.correlation_id)):
            if value is not None:
                return kind, value.encode()
        return None

    def needles(self) -> tuple[bytes, ...]:
        """Return bytes that the record of each wanted message contains, unless its body is encrypted."""
        found = [text.encode() for text in (self.queue, self.message_id, self.correlation_id) if text]
        if self.header is not None:
            name, value = self.header
            found.append(name.encode())
            if not is_json(value):  # then the value can only be text, which the record contains unchanged
                found.append(value.encode())
        if self.body is not None:
            found.append(self.body)
        if self.unrouted:
            found.append(NO_QUEUE)
        return tuple(sorted(found, key=len, reverse=True))  # few records contain a long one

    def match(self, published: Published) -> bool:
        """Return True if the message matches all criteria. Its body must not be encrypted."""
        route = published.route
        if route.vhost != self.vhost or (self.queue is not None and self.queue not in route.queues):
            return False
        if self.unrouted and route.unrouted is None:
            return False
        if self.body is not None and self.body not in published.body:
            return False
        try:
            raw = properties.without_blind_copies(published.properties)
            found = properties.values(raw)
        except Malformed:
            raw, found = b"", {}
        if self.message_id is not None and found.get("message_id") != self.message_id.encode():
            return False
        if self.correlation_id is not None and found.get("correlation_id") != self.correlation_id.encode():
            return False
        return self.header is None or _has_header(raw, *self.header)


def _has_header(raw: bytes, name: str, value: str) -> bool:
    wanted = value.encode()
    return any(each["key"] == name and each["value"] == wanted for each in headers(raw) or ())


def ids_in(raw: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the message id and the correlation id in a message's properties, the only ones that `match` finds."""
    message_id = correlation_id = None
    if len(raw) < 2 or not (raw[0] << 8 | raw[1]) & ID_FLAGS:
        return None, None
    for bit, start, end in properties.walk(raw)[0]:
        if bit == properties.MESSAGE_ID:
            message_id = raw[start:end]
        elif bit == properties.CORRELATION_ID:
            correlation_id = raw[start:end]
    return message_id, correlation_id


def is_json(text: str) -> bool:
    """Return True if the text is JSON, the form in which header values that are not text are compared."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
