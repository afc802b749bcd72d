"""Flow control: a connection that publishes is not read from while enough is on its way into the log.

Rules of this file
- A connection that only consumes never waits: its acks make room. Precedent: RabbitMQ's credit flow.
- First come, first served.
- What is enough depends on the log: engine/embedded/flow_control.py, engine/cluster/flow_control.py.
- A large publish that the log has no room for waits by itself, before it is appended; other publishers go on.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

LARGE_BYTES = 1_048_576  # a smaller publish need not ask for room
ROOM_SECONDS = 1.0  # between looks whether there is room

logger = logging.getLogger(__name__)


class Flow(ABC):
    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    @abstractmethod
    def full(self) -> bool:
        """Enough is on its way."""

    def wait(self, go_on: Callable[[], None]) -> None:
        """`go_on` is called once, when there is room again."""
        self._waiting.append(go_on)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be appended at once."""
        return True

    async def room(self, size: int, given_up: Callable[[], bool]) -> None:
        """Wait until so many bytes may be appended at once, or until the wait is given up."""
        logger.warning("a publish of %d bytes waits until the disk has room for it", size)
        while not given_up() and not self.has_room(size):
            await asyncio.sleep(ROOM_SECONDS)

    def landed(self) -> None:
        """More of what was on its way has arrived."""
        for _ in range(len(self._waiting)):  # a connection that publishes too much once more waits at the end
            if self.full:
                return
            self._waiting.popleft()()
