"""Assigns the duties of queue partitions to nodes, by Kafka's consumer group.

Every node is a member of the group `<prefix>.owners`, which subscribes to the queues topic without fetching from it. A
dead node leaves the group after `SESSION_MS`; a node that cannot reach Kafka for this time gives up its own duties. The
assignment is cooperative: a node that keeps a partition is undisturbed while others join and leave.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, TopicPartition

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import KafkaClients, text_of

logger = logging.getLogger(__name__)

SESSION_MS = 6_000
_SETTINGS: dict[str, Any] = {
    "group.protocol": "classic",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": 1_000,
    # It fetches nothing, because its partitions are paused. When it pauses them, at most one batch each is in flight.
    "fetch.message.max.bytes": 1_024,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 64,
}
_POLL_SECONDS = 0.1


class KafkaOwners:
    """The thread that is this node's member of the group.

    It calls `changed(numbers)` with the partitions that this node now owns, and `failed(error)` if it ends
    unexpectedly, because the node then no longer knows its duties."""

    def __init__(
        self,
        clients: KafkaClients,
        group: str,
        topic: str,
        changed: Callable[[frozenset[int]], None],
        failed: Callable[[LogError], None],
    ) -> None:
        self._clients = clients
        self._group = group
        self._topic = topic
        self._changed = changed
        self._failed = failed
        self._owned: set[int] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-owners", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, so that others have the duties at once. Does not wait for the thread, as `join` does."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread, up to this many seconds."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            consumer = self._clients.consumer({**_SETTINGS, "group.id": self._group}, logs=True)
            consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
            try:
                while not self._stopping.is_set():
                    polled = consumer.poll(_POLL_SECONDS)
                    error = None if polled is None else polled.error()
                    if error is not None:
                        self._handle_error(error)
            finally:
                consumer.close()
        except Exception as error:
            if not self._stopping.is_set():
                logger.exception("the thread that reads this node's duties ended")
                self._failed(LogError(f"Kafka: the group {self._group}: {error}"))

    def _handle_error(self, error: KafkaError) -> None:
        """Handle an error reported by the consumer, which itself recovers from most.

        Raises LogError."""
        if error.fatal():
            raise LogError(text_of(error))
        logger.warning("Kafka: the group %s: %s", self._group, text_of(error))

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign([TopicPartition(each.topic, each.partition, OFFSET_END) for each in partitions])
        consumer.pause(partitions)
        self._owned |= {each.partition for each in partitions}
        self._changed(frozenset(self._owned))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned -= {each.partition for each in partitions}
        self._changed(frozenset(self._owned))
        consumer.incremental_unassign(partitions)
