"""An AMQP server on loopback over a double of the broker, and clients that send frames to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import uvloop

from rewindmq.engine.amqp.server import AmqpServer
from rewindmq.engine.host.admission import ConnectionQuota
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import HANDSHAKE, Said, decoded, method
from tests.support.async_tests import run_by

Scenario = Callable[[AmqpServer, DoubleBroker], Awaitable[None]]


def run(scenario: Scenario, broker: DoubleBroker | None = None) -> None:
    """Run a scenario with a server that listens, in a loop of its own."""

    async def main() -> None:
        double = broker or DoubleBroker()
        server = AmqpServer(double, ConnectionQuota("amqp", 1_000))  # type: ignore[arg-type]  # a double of the broker
        await server.listen("127.0.0.1", 0, None)
        server.begin()
        try:
            await asyncio.wait_for(scenario(server, double), 20)
        finally:
            await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


on_server = run_by(run, given=2)  # test(server, broker)


def port_of(server: AmqpServer) -> int:
    return int(server.servers[0].port)


class Socket:
    """A connection to the server, read frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def transport(self) -> asyncio.Transport:
        """uvloop's, which has another base class."""
        return cast(asyncio.Transport, self.writer.transport)

    async def next(self) -> Said:
        """The next method; its content is read and left out. Heartbeats are skipped."""
        while True:
            head = await self.reader.readexactly(7)
            frame = head + await self.reader.readexactly(int.from_bytes(head[3:7], "big") + 1)
            if frame[0] == 1:
                return decoded(frame)[0]

    async def until(self, name: str) -> Said:
        while True:
            said = await self.next()
            if said.name == name:
                return said

    async def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        await self.writer.drain()


@contextlib.asynccontextmanager
async def client(server: AmqpServer, *frames: bytes, limit: int = 65_536) -> AsyncIterator[Socket]:
    """A client that has sent these frames (by default: is connected, channel 1 open)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server), limit=limit)
    socket = Socket(reader, writer)
    if frames:
        await socket.send(*frames)
    else:
        await socket.send(HANDSHAKE, method(1, "Channel.Open"))
        await socket.until("Channel.OpenOk")
    yield socket
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
