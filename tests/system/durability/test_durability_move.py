"""A broker that is killed while it moves messages: each is in its queue, or once in the other one (B-38)."""

import random
import threading
import time
from pathlib import Path

import httpx2
import pika
import pytest

from tests.support.http_clients import api_client
from tests.support.running import RunningBroker, ended

pytestmark = pytest.mark.long

COUNT = 400
PORTION = 20


def bodies_in(broker: RunningBroker, *queues: str) -> list[bytes]:
    found = []
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        for queue in queues:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[2])
    return found


def ids_of(client: httpx2.Client, queue: str) -> list[int]:
    there = client.get(f"/queues/%2F/{queue}/at", params={"time": "-0s", "count": COUNT}).json()
    return [each["message_id"] for each in there["message_details"]]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_b38_a_kill_amid_moves_loses_no_message_and_doubles_none(tmp_path: Path, seed: int) -> None:
    """The queues are in two partitions, so a move is two events in two logs."""
    dice = random.Random(seed)
    with ended(RunningBroker(tmp_path)) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            with api_client(broker) as client:
                for number in range(20):
                    channel.queue_declare(f"q{number}", durable=True)
                source = home(client, "q0")
                target = next(name for name in map("q{}".format, range(1, 20)) if home(client, name) != source)
            for number in range(COUNT):
                channel.basic_publish("", "q0", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        with api_client(broker) as client:
            ids = ids_of(client, "q0")
            assert len(ids) == COUNT
            killer = threading.Timer(dice.uniform(0.05, 0.6), broker.process.kill)
            killer.start()
            answered = 0
            try:
                for begin in range(0, COUNT, PORTION):
                    portion = ids[begin : begin + PORTION]
                    content = {"messages": portion, "to": target}
                    assert client.post("/queues/%2F/q0/messages/move", json=content).status_code == 200
                    answered += len(portion)
            except httpx2.TransportError:
                pass
            killer.join()
    with ended(RunningBroker(tmp_path)) as broker, api_client(broker) as client:
        begun = time.monotonic()
        while True:
            left, moved = (client.get(f"/queues/%2F/{name}").json()["messages_ready"] for name in ("q0", target))
            if left + moved == COUNT:
                break
            assert time.monotonic() - begun < 30, (left, moved, answered)
            time.sleep(0.05)
        assert moved >= answered
        assert sorted(bodies_in(broker, "q0", target), key=int) == [b"%d" % number for number in range(COUNT)]
        assert broker.stop() == 0


def home(client: httpx2.Client, queue: str) -> str:
    partition = client.get(f"/queues/%2F/{queue}").json()["partition"]
    assert isinstance(partition, str)
    return partition


def test_b39_a_pause_outlasts_a_kill(tmp_path: Path) -> None:
    with ended(RunningBroker(tmp_path)) as broker, api_client(broker) as client:
        assert client.put("/queues/%2F/q", json={"durable": True}).status_code == 201
        assert client.put("/queues/%2F/q/pause").status_code == 204
    with ended(RunningBroker(tmp_path)) as broker, api_client(broker) as client:
        assert client.get("/queues/%2F/q").json()["state"] == "paused"
        assert client.put("/queues/%2F/q/resume").status_code == 204
        assert broker.stop() == 0
    with ended(RunningBroker(tmp_path)) as broker, api_client(broker) as client:
        assert client.get("/queues/%2F/q").json()["state"] == "running"
