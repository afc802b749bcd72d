"""A service's daily work with pika succeeds: reconnect, prefetch, crash, limits, strange messages, many channels.

scenarios.py has the outcomes that can be compared with RabbitMQ's. The tests here need behaviour of the client's own.
"""

import functools
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError, StreamLostError

from tests.support.deadlines import until
from tests.support.pika_clients import connect, count, pump, take
from tests.support.running import RunningBroker


@pytest.fixture
def queue(channel: BlockingChannel) -> str:
    return str(channel.queue_declare(f"q-{uuid.uuid4().hex[:8]}", durable=True).method.queue)


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 10_000_000])
def test_bodies_of_any_size(channel: BlockingChannel, kind: str, size: int) -> None:
    """131,064 is what one frame takes of the default 131,072."""
    name = channel.queue_declare(f"size-{uuid.uuid4().hex[:8]}", durable=True, arguments={"x-queue-type": kind})
    queue = name.method.queue
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    method, _, got = channel.basic_get(queue)
    assert got == body
    channel.basic_nack(method.delivery_tag, requeue=True)
    assert [got for _, _, got in take(channel, queue, 1)] == [body]
    channel.queue_delete(queue)


def test_a_body_above_the_limit_is_refused(connection: pika.BlockingConnection) -> None:
    """128 MiB, RabbitMQ's default; the announcement suffices."""
    channel = connection.channel()

    def publish() -> None:
        channel.basic_publish("", "nowhere", bytes(134_217_729))
        channel.basic_qos(prefetch_count=1)

    with pytest.raises(ChannelClosedByBroker) as caught:
        publish()
    text = "PRECONDITION_FAILED - message size 134217729 is larger than configured max size 134217728"
    assert (caught.value.reply_code, caught.value.reply_text) == (406, text)
    connection.channel().basic_qos(prefetch_count=1)


def test_every_property_and_header_type_returns_as_it_went(channel: BlockingChannel, queue: str) -> None:
    headers = {
        "text": "žluťoučký кінь 馬 🐎",
        "int": 7,
        "long": 2**40,
        "negative": -3,
        "true": True,
        "none": None,
        "bytes": b"\x00\xff",
        "list": [1, "two", [3]],
        "table": {"a": {"b": "c"}},
        "empty": {},
        "": "no name",
    }
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=9,
        correlation_id="c-1",
        reply_to="reply",
        expiration="60000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.basic_publish("", queue, b"body", properties)
    _, got, _ = channel.basic_get(queue, auto_ack=True)
    assert got == properties


@pytest.mark.parametrize("name", ["žluťoučký кінь 馬 🐎", "with space/and#signs*.", "x" * 255, "é" * 127])
def test_names_are_any_utf8(channel: BlockingChannel, name: str) -> None:
    """S-062: up to 255 bytes, for queues, exchanges and routing keys."""
    channel.queue_declare(name)
    channel.exchange_declare(name, "direct")
    channel.queue_bind(name, name, name)
    channel.basic_publish(name, name, b"x", mandatory=True)
    method, _, _ = channel.basic_get(name, auto_ack=True)
    assert (method.exchange, method.routing_key) == (name, name)
    with pytest.raises(ChannelClosedByBroker, match="inequivalent arg 'durable' for queue"):
        channel.queue_declare(name, durable=True)


# -- channels and consumers --------------------------------------------------------------------------------------------


def test_two_hundred_channels(connection: pika.BlockingConnection) -> None:
    """Each with its own queue, consumer and confirms, and closing one leaves the others alone."""
    got: dict[int, list[bytes]] = {}
    channels = [connection.channel() for _ in range(200)]
    queues = []
    for number, channel in enumerate(channels):
        got[number] = []
        queues.append(channel.queue_declare("", exclusive=True).method.queue)
        channel.confirm_delivery()
        channel.basic_consume(
            queues[-1], functools.partial(lambda n, _c, _m, _p, body: got[n].append(body), number), auto_ack=True
        )
    for channel in channels[::2]:
        channel.close()
    for number, channel in enumerate(channels[1::2]):
        channel.basic_publish("", queues[2 * number + 1], b"%d" % number)
    pump(connection, lambda: all(got[number] for number in range(1, 200, 2)))
    assert [got[number] for number in range(200)] == [[] if n % 2 == 0 else [b"%d" % (n // 2)] for n in range(200)]


def test_a_global_prefetch_is_raised_lowered_and_lifted_under_way(
    broker: RunningBroker, connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    """It binds the consumer that was there before, beside its own; a lowered one holds back until enough is acked."""
    consumer = connection.channel()
    tags: list[int] = []
    consumer.basic_qos(prefetch_count=8)
    consumer.basic_consume(queue, lambda _c, method, _p, _b: tags.append(method.delivery_tag))
    consumer.basic_qos(prefetch_count=2, global_qos=True)
    for number in range(30):
        channel.basic_publish("", queue, b"%d" % number)

    def holds(count: int) -> None:
        pump(connection, lambda: len(tags) >= count)
        connection.process_data_events(time_limit=0.2)
        assert len(tags) == count

    holds(2)
    consumer.basic_qos(prefetch_count=5, global_qos=True)
    holds(5)
    consumer.basic_qos(prefetch_count=3, global_qos=True)
    consumer.basic_ack(tags[1], multiple=True)
    holds(5)
    consumer.basic_ack(tags[2])
    holds(6)
    consumer.basic_qos(prefetch_count=0, global_qos=True)
    holds(3 + 8)  # its own
    consumer.basic_ack(tags[-1], multiple=True)
    holds(11 + 8)


def test_prefetch_holds_back_and_acks_let_on(
    broker: RunningBroker, connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number)
    other = connect(broker)
    consumer = other.channel()
    consumer.basic_qos(prefetch_count=7)
    tags: list[int] = []
    consumer.basic_consume(queue, lambda _c, method, _p, _b: tags.append(method.delivery_tag))
    pump(other, lambda: len(tags) == 7)
    other.process_data_events(time_limit=0.2)
    assert len(tags) == 7
    assert count(channel, queue) == 93
    consumer.basic_ack(tags[2])
    pump(other, lambda: len(tags) == 8)
    consumer.basic_ack(0, multiple=True)
    pump(other, lambda: len(tags) == 15)
    other.close()
    until(lambda: count(channel, queue) == 92, "what it held did not return")


def test_a_consumer_that_crashes_gives_back_in_order(
    broker: RunningBroker, channel: BlockingChannel, queue: str
) -> None:
    """The socket is gone without a word; another consumer gets everything, flagged, in order."""
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number)
    other = connect(broker)
    got: list[bytes] = []
    crashing = other.channel()
    crashing.basic_qos(prefetch_count=10)
    crashing.basic_consume(queue, lambda _c, _m, _p, body: got.append(body))
    pump(other, lambda: len(got) == 10)
    other._impl._transport._sock.shutdown(2)
    until(lambda: count(channel, queue) == 20, "nothing came back")
    with pytest.raises(StreamLostError):
        other.process_data_events(time_limit=1)
    taken = take(channel, queue, 20)
    assert [(int(body), method.redelivered) for method, _, body in taken] == [(n, n < 10) for n in range(20)]


def test_cancel_is_told_when_an_exclusive_owner_leaves(
    broker: RunningBroker, connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    """Consumer cancel notification for a queue that another deletes; the tag may be used again."""
    name = channel.queue_declare(f"gone-{uuid.uuid4().hex[:8]}").method.queue
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume(name, lambda *_: None, consumer_tag="mine")
    other = connect(broker)
    other.channel().queue_delete(name)
    pump(connection, lambda: cancelled == ["mine"])
    channel.queue_declare(name)
    assert channel.basic_consume(name, lambda *_: None, consumer_tag="mine") == "mine"
    other.close()


def test_server_named_and_auto_delete(broker: RunningBroker, channel: BlockingChannel) -> None:
    """Auto-delete goes with its consumer's connection, exclusive with its owner's; an empty name is the last one."""
    other = connect(broker)
    theirs = other.channel()
    exclusive = theirs.queue_declare("", exclusive=True).method.queue
    theirs.queue_bind("", "amq.fanout")
    auto = theirs.queue_declare("", auto_delete=True).method.queue
    theirs.basic_consume(auto, lambda *_: None)
    assert len({exclusive, auto}) == 2
    other.close()
    for name in (exclusive, auto):
        with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
            until(functools.partial(gone, broker, name), f"{name} is still there")
    channel.basic_publish("amq.fanout", "", b"to nobody")


def gone(broker: RunningBroker, name: str) -> bool:
    with connect(broker) as connection:
        connection.channel().queue_declare(name, passive=True)
    return False


def test_recover_delivers_again(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    seen: list[tuple[bytes, bool]] = []
    for number in range(3):
        channel.basic_publish("", queue, b"%d" % number)
    channel.basic_consume(queue, lambda _c, method, _p, body: seen.append((body, method.redelivered)))
    pump(connection, lambda: len(seen) == 3)
    channel.basic_recover(requeue=True)
    pump(connection, lambda: len(seen) == 6)
    assert seen == [(b"%d" % (n % 3), n > 2) for n in range(6)]


# -- limits, time, dead letters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_queue_nacks_and_takes_again(channel: BlockingChannel, kind: str) -> None:
    """S-009, S-018; a quorum queue that was full takes again at 80 % only (S-027)."""
    arguments = {"x-queue-type": kind, "x-max-length": 10, "x-overflow": "reject-publish"}
    name = channel.queue_declare(f"full-{uuid.uuid4().hex[:8]}", durable=True, arguments=arguments).method.queue
    nacked = 0
    for _ in range(30):
        try:
            channel.basic_publish("", name, b"x")
        except NackError:
            nacked += 1
    assert count(channel, name) == 30 - nacked
    assert 10 <= 30 - nacked <= 11
    for _ in range(5):
        channel.basic_get(name, auto_ack=True)
    channel.basic_publish("", name, b"again")


def test_dead_letters_as_a_service_sees_them(channel: BlockingChannel, queue: str) -> None:
    """A retry queue: rejected -> waits by TTL -> returns; after three rounds the count says so."""
    retry = f"{queue}.retry"
    work = f"{queue}.work"
    channel.queue_declare(
        work, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry}
    )
    back = {"x-message-ttl": 30, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
    channel.queue_declare(retry, durable=True, arguments=back)
    channel.basic_publish("", work, b"task", pika.BasicProperties(delivery_mode=2, headers={"id": 5}))
    for attempt in range(4):
        ((method, properties, body),) = take(channel, work, 1)
        deaths = {entry["queue"]: entry["count"] for entry in properties.headers.get("x-death", [])}
        assert deaths == ({work: attempt, retry: attempt} if attempt else {})
        assert (body, properties.headers["id"], method.redelivered) == (b"task", 5, False)
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.cancel()
    assert properties.headers["x-first-death-queue"] == work
    assert properties.headers["x-last-death-queue"] == retry


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "code", "text"),
    [
        (lambda c: c.basic_qos(prefetch_size=5), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (5)"),
        (lambda c: c.basic_recover(requeue=False), 540, "NOT_IMPLEMENTED - requeue=false"),
    ],
)
def test_hard_errors_close_the_connection(
    broker: RunningBroker, act: Callable[[BlockingChannel], Any], code: int, text: str
) -> None:
    connection = connect(broker)
    with pytest.raises(ConnectionClosedByBroker) as caught:
        act(connection.channel())
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)
    assert connection.is_closed


def test_a_service_that_reconnects_loses_nothing(start_broker: Callable[..., RunningBroker]) -> None:
    """SelectConnection, the way pika's own example does it: the broker is restarted under a consumer, which connects
    again; a publisher that repeats what was not confirmed goes on. All is seen, repeats are allowed."""
    state = {"broker": start_broker()}
    with connect(state["broker"]) as connection:
        connection.channel().queue_declare("work", durable=True)
    seen: list[int] = []
    consumer = ReconnectingConsumer(lambda: state["broker"], seen)
    consumer.start()
    sent = 0
    for _ in range(2):
        deadline = time.monotonic() + 60
        target = sent + 200
        while sent < target:
            assert time.monotonic() < deadline
            try:
                with connect(state["broker"]) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    while sent < target:
                        channel.basic_publish("", "work", b"%d" % sent, pika.BasicProperties(delivery_mode=2))
                        sent += 1
            except pika.exceptions.AMQPError:
                time.sleep(0.05)
        old = state["broker"]
        old.stop()
        state["broker"] = start_broker(old.data)
    until(lambda: set(seen) == set(range(sent)), f"{len(set(seen))} of {sent} came", seconds=20)
    consumer.stopping = True
    consumer.join(10)
    assert not consumer.is_alive()


class ReconnectingConsumer(threading.Thread):
    def __init__(self, broker: Callable[[], RunningBroker], seen: list[int]) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.seen = seen
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            broker = self.broker()
            connection = pika.SelectConnection(
                pika.ConnectionParameters(broker.host, broker.amqp_port),
                on_open_callback=self.opened,
                on_open_error_callback=lambda c, _: c.ioloop.stop(),
                on_close_callback=lambda c, _: c.ioloop.stop(),
            )
            connection.ioloop.start()
            time.sleep(0.05)

    def opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self.ready)
        self.look(connection)

    def look(self, connection: pika.SelectConnection) -> None:
        if self.stopping:
            connection.close()
        elif connection.is_open:
            connection.ioloop.call_later(0.05, functools.partial(self.look, connection))

    def ready(self, channel: pika.channel.Channel) -> None:
        channel.basic_qos(prefetch_count=20)
        channel.basic_consume("work", self.take)

    def take(self, channel: pika.channel.Channel, method: Any, _properties: Any, body: bytes) -> None:
        self.seen.append(int(body))
        channel.basic_ack(method.delivery_tag)
