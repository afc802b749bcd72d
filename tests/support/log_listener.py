"""A listener of a log made of functions."""

from collections.abc import Callable


class Listener:
    awaits_log = True

    def __init__(
        self, durable: Callable[[], object] | None = None, commit_failed: Callable[[Exception], object] | None = None
    ) -> None:
        self._durable = durable
        self._commit_failed = commit_failed

    def durable(self) -> None:
        if self._durable is not None:
            self._durable()

    def commit_failed(self, error: Exception) -> None:
        if self._commit_failed is not None:
            self._commit_failed(error)
