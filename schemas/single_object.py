"""Records that travel alone (Kafka values), as Avro single objects.

| C3 01 | fingerprint of the writer's schema, 8 bytes | the record |
"""

import functools
import json
from dataclasses import replace
from typing import Final

from rewindmq.schemas.amqp.properties import USER_ID, without_other_user, without_restored
from rewindmq.schemas.codec import CLASSES, Decoder, Encoder, strip_body
from rewindmq.schemas.events import EVENT_TYPES, Event, Published
from rewindmq.schemas.evolution import unchanged_events, upgraded
from rewindmq.schemas.registry import envelope_fingerprint, released_schema_json
from rewindmq.schemas.shapes import Shape, UndecodableRecord, long_bytes, shape_of, write
from rewindmq.schemas.values import Actor

MARKER: Final = b"\xc3\x01"
HEADER: Final = MARKER + bytes.fromhex(envelope_fingerprint())


def wrap(record: bytes) -> bytes:
    """A record of today's schema as a single object."""
    return HEADER + record


def unwrap(data: bytes) -> bytes:
    """The record in a single object, brought up to today's schema. Raises UndecodableRecord when the bytes are no
    single object or not of their schema (UnknownSchema, when their schema was never released here)."""
    if data.startswith(HEADER):
        return data[len(HEADER) :]
    if not data.startswith(MARKER):
        raise UndecodableRecord(f"byte 0 of {len(data)}: not a single-object encoding, which begins with C3 01")
    if len(data) < len(HEADER):
        raise UndecodableRecord(f"byte 2 of {len(data)}: the record ends within the fingerprint of its schema")
    return upgraded(data[len(HEADER) :], data[2 : len(HEADER)].hex())


def strip_framed_body(data: bytes) -> bytes:
    """`rewindmq.schemas.codec.strip_body` for a single object. One of another schema stays as it was."""
    return HEADER + strip_body(data[len(HEADER) :]) if data.startswith(HEADER) else data


class FramedEncoder(Encoder):
    """Encodes single objects."""

    def prefix(self, timestamp_ms: int, actor: Actor) -> bytes:
        """The single object's header, then the envelope's first fields."""
        return HEADER + super().prefix(timestamp_ms, actor)


class OlderEncoder(Encoder):
    """Encodes records of an older released schema, for programs that know no newer one.

    An event that the two schemas lay out alike is encoded as fast as under today's. What the older schema has no field
    for is left out. Raises ValueError, also for an event that it does not have."""

    def __init__(self, schema_fingerprint: str) -> None:
        super().__init__()
        self._header = MARKER + bytes.fromhex(schema_fingerprint)
        self._older = _older_events(schema_fingerprint)
        self._unchanged = {EVENT_TYPES[number].__name__ for number in unchanged_events(schema_fingerprint)}

    def encode(self, prefix: bytes, event: Event) -> bytes:
        """The record of an event, behind the bytes that `prefix` gave. Raises ValueError."""
        name = type(event).__name__
        if name in self._unchanged:
            return super().encode(prefix, event)
        found = self._older.get(name)
        if found is None:
            raise ValueError(f"{name} is not in the older schema {self._header[len(MARKER) :].hex()}")
        index, shape = found
        out = bytearray(prefix + long_bytes(index))
        write(out, shape, event)
        return bytes(out)


class FramedOlderEncoder(OlderEncoder):
    """Encodes single objects of an older released schema."""

    def prefix(self, timestamp_ms: int, actor: Actor) -> bytes:
        """The header of the older schema, then the envelope's first fields, which every schema has alike."""
        return self._header + super().prefix(timestamp_ms, actor)


@functools.cache
def _older_events(schema_fingerprint: str) -> dict[str, tuple[int, Shape]]:
    """By name: the place of each event in the older schema's union, and its fields there."""
    envelope = shape_of(json.loads(released_schema_json(schema_fingerprint)), CLASSES, {})
    return {shape.name: (index, shape) for index, shape in enumerate(envelope.parts[2].parts)}


def encoder_under(schema_fingerprint: str, framed: bool = True) -> Encoder:
    """An encoder of single objects, or of bare records, under a released schema."""
    if schema_fingerprint == envelope_fingerprint():
        return FramedEncoder() if framed else Encoder()
    return FramedOlderEncoder(schema_fingerprint) if framed else OlderEncoder(schema_fingerprint)


class FramedDecoder(Decoder):
    """Decodes single objects."""

    def decode(self, record: bytes, bodies: bool = True, stripped: bool = False) -> tuple[int, Actor, Event]:
        """Decode a single object, as `Decoder.decode`. `stripped`: `strip_framed_body` made the record."""
        decoded = super().decode(unwrap(record), bodies, stripped and record.startswith(HEADER))
        event = decoded[2]
        if isinstance(event, Published) and event.origin is None:
            honest = honest_properties(event.properties, decoded[1])
            if honest is not event.properties:
                return decoded[0], decoded[1], replace(event, properties=honest)
        return decoded

    def timestamp_ms(self, record: bytes) -> int:
        """The timestamp alone."""
        return super().timestamp_ms(unwrap(record))


def decoder_of(framed: bool) -> Decoder:
    """A decoder of single objects, or of bare records."""
    return FramedDecoder() if framed else Decoder()


def honest_properties(raw: bytes, actor: Actor) -> bytes:
    """The properties of a publish without an origin, without what only a broker may say.

    A service that appends a record to the log itself passes no broker. So a header x-restored, which a restoration
    sets, does not count there, and no user_id of a service (session 0) but its own name: of clients a broker checks it.
    """
    raw = without_restored(raw)
    if actor.session == 0 and len(raw) >= 2 and raw[1] & 1 << USER_ID:
        return without_other_user(raw, actor.user)
    return raw
