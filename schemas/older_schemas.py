"""Writes records under older released schemas, for programs that know no newer one, and brings them up to date."""

import functools
import json
from collections.abc import Sequence

from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import CLASSES, Event, Published
from rewindmq.schemas.evolution import is_unchanged, unchanged_events
from rewindmq.schemas.registry import envelope_fingerprint, released_schema_json
from rewindmq.schemas.shapes import Shape, long_bytes, shape_of, write
from rewindmq.schemas.single_object import HEADER, HEADER_SIZE, header_of
from rewindmq.schemas.values import Actor, Route


class OlderEncoder(Encoder):
    """An encoder of records under an older released schema.

    An event that the two schemas lay out alike is encoded as fast as under today's. Fields that the older schema lacks
    are left out. Raises ValueError, also for an event that it lacks."""

    def __init__(self, schema_fingerprint: str) -> None:
        super().__init__()
        self.header = header_of(schema_fingerprint)
        self._older = _older_events(schema_fingerprint)
        self._unchanged = unchanged_events(schema_fingerprint)
        self._schema_json = released_schema_json(schema_fingerprint)

    def prefix(self, timestamp_ms: int, actor: Actor) -> bytes:
        """Return the header, the time and the actor, in bytes. Raises ValueError for a reason that the schema lacks."""
        if actor.reason and "Explained" not in self._older:
            raise self._lacks("Explained")
        return super().prefix(timestamp_ms, actor)

    def encode(self, prefix: bytes, event: Event) -> bytes:
        """Return the record of an event, behind the bytes that `prefix` gave. Raises ValueError."""
        name = type(event).__name__
        found = self._older.get(name)
        if found is None:
            raise self._lacks(name)
        index, shape = found
        if index in self._unchanged:
            return super().encode(prefix, event)
        out = bytearray(prefix + long_bytes(index))
        write(out, shape, event)
        return bytes(out)

    def encode_run(self, prefix: bytes, events: Sequence[Published]) -> list[bytes]:
        """Return the records of publishes that differ only in their bodies. Raises ValueError."""
        if self._older[Published.__name__][0] in self._unchanged:
            return super().encode_run(prefix, events)
        return [self.encode(prefix, event) for event in events]

    def _new_route(self, route: Route) -> bytes:
        if route.unrouted is not None and '"Unrouted"' not in self._schema_json:
            raise self._lacks("Unrouted")
        return super()._new_route(route)

    def _lacks(self, name: str) -> ValueError:
        return ValueError(f"{name} is not in the older schema {self.header[2:].hex()}")


@functools.cache
def _older_events(schema_fingerprint: str) -> dict[str, tuple[int, Shape]]:
    """Return, by name, the place of each event in the older schema's union, and its fields there."""
    envelope = shape_of(json.loads(released_schema_json(schema_fingerprint)), CLASSES, {})
    return {shape.name: (index, shape) for index, shape in enumerate(envelope.parts[2].parts)}


def encoder_under(schema_fingerprint: str) -> Encoder:
    """Return an encoder of records under a released schema."""
    return Encoder() if schema_fingerprint == envelope_fingerprint() else OlderEncoder(schema_fingerprint)


def of_today(record: bytes) -> bytes:
    """Return the record under today's schema. Raises UnknownSchema, UndecodableRecord."""
    if record.startswith(HEADER):
        return record
    if is_unchanged(record):
        return HEADER + record[HEADER_SIZE:]
    timestamp_ms, actor, event = Decoder().decode(record)
    encoder = Encoder()
    return encoder.encode(encoder.prefix(timestamp_ms, actor), event)
