"""Records of older schemas, brought up to date.

The codec knows one schema, today's. A record that was written under an older released schema is read under that one,
rewritten under today's, and then decoded like any other. That is slow. So a record of an event that both schemas lay
out alike stays as it is: its bytes mean the same under both.

It is Avro's schema resolution, as far as our rules of evolution (`schemas/README.md`) let schemas differ: fields are
matched by name and new ones take their default; nothing is renamed, retyped or removed. fastavro's own resolution is
not used, as it takes the first branch of a union that a value can be promoted to: bytes in `Argument.value` would
become a string.
"""

import functools
import json
from typing import Any

from rewindmq.schemas.codec import CLASSES, Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.own_form import Surprise, size_end, varint
from rewindmq.schemas.registry import envelope_fingerprint, envelope_schema, released_schema_json, type_schema
from rewindmq.schemas.shapes import RECORD, Cursor, Shape, read, shape_of


def upgraded(record: bytes, schema_fingerprint: str) -> bytes:
    """The record of today's schema for a record that was written under an older one, given by its fingerprint.

    Raises UnknownSchema, and UndecodableRecord when the bytes are not of that schema."""
    if schema_fingerprint == envelope_fingerprint() or _event_in(record) in unchanged_events(schema_fingerprint):
        return record
    cursor = Cursor(record, 0)
    timestamp_ms, actor, event = read(cursor, _writers_envelope(schema_fingerprint), "envelope")
    if cursor.pos != len(record):
        cursor.fail(f"the record goes on for {len(record) - cursor.pos} bytes behind its end", cursor.pos)
    encoder = Encoder()
    return encoder.encode(encoder.prefix(timestamp_ms, actor), event)


@functools.lru_cache(maxsize=16)
def unchanged_events(schema_fingerprint: str) -> frozenset[int]:
    """The numbers of the events that an older schema lays out as today's does. Raises UnknownSchema."""
    older, today = _plain_envelope(released_schema_json(schema_fingerprint)), shape_of(envelope_schema(), {}, {})
    if not all(map(_is_alike, older.parts[:-1], today.parts[:-1])):
        return frozenset()
    pairs = zip(older.parts[-1].parts, today.parts[-1].parts, strict=False)
    return frozenset(number for number, pair in enumerate(pairs) if _is_alike(*pair))


def _plain_envelope(schema_json: str) -> Shape:
    return shape_of(json.loads(schema_json), {}, {})


def _is_alike(one: Shape, other: Shape) -> bool:
    same = (one.kind, one.name, one.names) == (other.kind, other.name, other.names)
    return same and len(one.parts) == len(other.parts) and all(map(_is_alike, one.parts, other.parts))


def _event_in(record: bytes) -> int:
    """The number of a record's event; -1 where the record has another form than ours."""
    try:
        _, user = varint(record, 0)
        _, event = varint(record, size_end(record, user))
        return varint(record, event)[0]
    except (Surprise, IndexError):
        return -1


@functools.lru_cache(maxsize=16)
def _writers_envelope(schema_fingerprint: str) -> Shape:
    """The older schema, its records made into today's classes."""
    known: dict[str, Shape] = {}
    envelope = shape_of(json.loads(released_schema_json(schema_fingerprint)), {}, known)
    for shape in known.values():
        if shape.kind == RECORD:
            shape.make = _Maker(shape)
    return envelope


class _Maker:
    """Makes today's record from the fields of the older one: each field's place there, or its default."""

    def __init__(self, older: Shape) -> None:
        self.name = older.name
        self.names: list[str] = []
        self.places: list[int | None] = []
        self.defaults: list[Any] = []
        for field in type_schema(older.name)["fields"]:
            name = field["name"]
            default = _default(field)
            self.names.append(name)
            self.places.append(older.names.index(name) if name in older.names else None)
            self.defaults.append(default)

    def __call__(self, *fields: Any) -> Any:
        values = [
            default if place is None else fields[place]
            for place, default in zip(self.places, self.defaults, strict=True)
        ]
        if self.name not in CLASSES:
            return tuple(values)
        by_name = dict(zip(self.names, values, strict=True))
        if CLASSES[self.name] is Published:
            by_name["body_size"] = 0  # the size is not stored in a record
        return CLASSES[self.name](**by_name)


def _default(field: dict[str, Any]) -> Any:
    """A field's default as a value.

    The schema has it as JSON: arrays for tuples, text of code points below 256 for bytes."""
    default = field.get("default")
    if isinstance(default, list):
        return tuple(default)
    return default.encode("latin-1") if field["type"] == "bytes" and default is not None else default
