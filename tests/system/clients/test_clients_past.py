"""The past of any queue, read with pika from a real broker (B-01): x-stream-offset and x-rewind-to."""

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.support.pika_clients import Reader, publish, pump
from tests.support.running import RunningBroker


@pytest.fixture(params=["classic", "quorum"])
def queue(channel: BlockingChannel, request: pytest.FixtureRequest) -> str:
    name = f"past-{uuid.uuid4().hex[:8]}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": request.param})
    return name


def take_all(channel: BlockingChannel, queue: str) -> None:
    while channel.basic_get(queue, auto_ack=True)[0] is not None:
        pass


def moment() -> datetime:
    """Between what happened before and what happens next."""
    time.sleep(0.02)
    now = datetime.now(UTC)
    time.sleep(0.02)
    return now


def test_b01_what_was_consumed_can_be_read_again(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"a", b"b", b"c")
    take_all(channel, queue)
    publish(channel, queue, b"d")
    first = Reader(connection, queue, x_stream_offset="first")
    assert first.bodies_until(4) == [b"a", b"b", b"c", b"d"]
    assert first.ids == sorted(first.ids)
    publish(channel, queue, b"e")  # and what comes is read as well
    assert first.bodies_until(5)[4:] == [b"e"]
    assert Reader(connection, queue, x_stream_offset="last").bodies_until(1) == [b"e"]
    assert Reader(connection, queue, x_stream_offset=first.ids[2]).bodies_until(3) == [b"c", b"d", b"e"]
    assert Reader(connection, queue, x_stream_offset="1h").bodies_until(5) == [b"a", b"b", b"c", b"d", b"e"]
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    later, following = (Reader(connection, queue, x_stream_offset=at) for at in (tomorrow, "next"))
    publish(channel, queue, b"f")
    assert (later.bodies_until(1), following.bodies_until(1)) == ([b"f"], [b"f"])
    assert channel.queue_declare(queue, passive=True).method.message_count == 3  # d, e, f: nobody took anything


def test_a_reader_is_paced_by_its_prefetch(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, *(b"%d" % n for n in range(600)))
    slow = Reader(connection, queue, prefetch=3, ack=False, x_stream_offset="first")
    fast = Reader(connection, queue, prefetch=50, x_stream_offset="first")
    assert fast.bodies_until(600) == [b"%d" % n for n in range(600)]
    assert slow.bodies == [b"0", b"1", b"2"]
    slow.channel.basic_nack(0, multiple=True, requeue=True)
    assert slow.bodies_until(6)[3:] == [b"3", b"4", b"5"]


def test_filters_and_a_queue_beside_it(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    channel.queue_declare(queue + "-too", durable=True)
    publish(channel, queue, b"a", headers={"x-stream-filter-value": "apple"})
    publish(channel, queue + "-too", b"other", headers={"x-stream-filter-value": "apple"})
    publish(channel, queue, b"b")
    publish(channel, queue, b"c", headers={"x-stream-filter-value": "apple"})
    assert Reader(connection, queue, x_stream_offset="first", x_stream_filter="apple").bodies_until(2) == [b"a", b"c"]
    assert Reader(connection, queue, x_stream_offset="first").bodies_until(3) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("how", ["datetime", "text", "offset"])
def test_b01_the_queue_as_it_was(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str, how: str
) -> None:
    publish(channel, queue, b"a", b"b", b"c")
    holder = connection.channel()
    assert holder.basic_get(queue)[2] == b"a"
    if how == "datetime":  # AMQP's timestamps are whole seconds
        time.sleep(1.1)
        at: Any = datetime.now(UTC)
        time.sleep(1.1)
    else:
        at = moment().isoformat(timespec="milliseconds")
    if how == "offset":
        publish(channel, queue, b"d")
        at = Reader(connection, queue, x_stream_offset="last")
        at.bodies_until(1)
        at = at.ids[0]
    holder.close()
    take_all(channel, queue)
    publish(channel, queue, b"e")
    reader = Reader(connection, queue, prefetch=2, x_rewind_to=at)
    assert reader.through() == [b"b", b"c", b"a"]  # ready in delivery order, then what was with a consumer
    assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_a_long_queue_as_it_was(connection: pika.BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    bodies = [b"%d" % n + b"x" * (n % 7) * 3_000 for n in range(1_500)]
    publish(connection.channel(), queue, *bodies)
    publish(channel, queue, b"end")
    at = moment().isoformat()
    channel.queue_purge(queue)
    assert Reader(connection, queue, prefetch=100, x_rewind_to=at).through() == [*bodies, b"end"]
    empty = Reader(connection, queue, x_rewind_to=moment().isoformat())
    assert empty.through() == []


def test_the_present_is_not_disturbed(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str, broker: RunningBroker
) -> None:
    """Everything that the API tells about the queue is the same before and after, beside rates and ages."""
    publish(channel, queue, b"a", b"b")
    consumer = connection.channel()
    consumer.basic_qos(prefetch_count=1)
    held: list[bytes] = []
    consumer.basic_consume(queue, lambda *got: held.append(got[3]))
    pump(connection, lambda: held == [b"a"])
    with httpx2.Client(base_url=broker.http_url + "/api", auth=("guest", "guest")) as api:

        def shown() -> dict[str, Any]:
            content = api.get(f"/queues/%2F/{queue}").json()
            return {
                key: value
                for key, value in content.items()
                if "details" not in key and "rate" not in key and "age" not in key
            }

        before = shown()
        at = moment().isoformat()
        reader = Reader(connection, queue, ack=False, x_stream_offset="first")
        reader.bodies_until(2)
        assert Reader(connection, queue, x_rewind_to=at).through() == [b"b", b"a"]
        assert shown() == before
        reader.channel.basic_cancel(reader.tag)
        reader.channel.basic_nack(0, multiple=True)
        reader.channel.close()
        assert shown() == before


def test_the_reader_ends_with_the_queue(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"a")
    reader = Reader(connection, queue, x_stream_offset="first")
    reader.bodies_until(1)
    channel.queue_delete(queue)
    pump(connection, lambda: reader.cancelled)


def test_a_queue_of_the_same_name_before(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    """It was another queue, perhaps another owner's: what it had is for administrators, over HTTP."""
    publish(channel, queue, b"a", b"b")
    at = moment().isoformat()
    channel.queue_delete(queue)
    gone = moment().isoformat()
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, b"c")
    assert Reader(connection, queue, x_stream_offset="first").bodies_until(1) == [b"c"]
    assert Reader(connection, queue, x_stream_offset=0).bodies_until(1) == [b"c"]
    assert Reader(connection, queue, x_stream_offset="last").bodies_until(1) == [b"c"]
    for then in (at, gone):
        with pytest.raises(ChannelClosedByBroker) as refused:
            Reader(connection, queue, x_rewind_to=then)
        assert refused.value.reply_code == 404
        assert refused.value.reply_text.startswith(f"NOT_FOUND - no queue '{queue}', incarnation ")


def test_a_stream_as_it_was(connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    name = f"stream-{uuid.uuid4().hex[:8]}"
    arguments = {"x-queue-type": "stream", "x-max-length-bytes": 3}
    channel.queue_declare(name, durable=True, arguments=arguments)
    publish(channel, name, b"a", b"b", b"c")
    at = moment().isoformat()
    publish(channel, name, b"d", b"e", b"f", b"g")
    assert Reader(connection, name, x_rewind_to=at).through() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("prefetch", "no_ack", "arguments", "code", "text"),
    [
        (0, False, {"x-stream-offset": "first"}, 406, "consumer prefetch count is not set for 'queue "),
        (5, True, {"x-rewind-to": "2026-01-01T00:00:00Z"}, 540, "automatic acknowledgement not supported by stream"),
        (5, False, {"x-stream-offset": "soon"}, 406, "invalid arg 'x-stream-offset' for queue "),
        (5, False, {"x-rewind-to": "yesterday"}, 406, "invalid arg 'x-rewind-to' for queue "),
        (5, False, {"x-rewind-to": "2001-01-01T00:00:00Z"}, 406, "invalid arg 'x-rewind-to' for queue "),
        (5, False, {"x-rewind-to": 10**12}, 406, "invalid arg 'x-rewind-to' for queue "),
        (5, False, {"x-rewind-to": True}, 406, "invalid arg 'x-rewind-to' for queue "),
        (5, False, {"x-rewind-to": 1, "x-stream-offset": 1}, 406, "invalid arg 'x-rewind-to' for queue "),
    ],
)
def test_how_the_past_is_not_read(
    connection: pika.BlockingConnection,
    queue: str,
    prefetch: int,
    no_ack: bool,
    arguments: dict[str, Any],
    code: int,
    text: str,
) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as refused:
        channel.basic_consume(queue, lambda *_: None, auto_ack=no_ack, arguments=arguments)
    assert refused.value.reply_code == code
    assert refused.value.reply_text.split(" - ")[1].startswith(text)
