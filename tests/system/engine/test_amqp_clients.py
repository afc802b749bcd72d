"""Clients as services use them, pika and aio-pika, against a whole broker in a process of its own."""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import aio_pika
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAuthenticationError,
    UnroutableError,
)

from tests.support.pika_clients import connect, count, take
from tests.support.running import RunningBroker


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel) -> str:
    return str(channel.queue_declare(f"q-{uuid.uuid4().hex[:8]}", durable=True).method.queue)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def test_publish_consume_ack(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    properties = pika.BasicProperties(content_type="text/plain", headers={"n": 1, "s": "t"}, delivery_mode=2)
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number, properties)
    assert count(channel, queue) == 20
    channel.basic_qos(prefetch_count=5)
    got = take(channel, queue, 5)
    assert [body for _, _, body in got] == [b"%d" % n for n in range(5)]
    assert got[0][1].headers == {"n": 1, "s": "t"}
    channel.basic_ack(got[-1][0].delivery_tag, multiple=True)
    assert channel.cancel() <= 5
    eventually(lambda: count(channel, queue) == 15)


def test_large_bodies(channel: BlockingChannel, queue: str) -> None:
    body = bytes(range(256)) * 4096  # 1 MiB, nine frames
    channel.basic_publish("", queue, body)
    channel.basic_publish("", queue, b"")
    assert [got for _, _, got in take(channel, queue, 2, auto_ack=True)] == [body, b""]


def test_mandatory_comes_back(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("amq.topic", "nobody.listens", b"body", mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text, returned.body) == (312, "NO_ROUTE", b"body")


def test_full_queue_nacks_s009_s018(channel: BlockingChannel) -> None:
    name = f"full-{uuid.uuid4().hex[:8]}"
    channel.queue_declare(name, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    for _ in range(2):
        channel.basic_publish("", name, b"x")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"x")
    assert count(channel, name) == 2


def test_nack_and_reject_requeue_and_redeliver(channel: BlockingChannel, queue: str) -> None:
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    (a, _, _), (b, _, _), (c, _, _) = take(channel, queue, 3)
    channel.basic_ack(a.delivery_tag)
    channel.basic_nack(b.delivery_tag, requeue=True)
    channel.basic_reject(c.delivery_tag, requeue=False)
    channel.cancel()
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.redelivered, body) == (True, b"1")
    assert channel.basic_get(queue) == (None, None, None)


def test_closing_the_connection_returns_what_it_held_s083(
    broker: RunningBroker, channel: BlockingChannel, queue: str
) -> None:
    other = connect(broker)
    theirs = other.channel()
    exclusive = theirs.queue_declare("", exclusive=True).method.queue
    assert exclusive.startswith("amq.gen-")
    channel.basic_publish("", queue, b"held")
    method, _, _ = theirs.basic_get(queue)
    assert method is not None
    other.close()
    eventually(lambda: count(channel, queue) == 1)
    assert channel.basic_get(queue, auto_ack=True)[0].redelivered
    with pytest.raises(ChannelClosedByBroker, match=f"NOT_FOUND - no queue '{exclusive}' in vhost '/'"):
        channel.queue_declare(exclusive, passive=True)


def test_competing_consumers_share(broker: RunningBroker, channel: BlockingChannel, queue: str) -> None:
    got: list[list[bytes]] = [[], []]
    connections = [connect(broker), connect(broker)]

    def run(index: int) -> None:
        theirs = connections[index].channel()
        theirs.basic_qos(prefetch_count=1)

        def on_message(consumer_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            got[index].append(body)
            consumer_channel.basic_ack(method.delivery_tag)

        theirs.basic_consume(queue, on_message)
        theirs.start_consuming()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 2)
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number)
    eventually(lambda: len(got[0]) + len(got[1]) == 100)
    for theirs in connections:
        theirs.add_callback_threadsafe(theirs.close)
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert sorted(int(body) for body in got[0] + got[1]) == list(range(100))
    assert min(len(got[0]), len(got[1])) > 20


def test_consumer_cancel_notify(broker: RunningBroker, channel: BlockingChannel, queue: str) -> None:
    theirs = connect(broker)
    consumer = theirs.channel()
    consumer.basic_consume(queue, lambda *_: None, consumer_tag="c")
    cancelled: list[str] = []
    consumer.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.queue_delete(queue)
    theirs.process_data_events(time_limit=5)
    assert cancelled == ["c"]
    theirs.close()


def test_a_fast_publisher_and_an_auto_ack_consumer(channel: BlockingChannel, queue: str) -> None:
    """More than several windows of credit, through sockets that fill up."""
    number = 20_000
    for index in range(number):
        channel.basic_publish("", queue, b"%d" % index)
    got = take(channel, queue, number, auto_ack=True)
    assert [int(body) for _, _, body in got] == list(range(number))


@pytest.mark.parametrize(
    ("act", "code", "text"),
    [
        (lambda c: c.queue_declare("nope", passive=True), 404, "NOT_FOUND - no queue 'nope' in vhost '/'"),
        (lambda c: c.basic_publish("nope", "k", b"x"), 404, "NOT_FOUND - no exchange 'nope' in vhost '/'"),
        (lambda c: c.basic_ack(7), 406, "PRECONDITION_FAILED - unknown delivery tag 7"),
        (
            lambda c: c.queue_declare("amq.mine"),
            403,
            "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        (
            lambda c: c.basic_publish("", "q", b"x", pika.BasicProperties(expiration="soon")),
            406,
            "PRECONDITION_FAILED - invalid expiration 'soon': no_integer",
        ),
    ],
)
def test_channel_errors(
    connection: pika.BlockingConnection, act: Callable[[BlockingChannel], Any], code: int, text: str
) -> None:
    channel = connection.channel()

    def act_and_see() -> None:
        act(channel)
        channel.queue_declare("", exclusive=True)

    with pytest.raises(ChannelClosedByBroker) as caught:
        act_and_see()
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)
    assert connection.is_open
    connection.channel().queue_declare("", exclusive=True)


def test_connection_errors(broker: RunningBroker) -> None:
    connection = connect(broker)
    channel = connection.channel()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        channel.basic_recover(requeue=False)
    assert (caught.value.reply_code, caught.value.reply_text) == (540, "NOT_IMPLEMENTED - requeue=false")


def test_wrong_password(broker: RunningBroker) -> None:
    with pytest.raises(ProbableAuthenticationError, match="Login was refused using authentication mechanism PLAIN"):
        connect(broker, password="wrong")


def test_unknown_vhost(broker: RunningBroker) -> None:
    with pytest.raises(AMQPConnectionError, match="vhost nowhere not found"):
        connect(broker, vhost="nowhere")


def test_heartbeats_keep_an_idle_connection(broker: RunningBroker) -> None:
    connection = connect(broker, heartbeat=1)
    connection.process_data_events(time_limit=3.5)
    assert connection.is_open
    connection.close()


def test_a_silent_client_is_dropped(broker: RunningBroker, queue: str) -> None:
    """Heartbeats of one second, and nothing sent: gone after two missed ones, and what it held returns."""
    connection = connect(broker, heartbeat=1)
    connection.channel().basic_consume(queue, lambda *_: None)
    observer = connect(broker)
    channel = observer.channel()
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 1
    eventually(lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 0)
    observer.close()
    with pytest.raises(AMQPConnectionError):
        connection.process_data_events(time_limit=1)


def test_stopping_tells_clients_why(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker()
    connection = connect(running)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    channel.basic_publish("", "kept", b"x", pika.BasicProperties(delivery_mode=2))
    codes: list[int] = []
    stopper = threading.Thread(target=lambda: codes.append(running.stop()))
    stopper.start()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        connection.process_data_events(time_limit=10)
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert (caught.value.reply_code, caught.value.reply_text) == (320, text)
    stopper.join()
    assert codes == [0]
    again = connect(start_broker(running.data))
    assert again.channel().basic_get("kept")[2] == b"x"
    again.close()


def test_confirmed_messages_survive_kill_9(start_broker: Callable[..., RunningBroker]) -> None:
    running = start_broker()
    connection = connect(running)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    for number in range(200):
        channel.basic_publish("", "kept", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    running.kill()
    again = connect(start_broker(running.data))
    got = take(again.channel(), "kept", 200, auto_ack=True)
    assert [int(body) for _, _, body in got] == list(range(200))
    again.close()


# -- aio-pika ----------------------------------------------------------------------------------------------------------


def test_aio_pika(broker: RunningBroker) -> None:
    asyncio.run(asyncio.wait_for(aio_pika_scenario(broker), 30))


async def aio_pika_scenario(broker: RunningBroker) -> None:
    """Topic routing, confirms on concurrent publishes, an iterator that acks, rpc-style replies."""
    async with await aio_pika.connect_robust(broker.amqp_url) as connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=20)
        exchange = await channel.declare_exchange("aio", aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue("", exclusive=True)
        await queue.bind(exchange, "orders.*.eu")
        messages = [aio_pika.Message(b"%d" % n, correlation_id=str(n), headers={"n": n}) for n in range(300)]
        keys = ["orders.new.eu" if n % 3 else "orders.new.us" for n in range(300)]
        await asyncio.gather(*(exchange.publish(m, k, mandatory=False) for m, k in zip(messages, keys, strict=True)))
        got = []
        async with queue.iterator() as iterator:
            async for message in iterator:
                async with message.process():
                    got.append(int(message.body))
                    assert message.headers == {"n": int(message.body)}
                if len(got) == 200:
                    break
        assert got == [n for n in range(300) if n % 3]
        with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed):
            await (await connection.channel()).declare_exchange("aio", aio_pika.ExchangeType.FANOUT, durable=True)
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await (await connection.channel()).get_queue("nope", ensure=True)
