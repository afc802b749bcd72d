"""States that owners leave in Kafka for the nodes that enter a partition."""

import re

from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import BROKER
from tests.support.kafka.nodes import Nodes
from tests.support.kafka.producers import ordered_producer
from tests.support.running import RunningBroker

LEFT = re.compile(r"(queues-\d+): the state at offset (\d+) is in the topic of states")
BEGAN = re.compile(r"(queues-\d+): the node begins with the state that another node has left at (\d+)")


def last_matches(node: RunningBroker, what: re.Pattern[str]) -> dict[str, str]:
    """Return the last match of this pattern in a node's log lines, by partition."""
    return dict(match.groups() for line in list(node.errors) if (match := what.search(line)))  # type: ignore[misc]


def produce(nodes: Nodes, number: int, records: list[tuple[bytes, bytes]], topic: str = "states") -> None:
    producer = ordered_producer(nodes.kafka.bootstrap)
    for key, value in records:
        producer.produce(f"{nodes.prefix}.{topic}", value, key, number)
    assert producer.flush(30) == 0


def keyed_event(happened: Event) -> tuple[bytes, bytes]:
    """Key and value of an event that concerns the whole partition."""
    encoder = Encoder()
    return b"", encoder.encode(encoder.prefix(0, BROKER), happened)
