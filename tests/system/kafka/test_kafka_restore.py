"""Messages brought back on nodes whose log is in Kafka: purged over one, restored over another (B-02)."""

import time
from pathlib import Path

import pika
import pytest

from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.marks import topology_of
from rewindmq.projections.rewind import format_time
from tests.support.deadlines import until
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import connect

pytestmark = pytest.mark.long


def test_b02_what_one_node_lost_another_brings_back(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka, timeout=30) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        with connect(north) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("jobs", durable=True, arguments={"x-queue-type": "quorum"})
            for number in range(1_200):  # more than a page of bodies
                channel.basic_publish("", "jobs", b"%d" % number, pika.BasicProperties(delivery_mode=2))
            got = channel.basic_get("jobs")
            channel.basic_reject(got[0].delivery_tag)
            with api_client(north) as client:
                until(lambda: client.get("/queues/%2F/jobs").json()["messages_ready"] == 1_200, "nothing came back")
            channel.queue_bind("jobs", "amq.topic", "jobs.#")
            with api_client(north) as client:
                assert client.put("/marks/full", json={"note": "before it was deleted"}).status_code == 201
                marked = client.get("/marks/full").json()["time"]
            log = KafkaLogReader(kafka.bootstrap, nodes.prefix)
            assert format_time(topology_of(log.metadata).marked["full"][0]) == marked  # Kafka's time, for all who ask
            channel.queue_delete("jobs")
        with api_client(south) as client:
            until(lambda: client.get("/queues/%2F/jobs").status_code == 404, "south still has the queue")
            then = client.get("/queues/%2F/jobs/at", params={"time": "mark:full", "count": 1}, timeout=60)
            assert (then.status_code, then.json()["messages"]) == (200, 1_200), then.text
            for done in ({"restored": 1_200, "duplicates": 0}, {"restored": 0, "duplicates": 1_200}):
                answer = client.post("/queues/%2F/jobs/restore", json={"undo": "delete"}, timeout=60)
                assert answer.status_code == 200, answer.text
                assert {key: answer.json()[key] for key in done} == done
            bound = client.get("/bindings/%2F/e/amq.topic/q/jobs").json()
            assert [each["routing_key"] for each in bound] == ["jobs.#"]
        with connect(north) as connection:
            channel = connection.channel()
            until(lambda: channel.queue_declare("jobs", passive=True).method.message_count == 1_200, "not at north")
            bodies, counts = [], {}
            while (got := channel.basic_get("jobs", auto_ack=True))[0] is not None:
                bodies.append(got[2])
                if got[0].redelivered:
                    counts[got[2]] = got[1].headers["x-delivery-count"]
        assert sorted(bodies, key=int) == [b"%d" % number for number in range(1_200)]
        assert counts == {b"0": 1}
        time.sleep(0.5)
        nodes.digests()
