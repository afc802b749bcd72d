"""Changes of many queues in the broker's loop, cut into slices, so that other work gets a turn in between.

A policy, an import or the deletion of a vhost changes queues, so this work has its own pace: it waits for the log and
RocksDB after each batch of queues (`Pace`). Work over a few things is done at once, without a task (eager.py). Requests
that only read share one line of slices instead: loop_share.py.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

SLICE_SECONDS = 0.005
TOGETHER = 32  # things that stay in one slice
CHANGED_TOGETHER = 200  # queues: a batch for RocksDB packs them in 5 to 10 ms

T = TypeVar("T")


async def in_slices(things: Iterable[T]) -> AsyncIterator[T]:
    """Yield the things, in slices. They may change while other work has its turn."""
    began = time.perf_counter()
    for number, thing in enumerate(things, 1):
        yield thing
        if number % TOGETHER == 0 and time.perf_counter() - began > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


class Pace:
    """Makes work change CHANGED_TOGETHER queues at a time, which RocksDB takes in a batch.

    A batch holds all changes up to its offset, and is packed in one piece of the loop's time. So the work waits until
    `written` has handed over its changes, and then goes on."""

    def __init__(self, written: Callable[[], Awaitable[None]]) -> None:
        self._written = written
        self._changed = 0

    async def changed(self) -> None:
        """Count one more changed queue, and wait if the batch is full."""
        self._changed += 1
        if self._changed == CHANGED_TOGETHER:
            self._changed = 0
            gc.collect(0)  # its counter is objects made minus objects freed, so it runs late after replacements
            await self._written()
