"""asyncio's own loop on a virtual clock: tasks, futures and timeouts as they are, and nobody waits."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

TURNS = 200_000  # more turns than this in one step are a broker that spins


class _Clock:
    """Stands where the loop has its selector: instead of waiting, time passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0

    def select(self, seconds: float | None) -> list[Any]:
        assert seconds is not None, "nothing would ever happen any more"
        self.now += seconds
        self.turns += 1
        assert self.turns < TURNS, "the nodes never come to rest"
        return []

    def close(self) -> None:
        """There is nothing to let go of."""


class NodesLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._selector = _Clock()
        self._clock_resolution = 1e-6
        self.defects: list[str] = []
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self._selector.now

    def run(self, seconds: float) -> None:
        """Let so much time pass, with all that happens in it."""
        self._selector.turns = 0
        self.call_later(seconds, self.stop)
        self.run_forever()

    def inside(self, work: Callable[[], T]) -> T:
        """Call it in the loop, as what comes from a socket is."""
        results: list[T] = []
        errors: list[Exception] = []

        def call() -> None:
            try:
                results.append(work())
            except Exception as error:
                errors.append(error)

        self.call_soon(call)
        self.run(0)
        if errors:
            raise errors[0]
        return results[0]

    def _process_events(self, events: list[Any]) -> None:
        """There never are any."""

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""

    def _failed(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "was destroyed but it is pending" not in context["message"]:  # of a node that was killed
            self.defects.append(f"{context['message']}: {error!r}")
