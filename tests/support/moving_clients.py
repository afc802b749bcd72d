"""Clients of a broker whose queues move: connections without sockets, on an embedded log and on nodes in memory.

async def test(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q)
    ...

play(test)                             # a fixture: see `played`
"""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import Config
from rewindmq.engine.process import open_broker
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method
from tests.support.async_tests import run_by
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, run, watched
from tests.support.repartition import PARTITIONS, Steps, movable_names

KINDS = ["embedded", "node"]
Q, OTHER, NEW = islice(movable_names(), 3)
STILL_SECONDS = 0.05  # an answer that does not come in this time waits


class Client:
    """A connection with channel 1 and 2, and what the broker said to it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = Connection(broker, "client:1", True, IdleSocket())
        self.heard: list[Said] = []

    @classmethod
    async def opened(cls, broker: Broker) -> "Client":
        client = cls(broker)
        await client.ask(HANDSHAKE + method(1, "Channel.Open") + method(2, "Channel.Open"), "Channel.OpenOk", 2)
        return client

    def send(self, *frames: bytes) -> None:
        self.connection.receive(b"".join(frames))
        self.broker.turns.end()

    def listen(self) -> list[Said]:
        self.heard += decoded(b"".join(self.connection.take_output()))
        if self.connection.grant_credit():
            self.broker.turns.end()
        return self.heard

    def said(self, name: str) -> list[Said]:
        return [each for each in self.listen() if each.name == name]

    async def hear(self, name: str, count: int = 1) -> list[Said]:
        """Wait until the broker has said this so many times: what it said."""
        await eventually(lambda: len(self.said(name)) >= count)
        return self.said(name)

    async def ask(self, frames: bytes, answer: str, count: int = 1) -> list[Said]:
        self.heard.clear()
        self.send(frames)
        return await self.hear(answer, count)

    async def hears_nothing(self, name: str) -> None:
        await asyncio.sleep(STILL_SECONDS)
        assert self.said(name) == []

    def bodies(self) -> list[bytes | None]:
        return [each.body for each in self.said("Basic.Deliver")]


Test = Callable[[Broker, Steps], Coroutine[Any, Any, None]]
Play = Callable[[Test], None]


def played(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return the function that runs a test on this kind of log, whose queues are placed by 2 of its 4 partitions."""

    async def embedded(test: Test) -> None:
        broker = open_broker(Config(data=tmp_path, partitions=PARTITIONS))
        try:
            await act(broker, test)
        finally:
            broker.close()

    async def act(broker: Broker, test: Test) -> None:
        steps = Steps(broker)
        await steps.add()
        await test(broker, steps)

    if kind == "embedded":
        return lambda test: watched(embedded(test))

    async def node(test: Test, nodes: Nodes) -> None:
        await act(await nodes.start("a"), test)

    return lambda test: run(lambda nodes: node(test, nodes), tmp_path, monkeypatch, PARTITIONS)


@pytest.fixture(params=KINDS)
def play(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a test on each kind of log."""
    return played(request.param, tmp_path, monkeypatch)


on_each_log = run_by(lambda test, play: play(test), "play", given=2)  # test(broker, steps)


async def declared(client: Client, *names: str) -> None:
    for name in names:
        await client.ask(method(1, "Queue.Declare", queue=name, durable=True), "Queue.DeclareOk")


async def got(client: Client, name: str) -> list[bytes]:
    """All messages of a queue, by basic.get without ack."""
    found: list[bytes] = []
    while True:
        client.heard.clear()
        client.send(method(2, "Basic.Get", queue=name, no_ack=True))
        await eventually(lambda: bool(client.said("Basic.GetOk") or client.said("Basic.GetEmpty")))
        if client.said("Basic.GetEmpty"):
            return found
        (message,) = client.said("Basic.GetOk")
        assert message.body is not None
        found.append(message.body)
