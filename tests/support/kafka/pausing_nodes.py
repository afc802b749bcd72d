"""Nodes on Kafka that pause a partition a second after its last use. An owner leaves each snapshot in Kafka, and a
partition that goes on begins with one that saves some hundred events."""

from collections.abc import Callable
from dataclasses import replace

from rewindmq.engine import process
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cli.main import main
from rewindmq.engine.cluster import partition_pausing, snapshot_export, snapshot_import
from rewindmq.engine.config import Config
from tests.support.running import RunningBroker

UNUSED_SECONDS = 1.0
LEAST_EVENTS = 300
SNAPSHOT_EVENTS = 1_000


class PausingNode(RunningBroker):
    program = ("-m", "tests.support.kafka.pausing_nodes")

    @property
    def pauses(self) -> int:
        """Return the number of times that this process has paused a partition."""
        return sum("not needed here, paused" in line for line in self.errors)


def begin(arguments: list[str]) -> None:
    """Run a node that pauses and returns early."""
    open_node = process.open_node

    async def open_with_snapshots(config: Config, failed: Callable[[Exception], None]) -> Broker:
        return await open_node(replace(config, snapshot_events=SNAPSHOT_EVENTS), failed)

    process.open_node = open_with_snapshots  # type: ignore[assignment]
    partition_pausing.UNUSED_SECONDS = UNUSED_SECONDS
    snapshot_import.LEAST_EVENTS = LEAST_EVENTS  # type: ignore[misc]
    snapshot_export.BYTES_AN_EVENT = 1_000_000  # type: ignore[misc]
    main(["start", *arguments])


if __name__ == "__main__":
    import sys

    begin(sys.argv[1:])
