"""Streams and the past at two nodes of one Kafka: declared at one, written at both, read at either."""

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pika
import pytest

from tests.support.deadlines import until
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import Reader, connect
from tests.support.running import RunningBroker

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(scope="module")
def nodes(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("streams"), kafka, timeout=30) as nodes:
        nodes.start("north")
        nodes.start("south")
        yield nodes
        nodes.digests()


def declare(node: RunningBroker, arguments: dict[str, Any]) -> str:
    name = f"q-{uuid.uuid4().hex[:8]}"
    with connect(node) as connection:
        connection.channel().queue_declare(name, durable=True, arguments=arguments)
    return name


def publish(node: RunningBroker, queue: str, *bodies: bytes) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(queue, passive=True)  # what others declared is known from here on
        for body in bodies:
            channel.basic_publish("", queue, body, PERSISTENT, mandatory=True)


def test_a_stream_is_the_same_at_every_node(nodes: Nodes) -> None:
    north, south = nodes.running["north"], nodes.running["south"]
    stream = declare(north, {"x-queue-type": "stream"})
    until(
        lambda: api_client(south).get(f"/queues/%2F/{stream}").status_code == 200,
        "the stream is not known in the south",
    )
    publish(north, stream, *(b"%d" % n for n in range(100)))
    publish(south, stream, *(b"%d" % n for n in range(100, 200)))
    expected = [(n, b"%d" % n) for n in range(200)]
    readers = [Reader(connect(node), stream, x_stream_offset=start) for start in (0, 150) for node in (north, south)]
    for reader, start in zip(readers, (0, 0, 150, 150), strict=True):
        assert reader.until(200 - start) == expected[start:]
    until(
        lambda: api_client(south).get(f"/queues/%2F/{stream}").json()["consumers"] == 4, "not all consumers are listed"
    )
    publish(south, stream, b"200")
    for reader, start in zip(readers, (0, 0, 150, 150), strict=True):
        assert reader.until(201 - start)[-1] == (200, b"200")
    with connect(south) as connection:
        connection.channel().queue_delete(stream)
    for reader in readers:
        reader.through()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_b01_the_past_is_read_at_any_node(nodes: Nodes, kind: str) -> None:
    north, south = nodes.running["north"], nodes.running["south"]
    queue = declare(north, {"x-queue-type": kind})
    publish(north, queue, *(b"%d" % n for n in range(300)))
    time.sleep(0.05)
    then = datetime.now(UTC).isoformat(timespec="milliseconds")
    time.sleep(0.05)
    with connect(south) as connection:
        connection.channel().queue_purge(queue)
    publish(south, queue, b"300")
    readers = [Reader(connect(node), queue, x_stream_offset="first") for node in (north, south)]
    for node, reader in zip((north, south), readers, strict=True):
        assert [body for _, body in reader.until(301)] == [b"%d" % n for n in range(301)]
        assert [body for _, body in Reader(connect(node), queue, x_stream_offset="last").until(1)] == [b"300"]
        rewound = Reader(connect(node), queue, x_rewind_to=then)
        assert rewound.through() == [b"%d" % n for n in range(300)]
    publish(south, queue, b"more")
    for reader in readers:
        assert reader.until(302)[301][1] == b"more"
