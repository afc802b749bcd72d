"""A broker that takes a snapshot every hundred events of a partition, and never logs a message with the body `lost`.

It is the pure build, in which a method can be replaced."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.support.running import RunningBroker

LOST = b"lost"
EVERY = 100


class LossyBroker(RunningBroker):
    """Such a broker in a process of its own."""

    program = ("-m", "tests.support.lossy_broker")


def begin() -> None:
    """Start it as `python -m rewindmq.engine` starts a broker."""
    os.environ["REWINDMQ_PURE"] = "1"  # before the first import of the program
    from rewindmq.engine import process
    from rewindmq.engine.cli.main import main
    from rewindmq.engine.embedded.partition import SoleWriterPartition
    from rewindmq.schemas.events import Published
    from rewindmq.schemas.values import Actor

    opened, logged = process.open_broker, SoleWriterPartition.publish
    logged_all = SoleWriterPartition.publish_run

    def opened_so(config: Any, *arguments: Any, **named: Any) -> Any:
        return opened(replace(config, snapshot_events=EVERY), *arguments, **named)

    def logged_or_not(self: SoleWriterPartition, actor: Actor, message: Published) -> int:
        return self.next_offset if message.body == LOST else logged(self, actor, message)

    def logged_or_not_of_run(self: SoleWriterPartition, actor: Actor, messages: Sequence[Published]) -> int:
        return logged_all(self, actor, [each for each in messages if each.body != LOST])

    process.open_broker = opened_so
    SoleWriterPartition.publish_run = logged_or_not_of_run  # type: ignore[method-assign]
    SoleWriterPartition.publish = logged_or_not  # type: ignore[method-assign]
    main(["start", *sys.argv[1:]])


if __name__ == "__main__":
    begin()
