"""Two nodes on one Kafka: one removes, moves and pauses what the clients of the other use (B-38, B-39)."""

import threading
import time
from pathlib import Path

import pika
import pytest

from tests.support.deadlines import until
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import connect

pytestmark = pytest.mark.long


def test_b38_b39_what_one_node_does_the_other_does_too(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka, timeout=30) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        with connect(north) as connection, api_client(south) as client:
            channel = connection.channel()
            channel.confirm_delivery()
            names = [f"q{number}" for number in range(8)]
            for name in names:
                channel.queue_declare(name, durable=True)
            until(lambda: client.get(f"/queues/%2F/{names[-1]}").status_code == 200, "south has no queues")
            homes = {name: client.get(f"/queues/%2F/{name}").json()["partition"] for name in names}
            source = names[0]
            target = next(name for name in names if homes[name] != homes[source])
            for number in range(6):
                channel.basic_publish("", source, b"%d" % number, pika.BasicProperties(delivery_mode=2))
            until(lambda: client.get(f"/queues/%2F/{source}").json()["messages_ready"] == 6, "not at south")
            there = client.get(f"/queues/%2F/{source}/at", params={"time": "-0s"}, timeout=60).json()
            ids = [each["message_id"] for each in there["message_details"]]
            where = f"/queues/%2F/{source}/messages"
            assert client.delete(f"{where}/{ids[1]}", timeout=60).status_code == 204
            assert client.delete(f"{where}/{ids[1]}", timeout=60).status_code == 404
            moved = client.post(f"{where}/move", json={"messages": ids[2:4], "to": target}, timeout=60).json()
            assert (moved["moved"], moved["arrived"]) == (ids[2:4], True)
            assert [channel.basic_get(target, auto_ack=True)[2] for _ in range(3)] == [b"2", b"3", None]

            assert client.put(f"/queues/%2F/{source}/pause").status_code == 204
            with api_client(north) as other:
                until(lambda: other.get(f"/queues/%2F/{source}").json()["state"] == "paused", "north delivers")
            assert channel.basic_get(source) == (None, None, None)
            channel.basic_publish("", source, b"6", pika.BasicProperties(delivery_mode=2))
            assert client.put(f"/queues/%2F/{source}/resume").status_code == 204
            with api_client(north) as other:
                until(lambda: other.get(f"/queues/%2F/{source}").json()["state"] == "running", "north does not deliver")
            assert [channel.basic_get(source, auto_ack=True)[2] for _ in range(4)] == [b"0", b"4", b"5", b"6"]
        time.sleep(0.5)
        nodes.digests()


@pytest.mark.rare
def test_b39_a_lookahead_goes_back_when_its_queue_is_paused(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A fast consumer has messages ahead at its node. After the pause it gets none of them."""
    with Nodes(tmp_path, kafka, timeout=30) as nodes:
        node = nodes.start("north")
        came: list[bytes] = []
        with connect(node) as connection, api_client(node) as client:
            channel = connection.channel()
            channel.queue_declare("fast", durable=True)
            for number in range(30_000):
                channel.basic_publish("", "fast", b"%d" % number, pika.BasicProperties(delivery_mode=2))
            channel.basic_qos(prefetch_count=200)

            def deliver(
                ch: pika.adapters.blocking_connection.BlockingChannel,
                method: pika.spec.Basic.Deliver,
                properties: pika.BasicProperties,
                body: bytes,
            ) -> None:
                came.append(body)
                ch.basic_ack(method.delivery_tag)

            channel.basic_consume("fast", deliver)
            while len(came) < 5_000:
                connection.process_data_events(0.1)
            answers: list[int] = []
            pausing = threading.Thread(
                target=lambda: answers.append(client.put("/queues/%2F/fast/pause", timeout=60).status_code)
            )
            pausing.start()
            while pausing.is_alive():
                connection.process_data_events(0.05)
            assert answers == [204]

            def at_rest() -> bool:
                connection.process_data_events(0.2)
                queue = client.get("/queues/%2F/fast").json()
                return (queue["messages_unacknowledged"], queue["messages_ready"]) == (0, 30_000 - len(came))

            until(at_rest, "some messages are still ahead")
            stood = len(came)
            connection.process_data_events(1.0)
            assert len(came) == stood
            assert client.put("/queues/%2F/fast/resume", timeout=60).status_code == 204
            while len(came) < 30_000:
                connection.process_data_events(0.1)
            assert came == [b"%d" % number for number in range(30_000)]
        nodes.digests()
