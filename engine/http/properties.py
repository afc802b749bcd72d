"""A message's properties (rewindmq/schemas/amqp/properties.py) as JSON, and back."""

import base64
import json
from typing import cast

from rewindmq.engine.http.call import bad_request
from rewindmq.engine.http.shapes.basics import Properties
from rewindmq.projections.history.properties import decoded, json_form
from rewindmq.schemas.amqp import properties, tables
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.json_values import Json


def properties_of(raw: bytes) -> Properties:
    """Return the properties in a history as JSON, without BCC.

    A history may have bytes that are not properties. They are shown in base64 as `undecodable`."""
    found = decoded(properties.without_blind_copies(raw), times=False) if raw else {}
    return {"undecodable": base64.b64encode(raw).decode()} if found is None else cast(Properties, json_form(found))


def properties_from(content: Json) -> bytes:
    """Return the `properties` of a publish request as flags and values.

    Unknown names are left out, as RabbitMQ does."""
    if content == []:  # RabbitMQ prints it for no properties, and tools send it back
        content = {}
    if not isinstance(content, dict):
        raise bad_request("properties must be a JSON object")
    given = ((name, kind, content.get(name)) for _, name, kind in properties.LAYOUT)
    return properties.join_by_name(
        {name: _encode(name, kind, value) for name, kind, value in given if value is not None}
    )


def _encode(name: str, kind: int, value: Json) -> bytes:
    if kind == properties.SHORT:
        encoded = (value if isinstance(value, str) else json.dumps(value, allow_nan=False)).encode()
        if len(encoded) > 255:
            raise bad_request(f"property {name} is longer than 255 bytes")
        return bytes((len(encoded),)) + encoded
    if kind == properties.TABLE:
        if not isinstance(value, dict):
            raise bad_request("headers must be a JSON object")
        try:
            return tables.with_length(tables.encode(value, "headers"))
        except PropertyError as error:
            raise bad_request(f"headers cannot be encoded: {error}") from None
    size = properties.WIDTHS[kind]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 256**size:
        raise bad_request(f"not_int: {name}")
    return value.to_bytes(size, "big")
