"""The share of the broker's loop for long work: it runs in slices, one in each turn of the loop. That is the work of
the management API, and each fetch of a large body from the store.

    work = Work(share)                       # one for each request
    for queue in queues:
        items.append(item_of(queue))
        if work.due:                         # this slice has had SLICE_SECONDS
            await work.give_way()            # first the slices of other requests, and all other work of the loop

AMQP waits for one slice, however many requests there are. Requests take turns in order, so a request waits for at most
one slice of each other request. Work that changes many queues is not in this line, because it also waits for the disk:
slices.py.
"""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeVar

SLICE_SECONDS = 0.004
SORTED_AT_ONCE = 2_000  # entries: a millisecond or two

T = TypeVar("T")


class LoopShare:
    """A line of work. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._line: deque[tuple[Callable[[], object], bool]] = deque()
        self._called = False

    async def turn(self) -> None:
        """Wait for a turn of the loop that does no other work of the line."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not future.done():
                future.set_result(None)

        self._stand_in_line(go_on, alone=True)
        await future

    def call(self, callback: Callable[[], object]) -> None:
        """Call the function in one of the next turns of the loop, in order. It is short: a slice holds several."""
        self._stand_in_line(callback, alone=False)

    def _stand_in_line(self, callback: Callable[[], object], alone: bool) -> None:
        self._line.append((callback, alone))
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._slice)

    def _slice(self) -> None:
        """Run one slice of the line.

        Code that waited in `turn` runs after this function, in the same turn of the loop. So it ends the slice."""
        began = self.clock()
        try:
            while self._line:
                callback, alone = self._line.popleft()
                callback()
                if alone or self.clock() - began >= SLICE_SECONDS:
                    break
        finally:
            if self._line:
                asyncio.get_running_loop().call_soon(self._slice)
            else:
                self._called = False


class Work:
    """The work of one request, which began in this turn of the loop."""

    def __init__(self, share: LoopShare) -> None:
        self.share = share
        self._began = share.clock()

    @property
    def due(self) -> bool:
        """Whether the slice has lasted long enough."""
        return self.share.clock() - self._began >= SLICE_SECONDS

    async def give_way(self) -> None:
        """Wait for the next slice."""
        await self.share.turn()
        self._began = self.share.clock()

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items. Other requests may have their turn between two items."""
        for item in items:
            yield item
            if self.due:
                await self.give_way()

    async def in_order(self, entries: list[tuple[Any, T]]) -> list[T]:
        """Sort the entries by key, in slices; return their second parts. Equal keys keep their order."""
        runs: list[list[tuple[Any, T]]] = []
        for first in range(0, len(entries), SORTED_AT_ONCE):
            runs.append(sorted(entries[first : first + SORTED_AT_ONCE], key=itemgetter(0)))
            if self.due:
                await self.give_way()
        if len(runs) == 1:
            return [each for _, each in runs[0]]
        merged: Iterator[tuple[Any, T]] = heapq.merge(*runs, key=itemgetter(0))
        return [each async for _, each in self.over(merged)]


async def by_key(work: Work, found: Mapping[Any, T], wanted: Callable[[Any], bool] | None = None) -> list[T]:
    """Return the values whose key is wanted (None: all), in the order of their keys, in slices."""
    entries = [(key, each) async for key, each in work.over(list(found.items())) if wanted is None or wanted(key)]
    return await work.in_order(entries)
