"""The part of a test's consumer that does not depend on its messages."""

from collections.abc import Callable

from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.rewind.reader import Reader
from rewindmq.projections.machine.data.queue import Queue


class NeverCongested:
    """A client whose socket takes all bytes."""

    reader: Reader | None = None
    congested: bool = False

    def moved(self, partition: Partition, queue: Queue) -> None:
        """A reader of the past goes on in another partition."""

    def reads_by(self, reader: Reader) -> None:
        self.reader = reader

    def when_relieved(self, callback: Callable[[], None]) -> None:
        raise AssertionError("it is never congested")
