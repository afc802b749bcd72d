"""A node keeps snapshots of the topology: its next start reads only the metadata behind the newest one."""

import re
from pathlib import Path

import pytest

from rewindmq.engine.log.kafka.reader import KafkaLogReader
from rewindmq.projections.metadata_verification import verify_metadata
from rewindmq.projections.store.snapshots import Snapshots
from tests.support.deadlines import until
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.nodes import Nodes
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

FOLDED = re.compile(r"metadata-0: (\d+) events folded on top of the state at offset (\d+); 0 quarantined")


def bind(node: RunningBroker, first: int, end: int) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        for number in range(first, end):
            channel.queue_declare(f"q{number}", durable=True)
            channel.queue_bind(f"q{number}", "amq.topic", f"key.{number}")


def folded(node: RunningBroker) -> tuple[int, int]:
    """Return the number of events of the metadata log that the start folded, and the offset of the state below them."""
    found = FOLDED.search("".join(node.errors))
    assert found is not None, node.errors
    return int(found[1]), int(found[2])


def test_a_start_goes_on_from_the_newest_snapshot(kafka: KafkaCluster, tmp_path: Path) -> None:
    with Nodes(tmp_path, kafka) as nodes:
        north = nodes.start("north")
        bind(north, 0, 30)
        nodes.stop("north")
        snapshots = Snapshots(tmp_path / "north" / "snapshots")
        [taken] = snapshots.offsets("metadata-0")
        south = nodes.start("south")
        bind(south, 30, 40)
        north = nodes.start("north")
        count, behind = folded(north)
        assert behind == taken
        assert 10 < count < 30, "the ten bindings, and what nodes say when they come and go"
        bind(north, 40, 41)
        log = KafkaLogReader(kafka.bootstrap, nodes.prefix).metadata
        with connect(north) as connection:
            channel = connection.channel()
            for number in (0, 35, 40):
                channel.basic_publish("amq.topic", f"key.{number}", b"x")
                assert channel.basic_get(f"q{number}", auto_ack=True)[2] == b"x"
        nodes.digests()
        nodes.stop("north")
        report = verify_metadata(log, snapshots)
        assert report.equal
        assert report.compared == 2

        path = snapshots.path("metadata-0", snapshots.offsets("metadata-0")[-1])
        path.write_bytes(path.read_bytes()[:-50])
        north = nodes.start("north")
        assert folded(north)[1] == taken, "the damaged one is passed over"
        until(lambda: "passed over" in "".join(north.errors), "the log does not say so")
