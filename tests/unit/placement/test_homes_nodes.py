"""A queue moves while clients of another node use it. Nodes on a shared log in memory."""

import asyncio

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session
from rewindmq.schemas.events import NodeLost
from rewindmq.schemas.values import BROKER
from tests.support.amqp_wire import method, publish
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, on_nodes, settled
from tests.support.moving_clients import STILL_SECONDS, Client, Q, declared, got
from tests.support.repartition import PARTITIONS, Steps


async def started(nodes: Nodes, standbys: int | None = None) -> tuple[Steps, Broker]:
    """Two nodes whose queues are placed by 2 of 4 partitions: the steps at the one, and the other."""
    here = await nodes.start("a")
    there = await nodes.start("b", standbys)
    steps = Steps(here, there)
    await steps.add()
    await settled()
    return steps, there


@pytest.mark.parametrize("standbys", [None, 0], ids=["folds", "pauses"])
@on_nodes(PARTITIONS)
async def test_what_a_node_publishes_before_it_knows_comes_first(nodes: Nodes, standbys: int | None) -> None:
    steps, there = await started(nodes, standbys)
    client, reader = await Client.opened(there), await Client.opened(steps.broker)
    await declared(reader, Q)
    await client.ask(method(1, "Confirm.Select"), "Confirm.SelectOk")
    await client.ask(publish(1, "", Q, b"0", mandatory=True), "Basic.Ack")
    await steps.change()
    await settled()
    nodes.log("b").cut(True)
    client.heard.clear()
    client.send(publish(1, "", Q, b"1"), publish(1, "", Q, b"2"))
    begins = asyncio.ensure_future(steps.begin(Q))
    await asyncio.sleep(STILL_SECONDS)
    assert ("/", Q) in steps.placement.moving
    assert not begins.done()  # the other node does not know it yet
    client.send(publish(1, "", Q, b"3"))
    nodes.log("b").cut(False)
    await begins
    client.send(publish(1, "", Q, b"4", mandatory=True))
    _, left = steps.queue(Q)
    assert left.messages_ready == 4
    await steps.end(Q)
    await eventually(lambda: bool(client.said("Basic.Ack")) and client.said("Basic.Ack")[-1].delivery_tag == 5)
    assert client.said("Basic.Return") == []
    assert await got(reader, Q) == [b"0", b"1", b"2", b"3", b"4"]


@on_nodes(PARTITIONS)
async def test_a_consumer_that_was_attached_too_late_follows(nodes: Nodes) -> None:
    steps, there = await started(nodes)
    client, other = await Client.opened(there), await Client.opened(steps.broker)
    await declared(other, Q)
    await steps.change()
    await settled()
    nodes.log("b").cut(True)
    client.send(method(1, "Basic.Qos", prefetch_count=1), method(1, "Basic.Consume", queue=Q, consumer_tag="t"))
    begins = asyncio.ensure_future(steps.begin(Q))
    await asyncio.sleep(STILL_SECONDS)
    nodes.log("b").cut(False)
    await begins
    await client.hear("Basic.ConsumeOk")
    queue = await steps.end(Q)
    await eventually(lambda: queue.consumer_count() == 1)
    other.send(publish(1, "", Q, b"m"))
    await client.hear("Basic.Deliver")
    await client.ask(method(1, "Basic.Cancel", consumer_tag="t"), "Basic.CancelOk")
    await eventually(lambda: queue.consumer_count() == 0)
    for broker in (steps.broker, there):
        assert [partition.deliveries.quarantined for partition in broker.partitions] == [{}] * PARTITIONS


@pytest.mark.parametrize("when", ["while it leaves", "while it comes"])
@on_nodes(PARTITIONS)
async def test_a_cancel_meets_a_consumer_on_its_way(nodes: Nodes, when: str) -> None:
    steps, there = await started(nodes)
    client, other = await Client.opened(there), await Client.opened(steps.broker)
    await declared(other, Q)
    await client.ask(method(1, "Basic.Consume", queue=Q, consumer_tag="t"), "Basic.ConsumeOk")
    await steps.change()
    await settled()
    cancel = method(1, "Basic.Cancel", consumer_tag="t")
    if when == "while it leaves":
        begins = asyncio.ensure_future(steps.begin(Q))
        await eventually(lambda: ("/", Q) in there.topology.placement.moving)
        client.send(cancel)
        await begins
        queue = await steps.end(Q)
    else:
        await steps.begin(Q)
        queue = await steps.drain(Q)
        ends = asyncio.ensure_future(steps.end(Q))
        await eventually(lambda: ("/", Q) not in there.topology.placement.moving)
        client.send(cancel)
        await ends
    await client.hear("Basic.CancelOk")
    other.send(publish(1, "", Q, b"m"))
    await settled()
    assert (queue.consumer_count(), queue.messages_ready) == (0, 1)
    assert client.said("Basic.Cancel") == []
    for broker in (steps.broker, there):
        assert [partition.deliveries.quarantined for partition in broker.partitions] == [{}] * PARTITIONS


@on_nodes(PARTITIONS)
async def test_a_single_active_consumer_stays_the_active_one(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, there = await started(nodes)
    active, standby = await Client.opened(steps.broker), await Client.opened(there)
    arguments = {"x-single-active-consumer": True}
    await active.ask(method(1, "Queue.Declare", queue=Q, durable=True, arguments=arguments), "Queue.DeclareOk")
    for client in (active, standby):
        frames = method(1, "Basic.Qos", prefetch_count=1) + method(1, "Basic.Consume", queue=Q, consumer_tag="t")
        await client.ask(frames, "Basic.ConsumeOk")
    active.send(*(publish(2, "", Q, b"%d" % number) for number in range(3)))
    await active.hear("Basic.Deliver")
    await steps.change()
    await settled()
    nodes.log("b").cut(True)  # the other node tells late that its consumer leaves
    begins = asyncio.ensure_future(steps.begin(Q))
    await asyncio.sleep(STILL_SECONDS)
    nodes.log("b").cut(False)
    await begins
    moves = steps.broker.consumers.moves
    entered = moves.entered

    async def later(session: Session, name: str) -> Partition:
        await asyncio.sleep(STILL_SECONDS)
        return await entered(session, name)

    monkeypatch.setattr(moves, "entered", later)  # so the other node's consumer would be the first
    queue = await steps.end(Q)
    await active.hear("Basic.Deliver", 2)
    active.send(method(1, "Basic.Ack", delivery_tag=0, multiple=True))
    await active.hear("Basic.Deliver", 3)
    await eventually(lambda: queue.consumer_count() == 2)
    assert (active.bodies(), standby.bodies()) == ([b"0", b"1", b"2"], [])


@on_nodes(PARTITIONS)
async def test_a_lookahead_goes_along(nodes: Nodes) -> None:
    steps, there = await started(nodes)
    client, other = await Client.opened(there), await Client.opened(steps.broker)
    await declared(other, Q)
    frames = method(1, "Basic.Qos", prefetch_count=50) + method(1, "Basic.Consume", queue=Q, consumer_tag="t")
    await client.ask(frames, "Basic.ConsumeOk")
    await steps.change()
    _, left = steps.queue(Q)
    sent = acked = 0

    async def ack_once() -> None:
        nonlocal acked
        found = client.said("Basic.Deliver")
        if len(found) > acked:
            acked = len(found)
            client.send(method(1, "Basic.Ack", delivery_tag=found[-1].delivery_tag, multiple=True))
        await asyncio.sleep(0.001)

    async with asyncio.timeout(20):
        while not any(holder.lookahead for holder in left.holders.values()):
            if sent < acked + 100:
                other.send(b"".join(publish(1, "", Q, b"%d" % number) for number in range(sent, sent + 100)))
                sent += 100
            await ack_once()
    other.send(b"".join(publish(1, "", Q, b"%d" % number) for number in range(sent, sent + 200)))
    sent += 200
    await eventually(lambda: any(len(holder.held) > 50 for holder in left.holders.values()))
    await steps.begin(Q)
    queue = await steps.end(Q)
    async with asyncio.timeout(20):
        while acked < sent or left.messages_unacked or queue.messages_unacked:
            await ack_once()
    assert client.bodies() == [b"%d" % number for number in range(sent)]


@on_nodes(PARTITIONS)
async def test_a_node_that_is_lost_lets_its_clients_wait_no_longer(nodes: Nodes) -> None:
    steps, there = await started(nodes)
    client, other = await Client.opened(there), await Client.opened(there)
    await declared(client, Q)
    await steps.change()
    await steps.begin(Q)
    client.send(publish(1, "", Q, b"lost"))
    other.send(method(1, "Basic.Consume", queue=Q, consumer_tag="t"))
    await asyncio.sleep(STILL_SECONDS)
    lost = NodeLost("b", nodes.node("b").epoch, "lapsed")
    steps.broker.metadata.append(BROKER, lost)
    for partition in steps.broker.partitions:
        partition.append(BROKER, lost)
    steps.broker.turns.end()
    await client.hear("Connection.Close")
    await other.hear("Connection.Close")
    await settled()
    queue = await steps.end(Q)
    await settled()
    assert (queue.messages_ready, queue.consumer_count()) == (0, 0)


@on_nodes(PARTITIONS)
async def test_a_node_stops_while_its_clients_wait(nodes: Nodes) -> None:
    steps, there = await started(nodes)
    client, other = await Client.opened(there), await Client.opened(there)
    await declared(client, Q)
    await steps.change()
    await steps.begin(Q)
    client.send(publish(1, "", Q, b"lost"))
    other.send(method(1, "Queue.Purge", queue=Q))
    await asyncio.sleep(STILL_SECONDS)
    there.close()
    del nodes.brokers["b"]
    await settled()
    queue = await steps.end(Q)
    assert queue.messages_ready == 0
