"""Histories to test Spark with: events written through the real log, as a broker would, with the state at each offset.

    history = Recorder(data);  history.declare("orders");  history.publish("orders", b"one");  history.close()

The clock is the test's: `wait(ms)` moves it. The effects say which messages consumers hold, so that acks make sense.
"""

import random
from pathlib import Path
from typing import TypedDict

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.data.effects import Deliver, Effect, FetchReply, Forget, Requeue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    Checkpointed,
    Event,
    Fetched,
    GlobalPrefetchSet,
    MetadataEvent,
    Nacked,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    SessionClosed,
    Tick,
)
from rewindmq.schemas.metadata_events import MarkSet, PolicySet, VhostCreated
from rewindmq.schemas.values import BROKER, Actor, Argument, Policy, Route
from tests.support.events_for_tests import attached, declared


class When(TypedDict, total=False):
    """The moment of a state: one of the two fields, or neither."""

    time: str
    offsets: str


START_MS = 1_763_694_000_000  # 2025-11-21T03:00:00Z
ANN = Actor("ann", 7)
POLICIES = ('{"max-length":3}', '{"max-length-bytes":90}', '{"message-ttl":90}')


class Recorder:
    """Writes events and folds them as it goes. `states[partition][offset]` is the digest before that offset when
    `digests` is set."""

    def __init__(self, data: Path, partitions: int = 2, digests: bool = False, segment_bytes: int = 1 << 28) -> None:
        self.data = data
        self.log = EmbeddedLog.open(data, partitions=partitions, segment_bytes=segment_bytes)
        self.machines = [Machine(partition.name) for partition in self.log.queues]
        self.encoder = Encoder()
        self.now_ms = START_MS
        self.digests = digests
        self.states: list[dict[int, str]] = [{} for _ in self.machines]
        self.out: dict[int, dict[int, str]] = {}  # consumer -> message -> queue
        self.routes: dict[tuple[str, ...], Route] = {}
        self.definitions: dict[str, QueueDeclared] = {}
        self.metadata(BrokerStarted("rewindmq@localhost", "0.1.0", 1))
        self.metadata(VhostCreated("/"))
        for index in range(partitions):
            self.append(index, BROKER, BrokerStarted("rewindmq@localhost", "0.1.0", 1))

    def close(self) -> None:
        self.log.commit_and_wait()
        self.log.close()

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def metadata(self, event: MetadataEvent, actor: Actor = BROKER) -> int:
        prefix = self.encoder.prefix(self.now_ms, actor)
        return self.log.metadata.append(self.now_ms, self.encoder.encode(prefix, event))

    def mark(self, name: str) -> None:
        """The moment now."""
        self.metadata(MarkSet(name, tuple((each.name, each.next_offset) for each in self.log.queues)))

    def append(self, index: int, actor: Actor, event: Event) -> int:
        machine, partition = self.machines[index], self.log.queues[index]
        if self.digests:
            self.states[index][partition.next_offset] = machine.digest()
        offset = partition.append(self.now_ms, self.encoder.encode(self.encoder.prefix(self.now_ms, actor), event))
        effects: list[Effect] = []
        machine.apply(offset, self.now_ms, actor, event, effects)
        self.follow(effects)
        if offset % 7 == 0:
            self.log.commit_and_wait()
        return offset

    def follow(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver) and not effect.final:
                self.out.setdefault(effect.consumer, {}).update(dict.fromkeys(effect.message_ids, effect.queue.name))
            elif isinstance(effect, FetchReply) and not effect.final and effect.message_id >= 0:
                self.out.setdefault(effect.consumer, {})[effect.message_id] = effect.queue.name
            elif isinstance(effect, Forget | Requeue):
                for message_id in effect.message_ids:
                    self.out.get(effect.consumer, {}).pop(message_id, None)

    def partition(self, queue: str) -> int:
        return partition_of("/", queue, len(self.machines))

    # -- events of a broker ---------------------------------------------------------------------------------

    def declare(self, queue: str, arguments: dict[str, int | str] | None = None, kind: str = "classic") -> int:
        given = tuple(
            Argument(name, "signedint" if isinstance(value, int) else "longstr", value)
            for name, value in sorted((arguments or {}).items())
        )
        event = declared("/", queue, type=kind, durable=True, arguments=given, semantics="rabbitmq-3.13")
        self.definitions[queue] = event
        return self.append(self.partition(queue), ANN, event)

    def publish(self, queue: str, body: bytes, expiration_ms: int | None = None, persistent: bool = True) -> int:
        index = self.partition(queue)
        route = self.routes.setdefault((queue,), Route("/", "", queue, (queue,)))
        event = Published(
            route, b"\x10\x00\x02", expiration_ms=expiration_ms, persistent=persistent, body=body, body_size=len(body)
        )
        return self.append(index, ANN, event)

    def fan_out(self, queues: tuple[str, ...], body: bytes) -> int:
        """Publish to several queues, which must be of one partition."""
        route = self.routes.setdefault(queues, Route("/", "amq.fanout", "", queues))
        event = Published(route, b"\x10\x00\x02", persistent=True, body=body, body_size=len(body))
        return self.append(self.partition(queues[0]), ANN, event)

    def consume(
        self, queue: str, consumer: int, prefetch: int = 0, no_ack: bool = False, session: int = 7, shared: int = 0
    ) -> int:
        credit = 0 if prefetch else 1000
        event = attached(
            "/",
            queue,
            consumer,
            channel=1,
            tag=f"ctag{consumer}",
            no_ack=no_ack,
            prefetch=prefetch,
            credit=credit,
            global_prefetch=shared,
        )
        return self.append(self.partition(queue), Actor("ann", session), event)

    def global_prefetch(self, prefetch: int, session: int = 7) -> None:
        for index in range(len(self.machines)):
            self.append(index, Actor("ann", session), GlobalPrefetchSet(session, 1, prefetch))

    def get(self, queue: str, consumer: int, no_ack: bool = False) -> int:
        return self.append(self.partition(queue), ANN, Fetched("/", queue, consumer, 1, no_ack))

    def ack(self, queue: str, consumer: int, *ids: int) -> int:
        return self.append(self.partition(queue), ANN, Acked("/", queue, consumer, ranges(ids)))

    def nack(self, queue: str, consumer: int, *ids: int, requeue: bool = True) -> int:
        event = Nacked("/", queue, consumer, ranges(ids), requeue, "nack")
        return self.append(self.partition(queue), ANN, event)

    def purge(self, queue: str) -> int:
        return self.append(self.partition(queue), ANN, Purged("/", queue))

    def delete(self, queue: str) -> int:
        return self.append(self.partition(queue), ANN, QueueDeleted("/", queue, False, False))

    def tick(self, index: int) -> int:
        return self.append(index, BROKER, Tick())

    def disconnect(self, session: int) -> None:
        for index in range(len(self.machines)):
            self.append(index, BROKER, SessionClosed(session, 0))

    def policy(self, queue: str, name: str, definition: str) -> int:
        version = self.metadata(PolicySet("/", name, f"^{queue}$", definition, 0, "queues"), ANN)
        applied = PolicyApplied("/", queue, Policy(name, definition, version), None)
        return self.append(self.partition(queue), ANN, applied)

    def claim(self, index: int, digest: str | None = None) -> int:
        machine = self.machines[index]
        said = machine.digest() if digest is None else digest
        return self.append(index, BROKER, Checkpointed(machine.next_offset - 1, said))


def ranges(ids: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Ids as the ascending inclusive ranges that events carry."""
    found: list[tuple[int, int]] = []
    for one in sorted(ids):
        if found and found[-1][1] == one - 1:
            found[-1] = (found[-1][0], one)
        else:
            found.append((one, one))
    return tuple(found)


def random_history(history: Recorder, seed: int, events: int) -> None:
    """A busy day: several queues with limits and TTLs, consumers that ack, reject, requeue and vanish, and policies."""
    chance = random.Random(seed)
    history.declare("plain")
    history.declare("short", {"x-max-length": 5, "x-dead-letter-exchange": "dlx"})
    history.declare("strict", {"x-max-length": 4, "x-overflow": "reject-publish"})
    history.declare("brief", {"x-message-ttl": 400, "x-dead-letter-exchange": ""})
    history.declare("solid", {"x-delivery-limit": 2}, "quorum")
    queues = list(history.definitions)
    consumers: dict[int, str] = {}
    for step in range(events):
        history.wait(chance.choice((0, 0, 1, 5, 60)))
        queue = chance.choice(queues)
        act = chance.random()
        held = [(consumer, next(iter(ids.values())), list(ids)) for consumer, ids in history.out.items() if ids]
        if act < 0.5:
            history.publish(queue, b"x" * chance.randrange(40), chance.choice((None, None, None, 200)))
        elif act < 0.6 and len(consumers) < 6:
            consumer = 100 + step
            consumers[consumer] = queue
            history.consume(queue, consumer, chance.choice((0, 2, 5)), chance.random() < 0.2, 7 + step % 3)
        elif act < 0.85 and held:
            consumer, queue, ids = chance.choice(held)
            some = chance.sample(ids, chance.randrange(1, len(ids) + 1))
            if chance.random() < 0.6:
                history.ack(queue, consumer, *some)
            else:
                history.nack(queue, consumer, *some, requeue=chance.random() < 0.6)
        elif act < 0.9:
            history.get(queue, 10_000 + step, chance.random() < 0.5)
        elif act < 0.92:
            gone = chance.randrange(7, 10)
            history.disconnect(gone)
            consumers = {c: q for c, q in consumers.items() if 7 + (c - 100) % 3 != gone}
            pass
        elif act < 0.94:
            history.purge(queue)
        elif act < 0.96:
            history.policy(queue, f"limit-{queue}", chance.choice(POLICIES))
        elif act < 0.97:
            history.claim(history.partition(queue))
        else:
            history.tick(history.partition(queue))


def plain_fold(data: Path, number: int, end: int) -> Machine:
    """The simplest fold there is: record by record, no snapshot, no Spark."""
    partition = EmbeddedLogReader(data).queues[number]
    machine, decoder = Machine(partition.name), Decoder()
    for block in partition.read():
        for offset, record in enumerate(block.records, block.first_offset):
            if offset < end:
                machine.apply(offset, *decoder.decode(record), [])
    return machine
