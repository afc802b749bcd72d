"""What every consumer of a test has besides what it does with its messages."""

from collections.abc import Callable

from rewindmq.engine.rewind.reader import Reader


class NeverCongested:
    """A client whose socket takes all that comes."""

    reader: Reader | None = None
    congested: bool = False

    def reads_by(self, reader: Reader) -> None:
        self.reader = reader

    def when_relieved(self, callback: Callable[[], None]) -> None:
        raise AssertionError("it is never congested")
