"""Reads records of older schemas as today's events.

The codec knows only today's schema. A record under an older released schema is read, slowly, under that one. But an
event that both schemas lay out alike has the same bytes under both, so the codec reads it.

This is Avro's schema resolution, as far as our rules of evolution (`schemas/README.md`) let schemas differ: fields are
matched by name and new ones take their default; nothing is renamed, retyped or removed. fastavro's own resolution is
not used, because it takes the first branch of a union to which a value can be promoted, so that bytes in
`Argument.value` would become a string.
"""

import functools
import json
from dataclasses import replace
from typing import Any

from rewindmq.schemas.events import CLASSES, Event, Published
from rewindmq.schemas.own_form import Surprise, size_end, varint
from rewindmq.schemas.registry import envelope_schema, released_schema_json, type_schema
from rewindmq.schemas.shapes import RECORD, UNION, Cursor, Shape, read, shape_of
from rewindmq.schemas.single_object import HEADER_SIZE, schema_in
from rewindmq.schemas.values import Actor


def is_unchanged(record: bytes) -> bool:
    """Return True if today's schema lays the event of this record out as the record's own schema does.

    Raises UnknownSchema, and UndecodableRecord if the bytes are not a single object."""
    return _event_in(record) in unchanged_events(schema_in(record))


def read_older(record: bytes) -> tuple[int, Actor, Event]:
    """Decode a record of an older schema. Returns (timestamp in milliseconds, actor, event).

    Raises UnknownSchema, and UndecodableRecord if the bytes are not of that schema."""
    cursor = Cursor(record, HEADER_SIZE)
    timestamp_ms, actor, event = read(cursor, _writers_envelope(schema_in(record)), "envelope")
    if cursor.pos != len(record):
        cursor.fail(f"the record goes on for {len(record) - cursor.pos} bytes behind its end", cursor.pos)
    if isinstance(event, tuple):  # Explained
        reason, event = event
        actor = replace(actor, reason=reason)
    return timestamp_ms, actor, event


@functools.lru_cache(maxsize=16)
def unchanged_events(schema_fingerprint: str) -> frozenset[int]:
    """Return the numbers of the events that an older schema lays out as today's does. Raises UnknownSchema."""
    older, today = _plain_envelope(released_schema_json(schema_fingerprint)), shape_of(envelope_schema(), {}, {})
    if not all(map(_is_alike, older.parts[:-1], today.parts[:-1])):
        return frozenset()
    pairs = zip(older.parts[-1].parts, today.parts[-1].parts, strict=False)
    return frozenset(number for number, pair in enumerate(pairs) if _is_alike(*pair))


def _plain_envelope(schema_json: str) -> Shape:
    return shape_of(json.loads(schema_json), {}, {})


def _is_alike(older: Shape, today: Shape) -> bool:
    """Return True if the bytes of a value of the older shape mean the same in today's. A union may have gained branches
    at its end; `OlderEncoder` refuses the values that need them."""
    if (older.kind, older.name, older.names) != (today.kind, today.name, today.names):
        return False
    gained = len(today.parts) - len(older.parts)
    return (gained == 0 or (gained > 0 and older.kind == UNION)) and all(map(_is_alike, older.parts, today.parts))


def event_at(record: bytes) -> int:
    """Return where a record's event begins, with its index in the union. Raises Surprise, IndexError."""
    _, user = varint(record, HEADER_SIZE)
    return varint(record, size_end(record, user))[1]


def _event_in(record: bytes) -> int:
    """Return the number of a record's event; -1 if the record is not in our form."""
    try:
        return varint(record, event_at(record))[0]
    except (Surprise, IndexError):
        return -1


@functools.lru_cache(maxsize=16)
def _writers_envelope(schema_fingerprint: str) -> Shape:
    """Return the older schema, with its records converted to today's classes."""
    known: dict[str, Shape] = {}
    envelope = shape_of(json.loads(released_schema_json(schema_fingerprint)), {}, known)
    for shape in known.values():
        if shape.kind == RECORD:
            shape.make = _Maker(shape)
    return envelope


class _Maker:
    """The maker of today's record from the older one's fields, by each field's place there, or its default."""

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
        if CLASSES[self.name] is Published:  # the size is not stored in a record
            encryption, body = by_name["encryption"], by_name["body"]
            by_name["body_size"] = len(body) if encryption is None else encryption.plain_size
        return CLASSES[self.name](**by_name)


def _default(field: dict[str, Any]) -> Any:
    """Return a field's default as a value.

    The schema has it as JSON: arrays for tuples, text of code points below 256 for bytes."""
    default = field.get("default")
    if isinstance(default, list):
        return tuple(default)
    return default.encode("latin-1") if field["type"] == "bytes" and default is not None else default
