"""Clients of Kafka whose producers a test watches, record by record."""

from collections.abc import Callable, Mapping
from typing import Any

from rewindmq.engine.log.kafka.clients import KafkaClients

Watch = Callable[[Any, str, int, bytes | None], bytes | None]  # producer, topic, partition, key -> the key to send


class WatchedProducer:
    """A producer that asks `watch` before each record, which may change the key."""

    def __init__(self, producer: Any, watch: Watch) -> None:
        self._producer = producer
        self._watch = watch

    def __len__(self) -> int:
        return len(self._producer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def produce(self, topic: str, value: bytes | None, key: bytes | None, partition: int, **given: Any) -> None:
        self._producer.produce(topic, value, self._watch(self._producer, topic, partition, key), partition, **given)


class WatchedClients(KafkaClients):
    """Clients whose producers of records are watched."""

    def __init__(self, bootstrap: str, watch: Watch) -> None:
        super().__init__(bootstrap)
        self._watch = watch

    def producer(self, settings: Mapping[str, Any]) -> Any:
        return WatchedProducer(super().producer(settings), self._watch)
