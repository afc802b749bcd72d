"""Makes the record that puts a message into a queue, for services that publish by appending to Kafka.

    producer = confluent_kafka.Producer({..., "partitioner": "murmur2", "enable.idempotence": True})
    publisher = Publisher("billing")                        # the service's name, the publisher in the history
    record = publisher.record("/", "orders", b'{"id": 7}', content_type="application/json", headers={"try": 1})
    producer.produce(record.topic, key=record.key, value=record.value)

    topic   <prefix>.queues
    key     vhost/queue in UTF-8; the partition is Kafka's murmur2 of it (the default of Kafka's Java client, not of
            librdkafka). A record in another partition is quarantined, because the queue is not there. If partitions
            were added to the topic later, the service itself must name the partition (docs/producing.md)
    value   an Avro single object: C3 01, the fingerprint of the schema, an envelope with a `Published` event

The contract
- Nothing is routed: no exchange, no binding, the record names its queue. One queue per record.
- The queue must exist. A record for a missing one is quarantined: skipped, counted, and listed with its offset and
  reason (`rewindmq list_quarantined`). It stays quarantined even if the queue is declared later.
- A service that may write to the topic may publish to any queue. Kafka's ACLs decide that, not RewindMQ's users and
  permissions. The service itself states its name. A header x-restored, and a user_id other than that name, do not
  count: readers leave them out, because only a broker may state these.
- Limits, overflow and TTL apply as for any publish, at Kafka's time of the record (LogAppendTime). A publish that the
  queue refuses (reject-publish) is not reported to the producer: it is in the history (outcome `refused`), and counted
  (`rewindmq_queue_messages_by_outcome{outcome="refused"}`).
- A producer gets Kafka's acknowledgement: with `acks=all` the message is as safe as a confirmed one. Use the idempotent
  producer, because otherwise a retry can put a message into the queue twice. Order is kept within a key.
- Transactions have no effect: readers are read_uncommitted, and an aborted record counts like any other.
- `max.message.bytes` of the topic bounds a record; a body counts with its length, as in AMQP.

This module makes bytes and needs no Kafka client. Whole numbers in headers are always AMQP's `long` and others
`double`, so that a typed consumer gets the same type each time. docs/producing.md shows how to do without this module.
"""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from rewindmq.schemas.amqp.properties import MAX_EXPIRY_MS, MAX_PROPERTIES_BYTES, join_by_name
from rewindmq.schemas.amqp.tables import encode, seconds, utf8, whole, with_length
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Route

ROUTES = 4_096  # queues that a publisher remembers before it starts anew

HeaderValue = None | bool | int | float | str | bytes | datetime | list["HeaderValue"] | Mapping[str, "HeaderValue"]


class Record(NamedTuple):
    """A record for Kafka: topic, key and value."""

    topic: str
    key: bytes
    value: bytes


class Publisher:
    """A maker of one service's records. Not thread-safe."""

    def __init__(self, service: str, prefix: str = "rewindmq") -> None:
        self.topic = f"{prefix}.queues"
        self._encoder = Encoder()
        self._actor = Actor(_name("service", service), 0)
        self._routes: dict[tuple[str, str], tuple[bytes, Route]] = {}

    def record(
        self,
        vhost: str,
        queue: str,
        body: bytes,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        delivery_mode: int = 2,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: int | str | None = None,
        message_id: str | None = None,
        timestamp: int | datetime | None = None,
        type: str | None = None,
        app_id: str | None = None,
    ) -> Record:
        """Return the record that publishes `body` to `queue`.

        Properties are AMQP's: `delivery_mode` 2 (the default here) survives a restart of the broker and 1 does not;
        `expiration` in milliseconds; `timestamp` in seconds since 1970, or a datetime with a time zone. Raises
        ValueError, in one line, for a value that AMQP cannot hold."""
        key, route = self._routes.get((vhost, queue)) or self._new_route(vhost, queue)
        if not isinstance(body, bytes):
            raise ValueError(f"the body must be bytes, not {body.__class__.__name__}")
        if delivery_mode not in (1, 2):
            raise ValueError(f"delivery_mode is 1 (transient) or 2 (persistent), not {delivery_mode!r}")
        expiration_ms = None if expiration is None else _milliseconds(expiration)
        given = {
            "content_type": _short("content_type", content_type),
            "content_encoding": _short("content_encoding", content_encoding),
            "headers": None if headers is None else _headers(headers),
            "delivery_mode": bytes((delivery_mode,)),
            "priority": None if priority is None else bytes((whole("priority", priority, 255),)),
            "correlation_id": _short("correlation_id", correlation_id),
            "reply_to": _short("reply_to", reply_to),
            "expiration": None if expiration_ms is None else _short("expiration", str(expiration_ms)),
            "message_id": _short("message_id", message_id),
            "timestamp": None if timestamp is None else seconds("timestamp", timestamp).to_bytes(8, "big"),
            "type": _short("type", type),
            "app_id": _short("app_id", app_id),
        }  # no "user_id", which is an authenticated name that Kafka's producers lack; `actor` names the service
        properties = join_by_name(given)
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise ValueError(f"properties of {len(properties)} bytes; at most {MAX_PROPERTIES_BYTES} fit into a frame")
        event = Published(
            route,
            properties,
            expiration_ms=expiration_ms,
            priority=priority,
            persistent=delivery_mode == 2,
            body=body,
            body_size=len(body),
        )
        prefix = self._encoder.prefix(int(time.time() * 1000), self._actor)
        return Record(self.topic, key, self._encoder.encode(prefix, event))

    def _new_route(self, vhost: str, queue: str) -> tuple[bytes, Route]:
        _name("vhost", vhost)
        _name("queue", queue)
        if len(self._routes) >= ROUTES:
            self._routes.clear()
        # As if published to the default exchange, which routes to the queue of that name.
        known = self._routes[vhost, queue] = (f"{vhost}/{queue}".encode(), Route(vhost, "", queue, (queue,)))
        return known


# -- what is allowed ---------------------------------------------------------------------------------------------------


def _name(what: str, value: str) -> str:
    if not utf8(what, value, 255):
        raise ValueError(f"{what} must not be empty")
    return value


def _milliseconds(value: int | str) -> int:
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdigit():
        value = int(value)
    return whole("expiration", value, MAX_EXPIRY_MS)


def _short(what: str, value: str | None) -> bytes | None:
    if value is None:
        return None
    data = utf8(what, value, 255)
    return bytes((len(data),)) + data


def _headers(headers: Mapping[str, HeaderValue]) -> bytes:
    if not isinstance(headers, Mapping):
        raise ValueError(f"headers must be a mapping, not {type(headers).__name__}")
    for name in ("CC", "BCC"):
        if name in headers:
            raise ValueError(f"headers: {name} asks for further routing, and nothing is routed here")
    return with_length(encode(headers, "headers"))
