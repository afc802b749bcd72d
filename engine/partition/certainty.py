"""Before a node says that something does not exist, it reads to the end of the log.

On a log that many nodes append to (Kafka), another node's latest events may not have arrived here yet. A node can
confirm at once that something exists. It can say that something is missing only after it has read all records that were
in the log when the question came.

    answer ............ quick, while nothing is missing
    refused, or absent -> read to the end of the log -> ask once more, if anything changed meanwhile

Rules of this file
- One read at a time: all questions that come during a read share the next one. So a flood of questions about missing
  things costs one question to the log at a time, however many clients ask.
- A question notes the value of `begun` as `heard`. A read that begins later covers the question.
- While the log does not answer, no client hears that something is missing: the node asks the log until it answers.
- A broker that is alone on its log is always sure, and never waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rewindmq.engine.errors import AccessRefused, NotAllowed, NotFound, PreconditionFailed, ResourceLocked
from rewindmq.engine.log.contract import LogError

T = TypeVar("T")

# Errors that say that something is missing, or that something is in the way that may be gone by now.
REFUSALS: Final = (NotFound, AccessRefused, NotAllowed, PreconditionFailed, ResourceLocked)
AGAIN_SECONDS = 0.25

logger = logging.getLogger(__name__)


class Certainty:
    """Knows whether this node has read far enough to say no.

    `read_to_end` returns when this node has folded all records that were in the log at the call. LogError: the log does
    not answer. None: this broker is alone on its log.
    `version` returns another number after each change of the topology."""

    def __init__(self, read_to_end: Callable[[], Awaitable[None]] | None, version: Callable[[], int]) -> None:
        self.begun = 0  # number of reads
        self._done = 0
        self._read_to_end = read_to_end
        self._version = version
        self._reading: asyncio.Future[None] | None = None

    def covers(self, heard: int) -> bool:
        """Say whether this node has read all records that were in the log when `begun` was `heard`."""
        return self._read_to_end is None or self._done > heard

    async def wait(self) -> None:
        """Wait until this node has read all records that are in the log now."""
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
        """Cancel the current read."""
        if self._reading is not None:
            self._reading.cancel()

    async def assured(
        self,
        attempt: Callable[[], Awaitable[T]],
        wait: Callable[[], Awaitable[None]],
        negative: Callable[[Exception], bool] = lambda error: isinstance(error, REFUSALS),
    ) -> T:
        """Return or raise the result of `attempt`; attempt again if this node had not read enough to say no.

        A second attempt follows a `negative` error if the read to the end changed the topology. So an attempt that
        raises such an error must not have done anything. `wait` is the method of that name or like it; it raises when
        the client has gone."""
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
