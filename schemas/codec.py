"""Records: one envelope as an Avro single object, by hand for hot events, by `rewindmq.schemas.shapes` for the rest.

    encoder = Encoder();  prefix = encoder.prefix(timestamp_ms, actor)      # once per socket read
    record = encoder.encode(prefix, event)                                   # prefix + union index + fields
    decoder = Decoder();  timestamp_ms, actor, event = decoder.decode(record, bodies=False)

    | header: 10 bytes | timestamp | actor: user, session | event's index in the union | the event's fields |
    |<---------------------- prefix --------------------->|
    | ...                              user, session | index of Explained | reason | index of the event | its fields |
    |<---------------- prefix of an actor with a reason ----------------->|

Rules of this file
- The hand-written code makes the same bytes as any Avro library with the same schema.
- The hand-written reader knows only the form that our own encoder makes of sound events. It passes every other form to
  `rewindmq.schemas.shapes`, which knows all legal forms and names the fault of any other. So one judge decides whether
  a record can be decoded, and the fast path never accepts a record that the judge refuses.
- The header (single_object.py) names the schema. The hand-written reader knows only today's;
  `rewindmq.schemas.evolution` reads records of older ones.
- This module may be compiled by mypyc, which cannot slice to an end before the start, nor index by more than 62 bits.
- Whether a record is decodable does not depend on the need for its body: a record whose body is cut short, or extends
  past its end, is refused with `bodies` False as well as True. `strip_body` makes another form, which a reader accepts
  only with `stripped`, and which keeps the faults of a record.
- The same bytes recur (the actor of a connection with its route, or with the consumer of an ack). They are found by the
  first of them, compared whole, and only parsed if they are new.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rewindmq.schemas.events import CLASSES, Acked, Credited, Event, Fetched, Nacked, Published, Tick
from rewindmq.schemas.evolution import is_unchanged, read_older
from rewindmq.schemas.own_form import (
    Surprise,
    flag,
    message_ranges,
    optional_varint,
    route_end,
    size_end,
    two_texts_end,
    varint,
)
from rewindmq.schemas.registry import envelope_schema
from rewindmq.schemas.shapes import Cursor, Shape, UndecodableRecord, long_bytes, read, shape_of, write
from rewindmq.schemas.single_object import HEADER, HEADER_SIZE, schema_in
from rewindmq.schemas.values import Actor, Encryption, Origin, Route

__all__ = ["Decoder", "Encoder", "UndecodableRecord", "strip_body"]

_CACHED: Final = 4096  # routes, actors, consumers, heads that an encoder or a decoder keeps, each; then it starts anew
_CACHED_BYTES: Final = 4 * 1024 * 1024  # of routes, and of heads; each may name thousands of queues
_TELLING: Final = 7  # bytes beside the user's name: its length, a session's number in most brokers, the event's index
_REMEMBERED_PROPERTIES: Final = 1_024  # bytes; messages with more are not remembered

_ENVELOPE: Final = shape_of(envelope_schema(), CLASSES, {})
_ACTOR: Final = _ENVELOPE.parts[1]
_EVENTS: Final = _ENVELOPE.parts[2].parts
_EXPLAINED: Final = [shape.name for shape in _EVENTS].index("Explained")
_PUBLISHED: Final = _EVENTS[0]
_ROUTE: Final = _PUBLISHED.parts[0]
_ORIGIN: Final = _PUBLISHED.parts[5]
_ENCRYPTION: Final = _PUBLISHED.parts[6]
_METHODS: Final = _EVENTS[2].parts[5].names
_INDEXES: Final[dict[type, int]] = {
    CLASSES[shape.name]: index for index, shape in enumerate(_EVENTS) if shape.name in CLASSES
}

# The union index of the hot events, as the byte in the record.
_PUBLISHED_BYTE: Final = 0
_ACKED_BYTE: Final = 2
_NACKED_BYTE: Final = 4
_CREDITED_BYTE: Final = 6
_FETCHED_BYTE: Final = 8
_TICK_BYTE: Final = 22
_TICK: Final = bytes([_TICK_BYTE])
# expiration_ms, priority, persistent, origin, encryption of nearly every message.
_PLAIN_PERSISTENT: Final = b"\x00\x00\x01\x00\x00"
_PLAIN_TRANSIENT: Final = b"\x00\x00\x00\x00\x00"
_PLAIN: Final = (_PLAIN_PERSISTENT, _PLAIN_TRANSIENT)
_REASONS: Final = {reason.encode(): reason for reason in ("expired", "rejected", "maxlen", "delivery_limit", "delayed")}
_SMALL_LONGS: Final = [long_bytes(value) for value in range(8192)]  # ready made, mostly for lengths
_NEVER: Final = b"\xff" * 11  # no record has this in place of a long or a length
# Replaces the header of an envelope whose body `strip_body` could not remove; the rest is unchanged.
_UNSTRIPPED: Final = HEADER + _NEVER
CONTINUED_MS: Final = (0x80 >> 1) + (0x80 << 6)  # the excess of a time's first two bytes if it continues after them
_NOT_RESTORED: Final = b"\x00\x00\x00\x00\x01"  # restore and the following fields, of a dead letter


def _long(value: int) -> bytes:
    if 0 <= value < 8192:
        return _SMALL_LONGS[value]
    if 8192 <= value < 0x8000000:
        rest = value << 1
        if value < 0x100000:
            return bytes((rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14))
        return bytes((rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14 & 0x7F | 0x80, rest >> 21))
    return long_bytes(value)


def _optional_long(value: int | None) -> bytes:
    return b"\x00" if value is None else b"\x02" + _long(value)


def _text(value: str) -> bytes:
    text = value.encode("utf-8")
    return _long(len(text)) + text


def _encryption(value: Encryption) -> bytes:
    sealed = _text(value.subject) + _text(value.key_id) + _long(len(value.nonce)) + value.nonce
    return b"\x02" + sealed + _long(value.plain_size)


def _ranges(messages: tuple[tuple[int, int], ...]) -> bytes:
    if len(messages) == 1:
        first, last = messages[0]
        one = _long(first)
        return b"\x02" + one + (one if first == last else _long(last)) + b"\x00"
    if not messages:
        return b"\x00"
    parts = [_long(len(messages))]
    for first, last in messages:
        parts.append(_long(first))
        parts.append(_long(last))
    parts.append(b"\x00")
    return b"".join(parts)


def _of_shape(shape: Shape, value: object) -> bytes:
    out = bytearray()
    write(out, shape, value)
    return bytes(out)


class Encoder:
    """An encoder of events. It keeps encoded routes (bounded), so a publish encodes little more than its body.

    Raises ValueError for values that the schema cannot hold: numbers beyond 64 bits, text that is not Unicode (lone
    surrogates), an unknown enum symbol."""

    def __init__(self) -> None:
        self.header = HEADER
        self._routes: dict[Route, bytes] = {}
        self._in_queues: dict[tuple[str, str, int], bytes] = {}

    def prefix(self, timestamp_ms: int, actor: Actor) -> bytes:
        """Return the header and the envelope's first fields, in bytes: the time and the actor, with its reason."""
        head = self.header + long_bytes(timestamp_ms) + _text(actor.user) + _long(actor.session)
        return head + _long(_EXPLAINED) + _text(actor.reason) if actor.reason else head

    def encode(self, prefix: bytes, event: Event) -> bytes:
        """Return the record of an event, after the bytes from `prefix`. Raises ValueError."""
        if isinstance(event, Published):
            return self._published(prefix, event)
        if isinstance(event, Acked):
            head = self._in_queue(event.vhost, event.queue, event.consumer)
            return prefix + b"\x02" + head + _ranges(event.messages)
        if isinstance(event, Nacked):
            head = self._in_queue(event.vhost, event.queue, event.consumer)
            if event.method not in _METHODS:
                raise ValueError(f"{event.method!r} is none of the methods {', '.join(_METHODS)}")
            requeue = b"\x01" if event.requeue else b"\x00"
            return prefix + b"\x04" + head + _ranges(event.messages) + requeue + _long(_METHODS.index(event.method))
        if isinstance(event, Credited):
            head = self._in_queue(event.vhost, event.queue, event.consumer)
            return prefix + b"\x06" + head + _long(event.credit)
        if isinstance(event, Fetched):
            head = self._in_queue(event.vhost, event.queue, event.consumer)
            return prefix + b"\x08" + head + _long(event.channel) + (b"\x01" if event.no_ack else b"\x00")
        if isinstance(event, Tick):
            return prefix + _TICK
        index = _INDEXES[type(event)]
        return prefix + _long(index) + _of_shape(_EVENTS[index], event)

    def encode_run(self, prefix: bytes, events: Sequence[Published]) -> list[bytes]:
        """Return the records of publishes that differ in their bodies alone, and are neither letters nor encrypted."""
        first = events[0]
        record = self._published(prefix, first)
        size = first.body_size
        head = record[: len(record) - size - len(_long(size))]
        return [
            head + (_SMALL_LONGS[each.body_size] if each.body_size < 8192 else _long(each.body_size)) + each.body
            for each in events
        ]

    def _published(self, prefix: bytes, event: Published) -> bytes:
        route = self._routes.get(event.route)
        if route is None:
            route = self._new_route(event.route)
        if event.expiration_ms is None and event.priority is None and event.origin is None and event.encryption is None:
            middle = _PLAIN_PERSISTENT if event.persistent else _PLAIN_TRANSIENT
        else:
            middle = (
                _optional_long(event.expiration_ms)
                + _optional_long(event.priority)
                + (b"\x01" if event.persistent else b"\x00")
                + (b"\x00" if event.origin is None else self._origin(event.origin))
                + (b"\x00" if event.encryption is None else _encryption(event.encryption))
            )
        properties = event.properties
        body = event.body
        size = len(body)
        return b"".join(
            (
                prefix,
                route,
                _long(len(properties)),
                properties,
                middle,
                _SMALL_LONGS[size] if size < 8192 else _long(size),
                body,
            )
        )

    def _new_route(self, route: Route) -> bytes:
        encoded = b"\x00" + _of_shape(_ROUTE, route)  # with the preceding union index of Published
        if not route.queues:  # made for one message (projections/store/bodies.py)
            return encoded
        if len(self._routes) >= _CACHED or len(self._routes) * len(encoded) > _CACHED_BYTES:
            self._routes.clear()
        self._routes[route] = encoded
        return encoded

    def _origin(self, origin: Origin) -> bytes:
        head = self._in_queue(origin.vhost, origin.queue, origin.queue_id)
        numbered = b"\x02" + head + _long(origin.message_id) + _text(origin.reason) + _long(origin.sequence)
        counted = origin.delivery_count or origin.redelivered or origin.acquired_count
        if not (origin.restore or counted or origin.partition != -1):
            return numbered + _NOT_RESTORED
        redelivered = b"\x01" if origin.redelivered else b"\x00"
        counts = _long(origin.delivery_count) + redelivered + _long(origin.acquired_count)
        return numbered + _text(origin.restore) + counts + _long(origin.partition)

    def _in_queue(self, vhost: str, queue: str, number: int) -> bytes:
        """Return a queue and a number in it.

        Acked, Nacked, Credited and Fetched (consumer) and Origin (queue_id) begin with them."""
        key = (vhost, queue, number)
        encoded = self._in_queues.get(key)
        if encoded is None:
            encoded = _text(vhost) + _text(queue) + _long(number)
            if len(self._in_queues) >= _CACHED:
                self._in_queues.clear()
            self._in_queues[key] = encoded
        return encoded


_NO_MESSAGE: Final = Published(Route("", "", "", ()), b"")


class _Head:
    """The bytes from the actor up to the part in which events of one kind differ, written by one session.

    Published: up to the properties. Acked, Nacked, Credited, Fetched: up to what follows the consumer. Tick: all."""

    def __init__(
        self, encoded: bytes, actor: Actor, kind: int, route: Route | None, holder: tuple[str, str, int]
    ) -> None:
        self.encoded = encoded
        self.actor = actor
        self.kind = kind
        self.route = route
        self.holder = holder  # vhost, queue and consumer
        # The last plain message: its bytes from the properties up to the size of the body, and what they say
        self.plain = b""
        self.properties = b""
        self.persistent = False
        # The last plain message that was decoded without its body: the bytes from the actor up to the body, and the
        # length with the body
        self.latest = b""
        self.length = 0
        self.event = _NO_MESSAGE


class Decoder:
    """A decoder of records. Equal bytes give the same `Actor` and `Route` objects (bounded caches).

    With `bodies` False, records that differ only in time and body may give the same `Published`."""

    def __init__(self) -> None:
        # The bytes of the last record up to the actor, and the time that they say
        self._opening = b""
        self._opening_ends = 0
        self._time_ms = 0
        # The time without its first two bytes, which change with every millisecond; the rest changes every 8 seconds
        self._later = _NEVER
        self._start_ms = 0  # the time without the part in these two bytes, and less CONTINUED_MS
        self._find_time(HEADER + long_bytes(1 << 40))  # so that the bytes above are those of some record
        self._latest: dict[bytes, _Head] = {}  # by the first bytes, which tell most sessions and types of event apart
        self._heads: dict[bytes, _Head] = {}
        self._actors: dict[bytes, Actor] = {}
        self._routes: dict[bytes, Route] = {}
        self._in_queues: dict[bytes, tuple[str, str, int]] = {}

    def decode(self, record: bytes, bodies: bool = True, stripped: bool = False) -> tuple[int, Actor, Event]:
        """Decode a record. Returns (timestamp in milliseconds, actor, event). Raises UndecodableRecord.

        With `bodies` False, `Published.body` is b"". `stripped`: `strip_body` made the record, so it has no body. The
        same records are undecodable under all these options, for the same reasons."""
        if not record.startswith(self._opening):
            if not record.startswith(HEADER):
                return self._older(record, bodies and not stripped)
            if stripped and record.startswith(_UNSTRIPPED):
                return self._any(HEADER + record[len(_UNSTRIPPED) :], False, False)
            if not self._find_time(record):
                return self._any(record, bodies, stripped)
        try:
            pos = self._opening_ends
            head = self._latest.get(record[pos : pos + _TELLING + (record[pos] >> 1)])
            if head is None:
                head = self._find_head(record, pos)
            elif head.length == len(record) - pos and record.startswith(head.latest, pos) and not (bodies or stripped):
                return self._time_ms, head.actor, head.event
            elif not record.startswith(head.encoded, pos):
                head = self._find_head(record, pos)
            start = pos
            pos += len(head.encoded)
            kind = head.kind
            if kind == _ACKED_BYTE:
                messages, pos = message_ranges(record, pos)
                if pos == len(record):
                    vhost, queue, consumer = head.holder
                    return self._time_ms, head.actor, Acked(vhost, queue, consumer, messages)
            elif kind == _PUBLISHED_BYTE:
                return self._time_ms, head.actor, self._published(record, start, pos, head, bodies, stripped)
            else:
                return self._time_ms, head.actor, self._hot(record, pos, head)
        except (IndexError, UndecodableRecord, Surprise):
            pass  # not in the form that we write; it may be sound
        return self._any(record, bodies, stripped)

    def timestamp_ms(self, record: bytes) -> int:
        """Return the timestamp alone, which is the envelope's first field in every schema. Raises UndecodableRecord."""
        schema_in(record)
        return Cursor(record, HEADER_SIZE).long("timestamp")

    def _older(self, record: bytes, bodies: bool) -> tuple[int, Actor, Event]:
        """Decode a record that does not begin with today's header."""
        if is_unchanged(record):
            return self.decode(HEADER + record[HEADER_SIZE:], bodies)
        timestamp_ms, actor, event = read_older(record)
        if not bodies and isinstance(event, Published):
            event = replace(event, body=b"")
        return timestamp_ms, actor, event

    def _find_time(self, record: bytes) -> bool:
        """Take the time of a record, which is tried first from now on. False: it is not in the form that we write."""
        if len(record) < 13 or record[10] & 0x81 != 0x80 or record[11] < 0x80:
            return False
        if not record.startswith(self._later, 12):
            try:
                time_ms, end = varint(record, 10)
            except (IndexError, Surprise):
                return False
            self._later, self._opening_ends = record[12:end], end
            self._start_ms = (time_ms & ~0x1FFF) - CONTINUED_MS
        self._time_ms = self._start_ms + (record[10] >> 1) + (record[11] << 6)
        self._opening = record[: self._opening_ends]
        return True

    def _find_head(self, record: bytes, start: int) -> _Head:
        """Return the head that begins at `start`, which is tried first from now on."""
        _, pos = varint(record, size_end(record, start))
        actor_ends, kind = pos, record[pos]
        pos += 1
        if kind == _PUBLISHED_BYTE:
            end = route_end(record, pos)
        elif kind in (_ACKED_BYTE, _NACKED_BYTE, _CREDITED_BYTE, _FETCHED_BYTE):
            _, end = varint(record, two_texts_end(record, pos))
        elif kind == _TICK_BYTE:
            end = pos
        else:
            raise Surprise
        encoded = record[start:end]
        head = self._heads.get(encoded)
        if head is None:
            actor, published = self._interned_actor(record[start:actor_ends]), kind == _PUBLISHED_BYTE
            holder = ("", "", 0) if published or pos == end else self._interned_in_queue(record[pos:end])
            head = _Head(encoded, actor, kind, self._known_route(record[pos:end]) if published else None, holder)
            if len(self._heads) >= _CACHED or len(self._heads) * len(encoded) > _CACHED_BYTES:
                self._heads.clear()
                self._latest.clear()
            self._heads[encoded] = head
        if len(self._latest) >= _CACHED:
            self._latest.clear()
        self._latest[record[start : start + _TELLING + (record[start] >> 1)]] = head
        return head

    def _published(self, record: bytes, begin: int, start: int, head: _Head, bodies: bool, stripped: bool) -> Published:
        """Decode a publish. `begin`: the position of the actor; `start`: that of the properties."""
        expiration_ms: int | None = None
        priority: int | None = None
        origin: Origin | None = None
        encryption: Encryption | None = None
        pos = start
        plain = head.plain != b"" and record.startswith(head.plain, start)
        if plain:
            properties, persistent = head.properties, head.persistent
            end = pos = start + len(head.plain)
        else:
            size, pos = varint(record, pos)
            if size < 0:
                raise Surprise
            properties = record[pos : pos + size]
            pos += size
            middle = record[pos : pos + 5]
            plain = middle in _PLAIN
            if plain:
                persistent = middle == _PLAIN_PERSISTENT
                pos += 5
            else:
                expiration_ms, pos = optional_varint(record, pos)
                priority, pos = optional_varint(record, pos)
                persistent = flag(record, pos)
                if record[pos + 1] == 0:
                    pos += 2
                else:
                    origin, pos = self._origin(record, pos + 1)
                if record[pos] == 0:
                    pos += 1
                else:
                    cursor = Cursor(record, pos)
                    encryption = read(cursor, _ENCRYPTION, "encryption")
                    pos = cursor.pos
            end = pos
        size, pos = varint(record, pos)
        if size < 0 or (pos if stripped else pos + size) != len(record):
            raise Surprise
        body = record[pos:] if bodies else b""
        if encryption is not None:
            size = encryption.plain_size
        assert head.route is not None
        # by position: keywords take twice as long here (events.py)
        event = Published(head.route, properties, expiration_ms, priority, persistent, origin, encryption, body, size)
        if plain and len(properties) <= _REMEMBERED_PROPERTIES:
            if end - start != len(head.plain) or head.properties is not properties:
                head.plain = record[start:end]
                head.properties, head.persistent = properties, persistent
            if not (bodies or stripped):
                head.latest = record[begin:pos]
                head.length = len(record) - begin
                head.event = event
        return event

    def _origin(self, record: bytes, pos: int) -> tuple[Origin, int]:
        if record[pos] != 2:
            raise Surprise
        _, end = varint(record, two_texts_end(record, pos + 1))
        vhost, queue, queue_id = self._interned_in_queue(record[pos + 1 : end])
        message_id, pos = varint(record, end)
        size, pos = varint(record, pos)
        if size < 0:
            raise Surprise
        reason = _REASONS.get(record[pos : pos + size])
        if reason is None:
            raise Surprise
        sequence, pos = varint(record, pos + size)
        end = pos + len(_NOT_RESTORED)
        if record[pos:end] != _NOT_RESTORED:
            raise Surprise
        return Origin(vhost, queue, queue_id, message_id, reason, sequence), end

    def _hot(self, record: bytes, pos: int, head: _Head) -> Event:
        vhost, queue, consumer = head.holder
        event: Event
        if head.kind == _NACKED_BYTE:
            messages, pos = message_ranges(record, pos)
            requeue = flag(record, pos)
            method, pos = varint(record, pos + 1)
            if method < 0:
                raise Surprise
            event = Nacked(vhost, queue, consumer, messages, requeue, _METHODS[method])
        elif head.kind == _CREDITED_BYTE:
            credit, pos = varint(record, pos)
            event = Credited(vhost, queue, consumer, credit)
        elif head.kind == _FETCHED_BYTE:
            channel, pos = varint(record, pos)
            event = Fetched(vhost, queue, consumer, channel, flag(record, pos))
            pos += 1
        else:
            event = Tick()
        if pos != len(record):
            raise Surprise
        return event

    def _any(self, record: bytes, bodies: bool, stripped: bool) -> tuple[int, Actor, Event]:
        """Decode a record of any legal form: the judge, which also names the fault of any other record."""
        cursor = Cursor(record, HEADER_SIZE)
        timestamp_ms = cursor.long("timestamp")
        start = cursor.pos
        read(cursor, _ACTOR, "actor")
        actor = self._interned_actor(record[start : cursor.pos])
        start, explained = cursor.pos, False
        index = cursor.long("the event's type")
        if index == _EXPLAINED:
            actor, start = replace(actor, reason=cursor.text("reason")), cursor.pos
            index = cursor.long("the event's type")
            stripped = False  # `strip_body` does not look into it
            explained = True
        if not 0 <= index < len(_EVENTS) or (explained and index == _EXPLAINED):
            cursor.fail(f"there is no event type number {index}", start)
        shape = _EVENTS[index]
        event: Event
        event = self._any_published(cursor, bodies, stripped) if index == 0 else read(cursor, shape, shape.name)
        if cursor.pos != len(record):
            cursor.fail(f"the record goes on for {len(record) - cursor.pos} bytes behind its end", cursor.pos)
        return timestamp_ms, actor, event

    def _any_published(self, cursor: Cursor, bodies: bool, stripped: bool) -> Published:
        start = cursor.pos
        read(cursor, _ROUTE, "route")
        route = self._known_route(cursor.record[start : cursor.pos])
        properties: bytes = read(cursor, _PUBLISHED.parts[1], "properties")
        expiration_ms: int | None = read(cursor, _PUBLISHED.parts[2], "expiration_ms")
        priority: int | None = read(cursor, _PUBLISHED.parts[3], "priority")
        persistent: bool = read(cursor, _PUBLISHED.parts[4], "persistent")
        origin: Origin | None = read(cursor, _ORIGIN, "origin")
        encryption: Encryption | None = read(cursor, _ENCRYPTION, "encryption")
        size = cursor.size("body")
        body = b"" if stripped else cursor.take(size, "body")
        if not bodies:
            body = b""
        if encryption is not None:
            size = encryption.plain_size
        return Published(
            route,
            properties,
            body=body,
            body_size=size,
            expiration_ms=expiration_ms,
            priority=priority,
            persistent=persistent,
            origin=origin,
            encryption=encryption,
        )

    def _interned_actor(self, encoded: bytes) -> Actor:
        actor = self._actors.get(encoded)
        if actor is None:
            actor = read(Cursor(encoded, 0), _ACTOR, "actor")
            if len(self._actors) >= _CACHED:
                self._actors.clear()
            self._actors[encoded] = actor
        return actor

    def _known_route(self, encoded: bytes) -> Route:
        known = self._routes.get(encoded)
        if known is None:
            known = read(Cursor(encoded, 0), _ROUTE, "route")
            if len(self._routes) >= _CACHED or len(self._routes) * len(encoded) > _CACHED_BYTES:
                self._routes.clear()
            self._routes[encoded] = known
        return known

    def _interned_in_queue(self, encoded: bytes) -> tuple[str, str, int]:
        known = self._in_queues.get(encoded)
        if known is None:
            cursor = Cursor(encoded, 0)
            vhost: str = read(cursor, _EVENTS[1].parts[0], "vhost")
            queue: str = read(cursor, _EVENTS[1].parts[1], "queue")
            known = (vhost, queue, cursor.long("consumer"))
            if len(self._in_queues) >= _CACHED:
                self._in_queues.clear()
            self._in_queues[encoded] = known
        return known


def strip_body(record: bytes) -> bytes:
    """Return the record without the bytes of a `Published` body, for readers that ignore bodies.

    The body's length prefix stays. Other events, and records of other schemas, are unchanged. So is a record that does
    not look sound, after a mark with which no record begins, so that its fault reaches the decoder (`decode` with
    `stripped`)."""
    if not record.startswith(HEADER):
        return record
    try:
        _, actor = varint(record, HEADER_SIZE)
        user_end = size_end(record, actor)
        _, pos = varint(record, user_end)
        if record[pos] != _PUBLISHED_BYTE:
            return record if varint(record, pos)[0] else _unstripped(record)  # 0, written in more than one byte
        route = pos + 1
        pos = route_end(record, route)
        if not (record[actor:user_end].isascii() and record[route:pos].isascii()):
            read(Cursor(record, actor), _ACTOR, "actor")
            read(Cursor(record, route), _ROUTE, "route")
        pos = size_end(record, pos)
        if record[pos : pos + 5] in _PLAIN:
            pos += 5
        else:
            cursor = Cursor(record, pos)
            for part, name in zip(_PUBLISHED.parts[2:-1], _PUBLISHED.names[2:-1], strict=True):
                read(cursor, part, name)
            pos = cursor.pos
        size, pos = varint(record, pos)
    except (IndexError, UndecodableRecord, Surprise):
        return _unstripped(record)
    return record[:pos] if size >= 0 and pos + size == len(record) else _unstripped(record)


def _unstripped(record: bytes) -> bytes:
    return _UNSTRIPPED + record[HEADER_SIZE:]
