"""Messages that a queue leaves behind in its old partition follow it."""

import asyncio

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.placement import leftover_queues
from rewindmq.engine.placement.leftover_queues import PORTION
from rewindmq.schemas.events import Event, Published, QueueDeleted
from rewindmq.schemas.values import BROKER, Actor, Route
from tests.support.amqp_wire import method, publish
from tests.support.deadlines import eventually
from tests.support.moving_clients import Client, Play, Q, declared, got
from tests.support.needs import require_patchable
from tests.support.repartition import Steps


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
        left_over = broker.repartition.leftovers
        assert not await left_over.look(Work(broker.host.loop_share)), "what a consumer holds was taken from it"
        holder.connection.lost()
        broker.turns.end()
        await eventually(lambda: left.messages_ready == count)
        while await left_over.look(Work(broker.host.loop_share)):
            await asyncio.sleep(0.001)
        await eventually(lambda: queue.messages_ready == count)

    play(test)


def test_b77_a_message_that_comes_while_an_empty_rest_is_removed_follows(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was declared lost published it. Its record is in the log before the removal that was asked for."""
    require_patchable("rewindmq.engine.partition.partition.Partition.append")
    monkeypatch.setattr(leftover_queues, "STAY_SECONDS", 0.0)

    async def test(broker: Broker, steps: Steps) -> None:
        client = await Client.opened(broker)
        await declared(client, Q)
        await steps.change()
        source, left = steps.queue(Q)
        await steps.begin(Q)
        queue = await steps.end(Q)
        append = source.append

        def later(actor: Actor, event: Event) -> int:
            if isinstance(event, QueueDeleted):
                late = Published(Route("/", "", Q, (Q,)), b"\0\0", persistent=True, body=b"late", body_size=4)
                source.publish(BROKER, late)
            return append(actor, event)

        monkeypatch.setattr(source, "append", later)
        await broker.repartition.leftovers.look(Work(broker.host.loop_share))
        broker.turns.end()
        monkeypatch.setattr(source, "append", append)
        await eventually(lambda: left.published == 1)
        while queue.published == 0 and not left.gone:
            await broker.repartition.leftovers.look(Work(broker.host.loop_share))
            await asyncio.sleep(0.001)
        assert await got(client, Q) == [b"late"]
        while not left.gone:
            await broker.repartition.leftovers.look(Work(broker.host.loop_share))
            await asyncio.sleep(0.001)

    play(test)
