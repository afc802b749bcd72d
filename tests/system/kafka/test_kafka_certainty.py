"""On a real Kafka: what a client was told at one node is so for a client of another, in the same moment."""

import time
import uuid

import pika
import pytest
from confluent_kafka import Producer
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Tick
from rewindmq.schemas.values import BROKER
from tests.support.deadlines import SECONDS
from tests.support.http_clients import api_client
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import connect

pytestmark = pytest.mark.long

ROUNDS = 40


def test_what_was_declared_and_filled_at_one_node_is_there_at_the_other(
    here: BlockingChannel, there: BlockingChannel
) -> None:
    for _ in range(ROUNDS):
        name = uuid.uuid4().hex
        here.queue_declare(name)
        here.basic_publish("", name, b"1")
        there.queue_declare(name, passive=True)
        here.exchange_declare(name, "fanout")
        here.queue_bind(name, name)
        there.basic_publish(name, "", b"2", mandatory=True)
        assert here.queue_purge(name).method.message_count == 2
        here.basic_publish("", name, b"3")
        assert there.basic_get(name, auto_ack=True)[2] == b"3"
        here.queue_delete(name)
        here.exchange_delete(name)


def test_over_http_too(nodes: Nodes, here: BlockingChannel) -> None:
    with api_client(nodes.running["south"]) as south, api_client(nodes.running["north"]) as north:
        for _ in range(ROUNDS):
            name = uuid.uuid4().hex
            here.queue_declare(name)
            assert south.get(f"/queues/%2F/{name}").status_code == 200
            assert south.delete(f"/queues/%2F/{name}").status_code == 204
        for _ in range(ROUNDS // 4):
            name = uuid.uuid4().hex
            assert north.put(f"/vhosts/{name}", json={}).status_code == 201
            assert north.put(f"/users/{name}", json={"password": "p", "tags": ""}).status_code == 201
            rights = {"configure": ".*", "write": ".*", "read": ".*"}
            assert north.put(f"/permissions/{name}/{name}", json=rights).status_code == 201
            connect(nodes.running["south"], name, "p", name).close()
            assert south.delete(f"/vhosts/{name}").status_code == 204


def test_what_is_missing_is_told_when_a_partition_ends_with_no_record(
    kafka: KafkaCluster, nodes: Nodes, there: BlockingChannel
) -> None:
    """The marker of a service's transaction takes the last offset, and is never read."""
    service = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": uuid.uuid4().hex})
    service.init_transactions(SECONDS)
    service.begin_transaction()
    encoder = Encoder()
    for partition in range(2):
        tick = encoder.encode(encoder.prefix(time.time_ns() // 1_000_000, BROKER), Tick())
        service.produce(f"{nodes.prefix}.queues", tick, partition=partition)
    service.commit_transaction()
    connection = there.connection
    for _ in range(3):
        with pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
            connection.channel().queue_declare(uuid.uuid4().hex, passive=True)
    with pytest.raises(UnroutableError):
        there.basic_publish("", uuid.uuid4().hex, b"", mandatory=True)


def test_who_publishes_to_nobody_is_not_slowed_down_to_a_round_trip_each(here: BlockingChannel) -> None:
    """A thousand publishes that go nowhere share what they cost: one by one they would take a thousand round trips."""
    plain = here.connection.channel()
    began = time.monotonic()
    for _ in range(20):
        plain.queue_declare("", passive=False, exclusive=True)  # a round trip each
    round_trip = (time.monotonic() - began) / 20
    plain = here.connection.channel()
    began = time.monotonic()
    for _ in range(5_000):
        plain.basic_publish("", "nowhere", b"x", pika.BasicProperties(delivery_mode=1))
    plain.queue_declare("", exclusive=True)
    assert time.monotonic() - began < 5_000 * round_trip / 2
