"""Transactions (tx.select, tx.commit, tx.rollback) with pika against a whole broker; RabbitMQ's texts (S-099)."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.support.pika_clients import connect
from tests.support.running import RunningBroker


@pytest.fixture
def tx(connection: pika.BlockingConnection) -> BlockingChannel:
    channel = connection.channel()
    channel.tx_select()
    return channel


@pytest.fixture
def other(connection: pika.BlockingConnection) -> BlockingChannel:
    """A channel without a transaction: what everybody else sees."""
    return connection.channel()


@pytest.fixture
def queue(other: BlockingChannel) -> str:
    return declared(other)


def declared(channel: BlockingChannel, **arguments: Any) -> str:
    return str(channel.queue_declare(f"tx-{uuid.uuid4().hex[:8]}", durable=True, arguments=arguments).method.queue)


def drained(channel: BlockingChannel, queue: str) -> list[bytes]:
    taken = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        taken.append(got[2])
    return taken


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_publishes_are_seen_at_commit(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    for body in (b"one", b"", b"x" * 300_000):
        tx.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    assert count(other, queue) == 0
    tx.tx_commit()
    assert drained(other, queue) == [b"one", b"", b"x" * 300_000]
    tx.basic_publish("", queue, b"next")
    tx.tx_commit()
    tx.tx_commit()  # of nothing
    assert drained(other, queue) == [b"next"]


def test_many_that_came_in_one_read(broker: RunningBroker, other: BlockingChannel, queue: str) -> None:
    """Also those that repeat to the byte, before and in the transaction."""
    connection = connect(broker)
    channel = connection.channel()
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number)
    channel.tx_select()
    for number in range(500):
        channel.basic_publish("", queue, b"%d" % (number % 10))
    channel.queue_declare(queue, passive=True)
    assert drained(other, queue) == [b"0", b"1", b"2", b"3", b"4"]
    channel.tx_commit()
    assert drained(other, queue) == [b"%d" % (number % 10) for number in range(500)]
    connection.close()


def test_rollback_forgets_publishes_and_puts_acks_back(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    for body in (b"a", b"b", b"c"):
        other.basic_publish("", queue, body)
    tags = [tx.basic_get(queue)[0].delivery_tag for _ in range(3)]
    tx.basic_publish("", queue, b"never")
    tx.basic_ack(tags[1], multiple=True)
    tx.basic_nack(tags[2], requeue=True)
    assert count(other, queue) == 0
    tx.tx_rollback()
    assert count(other, queue) == 0  # still held
    tx.basic_ack(tags[0])
    tx.basic_nack(tags[2], multiple=True, requeue=True)
    assert count(other, queue) == 0
    tx.tx_commit()
    assert drained(other, queue) == [b"b", b"c"]


def test_settlements_happen_at_commit_in_their_order(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    dead = declared(other)
    source = declared(other, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    for body in (b"ack", b"requeue", b"discard"):
        other.basic_publish("", source, body)
    ack, requeue, discard = (tx.basic_get(source)[0].delivery_tag for _ in range(3))
    tx.basic_reject(discard, requeue=False)
    tx.basic_ack(ack)
    tx.basic_nack(requeue, requeue=True)
    tx.basic_publish("", queue, b"result")
    assert (count(other, dead), count(other, source), count(other, queue)) == (0, 0, 0)
    tx.tx_commit()
    assert drained(other, queue) == [b"result"]
    assert (drained(other, dead), drained(other, source)) == ([b"discard"], [b"requeue"])


def test_closing_the_channel_forgets_what_was_kept(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    other.basic_publish("", queue, b"held")
    tx.basic_ack(tx.basic_get(queue)[0].delivery_tag)
    tx.basic_publish("", queue, b"never")
    tx.close()
    method, _, body = other.basic_get(queue, auto_ack=True)
    assert (method.redelivered, body) == (True, b"held")
    assert drained(other, queue) == []


def test_mandatory_returns_come_at_commit(connection: pika.BlockingConnection, tx: BlockingChannel) -> None:
    came: list[tuple[int, str, bytes]] = []
    tx.add_on_return_callback(lambda _c, method, _p, body: came.append((method.reply_code, method.reply_text, body)))
    tx.basic_publish("", "tx-nobody", b"back", mandatory=True)
    tx.basic_publish("", "tx-nobody", b"dropped")
    tx.queue_declare("", exclusive=True)  # a round trip
    connection.process_data_events(time_limit=0)
    assert came == []
    tx.tx_commit()
    connection.process_data_events(time_limit=0)
    assert came == [(312, "NO_ROUTE", b"back")]


def test_a_queue_that_is_gone_at_commit(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    gone = declared(other)
    other.queue_bind(gone, "amq.fanout")
    other.queue_bind(queue, "amq.fanout")
    tx.basic_publish("amq.fanout", "", b"m")
    tx.basic_publish("", gone, b"m")
    other.queue_delete(gone)
    tx.tx_commit()
    assert drained(other, queue) == [b"m"]


def closing(tx: BlockingChannel, act: Callable[[], Any]) -> tuple[int, str]:
    def both() -> None:
        act()
        tx.queue_declare("", exclusive=True)

    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as caught:
        both()
    return caught.value.reply_code, caught.value.reply_text


def test_refused_by_a_queue(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    full = declared(other, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    for target in (full, full, queue):
        tx.basic_publish("", target, b"m")
    assert closing(tx, tx.tx_commit) == (406, "PRECONDITION_FAILED - partial tx completion")
    assert (drained(other, full), drained(other, queue)) == ([b"m"], [b"m"])


def test_what_is_wrong_is_said_at_once(tx: BlockingChannel, queue: str) -> None:
    refused = closing(tx, lambda: tx.basic_publish("nowhere", queue, b"m"))
    assert refused == (404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'")


def test_a_tag_is_settled_once(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    other.basic_publish("", queue, b"m")
    tag = tx.basic_get(queue)[0].delivery_tag
    tx.basic_ack(tag)
    assert closing(tx, lambda: tx.basic_ack(tag)) == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


def test_recover_takes_no_notice_of_the_transaction(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    for body in (b"acked", b"held"):
        other.basic_publish("", queue, body)
    tags = [tx.basic_get(queue)[0].delivery_tag for _ in range(2)]
    tx.basic_ack(tags[0])
    tx.basic_recover(requeue=True)
    assert drained(other, queue) == [b"held"]
    tx.tx_rollback()
    tx.basic_reject(tags[0], requeue=True)
    tx.tx_commit()
    assert drained(other, queue) == [b"acked"]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("tx_select", "confirm_delivery", "cannot switch from tx to confirm mode"),
        ("confirm_delivery", "tx_select", "cannot switch from confirm to tx mode"),
        (None, "tx_commit", "channel is not transactional"),
        (None, "tx_rollback", "channel is not transactional"),
    ],
)
def test_modes_that_do_not_go_together_s099(
    connection: pika.BlockingConnection, first: str | None, second: str, text: str
) -> None:
    channel = connection.channel()
    if first is not None:
        getattr(channel, first)()
    assert closing(channel, getattr(channel, second)) == (406, f"PRECONDITION_FAILED - {text}")


def test_a_consumer_in_a_transaction(tx: BlockingChannel, other: BlockingChannel, queue: str) -> None:
    """Prefetch counts what is not committed."""
    for number in range(4):
        other.basic_publish("", queue, b"%d" % number)
    tx.basic_qos(prefetch_count=2)
    got = []
    for method, _, body in tx.consume(queue, inactivity_timeout=10):
        got.append(body)
        tx.basic_ack(method.delivery_tag)
        if len(got) in (2, 4):
            assert count(other, queue) == 4 - len(got)
            tx.tx_commit()
        if len(got) == 4:
            break
    assert got == [b"0", b"1", b"2", b"3"]


def test_the_channel_shows_what_is_not_committed(broker: RunningBroker, tx: BlockingChannel, queue: str) -> None:
    def shown() -> tuple[bool, int]:
        (item,) = [
            each
            for each in httpx2.get(f"{broker.http_url}/api/channels", auth=("guest", "guest")).json()
            if each["transactional"]
        ]
        return item["confirm"], item["messages_uncommitted"]

    tx.basic_publish("", queue, b"m")
    tx.queue_declare(queue, passive=True)
    assert shown() == (False, 1)
    tx.tx_commit()
    assert shown() == (False, 0)


def test_what_was_committed_survives_a_kill(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    running = start_broker(tmp_path / "data")
    connection = connect(running)
    channel = connection.channel()
    queue = declared(channel)
    channel.tx_select()
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    channel.basic_publish("", queue, b"never")
    channel.queue_declare(queue, passive=True)
    running.kill()
    connection = connect(start_broker(tmp_path / "data"))
    assert drained(connection.channel(), queue) == [b"%d" % number for number in range(100)]
    connection.close()
