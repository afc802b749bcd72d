"""Nodes on a Kafka say what became of each session's publishes (B-81)."""

import pytest

from rewindmq.engine.keeping.location import InKafka
from tests.support.deadlines import until
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.two_nodes import PERSISTENT, catch_up, in_each_partition
from tests.support.pika_clients import connect
from tests.support.publish_counts import counts_of
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long(nodes=["all"])


def test_b81_a_queue_that_goes_between_two_nodes_costs_no_event(
    nodes: Nodes, north: RunningBroker, south: RunningBroker, name: str
) -> None:
    log = InKafka(nodes.kafka.bootstrap, nodes.prefix)
    before = len(counts_of(log))
    with connect(north) as publisher, connect(south) as other:
        channel, there = publisher.channel(), other.channel()
        queues = in_each_partition(name)
        for queue in queues:
            channel.queue_declare(queue)
            channel.queue_bind(queue, "amq.fanout")
        catch_up(there)
        for number in range(60):
            if number in (20, 40):  # the publisher's node may route to it once more
                there.queue_delete(queues[number // 20 - 1])
            channel.basic_publish("", queues[number % 2], b"%d" % number, PERSISTENT)
            channel.basic_publish("amq.fanout", "", b"%d" % number, PERSISTENT)
        channel.basic_publish("unknown exchange", "", b"")
    until(lambda: len(counts_of(log)) > before, "the session of the publisher is counted")
    (counted,) = counts_of(log)[before:]
    assert (counted.received, counted.unknown_exchange, counted.grouped) == (121, 1, 0)
    assert sum(each.events for each in counted.partitions) - counted.copies == 120
