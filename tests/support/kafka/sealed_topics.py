"""Topics of a sealed history, and changed copies of them: an owner of Kafka can make such copies.

    place = sealed_history(kafka, "true", key)          1,000 events in queues-0, in stretches of some 300
    with forged(place) as copy: copy.queues[4:6] = copy.queues[5:3:-1]         a copy under another prefix, each record
                                                                               at its offset, with its time

The copy's topics take the writer's times (CreateTime), so that a record can keep its time.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from rewindmq.engine.keeping.seals import sealer as sealing
from rewindmq.engine.keeping.seals.in_topic import in_topics
from rewindmq.engine.keeping.seals.seal import StoredSeal, fingerprint
from rewindmq.engine.log.kafka import reader as kafka_reading
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Event, Purged
from rewindmq.schemas.metadata_events import VhostCreated
from rewindmq.schemas.values import Actor
from tests.support.kafka.producers import ordered_producer

SECONDS = 30
RECORDS = 1_000
START_MS = 1_763_694_000_000
KEY = Ed25519PrivateKey.generate()
KEYS = {fingerprint(KEY.public_key()): KEY.public_key()}
PRIVATE_PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
PUBLIC_PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@dataclass(slots=True)
class Topics:
    """The records of topics: (timestamp, value) of each."""

    bootstrap: str
    prefix: str
    metadata: list[tuple[int, bytes]]
    queues: list[tuple[int, bytes]]
    chain: list[tuple[int, bytes]]
    openings: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def log(self) -> KafkaLogReader:
        return KafkaLogReader(self.bootstrap, self.prefix)

    def write(self) -> None:
        settings = {"message.timestamp.type": "CreateTime", "retention.ms": "-1", "retention.bytes": "-1"}
        names = [f"{self.prefix}.{name}" for name in ("metadata", "queues", "nodes", "chain")]
        if not self.chain:
            names.pop()
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topics = [NewTopic(name, 1 + name.endswith("chain"), 1, config=settings) for name in names]
        for future in admin.create_topics(topics).values():
            future.result(SECONDS)
        self.append("metadata", self.metadata)
        self.append("queues", self.queues)
        self.append("chain", self.chain)
        if self.chain:
            self.append("chain", self.openings, 1)

    def append(self, topic: str, records: list[tuple[int, bytes]], number: int = 0) -> None:
        producer = ordered_producer(self.bootstrap)
        for timestamp_ms, value in records:
            producer.produce(f"{self.prefix}.{topic}", value, b"", number, timestamp=timestamp_ms)
        assert producer.flush(SECONDS) == 0


@contextmanager
def in_short_stretches() -> Iterator[None]:
    """Seals of 300 records, read in blocks of 100."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sealing, "STRETCH_RECORDS", 300)
        patched.setattr(kafka_reading, "BLOCK_RECORDS", 99)  # with the first of a batch 100
        yield


def event(number: int, what: Event) -> tuple[int, bytes]:
    encoder = Encoder()
    at = START_MS + number
    return at, encoder.encode(encoder.prefix(at, Actor("ann", 7)), what)


def purge(number: int) -> tuple[int, bytes]:
    return event(number, Purged("/", f"queue {number}"))


def history(bootstrap: str) -> Topics:
    """Topics of a new prefix, which are not sealed."""
    topics = Topics(bootstrap, f"sealed-{uuid.uuid4().hex[:12]}", [], [], [])
    topics.metadata = [event(0, VhostCreated("/"))]
    topics.queues = [purge(number) for number in range(RECORDS)]
    topics.write()
    return topics


def seal(topics: Topics, key: Ed25519PrivateKey = KEY, **options: Any) -> list[StoredSeal]:
    new = [each for part in in_topics(topics.log) for each in sealing.seal(part, key, START_MS, **options)]
    log = topics.log
    chain, openings = (KafkaPartition(log.clients, log.topics.chain, number, "chain").read() for number in (0, 1))
    topics.chain = [(START_MS, record) for block in chain for record in block.records]
    topics.openings = [(START_MS, record) for block in openings for record in block.records]
    return new


@contextmanager
def forged(original: Topics) -> Iterator[Topics]:
    """A copy, to be changed. At the end it is written to topics of its own."""
    prefix = f"forged-{uuid.uuid4().hex[:12]}"
    parts = (original.metadata, original.queues, original.chain, original.openings)
    copy = Topics(original.bootstrap, prefix, *([*part] for part in parts))
    yield copy
    copy.write()
