"""Flow control: the broker stops reading from a publishing connection while enough is on its way into the log.

Rules of this file
- A connection that only consumes never waits: its acks make room. Precedent: RabbitMQ's credit flow.
- First come, first served.
- The limit depends on the log: engine/embedded/flow_control.py, engine/cluster/flow_control.py.
- A large publish that the log has no room for waits by itself, before it is appended; other publishers go on.
- Large publishes go into the log by turns, in the order in which they came.
- The broker's own copies of messages ask for room as publishes do. Dead letters and delayed messages wait in their
  outboxes, copies for the firehose and events are dropped, and a restoration ends with an error.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from rewindmq.engine.log.contract import LARGE_RECORD_BYTES

LARGE_BYTES: Final = LARGE_RECORD_BYTES  # a smaller publish does not ask for room
ROOM_SECONDS = 1.0  # between two checks for room

logger = logging.getLogger(__name__)


def no_room(size: int) -> str:
    """The reason why a message of this many bytes waits, or is refused."""
    return f"the disk has no room for {size} bytes"


class Flow(ABC):
    """Holds back the connections that publish."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._turn_waiters: list[asyncio.Future[None]] = []

    @property
    @abstractmethod
    def full(self) -> bool:
        """Return True if enough is on its way into the log."""

    @property
    def crowded(self) -> bool:
        """Return True if the log has so little room that the broker's own copies of messages also have to wait."""
        return False

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once, when there is room again."""
        self._waiting[go_on] = None

    def leave(self, go_on: Callable[[], None]) -> None:
        """Do not call `go_on`, if it waits: its connection is gone."""
        self._waiting.pop(go_on, None)

    @property
    def waiting(self) -> int:
        """The number of connections that wait."""
        return len(self._waiting)

    @property
    def awaits_log(self) -> bool:
        """Return True if a connection or a large publish waits until the log has taken more."""
        return bool(self._waiting or self._turn_waiters)

    def has_room(self, size: int) -> bool:
        """Say whether the log can take this many bytes at once."""
        return True

    def has_turn(self, size: int) -> bool:
        """Say whether a publish of this many bytes may go into the log beside the large ones on their way."""
        return True

    async def turn(self, size: int, end: asyncio.Future[None]) -> None:
        """Wait until a publish of this many bytes has its turn, or until `end` is done."""
        while not end.done() and not self.has_turn(size):
            landed = asyncio.get_running_loop().create_future()
            self._turn_waiters.append(landed)
            await asyncio.wait((end, landed), return_when=asyncio.FIRST_COMPLETED)

    async def room(self, size: int, end: asyncio.Future[None]) -> None:
        """Wait until the log can take this many bytes at once, or until `end` is done."""
        logger.warning("a publish of %d bytes waits until the disk has room for it", size)
        while not end.done() and not self.has_room(size):
            await asyncio.wait((end,), timeout=ROOM_SECONDS)

    def landed(self) -> None:
        """Let waiting connections go on: more of the publishes has arrived in the log."""
        waiters, self._turn_waiters = self._turn_waiters, []
        for waiter in waiters:
            waiter.set_result(None)
        for _ in range(len(self._waiting)):  # a connection that publishes too much again waits at the end
            if self.full or not self._waiting:
                return
            self._waiting.popitem(last=False)[0]()
