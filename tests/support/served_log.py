"""The process of a log as a thread with a loop of its own, and workers of it in the loop of a test."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.served.client import ServedLog
from rewindmq.engine.log.served.server import LogServer
from rewindmq.engine.runtime.log_clock import LogClock
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import BrokerStarted, Event
from rewindmq.schemas.values import BROKER, Actor

T = TypeVar("T")
ENCODER = Encoder()


def record(event: Event, user: str = "guest", time_ms: int = 1_800_000_000_000) -> bytes:
    """An event as a worker sends it. The user makes records differ."""
    return ENCODER.encode(ENCODER.prefix(time_ms, Actor(user, 7)), event)


class ServedInThread:
    """`wall_ms`: the wall clock. `most_silent`: as `LogServer`'s."""

    def __init__(
        self, data: Path, partitions: int = 2, wall_ms: Callable[[], int] | None = None, most_silent: float = 60.0
    ) -> None:
        self.data = data
        self._partitions = partitions
        self._clock = LogClock.made_of(wall_ms, None)
        self._most_silent = most_silent
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.gone: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.server: LogServer = self.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    async def _open(self) -> LogServer:
        log = EmbeddedLog.open(self.data, self._partitions)
        if not log.metadata.next_offset:
            now_ms = self._clock.now_ms()
            log.metadata.append(now_ms, ENCODER.encode(ENCODER.prefix(now_ms, BROKER), BrokerStarted("one", "0", 1)))
            log.commit_and_wait()
        self.log = log
        server = LogServer(log, self._clock, self._most_silent, self.gone.append)
        server.start()
        return server

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this in the loop of the server, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def do(self, what: Callable[[], T]) -> T:
        """Call this in the loop of the server, and wait for it."""

        async def called() -> T:
            return what()

        return self.call(called())

    def socket(self) -> socket.socket:
        """A worker's end of a connection."""
        ours, theirs = socket.socketpair()

        async def connect() -> None:
            await self._loop.create_unix_connection(self.server.connection, sock=ours)

        self.call(connect())
        return theirs

    def worker(self, name: str) -> ServedLog:
        """The log of another worker."""
        return ServedLog.open(self.socket(), name, "one", self.data / "states")

    def end(self) -> None:
        """Close the log, and end the thread."""
        if self._thread.is_alive():
            self.do(self.server.close)
            self.call(asyncio.sleep(0.01))  # connections hear of their end
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
