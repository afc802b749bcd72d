"""AMQP over two nodes that fold only what they read back, on a shared log in memory."""

import asyncio
from pathlib import Path

import pytest

from engine.amqp.connection import Connection
from engine.broker import Broker
from tests.engine.amqp_wire import HANDSHAKE, Said, decoded, method, properties, publish
from tests.engine.test_read_back import Nodes, run, settled


def test_direct_replies_go_over_any_node_and_transactions_end_when_they_were_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def said(broker: Broker, connection: Connection, frames: bytes, *awaited: str) -> list[Said]:
        connection.receive(frames)
        broker.end_of_turn()
        found: list[Said] = []
        while not set(awaited) <= {each.name for each in found}:
            await asyncio.sleep(0.001)
            found += decoded(b"".join(connection.take_output()))
        return found

    async def test(nodes: Nodes) -> None:
        here, there = await nodes.start("a"), await nodes.start("b")
        client, server = Connection(here, "client:1", True), Connection(there, "server:1", True)
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
        there.end_of_turn()
        await settled()
        assert server.take_output() == []
        nodes.log("b").cut(False)
        assert [each.name for each in await said(there, server, b"", "Tx.CommitOk")] == ["Tx.CommitOk"]
        (reply,) = await said(here, client, b"", "Basic.Deliver")
        assert reply.body == b"answer"
        client.lost()
        here.end_of_turn()
        await settled()
        name = got.properties.reply_to
        assert (here.queue("/", name), there.queue("/", name)) == (None, None)
        server.lost()

    run(test, tmp_path, monkeypatch)
