"""Waits for a condition that another task, thread, process or machine brings about."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVarTuple

SECONDS = 120  # of a machine with other work
Given = TypeVarTuple("Given")


def until(
    condition: Callable[[*Given], object],
    what: str = "it does not come to that",
    *given: *Given,
    seconds: float = SECONDS,
) -> None:
    """Wait until `condition(*given)` holds. `what`: the words of the error if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition(*given):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


async def eventually(condition: Callable[[], object], what: str = "it does not come to that") -> None:
    """Let the event loop work until a condition holds. `what`: the words of the error if it does not hold in time."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.002)
