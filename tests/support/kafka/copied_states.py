"""Nodes whose state is copied: queues of each kind to fill, and what is in them afterwards."""

import random
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUEUES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "stream": {"x-queue-type": "stream"},
    "urgent": {"x-max-priority": 5},
    "dead": {},
    "short": {"x-max-length": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
}


EACH = 20
HELD = 3


def body(queue: str, number: int) -> bytes:
    return random.Random(f"{queue} {number}").randbytes(3_000)


def fill(channel: BlockingChannel) -> None:
    """Fill a queue of each kind, and hold some messages of two of them."""
    for queue, arguments in QUEUES.items():
        channel.queue_declare(queue, durable=True, arguments=arguments)
    for queue in QUEUES.keys() - {"dead"}:
        for number in range(EACH):
            channel.basic_publish("", queue, body(queue, number), PERSISTENT)
    for queue in ("classic", "quorum"):
        for number in range(HELD):
            assert channel.basic_get(queue)[2] == body(queue, number)


def drained(node: RunningBroker, queue: str, count: int) -> list[tuple[bytes, bool]]:
    """Take so many messages, and check that no more are there. Returns bodies and whether each was redelivered."""
    found: list[tuple[bytes, bool]] = []
    with connect(node) as connection:
        channel = connection.channel()
        while len(found) < count:
            until(lambda: channel.queue_declare(queue, passive=True).method.message_count, f"{queue} has too few")
            method, _, got = channel.basic_get(queue, auto_ack=True)
            found.append((got, method.redelivered))
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
    return found


def verify(nodes: Nodes, name: str) -> Any:
    """Run `rewindmq verify` on a node's directory."""
    return run(
        "verify",
        "--data",
        str(nodes.directory / name),
        "--kafka",
        nodes.kafka.bootstrap,
        "--kafka-prefix",
        nodes.prefix,
    )
