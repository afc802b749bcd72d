"""Seeded traffic through a real machine: events that make sense mostly, written to a log in memory and folded.

traffic = Traffic(seed=7)
traffic.run(500)                    # 500 events, in blocks as group commits would make them
traffic.log, traffic.machine        # the history, and what it must fold to
traffic.observed                    # per event: its effects' messages, for a live projector beside it
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rewindmq.engine.log.contract import Block
from rewindmq.engine.log.embedded.log import EmbeddedPartition
from rewindmq.projections.machine.data.effects import Effect, Quarantine
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.bodies import Body, without_queues
from rewindmq.projections.store.projector import Projector
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    DeadLettersForwarded,
    Event,
    Fetched,
    Nacked,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    SessionClosed,
    Tick,
)
from rewindmq.schemas.values import BROKER, Actor, Argument, Route
from tests.support.events_for_tests import attached, declared

START_MS = 1_763_694_000_000
ANN = Actor("ann", 7)
QUEUES = {
    "plain": (),
    "short": (Argument("x-max-length", "long", 5), Argument("x-dead-letter-exchange", "longstr", "dead")),
    "fleeting": (Argument("x-message-ttl", "long", 40), Argument("x-dead-letter-exchange", "longstr", "dead")),
    "strict": (
        Argument("x-max-length", "long", 4),
        Argument("x-overflow", "longstr", "reject-publish-dlx"),
        Argument("x-dead-letter-exchange", "longstr", "dead"),
    ),
    "counted": (Argument("x-delivery-limit", "long", 1), Argument("x-dead-letter-exchange", "longstr", "dead")),
}


def queue_declared(name: str, arguments: tuple[Argument, ...] = (), type: str = "classic") -> QueueDeclared:
    return declared("/", name, type=type, durable=True, arguments=arguments, semantics="rabbitmq-3.13")


def published(route: Route, body: bytes, expiration_ms: int | None = None) -> Published:
    return Published(
        route, b"\x10\x00\x02", expiration_ms=expiration_ms, persistent=True, body=body, body_size=len(body)
    )


def record(message: Published) -> bytes:
    """The event for comparing: routes are compared by identity, encoded messages by their content.

    The store has a shared message without the names of its queues."""
    encoder = Encoder()
    message = message if len(message.route.queues) == 1 else without_queues(message)
    return encoder.encode(encoder.prefix(START_MS, ANN), message)


@dataclass
class ListLog:
    """Records in a list, read in blocks of `block` records. `read_from` notes from which offsets it was read."""

    name: str = "queues-0"
    records: list[bytes] = field(default_factory=list)
    block: int = 16
    start_offset: int = 0
    shared: bool = False
    read_from: list[int] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return len(self.records)

    def append(self, timestamp_ms: int, record: bytes) -> int:
        self.records.append(record)
        return len(self.records) - 1

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]:
        self.read_from.append(offset)
        end = len(self.records) if end is None else min(end, len(self.records))
        for first in range(offset - offset % self.block, end, self.block):
            yield Block(first, self.records[first : first + self.block], 0, b"", Path("memory"), first)

    def offset_at(self, timestamp_ms: int) -> int:
        decoder = Decoder()
        times = enumerate(self.records)
        return next((at for at, record in times if decoder.timestamp_ms(record) > timestamp_ms), len(self.records))

    def base(self) -> None:
        """None: it begins at offset 0."""


class Traffic:
    """Seeded traffic.

    `projector`: a live one that observes as a broker would, after every turn of a few events."""

    def __init__(
        self,
        seed: int,
        machine: Machine | None = None,
        projector: Projector | None = None,
        start_ms: int = 0,
        log: ListLog | EmbeddedPartition | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.machine = Machine("queues-0") if machine is None else machine
        self.projector = projector
        self.log = ListLog() if log is None else log
        self.encoder = Encoder()
        self.now_ms = max(START_MS, start_ms)
        self.effects: list[Effect] = []
        self.fresh: dict[int, Body] = {}
        self.bodies: dict[int, Published] = {}  # everything ever published
        self.consumer = self.log.next_offset  # ids are unique in the whole history
        self.append(BROKER, BrokerStarted("node", "0", 1))
        for name, arguments in QUEUES.items():
            self.append(ANN, queue_declared(name, arguments, "quorum" if name == "counted" else "classic"))

    @property
    def listed(self) -> ListLog:
        """The log, which is a list."""
        assert isinstance(self.log, ListLog)
        return self.log

    def append(self, actor: Actor, event: Event) -> int:
        record = self.encoder.encode(self.encoder.prefix(self.now_ms, actor), event)
        offset = self.log.append(self.now_ms, record)
        if isinstance(event, Published):
            self.fresh[offset] = self.bodies[offset] = event
        before = len(self.effects)
        self.machine.apply(offset, self.now_ms, actor, event, self.effects)
        if self.projector is not None:
            for effect in self.effects[before:]:
                if isinstance(effect, Quarantine):
                    self.projector.quarantined(offset, effect.event_type, effect.reason)
        return offset

    def end_turn(self) -> None:
        if self.projector is not None:
            self.projector.observe(self.effects, self.fresh)
        self.effects.clear()
        self.fresh.clear()

    def run(self, events: int) -> None:
        for _ in range(events):
            self.now_ms += self.random.choice((0, 0, 1, 5, 20))
            self.append(*self.event())
            if self.random.random() < 0.3:
                self.end_turn()
        self.end_turn()

    def event(self) -> tuple[Actor, Event]:
        pick = self.random.random()
        name = self.random.choice(sorted(QUEUES))
        if pick < 0.55:
            return ANN, self._publish()
        if pick < 0.80:
            return ANN, self._settle(name)
        if pick < 0.86:
            self.consumer += 1
            prefetch = self.random.choice((0, 3))
            no_ack = self.random.random() < 0.3
            return ANN, attached(
                "/", name, self.consumer, channel=1, tag=f"c{self.consumer}", no_ack=no_ack, prefetch=prefetch, credit=6
            )
        if pick < 0.90:
            self.consumer += 1
            return ANN, Fetched("/", name, self.consumer, 1, self.random.random() < 0.5)
        if pick < 0.94:
            return BROKER, self._forwarded()
        if pick < 0.96:
            return ANN, self.random.choice((SessionClosed(7, 0), SessionClosed(7, 1)))
        if pick < 0.97:
            return ANN, Purged("/", name)
        if pick < 0.98:
            return ANN, QueueDeleted("/", name, False, False)
        if pick < 0.99:
            return ANN, queue_declared(name, QUEUES[name], "quorum" if name == "counted" else "classic")
        return BROKER, self.random.choice((Tick(), BrokerStarted("node", "0", 1)))

    def _publish(self) -> Published:
        names = self.random.sample(sorted(QUEUES), self.random.choice((1, 1, 1, 2, 3)))
        route = Route("/", "", "key", tuple(sorted(names)))
        expiration = self.random.choice((None, None, None, 0, 15))
        return published(route, self.random.randbytes(self.random.choice((0, 10, 300))), expiration)

    def _settle(self, name: str) -> Event:
        queue = self.machine.queue("/", name)
        holders = [] if queue is None else [h for h in queue.holders.values() if h.held]
        if not holders:
            return Tick()
        holder = self.random.choice(holders)
        message_id = self.random.choice(sorted(holder.held))
        messages = ((message_id, message_id),)
        if self.random.random() < 0.6:
            return Acked("/", name, holder.consumer, messages)
        requeue = self.random.random() < 0.5
        return Nacked("/", name, holder.consumer, messages, requeue, "nack")

    def _forwarded(self) -> Event:
        waiting = [queue for queue in self.machine.by_id.values() if queue.outbox]
        if not waiting:
            return Tick()
        queue = self.random.choice(waiting)
        sequence = self.random.choice(sorted(queue.outbox))
        return DeadLettersForwarded("/", queue.name, queue.queue_id, sequence)


def live_messages(machine: Machine) -> set[tuple[int, int]]:
    """(queue id, message id) of every message whose body must be there."""
    live: set[tuple[int, int]] = set()
    for queue in machine.by_id.values():
        live.update((queue.queue_id, view.message_id) for view in queue.messages())
        live.update((queue.queue_id, letter.message_id) for letter in queue.outbox.values())
    return live
