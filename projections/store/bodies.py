"""The body cache: bodies read ahead from RocksDB or just written to it, in a bounded amount of memory.

A body that was read ahead is kept in its stored form (a record) and decoded on request: a hundred bytes that the
garbage collector never visits, instead of an object. A body that was just written is kept as its message. When there is
no room, whole queues are dropped, the oldest in the cache first. If such a queue is still being read, its next
read-ahead loads it again at once.

A stored body is a record under the schema of the partition's machine version (machine/rules/versions.py). Because the
log has the time and the user of the publish, all bodies here have the same time and actor, and equal messages are equal
bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.registry import envelope_fingerprint
from rewindmq.schemas.values import BROKER, Route

# Memory in CPython besides the body of a Published (its strings and numbers), and besides the content of a bytes object
# in a dict.
MESSAGE_OVERHEAD_BYTES: Final = 400
STORED_OVERHEAD_BYTES: Final = 120

Body = bytes | Published

_STAMP_MS: Final = 1 << 40  # some day of 2004: it has the length that the decoder expects of a timestamp


class Form:
    """The form of bodies under one schema. `stamp`: the prefix of their records."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._encoder = encoder_under(schema)
        self.stamp = self._encoder.prefix(_STAMP_MS, BROKER)

    def of(self, message: Published) -> bytes:
        """Return the message in this form."""
        return self._encoder.encode(self.stamp, message)


TODAY = Form(envelope_fingerprint())  # not Final: tests set others, in compiled code too


class BodyCache:
    """A cache of bodies by queue and message id.

    `used_bytes` is an estimate. It stays at or below `limit_bytes`, unless a single read-ahead is larger than that."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._decoder = Decoder()
        self.queues: dict[int, dict[int, Body]] = {}

    def get(self, queue_id: int, message_id: int) -> Published | None:
        """Return the cached message; None if it is not in the cache."""
        bodies = self.queues.get(queue_id)
        if bodies is None:
            return None
        body = bodies.get(message_id)
        if isinstance(body, bytes):
            return self.decoded(body)
        return body

    def decoded(self, stored: bytes) -> Published:
        """Return the message that the store has in this form."""
        message = self._decoder.decode(stored)[2]
        assert isinstance(message, Published), "the store holds messages only"
        return message

    def add(self, queue_id: int, bodies: Mapping[int, Body]) -> None:
        """Cache these bodies. If there is no room, drop queues that were cached earlier."""
        size = size_of(bodies.values())
        while self.queues and self.used_bytes + size > self.limit_bytes:
            self.drop_queue(next(iter(self.queues)))
        mine = self.queues.setdefault(queue_id, {})
        before = [mine[message_id] for message_id in bodies if message_id in mine]
        mine.update(bodies)
        self.used_bytes += size - size_of(before)

    def has_room_for(self, size: int) -> bool:
        """Return True if `size` more bytes fit into the cache."""
        return self.used_bytes + size <= self.limit_bytes

    def drop(self, queue_id: int, message_ids: Iterable[int]) -> None:
        """Remove these bodies of a queue. Ids that are not in the cache are ignored."""
        bodies = self.queues.get(queue_id)
        if bodies:
            dropped = [body for message_id in message_ids if (body := bodies.pop(message_id, None)) is not None]
            self.used_bytes -= size_of(dropped)

    def drop_queue(self, queue_id: int) -> None:
        """Remove all bodies of a queue."""
        self.used_bytes -= size_of(self.queues.pop(queue_id, {}).values())


def is_shared(message: Published) -> bool:
    """Return True if RocksDB stores the message once for several queues of the partition."""
    return len(message.route.queues) > 1


def without_queues(message: Published) -> Published:
    """Return a shared message as RocksDB stores it: without the names of its queues."""
    route = message.route
    return replace(message, route=Route(route.vhost, route.exchange, route.routing_key, (), route.deduplication))


def size_of(bodies: Iterable[Body]) -> int:
    """Return the memory that the bodies use, in bytes (an estimate)."""
    size = 0
    for body in bodies:
        if isinstance(body, bytes):
            size += len(body) + STORED_OVERHEAD_BYTES
        else:
            size += body.body_size + MESSAGE_OVERHEAD_BYTES
    return size
