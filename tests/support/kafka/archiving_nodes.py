"""Nodes on Kafka that archive their history, and what is in Kafka, in the archive and in both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from rewindmq.engine.keeping.archive.archiver import verify
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.reader import ArchivedLog
from rewindmq.engine.keeping.topic_tiers import TieredTopics
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from tests.support.deadlines import SECONDS, until
from tests.support.kafka.archived_topics import blocks
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import connect, numbered, publish_confirmed
from tests.support.running import RunningBroker

QUEUES = ("classic", "quorum")  # one in each partition


class ArchivingNodes(Nodes):
    """Nodes that archive to `archive` in their directory, two seconds behind."""

    @property
    def url(self) -> str:
        return str(self.directory / "archive")

    def options(self, name: str, bootstrap: str = "") -> tuple[str, ...]:
        return (*super().options(name, bootstrap), "--archive", self.url, "--archive-lag", "2s")


def publish(node: RunningBroker, numbers: range) -> None:
    for queue in QUEUES:
        publish_confirmed(node, queue, numbered(numbers))


def wait_for_archive(nodes: ArchivingNodes, partitions: int | None = None) -> None:
    """Wait until each record is archived that is in Kafka now, of the first queue partitions or of all."""
    log = KafkaLogReader(nodes.kafka.bootstrap, nodes.prefix)
    ends = {each.name: each.next_offset for each in (log.metadata, *log.queues[:partitions])}

    def there() -> bool:
        archived = {each.name: each.next_offset for each in ArchivedLog(nodes.url).partitions}
        return all(archived.get(name, 0) >= end for name, end in ends.items())

    until(lambda: (Path(nodes.url) / "archive.json").exists() and there(), f"not all is archived: {ends}")


def require_equal(nodes: ArchivingNodes) -> None:
    """The archive has the records of Kafka, and is whole."""
    log, archived = KafkaLogReader(nodes.kafka.bootstrap, nodes.prefix), ArchivedLog(nodes.url)
    for ours, theirs in zip(archived.partitions, (log.metadata, *log.queues), strict=True):
        rows = blocks(ours)
        assert rows == blocks(theirs)[: len(rows)]
        assert [error for _, error in verify(open_objects(nodes.url), ours.name) if error] == []


KEPT = ("kept", "kept too")


class FloorNodes(ArchivingNodes):
    """Archiving nodes. `keep_local`: their limit; empty: none."""

    keep_local = ""

    def options(self, name: str, bootstrap: str = "") -> tuple[str, ...]:
        limit = ("--keep-local", self.keep_local) if self.keep_local else ()
        return (*super().options(name, bootstrap), *limit)

    def log(self) -> KafkaLogReader:
        return KafkaLogReader(self.kafka.bootstrap, self.prefix)

    def partitions(self) -> Sequence[Any]:
        return TieredTopics(self.log(), self.url).queues

    def starts(self) -> list[int]:
        return [each.start_offset for each in self.log().queues]

    def delete_archived(self, more: int = 0, url: str = "") -> None:
        """Delete what is archived, as Kafka's retention does; with `more`, so many records behind it. `url`: where the
        archive is now."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        ends = [each.next_offset + more for each in ArchivedLog(url or self.url).queues]
        places = [TopicPartition(f"{self.prefix}.queues", number, at) for number, at in enumerate(ends)]
        for future in admin.delete_records(places).values():
            future.result(SECONDS)

    def options_of_tools(self) -> tuple[str, ...]:
        return ("--kafka", self.kafka.bootstrap, "--kafka-prefix", self.prefix)


def take(node: RunningBroker, queue: str, count: int) -> list[bytes]:
    """Take so many messages, and ack them."""
    with connect(node) as connection:
        channel = connection.channel()
        return [channel.basic_get(queue, auto_ack=True)[2] for _ in range(count)]


def backlog(node: RunningBroker) -> None:
    """Messages that stay queued: one queue in each partition."""
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in KEPT:
            channel.queue_declare(queue, durable=True)
            for number in range(20):
                channel.basic_publish("", queue, b"kept %d" % number)
