"""Clients work with a queue while it moves and afterwards. Tests run on an embedded log, and on a node in memory."""

import asyncio
from pathlib import Path

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.host.loop_share import Work
from tests.support.amqp_wire import method, properties, publish
from tests.support.deadlines import eventually
from tests.support.moving_clients import OTHER, STILL_SECONDS, Client, Q, declared, got, on_each_log, played
from tests.support.repartition import Steps

HELD = method(1, "Basic.Qos", prefetch_count=1) + method(1, "Basic.Consume", queue=Q, consumer_tag="t")


async def strays_follow(broker: Broker) -> None:
    while await broker.repartition.leftovers.look(Work(broker.host.loop_share)):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("what", ["delete", "consume", "passive"])
@on_each_log
async def test_a_consumer_that_follows_comes_before_requests_that_wait(broker: Broker, steps: Steps, what: str) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    exclusive = what != "passive"
    await client.ask(method(1, "Basic.Consume", queue=Q, consumer_tag="t", exclusive=exclusive), "Basic.ConsumeOk")
    await steps.change()
    await steps.begin(Q)
    other.heard.clear()
    if what == "delete":
        other.send(method(1, "Queue.Delete", queue=Q, if_unused=True))
    elif what == "consume":
        other.send(method(1, "Basic.Consume", queue=Q))
    else:
        other.send(method(1, "Queue.Declare", queue=Q, passive=True))
    await asyncio.sleep(STILL_SECONDS)
    await steps.end(Q)
    if what == "passive":
        (declared_ok,) = await other.hear("Queue.DeclareOk")
        assert declared_ok.consumer_count == 1 or broker.nodes.reads_back  # it is on its way
    else:
        (closed,) = await other.hear("Channel.Close")
        assert closed.reply_code == (406 if what == "delete" else 403)
    queue = broker.queues.get("/", Q)
    assert queue is not None
    await eventually(lambda: queue.consumer_count() == 1)
    assert client.said("Basic.Cancel") == []


@on_each_log
async def test_if_empty_heeds_what_came_back_to_the_old_place(broker: Broker, steps: Steps) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    client.send(publish(1, "", Q, b"m"), method(1, "Basic.Get", queue=Q))
    await client.hear("Basic.GetOk")
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    queue = await steps.end(Q)
    client.send(method(1, "Basic.Nack", delivery_tag=1, requeue=True))
    await eventually(lambda: left.messages_ready == 1)
    other.send(method(1, "Queue.Delete", queue=Q, if_empty=True))
    (closed,) = await other.hear("Channel.Close")
    assert (closed.reply_code, queue.gone) == (406, False)
    await strays_follow(broker)
    await eventually(lambda: queue.messages_ready == 1)
    client.heard.clear()
    client.send(method(1, "Basic.Get", queue=Q))
    (taken,) = await client.hear("Basic.GetOk")
    assert (taken.redelivered, taken.body) == (True, b"m")


@on_each_log
async def test_a_commit_acks_in_the_old_place_and_publishes_to_the_new_one(broker: Broker, steps: Steps) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    client.send(publish(2, "", Q, b"1"), publish(2, "", Q, b"2"))
    await client.ask(method(1, "Tx.Select") + HELD, "Basic.ConsumeOk")
    await client.hear("Basic.Deliver")
    await steps.change()
    _, left = steps.queue(Q)
    client.send(publish(1, "", Q, b"before"), method(1, "Basic.Ack", delivery_tag=1))
    await steps.begin(Q)
    client.send(publish(1, "", Q, b"while"), method(1, "Tx.Commit"))
    await client.hears_nothing("Tx.CommitOk")
    assert left.messages_unacked == 1
    queue = await steps.end(Q)
    await client.hear("Tx.CommitOk")
    await eventually(lambda: left.messages_unacked == 0 and queue.messages_ready == 2)
    await client.hear("Basic.Deliver", 2)
    assert client.bodies() == [b"1", b"2"]
    assert await got(other, Q) == [b"before", b"while"]


@on_each_log
async def test_a_tag_is_free_while_its_queue_moves(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q, OTHER)
    client.send(publish(2, "", Q, b"1"), publish(2, "", Q, b"2"))
    await client.ask(HELD, "Basic.ConsumeOk")
    await client.hear("Basic.Deliver")
    await steps.change()
    await steps.begin(Q)
    await client.ask(method(1, "Basic.Cancel", consumer_tag="t"), "Basic.CancelOk")
    await client.ask(method(1, "Basic.Consume", queue=OTHER, consumer_tag="t"), "Basic.ConsumeOk")
    queue = await steps.end(Q)
    await asyncio.sleep(STILL_SECONDS)
    assert (queue.consumer_count(), queue.messages_ready) == (0, 1)
    client.heard.clear()
    client.send(publish(2, "", OTHER, b"other"))
    (delivered,) = await client.hear("Basic.Deliver")
    assert (delivered.consumer_tag, delivered.body) == ("t", b"other")


@pytest.mark.parametrize("when", ["before", "while"])
@on_each_log
async def test_a_dead_letter_goes_into_the_queue_itself(broker: Broker, steps: Steps, when: str) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": Q}
    await client.ask(method(1, "Queue.Declare", queue=Q, durable=True, arguments=arguments), "Queue.DeclareOk")
    client.send(*(publish(1, "", Q, b"%d" % number) for number in range(4)))
    await client.ask(method(1, "Basic.Qos", prefetch_count=2), "Basic.QosOk")
    await client.ask(method(1, "Basic.Consume", queue=Q, consumer_tag="t"), "Basic.ConsumeOk")
    await client.hear("Basic.Deliver", 2)
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    await client.ask(method(1, "Basic.Cancel", consumer_tag="t"), "Basic.CancelOk")
    if when == "while":
        client.send(method(1, "Basic.Reject", delivery_tag=1), method(1, "Basic.Reject", delivery_tag=2))
        await asyncio.sleep(STILL_SECONDS)
        assert len(left.outbox) == 2
    queue = await steps.end(Q)
    if when == "before":
        client.send(method(1, "Basic.Reject", delivery_tag=1), method(1, "Basic.Reject", delivery_tag=2))
    await eventually(lambda: queue.messages_ready == 4)
    assert await got(other, Q) == [b"2", b"3", b"0", b"1"]
    await eventually(lambda: not left.outbox)


@on_each_log
async def test_alternate_and_bound_exchanges_lead_to_the_queue(broker: Broker, steps: Steps) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    frames = [
        method(1, "Exchange.Declare", exchange="alt", exchange_type="fanout"),
        method(1, "Exchange.Declare", exchange="x", exchange_type="direct", arguments={"alternate-exchange": "alt"}),
        method(1, "Exchange.Declare", exchange="first", exchange_type="fanout"),
        method(1, "Exchange.Bind", source="first", destination="alt", routing_key=""),
        method(1, "Queue.Bind", queue=Q, exchange="alt"),
    ]
    await client.ask(b"".join(frames), "Queue.BindOk")
    client.send(publish(1, "x", "nowhere", b"0", mandatory=True), publish(1, "first", "", b"1"))
    await steps.change()
    await steps.begin(Q)
    client.send(publish(1, "x", "nowhere", b"2", mandatory=True), publish(1, "first", "", b"3", mandatory=True))
    other.send(publish(1, "first", "", b"4", mandatory=True))
    await asyncio.sleep(STILL_SECONDS)
    await steps.end(Q)
    await declared(client, Q)
    await declared(other, Q)
    assert [each for each in await got(other, Q) if each != b"4"] == [b"0", b"1", b"2", b"3"]
    assert client.said("Basic.Return") == other.said("Basic.Return") == []


def test_delayed_messages_wait_for_their_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker, steps: Steps) -> None:
        client, other = await Client.opened(broker), await Client.opened(broker)
        await declared(client, Q)
        frames = method(
            1,
            "Exchange.Declare",
            exchange="late",
            exchange_type="x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": "direct"},
        ) + method(1, "Queue.Bind", queue=Q, exchange="late", routing_key="k")
        await client.ask(frames, "Queue.BindOk")
        await steps.change()
        await steps.begin(Q)
        client.send(publish(1, "late", "k", b"d", raw=properties(headers={"x-delay": 20})))
        await asyncio.sleep(0.2)
        _, left = steps.queue(Q)
        assert left.messages_ready == 0
        queue = await steps.end(Q)
        await eventually(lambda: queue.messages_ready == 1)
        assert await got(other, Q) == [b"d"]

    played("embedded", tmp_path, monkeypatch)(test)  # the clock of the nodes stands still


@pytest.mark.parametrize("when", ["while", "after"])
@on_each_log
async def test_an_overdue_delivery_of_the_old_place_cancels_the_consumer(
    broker: Broker, steps: Steps, when: str
) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    arguments = {"x-queue-type": "quorum", "x-semantics": "rabbitmq-4.3"}
    await client.ask(method(1, "Queue.Declare", queue=Q, durable=True, arguments=arguments), "Queue.DeclareOk")
    client.send(publish(2, "", Q, b"m"))
    await client.ask(HELD, "Basic.ConsumeOk")
    await client.hear("Basic.Deliver")
    now = asyncio.get_running_loop().time()
    client.connection.check_timeouts(now)
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    if when == "while":
        await eventually(lambda: left.consumer_count() == 0)
        client.connection.check_timeouts(now + 10_000)
        await client.hear("Basic.Cancel")
        queue = await steps.end(Q)
    else:
        queue = await steps.end(Q)
        await eventually(lambda: queue.consumer_count() == 1)
        client.connection.check_timeouts(now + 10_000)
        await client.hear("Basic.Cancel")
    broker.turns.end()
    await eventually(lambda: left.messages_unacked == 0)
    await strays_follow(broker)
    await eventually(lambda: queue.messages_ready == 1)
    assert queue.consumer_count() == 0
    assert client.said("Channel.Close") == []
    assert await got(other, Q) == [b"m"]


@on_each_log
async def test_single_active_consumers_keep_their_order(broker: Broker, steps: Steps) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    arguments = {"x-single-active-consumer": True}
    await client.ask(method(1, "Queue.Declare", queue=Q, durable=True, arguments=arguments), "Queue.DeclareOk")
    for each in (client, other):
        await each.ask(HELD, "Basic.ConsumeOk")
    client.send(*(publish(2, "", Q, b"%d" % number) for number in range(3)))
    await client.hear("Basic.Deliver")
    await steps.change()
    await steps.begin(Q)
    await steps.end(Q)
    await client.hear("Basic.Deliver", 2)
    client.send(method(1, "Basic.Ack", delivery_tag=0, multiple=True))
    await client.hear("Basic.Deliver", 3)
    assert client.bodies() == [b"0", b"1", b"2"]
    assert other.bodies() == []
