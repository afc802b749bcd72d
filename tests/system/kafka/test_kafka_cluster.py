"""The Kafka that the other tests run with."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.fixtures import require_kafka
from tests.support.kafka.producers import ordered_producer
from tests.support.ports import free_ports
from tests.support.processes import children_of
from tests.support.running import ROOT

pytestmark = pytest.mark.long

SECONDS = 60


def test_a_record_written_to_three_nodes_survives_the_death_of_each(kafka3: KafkaCluster) -> None:
    create(kafka3, "survives", replicas=3)
    for node in (1, 2, 3):
        kafka3.kill(node)
        write(kafka3.bootstrap, "survives", str(node).encode())
        kafka3.start_node(node)
        kafka3.wait_in_sync()
    assert read(kafka3.bootstrap, "survives", 3) == [b"1", b"2", b"3"]


def test_a_line_that_is_cut_carries_nothing_until_it_is_mended(kafka: KafkaCluster) -> None:
    create(kafka, "proxied", replicas=1)
    with kafka.proxied() as line:
        write(line.bootstrap, "proxied", b"before")
        for cut in (line.blackhole, line.reset):
            cut()
            with pytest.raises(KafkaException):
                AdminClient({"bootstrap.servers": line.bootstrap, "log_level": 0}).list_topics(timeout=1)
            line.resume()
            write(line.bootstrap, "proxied", b"after")
    assert read(kafka.bootstrap, "proxied", 3) == [b"before", b"after", b"after"]


@pytest.mark.rare
def test_nodes_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Also when it is killed and cannot clean up."""
    require_kafka()
    first = str(free_ports(4)[0])
    command = [sys.executable, "-m", "tests.support.kafka.cluster", str(tmp_path), "--first-port", first]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        nodes = children_of(process.pid)
        assert len(nodes) == 1
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while alive(nodes[0]):
        assert time.monotonic() < deadline, "the node outlived its parent"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def create(kafka: KafkaCluster, topic: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, replicas)]).values():
        future.result(SECONDS)


def write(bootstrap: str, topic: str, value: bytes) -> None:
    producer = ordered_producer(bootstrap)
    producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, SECONDS)]
    finally:
        consumer.close()
