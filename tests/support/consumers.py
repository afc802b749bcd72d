"""The part of a test's consumer that does not depend on its messages."""

from collections.abc import Callable

from rewindmq.engine.rewind.reader import Reader


class NeverCongested:
    """A client whose socket takes all bytes."""

    reader: Reader | None = None
    congested: bool = False

    def reads_by(self, reader: Reader) -> None:
        self.reader = reader

    def when_relieved(self, callback: Callable[[], None]) -> None:
        raise AssertionError("it is never congested")
