"""The world's machinery on a virtual clock: an event loop without sockets, and a RocksDB that loses power well.

Nothing here waits or is random by itself. What hangs on the clock happens in the order of its time, and at the same
time in the order in which it was asked for.
"""

import heapq
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

BACKGROUND_TURNS = 100_000  # more callbacks than this without coming to an end are a broker that spins


class Handle:
    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None


class VirtualLoop:
    """Of asyncio's loop, what the broker uses. `now` is seconds since the beginning."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._waiting: list[tuple[float, int, Handle]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> Handle:
        return self.call_later(0, callback, *arguments)

    def call_later(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> Handle:
        handle = Handle(callback, arguments)
        self._count += 1
        heapq.heappush(self._waiting, (self.now + seconds, self._count, handle))
        return handle

    def run(self, seconds: float) -> None:
        """Let so much time pass, with all that happens in it."""
        end = self.now + seconds
        for _ in range(BACKGROUND_TURNS):
            if not self._waiting or self._waiting[0][0] > end:
                self.now = end
                return
            at, _, handle = heapq.heappop(self._waiting)
            self.now = max(self.now, at)
            if handle.callback is not None:
                handle.callback(*handle.arguments)
        raise AssertionError("the broker never comes to rest")

    def clear(self) -> None:
        """The process is dead: nothing that it waited for happens."""
        self._waiting.clear()


def at_once(_name: str, work: Callable[[], None]) -> "Future[None]":
    """A thread that has done its work already."""
    done: Future[None] = Future()
    work()
    done.set_result(None)
    return done


class VirtualBatch:
    """A RocksDB WriteBatch that can be looked into."""

    def __init__(self, raw_mode: bool) -> None:
        assert raw_mode
        self.changes: list[tuple[str, bytes, bytes]] = []
        self.consumed = False

    def put(self, key: bytes, value: bytes) -> None:
        self.changes.append(("put", key, value))

    def delete(self, key: bytes) -> None:
        self.changes.append(("delete", key, b""))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.changes.append(("range", begin, end))


class VirtualRocks:
    """RocksDB with its WAL off: a crash keeps what was flushed, and a front part of the batches behind it."""

    def __init__(self, content: Mapping[bytes, bytes] = MappingProxyType({})) -> None:
        self._flushed = dict(content)
        self._content = dict(content)
        self._batches: list[VirtualBatch] = []  # since the last flush
        self.full = False  # the disk will not have any more
        self.refusing = False  # a write has failed: nothing more is taken until it is opened again

    def get(self, key: bytes) -> bytes | None:
        return self._content.get(key)

    def put(self, key: bytes, value: bytes, options: object = None) -> None:
        batch = VirtualBatch(True)
        batch.put(key, value)
        self.write(batch, options)

    def write(self, batch: VirtualBatch, options: object) -> None:
        assert not batch.consumed, "this batch is already consumed"
        batch.consumed = True
        self._require_room()
        self._batches.append(batch)
        _apply(self._content, batch)

    def _require_room(self) -> None:
        self.refusing = self.refusing or self.full
        if self.refusing:
            raise Exception("IO error: No space left on device (simulated)")  # rocksdict knows no narrower class

    def flush(self, wait: bool) -> None:
        self._require_room()
        self._flushed = dict(self._content)
        self._batches = []

    def close(self) -> None:
        """One that refuses loses what was not flushed, as RocksDB loses its memtables."""
        if not self.refusing:
            self.flush(True)
            return
        self._content, self._batches, self.refusing = dict(self._flushed), [], False

    def crash(self, dice: random.Random) -> "VirtualRocks":
        """Return the store that the next life finds: the flushed content, and some of the batches written since."""
        content = dict(self._flushed)
        for batch in self._batches[: dice.randint(0, len(self._batches))]:
            _apply(content, batch)
        return VirtualRocks(content)

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        found = sorted(key for key in self._content if key.startswith(prefix))
        for key in found[bisect_left(found, start or prefix) :]:
            yield key, self._content[key]


def _apply(content: dict[bytes, bytes], batch: VirtualBatch) -> None:
    for kind, key, value in batch.changes:
        if kind == "put":
            content[key] = value
        elif kind == "delete":
            content.pop(key, None)
        else:
            for each in [each for each in content if key <= each < value]:
                del content[each]
