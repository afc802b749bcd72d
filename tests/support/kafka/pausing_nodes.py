"""Nodes on Kafka that pause a partition a second after its last use, and fold a paused one on after some seconds."""

from rewindmq.engine.cli.main import main
from rewindmq.engine.cluster import modes
from tests.support.running import RunningBroker

UNUSED_SECONDS = 1.0
PAUSED_SECONDS = 7.0


class PausingNode(RunningBroker):
    program = ("-m", "tests.support.kafka.pausing_nodes")

    @property
    def pauses(self) -> int:
        """How often this process has paused a partition."""
        return sum("not needed here, paused" in line for line in self.errors)


if __name__ == "__main__":
    import sys

    modes.UNUSED_SECONDS = UNUSED_SECONDS
    modes.PAUSED_SECONDS = PAUSED_SECONDS
    main(["start", *sys.argv[1:]])
