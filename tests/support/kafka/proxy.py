"""A line between clients and Kafka's nodes that can be cut, and can be long, on loopback.

    proxies.blackhole()    nothing gets through any more in either direction, connections stay open and silent;
                           what was on the way arrives after `resume`, as TCP would send it again
    proxies.reset()        connections are reset, new ones too
    proxies.resume()
    proxies.delay_seconds = 0.01    what is sent from now on arrives so much later, in either direction

For Kafka this only works when a node advertises the proxy's port: `KafkaCluster.proxied`.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Self

READ_BYTES = 256 * 1024


class Proxies:
    """One proxy for each pair of `targets`: port to listen at -> port to pass on to. Runs in a thread of its own."""

    def __init__(self, targets: Mapping[int, int]) -> None:
        self.targets = targets
        self.delay_seconds = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._open = asyncio.Event()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.targets)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def blackhole(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def reset(self) -> None:
        def reset() -> None:
            self._refusing = True
            for writer in self._writers:
                _abort(writer)

        self._loop.call_soon_threadsafe(reset)

    def resume(self) -> None:
        def resume() -> None:
            self._refusing = False
            self._open.set()

        self._loop.call_soon_threadsafe(resume)

    async def _listen(self) -> None:
        self._open.set()
        for port, target in self.targets.items():

            async def connected(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int = target
            ) -> None:
                await self._connected(reader, writer, target)

            self._servers.append(await asyncio.start_server(connected, "127.0.0.1", port, limit=READ_BYTES))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for writer in self._writers:
            _abort(writer)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        self._writers.add(writer)
        try:
            await self._open.wait()
            if self._refusing:
                return
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", target, limit=READ_BYTES)
            self._writers.add(other_writer)
            try:
                await asyncio.gather(self._pump(reader, other_writer), self._pump(other_reader, writer))
            finally:
                self._writers.discard(other_writer)
                _abort(other_writer)
        except OSError:
            pass  # either side is gone, so the other is let go
        finally:
            self._writers.discard(writer)
            _abort(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            await self._open.wait()
            if self.delay_seconds:  # what is under way is as much as comes
                self._loop.call_later(self.delay_seconds, writer.write, data)
            else:
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, and at once."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
