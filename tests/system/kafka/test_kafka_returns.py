"""A partition goes on after a pause that was longer than Kafka keeps records (B-71)."""

import re
from pathlib import Path

import pytest

from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.events import CheckpointAsked
from tests.support.deadlines import until
from tests.support.kafka.archiving_nodes import QUEUES, FloorNodes, publish, take, wait_for_archive
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.copied_states import verify
from tests.support.kafka.entering_nodes import EnteringNode
from tests.support.kafka.left_states import BEGAN, LEFT, keyed_event, last_matches, produce
from tests.support.kafka.nodes import NEVER, modes, owned
from tests.support.pika_clients import numbered

pytestmark = pytest.mark.long

ARCHIVED = re.compile(r"(queues-\d+) begins at offset (\d+) in Kafka")


def paused_at_south(nodes: FloorNodes) -> int | None:
    """The partition that north owns and south has paused; None: there is none yet."""
    north, south = owned(nodes.running["north"]), modes(nodes.running["south"])
    numbers = [number for number in range(2) if north[f"queues-{number}"] and south[f"queues-{number}"] == "append"]
    return numbers[0] if len(numbers) == 1 else None


@pytest.mark.rare
def test_b71_a_pause_may_be_longer_than_kafka_keeps(kafka: KafkaCluster, tmp_path: Path) -> None:
    """At first only the archive has what was missed, and later an owner's copy of the state."""
    with FloorNodes(tmp_path, kafka, timeout=NEVER, standbys="0", program=EnteringNode) as nodes:
        north, south = nodes.start("north"), nodes.start("south")
        publish(north, range(10))
        until(lambda: paused_at_south(nodes) is not None, "south pauses nothing that north owns")
        number = paused_at_south(nodes)
        assert number is not None
        name = f"queues-{number}"
        [queue] = [each for each in QUEUES if partition_of("/", each, 2) == number]

        publish(north, range(10, 50))
        wait_for_archive(nodes)
        nodes.delete_archived()
        publish(north, range(50, 60))
        assert modes(south)[name] == "append"
        assert take(south, queue, 60) == numbered(range(60))
        assert name in last_matches(south, ARCHIVED)
        assert name not in last_matches(south, BEGAN)

        publish(north, range(60, 70))
        until(lambda: paused_at_south(nodes) == number, "south does not pause it again")
        publish(north, range(70, 120))
        assert take(north, queue, 50) == numbered(range(60, 110))
        produce(nodes, number, [keyed_event(CheckpointAsked())], "queues")
        until(lambda: name in last_matches(north, LEFT), "north leaves no state")
        wait_for_archive(nodes)
        nodes.delete_archived()
        publish(north, range(120, 130))
        assert modes(south)[name] == "append"
        assert take(south, queue, 20) == numbered(range(110, 130))
        assert last_matches(south, BEGAN)[name] == last_matches(north, LEFT)[name]
        nodes.stop("south")
        nodes.stop("north")
        for each in ("south", "north"):
            assert verify(nodes, each).returncode == 0, each
