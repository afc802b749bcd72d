"""Deliveries that stay unacked for too long, seen by a real client: 3.13 closes the channel, 4.3 gives them back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.support.running import RunningBroker

QUORUM = {"x-queue-type": "quorum"}
LATER = QUORUM | {"x-semantics": "rabbitmq-4.3"}
TIMED_OUT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. This timeout"
    " value can be configured, see consumers doc guide to learn more"
)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = RunningBroker(Path(tmp_path_factory.mktemp("overdue")), "--consumer-timeout", "1000")
    yield broker
    assert broker.stop() == 0


def connected(broker: RunningBroker, **capabilities: bool) -> Any:
    parameters = pika.URLParameters(broker.amqp_url)
    if capabilities:
        parameters.client_properties = {"capabilities": capabilities}
    return pika.BlockingConnection(parameters)


def filled(channel: Any, name: str, arguments: dict[str, Any], count: int = 3) -> str:
    channel.queue_delete(name)
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", name, b"%d" % number)
    return name


def pump_until_closed(connection: Any, channel: Any) -> ChannelClosedByBroker:
    reasons: list[Any] = []
    channel._impl.add_on_close_callback(lambda _, reason: reasons.append(reason))
    for _ in range(300):
        connection.process_data_events(0.1)
        if reasons:
            break
    (reason,) = reasons
    assert isinstance(reason, ChannelClosedByBroker)
    return reason


@pytest.mark.parametrize("arguments", [{}, QUORUM], ids=["classic", "quorum"])
def test_3_13_closes_the_channel_and_the_next_gets_the_messages(
    impatient: RunningBroker, arguments: dict[str, Any]
) -> None:
    connection = connected(impatient)
    channel = connection.channel()
    queue = filled(channel, "overdue-3.13", arguments, 1)
    channel.basic_consume(queue, lambda *_: None)
    closed = pump_until_closed(connection, channel)
    assert (closed.reply_code, closed.reply_text) == (406, TIMED_OUT)
    method, _, body = connection.channel().basic_get(queue, auto_ack=True)
    assert (body, method.redelivered) == (b"0", True)
    connection.close()


def test_3_13_a_queue_may_be_more_patient_than_the_node(impatient: RunningBroker) -> None:
    connection = connected(impatient)
    channel = connection.channel()
    queue = filled(channel, "overdue-patient", {"x-consumer-timeout": 3_600_000}, 1)
    got: list[Any] = []
    channel.basic_consume(queue, lambda *each: got.append(each))
    for _ in range(25):
        connection.process_data_events(0.1)
    channel.basic_ack(got[0][1].delivery_tag)
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    connection.close()


def test_4_3_gives_the_messages_back_and_cancels_the_consumer(impatient: RunningBroker) -> None:
    connection = connected(impatient)
    channel = connection.channel()
    queue = filled(channel, "overdue-4.3", LATER)
    got: list[Any] = []
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, lambda *each: got.append(each), consumer_tag="slow")
    for _ in range(300):
        connection.process_data_events(0.1)
        if cancelled:
            break
    assert [frame.method.consumer_tag for frame in cancelled] == ["slow"]
    for _, method, _, _ in got:
        channel.basic_ack(method.delivery_tag)  # too late, and no error
    taken = [channel.basic_get(queue, auto_ack=True) for _ in range(3)]
    # That it took too long is no failure: the delivery count stays.
    assert [
        (body, method.redelivered, (properties.headers or {}).get("x-delivery-count"))
        for method, properties, body in taken
    ] == [(b"0", True, None), (b"1", True, None), (b"2", False, None)]
    channel.basic_consume(queue, lambda *_: None, consumer_tag="slow")  # its tag is free again
    connection.close()


def test_4_3_the_next_single_active_consumer_has_the_highest_priority(impatient: RunningBroker) -> None:
    """As rabbit_fifo.erl has it: the first of those that wait and are up, which are sorted by priority."""
    connection = connected(impatient)
    queue = filled(connection.channel(), "overdue-single", LATER | {"x-single-active-consumer": True}, 1)
    got: dict[str, list[bytes]] = {}
    for tag, priority in (("slow", 0), ("low", 1), ("high", 5), ("middle", 3)):
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        took = got.setdefault(tag, [])
        channel.basic_consume(
            queue,
            lambda _, _method, _properties, body, took=took: took.append(body),
            consumer_tag=tag,
            arguments={"x-priority": priority},
        )
        for _ in range(50):
            connection.process_data_events(0.02)
            if got["slow"]:
                break
    for _ in range(300):
        connection.process_data_events(0.1)
        if any(took for tag, took in got.items() if tag != "slow"):
            break
    assert got == {"slow": [b"0"], "low": [], "high": [b"0"], "middle": []}
    connection.close()


def test_4_3_closes_the_channel_of_a_client_that_can_not_be_told(impatient: RunningBroker) -> None:
    connection = connected(impatient, consumer_cancel_notify=False)
    channel = connection.channel()
    queue = filled(channel, "overdue-deaf", LATER, 1)
    channel.basic_consume(queue, lambda *_: None)
    closed = pump_until_closed(connection, channel)
    assert (closed.reply_code, closed.reply_text) == (406, TIMED_OUT)
    connection.close()


def test_4_3_closes_the_channel_that_got_the_message_by_basic_get(impatient: RunningBroker) -> None:
    connection = connected(impatient)
    channel = connection.channel()
    queue = filled(channel, "overdue-get", LATER, 1)
    assert channel.basic_get(queue)[2] == b"0"
    closed = pump_until_closed(connection, channel)
    assert (closed.reply_code, closed.reply_text) == (406, TIMED_OUT)
    assert connection.channel().basic_get(queue, auto_ack=True)[2] == b"0"
    connection.close()


def test_4_3_a_consumer_may_set_a_timeout_but_classic_queues_have_none(impatient: RunningBroker) -> None:
    connection = connected(impatient)
    channel = connection.channel()
    got: list[Any] = []
    patient = filled(channel, "overdue-asked", LATER, 1)
    classic = filled(channel, "overdue-classic", {"x-semantics": "rabbitmq-4.3"}, 1)
    channel.basic_consume(patient, lambda *each: got.append(each), arguments={"x-consumer-timeout": 3_600_000})
    channel.basic_consume(classic, lambda *each: got.append(each))
    for _ in range(25):
        connection.process_data_events(0.1)
    assert sorted(body for *_, body in got) == [b"0", b"0"]
    for _, method, _, _ in got:
        channel.basic_ack(method.delivery_tag)
    assert channel.queue_declare(patient, passive=True).method.message_count == 0
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-consumer-timeout": -1}, "{value_negative,-1}"),
        ({"x-consumer-timeout": "x"}, '"expected integer, got longstr"'),
    ],
)
def test_4_3_checks_the_argument(impatient: RunningBroker, arguments: dict[str, Any], text: str) -> None:
    connection = connected(impatient)
    with pytest.raises(ChannelClosedByBroker) as closed:
        connection.channel().queue_declare("wrong", durable=True, arguments=LATER | arguments)
    where = "invalid arg 'x-consumer-timeout' for queue 'wrong' in vhost '/'"
    assert closed.value.reply_text == f"PRECONDITION_FAILED - {where}: {text}"
    with pytest.raises(ChannelClosedByBroker) as closed:
        connection.channel().queue_declare("wrong", arguments={"x-semantics": "rabbitmq-4.3"} | arguments)
    assert closed.value.reply_text == f"PRECONDITION_FAILED - {where} of queue type rabbit_classic_queue"
    connection.channel().queue_declare("taken as it is", exclusive=True, arguments=arguments)  # 3.13 knows no such key
    connection.close()
