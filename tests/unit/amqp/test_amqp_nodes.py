"""AMQP over two nodes that fold only what they read back, on a shared log in memory."""

import asyncio
import logging
from pathlib import Path

import httpx2
import pytest

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.http.app import make_app
from rewindmq.engine.partition.sessions import counts
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.schemas.events import NodeLost
from rewindmq.schemas.values import BROKER
from tests.support.amqp_clients import opened
from tests.support.amqp_wire import HANDSHAKE, HEADER, IdleSocket, Said, decoded, method, properties, publish
from tests.support.memory_nodes import Nodes, on_nodes, run, settled


def test_direct_replies_go_over_any_node_and_transactions_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def said(broker: Broker, connection: Connection, frames: bytes, *awaited: str) -> list[Said]:
        connection.receive(frames)
        broker.turns.end()
        found: list[Said] = []
        while not set(awaited) <= {each.name for each in found}:
            await asyncio.sleep(0.001)
            found += decoded(b"".join(connection.take_output()))
        return found

    async def test(nodes: Nodes) -> None:
        here, there = await nodes.start("a"), await nodes.start("b")
        client, server = (
            Connection(here, "client:1", True, IdleSocket()),
            Connection(there, "server:1", True, IdleSocket()),
        )
        await said(here, client, HANDSHAKE + method(1, "Channel.Open"), "Channel.OpenOk")
        await said(there, server, HANDSHAKE + method(1, "Channel.Open"), "Channel.OpenOk")
        asks = method(1, "Basic.Consume", queue="amq.rabbitmq.reply-to", no_ack=True)
        await said(here, client, asks + method(1, "Queue.Declare", queue="rpc"), "Basic.ConsumeOk", "Queue.DeclareOk")
        asked = publish(1, "", "rpc", b"ask", raw=properties(reply_to="amq.rabbitmq.reply-to"))
        await said(here, client, asked + method(1, "Queue.Declare", queue="rpc"), "Queue.DeclareOk")
        await settled()
        (got,) = await said(there, server, method(1, "Basic.Get", queue="rpc"), "Basic.GetOk")
        answer = publish(1, "", got.properties.reply_to, b"answer")
        answered = method(1, "Tx.Select") + answer + method(1, "Basic.Ack", delivery_tag=1)
        await said(there, server, answered, "Tx.SelectOk")
        await settled()
        assert decoded(b"".join(client.take_output())) == []
        nodes.log("b").cut(True)
        server.receive(method(1, "Tx.Commit"))
        there.turns.end()
        await settled()
        assert server.take_output() == []
        nodes.log("b").cut(False)
        assert [each.name for each in await said(there, server, b"", "Tx.CommitOk")] == ["Tx.CommitOk"]
        (reply,) = await said(here, client, b"", "Basic.Deliver")
        assert reply.body == b"answer"
        client.lost()
        here.turns.end()
        await settled()
        name = got.properties.reply_to
        assert (here.queues.get("/", name), there.queues.get("/", name)) == (None, None)
        server.lost()

    run(test, tmp_path, monkeypatch)


@on_nodes()
async def test_bindings_of_a_deleted_queue_are_gone_at_the_node_that_deleted_it(nodes: Nodes) -> None:
    """Also where another node owns the partition, and removes them later: here it has read nothing of the deletion."""
    owner, here = await nodes.start("a"), await nodes.start("b")
    client = await opened(here)
    names = [f"q{number}" for number in range(8)]
    said: list[Said] = []
    for name in names:
        frames = method(1, "Exchange.Declare", exchange=f"x{name}", exchange_type="fanout", auto_delete=True)
        frames += method(1, "Queue.Declare", queue=name) + method(1, "Queue.Bind", queue=name, exchange=f"x{name}")
        said += await client.said(frames)
    while [each.name for each in said].count("Queue.BindOk") < len(names):
        said += await client.said(b"")
    foreign = [name for name in names if not here.queues.partition_for("/", name).owned]
    assert foreign
    nodes.log("a").cut(True)
    said = await client.said(b"".join(method(1, "Queue.Delete", queue=name) for name in foreign))
    while [each.name for each in said].count("Queue.DeleteOk") < len(foreign):
        said += await client.said(b"")
    assert [name for name in foreign if ("/", f"x{name}") in here.topology.exchanges] == []
    nodes.log("a").cut(False)
    await settled()
    assert [name for name in foreign if ("/", f"x{name}") in owner.topology.exchanges] == []


@pytest.mark.parametrize("auto_delete", [False, True], ids=["deleted", "last consumer cancelled"])
@pytest.mark.parametrize("moves", ["nowhere", "to this node", "away"])
@on_nodes()
async def test_an_answer_that_a_queue_is_gone_comes_after_its_bindings_are_gone(
    nodes: Nodes, auto_delete: bool, moves: str
) -> None:
    """S-070. The partition's duties move when the end of the queue was read back, before the client is answered. The
    other node removes no bindings: it is cut off. Then the metadata log is slow."""
    await nodes.start("a")
    here = await nodes.start("b")
    client = await opened(here)
    home = here.queues.partition_for("/", "q")
    nodes.history.assign({home.name: ["b" if moves == "away" else "a"]})
    await settled()
    frames = method(1, "Exchange.Declare", exchange="x", exchange_type="fanout", auto_delete=True)
    frames += method(1, "Queue.Declare", queue="q", auto_delete=auto_delete)
    frames += method(1, "Queue.Bind", queue="q", exchange="x")
    if auto_delete:
        frames += method(1, "Basic.Consume", queue="q", consumer_tag="c")
    await client.said(frames)
    nodes.log("a").cut(True)

    def move() -> None:
        if here.queues.get("/", "q") is None and moves != "nowhere":
            nodes.node("b").duties_changed(frozenset({home.name} if moves == "to this node" else ()))

    log = nodes.log("b")
    log.after_arrival = move
    log.hold(["metadata-0"])
    ends = method(1, "Basic.Cancel", consumer_tag="c") if auto_delete else method(1, "Queue.Delete", queue="q")
    said = await client.said(ends)
    assert here.queues.get("/", "q") is None
    assert said == [], "told before the bindings were gone"
    log.hold(())
    said = await client.said(b"")
    assert [each.name for each in said] == ["Basic.CancelOk" if auto_delete else "Queue.DeleteOk"]
    assert ("/", "x") not in here.topology.exchanges
    nodes.log("a").cut(False)
    client.connection.lost()


# Bound to amq.fanout, the last in a partition of its own.
QUEUES = ("q", "r", "u")


@pytest.mark.parametrize(
    ("key", "deleted", "mandatory", "returned"),
    [
        ("q", ("q",), True, True),
        ("q", ("q",), False, False),
        ("q", ("r",), True, False),
        ("", QUEUES, True, True),
        ("", ("q", "r"), True, False),  # in one of the partitions it was taken, whichever is read back first
        ("", ("u",), True, False),
        ("", ("q", "u"), True, False),
    ],
)
@on_nodes()
async def test_a_mandatory_publish_whose_queues_went_meanwhile_is_returned(
    nodes: Nodes, key: str, deleted: tuple[str, ...], mandatory: bool, returned: bool
) -> None:
    """Another node's deletion stands before it in the log. The return comes before the confirm, or tx.commit-ok."""
    here, there = await nodes.start("a"), await nodes.start("b")
    client, other = await opened(here), await opened(there)
    for queue in QUEUES:
        await other.said(method(1, "Queue.Declare", queue=queue))
        await other.said(method(1, "Queue.Bind", queue=queue, exchange="amq.fanout"))
    homes = [here.queues.partition_for("/", queue).index for queue in QUEUES]
    assert homes[0] == homes[1] != homes[2]
    await client.said(method(1, "Confirm.Select") + method(2, "Tx.Select"))
    nodes.log("a").cut(True)
    exchange = "" if key else "amq.fanout"
    raw = properties(message_id="7")
    sent = [publish(channel, exchange, key, b"lost?", mandatory=mandatory, raw=raw) for channel in (1, 2, 3)]
    assert await client.said(b"".join(sent) + method(2, "Tx.Commit")) == [], "told before it was read back"
    for queue in deleted:
        await other.said(method(1, "Queue.Delete", queue=queue))
    nodes.log("a").cut(False)
    said = await client.said(b"")
    for channel, confirm in ((1, ["Basic.Ack"]), (2, ["Tx.CommitOk"]), (3, [])):
        told = [each.name for each in said if each.channel == channel]
        assert told == ["Basic.Return"] * returned + confirm
    for back in said:
        if back.name == "Basic.Return":
            assert (back.reply_code, back.reply_text) == (312, "NO_ROUTE")
            assert (back.exchange, back.routing_key) == (exchange, key)
            assert (back.body, back.properties.message_id) == (b"lost?", "7")
    assert (
        counts(here.counters, here.sessions.by_id.values())["global_messages_unroutable_returned_total"] == 3 * returned
    )
    client.connection.lost()
    other.connection.lost()


@on_nodes()
async def test_a_channel_that_closed_meanwhile_is_not_sent_what_comes_back(nodes: Nodes) -> None:
    here, there = await nodes.start("a"), await nodes.start("b")
    client, other = await opened(here), await opened(there)
    await other.said(method(1, "Queue.Declare", queue="q"))
    nodes.log("a").cut(True)
    closed = publish(1, "", "q", b"1", mandatory=True) + method(1, "Channel.Close", reply_code=200)
    assert [each.name for each in await client.said(closed)] == ["Channel.CloseOk"]
    await other.said(method(1, "Queue.Delete", queue="q"))
    nodes.log("a").cut(False)
    assert await client.said(b"") == []
    assert here.queues.partition_for("/", "q").deliveries.quarantined == {"Published": 1}
    client.connection.lost()
    other.connection.lost()


@on_nodes()
async def test_of_what_a_lost_node_sent_unknowingly_only_publishes_count(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Each ack is an event, so a node that was cut off may leave dozens. The messages come again, flagged. A
    restart quarantines nothing: it says how many there were."""
    here, there = await nodes.start("a"), await nodes.start("b")
    client, other = await opened(here), await opened(there)
    frames = method(1, "Queue.Declare", queue="q", durable=True)
    frames += b"".join(publish(1, "", "q", b"%d" % number) for number in range(4))
    await client.said(frames)
    await client.said(4 * method(1, "Basic.Get", queue="q"))
    nodes.log("a").cut(True)
    late = method(1, "Basic.Ack", delivery_tag=1) + method(1, "Basic.Ack", delivery_tag=2)
    late += method(1, "Basic.Nack", delivery_tag=3, requeue=False) + publish(1, "", "q", b"late")
    await client.said(late)
    lost = NodeLost("a", nodes.node("a").epoch, "lapsed")
    there.metadata.append(BROKER, lost)
    for partition in there.partitions:
        partition.append(BROKER, lost)
    await settled()
    nodes.log("a").cut(False)
    await settled()
    home = there.queues.partition_for("/", "q")
    skipped = home.projector.quarantine.newest()
    assert here.queues.partition_for("/", "q").projector.quarantine.newest() == skipped
    assert {each.event_type for each in skipped} >= {"Acked", "Nacked"}
    assert all(each.reason.startswith(NODE_LOST) and each.event_type != "Published" for each in skipped)
    got = [(each.body, each.redelivered) for each in await other.said(5 * method(1, "Basic.Get", queue="q"))]
    assert got == [(b"0", True), (b"1", True), (b"2", True), (b"3", True), (b"late", False)]
    client.connection.lost()
    other.connection.lost()
    there.close()
    with caplog.at_level(logging.INFO):
        await nodes.start("b")
    (said,) = [each for each in caplog.messages if each.startswith(home.name) and "folded on top" in each]
    assert said.endswith(f"{len(skipped)} quarantined since the log began")


@on_nodes()
async def test_transactions_on_a_shared_log_say_that_a_commit_is_not_atomic(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await nodes.start("a")
    greeted = Connection(broker, "client:2", True, IdleSocket())
    greeted.receive(HEADER)
    (start,) = decoded(b"".join(greeted.take_output()))
    assert start.server_properties["rewindmq_atomic_commits"] is False
    greeted.lost()
    client = await opened(broker)
    with caplog.at_level(logging.WARNING, "rewindmq.amqp"):
        await client.said(2 * method(2, "Tx.Select"))
    (told,) = caplog.messages
    assert told.startswith("client:1: channel 2 is transactional: when this node dies during a commit")
    transport = httpx2.ASGITransport(app=make_app(broker, WorkerPool()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://a/api", auth=("guest", "guest")) as api:
        shown = (await api.get("/channels")).json()
    assert [(each["transactional"], each["atomic_commits"]) for each in shown] == [
        (False, False),
        (True, False),
        (False, False),
    ]
    client.connection.lost()
