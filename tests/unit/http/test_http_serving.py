"""Connections of the management API: what a client may keep the broker waiting for, over real sockets."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from rewindmq.engine.http import server as serving
from rewindmq.engine.runtime.admission import Door, bound
from rewindmq.engine.runtime.loop_share import LoopShare

ANSWER = b"x" * 40_000_000  # more than the buffers of two sockets ever hold


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the request's body, and answers with its size, or (at /large) with more than sockets hold."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    content = ANSWER if scope["path"] == "/large" else b"%d" % len(body)
    headers = [(b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


Scenario = Callable[[int, Door], Awaitable[None]]


class MovedLoop(uvloop.Loop):
    """A loop whose clock a test moves. Its timers do not go with it."""

    ahead_seconds = 0.0

    def time(self) -> float:
        return float(super().time()) + self.ahead_seconds


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks for late clients ten times a second."""
    monkeypatch.setattr(serving, "TICKS", 1)


def run(scenario: Scenario, share: int = 40) -> None:
    async def main() -> None:
        (sock,) = bound("127.0.0.1", 0)
        door = Door("http", share)
        served = asyncio.create_task(serving.serve(app, [(sock, None)], door, LoopShare(), lambda: None))
        try:
            await asyncio.wait_for(scenario(sock.getsockname()[1], door), 30)
        finally:
            served.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await served
        assert (door.logged_in, door.unknown) == (0, 0)

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(main())


async def ask(port: int, *parts: bytes, reader_limit: int = 65_536) -> tuple[asyncio.StreamReader, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=reader_limit)
    for part in parts:
        writer.write(part)
    return reader, writer


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD], ids=["nothing", "half a line", "half a header"])
def test_a_client_that_does_not_finish_its_header_is_dropped(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.3)

    async def scenario(port: int, door: Door) -> None:
        reader, writer = await ask(port, sent)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        while door.unknown:
            await asyncio.sleep(0.01)

    run(scenario)


def test_so_is_one_that_sends_its_header_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.5)

    async def scenario(port: int, door: Door) -> None:
        reader, writer = await ask(port, HEAD)
        gone = asyncio.create_task(reader.read())
        sent = 0
        while not gone.done():
            writer.write(b"X-Slow: 1\r\n")
            sent += 1
            await asyncio.sleep(0.05)
        assert sent < 300
        with contextlib.suppress(ConnectionError):
            assert await gone == b""
        writer.close()

    run(scenario)


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "BODY_SECONDS", 0.3)

    async def scenario(port: int, door: Door) -> None:
        reader, writer = await ask(port, HEAD + b"\r\n", b"abc")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "STALL_SECONDS", 0.3)
    look = serving.HttpProtocol.look
    aborted: list[str] = []  # what the server waited for

    def noted(protocol: serving.HttpProtocol, now: float) -> None:
        look(protocol, now)
        if protocol.transport.is_closing():
            aborted.append(protocol._waits_for)

    monkeypatch.setattr(serving.HttpProtocol, "look", noted)

    async def scenario(port: int, door: Door) -> None:
        _, writer = await ask(port, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n", reader_limit=1_024)
        while not door.unknown:
            await asyncio.sleep(0.01)
        while door.unknown:  # the client reads nothing beyond its first kilobytes, and is dropped
            await asyncio.sleep(0.01)
        assert aborted == ["stall"]
        writer.close()

    run(scenario)


def test_an_active_client_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests, one after the other, over longer than any of the limits."""
    monkeypatch.setattr(serving, "HEADER_SECONDS", 20.0)
    monkeypatch.setattr(serving, "BODY_SECONDS", 20.0)
    look = serving.HttpProtocol.look
    looked = asyncio.Event()

    def noted(protocol: serving.HttpProtocol, now: float) -> None:
        look(protocol, now)
        looked.set()

    monkeypatch.setattr(serving.HttpProtocol, "look", noted)

    async def scenario(port: int, door: Door) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        reader, writer = await ask(port)
        for _ in range(6):
            writer.write(HEAD + b"\r\nhello")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(1) == b"5"
            loop.ahead_seconds += 15
            looked.clear()
            await looked.wait()
        loop.ahead_seconds += 15
        assert await reader.read() == b"", "silence for twice as long is too much"
        writer.close()

    run(scenario)


def test_a_connection_above_the_limit_is_told_to_come_again() -> None:
    async def scenario(port: int, door: Door) -> None:
        held = [await ask(port) for _ in range(door.most_of_address)]
        while door.unknown < door.most_of_address:
            await asyncio.sleep(0.01)
        reader, writer = await ask(port)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 5\r\n" in answer
        assert b"too many connections" in answer
        writer.close()
        for _, each in held:
            each.close()
        while door.unknown:
            await asyncio.sleep(0.01)
        reader, writer = await ask(port, HEAD + b"\r\nhello")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()

    run(scenario, 8)
