"""The event exchange of two nodes on one Kafka: each event once, whichever node caused it and owns the partition."""

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.deadlines import until
from tests.support.http_clients import api_client
from tests.support.kafka.two_nodes import PERSISTENT, catch_up, in_each_partition
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

EVENTS = "amq.rewindmq.event"
MESSAGES = 50


def test_b36_an_event_comes_once_from_whichever_node(
    here: BlockingChannel, there: BlockingChannel, name: str, north: RunningBroker, south: RunningBroker
) -> None:
    heard = f"{name}-heard"
    here.queue_declare(heard, durable=True)
    sources = in_each_partition(name)
    for key in ("policy.set", *(f"message.dropped.{source}" for source in sources)):
        here.queue_bind(heard, EVENTS, key)
    catch_up(there)
    for source in sources:
        there.queue_declare(source, durable=True, arguments={"x-max-length": 1})
    catch_up(here)
    for number in range(MESSAGES + 1):
        for source in sources:
            (here if number % 2 else there).basic_publish("", source, b"%d" % number, PERSISTENT)
    for node in (north, south):
        with api_client(node) as client:
            policy = {"pattern": "^none$", "definition": {"max-length": 3}}
            assert client.put(f"/policies/%2F/{name}-{node.http_port}", json=policy).status_code == 201
    came: list[tuple[str, Any]] = []

    def all_came() -> bool:
        """Take what is there: nothing more is, and there were enough."""
        while True:
            method, properties, _ = there.basic_get(heard, auto_ack=True)
            if method is None:
                return len(came) >= len(sources) * MESSAGES + 2
            came.append((method.routing_key, properties.headers))

    until(all_came, "the events came")
    assert sorted(key for key, _ in came) == sorted(
        [f"message.dropped.{source}" for source in sources for _ in range(MESSAGES)] + ["policy.set"] * 2
    )
    told = [(headers["partition"], headers["message_id"]) for key, headers in came if key.startswith("message.")]
    assert len(set(told)) == len(told)
    assert {headers["name"] for key, headers in came if key == "policy.set"} == {
        f"{name}-{node.http_port}" for node in (north, south)
    }
