"""Streams of live figures: who shares an answer, and what a slow client costs (engine/http/live.py)."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from rewindmq.engine.http import live
from rewindmq.engine.http.call import Call, reply
from rewindmq.engine.http.live import Live
from rewindmq.engine.http.logins import Logins
from rewindmq.engine.identity.grants import Identity
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Harness
from tests.support.deadlines import eventually

ADMIN = Actor("guest", 0)


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data") as harness:
        yield harness


class Client:
    """A client of a stream, which takes what is sent while it `reads`."""

    def __init__(self, h: Harness, user: str, tags: tuple[str, ...], query: str = "") -> None:
        self.sent: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.gone = asyncio.Event()
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/live", "headers": [], "scheme": "http"}
        scope |= {"server": ("127.0.0.1", 1), "query_string": query.encode()}
        self.call = Call(Request(scope, self.receive), h.broker._broker, WorkerPool(), Identity(user))
        self.call.tags = tags

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            await self.reads.wait()
            self.sent.append(message["body"])

    async def listen(self, stream: Callable[[Call], Awaitable[Any]]) -> "asyncio.Task[None]":
        answer = await stream(self.call)
        return asyncio.ensure_future(answer({}, self.receive, self.send))


class Counting:
    """A handler whose answers count."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self, call: Call) -> Response:
        self.made += 1
        return reply({"made": self.made, "for": call.user})


def play(h: Harness, test: Callable[[Live], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test whose ticks are a hundredth of a second apart."""
    monkeypatch.setattr(live, "TICK_SECONDS", 0.01)

    async def whole() -> None:
        streams = Live(h.broker._broker, Logins())
        async with asyncio.timeout(60):
            await test(streams)
        streams.close()

    h.loop.run_until_complete(whole())


async def nothing(call: Call) -> None:
    """Do nothing, because this node folds enough for each answer."""


def test_b37_administrators_share_an_answer_and_other_users_do_not(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.broker.access.users.set(ADMIN, "ann", "secret", ("administrator",))
    h.broker.access.users.set(ADMIN, "bob", "secret", ("management",))

    async def test(streams: Live) -> None:
        handler = Counting()
        stream = streams.of(handler, nothing)
        who = (("guest", "administrator"), ("ann", "administrator"), ("bob", "management"))
        clients = [Client(h, user, (tag,)) for user, tag in who]
        tasks = [await client.listen(stream) for client in clients]
        await eventually(lambda: all(len(client.sent) >= 4 for client in clients))
        guest, ann, bob = (client.sent[1:] for client in clients)
        assert set(guest) & set(ann)
        assert not set(bob) & set(guest)
        assert all(b'"for":"bob"' in frame for frame in bob)
        for client in clients:
            client.gone.set()
        await asyncio.gather(*tasks)
        made = handler.made
        await asyncio.sleep(0.1)
        assert handler.made == made  # nobody listens: nothing is made

    play(h, test, monkeypatch)


def test_b37_a_slow_client_misses_answers_and_holds_one(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(streams: Live) -> None:
        handler = Counting()
        stream = streams.of(handler, nothing)
        slow, fast = Client(h, "guest", ("administrator",)), Client(h, "guest", ("administrator",))
        tasks = [await client.listen(stream) for client in (slow, fast)]
        slow.reads.clear()
        await eventually(lambda: len(fast.sent) > 20)
        slow.reads.set()
        before = handler.made
        await eventually(lambda: len(slow.sent) >= 3)
        assert f'"made":{before}' in str(slow.sent[:4]) or f'"made":{before + 1}' in str(slow.sent[:4])
        for client in (slow, fast):
            client.gone.set()
        await asyncio.gather(*tasks)

    play(h, test, monkeypatch)


def test_b37_streams_whose_answers_take_long_do_not_delay_others(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.broker.access.users.set(ADMIN, "bob", "secret", ("management",))

    async def test(streams: Live) -> None:
        released = asyncio.Event()
        begun: set[str] = set()

        async def slow(call: Call) -> Response:
            query = call.request.url.query
            if query in begun:  # not the first answer, which the request itself makes
                await released.wait()
            begun.add(query)
            return reply({"for": query})

        slow_clients = [Client(h, "guest", ("administrator",), query=f"page={number}") for number in range(10)]
        fast = Client(h, "bob", ("management",))
        stream = streams.of(slow, nothing)
        tasks = [await client.listen(stream) for client in slow_clients]
        tasks.append(await fast.listen(streams.of(Counting(), nothing)))
        await eventually(lambda: len(fast.sent) > 20)
        assert len(begun) == 10
        assert all(len(client.sent) == 1 for client in slow_clients)
        released.set()
        for client in (*slow_clients, fast):
            client.gone.set()
        await asyncio.gather(*tasks)
        assert (streams._groups, streams._ticking, streams._of_user) == ({}, {}, {})

    play(h, test, monkeypatch)


def test_b37_a_silent_stream_says_that_it_is_alive(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "COMMENT_SECONDS", 0.02)

    async def unchanged(call: Call) -> Response:
        return reply({"same": True})

    async def test(streams: Live) -> None:
        client = Client(h, "guest", ("administrator",))
        task = await client.listen(streams.of(unchanged, nothing))
        await eventually(lambda: client.sent.count(b": alive\n\n") >= 3)
        assert [frame for frame in client.sent if b"figures" in frame] == [b'event: figures\ndata: {"same":true}\n\n']
        client.gone.set()
        await task

    play(h, test, monkeypatch)
