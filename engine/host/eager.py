"""Runs coroutines that rarely wait without a task.

The broker's commands are coroutines, because on a shared log an answer comes only when the event was read back. With
the embedded log a command never waits, and so it must not cost a task and a turn of the loop. These functions run a
coroutine at once. Only if it waits does its rest become a task.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def begin(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T] | None":
    """Run a coroutine until it waits; return a task for the rest, or None if it ended.

    An error before the first wait is raised here."""
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    return asyncio.ensure_future(_rest(work, awaited))


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, even if the caller is cancelled."""
    task = begin(work)
    if task is not None:
        await asyncio.shield(task)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that does not wait. AssertionError: it waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("the coroutine had to wait")


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, None, T]:
    while True:
        try:
            yield awaited
        except GeneratorExit:  # the loop has ended; the garbage collector may have closed `work` already
            work.close()
            raise
        except BaseException as error:  # the task was cancelled
            try:
                awaited = work.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            continue
        try:
            awaited = work.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
