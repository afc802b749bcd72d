"""What is left of a queue in the partition that it left follows it."""

import asyncio
from pathlib import Path

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.placement.strays import PORTION
from tests.support.amqp_wire import method, publish
from tests.support.moving_clients import KINDS, Client, Play, Q, declared, played
from tests.support.repartition import Steps, until


@pytest.fixture(params=KINDS)
def play(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    return played(request.param, tmp_path, monkeypatch)


def test_b77_many_messages_that_are_given_back_follow_without_a_rest(play: Play) -> None:
    count = 2 * PORTION + 1

    async def test(broker: Broker, steps: Steps) -> None:
        client, holder = await Client.opened(broker), await Client.opened(broker)
        await declared(client, Q)
        await holder.ask(method(1, "Basic.Consume", queue=Q, consumer_tag="held"), "Basic.ConsumeOk")
        client.send(*(publish(1, "", Q, b"%d" % number) for number in range(count)))
        await holder.hear("Basic.Deliver", count)
        await holder.ask(method(1, "Basic.Cancel", consumer_tag="held"), "Basic.CancelOk")
        await steps.change()
        _, left = steps.queue(Q)
        await steps.begin(Q)
        queue = await steps.end(Q)
        assert queue.messages_ready == 0
        strays = broker.repartition.strays
        assert not strays.look(), "what a consumer holds was taken from it"
        holder.connection.lost()
        broker.turns.end()
        await until(lambda: left.messages_ready == count)
        while strays.look():
            await asyncio.sleep(0.001)
        await until(lambda: queue.messages_ready == count)

    play(test)
