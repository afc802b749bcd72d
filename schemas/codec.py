"""Records: one envelope as an Avro single object, by hand for hot events, by `rewindmq.schemas.shapes` for the rest.

    encoder = Encoder();  prefix = encoder.prefix(timestamp_ms, actor)      # once per socket read
    record = encoder.encode(prefix, event)                                   # prefix + union index + fields
    decoder = Decoder();  timestamp_ms, actor, event = decoder.decode(record, bodies=False)

    | header: 10 bytes | timestamp | actor: user, session | event's index in EVENT_TYPES | the event's fields |
    |<---------------------- prefix --------------------->|

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
- The same bytes recur (the actor of a connection, the route of a publisher, the consumer of an ack). They are compared
  with the last ones, then looked up whole, and only parsed if they are new.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rewindmq.schemas.events import CLASSES, EVENT_TYPES, Acked, Credited, Event, Fetched, Nacked, Published, Tick
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

_CACHED: Final = 4096  # routes, actors and consumers that an encoder or decoder remembers, each; then it starts anew
_CACHED_BYTES: Final = 4 * 1024 * 1024  # of routes; each may name thousands of queues
_REMEMBERED_PROPERTIES: Final = 1_024  # bytes; messages with more are not remembered

_ENVELOPE: Final = shape_of(envelope_schema(), CLASSES, {})
_ACTOR: Final = _ENVELOPE.parts[1]
_EVENTS: Final = _ENVELOPE.parts[2].parts
_PUBLISHED: Final = _EVENTS[0]
_ROUTE: Final = _PUBLISHED.parts[0]
_ORIGIN: Final = _PUBLISHED.parts[5]
_ENCRYPTION: Final = _PUBLISHED.parts[6]
_METHODS: Final = _EVENTS[2].parts[5].names
_INDEXES: Final[dict[type, int]] = {cls: index for index, cls in enumerate(EVENT_TYPES)}

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
        """Return the header and the envelope's first fields, in bytes: the time and the actor."""
        return self.header + long_bytes(timestamp_ms) + _text(actor.user) + _long(actor.session)

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


class _Prefix:
    """A prefix met before, without the timestamp's first two bytes, which change with every millisecond.

    The rest of the timestamp changes every eight seconds. `start_ms`: the timestamp without the part in these two
    bytes, and less CONTINUED_MS."""

    def __init__(self, rest: bytes, start_ms: int, actor: Actor) -> None:
        self.rest = rest
        self.end = len(rest) + 12
        self.start_ms = start_ms
        self.actor = actor


class _Head:
    """The bytes from the third byte of the time up to the size of the body, in plain messages of one actor and route.

    `by_length`: the message in a record of each length."""

    def __init__(self, head: bytes, start_ms: int, actor: Actor) -> None:
        self.head = head
        self.end = len(head) + 12
        self.start_ms = start_ms
        self.actor = actor
        self.by_length: dict[int, _Message] = {}


class _Message:
    """A plain message. `size`: the written size of its body.

    `latest`: the bytes of its last record up to the body; `decoded`: the result of that record."""

    def __init__(self, size: bytes, event: Published, latest: bytes, decoded: tuple[int, Actor, Event]) -> None:
        self.size = size
        self.event = event
        self.latest = latest
        self.decoded = decoded


class _AckHead:
    """The bytes from the third byte of the time up to the ranges of ids, in acks of one actor and consumer.

    `consumer`: vhost, queue and consumer."""

    def __init__(self, head: bytes, prefix: _Prefix, consumer: tuple[str, str, int]) -> None:
        self.head = head
        self.end = len(head) + 12
        self.start_ms = prefix.start_ms
        self.actor = prefix.actor
        self.consumer = consumer


class _KnownRoute:
    """A route met before. `properties` and `head`: those of its last plain message and similar ones."""

    def __init__(self, encoded: bytes, route: Route, head: _Head) -> None:
        self.encoded = encoded
        self.route = route
        self.properties = _NEVER
        self.head = head


class Decoder:
    """A decoder of records. Equal bytes give the same `Actor` and `Route` objects (bounded caches).

    With `bodies` False, records that differ only in time and body may give the same `Published`."""

    def __init__(self) -> None:
        # Publishers and consumers alternate in a partition, so two prefixes are kept at hand.
        self._prefix = _Prefix(_NEVER, 0, Actor("", 0))
        self._other_prefix = self._prefix
        self._no_head = self._head = _Head(_NEVER, 0, self._prefix.actor)
        self._known = _KnownRoute(_NEVER, Route("", "", "", ()), self._no_head)  # the last route
        self._consumer_bytes = _NEVER  # the last vhost, queue and consumer
        self._consumer = ("", "", 0)
        self._ack = _AckHead(_NEVER, self._prefix, self._consumer)
        self._actors: dict[bytes, Actor] = {}
        self._routes: dict[bytes, _KnownRoute] = {}
        self._remembered = 0  # the number of messages in all heads together
        self._in_queues: dict[bytes, tuple[str, str, int]] = {}

    def decode(self, record: bytes, bodies: bool = True, stripped: bool = False) -> tuple[int, Actor, Event]:
        """Decode a record. Returns (timestamp in milliseconds, actor, event). Raises UndecodableRecord.

        With `bodies` False, `Published.body` is b"". `stripped`: `strip_body` made the record, so it has no body. The
        same records are undecodable under all these options, for the same reasons."""
        if not bodies and not stripped:
            head = self._head
            message = head.by_length.get(len(record))
            if message is not None:
                if record.startswith(message.latest):
                    return message.decoded
                if record.startswith(head.head, 12) and record.startswith(message.size, head.end):
                    low = record[10]
                    high = record[11]
                    if low & 0x81 == 0x80 and high > 0x7F and record.startswith(HEADER):
                        message.latest = record[: head.end + len(message.size)]
                        message.decoded = head.start_ms + (low >> 1) + (high << 6), head.actor, message.event
                        return message.decoded
        if not record.startswith(HEADER):
            return self._older(record, bodies and not stripped)
        if stripped and record.startswith(_UNSTRIPPED):
            return self._any(HEADER + record[len(_UNSTRIPPED) :], False, False)
        try:
            low = record[10]
            high = record[11]
            if low & 0x81 == 0x80 and high > 0x7F:
                ack = self._ack
                if record.startswith(ack.head, 12):
                    messages, pos = message_ranges(record, ack.end)
                    if pos == len(record):
                        vhost, queue, consumer = ack.consumer
                        acked = Acked(vhost, queue, consumer, messages)
                        return ack.start_ms + (low >> 1) + (high << 6), ack.actor, acked
                prefix = self._prefix
                if not record.startswith(prefix.rest, 12):
                    prefix = self._find_prefix(record)
                pos = prefix.end
                kind = record[pos]
                timestamp_ms = prefix.start_ms + (low >> 1) + (high << 6)
                if kind == _PUBLISHED_BYTE:
                    return timestamp_ms, prefix.actor, self._published(record, pos + 1, bodies, stripped)
                if kind <= _FETCHED_BYTE or kind == _TICK_BYTE:
                    return timestamp_ms, prefix.actor, self._hot(record, pos + 1, kind)
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

    def _find_prefix(self, record: bytes) -> _Prefix:
        """Return the prefix of this record, which is tried first from now on."""
        prefix = self._other_prefix
        if not record.startswith(prefix.rest, 12):
            timestamp_ms, start = varint(record, 10)
            _, end = varint(record, size_end(record, start))
            actor = self._interned_actor(record[start:end])
            prefix = _Prefix(record[12:end], (timestamp_ms & ~0x1FFF) - CONTINUED_MS, actor)
        self._other_prefix = self._prefix
        self._prefix = prefix
        return prefix

    def _published(self, record: bytes, pos: int, bodies: bool, stripped: bool) -> Published:
        known = self._known
        if record.startswith(known.encoded, pos):
            pos += len(known.encoded)
        else:
            end = route_end(record, pos)
            known = self._known = self._known_route(record[pos:end])
            pos = end
        size, pos = varint(record, pos)
        if size < 0:
            raise Surprise
        properties = record[pos : pos + size]
        pos += size
        expiration_ms: int | None = None
        priority: int | None = None
        origin: Origin | None = None
        encryption: Encryption | None = None
        middle = record[pos : pos + 5]
        if middle == _PLAIN_PERSISTENT:
            persistent = True
            pos += 5
        elif middle == _PLAIN_TRANSIENT:
            persistent = False
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
        # by position: keywords take twice as long here (events.py)
        event = Published(known.route, properties, expiration_ms, priority, persistent, origin, encryption, body, size)
        if middle in _PLAIN and not (bodies or stripped):
            self._remember(known, record, end, pos, event)
        return event

    def _remember(self, known: _KnownRoute, record: bytes, end: int, body: int, event: Published) -> None:
        """Remember a plain message. `end`: the position of its body's size; `body`: the position of its body."""
        if len(event.properties) > _REMEMBERED_PROPERTIES:
            return
        head = known.head
        if end != head.end or not record.startswith(head.head, 12):
            if event.properties != known.properties:  # many messages have the same
                known.properties = event.properties
                return
            head = known.head = _Head(record[12:end], self._prefix.start_ms, self._prefix.actor)
        self._head = head
        if self._remembered >= _CACHED:
            for each in self._routes.values():
                each.head = self._no_head
            head.by_length.clear()
            self._remembered = 0
        if len(record) not in head.by_length:
            decoded = head.start_ms + (record[10] >> 1) + (record[11] << 6), head.actor, event
            head.by_length[len(record)] = _Message(record[end:body], event, record[:body], decoded)
            self._remembered += 1

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

    def _hot(self, record: bytes, pos: int, kind: int) -> Event:
        if kind == _TICK_BYTE:
            if pos != len(record):
                raise Surprise
            return Tick()
        if kind & 1:
            raise Surprise
        if record.startswith(self._consumer_bytes, pos):
            end = pos + len(self._consumer_bytes)
            if kind == _ACKED_BYTE:  # the second in succession, so more may follow
                self._ack = _AckHead(record[12:end], self._prefix, self._consumer)
        else:
            _, end = varint(record, two_texts_end(record, pos))
            self._consumer = self._interned_in_queue(record[pos:end])
            self._consumer_bytes = record[pos:end]
        vhost, queue, consumer = self._consumer
        event: Event
        if kind == _ACKED_BYTE:
            messages, pos = message_ranges(record, end)
            event = Acked(vhost, queue, consumer, messages)
        elif kind == _NACKED_BYTE:
            messages, pos = message_ranges(record, end)
            requeue = flag(record, pos)
            method, pos = varint(record, pos + 1)
            if method < 0:
                raise Surprise
            event = Nacked(vhost, queue, consumer, messages, requeue, _METHODS[method])
        elif kind == _CREDITED_BYTE:
            credit, pos = varint(record, end)
            event = Credited(vhost, queue, consumer, credit)
        else:
            channel, pos = varint(record, end)
            event = Fetched(vhost, queue, consumer, channel, flag(record, pos))
            pos += 1
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
        start = cursor.pos
        index = cursor.long("the event's type")
        if not 0 <= index < len(_EVENTS):
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
        route = self._known_route(cursor.record[start : cursor.pos]).route
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

    def _known_route(self, encoded: bytes) -> _KnownRoute:
        known = self._routes.get(encoded)
        if known is None:
            known = _KnownRoute(encoded, read(Cursor(encoded, 0), _ROUTE, "route"), self._no_head)
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
