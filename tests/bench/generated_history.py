"""A history of any length, for measuring: `write_history(data, events, seed)`, the same each time from the same seed.

Written through the real log (`EmbeddedLog`: Avro blocks, chain, index, fsync) by the real encoder, into one partition,
without a broker. What consumers hold is followed by plain counting, so that every ack and nack makes sense in the fold.
The events are such as a broker would have written, in turns of 100 events of one queue:

    hot      classic     publishes of 20 bytes in bursts of 1 to 20, acks of 1 to 7 messages in ranges; prefetch 100
    steps    quorum      the same slower; one ack in eight is a nack that requeues, one in forty one that does not
    bounded  classic     nobody consumes, x-max-length 1000: every publish drops the oldest
    brief    classic     nobody consumes, x-message-ttl 2000: they expire, by the next event or by a Tick

A millisecond passes for every 20 events. The queues are as long at the end as near the beginning (about 3,000 messages
in all), so what an event costs can be compared between sizes.
"""

import random
from collections import deque
from pathlib import Path

from rewindmq.engine.log.embedded.log import EmbeddedLog, EmbeddedPartition
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    Event,
    Nacked,
    Published,
    Tick,
)
from rewindmq.schemas.values import BROKER, Actor, Argument, Route
from tests.support.events_for_tests import attached, declared

START_MS = 1_763_694_000_000
GROUP = 2_000  # events in a block
PREFETCH = 100
_SERVICE = Actor("service", 1 << 24)
_PROPERTIES = bytes.fromhex("9000") + bytes([16]) + b"application/json" + b"\x02"
# Of a hundred turns: whose they are
_SHARES = (("hot", 76), ("steps", 16), ("bounded", 4), ("brief", 4))


class Writer:
    """One partition of a log, and what consumers of its queues hold."""

    def __init__(self, log: EmbeddedLog, seed: int) -> None:
        self.log = log
        self.partition: EmbeddedPartition = log.queues[0]
        self.encoder = Encoder()
        self.chance = random.Random(seed)
        self.now_ms = START_MS
        self.queues: dict[str, deque[int]] = {}
        self.routes: dict[str, Route] = {}
        self.prefix = b""
        self.prefix_ms = 0

    def append(self, event: Event, actor: Actor = _SERVICE) -> int:
        partition = self.partition
        now_ms = START_MS + partition.next_offset // 20
        if now_ms != self.prefix_ms:
            self.prefix_ms = now_ms
            self.prefix = self.encoder.prefix(now_ms, _SERVICE)
        prefix = self.prefix if actor is _SERVICE else self.encoder.prefix(now_ms, actor)
        offset = partition.append(now_ms, self.encoder.encode(prefix, event))
        if offset % GROUP == 0:
            self.log.commit_and_wait()
        return offset

    def declare(self, queue: str, kind: str, arguments: dict[str, int], consumer: int) -> None:
        given = tuple(Argument(name, "signedint", value) for name, value in arguments.items())
        self.append(declared("/", queue, type=kind, durable=True, arguments=given, semantics="rabbitmq-3.13"))
        if consumer:
            self.append(attached("/", queue, consumer, channel=1, tag=f"ctag{consumer}", prefetch=PREFETCH))
        self.queues[queue] = deque()
        self.routes[queue] = Route("/", "amq.topic", f"flights.{queue}", (queue,))

    def publish(self, queue: str, count: int) -> None:
        event = Published(self.routes[queue], _PROPERTIES, persistent=True, body=b"x" * 20, body_size=20)
        waiting = self.queues[queue]
        for _ in range(count):
            waiting.append(self.append(event))

    def settle(self, queue: str, consumer: int) -> None:
        """The consumer settles some of what it holds: the oldest, at most its prefetch."""
        waiting = self.queues[queue]
        some = min(self.chance.randrange(1, 8), len(waiting), PREFETCH)
        ranges = _ranges(waiting, some)
        how = self.chance.randrange(40) if queue == "steps" else -1
        if how >= 0 and how % 8 == 1:  # they come back, and go to the same consumer at once
            self.append(Nacked("/", queue, consumer, ranges, True, "nack"))
            return
        for _ in range(some):
            waiting.popleft()
        self.append(
            Nacked("/", queue, consumer, ranges, False, "reject") if how == 0 else Acked("/", queue, consumer, ranges)
        )

    def burst(self, queue: str, consumer: int, events: int) -> None:
        end = self.partition.next_offset + events
        while self.partition.next_offset < end:
            behind = end - self.partition.next_offset
            if not consumer:
                self.publish(queue, behind)
                self.queues[queue].clear()
            elif len(self.queues[queue]) > PREFETCH or (self.queues[queue] and self.chance.random() < 0.5):
                self.settle(queue, consumer)
            else:
                self.publish(queue, min(behind, self.chance.randrange(1, 21)))


def _ranges(ids: "deque[int]", count: int) -> tuple[tuple[int, int], ...]:
    """The first `count` of ascending ids as inclusive ranges."""
    found: list[tuple[int, int]] = []
    first = last = ids[0]
    for index in range(1, count):
        following = ids[index]
        if following != last + 1:
            found.append((first, last))
            first = following
        last = following
    found.append((first, last))
    return tuple(found)


def write_history(data: Path, events: int, seed: int = 1, segment_bytes: int = 1 << 28) -> None:
    """A data directory with so many events in `queues-0`."""
    log = EmbeddedLog.open(data, partitions=1, segment_bytes=segment_bytes)
    writer = Writer(log, seed)
    writer.append(BrokerStarted("rewindmq@localhost", "0.1.0", 1), BROKER)
    writer.declare("hot", "classic", {}, 1)
    writer.declare("steps", "quorum", {"x-delivery-limit": 1_000_000}, 2)
    writer.declare("bounded", "classic", {"x-max-length": 1_000}, 0)
    writer.declare("brief", "classic", {"x-message-ttl": 2_000}, 0)
    consumers = {"hot": 1, "steps": 2}
    day = [queue for queue, share in _SHARES for _ in range(share)]
    while writer.partition.next_offset < events:
        queue = writer.chance.choice(day)
        writer.burst(queue, consumers.get(queue, 0), min(100, events - writer.partition.next_offset))
        if writer.chance.random() < 0.1 and writer.partition.next_offset < events:
            writer.append(Tick(), BROKER)
    log.commit_and_wait()
    log.close()


def write_backlog(data: Path, messages: int) -> None:
    """A data directory whose one queue holds so many messages that nobody consumes."""
    log = EmbeddedLog.open(data, partitions=1)
    writer = Writer(log, 1)
    writer.declare("long", "classic", {}, 0)
    writer.publish("long", messages)
    log.commit_and_wait()
    log.close()
