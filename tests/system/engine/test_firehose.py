"""The firehose: copies of publishes and deliveries for queues that are bound to amq.rabbitmq.trace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.running import RunningBroker

TRACE = "amq.rabbitmq.trace"
Copy = tuple[str, dict[str, Any], bytes]


@pytest.fixture
def channel(broker: RunningBroker) -> Any:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    yield connection.channel()
    connection.close()


@pytest.fixture
def tracing(broker: RunningBroker) -> Any:
    def switch(on: bool) -> None:
        answer = httpx2.put(f"{broker.http_url}/api/vhosts/%2F", auth=("guest", "guest"), json={"tracing": on})
        assert answer.status_code == 204
        assert httpx2.get(f"{broker.http_url}/api/vhosts/%2F", auth=("guest", "guest")).json()["tracing"] is on

    yield switch
    switch(False)


def traced(channel: BlockingChannel, key: str) -> Callable[[], list[Copy]]:
    """Bind a queue with `key`; the answer takes all copies out of it."""
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, TRACE, key)

    def taken() -> list[Copy]:
        copies: list[Copy] = []
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return copies
            copies.append((method.routing_key, properties.headers, body))

    return taken


def test_publishes_and_deliveries_are_copied(
    broker: RunningBroker, channel: BlockingChannel, tracing: Callable[[bool], None]
) -> None:
    copies = traced(channel, "#")
    channel.queue_declare("seen", exclusive=True)
    channel.queue_bind("seen", "amq.topic", "a.*")
    received: list[bytes] = []
    channel.basic_publish("amq.topic", "a.b", b"before")
    channel.basic_consume("seen", lambda ch, method, properties, body: received.append(body), auto_ack=True)
    tracing(True)
    channel.basic_publish(
        "amq.topic",
        "a.b",
        b"body",
        pika.BasicProperties(
            content_type="text/plain",
            delivery_mode=2,
            priority=7,
            headers={"CC": ["a.c"], "BCC": ["a.d"], "n": 1},
        ),
    )
    while len(received) < 2:
        channel.connection.process_data_events(0.1)
    published, delivered = copies()
    key, headers, body = published
    assert (key, body) == ("publish.amq.topic", b"body")
    assert headers["routed_queues"] == ["seen"]
    assert (headers["exchange_name"], headers["routing_keys"]) == ("amq.topic", ["a.b", "a.c", "a.d"])
    properties = headers["properties"]
    assert properties == {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "priority": 7,
        "headers": {"CC": ["a.c"], "n": 1},
    }
    assert (headers["vhost"], headers["user"], headers["channel"]) == ("/", "guest", 1)
    assert headers["node"] == "rewindmq@localhost"
    assert headers["connection"].endswith(f" -> 127.0.0.1:{broker.amqp_port}")
    key, headers, body = delivered
    assert (key, body, headers["redelivered"]) == ("deliver.seen", b"body", 0)
    tracing(False)
    channel.basic_publish("amq.topic", "a.b", b"after")
    while len(received) < 3:
        channel.connection.process_data_events(0.1)
    assert copies() == []


def test_a_key_is_cut_where_the_name_of_a_queue_is_too_long_for_it(
    channel: BlockingChannel, tracing: Callable[[bool], None]
) -> None:
    copies = traced(channel, "#")
    name = "é" * 127
    channel.queue_declare(name, exclusive=True)
    tracing(True)
    channel.basic_publish("", name, b"m")
    assert channel.basic_get(name, auto_ack=True)[2] == b"m"
    assert [key for key, _, _ in copies()] == ["publish.", "deliver." + "é" * 123]


def test_unroutable_publishes_and_gets_are_copied(channel: BlockingChannel, tracing: Callable[[bool], None]) -> None:
    published, delivered = traced(channel, "publish.#"), traced(channel, "deliver.#")
    tracing(True)
    channel.basic_publish("amq.direct", "nowhere", b"lost")
    channel.queue_declare("fetched", exclusive=True)
    channel.basic_publish("", "fetched", b"kept")
    assert channel.basic_get("fetched")[2] == b"kept"
    assert [(key, headers["routed_queues"], body) for key, headers, body in published()] == [
        ("publish.amq.direct", [], b"lost"),
        ("publish.", ["fetched"], b"kept"),
    ]
    assert [(key, body) for key, _, body in delivered()] == [("deliver.fetched", b"kept")]


def test_what_a_transaction_publishes_is_copied_at_its_commit(
    broker: RunningBroker, channel: BlockingChannel, tracing: Callable[[bool], None]
) -> None:
    published = traced(channel, "publish.#")
    tracing(True)
    channel.queue_declare("committed", exclusive=True)
    transaction = channel.connection.channel()
    transaction.tx_select()
    transaction.basic_publish("", "committed", b"rolled back")
    transaction.tx_rollback()
    transaction.basic_publish("", "committed", b"kept")
    transaction.basic_publish("amq.direct", "nowhere", b"lost")
    assert published() == []
    transaction.tx_commit()
    assert [(key, headers["routed_queues"], body) for key, headers, body in published()] == [
        ("publish.", ["committed"], b"kept"),
        ("publish.amq.direct", [], b"lost"),
    ]


def test_a_publish_over_http_is_copied(
    broker: RunningBroker, channel: BlockingChannel, tracing: Callable[[bool], None]
) -> None:
    published = traced(channel, "publish.#")
    tracing(True)
    content = {"properties": {}, "routing_key": "nowhere", "payload": "x", "payload_encoding": "string"}
    url = f"{broker.http_url}/api/exchanges/%2F/amq.topic/publish"
    assert httpx2.post(url, auth=("guest", "guest"), json=content).json() == {"routed": False}
    assert [(key, body) for key, _, body in published()] == [("publish.amq.topic", b"x")]


def test_clients_cannot_publish_to_the_exchange_itself(channel: BlockingChannel) -> None:
    channel.basic_publish(TRACE, "publish.x", b"")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="cannot publish to internal exchange"):
        channel.queue_declare("", exclusive=True)


def test_a_copy_of_an_encrypted_body_is_erased_with_its_subject(
    start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    running = start_broker(None, "--subject-header", "person")
    guest = ("guest", "guest")
    connection = pika.BlockingConnection(pika.URLParameters(running.amqp_url))
    channel = connection.channel()
    published = traced(channel, "publish.#")
    assert httpx2.put(f"{running.http_url}/api/vhosts/%2F", auth=guest, json={"tracing": True}).status_code == 204
    channel.confirm_delivery()
    channel.queue_declare("mail", exclusive=True)
    properties = pika.BasicProperties(headers={"person": "ann"})
    channel.basic_publish("", "mail", b"of ann", properties)
    channel.basic_publish("amq.direct", "nowhere", b"of ann, lost", properties)
    assert [body for _, _, body in published()] == [b"of ann", b"of ann, lost"]
    channel.basic_publish("", "mail", b"of ann", properties)
    assert httpx2.delete(f"{running.http_url}/api/subjects/ann?reason=asked", auth=guest).status_code == 204
    assert [body for _, _, body in published()] == [b""]
    connection.close()
