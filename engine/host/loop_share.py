"""Share the broker's loop: long work runs in slices, one in each turn of the loop, and its client waits for it.

    work = Work(share)                       # one for each request of the management API
    for queue in queues:
        items.append(item_of(queue))
        if work.due:                         # this slice has had SLICE_SECONDS
            await work.give_way()            # first the slices of others in the line, and all other work of the loop

    if not account.begin():                  # one for each AMQP connection: it has used more than its share lately
        share.call(go_on)                    # `go_on` calls account.begin_in_line(), and stops when account.due

All long work waits in one line: requests, large fetches, and the frames of clients that send much. A turn of the loop
runs one slice of the line, so the others wait for one slice at most, however many stand there. The line moves in order.
A client that uses little of the loop is served at once, before the line: its `LoopAccount` has what it may still use.

While such a client is there, the loop is `shared`: slices are short, and the line rests after one that could not end in
time. When all clients are in the line, slices are longer, which costs less, because a write has more messages.

A slice ends between two events, never within `apply` or a transaction. Work that changes many queues is not in this
line, because it also waits for the disk: slices.py. `mark` says whose work runs; loop_watch.py reports work that takes
too long.
"""

import asyncio
import heapq
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeVar

SHARED_SECONDS = 1.0  # the loop is shared for this long after a client was served at once
SLICE_SECONDS = 0.002  # while the loop is shared
LONG_SLICE_SECONDS = 0.006
SHARED_SWITCH_SECONDS = 0.0005
SWITCH_SECONDS = 0.005  # Python's own
AT_ONCE_SECONDS = 0.001  # the most that a client's account holds: it has this much before it enters the line
EARNED = 0.02  # a client's part of the loop that it may always use without waiting
LONGEST_REST_SECONDS = 0.05  # the line rests after a slice that was too long, for as long as it was too long
MOST_OWED_SECONDS = 0.02  # after a second without work the client is served at once again
SORTED_AT_ONCE = 2_000  # entries: a millisecond or two

T = TypeVar("T")


def switch_threads(shared: bool) -> None:
    """Let a busy loop keep Python's interpreter for less time, while it is shared, when another thread wants it.

    A confirm waits for the log's thread about six times."""
    sys.setswitchinterval(SHARED_SWITCH_SECONDS if shared else SWITCH_SECONDS)


class LoopShare:
    """A line of work. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.ends = 0.0  # when the slice that runs now is to end
        self.who: object = None  # whose work runs; an object whose text is made only if somebody asks
        self.since = 0.0  # since when
        self.shared = True
        self._on_shared: Callable[[bool], None] = lambda shared: None
        self._at_once = clock()  # when a client was served at once last
        self._line: deque[tuple[Callable[[], object], bool]] = deque()
        self._next: asyncio.Handle | None = None  # the next slice; None: this turn may still have one

    @property
    def busy(self) -> bool:
        """Return True if a slice is due, or the line rests."""
        return self._next is not None

    def start(self, on_shared: Callable[[bool], None]) -> None:
        """Call `on_shared` with `shared` now, and when it has changed."""
        self._on_shared = on_shared
        on_shared(self.shared)

    def mark(self, who: object) -> float:
        """Note that the work of `who` begins now, for the watch (loop_watch.py). Returns the time."""
        self.who = who
        self.since = now = self.clock()
        return now

    def take_slice(self) -> bool:
        """Begin a slice without standing in the line. False: somebody stands there, or this turn had its slice."""
        if self._next is not None:
            return False
        self._begin_slice()
        self._next = asyncio.get_running_loop().call_soon(self._slice)
        return True

    def serve_at_once(self, now: float) -> None:
        """Note that a client is served at once: it should not wait for the others long."""
        self._at_once = now
        if not self.shared:
            self._share(True)

    def _share(self, shared: bool) -> None:
        self.shared = shared
        self._on_shared(shared)

    def _begin_slice(self) -> None:
        now = self.clock()
        if self.shared and now - self._at_once >= SHARED_SECONDS:
            self._share(False)
        self.ends = now + (SLICE_SECONDS if self.shared else LONG_SLICE_SECONDS)

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
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._slice)

    def _slice(self) -> None:
        """Run one slice of the line.

        Code that waited in `turn` runs after this function, in the same turn of the loop. So it ends the slice."""
        loop = asyncio.get_running_loop()
        self._begin_slice()
        self._next = loop.call_soon(self._slice)  # ahead of the writes of this slice, which so serve both
        try:
            for _ in range(len(self._line)):  # once each: what enters the line again waits for the next turn
                callback, alone = self._line.popleft()
                self.mark(None if alone else callback)
                callback()
                if alone or self.clock() >= self.ends:
                    break
        finally:
            over = self.clock() - self.ends
            if self.shared and over > SLICE_SECONDS:  # one event may be long: a publish to 10,000 queues takes 20 ms
                self._plan(loop.call_later(min(over, LONGEST_REST_SECONDS), self._slice))
            elif not self._line:
                self._plan(None)
            elif self.shared:
                self._plan(loop.call_soon(self._slice))  # after everything that has come up meanwhile

    def _plan(self, following: asyncio.Handle | None) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = following


class LoopAccount:
    """The time of the loop that one client may use before it enters the line. Each use is paid from it."""

    def __init__(self, share: LoopShare) -> None:
        self.share = share
        self._left = AT_ONCE_SECONDS  # below 0: the client has used more than it may
        self._counted = share.clock()  # the earned part is in `_left` up to here
        self._began: float | None = None  # when the work that runs did
        self._ends = 0.0
        self._looked = False

    def begin(self, who: object) -> bool:
        """Begin work of the client `who`. False: it has to wait in the line."""
        now = self.share.clock()
        self._left = min(AT_ONCE_SECONDS, self._left + (now - self._counted) * EARNED)
        self._counted = now
        if self._left > 0:
            self.share.serve_at_once(now)
            self._ends = now + AT_ONCE_SECONDS
        elif self.share.take_slice():
            self._ends = self.share.ends
        else:
            return False
        self._began = self.share.mark(who)
        self._looked = False
        return True

    def begin_in_line(self, who: object) -> None:
        """Begin work of the client, as a part of the slice that runs."""
        self._ends = self.share.ends
        self._began = self.share.mark(who)
        self._looked = False

    @property
    def due(self) -> bool:
        """Return True if this work has lasted long enough. The first look says no, so that each work gets somewhere."""
        looked, self._looked = self._looked, True
        return looked and self.share.clock() >= self._ends

    def pay(self) -> None:
        """End the work that runs, if any does, and pay for it."""
        if self._began is not None:
            self._counted = now = self.share.clock()
            self._left = max(-MOST_OWED_SECONDS, self._left - (now - self._began))
            self._began = None


class Work:
    """The work of one request, which began in this turn of the loop."""

    def __init__(self, share: LoopShare) -> None:
        self.share = share
        self._began = share.clock()

    @property
    def due(self) -> bool:
        """Return True if the slice has lasted long enough."""
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
