"""A broker that is killed while it brings a deleted queue back: asking again finishes what was begun (B-02)."""

from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest

from tests.support.http_clients import api_client
from tests.support.running import RunningBroker, ended

pytestmark = pytest.mark.long

KEYS = ["a", "b", "c"]
# Ends itself as a power cut does, when `step` is called for the `count`th time.
CUT = """
import os, signal, sys
import {module} as module
from rewindmq.engine.cli.main import main

left, step = [{count}], module.{step}

async def cut(*arguments):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return await step(*arguments)

module.{step} = cut
if __name__ == "__main__":
    main(["start", *sys.argv[1:]])
"""
BIND = "rewindmq.engine.broker.exchanges", "Exchanges.bind"
PUBLISH = "rewindmq.engine.rewind.restorations", "Restorations.publish"


def killed_in(step: tuple[str, str], count: int) -> type[RunningBroker]:
    class Killed(RunningBroker):
        program = ("-c", CUT.format(module=step[0], step=step[1], count=count))

    return Killed


def restore(client: httpx2.Client, **content: object) -> dict[str, Any]:
    answer = client.post("/queues/%2F/orders/restore", json={"undo": "delete", **content})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def bound(client: httpx2.Client) -> list[str]:
    return [each["routing_key"] for each in client.get("/bindings/%2F/e/amq.topic/q/orders").json()]


@pytest.mark.parametrize(
    ("step", "count", "came"),
    [
        (BIND, 1, 0),
        (BIND, 2, 0),
        pytest.param(BIND, 3, 0, marks=pytest.mark.rare),  # before the first binding, and between them
        pytest.param(PUBLISH, 1, 0, marks=pytest.mark.rare),
        (PUBLISH, 2, 500),  # before the first message, and after a page of them
    ],
)
def test_b02_a_restoration_that_was_cut_short_is_finished_by_asking_again(
    tmp_path: Path, step: tuple[str, str], count: int, came: int
) -> None:
    with ended(RunningBroker(tmp_path)) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True)
            for key in KEYS:
                channel.queue_bind("orders", "amq.topic", key)
            for number in range(510):  # two pages
                channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(delivery_mode=2))
            channel.queue_delete("orders")
        assert broker.stop() == 0
    killed = killed_in(step, count)
    with ended(killed(tmp_path)) as broker, api_client(broker) as client, pytest.raises(httpx2.TransportError):
        restore(client)
    with ended(RunningBroker(tmp_path)) as broker, api_client(broker) as client:
        assert client.get("/queues/%2F/orders").status_code == 200, "it was cut before it was declared"
        there = bound(client)
        assert len(there) < 3 if step is BIND else len(there) == 3
        dry, done = restore(client, dry_run=True), restore(client)
        assert [each["routing_key"] for each in dry["bindings"]] == [key for key in KEYS if key not in there]
        assert dry["bindings"] == done["bindings"]
        assert sorted(bound(client)) == KEYS
        assert (done["declared"], done["restored"], done["duplicates"]) == (False, 510 - came, came)
        again = restore(client)
        assert (again["restored"], again["duplicates"], again["bindings"]) == (0, 510, [])
        assert client.get("/queues/%2F/orders").json()["messages_ready"] == 510
        assert broker.stop() == 0
