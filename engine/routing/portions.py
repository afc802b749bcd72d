"""The work of finding a route, in portions, so that a publish whose route costs much does not stop the loop.

A search is a generator. It yields the cost of each portion in units (a node of a topic trie, a key, a binding: about a
quarter of a microsecond) and returns its result. Its caller decides how to run it:

    to_the_end(search)          at once, whatever it costs
    at_once(search)             at once if it costs no more than SLICE; otherwise RouteTakesLong carries the rest
    await in_turns(search, ..)  in slices, between which all other work of the loop has its turn

Bindings may change between two portions. No order is promised between a publish and what other connections bind, so
the search may find them or not.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from rewindmq.engine.host.loop_share import LoopShare

T = TypeVar("T")
Search = Generator[int, None, T]

PORTION: Final = 1_000  # units after which a search yields
SLICE: Final = 16_000  # units: about 4 ms


class RouteTakesLong(Exception):
    """A route costs more than one slice. `search` is the rest of the work."""

    def __init__(self, search: Search[Any]) -> None:
        super().__init__("the route takes long")
        self.search = search


def to_the_end(search: Search[T]) -> T:
    """Run a search to its end, and return its result."""
    try:
        while True:
            next(search)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def at_once(search: Search[T]) -> T:
    """Run a search for one slice, and return its result. Raises RouteTakesLong if it has not ended by then."""
    spent = 0
    try:
        while spent < SLICE:
            spent += next(search)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RouteTakesLong(search)


async def in_turns(search: Search[T], share: LoopShare, is_wanted: Callable[[], bool]) -> T | None:
    """Run a search in slices. Returns None as soon as its result is not wanted."""
    while is_wanted():
        await share.turn()
        try:
            return at_once(search)
        except RouteTakesLong:
            continue
    return None
