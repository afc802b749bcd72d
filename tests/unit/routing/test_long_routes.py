"""A publish whose route costs more than a slice goes on in turns: in its order, on every way that leads to a route."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import Config
from rewindmq.engine.http.resources.exchanges import send
from rewindmq.engine.process import open_broker
from rewindmq.engine.routing import exchange_types, portions
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.metadata_events import Bound
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method, properties, publish
from tests.support.broker_harness import Harness
from tests.support.needs import require_patchable


class Scene:
    """A broker, and a connection to it: what it sends is `said`."""

    def __init__(self, directory: Path) -> None:
        self.broker: Broker = open_broker(Config(data=directory, partitions=2))
        self.said: list[Said] = []
        self.connection = Connection(self.broker, "client:1", True, IdleSocket())

    async def do(self, *frames: bytes, until: str) -> None:
        self.connection.receive(b"".join(frames))
        while not any(each.name == until for each in self.said):
            self.look()
            await asyncio.sleep(0.001)
        self.said.clear()

    def look(self) -> None:
        self.broker.turns.end()
        self.said += decoded(b"".join(self.connection.take_output()))

    async def begin(self) -> None:
        await self.do(HANDSHAKE, method(1, "Channel.Open"), until="Channel.OpenOk")
        for name in ("one", "two"):
            await self.do(method(1, "Queue.Declare", queue=name), until="Queue.DeclareOk")
        for name, kind in (("t", "topic"), ("h", "headers"), ("d", "direct")):
            await self.do(method(1, "Exchange.Declare", exchange=name, exchange_type=kind), until="Exchange.DeclareOk")
        for number in range(40):
            arguments = {"x-match": "any", "here": 1, "only": number}
            await self.do(
                method(1, "Queue.Bind", queue="one", exchange="t", routing_key=f"#.a.#.{number}"),
                method(1, "Queue.Bind", queue="one", exchange="h", arguments=arguments),
                until="Queue.BindOk",
            )
        for name in ("t", "d"):
            await self.do(method(1, "Queue.Bind", queue="two", exchange=name, routing_key="a.b"), until="Queue.BindOk")
        await self.do(
            method(1, "Exchange.Bind", source="d", destination="t", routing_key="a.7"), until="Exchange.BindOk"
        )

    def queue(self, name: str) -> Queue:
        found = self.broker.homes.queue("/", name)
        assert found is not None
        return found

    def bodies(self, name: str) -> list[bytes]:
        partition, queue = self.broker.homes.of("/", name), self.queue(name)
        return [partition.message(queue.queue_id, message_id).body for message_id in queue.ready_ids()]

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.look()
            await asyncio.sleep(0.001)


def run(directory: Path, story: Callable[[Scene], Any], monkeypatch: pytest.MonkeyPatch, slice: int = 1) -> None:
    async def main() -> None:
        scene = Scene(directory)
        try:
            await scene.begin()
            monkeypatch.setattr(portions, "SLICE", slice)
            await asyncio.wait_for(story(scene), 60)
        finally:
            scene.broker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


MESSAGES: list[tuple[str, str, dict[str, Any]]] = [
    ("t", "a.7", {}),
    ("d", "a.7", {}),
    ("h", "", {"here": 1}),
    ("h", "", {"here": 2}),
    ("d", "nowhere", {"CC": ["x", "a.b"]}),
    ("t", "q.a.3", {"BCC": ["a.b", "a.9"]}),
    ("", "one", {}),
    ("", "nowhere", {}),
]
FRAMES = [
    publish(1, exchange, key, str(number).encode(), raw=properties(headers=headers))
    for number, (exchange, key, headers) in enumerate(MESSAGES)
]
ONE, TWO = [b"0", b"1", b"2", b"5", b"6"], [b"4", b"5"]


@pytest.mark.parametrize("slice", [1, portions.SLICE])
def test_publishes_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice: int) -> None:
    async def story(scene: Scene) -> None:
        await scene.do(method(1, "Confirm.Select"), until="Confirm.SelectOk")
        await scene.do(*FRAMES, method(1, "Queue.Declare", queue="three"), until="Queue.DeclareOk")
        assert (scene.bodies("one"), scene.bodies("two")) == (ONE, TWO)

    run(tmp_path, story, monkeypatch, slice)


def test_a_transaction_keeps_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        await scene.do(method(1, "Tx.Select"), until="Tx.SelectOk")
        await scene.do(*FRAMES, method(1, "Tx.Commit"), until="Tx.CommitOk")
        assert (scene.bodies("one"), scene.bodies("two")) == (ONE, TWO)

    run(tmp_path, story, monkeypatch)


def test_a_publish_over_http_waits_for_its_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        session = scene.broker.sessions.open("guest", "/", "test", {})
        for number, (exchange, key, headers) in enumerate(MESSAGES):
            raw = properties(headers=headers)
            await send(scene.broker, session, exchange, key, raw, str(number).encode())
        assert (scene.bodies("one"), scene.bodies("two")) == (ONE, TWO)

    run(tmp_path, story, monkeypatch)


def test_dead_letters_wait_for_their_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        to = {"x-dead-letter-exchange": "t", "x-dead-letter-routing-key": "a.7", "x-message-ttl": 0}
        await scene.do(method(1, "Queue.Declare", queue="dying", arguments=to), until="Queue.DeclareOk")
        scene.connection.receive(b"".join(publish(1, "", "dying", str(number).encode()) for number in range(20)))
        await scene.until(lambda: len(scene.bodies("one")) == 20)
        assert scene.bodies("one") == [str(number).encode() for number in range(20)]

    run(tmp_path, story, monkeypatch)


def test_others_have_their_turn_and_a_closed_channel_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(scene: Scene) -> None:
        monkeypatch.setattr(exchange_types, "PORTION", 1)  # a portion for each binding
        share = scene.broker.router.share
        scene.connection.receive(publish(1, "h", "", b"long", raw=properties(headers={"here": 1})))
        assert scene.bodies("one") == []
        other = Connection(scene.broker, "client:2", True, IdleSocket())
        other.receive(HANDSHAKE + method(1, "Channel.Open") + publish(1, "", "two", b"short"))
        await scene.until(lambda: scene.bodies("two") == [b"short"])
        assert scene.bodies("one") == []
        scene.connection.lost()
        await scene.until(lambda: not share._line)
        assert scene.bodies("one") == []

    run(tmp_path, story, monkeypatch)


# -- the indexes of exchanges ------------------------------------------------------------------------------------------


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data") as harness:
        yield harness


def test_an_exchange_is_indexed_once_whatever_comes_and_goes(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    require_patchable("rewindmq.engine.routing.exchange_types.ExchangeType.add")
    added: list[str] = []
    add = exchange_types.ExchangeType.add

    def counted(self: exchange_types.ExchangeType, bound: Bound) -> None:
        added.append(bound.routing_key)
        add(self, bound)

    monkeypatch.setattr(exchange_types.ExchangeType, "add", counted)
    session = h.session()
    h.declare(session, "q")
    for number in range(100):
        h.bind(session, "amq.topic", "q", f"k.{number}")
    assert h.publish(session, "amq.topic", "k.1", b"") == 1
    assert len(added) == 100
    for number in range(100):
        h.exchange(session, f"x{number}", "fanout")
        h.bind(session, "amq.topic", "q", f"new.{number}")
        h.declare(session, f"q{number}")
        h.broker.access.users.set_permissions(session.actor, "/", "guest", ".*", ".*", ".*")
        assert h.publish(session, "amq.topic", f"new.{number}", b"") == 1
        h.broker.exchanges.unbind(session, "amq.topic", "queue", "q", f"new.{number}", ())
        assert h.publish(session, "amq.topic", f"new.{number}", b"") == 0
    assert len(added) == 200
    h.broker.exchanges.delete(session, "x1", False)
    h.broker.queues.delete(session, "q", False, False)
    assert h.publish(session, "amq.topic", "k.1", b"") == 0


def test_an_exchange_that_is_made_anew_has_none_of_the_old_bindings(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    for kind in ("topic", "direct", "fanout", "topic"):
        h.exchange(session, "x", kind)
        assert h.publish(session, "x", "k", b"") == 0
        h.bind(session, "x", "q", "k")
        h.bind(session, "x", "q", "other")
        assert h.publish(session, "x", "k", b"") == 1
        h.broker.exchanges.delete(session, "x", False)
