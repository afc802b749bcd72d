"""Names that wait while their queue moves to another partition, and consumers that follow it. On an embedded log, and
on a node in memory."""

import asyncio

import pytest

from rewindmq.engine.broker.broker import Broker
from tests.support.amqp_wire import method, properties, publish
from tests.support.deadlines import eventually
from tests.support.moving_clients import NEW, OTHER, STILL_SECONDS, Client, Q, declared, got, on_each_log
from tests.support.repartition import Steps


@on_each_log
async def test_publishes_wait_for_a_queue_that_moves_and_keep_their_order(broker: Broker, steps: Steps) -> None:
    client, watcher = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q, OTHER)
    await client.ask(method(1, "Confirm.Select"), "Confirm.SelectOk")
    await client.ask(publish(1, "", Q, b"0"), "Basic.Ack")
    await steps.change()
    await client.ask(publish(1, "", Q, b"1"), "Basic.Ack")
    await steps.begin(Q)
    client.heard.clear()
    client.send(publish(1, "", Q, b"2"), publish(1, "", OTHER, b"other"), publish(1, "", Q, b"3", mandatory=True))
    await client.hears_nothing("Basic.Ack")
    await declared(watcher, OTHER)
    assert await got(watcher, OTHER) == []  # it is behind a publish that waits
    source, _ = steps.queue(Q)
    await steps.end(Q)
    acks = await client.hear("Basic.Ack")
    await eventually(lambda: client.said("Basic.Ack")[-1].delivery_tag == 5)
    assert acks
    assert client.said("Basic.Return") == []
    assert await got(watcher, Q) == [b"0", b"1", b"2", b"3"]
    assert await got(watcher, OTHER) == [b"other"]
    home = broker.homes.of("/", Q)
    assert home is not source
    assert [queue.name for queue in broker.queues.all("/")] == sorted((Q, OTHER))


@on_each_log
async def test_copies_and_routes_by_content_wait_too(broker: Broker, steps: Steps) -> None:
    client, watcher = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q, OTHER)
    frames = method(1, "Queue.Bind", queue=Q, exchange="amq.headers", arguments={"x-match": "all", "a": "b"})
    await client.ask(frames, "Queue.BindOk")
    await client.ask(method(1, "Queue.Bind", queue=Q, exchange="amq.fanout"), "Queue.BindOk")
    await steps.change()
    await steps.begin(Q)
    client.send(publish(1, "", OTHER, b"copied", raw=properties(headers={"CC": [Q]})))
    client.send(publish(1, "amq.headers", "", b"by content", raw=properties(headers={"a": "b"})))
    client.send(publish(1, "amq.fanout", "", b"bound", mandatory=True))
    await asyncio.sleep(STILL_SECONDS)
    assert await got(watcher, OTHER) == []
    await steps.end(Q)
    await declared(client, OTHER)  # behind the publishes
    assert await got(watcher, Q) == [b"copied", b"by content", b"bound"]
    assert await got(watcher, OTHER) == [b"copied"]
    assert client.said("Basic.Return") == []
    (bound,) = (each for each in broker.topology.bindings_to("/", "queue", Q) if each.source == "amq.fanout")
    found = broker.queues.get("/", Q)
    assert found is not None
    assert bound.queue_id == found.queue_id
    assert broker.router.is_live(bound)


@on_each_log
async def test_a_name_without_a_queue_waits_while_names_are_held(broker: Broker, steps: Steps) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    await steps.hold()
    await declared(client, Q)  # there is a queue of this name
    client.heard.clear()
    client.send(method(1, "Queue.Declare", queue=NEW, durable=True))
    other.send(publish(1, "", NEW, b"m", mandatory=True))
    await client.hears_nothing("Queue.DeclareOk")
    assert other.said("Basic.Return") == []
    await steps.place()
    await client.hear("Queue.DeclareOk")
    await eventually(lambda: bool(other.said("Basic.Return")) or broker.queues.get("/", NEW) is not None)
    home = broker.homes.of("/", NEW)
    assert home.index >= 2
    assert home.machine.queue("/", NEW) is not None
    assert NEW not in {name for _, name in broker.partitions[home.index - 2].machine.by_name}


@pytest.mark.parametrize(
    ("frames", "answer"),
    [
        (method(1, "Queue.Declare", queue=Q, passive=True), "Queue.DeclareOk"),
        (method(1, "Queue.Declare", queue=Q, durable=True), "Queue.DeclareOk"),
        (method(1, "Basic.Consume", queue=Q, consumer_tag="t"), "Basic.ConsumeOk"),
        (method(1, "Basic.Get", queue=Q), "Basic.GetOk"),
        (method(1, "Queue.Purge", queue=Q), "Queue.PurgeOk"),
        (method(1, "Queue.Delete", queue=Q), "Queue.DeleteOk"),
        (method(1, "Queue.Bind", queue=Q, exchange="amq.fanout"), "Queue.BindOk"),
        (method(1, "Queue.Unbind", queue=Q, exchange="amq.direct", routing_key="k"), "Queue.UnbindOk"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@on_each_log
async def test_what_names_the_queue_waits(broker: Broker, steps: Steps, frames: bytes, answer: str) -> None:
    client = await Client.opened(broker)
    await declared(client, Q)
    await client.ask(method(1, "Queue.Bind", queue=Q, exchange="amq.direct", routing_key="k"), "Queue.BindOk")
    await client.ask(publish(1, "", Q, b"m") + method(1, "Basic.Qos", prefetch_count=1), "Basic.QosOk")
    await steps.change()
    await steps.begin(Q)
    client.heard.clear()
    client.send(frames)
    await client.hears_nothing(answer)
    await steps.end(Q)
    await client.hear(answer)
    if answer == "Queue.DeleteOk":
        assert client.said(answer)[0].message_count == 1
        assert broker.queues.all("/") == []
    if answer == "Queue.UnbindOk":
        assert broker.topology.bindings_to("/", "queue", Q) == ()


@on_each_log
async def test_a_commit_waits_and_its_messages_come_where_the_queue_is_then(broker: Broker, steps: Steps) -> None:
    client, watcher = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q, OTHER)
    await client.ask(method(1, "Tx.Select"), "Tx.SelectOk")
    await steps.change()
    frames = publish(1, "", Q, b"1") + publish(1, "", OTHER, b"2") + publish(1, "", Q, b"3")
    await client.ask(frames + method(1, "Basic.Qos", prefetch_count=1), "Basic.QosOk")
    await steps.begin(Q)
    client.heard.clear()
    client.send(method(1, "Tx.Commit"))
    await client.hears_nothing("Tx.CommitOk")
    _, queue = steps.queue(Q)
    await steps.end(Q)
    await client.hear("Tx.CommitOk")
    assert (queue.messages_ready, await got(watcher, Q), await got(watcher, OTHER)) == (0, [b"1", b"3"], [b"2"])


@on_each_log
async def test_a_consumer_follows_its_queue_and_settles_where_it_was(broker: Broker, steps: Steps) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    frames = method(1, "Basic.Qos", prefetch_count=2)
    frames += method(1, "Basic.Consume", queue=Q, consumer_tag="t", exclusive=True, arguments={"x-priority": 3})
    await client.ask(frames, "Basic.ConsumeOk")
    other.send(b"".join(publish(1, "", Q, b"%d" % number) for number in range(5)))
    await client.hear("Basic.Deliver", 2)
    await steps.change()
    source, left = steps.queue(Q)
    await steps.begin(Q)
    client.send(method(1, "Basic.Ack", delivery_tag=1))
    await client.hears_nothing("Basic.Cancel")
    assert client.bodies() == [b"0", b"1"]
    queue = await steps.end(Q)
    await client.hear("Basic.Deliver", 4)
    assert client.bodies() == [b"0", b"1", b"2", b"3"]
    (holder,) = queue.holders.values()
    expected = ("t", True, 3, 2, True)
    assert (holder.tag, holder.exclusive, holder.priority, holder.prefetch, holder.attached) == expected
    assert [holder.attached for holder in left.holders.values()] == [False]
    assert source.machine.queue("/", Q) is left
    assert left.messages_unacked == 1
    assert [each.messages_ready for each in broker.queues.all("/")] == [1]
    client.send(method(1, "Basic.Ack", delivery_tag=2), method(1, "Basic.Ack", delivery_tag=3))
    await client.hear("Basic.Deliver", 5)
    await eventually(lambda: left.messages_unacked == 0)
    other.send(publish(1, "", Q, b"5"), publish(1, "", Q, b"6"))
    client.send(method(1, "Basic.Ack", delivery_tag=0, multiple=True))
    await client.hear("Basic.Deliver", 7)
    await client.ask(method(1, "Basic.Cancel", consumer_tag="t"), "Basic.CancelOk")
    assert queue.consumer_count() == 0
    assert client.said("Basic.Cancel") == []


@on_each_log
async def test_a_consumer_without_acks_follows(broker: Broker, steps: Steps) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    await client.ask(method(1, "Basic.Consume", queue=Q, consumer_tag="t", no_ack=True), "Basic.ConsumeOk")
    other.send(b"".join(publish(1, "", Q, b"%d" % number) for number in range(40)))
    await client.hear("Basic.Deliver", 40)
    await steps.change()
    await steps.begin(Q)
    other.send(b"".join(publish(1, "", Q, b"%d" % number) for number in range(40, 80)))
    await steps.end(Q)
    await client.hear("Basic.Deliver", 80)
    assert client.bodies() == [b"%d" % number for number in range(80)]


@pytest.mark.parametrize("way", ["cancel", "channel", "connection"])
@on_each_log
async def test_a_client_leaves_while_its_queue_moves(broker: Broker, steps: Steps, way: str) -> None:
    client, other = await Client.opened(broker), await Client.opened(broker)
    await declared(client, Q)
    frames = method(1, "Basic.Qos", prefetch_count=1) + method(1, "Basic.Consume", queue=Q, consumer_tag="t")
    await client.ask(frames, "Basic.ConsumeOk")
    other.send(publish(1, "", Q, b"1"), publish(1, "", Q, b"2"))
    await client.hear("Basic.Deliver")
    await steps.change()
    _, left = steps.queue(Q)
    await steps.begin(Q)
    if way == "cancel":
        await client.ask(method(1, "Basic.Cancel", consumer_tag="t"), "Basic.CancelOk")
        await client.ask(method(1, "Basic.Recover", requeue=True), "Basic.RecoverOk")
    elif way == "channel":
        await client.ask(method(1, "Channel.Close", reply_code=200, reply_text=""), "Channel.CloseOk")
    else:
        client.connection.lost()
        broker.turns.end()
    await eventually(lambda: left.messages_unacked == 0)
    queue = await steps.end(Q)
    await asyncio.sleep(STILL_SECONDS)
    assert (queue.consumer_count(), queue.messages_ready, queue.messages_unacked) == (0, 2, 0)
    assert await got(other, Q) in ([b"1", b"2"], [b"2", b"1"])


@on_each_log
async def test_a_connection_that_waits_is_closed_and_does_nothing_later(broker: Broker, steps: Steps) -> None:
    clients = [await Client.opened(broker) for _ in range(3)]
    await declared(clients[0], Q)
    await steps.change()
    await steps.begin(Q)
    clients[0].send(publish(1, "", Q, b"m"))
    clients[1].send(method(1, "Basic.Consume", queue=Q))
    clients[2].send(method(1, "Queue.Purge", queue=Q))
    await asyncio.sleep(STILL_SECONDS)
    for client in clients:
        client.connection.lost()
    broker.turns.end()
    queue = await steps.end(Q)
    await asyncio.sleep(STILL_SECONDS)
    assert (queue.messages_ready, queue.consumer_count()) == (0, 0)
