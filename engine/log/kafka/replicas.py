"""The replicas of a history's partitions on Kafka's brokers: their current places, and moves of leaders.

A quorum queue's members are the replicas of its partition, so all queues of a partition have the same members. A leader
can be moved from here (Kafka elects the preferred one, the first of the replicas). The replicas themselves cannot,
because librdkafka has no such request. That change is written to a file instead, in the format of
kafka-reassign-partitions.sh.

Every call asks Kafka and waits. Raises LogError when Kafka does not answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import ANSWER_MS, TIMEOUT_SECONDS, KafkaClients, asked, text_of
from rewindmq.engine.log.kafka.topics import KafkaTopics


@dataclass(frozen=True, slots=True)
class Placed:
    """A partition's replicas, as ids of Kafka's brokers, the preferred leader first. `leader` -1: there is none."""

    name: str  # our name: queues-0
    topic: str
    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    least_in_sync: int  # with fewer of them Kafka accepts no record (min.insync.replicas)


class KafkaReplicas:
    """The replicas of the three topics with this prefix."""

    def __init__(self, clients: KafkaClients, prefix: str) -> None:
        self._clients = clients
        self._topics = KafkaTopics(clients, prefix)

    def brokers(self) -> dict[int, str]:
        """Return the addresses of the running brokers, by id."""
        admin = self._clients.admin()
        found = asked("the brokers", lambda: admin.list_topics(timeout=TIMEOUT_SECONDS).brokers)
        return {number: f"{broker.host}:{broker.port}" for number, broker in sorted(found.items())}

    def placed(self) -> list[Placed]:
        """Return every partition of the history, those of queues first."""
        admin = self._clients.admin()
        names = {self._topics.queues: "queues", self._topics.metadata: "metadata", self._topics.nodes: "nodes"}
        topics = asked("the topics", lambda: admin.list_topics(timeout=TIMEOUT_SECONDS).topics)
        least = self._least_in_sync(list(names))
        return [
            Placed(f"{name}-{number}", topic, number, each.leader, tuple(each.replicas), tuple(each.isrs), least[topic])
            for topic, name in names.items()
            for number, each in sorted(topics[topic].partitions.items())
        ]

    @property
    def tool(self) -> str:
        """Return the command line, without actions, of Kafka's tool that changes replicas."""
        secured = " --command-config client.properties" if self._clients.is_secured else ""
        return f"kafka-reassign-partitions.sh --bootstrap-server {self._clients.bootstrap}{secured}"

    def reassignment(self, changes: Sequence[tuple[Placed, Sequence[int]]]) -> dict[str, object]:
        """Return the content of the tool's file: partitions and their new replicas."""
        entries = [
            {"topic": each.topic, "partition": each.number, "replicas": list(replicas)} for each, replicas in changes
        ]
        return {"version": 1, "partitions": entries}

    def elect_preferred(self, partitions: Sequence[Placed]) -> None:
        """Make the first replica of each partition the leader.

        Raises LogError when one of them is not available."""
        admin = self._clients.admin()
        wanted = [TopicPartition(each.topic, each.number) for each in partitions]
        # No timeouts are given, because confluent-kafka 2.16 has them in its signature but fails with them.
        future = admin.elect_leaders(ElectionType.PREFERRED, wanted)
        answers: Mapping[TopicPartition, KafkaError | None] = asked("leaders", future.result)
        for partition, error in answers.items():
            if error is not None and error.code() != KafkaError.ELECTION_NOT_NEEDED:
                raise LogError(f"Kafka: {partition.topic}-{partition.partition}: {text_of(error)}")

    def _least_in_sync(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the `min.insync.replicas` of each topic.

        A client that has just learned of a dead controller waits for it; the next attempt finds another."""

        def ask() -> dict[str, int]:
            resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
            futures = self._clients.admin().describe_configs(resources, request_timeout=ANSWER_MS / 1000)
            return {each.name: int(future.result()["min.insync.replicas"].value) for each, future in futures.items()}

        return asked("the settings of the topics", ask)
