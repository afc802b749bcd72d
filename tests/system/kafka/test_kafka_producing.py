"""Services that publish by appending to Kafka: docs/producing.md is run, and what it produced is folded."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rewindmq.engine.http.properties import properties_of
from rewindmq.projections.machine.data.effects import Deliver, Effect, Quarantine
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rules.partition_hash import murmur2, partition_of
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Event, Published, QueueDeclared
from rewindmq.schemas.producer import Publisher
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import Actor, Route
from tests.support.deadlines import SECONDS, until
from tests.support.events_for_tests import attached
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.producers import ordered_producer
from tests.support.running import ROOT, RunningBroker

pytestmark = pytest.mark.long

DOC = ROOT / "docs" / "producing.md"
PARTITIONS = 5
SERVICE = Actor("billing", 0)


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL)


def make_topic(kafka: KafkaCluster, topic: str, partitions: int = PARTITIONS) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})  # ends its requests when it goes
    made = admin.create_topics([NewTopic(topic, partitions, replication_factor=1, config=config)])
    made[topic].result(SECONDS)


def append(kafka: KafkaCluster, topic: str, partition: int, *events: Event) -> None:
    encoder = Encoder()
    producer = ordered_producer(kafka.bootstrap)
    for event in events:
        producer.produce(topic, encoder.encode(encoder.prefix(0, SERVICE), event), partition=partition)
    assert producer.flush(SECONDS) == 0


def written(kafka: KafkaCluster, topic: str, count: int, partitions: int = PARTITIONS) -> list[Message]:
    """The topic's records: `count`, and not one more."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        records = consumer.consume(count, SECONDS)
        ends = [consumer.get_watermark_offsets(part, SECONDS)[1] for part in consumer.assignment()]
    finally:
        consumer.close()
    assert len(records) == count == sum(ends)
    assert [record.error() for record in records] == [None] * count
    return records


def run(code: str, kafka: KafkaCluster, directory: Path, prefix: str, path: str = "") -> None:
    """A service of its own, with the example as it stands but for the address and the topic."""
    assert "localhost:9092" in code
    assert '"rewindmq' in code
    code = code.replace("localhost:9092", kafka.bootstrap).replace('"rewindmq.queues"', f'"{prefix}.queues"')
    code = code.replace('prefix="rewindmq"', f'prefix="{prefix}"')
    if not path:
        code += "\nimport sys\nassert not {'schemas', 'engine', 'projections'} & set(sys.modules)\n"
    (directory / "service.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "service.py"],
        cwd=directory,
        env={"PATH": "/usr/bin", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_examples_of_the_documentation_publish(kafka: KafkaCluster, tmp_path: Path) -> None:
    prefix = "examples"
    make_topic(kafka, f"{prefix}.queues")
    home = partition_of("/", "orders", PARTITIONS)
    declared = QueueDeclared(
        "/",
        "orders",
        type="classic",
        durable=True,
        exclusive=False,
        auto_delete=False,
        owner=0,
        arguments=(),
        semantics="rabbitmq-3.13",
    )
    append(
        kafka,
        f"{prefix}.queues",
        home,
        declared,
        attached("/", "orders", 1, channel=1, tag="c", prefetch=10),
    )
    with_ours, without = examples()
    run(with_ours, kafka, tmp_path, prefix, path=str(ROOT))
    for schema in (ROOT / "schemas" / "released").glob("*.avsc"):
        shutil.copy(schema, tmp_path)
    run(without, kafka, tmp_path, prefix)

    records = written(kafka, f"{prefix}.queues", 4)
    assert {record.partition() for record in records} == {home}
    assert [record.key() for record in records[2:]] == [b"//orders"] * 2
    delivered = deliveries(records, f"queues-{home}")
    bodies = [message.body for message in delivered]
    assert bodies == [b'{"order": 7, "amount": 12.5}', b"order 7 has left"]
    first, second = delivered
    assert [(each.expiration_ms, each.persistent) for each in delivered] == [(600_000, True), (None, True)]
    assert properties_of(first.properties) == {
        "content_type": "application/json",
        "headers": {"source": "web", "attempt": 1},
        "delivery_mode": 2,
        "expiration": "600000",
        "message_id": "order-7",
    }
    assert properties_of(second.properties) == {"content_type": "text/plain", "delivery_mode": 2}


def deliveries(records: list[Message], partition: str) -> list[Published]:
    """Fold the records, with and without bodies alike, and return the messages that the consumer gets."""
    machine, without_bodies = Machine(partition), Machine(partition)
    decoder = SharedDecoder()
    messages: dict[int, Published] = {}
    given: list[Published] = []
    for record in records:
        offset, (_, timestamp_ms), value = record.offset(), record.timestamp(), record.value()
        assert offset is not None
        assert isinstance(value, bytes)
        _, actor, event = decoder.decode(value)
        if isinstance(event, Published):
            messages[offset] = event
        effects: list[Effect] = []
        machine.apply(offset, timestamp_ms, actor, event, effects)
        assert not any(isinstance(effect, Quarantine) for effect in effects)
        given.extend(messages[each] for effect in effects if isinstance(effect, Deliver) for each in effect.message_ids)
        without_bodies.apply(offset, timestamp_ms, *decoder.decode(value, bodies=False)[1:], [])
    machine.validate()
    assert machine.digest() == without_bodies.digest()
    return given


NAMES = [
    ("/", "orders"),
    ("/", "größe"),
    ("/", "通知"),
    ("ünï", "🐇"),
    ("v/h", "a/b"),
    ("/", "q"),
    ("/", "x" * 255),
    *(("/", f"q{number}") for number in range(60)),
]


@pytest.mark.parametrize("partitions", [5, 7])
def test_librdkafkas_murmur2_is_the_brokers(kafka: KafkaCluster, partitions: int) -> None:
    """Also for hashes that Java takes for negative, and for every length of the rest behind the last whole word."""
    topic = f"placed-{partitions}.queues"
    make_topic(kafka, topic, partitions)
    hashes = [murmur2(f"{vhost}/{queue}".encode()) for vhost, queue in NAMES]
    assert {value >> 31 for value in hashes} == {0, 1}
    assert {len(f"{vhost}/{queue}".encode()) % 4 for vhost, queue in NAMES} == {0, 1, 2, 3}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2", "enable.idempotence": True})
    publisher = Publisher("billing", prefix=f"placed-{partitions}")
    for vhost, queue in NAMES:
        record = publisher.record(vhost, queue, b"")
        producer.produce(record.topic, key=record.key, value=record.value)
    assert producer.flush(SECONDS) == 0
    decode = SharedDecoder().decode
    seen = []
    for message in written(kafka, topic, len(NAMES), partitions):
        value = message.value()
        assert isinstance(value, bytes)
        event = decode(value)[2]
        assert isinstance(event, Published)
        name = (event.route.vhost, event.route.queues[0])
        assert message.partition() == partition_of(*name, partitions), name
        seen.append(name)
    assert sorted(seen) == sorted(NAMES)


def test_nodes_deliver_what_services_produced_and_quarantine_alike(
    kafka: KafkaCluster, tmp_path: Path, start_broker: Callable[..., RunningBroker]
) -> None:
    """Nonsense is quarantined with offset and reason, the same on both nodes and on a node that starts anew."""
    prefix, topic = "served", "served.queues"
    options = ("--kafka", kafka.bootstrap, "--kafka-prefix", prefix, "--partitions", str(PARTITIONS))
    nodes = [start_broker(tmp_path / name, *options, "--node", f"rewindmq@{name}") for name in ("a", "b")]
    with pika.BlockingConnection(pika.URLParameters(nodes[0].amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        home = partition_of("/", "orders", PARTITIONS)
        route = Route("/", "", "orders", ("orders",))
        append(
            kafka,
            topic,
            home,
            Published(route, b"", persistent=True, body=b"no properties", body_size=13),
        )
        run(examples()[0], kafka, tmp_path, prefix, path=str(ROOT))
        producer = ordered_producer(kafka.bootstrap)
        nowhere = Publisher("billing", prefix).record("/", "nowhere", b"lost")
        producer.produce(topic, key=nowhere.key, value=nowhere.value, partition=home)
        producer.produce(topic, key=nowhere.key, value=b"not Avro", partition=home)
        producer.produce(topic, key=nowhere.key, value=nowhere.value[:-4], partition=home)
        assert producer.flush(SECONDS) == 0
        channel.basic_consume("orders", lambda *message: given.append(message), auto_ack=True)
        given: list[Any] = []
        until(lambda: connection.process_data_events(0.05) or given, "it never came")
    _, _, properties, body = given[0]
    assert body == b'{"order": 7, "amount": 12.5}'
    assert (properties.content_type, properties.message_id) == ("application/json", "order-7")
    assert (properties.headers, properties.expiration) == ({"source": "web", "attempt": 1}, "600000")
    until(lambda: len(quarantined(nodes[0])) >= 4, "they are not quarantined")
    listed = quarantined(nodes[0])
    assert [(each["partition"], each["topic"], each["event"]) for each in listed] == [
        (f"queues-{home}", topic, event) for event in ("Published", "Published", None, None)
    ]
    assert [each["reason"] for each in listed[:3]] == [
        "0 bytes of properties; they are 2 to 131052",
        "no queue 'nowhere' in vhost '/'",
        "byte 0 of 8: not a single-object encoding, which begins with C3 01",
    ]
    assert "body is 4 bytes long, but the record ends after 0" in listed[3]["reason"]
    until(lambda: quarantined(nodes[1]) == listed, "the other node lists others")
    nodes[1].kill()
    nodes.append(start_broker(tmp_path / "c", *options, "--node", "rewindmq@c"))
    nodes.append(start_broker(tmp_path / "b", *options, "--node", "rewindmq@b"))
    for node in nodes[2:]:
        until(lambda node: quarantined(node) == listed, "a new node lists others", node)


def quarantined(node: RunningBroker) -> list[dict[str, Any]]:
    answer = httpx2.get(f"{node.http_url}/api/quarantine", auth=("guest", "guest"), trust_env=False)
    found: list[dict[str, Any]] = answer.json()
    return found
