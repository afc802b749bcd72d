"""`rewindmq start --kafka ... --archive`: the owner of a partition archives it. Nodes and archivers are killed."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.archiving_brokers import archive_item, archiver_of
from tests.support.deadlines import until
from tests.support.forked import run
from tests.support.kafka.archiving_nodes import ArchivingNodes, publish, require_equal, wait_for_archive
from tests.support.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.long


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


@pytest.mark.rare
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
