"""The output of a connection, gathered until the loop's turn ends: one write a turn.

A reply that must wait until what it reports is durable (declare-ok, bind-ok, delete-ok, purge-ok) holds back everything
that its channel sends after it, so that the order on a channel is kept. Other channels go on.

    parts         frames of the connection, in order; the server joins and writes them. Among them are deliveries whose
                  bodies are read only when they are written (`Later`). They wait while the socket takes no more, or
                  their key is not here, and the parts behind them wait, too
    held[i]       a reply that waits for the disk and what its channel sent after it, one list for each such reply
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

CROWDED: Final = 1_048_576  # octets: no large body is added to an output that holds more
KEPT_BYTES: Final = 16_384  # of a body that an output may always keep
LARGE_BYTES: Final = 262_144  # of a body that is not copied before it is written

Piece = bytes | memoryview  # a part of a large body is a view of it


class Later(Protocol):
    """A part that is made into frames when it can be written."""

    def ready(self) -> bool:
        """Return True if the frames can be made now. Otherwise the part calls `Output.unblock` when they can."""

    def frames(self) -> list[Piece]:
        """Return the frames; none if the part is no longer to be sent."""


class Output:
    """The output of one connection. `wake`: called when there is something to write and no write is scheduled."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.parts: list[Piece | Later] = []
        self.later = 0  # how many of `parts`, here and on channels that hold back, are `Later`
        self.scheduled = False
        self._wake = wake
        self.congested = False  # the socket takes no more for now, or it is blocked: consumers get no new credit
        self.blocked = False  # the first part waits for its key
        self.paused = False  # the socket takes no more for now
        self.relief: list[Callable[[], None]] = []  # called once it takes more again
        self.closed = False
        self.unsent = 0  # octets of large bodies, and of those read from the store, since the last write
        self.has_large_body = False  # `parts` may hold one: they are not joined before they are written
        self._waiters: list[asyncio.Future[None]] = []  # for room

    def write(self, frame: bytes) -> None:
        """Send a frame of the connection."""
        self.parts.append(frame)
        if not self.scheduled:
            self.schedule()

    def schedule(self) -> None:
        """Schedule a write. Only where none is scheduled."""
        self.scheduled = True
        self._wake()

    @property
    def crowded(self) -> bool:
        """Return True if large bodies have to wait."""
        return (self.congested or self.unsent > CROWDED) and not self.closed

    async def room(self) -> None:
        """Wait until the socket has taken what was gathered. So a client that asks and does not read makes no heap of
        answers here."""
        while self.crowded:
            self._waiters.append(asyncio.get_running_loop().create_future())
            await self._waiters[-1]

    def wake_waiters(self) -> None:
        """Let all that wait for room look again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def pause(self) -> None:
        """The socket takes no more for now."""
        self.congested = self.paused = True

    def relieve(self) -> None:
        """Continue: the socket takes more again."""
        self.paused = False
        if not self.blocked:
            self._go_on()

    def unblock(self) -> None:
        """Continue: a part for which the others wait may be ready."""
        if not self.blocked:
            return
        self.blocked = False
        if not self.paused:
            self._go_on()

    def _go_on(self) -> None:
        self.congested = False
        self.wake_waiters()
        relief, self.relief = self.relief, []
        for callback in relief:
            callback()
        if self.parts and not self.scheduled:
            self.schedule()

    def take(self) -> list[Piece]:
        """Take what may be written now. A write of the rest is scheduled, unless it waits for the socket."""
        if self.later:
            parts = self._take_some()
        else:
            parts = cast(list[Piece], self.parts[:])
            self.parts.clear()  # channels hold on to the list itself
        self.scheduled = False
        self.unsent = 0
        if self._waiters:
            self.wake_waiters()
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
            elif not part.ready():
                self.congested = self.blocked = True
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
    """The output of one channel. `parts`: the list that it writes to now, which is the connection's or the last held
    one."""

    def __init__(self, connection: Output, number: int, max_payload: int) -> None:
        self.connection = connection
        self.number = number
        self.max_payload = max_payload  # of a body frame (frame_max less the frame's own 8 bytes)
        self.kept_bytes = min(max_payload, KEPT_BYTES)
        self.parts = connection.parts
        self.held: deque[list[Piece | Later]] = deque()
        self.cancels: list[bytes] | None = None  # basic.cancel frames that wait for the end of a queue.delete

    def write(self, frame: bytes) -> None:
        """Send a frame of the channel."""
        self.parts.append(frame)
        connection = self.connection
        if not connection.scheduled:
            connection.schedule()

    def hold(self, frame: bytes) -> None:
        """Send this frame, and all that follow it, only when `release` is called. Holds are released in their order."""
        self.parts = [frame]
        self.held.append(self.parts)

    def release(self) -> None:
        """Send the oldest held frame and what followed it, up to the next hold."""
        connection = self.connection
        connection.parts += self.held.popleft()
        if not self.held:
            self.parts = connection.parts
        if not connection.scheduled:
            connection.schedule()
