"""Direct reply-to with real clients against a whole broker; what is refused, in RabbitMQ's words."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import aio_pika
import httpx2
import kombu
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

REPLY_TO = "amq.rabbitmq.reply-to"
Came = list[tuple[str, str, bytes]]


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pika.BlockingConnection]:
    connection = connect(broker)
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def server(broker: RunningBroker) -> Iterator[BlockingChannel]:
    connection = connect(broker)
    yield connection.channel()
    if connection.is_open:
        connection.close()


def replies_to(channel: BlockingChannel) -> Came:
    """Consume replies: what comes of (consumer tag, correlation id, body)."""
    came: Came = []
    channel.basic_consume(
        REPLY_TO,
        lambda _, method, props, body: came.append((method.consumer_tag, props.correlation_id, body)),
        auto_ack=True,
        consumer_tag="replies",
    )
    return came


def request(channel: BlockingChannel, server: BlockingChannel, correlation: str = "1") -> Any:
    """One request, as the server gets it: its properties."""
    queue = server.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"ask", pika.BasicProperties(reply_to=REPLY_TO, correlation_id=correlation))
    channel.queue_declare(REPLY_TO, passive=True)  # it has been taken
    return server.basic_get(queue, auto_ack=True)[1]


def pump(connection: pika.BlockingConnection, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, "it did not come"
        connection.process_data_events(time_limit=0.05)


def refusal(channel: BlockingChannel, act: Callable[[BlockingChannel], Any]) -> tuple[int, str]:
    def both() -> None:
        act(channel)
        channel.basic_qos(prefetch_count=1)

    with pytest.raises(ChannelClosedByBroker) as caught:
        both()
    return caught.value.reply_code, caught.value.reply_text


def test_a_request_is_answered(client: pika.BlockingConnection, server: BlockingChannel) -> None:
    channel = client.channel()
    came = replies_to(channel)
    for number in ("1", "2"):
        asked = request(channel, server, number)
        assert asked.reply_to.startswith(REPLY_TO + ".")
        server.basic_publish("", asked.reply_to, b"answer", pika.BasicProperties(correlation_id=asked.correlation_id))
    pump(client, lambda: len(came) == 2)
    assert came == [("replies", "1", b"answer"), ("replies", "2", b"answer")]


def test_each_channel_has_its_own(client: pika.BlockingConnection, server: BlockingChannel) -> None:
    channels = [client.channel(), client.channel()]
    came = [replies_to(channel) for channel in channels]
    for number, channel in enumerate(channels):
        server.basic_publish("", request(channel, server).reply_to, b"%d" % number)
    pump(client, lambda: all(came))
    assert [[body for _, _, body in each] for each in came] == [[b"0"], [b"1"]]


def test_properties_before_and_after_the_name_stay(client: pika.BlockingConnection, server: BlockingChannel) -> None:
    channel = client.channel()
    replies_to(channel)
    queue = server.queue_declare("", exclusive=True).method.queue
    full = {"content_type": "t", "headers": {"h": [1, "x"]}, "priority": 3, "expiration": "60000", "user_id": "guest"}
    for _ in range(3):
        channel.basic_publish("", queue, b"m", pika.BasicProperties(reply_to=REPLY_TO, app_id="a", **full))
    channel.queue_declare(REPLY_TO, passive=True)
    got = server.basic_get(queue, auto_ack=True)[1]
    assert {name: getattr(got, name) for name in full} == full
    assert (got.app_id, got.reply_to[:22]) == ("a", REPLY_TO + ".")


def test_the_name_is_declared_passively(client: pika.BlockingConnection, server: BlockingChannel) -> None:
    """Servers ask so whether the requester is still there."""
    channel = client.channel()
    replies_to(channel)
    name = request(channel, server).reply_to
    for passive in (True, False):
        declared = server.queue_declare(name, passive=passive, durable=True).method
        assert (declared.queue, declared.message_count, declared.consumer_count) == (name, 0, 1)
    assert server.queue_declare(REPLY_TO).method.consumer_count == 1
    channel.basic_cancel("replies")
    assert refusal(server, lambda c: c.queue_declare(name, passive=True)) == no_queue(name)


def no_queue(name: str) -> tuple[int, str]:
    return 404, f"NOT_FOUND - no queue '{name}' in vhost '/'"


@pytest.mark.parametrize("name", [REPLY_TO + ".nobody", REPLY_TO + "x"])
def test_nobody_has_that_name(client: pika.BlockingConnection, name: str) -> None:
    assert refusal(client.channel(), lambda c: c.queue_declare(name)) == no_queue(name)


@pytest.mark.parametrize(
    "act",
    [
        lambda channel, name: channel.basic_consume(name, lambda *_: None, auto_ack=True),
        lambda channel, name: channel.basic_get(name),
        lambda channel, name: channel.queue_bind(name, "amq.fanout"),
        lambda channel, name: channel.queue_purge(name),
    ],
)
def test_to_clients_it_is_no_queue(client: pika.BlockingConnection, server: BlockingChannel, act: Any) -> None:
    """Not even to the one whose it is."""
    channel = client.channel()
    came = replies_to(channel)
    name = request(channel, server).reply_to
    assert refusal(client.channel(), lambda c: act(c, name)) == no_queue(name)
    assert server.queue_delete(name).method.message_count == 0
    server.basic_publish("", name, b"still there")
    pump(client, lambda: bool(came))


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda c: c.basic_consume(REPLY_TO, lambda *_: None), "reply consumer cannot acknowledge"),
        (
            lambda c: (replies_to(c), c.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True)),
            "reply consumer already set",
        ),
        (
            lambda c: c.basic_publish("", "q", b"", pika.BasicProperties(reply_to=REPLY_TO)),
            "fast reply consumer does not exist",
        ),
    ],
)
def test_what_is_refused(client: pika.BlockingConnection, act: Any, text: str) -> None:
    assert refusal(client.channel(), act) == (406, f"PRECONDITION_FAILED - {text}")


def test_cancelled_and_consumed_again(client: pika.BlockingConnection, server: BlockingChannel) -> None:
    channel = client.channel()
    replies_to(channel)
    first = request(channel, server).reply_to
    channel.basic_cancel("replies")
    came = replies_to(channel)
    second = request(channel, server).reply_to
    assert first != second
    server.basic_publish("", first, b"late")
    server.basic_publish("", second, b"answer")
    pump(client, lambda: bool(came))
    assert [body for _, _, body in came] == [b"answer"]


def test_who_asked_is_gone(client: pika.BlockingConnection, server: BlockingChannel) -> None:
    channel = client.channel()
    replies_to(channel)
    name = request(channel, server).reply_to
    client.close()
    returned: list[tuple[int, bytes]] = []
    server.add_on_return_callback(lambda _c, method, _p, body: returned.append((method.reply_code, body)))
    server.basic_publish("", name, b"dropped")
    server.basic_publish("", name, b"returned", mandatory=True)
    server.basic_qos(prefetch_count=1)
    server.connection.process_data_events(time_limit=0)
    assert returned == [(312, b"returned")]


def test_a_mandatory_reply_is_delivered_and_returned(client: pika.BlockingConnection, server: BlockingChannel) -> None:
    channel = client.channel()
    came = replies_to(channel)
    name = request(channel, server).reply_to
    returned: list[bytes] = []
    server.add_on_return_callback(lambda _c, _m, _p, body: returned.append(body))
    for body in (b"one", b"two"):
        server.basic_publish("", name, body, mandatory=True)
    server.basic_qos(prefetch_count=1)
    server.connection.process_data_events(time_limit=0)
    pump(client, lambda: len(came) == 2)
    assert returned == [b"one", b"two"]


def test_no_listing_shows_it(broker: RunningBroker, client: pika.BlockingConnection, server: BlockingChannel) -> None:
    channel = client.channel()
    replies_to(channel)
    name = request(channel, server).reply_to
    with httpx2.Client(base_url=broker.http_url, auth=("guest", "guest")) as http:
        for path in ("queues", "consumers", "bindings", "queues/%2F", "definitions"):
            assert REPLY_TO not in http.get(f"/api/{path}").raise_for_status().text
        for path in (f"queues/%2F/{name}", f"queues/%2F/{name}/bindings"):
            assert http.get(f"/api/{path}").status_code == 404
        assert "global_messages" in http.get("/metrics").text
        assert http.get("/api/overview").json()["object_totals"]["consumers"] == 0
        policy = {"pattern": "^amq.rabbitmq", "definition": {"max-length": 0}, "apply-to": "queues"}
        http.put("/api/policies/%2F/all", json=policy).raise_for_status()
    try:
        came: Came = []
        other = client.channel()
        other.basic_consume(REPLY_TO, lambda _, m, p, body: came.append(("", "", body)), auto_ack=True)
        server.basic_publish("", request(other, server).reply_to, b"answer")
        pump(client, lambda: bool(came))
    finally:
        httpx2.delete(f"{broker.http_url}/api/policies/%2F/all", auth=("guest", "guest")).raise_for_status()


def test_no_permission_is_asked_for(broker: RunningBroker, server: BlockingChannel) -> None:
    with httpx2.Client(base_url=broker.http_url, auth=("guest", "guest")) as http:
        http.put("/api/users/asker", json={"password": "p", "tags": ""}).raise_for_status()
        rights = {"configure": "", "write": "^amq\\.default$", "read": ""}
        http.put("/api/permissions/%2F/asker", json=rights).raise_for_status()
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.amqp_port, credentials=pika.PlainCredentials("asker", "p"))
    )
    channel = connection.channel()
    came = replies_to(channel)
    server.basic_publish("", request(channel, server).reply_to, b"answer")
    pump(connection, lambda: bool(came))
    connection.close()


def test_rpc_as_pikas_example(broker: RunningBroker) -> None:
    """direct_reply_to.py of pika's examples: one connection, server and client on channels of their own."""
    connection = connect(broker)
    server, channel = connection.channel(), connection.channel()
    queue = server.queue_declare(f"rpc-{uuid.uuid4().hex[:8]}", exclusive=True, auto_delete=True).method.queue

    def on_request(ch: Any, method: Any, properties: Any, body: bytes) -> None:
        ch.basic_publish("", routing_key=properties.reply_to, body=b"Polo")
        ch.basic_ack(method.delivery_tag)

    server.basic_consume(queue, on_message_callback=on_request)
    answers: list[bytes] = []

    def on_reply(_ch: Any, _method: Any, _properties: Any, body: bytes) -> None:
        answers.append(body)

    channel.basic_consume(REPLY_TO, on_message_callback=on_reply, auto_ack=True)
    channel.basic_publish("", routing_key=queue, body=b"Marco", properties=pika.BasicProperties(reply_to=REPLY_TO))
    pump(connection, lambda: bool(answers))
    assert answers == [b"Polo"]
    connection.close()


def test_rpc_with_aio_pika(broker: RunningBroker) -> None:
    async def main() -> list[bytes]:
        connection = await aio_pika.connect(broker.amqp_url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)

            async def answer(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                assert message.reply_to is not None
                reply = aio_pika.Message(message.body * 2, correlation_id=message.correlation_id)
                await channel.default_exchange.publish(reply, message.reply_to, mandatory=False)

            await queue.consume(answer, no_ack=True)
            asking = await connection.channel()
            came: asyncio.Queue[bytes] = asyncio.Queue()
            replies = await asking.get_queue(REPLY_TO, ensure=False)
            await replies.consume(lambda message: came.put(message.body), no_ack=True)
            bodies = []
            for body in (b"a", b"b"):
                asked = aio_pika.Message(body, reply_to=REPLY_TO)
                await asking.default_exchange.publish(asked, queue.name)
                bodies.append(await asyncio.wait_for(came.get(), 30))
            return bodies

    assert asyncio.run(main()) == [b"aa", b"bb"]


def test_rpc_with_kombu(broker: RunningBroker) -> None:
    """As kombu's rpc examples, with the pseudo queue in place of a queue of its own."""
    name, ready, stop = f"rpc-{uuid.uuid4().hex[:8]}", threading.Event(), threading.Event()

    def serve() -> None:
        with kombu.Connection(broker.amqp_url) as connection:
            producer = connection.Producer()

            def on_request(body: Any, message: Any) -> None:
                producer.publish(
                    {"result": body["n"] ** 2},
                    exchange="",
                    routing_key=message.properties["reply_to"],
                    correlation_id=message.properties["correlation_id"],
                    serializer="json",
                )
                message.ack()

            with connection.Consumer(kombu.Queue(name, auto_delete=True), callbacks=[on_request]):
                ready.set()
                while not stop.is_set():
                    try:
                        connection.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(30)
        with kombu.Connection(broker.amqp_url) as connection:
            came: list[tuple[Any, str]] = []
            channel = connection.channel()
            replies = kombu.Queue(REPLY_TO, channel=channel, no_declare=True, no_ack=True)
            consumer = kombu.Consumer(
                channel,
                [replies],
                no_ack=True,
                auto_declare=False,
                callbacks=[lambda body, message: came.append((body, message.properties["correlation_id"]))],
            )
            with consumer:
                kombu.Producer(channel).publish(
                    {"n": 12}, exchange="", routing_key=name, reply_to=REPLY_TO, correlation_id="c", serializer="json"
                )
                while not came:
                    connection.drain_events(timeout=30)
        assert came == [({"result": 144}, "c")]
    finally:
        stop.set()
        thread.join()
