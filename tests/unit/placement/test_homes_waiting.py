"""Requests that wait for a moving queue are in the account of memory, and only those that can continue are woken. Tests
run on an embedded log, and on a node in memory."""

import asyncio
from collections.abc import Callable

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.host.memory import MemoryKind
from tests.support.amqp_wire import method, publish
from tests.support.deadlines import eventually
from tests.support.moving_clients import OTHER, STILL_SECONDS, Client, Q, declared, on_each_log
from tests.support.repartition import Steps


@pytest.mark.parametrize("way", ["publish", "commit"])
@on_each_log
async def test_what_waits_is_in_the_account_of_memory(broker: Broker, steps: Steps, way: str) -> None:
    client, lost = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    await steps.change()
    await steps.begin(Q)
    body = bytes(5_000)
    for each in (client, lost):
        frames = [publish(1, "", Q, body)]
        if way == "commit":
            frames = [method(1, "Tx.Select"), *frames, method(1, "Tx.Commit")]
        each.send(*frames, publish(1, "", Q, b"behind"))
    await asyncio.sleep(STILL_SECONDS)
    assert broker.host.memory.by_kind[MemoryKind.BODY] >= 2 * len(body)
    assert client.connection.kept_bytes >= len(body)
    lost.connection.lost()
    await eventually(lambda: broker.host.memory.by_kind[MemoryKind.BODY] < 2 * len(body))
    queue = await steps.end(Q)
    await eventually(lambda: queue.messages_ready > 0)
    assert broker.host.memory.by_kind[MemoryKind.BODY] == 0


@on_each_log
async def test_only_those_look_again_whose_name_is_free_or_who_are_gone(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q, OTHER)
    await steps.change()
    looks: list[str] = []

    def looking(what: str) -> Callable[[], bool]:
        def look() -> bool:
            looks.append(what)
            return what == "gone" and len(looks) > 3

        return look

    homes = broker.homes
    await steps.begin(Q)
    await steps.begin(OTHER)
    asked = [(Q, "q", 1), (OTHER, "other", 2), (OTHER, "gone", 3)]
    tasks = [
        asyncio.ensure_future(homes.wait_until_free("/", name, looking(what), session)) for name, what, session in asked
    ]
    late = asyncio.ensure_future(homes.wait_until_free("/", OTHER))
    await asyncio.sleep(0)
    assert looks == ["q", "other", "gone"]
    late.cancel()
    homes.session_ended(3)
    await asyncio.wait(tasks[2:])
    assert looks == ["q", "other", "gone", "gone"]
    await steps.end(Q)
    await asyncio.wait(tasks[:1])
    assert looks == ["q", "other", "gone", "gone"]
    await steps.end(OTHER)
    await asyncio.gather(*tasks)
    assert (homes._of_name, homes._of_session) == ({}, {})
