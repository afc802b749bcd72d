"""Coroutines that mostly need not wait (engine/host/eager.py)."""

import asyncio

from rewindmq.engine.host import eager


async def waits(future: "asyncio.Future[None]", ended: list[str]) -> None:
    try:
        await future
    finally:
        ended.append("ended")


def test_what_outlives_its_loop_ends_quietly_in_any_order() -> None:
    """The collector may close the coroutine before the generator that goes on with it."""
    for first in (True, False):
        loop = asyncio.new_event_loop()
        ended: list[str] = []
        future = loop.create_future()
        work = waits(future, ended)
        rest = eager._rest(work, work.send(None))
        rest.send(None)
        if first:
            work.close()
        rest.close()
        assert ended == ["ended"]
        loop.close()
