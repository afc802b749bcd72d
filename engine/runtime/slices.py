"""Work over many things in the broker's loop, cut into slices: others get a turn in between."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

SLICE_SECONDS = 0.005
TOGETHER = 32  # things that never stand in two slices: what is small is done at once, without a task (eager.py)
CHANGED_TOGETHER = 200  # queues: a batch for RocksDB packs them in 5 to 10 ms

T = TypeVar("T")


async def in_slices(things: Iterable[T]) -> AsyncIterator[T]:
    """The same things. What they are may change while others have their turn."""
    began = time.perf_counter()
    for number, thing in enumerate(things, 1):
        yield thing
        if number % TOGETHER == 0 and time.perf_counter() - began > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


class Pace:
    """The pace at which a piece of work changes queues: RocksDB takes CHANGED_TOGETHER of them in a batch.

    A batch holds all that changed up to its offset, and is packed in one piece of the loop's time. So the work waits
    until `written` has handed over what it changed, and then goes on.
    """

    def __init__(self, written: Callable[[], Awaitable[None]]) -> None:
        self._written = written
        self._changed = 0

    async def changed(self) -> None:
        """One more queue has changed."""
        self._changed += 1
        if self._changed == CHANGED_TOGETHER:
            self._changed = 0
            gc.collect(0)  # it counts what is made less what is freed, so work that replaces much would wake it late
            await self._written()
