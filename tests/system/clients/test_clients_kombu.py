"""kombu and py-amqp as services use them: simple queues, compression, exchange types, priorities, a queue that is
deleted on the channel of its own consumer."""

from collections.abc import Iterator
from typing import Any

import amqp
import kombu
import pytest

from tests.support.running import RunningBroker


@pytest.fixture
def connection(broker: RunningBroker) -> Iterator[kombu.Connection]:
    with kombu.Connection(broker.amqp_url) as connection:
        yield connection


@pytest.mark.parametrize("compression", [None, "zlib", "bzip2"])
def test_a_simple_queue(connection: kombu.Connection, compression: str | None) -> None:
    with connection.SimpleQueue("simple") as queue:
        for number in range(3):
            queue.put({"number": number, "text": "ж" * 1000}, compression=compression)
        for number in range(3):
            message = queue.get(timeout=10)
            assert message.payload == {"number": number, "text": "ж" * 1000}
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get(block=False)


@pytest.mark.parametrize(("kind", "bound", "key"), [("direct", "k", "k"), ("topic", "a.#", "a.b"), ("fanout", "", "x")])
def test_an_exchange_of_each_type(connection: kombu.Connection, kind: str, bound: str, key: str) -> None:
    exchange = kombu.Exchange(f"kombu.{kind}", type=kind)
    queue = kombu.Queue(f"kombu.{kind}", exchange, routing_key=bound)
    producer = connection.Producer(serializer="json")
    producer.publish([kind], exchange=exchange, routing_key=key, declare=[queue], retry=True)
    taken: list[Any] = []

    def take(body: Any, message: kombu.Message) -> None:
        taken.append(body)
        message.ack()

    with connection.Consumer(queue, callbacks=[take]):
        while not taken:
            connection.drain_events(timeout=10)
    assert taken == [[kind]]


def test_priorities(connection: kombu.Connection) -> None:
    queue = kombu.Queue("kombu.priority", max_priority=10)
    producer = connection.Producer()
    for priority in (1, 9, 5):
        producer.publish(priority, routing_key=queue.name, priority=priority, declare=[queue])
    bound = queue(connection.channel())
    while bound.queue_declare(passive=True).message_count < 3:
        pass
    taken: list[int] = []
    while len(taken) < 3:
        if (message := bound.get(no_ack=True)) is not None:
            taken.append(message.payload)
    assert taken == [9, 5, 1]


def test_delete_ok_comes_before_the_cancel_of_ones_own_consumer(broker: RunningBroker) -> None:
    """As at RabbitMQ. py-amqp raises ConsumerCancelled out of whatever is waiting when a basic.cancel comes."""
    connection = amqp.Connection(f"{broker.host}:{broker.amqp_port}")
    connection.connect()
    channel = connection.channel()
    channel.queue_declare("own", durable=True)
    channel.basic_consume("own", consumer_tag="t", callback=lambda message: None)
    channel.basic_publish(amqp.Message("x"), routing_key="own")
    assert channel.queue_delete("own") in (0, 1)
    with pytest.raises(amqp.exceptions.ConsumerCancelled):
        connection.drain_events(timeout=10)
    connection.collect()
