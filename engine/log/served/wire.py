"""A worker's end of the socket to the log's process: bytes out at once or when there is room, frames in.

It needs no transport of asyncio: a node's stop waits for its last appends without the loop.
"""

import asyncio
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.served.wire_frames import BadFrame, Frame, Frames

READ_BYTES: Final = 262_144


class LogGone(LogError):
    """The log's process has ended, or has disconnected this worker."""

    def __init__(self) -> None:
        super().__init__("the process of the log has ended, or has given this one up")


class Wire:
    """One socket, connected. `waiting` counts the bytes for which it had no room yet."""

    def __init__(self, connected: socket.socket) -> None:
        self.waiting = 0
        self._socket = connected
        self._frames = Frames()
        self._out: deque[memoryview] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writes = False  # the loop tells when there is room
        connected.setblocking(False)

    def start(self, readable: Callable[[], None]) -> None:
        """Call `readable` in the loop when there is something to read."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), readable)
        if self._out:
            self._send()

    def stop(self) -> None:
        """Tell the loop nothing any more."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            if self._writes:
                self._loop.remove_writer(self._socket.fileno())
            self._loop, self._writes = None, False

    def close(self) -> None:
        """Close the socket."""
        self.stop()
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Send this behind all before it. What finds no room waits."""
        self._out.append(memoryview(data))
        self.waiting += len(data)
        if not self._writes:
            self._send()

    def _send(self) -> None:
        while self._out:
            try:
                sent = self._socket.send(self._out[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError:  # the reading side says that the other end is gone
                self._out.clear()
                self.waiting = 0
                break
            self.waiting -= sent
            if sent == len(self._out[0]):
                self._out.popleft()
            else:
                self._out[0] = self._out[0][sent:]
        if self._loop is not None and bool(self._out) != self._writes:
            self._writes = bool(self._out)
            if self._writes:
                self._loop.add_writer(self._socket.fileno(), self._send)
            else:
                self._loop.remove_writer(self._socket.fileno())

    def read(self) -> Iterator[Frame]:
        """Yields the frames that are here. Raises LogGone."""
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            raise LogGone from None
        if not data:
            raise LogGone
        try:
            yield from self._frames.feed(data)
        except BadFrame as error:
            raise LogError(f"the process of the log sent what cannot be read: {error}") from None

    def wait(self, deadline: float) -> Iterator[Frame]:
        """Send and read without the loop, for a while; yields the frames that came.

        `deadline`: of `time.monotonic`. Raises LogGone."""
        writes = [self._socket] if self._out else []
        readable, writable, _ = select.select([self._socket], writes, [], max(0.0, deadline - time.monotonic()))
        if writable:
            self._send()
        if readable:
            yield from self.read()
