"""Connections that publish wait while much waits for the disk (engine/embedded/flow_control.py): so acks become durable
on a full disk, out of the log's reserve."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.amqp.read_gate import Pause
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import Config
from rewindmq.engine.embedded.lifecycle import EmbeddedKeeper
from rewindmq.engine.log.embedded.log import WAITING_BYTES, EmbeddedLog
from rewindmq.engine.log.embedded.reserve import MARGIN_BYTES, RESERVE_BYTES
from rewindmq.engine.process import open_broker
from rewindmq.projections import system_calls
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method, publish
from tests.support.queues import queue_of

BODY = bytes(20_000)
MOST = 60 * 1024 * 1024 // len(BODY)
LARGE = 10_000_000
BEYOND = 2 * len(BODY)  # what one read may add after the last look
READ = 256 * 1024
UNREAD: dict[Connection, bytes] = {}  # what its client has sent


async def opened(broker: Broker, *methods: bytes) -> Connection:
    connection = Connection(broker, "client:1", True, IdleSocket())
    broker.turns.on_blocked.append(connection.alarm_changed)
    frames = HANDSHAKE + method(1, "Channel.Open") + b"".join(methods) + method(1, "Queue.Declare", queue="q")
    said = await say(broker, connection, frames)
    while "Queue.DeclareOk" not in [each.name for each in said]:
        said += await say(broker, connection, b"")
    return connection


async def say(broker: Broker, connection: Connection, frames: bytes) -> list[Said]:
    """Send frames behind those that the connection has not read yet, as a socket does. Returns what is answered."""
    unread = UNREAD.pop(connection, b"") + frames
    while True:
        connection.receive(unread[:READ])
        unread = unread[READ:]
        broker.turns.end()
        await asyncio.sleep(0.001)
        while Pause.TURN in connection.gate.reasons:  # it stands in line with the rest of the frames
            await asyncio.sleep(0)
        if not unread or not connection.reads_socket():
            break
    if unread:
        UNREAD[connection] = unread
    return decoded(b"".join(connection.take_output()))


def run(tmp_path: Path, test: Callable[[Broker], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        broker = open_broker(Config(data=tmp_path, partitions=1))
        try:
            await test(broker)
        finally:
            broker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def waiting_bytes(broker: Broker) -> int:
    assert isinstance(broker.keeper, EmbeddedKeeper)
    log = broker.keeper.log
    assert isinstance(log, EmbeddedLog)
    return log.queues[0].waiting_bytes


def test_a_disk_that_is_slow_makes_publishers_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    goes_on.set()
    write = os.pwrite

    def slowly(descriptor: int, data: memoryview, position: int) -> int:
        assert goes_on.wait(60)
        return write(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", slowly)

    async def test(broker: Broker) -> None:
        publisher = await opened(broker, method(1, "Confirm.Select"))
        consumer = await opened(broker)
        goes_on.clear()
        await say(broker, publisher, b"".join(publish(1, "", "q", BODY) for _ in range(MOST)))
        assert WAITING_BYTES <= waiting_bytes(broker) <= WAITING_BYTES + BEYOND
        state = publisher.link.state
        assert state == "flow"
        before = waiting_bytes(broker)
        said = await say(broker, consumer, method(1, "Basic.Get", queue="q") + method(1, "Basic.Ack", delivery_tag=1))
        assert [each.name for each in said] == ["Basic.GetOk"]
        assert before < waiting_bytes(broker) < before + 1_000, "a consumer waits behind publishers"
        goes_on.set()
        while waiting_bytes(broker) or publisher.link.state == "flow" or publisher in UNREAD:
            await say(broker, publisher, b"")
        assert queue_of(broker, "q").messages_ready == MOST - 1

    run(tmp_path, test)


class NearlyFull:
    """A file system that has room for 2 MB and the reserve, from when it is `full` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.room = 2 * 1024 * 1024
        self._write, self._truncate, self._space = os.pwrite, os.ftruncate, os.fstatvfs
        monkeypatch.setattr(os, "pwrite", self.write)
        monkeypatch.setattr(os, "ftruncate", self.released)
        monkeypatch.setattr(os, "fstatvfs", self.free)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        if self.full and len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(data) if self.full else 0
        return self._write(descriptor, data, position)

    def released(self, descriptor: int, length: int) -> None:
        if self.full and os.readlink(f"/proc/self/fd/{descriptor}").endswith("_reserve"):
            self.room += os.fstat(descriptor).st_size - length
        self._truncate(descriptor, length)

    def free(self, descriptor: int) -> os.statvfs_result:
        found = list(self._space(descriptor))
        found[4] = (self.room if self.full else RESERVE_BYTES + MARGIN_BYTES) // found[1]
        return os.statvfs_result(found)


async def until_durable(broker: Broker) -> None:
    durable = asyncio.Event()
    broker.turns.when_durable(durable.set)
    broker.turns.end()
    await asyncio.wait_for(durable.wait(), 20)


def test_acks_become_durable_when_the_disk_gets_full_under_a_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher sends 60 MB before it hears of anything."""
    disk = NearlyFull(monkeypatch)

    async def test(broker: Broker) -> None:
        publisher = await opened(broker)
        consumer = await opened(broker)
        disk.full = True
        await say(broker, publisher, b"".join(publish(1, "", "q", BODY) for _ in range(MOST)))
        got = 0
        while [said.name for said in await say(broker, consumer, method(1, "Basic.Get", queue="q"))] == ["Basic.GetOk"]:
            got += 1
            await say(broker, consumer, method(1, "Basic.Ack", delivery_tag=got))
        assert got >= 50
        await until_durable(broker)
        blocked = broker.turns.blocked
        assert blocked is not None
        disk.full = False
        async with asyncio.timeout(30):
            while publisher.link.state != "running" or waiting_bytes(broker) or publisher in UNREAD:
                await say(broker, publisher, b"")
        assert broker.turns.blocked is None
        assert queue_of(broker, "q").messages_ready == MOST - got

    run(tmp_path, test)


def test_large_publishes_take_turns_and_small_ones_go_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes nothing for a while. Only one of three large messages is on its way; a small one is not held back
    by it, nor by those that wait."""
    goes_on = threading.Event()
    goes_on.set()
    fdatasync = system_calls.sync_data

    def slowly(descriptor: int) -> None:
        assert goes_on.wait(60)
        fdatasync(descriptor)

    monkeypatch.setattr(system_calls, "sync_data", slowly)

    async def test(broker: Broker) -> None:
        publishers = [await opened(broker) for _ in range(3)]
        probe = await opened(broker, method(1, "Confirm.Select"))
        said = await say(broker, probe, publish(1, "", "q", b"first"))  # from here on it is known as a publisher
        while not said:
            said = await say(broker, probe, b"")
        goes_on.clear()
        for number, publisher in enumerate(publishers):
            await say(broker, publisher, publish(1, "", "q", bytes([number]) * LARGE))
        assert LARGE <= waiting_bytes(broker) < LARGE + 10_000
        said = await say(broker, probe, publish(1, "", "q", b"small"))
        assert [each.name for each in said] == ["Basic.Ack"], "a transient message waits for no disk"
        assert queue_of(broker, "q").messages_ready == 3
        goes_on.set()
        async with asyncio.timeout(30):
            while waiting_bytes(broker) or queue_of(broker, "q").messages_ready < 5:
                await say(broker, publishers[0], b"")
        queue, partition = queue_of(broker, "q"), broker.partitions[0]
        bodies = [partition.message(queue.queue_id, view.message_id).body[:5] for view in queue.messages()]
        assert bodies == [b"first", bytes(5), b"small", b"\1" * 5, b"\2" * 5]

    run(tmp_path, test)


@pytest.mark.long
def test_acks_become_durable_when_the_disk_gets_full_under_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of 30 MB are rejected in one frame."""
    disk = NearlyFull(monkeypatch)
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    count = MOST // 2

    async def test(broker: Broker) -> None:
        consumer = await opened(broker, method(1, "Queue.Declare", queue="dying", arguments=dead_letters))
        await say(broker, consumer, b"".join(publish(1, "", "dying", BODY) for _ in range(count)))
        async with asyncio.timeout(30):
            while queue_of(broker, "dying").messages_ready < count or waiting_bytes(broker):
                await say(broker, consumer, b"")
        await say(broker, consumer, method(1, "Basic.Consume", queue="dying"))
        async with asyncio.timeout(30):
            while queue_of(broker, "dying").messages_unacked < count:
                consumer.grant_credit()
                await say(broker, consumer, b"")
        disk.full = True
        await say(broker, consumer, method(1, "Basic.Nack", delivery_tag=0, multiple=True, requeue=False))
        await until_durable(broker)  # the deaths
        for _ in range(20):
            await say(broker, consumer, method(1, "Basic.Get", queue="q", no_ack=True))
        await until_durable(broker)
        assert queue_of(broker, "q").messages_ready < count // 2
        disk.full = False
        async with asyncio.timeout(30):
            while len(queue_of(broker, "dying").outbox) or waiting_bytes(broker):
                await asyncio.sleep(0.01)
        assert queue_of(broker, "q").messages_ready >= count - 20

    run(tmp_path, test)
