"""What a connection has to say, gathered until the loop's turn ends: one write per turn and connection.

A reply that must wait until what it reports is durable (declare-ok, bind-ok, delete-ok, purge-ok) holds back everything
its channel says after it, so that the order on a channel is kept; other channels go on.

    parts         frames of the connection, in order; the server joins and writes them
    held[i]       a durable reply and what its channel said after it, one list for each reply that waits
"""

from collections import deque
from collections.abc import Callable


class Output:
    """One connection's. `wake` is set by the server: called when there is something to write and none was scheduled."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.scheduled = False
        self.wake: Callable[[], None] = do_nothing
        self.congested = False  # the socket takes no more for now: consumers get no new credit
        self.closed = False

    def write(self, frame: bytes) -> None:
        self.parts.append(frame)
        if not self.scheduled:
            self.schedule()

    def schedule(self) -> None:
        self.scheduled = True
        self.wake()

    def take(self) -> list[bytes]:
        """What gathered; nothing is scheduled any more."""
        parts = self.parts[:]
        self.parts.clear()  # channels hold on to the list itself
        self.scheduled = False
        return parts


class ChannelOutput:
    """One channel's. `parts` is where the channel writes now: the connection's list, or the last held one."""

    def __init__(self, connection: Output, number: int, max_payload: int) -> None:
        self.connection = connection
        self.number = number
        self.max_payload = max_payload  # of a body frame (frame_max less the frame's own 8 bytes)
        self.parts = connection.parts
        self.held: deque[list[bytes]] = deque()

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
