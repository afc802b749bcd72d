"""Coroutines that mostly need not wait.

What clients ask of the broker is a coroutine, because on a shared log an answer comes only when the event was read
back. With the embedded log it never waits, and then it must not cost a task and a turn of the loop: it is run at once,
and only what is left of it when it does wait becomes a task.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def begin(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T] | None":
    """Run a coroutine up to where it has to wait, and the rest as a task; None: it ended without waiting. What it
    raises before it waits comes out here."""
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    return asyncio.ensure_future(_rest(work, awaited))


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for it. If the waiting is cancelled, it goes on."""
    task = begin(work)
    if task is not None:
        await asyncio.shield(task)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that need not wait."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it had to wait")


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, None, T]:
    while True:
        try:
            yield awaited
        except GeneratorExit:  # the loop is no more; `work` may have been closed already, in the order of the collector
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
