"""Regular expressions that a request brings to choose by name: which queues, which rows of a listing.

Names are looked through in slices, so that others get a turn, and a request has `FILTER_SECONDS` for all of them.
"""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from engine.http.call import bad_request
from engine.slices import in_slices
from projections.patterns import BadPattern, Pattern, TooManySteps, shown

FILTER_SECONDS = 2.0  # of matching alone

T = TypeVar("T")


async def chosen_by(
    pattern: str, things: Iterable[T], name_of: Callable[[T], str], ignore_case: bool = False
) -> list[T]:
    """The things in whose name the pattern is found. ApiError 400: it is none, or it takes too long."""
    try:
        compiled = Pattern(pattern, ignore_case)
    except BadPattern as error:
        raise bad_request(f"not a regular expression: {shown(pattern)}: {error}") from None
    found = []
    left = FILTER_SECONDS
    async for thing in in_slices(things):
        began = time.perf_counter()
        try:
            if compiled.search(name_of(thing)):
                found.append(thing)
        except TooManySteps:
            raise bad_request(
                f"regular expression {shown(pattern)} takes too many steps on {shown(name_of(thing))}"
            ) from None
        left -= time.perf_counter() - began
        if left < 0:
            raise bad_request(f"regular expression {shown(pattern)} takes too long on so many names")
    return found
