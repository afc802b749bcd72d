"""Objects of an archive that fail, or end the process, at a call of the store."""

from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from rewindmq.engine.keeping.archive.objects import Objects

T = TypeVar("T")


class Killed(BaseException):
    """The end of a process, as far as a test can have it."""


class FailingObjects(Objects):
    """Objects that fail at the call with this number: before it does anything, or when it has done it."""

    def __init__(self, objects: Objects, number: int, done: bool, error: BaseException) -> None:
        super().__init__(objects.url, objects._store, objects._directory)
        self.left = number
        self._done = done
        self._error = error

    def _call(self, what: Callable[[], T]) -> T:
        self.left -= 1
        fails = self.left == 0  # `what` may ask again
        if fails and not self._done:
            raise self._error
        try:
            return what()
        finally:
            if fails:
                raise self._error

    def create(self, key: str, data: bytes | BinaryIO) -> bool:
        return self._call(lambda: super(FailingObjects, self).create(key, data))

    def get(self, key: str) -> bytes:
        return self._call(lambda: super(FailingObjects, self).get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self._call(lambda: super(FailingObjects, self).get_range(key, start, end))

    def size(self, key: str) -> int | None:
        return self._call(lambda: super(FailingObjects, self).size(key))

    def delete(self, key: str) -> None:
        self._call(lambda: super(FailingObjects, self).delete(key))

    def list(self, prefix: str, after: str = "") -> Iterator[str]:
        return iter(self._call(lambda: [*super(FailingObjects, self).list(prefix, after)]))
