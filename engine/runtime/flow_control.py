"""Flow control: the broker stops reading from a publishing connection while enough is on its way into the log.

Rules of this file
- A connection that only consumes never waits: its acks make room. Precedent: RabbitMQ's credit flow.
- First come, first served.
- The limit depends on the log: engine/embedded/flow_control.py, engine/cluster/flow_control.py.
- A large publish that the log has no room for waits by itself, before it is appended; other publishers go on.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

LARGE_BYTES: Final = 1_048_576  # a smaller publish does not ask for room
ROOM_SECONDS = 1.0  # between two checks for room

logger = logging.getLogger(__name__)


class Flow(ABC):
    """Holds back the connections that publish."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether enough is on its way into the log."""

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once, when there is room again."""
        self._waiting.append(go_on)

    def has_room(self, size: int) -> bool:
        """Say whether the log can take this many bytes at once."""
        return True

    async def room(self, size: int, given_up: Callable[[], bool]) -> None:
        """Wait until the log can take this many bytes at once, or until the wait is given up."""
        logger.warning("a publish of %d bytes waits until the disk has room for it", size)
        while not given_up() and not self.has_room(size):
            await asyncio.sleep(ROOM_SECONDS)

    def landed(self) -> None:
        """Let waiting connections go on: more of the publishes has arrived in the log."""
        for _ in range(len(self._waiting)):  # a connection that publishes too much again waits at the end
            if self.full:
                return
            self._waiting.popleft()()
