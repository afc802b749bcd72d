"""Two nodes on one Kafka: messages that expire, wait, are refused or returned, by whichever node."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tests.support.deadlines import SECONDS, until
from tests.support.http_clients import api_client
from tests.support.kafka.two_nodes import PERSISTENT, catch_up, counts, in_each_partition, take
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long(nodes=["all"])


def test_messages_expire_and_are_dead_lettered_across_partitions(
    here: BlockingChannel, there: BlockingChannel, name: str
) -> None:
    sources = in_each_partition(name)
    there.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    for source in sources:
        arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}
        here.queue_declare(source, durable=True, arguments=arguments)
        catch_up(there)
        for number in range(20):
            channel = here if number % 2 else there
            channel.basic_publish("", source, b"%s %d" % (source.encode(), number), PERSISTENT)
    taken = take(there, name, 40)
    for source in sources:
        numbers = [int(body.split()[1]) for body, *_ in taken if body.startswith(source.encode() + b" ")]
        assert numbers == list(range(20))
    for body, redelivered, headers in taken:
        assert not redelivered
        (death,) = headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == (body.split()[0].decode(), "expired", 1)
    catch_up(here)
    assert counts(here, sources[0]) == counts(here, sources[1]) == counts(here, name) == (0, 0)


def test_delayed_messages_come_by_whichever_node(
    here: BlockingChannel, there: BlockingChannel, name: str, south: RunningBroker
) -> None:
    """The queues of ten exchanges lie in all partitions, whose duties both nodes share."""
    exchanges = [f"{name}-{number}" for number in range(10)]
    here.queue_declare(name, durable=True)
    for exchange in exchanges:
        here.exchange_declare(exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        here.queue_bind(name, exchange)
    until(lambda: all(delays(south, exchange) for exchange in exchanges), "the other node knows them")
    for number, exchange in enumerate(exchanges):
        for channel, delay in ((here, 800), (there, 300)):
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": delay})
            channel.basic_publish(exchange, "", f"{number} {delay}".encode(), properties, mandatory=True)
    came = take(there, name, 20)
    assert sorted(body for body, _, _ in came) == sorted(f"{n} {d}".encode() for n in range(10) for d in (300, 800))
    assert {headers["x-delay"] for _, _, headers in came} == {-300, -800}
    for exchange in exchanges:
        there.exchange_delete(exchange)
    assert counts(here, name) == (0, 0)


def delays(node: RunningBroker, exchange: str) -> bool:
    """It knows the exchange, and the queue behind it."""
    with api_client(node) as client:
        return "messages_delayed" in client.get(f"/exchanges/%2F/{exchange}").json()


def test_a_refused_message_is_dead_lettered_by_whichever_node(
    here: BlockingChannel, there: BlockingChannel, name: str
) -> None:
    here.queue_declare(f"{name}-dead", durable=True)
    here.queue_declare(
        name,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{name}-dead",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-delivery-limit": 2,
        },
    )
    catch_up(there)
    here.basic_publish("", name, b"refused", PERSISTENT)
    method, _, _ = next(there.consume(name, inactivity_timeout=SECONDS))
    there.basic_reject(method.delivery_tag, requeue=False)
    there.cancel()
    assert [body for body, *_ in take(here, f"{name}-dead", 1)] == [b"refused"]
    there.basic_publish("", name, b"returned", PERSISTENT)
    for channel in (here, there, here):
        until(rejected, "it was not returned", channel, name)
    ((body, _, headers),) = take(there, f"{name}-dead", 1)
    assert (body, headers["x-death"][0]["reason"]) == (b"returned", "delivery_limit")


def rejected(channel: BlockingChannel, queue: str) -> bool:
    """Get a message and return it, if there is one."""
    method, _, _ = channel.basic_get(queue)
    if method is not None:
        channel.basic_reject(method.delivery_tag, requeue=True)
    return method is not None


def test_a_fast_consumer_gives_back_what_was_not_sent_to_it(
    there: BlockingChannel, name: str, north: RunningBroker
) -> None:
    """engine/amqp/lookahead.py: it settles fast, and its connection ends in the middle. The rest goes to the other."""
    count, prefetch = 10_000, 100
    got: list[int] = []
    acked = 0

    def take_one(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        nonlocal acked
        assert not method.redelivered
        got.append(int(body))
        if method.delivery_tag % 20 == 0:
            acked = method.delivery_tag
            channel.basic_ack(acked, multiple=True)

    with connect(north) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        channel.basic_qos(prefetch_count=prefetch)
        for number in range(count):
            channel.basic_publish("", name, b"%d" % number, PERSISTENT)
        channel.basic_consume(name, take_one)
        while len(got) < count // 2:
            connection.process_data_events(SECONDS)
    assert got == list(range(len(got)))
    catch_up(there)
    rest = take(there, name, count - acked)
    assert [int(body) for body, _, _ in rest] == list(range(acked, count))
    again = [redelivered for _, redelivered, _ in rest]
    # What was on its way to the node as the connection ended counts as delivered, as at RabbitMQ.
    assert sum(again) <= 2 * prefetch
    assert again == sorted(again, reverse=True)


def test_b61_b62_both_nodes_drop_the_same_duplicates(here: BlockingChannel, there: BlockingChannel, name: str) -> None:
    """The queues of an exchange lie in two partitions; a duplicate comes by the other node, and in the same moment."""
    kind = "x-message-deduplication"
    here.exchange_declare(name, kind, durable=True, arguments={"x-cache-size": 1_000})
    behind = in_each_partition(name)
    for queue in behind:
        here.queue_declare(queue, durable=True)
        here.queue_bind(queue, name)
    here.queue_declare(name, durable=True, arguments={kind: True})
    catch_up(there)
    for number in range(30):
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-deduplication-header": number})
        for channel in (here, there, here):
            channel.basic_publish(name, "", b"%d" % number, properties, mandatory=True)
        there.basic_publish("", name, b"%d" % number, properties, mandatory=True)
        for channel in (here, there):
            with pytest.raises(NackError):
                channel.basic_publish("", name, b"%d" % number, properties, mandatory=True)
    catch_up(here)
    assert {counts(there, queue) for queue in (*behind, name)} == {(30, 0)}
    for queue in behind:
        assert [int(body) for body, *_ in take(there, queue, 30)] == list(range(30))
    again = pika.BasicProperties(delivery_mode=2, headers={"x-deduplication-header": 7})
    there.basic_publish(name, "", b"7", again, mandatory=True)
    catch_up(here)
    assert {counts(here, queue) for queue in behind} == {(0, 0)}
