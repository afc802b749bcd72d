"""The topics of a history in a real Kafka, for tests: copied from an embedded log, or written event by event.

They are as RewindMQ makes them, but the writer sets the time (CreateTime): so a history can have the same times in both
logs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Acked, ConsumerAttached, Event, Published
from rewindmq.schemas.values import Actor, Argument, Route
from tests.support.events_for_tests import declared
from tests.support.kafka.producers import ordered_producer
from tests.support.spark.histories import ANN, START_MS

SECONDS = 60
FOR_EVER = {"message.timestamp.type": "CreateTime", "retention.ms": "-1", "retention.bytes": "-1"}


def make_topics(bootstrap: str, prefix: str, partitions: int, settings: Mapping[str, str] = FOR_EVER) -> InKafka:
    place = InKafka(bootstrap, prefix)
    counts = {place.metadata: 1, place.queues: partitions, f"{prefix}.nodes": 1}
    topics = [NewTopic(name, count, 1, config={**FOR_EVER, **settings}) for name, count in counts.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it must live until the answers are there
    for future in admin.create_topics(topics).values():
        future.result(SECONDS)
    return place


class Writer:
    """Appends to the topics. `settings` are librdkafka's."""

    def __init__(self, place: InKafka, **settings: str) -> None:
        self.place = place
        self.producer = ordered_producer(place.bootstrap, **settings)
        self.encoder = Encoder()
        self.copied: dict[str, int] = {}

    def event(self, number: int, timestamp_ms: int, actor: Actor, event: Event) -> None:
        self.value(
            self.place.queues,
            number,
            timestamp_ms,
            self.encoder.encode(self.encoder.prefix(timestamp_ms, actor), event),
        )

    def value(self, topic: str, number: int, timestamp_ms: int, value: bytes | None) -> None:
        while True:
            try:
                self.producer.produce(topic, value, b"", number, timestamp=timestamp_ms)
                return
            except BufferError:
                self.producer.poll(0.1)

    def flush(self) -> None:
        assert self.producer.flush(SECONDS) == 0

    def copy(self, data: Path, share: float = 1.0, until_ms: int | None = None) -> None:
        """Copy records of the embedded log that are not copied yet, up to this share of each partition, or to a time.

        Each record keeps the time of its envelope and (in topics that were empty) its offset."""
        log = EmbeddedLogReader(data)
        time_of = Decoder().timestamp_ms
        for partition in log.partitions:
            topic = self.place.metadata if partition.name == log.metadata.name else self.place.queues
            start, end = self.copied.get(partition.name, 0), int(partition.next_offset * share)
            if until_ms is not None:
                end = partition.offset_at(until_ms)
            for block in partition.read(start, end):
                for offset, record in enumerate(block.records, block.first_offset):
                    if start <= offset < end:
                        self.value(topic, int(partition.name.rpartition("-")[2]), time_of(record), record)
            self.copied[partition.name] = end
        self.flush()


def published(body: bytes, queue: str = "orders") -> Published:
    route = Route("/", "", queue, (queue,))
    return Published(route, b"\x10\x00\x02", persistent=True, body=body, body_size=len(body))


def write_gaps(place: InKafka) -> None:
    """Write a history of one queue partition with ends of transactions in it.

    They take offsets (1, 4, 6, 10, 13, 15). There is an aborted transaction (its records stay), and there are values
    that are no events."""
    writer = Writer(place, **{"transactional.id": place.prefix})
    producer = writer.producer
    producer.init_transactions()
    times = iter(range(START_MS, START_MS + 100))

    def append(*events: Event | bytes | None, ends: Callable[[], None] = producer.commit_transaction) -> None:
        producer.begin_transaction()
        for event in events:
            if event is None or isinstance(event, bytes):
                writer.value(place.queues, 0, next(times), event)
            else:
                writer.event(0, next(times), ANN, event)
        writer.flush()  # an abort throws unsent records away
        ends()

    limit = (Argument("x-max-length", "signedint", 3),)
    append(declared("/", "orders", durable=True, arguments=limit, semantics="rabbitmq-3.13"))
    append(published(b"at 2"), published(b"at 3"))  # 4: the end of the transaction
    append(published(b"at 5"), ends=producer.abort_transaction)
    append(b"no event", None, b"\xc3\x01" + bytes(8) + b"of an unknown schema")  # 7, 8, 9
    attached = ConsumerAttached(
        "/",
        "orders",
        100,
        channel=1,
        tag="",
        no_ack=False,
        exclusive=False,
        prefetch=2,
        credit=0,
        global_prefetch=0,
        priority=0,
        arguments=(),
    )
    append(attached, Acked("/", "orders", 100, ((2, 3),)))
    append(published(b"at 14"))
