"""Streams with pika against a real broker: declared, read from anywhere, kept (S-071, S-072)."""

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.support import pika_clients
from tests.support.pika_clients import publish, pump
from tests.support.running import RunningBroker

Stream = dict[str, Any]


@pytest.fixture
def stream(channel: BlockingChannel) -> str:
    return declared(channel)


def declared(channel: BlockingChannel, **arguments: Any) -> str:
    name = f"stream-{uuid.uuid4().hex[:8]}"
    given: Stream = {"x-queue-type": "stream"} | {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=given)
    return name


class Reader(pika_clients.Reader):
    def take(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        super().take(channel, method, properties, body)
        assert not method.redelivered


def quiet(connection: pika.BlockingConnection) -> None:
    """Process the connection's events for a moment, so that deliveries under way arrive."""
    for _ in range(10):
        connection.process_data_events(time_limit=0.02)


def numbered(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x_stream_offset": "first"}, numbered(*range(5))),
        ({"x_stream_offset": "last"}, numbered(4)),
        ({"x_stream_offset": "next"}, []),
        ({}, []),
        ({"x_stream_offset": 3}, numbered(3, 4)),
        ({"x_stream_offset": 0}, numbered(*range(5))),
        ({"x_stream_offset": "1h"}, numbered(*range(5))),
        ({"x_stream_offset": datetime.now(UTC) - timedelta(minutes=5)}, numbered(*range(5))),
        ({"x_stream_offset": datetime.now(UTC) + timedelta(days=1)}, []),
    ],
)
def test_begins_where_it_is_told(
    connection: pika.BlockingConnection,
    channel: BlockingChannel,
    stream: str,
    arguments: Stream,
    expected: list[tuple[int, bytes]],
) -> None:
    publish(channel, stream, *(b"%d" % n for n in range(5)))
    reader = Reader(connection, stream, **arguments)
    publish(channel, stream, b"5")
    assert reader.until(len(expected) + 1) == [*expected, (5, b"5")]
    assert channel.queue_declare(stream, passive=True).method.message_count == 6


def test_a_number_that_is_still_to_come(
    connection: pika.BlockingConnection, channel: BlockingChannel, stream: str
) -> None:
    reader = Reader(connection, stream, x_stream_offset=2)
    publish(channel, stream, *(b"%d" % n for n in range(4)))
    assert reader.until(2) == numbered(2, 3)


def test_readers_at_different_places_and_speeds(
    connection: pika.BlockingConnection, channel: BlockingChannel, stream: str
) -> None:
    publish(channel, stream, *(b"%d" % n for n in range(300)))
    fast = Reader(connection, stream, prefetch=100, x_stream_offset="first")
    slow = Reader(connection, stream, prefetch=1, x_stream_offset=100)
    late = Reader(connection, stream, prefetch=7, x_stream_offset=290)
    assert fast.until(300) == numbered(*range(300))
    assert slow.until(200) == numbered(*range(100, 300))
    assert late.until(10) == numbered(*range(290, 300))


@pytest.mark.parametrize("settle", ["ack", "multiple", "nack", "requeue", "reject", "recover"])
def test_every_way_to_settle_gives_credit_and_takes_nothing(
    connection: pika.BlockingConnection, channel: BlockingChannel, stream: str, settle: str
) -> None:
    publish(channel, stream, *(b"%d" % n for n in range(6)))
    reader = Reader(connection, stream, prefetch=3, ack=False, x_stream_offset="first")
    assert reader.until(3) == numbered(0, 1, 2)
    quiet(connection)
    assert len(reader.got) == 3
    if settle == "multiple":
        reader.channel.basic_ack(reader.tags[1], multiple=True)
    elif settle == "recover":
        reader.channel.basic_recover(requeue=True)
    else:
        for tag in reader.tags[:2]:
            if settle == "ack":
                reader.channel.basic_ack(tag)
            elif settle == "reject":
                reader.channel.basic_reject(tag, requeue=False)
            else:
                reader.channel.basic_nack(tag, requeue=settle == "requeue")
    assert reader.until(5)[3:5] == numbered(3, 4)
    assert channel.queue_declare(stream, passive=True).method.message_count == 6


def test_numbers_survive_a_restart_and_a_crash(tmp_path: Path) -> None:
    def connect(broker: RunningBroker) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port))

    broker = RunningBroker(tmp_path)
    channel = connect(broker).channel()
    channel.confirm_delivery()
    stream = declared(channel)
    publish(channel, stream, *(b"%d" % n for n in range(3)))
    broker.process.kill()
    broker.process.wait()
    for number in (3, 4):
        broker = RunningBroker(tmp_path)
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        publish(channel, stream, b"%d" % number)
        reader = Reader(connection, stream, x_stream_offset="first")
        assert reader.until(number + 1) == numbered(*range(number + 1))
        connection.close()
        broker.stop()


def test_large_messages_and_a_client_that_does_not_read(
    connection: pika.BlockingConnection, channel: BlockingChannel, stream: str
) -> None:
    """80 MB for a client that looks away: what is not acked is bounded by its prefetch, all comes when it looks."""
    publish(channel, stream, *(bytes([n]) * 1_000_000 for n in range(80)))
    reader = Reader(connection, stream, prefetch=100, x_stream_offset="first")
    time.sleep(0.5)
    assert [body[:1] for _, body in reader.until(80)] == [bytes([n]) for n in range(80)]


def test_filters(connection: pika.BlockingConnection, channel: BlockingChannel, stream: str) -> None:
    for number, value in enumerate(["apple", "banana", None, "apple", "cherry"]):
        headers = {} if value is None else {"x-stream-filter-value": value}
        publish(channel, stream, b"%d" % number, headers=headers or None)
    publish(channel, stream, b"5", headers={"x-stream-filter-value": "apple"})
    one = Reader(connection, stream, x_stream_offset="first", x_stream_filter="apple")
    two = Reader(
        connection,
        stream,
        x_stream_offset="first",
        x_stream_filter=["banana", "apple"],
        x_stream_match_unfiltered=True,
    )
    assert one.until(3) == numbered(0, 3, 5)
    assert two.until(5) == numbered(0, 1, 2, 3, 5)


# -- retention ---------------------------------------------------------------------------------------------------------


def test_retention_by_size_and_by_policy(
    connection: pika.BlockingConnection, channel: BlockingChannel, broker: RunningBroker
) -> None:
    stream = declared(channel, x_max_length_bytes=1_000)
    publish(channel, stream, *(b"%d" % n + b"x" * 98 for n in range(5)), *[b"y" * 100] * 7)
    reader = Reader(connection, stream, x_stream_offset="first")
    assert [number for number, _ in reader.until(10)] == list(range(2, 12))
    with httpx2.Client(base_url=broker.http_url + "/api", auth=("guest", "guest")) as api:
        policy = {"pattern": stream, "definition": {"max-length-bytes": 300, "max-age": "1h"}, "apply-to": "streams"}
        assert api.put(f"/policies/%2F/{stream}", json=policy).status_code == 201
        shown = api.get(f"/queues/%2F/{stream}").json()
    assert (shown["type"], shown["messages"], shown["policy"], shown["consumers"]) == ("stream", 3, stream, 1)
    assert shown["outcomes"]["maxlen"] == 9


def test_retention_by_age(connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    stream = declared(channel, x_max_age="1s")
    publish(channel, stream, b"0")
    pump(connection, lambda: channel.queue_declare(stream, passive=True).method.message_count == 0)
    publish(channel, stream, b"1")
    assert Reader(connection, stream, x_stream_offset=0).until(1) == numbered(1)


# -- listings and ends -------------------------------------------------------------------------------------------------


def test_consumers_are_counted_cancelled_and_leave(
    connection: pika.BlockingConnection, channel: BlockingChannel, stream: str, broker: RunningBroker
) -> None:
    with httpx2.Client(base_url=broker.http_url + "/api", auth=("guest", "guest")) as api:
        one, two = Reader(connection, stream), Reader(connection, stream)
        assert api.get(f"/queues/%2F/{stream}").json()["consumers"] == 2
        assert channel.queue_declare(stream, passive=True).method.consumer_count == 0  # as RabbitMQ says of streams
        one.channel.basic_cancel(one.tag)
        assert api.get(f"/queues/%2F/{stream}").json()["consumers"] == 1
        publish(channel, stream, b"0")
        assert two.until(1) == numbered(0)
        assert one.got == []
    assert channel.queue_delete(stream, if_unused=True).method.message_count == 0
    pump(connection, lambda: two.cancelled)


def test_a_channel_that_closes_ends_its_readers(
    connection: pika.BlockingConnection, channel: BlockingChannel, stream: str, broker: RunningBroker
) -> None:
    reader = Reader(connection, stream, prefetch=1, ack=False, x_stream_offset="first")
    publish(channel, stream, b"0", b"1")
    reader.until(1)
    reader.channel.close()
    with httpx2.Client(base_url=broker.http_url + "/api", auth=("guest", "guest")) as api:
        assert api.get(f"/queues/%2F/{stream}").json()["consumers"] == 0
    assert Reader(connection, stream, x_stream_offset="first").until(2) == numbered(0, 1)


def test_dead_letters_come_to_a_stream(
    connection: pika.BlockingConnection, channel: BlockingChannel, stream: str
) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": stream, "x-message-ttl": 0}
    source = channel.queue_declare(f"source-{uuid.uuid4().hex[:8]}", durable=True, arguments=arguments).method.queue
    publish(channel, source, b"0", b"1")
    assert Reader(connection, stream, x_stream_offset="first").until(2) == numbered(0, 1)


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "arguments", "text"),
    [
        ({"auto_delete": True}, {}, "invalid property 'auto-delete' for queue '{q}' in vhost '/'"),
        ({"exclusive": True}, {}, "invalid property 'exclusive-owner' for queue '{q}' in vhost '/'"),
        ({"durable": False}, {}, "invalid property 'non-durable' for queue '{q}' in vhost '/'"),
        (
            {},
            {"x-overflow": "reject-publish"},
            "invalid arg 'x-overflow' for queue '{q}' in vhost '/' of queue type rabbit_stream_queue",
        ),
        (
            {},
            {"x-message-ttl": 5},
            "invalid arg 'x-message-ttl' for queue '{q}' in vhost '/' of queue type rabbit_stream_queue",
        ),
        ({}, {"x-max-age": "1A"}, "invalid arg 'x-max-age' for queue '{q}' in vhost '/': invalid_max_age"),
        ({}, {"x-max-age": 7}, "invalid arg 'x-max-age' for queue '{q}' in vhost '/': {{unacceptable_type,signedint}}"),
        (
            {},
            {"x-max-length-bytes": -1},
            "invalid arg 'x-max-length-bytes' for queue '{q}' in vhost '/': {{value_negative,-1}}",
        ),
        ({}, {"x-stream-filter-size-bytes": 256}, "Invalid value for  x-stream-filter-size-bytes"),
        (
            {},
            {"x-stream-max-segment-size-bytes": 3_000_000_001},
            "Exceeded max value for x-stream-max-segment-size-bytes",
        ),
        (
            {},
            {"x-initial-cluster-size": 0},
            "invalid arg 'x-initial-cluster-size' for queue '{q}' in vhost '/': {{value_zero,0}}",
        ),
    ],
)
def test_s072_what_a_stream_cannot_be(channel: BlockingChannel, flags: Stream, arguments: Stream, text: str) -> None:
    name = f"q-{uuid.uuid4().hex[:8]}"
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(name, **({"durable": True} | flags), arguments={"x-queue-type": "stream"} | arguments)
    assert (refused.value.reply_code, refused.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - " + text.format(q=name),
    )


def test_s067_a_stream_is_declared_again_as_it_is(connection: pika.BlockingConnection) -> None:
    arguments = {
        "x-max-age": "10D",
        "x-max-length-bytes": 2_000_000,
        "x-stream-max-segment-size-bytes": 5_000_000,
        "x-stream-filter-size-bytes": 32,
        "x-initial-cluster-size": 1,
        "x-queue-leader-locator": "client-local",
    }
    channel = connection.channel()
    stream = declared(channel, **arguments)
    given = {"x-queue-type": "stream"} | arguments
    assert channel.queue_declare(stream, durable=True, arguments=given).method.message_count == 0
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(stream, durable=True, arguments=given | {"x-max-age": "11D"})
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-max-age' for queue '{stream}' in vhost '/': received '11D' but"
        " current is '10D'"
    )
    with pytest.raises(ChannelClosedByBroker):
        connection.channel().queue_declare("", durable=True, arguments={"x-queue-type": "stream"})


@pytest.mark.parametrize(
    ("prefetch", "no_ack", "arguments", "code", "text"),
    [
        (0, False, {}, 406, "PRECONDITION_FAILED - consumer prefetch count is not set for 'queue '{q}' in vhost '/''"),
        (
            5,
            True,
            {},
            540,
            "NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues queue '{q}' in vhost '/'",
        ),
        (
            5,
            False,
            {"x-priority": 1},
            406,
            "PRECONDITION_FAILED - invalid arg 'x-priority' for queue '{q}' in vhost '/' of queue type"
            " rabbit_stream_queue",
        ),
        (
            5,
            False,
            {"x-stream-offset": "soon"},
            406,
            "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{q}' in vhost '/':"
            ' {{invalid_stream_offset_arg,{{longstr,<<"soon">>}}}}',
        ),
        (
            5,
            False,
            {"x-stream-offset": True},
            406,
            "PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{q}' in vhost '/':"
            " {{invalid_stream_offset_arg,{{bool,true}}}}",
        ),
    ],
)
def test_how_a_stream_is_not_read(
    connection: pika.BlockingConnection,
    stream: str,
    prefetch: int,
    no_ack: bool,
    arguments: Stream,
    code: int,
    text: str,
) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as refused:
        channel.basic_consume(stream, lambda *_: None, auto_ack=no_ack, arguments=arguments)
    assert (refused.value.reply_code, refused.value.reply_text) == (code, text.format(q=stream))


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (lambda channel, stream: channel.basic_get(stream), "basic.get not supported by stream queues queue '{q}'"),
        (lambda channel, stream: channel.queue_purge(stream), "queue.purge not supported by stream queues queue '{q}'"),
        (
            lambda channel, stream: [
                channel.basic_qos(prefetch_count=5),
                channel.basic_qos(prefetch_count=5, global_qos=True),
                channel.basic_consume(stream, lambda *_: None),
            ],
            "queue '{q}' in vhost '/' does not support global qos",
        ),
    ],
    ids=["get", "purge", "global qos"],
)
def test_s132_what_is_not_implemented_for_streams(
    connection: pika.BlockingConnection, stream: str, what: Callable[[BlockingChannel, str], object], text: str
) -> None:
    with pytest.raises(ConnectionClosedByBroker) as refused:
        what(connection.channel(), stream)
    assert refused.value.reply_code == 540
    assert refused.value.reply_text.startswith("NOT_IMPLEMENTED - " + text.format(q=stream))
