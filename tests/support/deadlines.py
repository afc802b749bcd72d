"""Waits for a condition that another thread, process or machine brings about."""

import time
from collections.abc import Callable
from typing import TypeVarTuple

SECONDS = 120  # of a machine with other work
Given = TypeVarTuple("Given")


def until(condition: Callable[[*Given], object], what: str, *given: *Given, seconds: float = SECONDS) -> None:
    """Wait until `condition(*given)` holds. `what`: the words of the error if it does not hold in time."""
    deadline = time.monotonic() + seconds
    while not condition(*given):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
