"""Which confirms wait for the disk, and which come as soon as the queues have the message (S-010): as with RabbitMQ
(rabbit_amqqueue_process.erl `send_or_record_confirm/2`). The same of a cancel-ok. The broker is a real one; its disk
stands still until `sync`.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.amqp.connection_state import ConnectionState
from rewindmq.engine.config import Config
from rewindmq.engine.process import open_broker
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method, properties, publish

PERSISTENT, TRANSIENT = properties(delivery_mode=2), properties(delivery_mode=1)
QUEUES: dict[str, dict[str, Any]] = {
    "durable": {"durable": True},
    "fleeting": {},
    "exclusive": {"exclusive": True, "durable": True},
    "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
    "stream": {"durable": True, "arguments": {"x-queue-type": "stream"}},
    "full": {"arguments": {"x-max-length": 0, "x-overflow": "reject-publish"}},
}
T = TypeVar("T")
Told = list[tuple[str, int, bool]]


class Disk:
    """A broker whose disk stands still, and a client of it."""

    def __init__(self, data: Path) -> None:
        self.loop = asyncio.new_event_loop()
        # With an interval of 0 no commit waits for its time, which might come while the disk stands still.
        self.broker = self.inside(lambda: open_broker(Config(data=data, partitions=2, commit_interval_ms=0)))
        self.commit = self.broker.keeper.kick
        self.connection = Connection(self.broker, "client:1", True, IdleSocket())
        self.say(HANDSHAKE)
        self.until("Connection.OpenOk")
        self.say(method(1, "Channel.Open") + method(2, "Channel.Open") + method(1, "Confirm.Select"))
        declared = b"".join(method(1, "Queue.Declare", queue=name, **how) for name, how in QUEUES.items())
        self.say(declared + method(1, "Basic.Qos"))
        self.until("Basic.QosOk")
        self.sync()
        self.broker.keeper.kick = lambda: None  # type: ignore[method-assign]  # its disk stands still

    def inside(self, work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return self.loop.run_until_complete(call())

    def say(self, frames: bytes) -> None:
        def receive() -> None:
            self.connection.receive(frames)
            self.broker.turns.end()

        self.inside(receive)

    def said(self) -> list[Said]:
        return decoded(b"".join(self.inside(self.connection.take_output)))

    def until(self, name: str) -> None:
        async def wait() -> None:
            while name not in {each.name for each in decoded(b"".join(self.connection.take_output()))}:
                await asyncio.sleep(0.001)

        self.loop.run_until_complete(asyncio.wait_for(wait(), 20))

    def sync(self) -> None:
        """Everything is durable, and told."""
        durable = self.loop.create_future()

        def wait() -> None:
            self.broker.turns.when_durable(lambda: durable.set_result(None))
            self.commit()

        self.inside(wait)
        self.loop.run_until_complete(asyncio.wait_for(durable, 20))

    def confirms(self, frames: bytes = b"") -> Told:
        self.say(frames)
        names = {"Basic.Ack": "ack", "Basic.Nack": "nack"}
        return [(names[each.name], each.delivery_tag, each.multiple) for each in self.said() if each.name in names]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.broker.keeper.kick = disk.commit  # type: ignore[method-assign]  # and goes on
    disk.inside(disk.connection.lost)
    disk.inside(disk.broker.close)
    disk.loop.close()


@pytest.mark.parametrize(
    ("queues", "raw", "at_once"),
    [
        (("durable",), TRANSIENT, True),
        (("durable",), b"\0\0", True),  # it says nothing of its delivery mode
        (("durable",), PERSISTENT, False),
        (("fleeting",), PERSISTENT, True),
        (("fleeting",), TRANSIENT, True),
        (("exclusive",), PERSISTENT, True),
        (("quorum",), TRANSIENT, False),
        (("stream",), TRANSIENT, False),
        (("durable", "fleeting"), TRANSIENT, True),
        (("durable", "fleeting"), PERSISTENT, False),
        (("fleeting", "exclusive"), PERSISTENT, True),
        (("fleeting", "quorum"), TRANSIENT, False),
        (tuple(QUEUES)[:3], TRANSIENT, True),
        (tuple(QUEUES)[:4], TRANSIENT, False),
    ],
)
def test_a_confirm_waits_for_the_disk_only_if_a_queue_keeps_the_message(
    disk: Disk, queues: tuple[str, ...], raw: bytes, at_once: bool
) -> None:
    for name in queues:
        disk.say(method(2, "Queue.Bind", queue=name, exchange="amq.fanout"))
    told = [("ack", 1, False)]
    assert disk.confirms(publish(1, "amq.fanout", "", b"x", raw=raw)) == (told if at_once else [])
    disk.sync()
    assert disk.confirms() == ([] if at_once else told)


def test_what_a_queue_will_not_take_is_refused_at_once(disk: Disk) -> None:
    assert disk.confirms(2 * publish(1, "", "full", b"x", raw=TRANSIENT)) == [("nack", 1, False), ("nack", 2, False)]
    assert disk.confirms(publish(1, "", "full", b"x", raw=PERSISTENT)) == [("nack", 3, False)]
    disk.sync()
    assert disk.confirms() == []


def test_confirms_that_need_not_wait_overtake_those_that_do(disk: Disk) -> None:
    sent = [TRANSIENT, TRANSIENT, PERSISTENT, TRANSIENT, TRANSIENT, PERSISTENT]
    frames = b"".join(publish(1, "", "durable", b"x", raw=raw) for raw in sent)
    assert disk.confirms(frames) == [("ack", 2, True), ("ack", 4, False), ("ack", 5, False)]
    assert disk.confirms(publish(1, "", "durable", b"x", raw=TRANSIENT)) == [("ack", 7, False)]
    disk.sync()
    assert disk.confirms() == [("ack", 6, True)]
    assert disk.confirms(publish(1, "", "durable", b"x", raw=TRANSIENT)) == [("ack", 8, False)]


def test_a_confirm_comes_before_the_reply_that_the_message_caused(disk: Disk) -> None:
    """A client that waits for its confirm before it looks at its replies loses them otherwise."""
    server = Connection(disk.broker, "server:1", True, IdleSocket())

    async def log_in() -> None:
        server.receive(HANDSHAKE + method(1, "Channel.Open"))
        while server.state is not ConnectionState.RUNNING:
            await asyncio.sleep(0.001)
        server.receive(method(1, "Basic.Consume", queue="durable", no_ack=True))

    disk.loop.run_until_complete(asyncio.wait_for(log_in(), 20))
    disk.say(method(2, "Basic.Consume", queue="fleeting", no_ack=True) + publish(1, "", "durable", b"?", raw=TRANSIENT))
    told = [each.name for each in disk.said()]
    (asked,) = [each for each in decoded(b"".join(disk.inside(server.take_output))) if each.name == "Basic.Deliver"]
    assert asked.body == b"?"
    disk.inside(lambda: server.receive(publish(1, "", "fleeting", b"!", raw=TRANSIENT)))
    disk.inside(disk.broker.turns.end)
    told += [each.name for each in disk.said()]
    assert told == ["Basic.ConsumeOk", "Basic.Ack", "Basic.Deliver"]
    disk.inside(server.lost)


def test_a_cancel_that_ends_its_queue_is_answered_after_the_bindings(disk: Disk) -> None:
    """S-070. With them goes an auto-delete exchange. Other cancels are answered at once."""
    disk.say(
        method(1, "Exchange.Declare", exchange="x", exchange_type="fanout", auto_delete=True)
        + method(1, "Queue.Declare", queue="q", auto_delete=True)
        + method(1, "Queue.Bind", queue="q", exchange="x")
        + b"".join(method(1, "Basic.Consume", queue="q", consumer_tag=tag) for tag in "ab")
    )
    disk.sync()
    disk.said()
    disk.say(method(1, "Basic.Cancel", consumer_tag="a"))
    assert [each.name for each in disk.said()] == ["Basic.CancelOk"]
    disk.say(method(1, "Basic.Cancel", consumer_tag="b"))
    assert [each.name for each in disk.said()] == []
    disk.sync()
    assert [each.name for each in disk.said()] == ["Basic.CancelOk"]
    assert ("/", "x") not in disk.broker.topology.exchanges
