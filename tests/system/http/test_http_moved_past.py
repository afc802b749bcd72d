"""The past of a queue that `rewindmq repartition` moved, asked of a running broker."""

import time
from collections.abc import Callable

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from rewindmq.projections.rules.partition_hash import partition_of
from tests.support.deadlines import SECONDS, until
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

QUEUE = next(f"orders{n}" for n in range(99) if partition_of("/", f"orders{n}", 4) >= 2)


def channel_of(broker: RunningBroker) -> BlockingChannel:
    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)).channel()
    channel.confirm_delivery()
    return channel


def publish(channel: BlockingChannel, *bodies: str) -> None:
    for body in bodies:
        channel.basic_publish("", QUEUE, body.encode(), pika.BasicProperties(delivery_mode=2, message_id=body))


def read(broker: RunningBroker, count: int, arguments: dict[str, str]) -> list[str]:
    """The first messages that a consumer of the past gets."""
    channel = channel_of(broker)
    channel.basic_qos(prefetch_count=10)
    found: list[str] = []
    for method, _, body in channel.consume(QUEUE, arguments=arguments, inactivity_timeout=SECONDS):
        assert method is not None, found
        found.append(body.decode())
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.connection.close()
    return found


def test_a_queue_that_moved_is_read_in_both_partitions(start_broker: Callable[..., RunningBroker]) -> None:
    broker = start_broker()
    channel = channel_of(broker)
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, "amq.direct", "new")
    publish(channel, "first", "second", "third")
    method, _, _ = channel.basic_get(QUEUE)
    assert method is not None
    channel.basic_ack(method.delivery_tag)
    publish(channel, "fourth")
    time.sleep(0.05)
    api = httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), timeout=30)
    assert api.put("/marks/before").status_code in (201, 204)
    before = str(time.time_ns() // 1_000_000)
    time.sleep(0.05)
    answer = api.post("/repartition", json={"partitions": 4})
    assert answer.status_code == 200, answer.text
    assert broker.stop() == 0
    broker = start_broker(broker.data)
    api = httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), timeout=30)
    until(lambda: api.get("/repartition").json()["phase"] == "done", "queues have moved")
    channel = channel_of(broker)
    publish(channel, "fifth")

    def bodies(**when: str) -> tuple[str, list[str]]:
        found = api.get(f"/queues/%2F/{QUEUE}/at", params=when).raise_for_status().json()
        return found["at"]["partition"], [each["payload"] for each in found["message_details"]]

    old = f"queues-{partition_of('/', QUEUE, 2)}"
    new = f"queues-{partition_of('/', QUEUE, 4)}"
    assert bodies(time=before) == (old, ["second", "third", "fourth"])
    assert bodies(time="mark:before") == (old, ["second", "third", "fourth"])
    assert bodies(time="0s") == (new, ["second", "third", "fourth", "fifth"])

    rows = api.get(f"/history/outcomes/%2F/{QUEUE}").raise_for_status().json()["rows"]
    assert {row["partition"] for row in rows} == {old, new}
    [found] = (
        api.get(f"/history/find/%2F/{QUEUE}", params={"message_id": "third"}).raise_for_status().json()["messages"]
    )
    assert found["partition"] == old
    life = api.get(f"/history/biography/%2F/{old}:{found['message_id']}").raise_for_status().json()["rows"]
    assert [row["outcome"] for row in life][-1] == "published"
    assert life[-1]["partition"] == new
    assert api.get(f"/history/depth/%2F/{QUEUE}").raise_for_status().json()["partition"] == new
    answer = api.get(f"/history/diff/%2F/{QUEUE}", params={"from": before})
    assert answer.status_code == 400, answer.text
    assert f"{old} to {new}" in answer.json()["reason"]

    assert read(broker, 5, {"x-stream-offset": "first"}) == ["first", "second", "third", "fourth", "fifth"]
    assert read(broker, 3, {"x-rewind-to": "mark:before"}) == ["second", "third", "fourth"]

    assert api.delete(f"/queues/%2F/{QUEUE}/contents").status_code == 204
    body = {"time": before, "only": ["purged"]}
    done = api.post(f"/queues/%2F/{QUEUE}/restore", json=body, timeout=60)
    assert done.status_code == 200, done.text
    assert (done.json()["restored"], done.json()["at"]["partition"]) == (3, old)
    assert bodies(time="0s") == (new, ["second", "third", "fourth"])
    channel_of(broker).queue_delete(QUEUE)
    done = api.post(f"/queues/%2F/{QUEUE}/restore", json={"undo": "delete"}, timeout=60)
    assert done.status_code == 200, done.text
    assert (done.json()["restored"], done.json()["declared"]) == (3, True), done.json()
    assert [each["source"] for each in done.json()["bindings"]] == ["amq.direct"], done.json()
