"""`rewindmq start --kafka ... --archive`: the owner of a partition archives it. Nodes and archivers are killed."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.log.archive.archiver import verify
from rewindmq.engine.log.archive.objects import open_objects
from rewindmq.engine.log.archive.reader import ArchivedLog
from rewindmq.engine.log.kafka.reader import KafkaLogReader
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes, api, connect
from tests.support.running import RunningBroker
from tests.system.archive.test_archive_beside import archiver_of
from tests.system.kafka.test_kafka_archive import blocks

pytestmark = pytest.mark.long

QUEUES = ("classic", "quorum")  # one in each partition


class ArchivingNodes(Nodes):
    """Nodes that archive to `archive` in their directory, two seconds behind."""

    @property
    def url(self) -> str:
        return str(self.directory / "archive")

    def options(self, name: str, bootstrap: str = "") -> tuple[str, ...]:
        return (*super().options(name, bootstrap), "--archive", self.url, "--archive-lag", "2s")


def publish(node: RunningBroker, numbers: range) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for queue in QUEUES:
            channel.queue_declare(queue, durable=True)
            for number in numbers:
                channel.basic_publish("", queue, b"%d" % number)


def archive_item(node: RunningBroker) -> dict[str, Any]:
    with api(node) as client:
        item: dict[str, Any] = client.get("/overview").json()["history"]["archive"]
    return item


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


def test_owners_archive_their_partitions_and_take_over(kafka: KafkaCluster, tmp_path: Path) -> None:
    with ArchivingNodes(tmp_path, kafka) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        publish(north, range(20))
        wait_for_archive(nodes)
        require_equal(nodes)

        killed = archiver_of(south)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        publish(south, range(20, 40))
        wait_for_archive(nodes)
        until(lambda: archiver_of(south) not in (None, killed), "the node has no archiver any more")
        assert archive_item(south)["failures"] == 1

        nodes.kill("north")
        publish(south, range(40, 60))
        wait_for_archive(nodes)
        require_equal(nodes)
        item = archive_item(south)
        assert (item["error"], item["url"]) == (None, f"file://{nodes.url}")
        until(lambda: archive_item(south)["lag_seconds"] < 10, "the lag does not end")
        status = run("status", REWINDMQ_URL=south.http_url)
        assert f"Archive: file://{nodes.url}" in status.stdout, status.stdout + status.stderr


def test_a_node_goes_on_while_its_archive_is_that_of_another_history(kafka: KafkaCluster, tmp_path: Path) -> None:
    with ArchivingNodes(tmp_path, kafka) as first:
        publish(first.start("north"), range(3))
        wait_for_archive(first)
    with ArchivingNodes(tmp_path, kafka) as nodes:
        north = nodes.start("north", data="other")
        until(lambda: archive_item(north)["error"], "it says nothing")
        assert "the archive of another history" in archive_item(north)["error"]
        publish(north, range(3))
        nodes.digests()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_the_archiver_ends_with_its_node(kafka: KafkaCluster, tmp_path: Path, signal_number: signal.Signals) -> None:
    with ArchivingNodes(tmp_path, kafka) as nodes:
        archiver = archiver_of(nodes.start("north"))
        assert archiver is not None
        (nodes.stop if signal_number is signal.SIGTERM else nodes.kill)("north")
        until(lambda: not Path(f"/proc/{archiver}").exists(), "the archiver is still there")
