"""Before a node says that there is no such thing, it reads to the end of the log.

On a log that many nodes append to (Kafka) what another node has just made may not have arrived here yet. What is there
can be told at once. That something is missing can be told only by a node that has read all that was in the log when it
was asked.

    answer ............ quick, while nothing is missing
    refused, or absent -> read to the end of the log -> the same once more, if anything changed meanwhile

Rules of this file
- One reading at a time: all that are asked while one is under way share the next one. So a flood of questions for what
  is not there costs one question to the log at a time, however many clients ask.
- `begun` when a question came in is what it has `heard`. A reading that began after that covers it.
- While the log is away nobody is told that something is missing: the log is asked again until it answers.
- A broker that is alone on its log is always sure, and never waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rewindmq.engine.errors import AccessRefused, NotAllowed, NotFound, PreconditionFailed, ResourceLocked
from rewindmq.engine.log.contract import LogError

T = TypeVar("T")

# What is refused for want of something, or for something that may be gone by now.
REFUSALS = (NotFound, AccessRefused, NotAllowed, PreconditionFailed, ResourceLocked)
AGAIN_SECONDS = 0.25

logger = logging.getLogger(__name__)


class Certainty:
    """`read_to_end`: returns when all that was in the log when it was called has been folded here, LogError when the
    log does not say; None: this broker is alone on its log. `version`: another number after each change of what there
    is."""

    def __init__(self, read_to_end: Callable[[], Awaitable[None]] | None, version: Callable[[], int]) -> None:
        self.begun = 0  # readings
        self._done = 0
        self._read_to_end = read_to_end
        self._version = version
        self._reading: asyncio.Future[None] | None = None

    def covers(self, heard: int) -> bool:
        """All that was in the log when `begun` was this number has been read."""
        return self._read_to_end is None or self._done > heard

    async def wait(self) -> None:
        """Until all that is in the log now has been read."""
        heard = self.begun
        while not self.covers(heard):
            if self._reading is None:
                self.begun += 1
                self._reading = asyncio.ensure_future(self._read())
            await asyncio.shield(self._reading)

    async def _read(self) -> None:
        assert self._read_to_end is not None
        try:
            while True:
                try:
                    await self._read_to_end()
                    break
                except LogError as error:
                    logger.debug("%s", error)
                    await asyncio.sleep(AGAIN_SECONDS)
            self._done = self.begun
        finally:
            self._reading = None

    def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def assured(
        self,
        attempt: Callable[[], Awaitable[T]],
        wait: Callable[[], Awaitable[None]],
        negative: Callable[[Exception], bool] = lambda error: isinstance(error, REFUSALS),
    ) -> T:
        """What `attempt` returns or raises. If it is `negative` because this node had not read enough, it is done once
        more: so what raises such an error must not have done anything. `wait`: as the method of that name; it raises
        when nobody wants to know any more."""
        before = self._version()
        try:
            return await attempt()
        except Exception as error:
            if self._read_to_end is None or not negative(error):
                raise
            await wait()
            if self._version() == before:
                raise
        return await attempt()
