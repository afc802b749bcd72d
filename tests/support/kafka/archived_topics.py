"""A history in topics, its archive, and the two of them together."""

from itertools import count
from typing import Any

from confluent_kafka.admin import AdminClient

from rewindmq.engine.keeping.archive.archiver import ArchiveReport, verify
from rewindmq.engine.keeping.archive.manifest import Manifest
from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver
from rewindmq.engine.keeping.archive.topic_records import records_of
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.topic_tiers import TieredTopic, TieredTopics
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.schemas.events import Acked, ConsumerAttached
from rewindmq.schemas.metadata_events import VhostCreated
from tests.support.events_for_tests import declared
from tests.support.kafka.sealed_topics import SECONDS, START_MS, event
from tests.support.spark.histories import ANN
from tests.support.spark.topics import Writer, published


def log_of(place: InKafka) -> KafkaLogReader:
    return KafkaLogReader(place.bootstrap, place.prefix)


def archive(objects: Objects, place: InKafka, roll: bool = True, **options: Any) -> ArchiveReport:
    """Archive the topics once."""
    archiver = TopicArchiver(objects, log_of(place), settle_seconds=0, **options)
    try:
        return archiver.run(roll)
    finally:
        archiver.close()


def blocks(partition: Any) -> list[tuple[int, int, bytes]]:
    """Offset, time and value of each record."""
    return [
        (block.first_offset + at, time_ms, value)
        for block in partition.read()
        for at, (time_ms, value) in enumerate(zip(block.timestamps_ms, block.records, strict=True))
    ]


def raw(partition: KafkaPartition) -> list[Any]:
    return list(records_of(partition, 0, partition.next_offset))


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    """Delete records of a topic's first partition, as Kafka's retention does."""
    from confluent_kafka import TopicPartition

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(SECONDS)


MESSAGES = 100
KEPT_IDS = range(1, 11)  # of the messages that are never acked
OWNED = frozenset({"queues-0"})
TRIM_POINTS = [
    "trim.before_proof",
    "trim.before_event",
    "trim.after_event",
    "trim.before_end",
    "trim.before_topic",
    "trim.before_entry",
    "trim.before_objects",
    "trim.after_end",
]


class Ticking:
    """A clock that goes on by a minute at each look."""

    def __init__(self) -> None:
        self._minutes = count(1)

    def __call__(self) -> float:
        return 60.0 * next(self._minutes)


def write_history(place: InKafka, changed: int = -1) -> None:
    """`changed`: the number of a message that has another body."""
    writer = Writer(place)
    _, value = event(0, VhostCreated("/"))
    writer.value(place.metadata, 0, START_MS, value)
    times = (START_MS + 1_000 * number for number in count())
    writer.event(
        0,
        next(times),
        ANN,
        declared("/", "orders", durable=True, semantics="rabbitmq-3.13"),
    )
    for number in range(10):
        writer.event(0, next(times), ANN, published(b"kept %d" % number))
    attached = ConsumerAttached(
        "/",
        "orders",
        100,
        channel=1,
        tag="",
        no_ack=False,
        exclusive=False,
        prefetch=1_000,
        credit=0,
        global_prefetch=0,
        priority=0,
        arguments=(),
    )
    writer.event(0, next(times), ANN, attached)
    for number in range(MESSAGES):
        body = b"other" if number == changed else b"%05d" % number
        writer.event(0, next(times), ANN, published(body))
        at = 12 + 2 * number
        writer.event(0, next(times), ANN, Acked("/", "orders", 100, ((at, at),)))
    writer.flush()


def start_in_kafka(place: InKafka) -> int:
    """Return the offset at which the queue partition begins in Kafka."""
    return log_of(place).queues[0].start_offset


def tiered(place: InKafka, objects: Objects) -> TieredTopic:
    """Return the queue partition as Kafka and the archive have it together."""
    [partition] = TieredTopics(log_of(place), objects.url).queues
    return partition


FLOOR = 100


def require_trimmed(place: InKafka, objects: Objects, floor: int = FLOOR) -> None:
    """Kafka and the archive begin at the floor, and the archive is whole."""
    manifest = Manifest.load(objects, "queues-0")
    assert (start_in_kafka(place), manifest.floor) == (floor, floor)
    there = {key for each in ("segments", "bases", "snapshots") for key in objects.list(f"queues-0/{each}")}
    assert not there & manifest.trimmed_keys.keys()
    for name in ("metadata-0", "queues-0"):
        assert [error for _, error in verify(objects, name) if error is not None] == []
