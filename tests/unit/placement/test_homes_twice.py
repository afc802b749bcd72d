"""Two partitions have a queue of one name: the queue, and what it has left where it was. On an embedded log, and on a
node in memory."""

import asyncio
from typing import Any

import pytest

from rewindmq.engine.broker import limits
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.definitions.document import export_vhost
from rewindmq.engine.host.loop_share import Work
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.topology.topology import EVENT_EXCHANGE
from rewindmq.schemas.events import QueueDeleted
from rewindmq.schemas.placement_events import QueueMoveEnded
from rewindmq.schemas.values import BROKER, Actor
from tests.support.amqp_wire import method, publish
from tests.support.deadlines import eventually
from tests.support.moving_clients import OTHER, STILL_SECONDS, Client, Q, declared, got, on_each_log
from tests.support.repartition import Steps

OPERATOR = Actor("guest", 0)


async def moved_with_one_held(broker: Broker, steps: Steps, client: Client) -> tuple[Queue, Queue]:
    """Move a queue with two messages; a consumer holds the first one. Returns what is left of it, and the queue."""
    await declared(client, Q)
    await client.ask(method(1, "Queue.Bind", queue=Q, exchange="amq.fanout"), "Queue.BindOk")
    frames = method(1, "Basic.Qos", prefetch_count=1) + method(1, "Basic.Consume", queue=Q, consumer_tag="t")
    await client.ask(frames, "Basic.ConsumeOk")
    client.send(publish(2, "", Q, b"1"), publish(2, "", Q, b"2"))
    await client.hear("Basic.Deliver")
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    queue = await steps.end(Q)
    await client.hear("Basic.Deliver", 2)
    return left, queue


@on_each_log
async def test_a_queue_is_listed_once(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, OTHER)
    left, queue = await moved_with_one_held(broker, steps, client)
    assert (left.messages_unacked, queue.messages_unacked) == (1, 1)
    work = Work(broker.host.loop_share)
    assert [each for each in broker.queues.all("/") if each.name == Q] == [queue]
    assert [each for _, each in await broker.queues.by_name(work, {"/"}) if each.name == Q] == [queue]
    assert [each for _, each in await broker.queues.listed(work, {"/"}) if each.name == Q] == [queue]
    assert limits.count_queues(broker.homes, broker.partitions, "/") == 2
    document: dict[str, Any] = dict(await export_vhost(broker, work, "/"))
    assert sorted(str(each["name"]) for each in document["queues"]) == sorted([Q, OTHER])
    assert [each["source"] for each in document["bindings"]] == ["amq.fanout"]


@on_each_log
async def test_a_queue_is_listed_while_it_moves(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q)
    client.send(publish(1, "", Q, b"1"))
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    assert broker.queues.all("/") == [left]
    assert broker.queues.get("/", Q) is left
    queue = await steps.drain(Q)
    assert broker.queues.all("/") == [queue]
    assert broker.queues.get("/", Q) is queue


@on_each_log
async def test_the_end_of_what_is_left_is_no_end_of_the_queue(broker: Broker, steps: Steps) -> None:
    client, listener = await Client.opened(broker), await Client.opened(broker)
    await declared(listener, "events")
    frames = method(1, "Queue.Bind", queue="events", exchange=EVENT_EXCHANGE, routing_key="queue.#")
    await listener.ask(frames, "Queue.BindOk")
    left, queue = await moved_with_one_held(broker, steps, client)
    deleted = broker.counters["queues_deleted_total"]
    client.send(method(1, "Basic.Ack", delivery_tag=0, multiple=True))
    await eventually(lambda: left.messages_unacked == 0)
    (source, _) = next(broker.homes.strays("/", Q))
    await source.ask(BROKER, QueueDeleted("/", Q, False, False))
    broker.turns.end()
    assert left.gone
    assert not queue.gone
    client.send(publish(2, "amq.fanout", "", b"3"))
    await client.hear("Basic.Deliver", 3)
    await asyncio.sleep(STILL_SECONDS)
    assert client.said("Basic.Cancel") == []
    assert broker.counters["queues_deleted_total"] == deleted
    assert len(broker.topology.bindings_to("/", "queue", Q)) == 1
    listener.heard.clear()
    told: list[str] = []
    while not listener.said("Basic.GetEmpty"):
        listener.heard.clear()
        listener.send(method(1, "Basic.Get", queue="events", no_ack=True))
        await eventually(lambda: bool(listener.said("Basic.GetOk") or listener.said("Basic.GetEmpty")))
        told += [each.routing_key for each in listener.said("Basic.GetOk")]
    assert told == ["queue.created"]  # of Q, when it was declared


@pytest.mark.parametrize("way", ["delete", "purge", "vhost"])
@on_each_log
async def test_what_is_left_ends_with_the_queue(broker: Broker, steps: Steps, way: str) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    left, queue = await moved_with_one_held(broker, steps, client)
    client.send(publish(2, "", Q, b"3"))
    await eventually(lambda: queue.messages_ready == 1)
    if way == "purge":
        client.send(method(1, "Basic.Cancel", consumer_tag="t"), method(1, "Basic.Recover", requeue=True))
        await eventually(lambda: left.messages_ready == 1 and queue.messages_ready == 2)
        (purged,) = await other.ask(method(1, "Queue.Purge", queue=Q), "Queue.PurgeOk")
        assert purged.message_count == 3
        assert (left.messages_ready, queue.messages_ready) == (0, 0)
    elif way == "delete":
        (deleted,) = await other.ask(method(1, "Queue.Delete", queue=Q), "Queue.DeleteOk")
        assert deleted.message_count == 1
        assert left.gone
        assert queue.gone
        await client.hear("Basic.Cancel")
        client.send(method(1, "Basic.Ack", delivery_tag=0, multiple=True))
        await eventually(lambda: broker.topology.bindings_to("/", "queue", Q) == ())
        await declared(other, Q)
        assert await got(other, Q) == []
    else:
        await broker.vhosts.delete(OPERATOR, "/")
        assert left.gone
        assert queue.gone


@on_each_log
async def test_policies_are_those_of_both(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    left, queue = await moved_with_one_held(broker, steps, client)
    await broker.policies.set(OPERATOR, "/", "p", f"^{Q}$", {"max-length": 7}, 0, "queues")
    broker.turns.end()
    assert (left.settings.max_length, queue.settings.max_length) == (7, 7)


@on_each_log
async def test_a_queue_that_ends_on_its_way_cancels_its_consumers(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q)
    await client.ask(method(1, "Queue.Bind", queue=Q, exchange="amq.fanout"), "Queue.BindOk")
    await client.ask(method(1, "Basic.Consume", queue=Q, consumer_tag="t"), "Basic.ConsumeOk")
    await steps.change()
    source, left = steps.queue(Q)
    await steps.begin(Q)
    await eventually(lambda: left.consumer_count() == 0)
    await source.ask(BROKER, QueueDeleted("/", Q, False, False))
    broker.turns.end()
    await steps.log(QueueMoveEnded("/", Q, -1))
    await client.hear("Basic.Cancel")
    await eventually(lambda: broker.topology.bindings_to("/", "queue", Q) == ())
    await declared(client, Q)
    assert broker.homes.of("/", Q).index >= 2


@on_each_log
async def test_a_dead_letter_waits_for_its_queue(broker: Broker, steps: Steps) -> None:
    client = await Client.opened(broker)
    await declared(client, Q)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": Q}
    frames = method(1, "Queue.Declare", queue="dying", durable=True, arguments=arguments)
    await client.ask(frames, "Queue.DeclareOk")
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    client.send(publish(1, "", "dying", b"dead"), method(1, "Basic.Get", queue="dying"))
    await client.hear("Basic.GetOk")
    client.send(method(1, "Basic.Reject", delivery_tag=1))
    await asyncio.sleep(STILL_SECONDS)
    assert left.messages_ready == 0
    await steps.end(Q)
    queue = broker.queues.get("/", Q)
    assert queue is not None
    await eventually(lambda: queue.messages_ready == 1)
    assert await got(client, Q) == [b"dead"]
    assert left.messages_ready == 0
