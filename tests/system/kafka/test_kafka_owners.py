"""The owners of partitions, by Kafka's consumer group."""

import threading
from collections import Counter

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.engine.log.kafka.owners import KafkaOwners
from tests.support.deadlines import until
from tests.support.kafka.cluster import KafkaCluster

PARTITIONS = 8


def test_a_thread_that_ends_is_told_of() -> None:
    """A node that would never hear of its duties again must not go on as if nothing were."""
    told: list[LogError] = []
    ended = threading.Event()

    def failed(error: LogError) -> None:
        told.append(error)
        ended.set()

    owners = KafkaOwners(KafkaClients("127.0.0.1:1", {"no.such.setting": "1"}), "group", "topic", print, failed)
    owners.start()
    assert ended.wait(60)
    owners.join(60)
    assert "no.such.setting" in str(told[0])


class Member:
    """A node as far as the group knows it."""

    def __init__(self, kafka: KafkaCluster, prefix: str, name: str) -> None:
        self.name = name
        self.owned: frozenset[int] = frozenset()
        self.failures: list[LogError] = []
        clients = KafkaClients(kafka.bootstrap)
        group, topic = f"{prefix}.owners", f"{prefix}.queues"
        self.owners = KafkaOwners(clients, group, topic, self._changed, self.failures.append)
        self.owners.start()

    def _changed(self, numbers: frozenset[int]) -> None:
        self.owned = numbers

    def leave(self) -> None:
        self.owners.stop()
        self.owners.join(60)


def even(members: list[Member]) -> bool:
    """Return True if each partition has one owner, and no member has two partitions more than another."""
    owners = {number: member.name for member in members for number in member.owned}
    counts = Counter({member.name: len(member.owned) for member in members})
    spread = max(counts.values()) - min(counts.values())
    return spread <= 1 and counts.total() == len(owners) == PARTITIONS


@pytest.mark.long
def test_b49_partitions_are_spread_evenly(kafka: KafkaCluster) -> None:
    prefix = "even"
    KafkaLog.open(kafka.bootstrap, prefix, partitions=PARTITIONS).close()
    members: list[Member] = []
    try:
        for name in ("north", "south", "west"):
            members.append(Member(kafka, prefix, name))
            until(lambda: even(members), f"partitions are not spread evenly with {name}")
        members.pop(0).leave()
        until(lambda: even(members), "partitions are not spread evenly when a node has left")
        assert not any(member.failures for member in members)
    finally:
        for member in members:
            member.leave()
