"""Assigns the duties of queue partitions to nodes, by Kafka's consumer group.

Every node is a member of the group `<prefix>.owners`, which subscribes to the queues topic and fetches nothing of it. A
dead node is out of the group after `SESSION_MS`; a node that cannot reach Kafka for this time gives its duties up by
itself. The assignment is cooperative: a node that keeps a partition is undisturbed while others come and go. Kafka's
assignor leaves no node with two partitions more than another.

A member's client id is its node's name. So after each change every node asks the group who owns the other partitions.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    ConsumerGroupState,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import ConsumerGroupDescription

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import ANSWER_MS, KafkaClients, text_of

logger = logging.getLogger(__name__)

SESSION_MS = 6_000
_SETTINGS: dict[str, Any] = {
    "group.protocol": "classic",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": 1_000,
}
_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 1.0


class KafkaOwners:
    """A thread that is a member of the group.

    It calls `changed(numbers)` with the partitions that are this node's now, and `failed(error)` when it ends unasked:
    the node then no longer knows its duties. `known`: the node of each partition, as the group said after its last
    change; a node of an earlier version is "rewindmq"."""

    def __init__(
        self,
        clients: KafkaClients,
        group: str,
        topic: str,
        node: str,
        changed: Callable[[frozenset[int]], None],
        failed: Callable[[LogError], None],
    ) -> None:
        self._clients = clients
        self._group = group
        self._topic = topic
        self._node = node
        self._changed = changed
        self._failed = failed
        self.known: Mapping[int, str] = {}
        self._owned: set[int] = set()
        self._ask_at: float | None = None
        self._asked: Future[ConsumerGroupDescription] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-owners", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, so that others have the duties at once. Does not wait for the thread: `join` does."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread, up to this many seconds."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            settings = {**_SETTINGS, "group.id": self._group, "client.id": self._node}
            consumer = self._clients.consumer(settings, logs=True)
            consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
            try:
                while not self._stopping.is_set():
                    polled = consumer.poll(_POLL_SECONDS)
                    error = None if polled is None else polled.error()
                    if error is not None:
                        self._handle_error(error)
                    self._learn()
            finally:
                consumer.close()
        except Exception as error:
            if not self._stopping.is_set():
                logger.exception("the thread that reads this node's duties ended")
                self._failed(LogError(f"Kafka: the group {self._group}: {error}"))

    def _handle_error(self, error: KafkaError) -> None:
        """Handle an error that the consumer reports. Most of them it repairs itself.

        Raises LogError."""
        if error.fatal():
            raise LogError(text_of(error))
        logger.warning("Kafka: the group %s: %s", self._group, text_of(error))

    def _learn(self) -> None:
        """Ask the group for the owners of all partitions after a change, and take the answer when it is there."""
        try:
            if self._asked is not None and self._asked.done():
                asked, self._asked = self._asked, None
                self._take(asked.result())
            if self._asked is None and self._ask_at is not None and time.monotonic() >= self._ask_at:
                self._ask_at = None
                admin = self._clients.admin()
                self._asked = admin.describe_consumer_groups([self._group], request_timeout=ANSWER_MS / 1000)[
                    self._group
                ]
        except Exception as error:  # whatever it is: this node's own duties do not depend on the answer
            logger.debug("Kafka: the group %s: %s", self._group, error)
            self._ask_at = time.monotonic() + _AGAIN_SECONDS

    def _take(self, group: ConsumerGroupDescription) -> None:
        """Take an answer, or ask again soon if the group is changing."""
        if group.state == ConsumerGroupState.STABLE:
            self.known = {
                partition.partition: member.client_id
                for member in group.members
                for partition in member.assignment.topic_partitions
            }
        elif self._ask_at is None:
            self._ask_at = time.monotonic() + _AGAIN_SECONDS

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign([TopicPartition(each.topic, each.partition, OFFSET_END) for each in partitions])
        consumer.pause(partitions)
        self._owned |= {each.partition for each in partitions}
        self._ask_at = time.monotonic()
        self._changed(frozenset(self._owned))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned -= {each.partition for each in partitions}
        self._ask_at = time.monotonic()
        self._changed(frozenset(self._owned))
        consumer.incremental_unassign(partitions)
