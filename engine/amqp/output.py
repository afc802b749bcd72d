"""What a connection has to say, gathered until the loop's turn ends: one write per turn and connection.

A reply that must wait until what it reports is durable (declare-ok, bind-ok, delete-ok, purge-ok) holds back everything
its channel says after it, so that the order on a channel is kept; other channels go on.

    parts         frames of the connection, in order; the server joins and writes them. Among them are deliveries whose
                  bodies are read only when their turn comes (`Later`): they wait while the socket takes no more, and
                  so does what is behind them
    held[i]       a durable reply and what its channel said after it, one list for each reply that waits
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

CROWDED = 1_048_576  # octets
LARGE_BYTES = 262_144  # of a body that is not copied before it is written

Piece = bytes | memoryview  # a part of a large body is a view of it


class Later(Protocol):
    """What is made into frames when it can be written."""

    def frames(self) -> list[Piece]:
        """Nothing, if it is not to be said any more."""


class Output:
    """One connection's. `wake` is set by the server: called when there is something to write and none was scheduled."""

    def __init__(self) -> None:
        self.parts: list[Piece | Later] = []
        self.later = 0  # how many of `parts`, here and on channels that hold back, are `Later`
        self.scheduled = False
        self.wake: Callable[[], None] = do_nothing
        self.congested = False  # the socket takes no more for now: consumers get no new credit
        self.relief: list[Callable[[], None]] = []  # called once it takes more again
        self.closed = False
        self.unsent = 0  # octets of bodies that basic.get took since the last write
        self.has_large_body = False  # `parts` may hold one: they are not joined before they are written
        self.turned_away: list[asyncio.Future[None]] = []  # who waits for room

    def write(self, frame: bytes) -> None:
        self.parts.append(frame)
        if not self.scheduled:
            self.schedule()

    def schedule(self) -> None:
        self.scheduled = True
        self.wake()

    @property
    def crowded(self) -> bool:
        """Nothing large should be added now."""
        return (self.congested or self.unsent > CROWDED) and not self.closed

    async def room(self) -> None:
        """Wait until what gathered was written, and the socket took it: a client that asks and does not read must not
        make a heap of answers."""
        while self.crowded:
            self.turned_away.append(asyncio.get_running_loop().create_future())
            await self.turned_away[-1]

    def let_in(self) -> None:
        """Who waits for room may look again."""
        turned_away, self.turned_away = self.turned_away, []
        for waiting in turned_away:
            if not waiting.done():
                waiting.set_result(None)

    def relieve(self) -> None:
        """The socket takes more again."""
        self.congested = False
        self.let_in()
        relief, self.relief = self.relief, []
        for callback in relief:
            callback()
        if self.parts and not self.scheduled:
            self.schedule()

    def take(self) -> list[Piece]:
        """What gathered and may be written now. The rest is scheduled, unless it waits for the socket."""
        if self.later:
            parts = self._take_some()
        else:
            parts = cast(list[Piece], self.parts[:])
            self.parts.clear()  # channels hold on to the list itself
        self.scheduled = False
        self.unsent = 0
        if self.turned_away:
            self.let_in()
        if self.parts and not self.congested:
            self.schedule()
        return parts

    def _take_some(self) -> list[Piece]:
        taken: list[Piece] = []
        read = count = 0  # octets of bodies that were read for it; parts that are done
        for part in self.parts:
            if isinstance(part, Piece):
                taken.append(part)
            elif self.congested or read > CROWDED:
                break
            else:
                frames = part.frames()
                read += sum(map(len, frames))
                taken += frames
                self.later -= 1
            count += 1
        del self.parts[:count]
        return taken


class ChannelOutput:
    """One channel's. `parts` is where the channel writes now: the connection's list, or the last held one."""

    def __init__(self, connection: Output, number: int, max_payload: int) -> None:
        self.connection = connection
        self.number = number
        self.max_payload = max_payload  # of a body frame (frame_max less the frame's own 8 bytes)
        self.parts = connection.parts
        self.held: deque[list[Piece | Later]] = deque()
        self.cancels: list[bytes] | None = None  # what the broker cancels waits for the queue.delete that is under way

    def write(self, frame: bytes) -> None:
        self.parts.append(frame)
        connection = self.connection
        if not connection.scheduled:
            connection.schedule()

    def hold(self, frame: bytes) -> None:
        """Say this once `release` is called (in the order of the holds), and all that follows after it."""
        self.parts = [frame]
        self.held.append(self.parts)

    def release(self) -> None:
        connection = self.connection
        connection.parts += self.held.popleft()
        if not self.held:
            self.parts = connection.parts
        if not connection.scheduled:
            connection.schedule()


def do_nothing() -> None:
    """What a connection calls until a server is attached."""
