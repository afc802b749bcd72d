"""Flow control: the broker stops reading from a publishing connection while enough is on its way into the log.

Rules of this file
- A connection that only consumes never waits: its acks make room. Precedent: RabbitMQ's credit flow.
- First come, first served.
- The limit depends on the log: engine/embedded/flow_control.py, engine/cluster/flow_control.py.
- A large publish that the log has no room for waits by itself, before it is appended; other publishers go on. Large
  publishes look for room in the order in which they came.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

LARGE_BYTES = 1_048_576  # a smaller publish does not ask for room
ROOM_SECONDS = 1.0  # between two checks for room, where nothing lands in the log

logger = logging.getLogger(__name__)


class Flow(ABC):
    """Holds back the connections that publish."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._room_waiters: list[asyncio.Future[None]] = []

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
        told = False
        while not given_up() and not self.has_room(size):
            if not told and self.is_disk_short(size):
                told = True
                logger.warning("a publish of %d bytes waits until the disk has room for it", size)
            loop = asyncio.get_running_loop()
            look_again = loop.create_future()
            self._room_waiters.append(look_again)
            timer = loop.call_later(ROOM_SECONDS, self._look_again, look_again)
            try:
                await look_again
            finally:
                timer.cancel()

    def _look_again(self, waiter: "asyncio.Future[None]") -> None:
        if waiter in self._room_waiters:
            self._room_waiters.remove(waiter)
            if not waiter.done():
                waiter.set_result(None)

    def is_disk_short(self, size: int) -> bool:
        """Say whether the disk has no room for this many bytes."""
        return False

    def landed(self) -> None:
        """Let waiting connections go on: more of the publishes has arrived in the log."""
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            if not waiter.done():  # a task that was cancelled
                waiter.set_result(None)
        for _ in range(len(self._waiting)):  # a connection that publishes too much again waits at the end
            if self.full:
                return
            self._waiting.popleft()()
