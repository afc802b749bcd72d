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
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import Config
from rewindmq.engine.embedded.lifecycle import Alone
from rewindmq.engine.log.embedded.log import WAITING_BYTES, EmbeddedLog
from rewindmq.engine.log.embedded.reserve import MARGIN_BYTES, RESERVE_BYTES
from rewindmq.engine.process import open_broker
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method, publish
from tests.support.queues import queue_of

BODY = bytes(20_000)
MOST = 60 * 1024 * 1024 // len(BODY)
BEYOND = 2 * len(BODY)  # what one read may add after the last look


async def opened(broker: Broker, *methods: bytes) -> Connection:
    connection = Connection(broker, "client:1", True, IdleSocket())
    frames = HANDSHAKE + method(1, "Channel.Open") + b"".join(methods) + method(1, "Queue.Declare", queue="q")
    said = await say(broker, connection, frames)
    while "Queue.DeclareOk" not in [each.name for each in said]:
        said += await say(broker, connection, b"")
    return connection


async def say(broker: Broker, connection: Connection, frames: bytes) -> list[Said]:
    connection.receive(frames)
    broker.turns.end()
    await asyncio.sleep(0.001)
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
    assert isinstance(broker.keeper, Alone)
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
        while waiting_bytes(broker) or publisher.link.state == "flow":
            await say(broker, publisher, b"")
        assert queue_of(broker, "q").messages_ready == MOST - 1

    run(tmp_path, test)


def test_acks_become_durable_when_the_disk_gets_full_under_a_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system has room for 2 MB and the reserve; the publisher sends 60 MB before it hears of anything."""
    full = False
    room = 2 * 1024 * 1024
    write, truncate, space = os.pwrite, os.ftruncate, os.fstatvfs

    def within_the_room(descriptor: int, data: memoryview, position: int) -> int:
        nonlocal room
        if full and len(data) > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= len(data)
        return write(descriptor, data, position)

    def released(descriptor: int, length: int) -> None:
        nonlocal room
        if full and os.readlink(f"/proc/self/fd/{descriptor}").endswith("_reserve"):
            room += os.fstat(descriptor).st_size - length
        truncate(descriptor, length)

    def free(descriptor: int) -> os.statvfs_result:
        found = list(space(descriptor))
        found[4] = (room if full else RESERVE_BYTES + MARGIN_BYTES) // found[1]
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "pwrite", within_the_room)
    monkeypatch.setattr(os, "ftruncate", released)
    monkeypatch.setattr(os, "fstatvfs", free)

    async def test(broker: Broker) -> None:
        nonlocal full
        publisher = await opened(broker)
        consumer = await opened(broker)
        full = True
        await say(broker, publisher, b"".join(publish(1, "", "q", BODY) for _ in range(MOST)))
        for tag in range(1, 200):
            await say(broker, consumer, method(1, "Basic.Get", queue="q") + method(1, "Basic.Ack", delivery_tag=tag))
        durable = asyncio.Event()
        broker.turns.when_durable(durable.set)
        await asyncio.wait_for(durable.wait(), 20)
        blocked = broker.turns.blocked
        assert blocked is not None
        full = False
        async with asyncio.timeout(30):
            while publisher.link.state != "running" or waiting_bytes(broker):
                await say(broker, publisher, b"")
        assert broker.turns.blocked is None
        assert queue_of(broker, "q").messages_ready == MOST - 199

    run(tmp_path, test)
