"""A message's properties as JSON, and back. On the wire (AMQP 0-9-1, 4.2.6.1 and class basic) and in history they are

    flags (2 octets, highest bit: content-type) | the properties whose flag is set, in order

Types: short string, table (4 octets of length before it), octet, timestamp (8 octets, seconds).
"""

import base64
import json
from collections.abc import Mapping

from rewindmq.engine.amqp import tables
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.http.arguments import text_of
from rewindmq.engine.http.call import bad_request
from rewindmq.engine.routing.death_headers import without_blind_copies
from rewindmq.schemas.json_values import Json

# (name, type) in the order of their flags, from bit 15 down
PROPERTIES = (
    ("content_type", "text"), ("content_encoding", "text"), ("headers", "table"), ("delivery_mode", "octet"),
    ("priority", "octet"), ("correlation_id", "text"), ("reply_to", "text"), ("expiration", "text"),
    ("message_id", "text"), ("timestamp", "timestamp"), ("type", "text"), ("user_id", "text"), ("app_id", "text"),
    ("cluster_id", "text"),
)  # fmt: skip


def properties_of(raw: bytes) -> dict[str, Json]:
    """What history keeps of a message's properties, but for BCC, as JSON. Bytes that are no properties were accepted
    all the same, so they are part of history, and are shown in base64 as `undecodable`."""
    try:
        return _decode(without_blind_copies(raw))
    except (AmqpError, IndexError, ValueError):
        return {"undecodable": base64.b64encode(raw).decode()}


def _decode(raw: bytes) -> dict[str, Json]:
    shown: dict[str, Json] = {}
    flags = int.from_bytes(raw[:2], "big")
    position = 2
    for bit, (name, kind) in enumerate(PROPERTIES):
        if not flags & (0x8000 >> bit):
            continue
        size = {"octet": 1, "timestamp": 8, "table": 4, "text": 1}[kind]
        if position + size > len(raw):
            raise ValueError("cut short")
        number = int.from_bytes(raw[position : position + size], "big")
        position += size
        if kind in ("octet", "timestamp"):
            shown[name] = number
            continue
        if position + number > len(raw):
            raise ValueError("cut short")
        value = raw[position : position + number]
        position += number
        shown[name] = text_of(value) if kind == "text" else plain(tables.mapping(value))
    return shown


def plain(value: object) -> Json:
    """A decoded field value in JSON."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return text_of(value)
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _:
            return str(value)


def properties_from(content: Json) -> bytes:
    """The `properties` of a publish request as flags and values; unknown names are left out, as RabbitMQ does."""
    if content == []:  # what RabbitMQ itself prints for none, and tools send back
        content = {}
    if not isinstance(content, dict):
        raise bad_request("properties must be a JSON object")
    flags = 0
    values: list[bytes] = []
    for bit, (name, kind) in enumerate(PROPERTIES):
        value = content.get(name)
        if value is not None:
            flags |= 0x8000 >> bit
            values.append(_encode(name, kind, value))
    return flags.to_bytes(2, "big") + b"".join(values)


def _encode(name: str, kind: str, value: Json) -> bytes:
    if kind == "text":
        encoded = (value if isinstance(value, str) else json.dumps(value)).encode()
        if len(encoded) > 255:
            raise bad_request(f"property {name} is longer than 255 bytes")
        return bytes((len(encoded),)) + encoded
    if kind == "table":
        if not isinstance(value, dict):
            raise bad_request("headers must be a JSON object")
        try:
            table = tables.encode(dict(value))
        except (ValueError, OverflowError, TypeError) as error:
            raise bad_request(f"headers cannot be encoded: {error}") from None
        return len(table).to_bytes(4, "big") + table
    size = 1 if kind == "octet" else 8
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 256**size:
        raise bad_request(f"not_int: {name}")
    return value.to_bytes(size, "big")
