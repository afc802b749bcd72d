"""Policies that are set while a queue moves, or that reach what it left behind."""

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.schemas.metadata_events import PolicySet
from rewindmq.schemas.values import BROKER
from tests.support.amqp_wire import method, publish
from tests.support.deadlines import eventually
from tests.support.moving_clients import Client, Q, declared, got, on_each_log
from tests.support.repartition import Steps, until_done

HOUR_MS = 3_600_000
EXPIRES = f'{{"expires":{HOUR_MS},"max-length":3}}'


async def set_policy(broker: Broker) -> None:
    definition: dict[str, object] = {"expires": HOUR_MS, "max-length": 3}
    await broker.policies.set(BROKER, "/", "short", ".*", definition, 0, "queues")


@pytest.mark.parametrize("applied", [True, False])
@on_each_log
async def test_b77_a_queue_on_its_way_does_not_expire(broker: Broker, steps: Steps, applied: bool) -> None:
    """Nobody can use it, and so its lease would end under clients who wait for it. Its other policies hold."""
    client = await Client.opened(broker)
    await declared(client, Q)
    client.send(*(publish(1, "", Q, b"%d" % number) for number in range(5)))
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    queue = await steps.declare(Q)
    await steps.send(Q, 1)
    if applied:
        await set_policy(broker)
        found = [(each.settings.expires_ms, each.settings.max_length) for each in (left, queue)]
        assert found == [(None, 3), (None, 3)]
    else:
        await steps.log(PolicySet("/", "short", ".*", EXPIRES, 0, "queues"))
    await until_done(broker)
    await eventually(lambda: queue.settings.expires_ms == HOUR_MS)
    assert await got(client, Q) == [b"2", b"3", b"4"]


@on_each_log
async def test_b77_what_a_consumer_holds_where_the_queue_was_does_not_expire(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q)
    await client.ask(method(1, "Basic.Consume", queue=Q, consumer_tag="t"), "Basic.ConsumeOk")
    client.send(publish(2, "", Q, b"1"))
    await client.hear("Basic.Deliver")
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    queue = await steps.end(Q)
    await set_policy(broker)
    assert (left.messages_unacked, left.settings.expires_ms) == (1, None)
    assert queue.settings.expires_ms == HOUR_MS
