"""Work over many things in the broker's loop, cut into slices: others get a turn in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

SLICE_SECONDS = 0.005
TOGETHER = 32  # things that never stand in two slices: what is small is done at once, without a task (eager.py)

T = TypeVar("T")


async def in_slices(things: Iterable[T]) -> AsyncIterator[T]:
    """The same things. What they are may change while others have their turn."""
    began = time.perf_counter()
    for number, thing in enumerate(things, 1):
        yield thing
        if number % TOGETHER == 0 and time.perf_counter() - began > SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()
