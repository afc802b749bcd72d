"""Large bodies are fetched one in a turn of the loop, however many clients ask at the same time."""

import asyncio
from pathlib import Path

import pytest
import uvloop

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.config import Config
from rewindmq.engine.partition.flow_control import LARGE_BYTES
from rewindmq.engine.process import open_broker
from rewindmq.projections.store.projector import Projector
from rewindmq.schemas.events import Published
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method, publish

CLIENTS = 5
BODY = bytes(LARGE_BYTES)


async def opened(broker: Broker) -> Connection:
    connection = Connection(broker, "client:1", True, IdleSocket())
    connection.receive(HANDSHAKE + method(1, "Channel.Open") + method(1, "Queue.Declare", queue="q"))
    while "Queue.DeclareOk" not in [each.name for each in read(broker, connection)]:
        await asyncio.sleep(0.001)
    return connection


def read(broker: Broker, connection: Connection) -> list[Said]:
    broker.turns.end()
    return decoded(b"".join(connection.take_output()))


@pytest.mark.parametrize(("body", "alone"), [(BODY, True), (BODY[1:], False)])
def test_clients_that_fetch_large_bodies_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, alone: bool
) -> None:
    turn = 0
    reads: list[int] = []  # the turns in which a body was read

    class Counting(Projector):
        def message(self, queue_id: int, message_id: int) -> Published:
            reads.append(turn)
            return super().message(queue_id, message_id)

    monkeypatch.setattr("rewindmq.projections.store.store.Projector", Counting)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def main() -> None:
        broker = open_broker(Config(data=tmp_path, partitions=1))
        counting = asyncio.create_task(count_turns())
        try:
            clients = [await opened(broker) for _ in range(CLIENTS)]
            for client in clients:
                client.receive(publish(1, "", "q", body))
                await broker.turns.written()
            for client in clients:
                client.receive(method(1, "Basic.Get", queue="q"))
            got: list[Said] = []
            while len(got) < CLIENTS:
                for client in clients:
                    got += read(broker, client)
                await asyncio.sleep(0)
            assert [(each.name, each.body == body) for each in got] == [("Basic.GetOk", True)] * CLIENTS
        finally:
            counting.cancel()
            broker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert (max(map(reads.count, reads)) == 1) is alone
