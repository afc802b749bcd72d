"""A topic's settings."""

import time

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.following import SECONDS


def settings_of(kafka: KafkaCluster, topic: str) -> dict[str, str | None]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    [future] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {key: entry.value for key, entry in future.result(SECONDS).items()}


def change_setting(kafka: KafkaCluster, topic: str, key: str, value: str) -> None:
    """Change a setting of a topic, and wait until Kafka has applied it."""
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    [future] = admin.incremental_alter_configs([resource]).values()
    future.result(SECONDS)
    deadline = time.monotonic() + SECONDS
    while settings_of(kafka, topic)[key] != value:  # a broker applies it a little later
        assert time.monotonic() < deadline
        time.sleep(0.02)
