"""Sockets and clock: the server around a connection, over real sockets and a broker double."""

import asyncio
import contextlib

import pytest

import rewindmq.engine.amqp.server
from rewindmq.engine.amqp.connection_state import ConnectionState
from rewindmq.engine.amqp.frames import HEARTBEAT_FRAME
from rewindmq.engine.amqp.server import AmqpServer
from rewindmq.engine.host.memory import MemoryKind
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_sockets import client, on_server, run
from tests.support.amqp_wire import HEADER, header_frame, method, publish, raw_frame
from tests.support.deadlines import eventually


@on_server
async def test_publish_and_consume_over_a_socket(server: AmqpServer, broker: DoubleBroker) -> None:
    async with client(server) as socket:
        await socket.send(method(1, "Queue.Declare", queue="q"), method(1, "Confirm.Select"))
        await socket.send(publish(1, "", "q", b"x") * 1000, method(1, "Basic.Consume", queue="q", no_ack=True))
        await socket.until("Basic.ConsumeOk")
        tags: dict[str, list[int]] = {"Basic.Deliver": [], "Basic.Ack": []}
        while tags["Basic.Ack"][-1:] != [1000] or len(tags["Basic.Deliver"]) < 1000:
            said = await socket.next()
            tags[said.name].append(said.delivery_tag)
        assert tags["Basic.Deliver"] == list(range(1, 1001))
        assert [c.state for c in server.connections()] == [ConnectionState.RUNNING]
    await eventually(lambda: server.connections() == [])
    assert broker.calls[-1][0] == "close_session"


@on_server
async def test_another_protocol_is_answered_and_closed(server: AmqpServer, broker: DoubleBroker) -> None:
    async with client(server, b"HTTP/1.1") as socket:
        assert await socket.reader.read() == HEADER


@on_server
async def test_a_client_that_closed_the_connection_closes_the_socket(server: AmqpServer, broker: DoubleBroker) -> None:
    """One that meets the end of the stream before it has closed its own end reports a fault (Go's does)."""
    async with client(server) as socket:
        await socket.send(method(0, "Connection.Close", reply_code=200), publish(1, "", "q", b"x"))
        assert (await socket.next()).name == "Connection.CloseOk"
        assert broker.calls[-1][0] == "close_session"
        await socket.send(b"anything" * 100_000, method(1, "Queue.Declare", queue="q"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.reader.read(1), 0.3)
        assert len(server.connections()) == 1
    await eventually(lambda: server.connections() == [])
    assert broker.events == []
    assert not [call for call in broker.calls if call[0] == "declare_queue"]


def test_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewindmq.engine.amqp.server, "LEAVING_SECONDS", 0.05)

    async def scenario(server: AmqpServer, broker: DoubleBroker) -> None:
        async with client(server) as socket:
            await socket.send(method(0, "Connection.Close", reply_code=200))
            assert (await socket.next()).name == "Connection.CloseOk"
            with contextlib.suppress(ConnectionError):
                assert await socket.reader.read() == b""
            await eventually(lambda: server.connections() == [])

    run(scenario)


@on_server
async def test_a_stop_waits_for_no_client_that_has_closed(server: AmqpServer, broker: DoubleBroker) -> None:
    async with client(server) as socket:
        await socket.send(method(0, "Connection.Close", reply_code=200))
        assert (await socket.next()).name == "Connection.CloseOk"
        await server.stop()
        assert await socket.reader.read() == b""


@on_server
async def test_a_client_that_was_closed_is_closed_when_it_has_said_so(server: AmqpServer, broker: DoubleBroker) -> None:
    async with client(server) as socket:
        await socket.send(method(0, "Tx.Select"))
        assert (await socket.next()).name == "Connection.Close"
        await socket.send(method(0, "Connection.CloseOk"))
        assert await socket.reader.read() == b""


def test_handshake_must_be_done_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewindmq.engine.amqp.server, "HANDSHAKE_SECONDS", 0.05)

    async def scenario(server: AmqpServer, broker: DoubleBroker) -> None:
        async with client(server, HEADER) as slow, client(server) as fast:
            await slow.until("Connection.Start")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await slow.next()
            await fast.send(method(1, "Basic.Qos", prefetch_count=1))
            await fast.until("Basic.QosOk")

    run(scenario)


def test_who_does_not_answer_a_close_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewindmq.engine.amqp.server, "CLOSING_SECONDS", 0.05)

    async def scenario(server: AmqpServer, broker: DoubleBroker) -> None:
        async with client(server) as socket:
            await socket.send(raw_frame(3, 1, b"x", end=b"\x00"))
            assert (await socket.next()).reply_code == 501
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await socket.next()

    run(scenario)


def test_who_closes_but_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewindmq.engine.amqp.server, "LEAVING_SECONDS", 0.1)

    async def scenario(server: AmqpServer, broker: DoubleBroker) -> None:
        async with client(server, limit=1024) as deaf:
            deaf.transport.pause_reading()
            await deaf.send(method(1, "Queue.Declare", queue="q"), publish(1, "", "q", b"x" * 15_000_000))
            await deaf.send(method(1, "Basic.Get", queue="q"), method(0, "Connection.Close"))
            await eventually(lambda: bool(broker.calls) and broker.calls[-1][0] == "close_session")
            await eventually(lambda: server.connections() == [])

    run(scenario)


@on_server
async def test_a_heartbeat_is_sent_at_every_look_while_nothing_else_is(
    server: AmqpServer, broker: DoubleBroker
) -> None:
    """Our own heartbeat does not count as something written, or every second one would be left out."""
    async with client(server) as idle:
        (protocol,) = server.protocols
        protocol.wrote = False
        for _ in range(2):
            protocol.check_heartbeat()
            assert await idle.reader.readexactly(8) == HEARTBEAT_FRAME
        protocol.wrote = True
        protocol.check_heartbeat()
        protocol.check_heartbeat()
        assert await idle.reader.readexactly(8) == HEARTBEAT_FRAME


@on_server
async def test_stop_tells_everybody(server: AmqpServer, broker: DoubleBroker) -> None:
    async with client(server) as one, client(server) as two:
        stopping = asyncio.create_task(server.stop())
        for socket in (one, two):
            said = await socket.until("Connection.Close")
            assert said.reply_code == 320
            await socket.send(method(0, "Connection.CloseOk"))
            assert await socket.reader.read() == b""
        await stopping
        assert server.connections() == []


@on_server
async def test_a_client_that_does_not_read_bounds_what_is_in_flight(server: AmqpServer, broker: DoubleBroker) -> None:
    """No credit while its socket is full; all of it once it reads."""
    body = b"x" * 5_000
    number = 12_000
    async with client(server) as publisher, client(server, limit=1024) as deaf:
        await publisher.send(method(1, "Queue.Declare", queue="q"))
        await publisher.until("Queue.DeclareOk")
        await deaf.send(method(1, "Basic.Consume", queue="q", no_ack=True))
        await deaf.until("Basic.ConsumeOk")
        deaf.transport.pause_reading()
        await publisher.send(publish(1, "", "q", body) * number)
        await eventually(lambda: sum(1 for event in broker.events if hasattr(event, "body")) == number)
        await asyncio.sleep(0.2)
        assert len(broker.queues["q"].ready) > 4_000  # what both sockets and one window hold is on its way
        deaf.transport.resume_reading()
        for _ in range(number):
            await deaf.until("Basic.Deliver")
        assert broker.queues["q"].ready == []


def test_publishers_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above UNDURABLE_HIGH bytes that are not durable, who sends is not read from until a group commit lands."""
    monkeypatch.setattr(rewindmq.engine.amqp.server, "UNDURABLE_STEP", 50_000)
    monkeypatch.setattr(rewindmq.engine.amqp.server, "UNDURABLE_HIGH", 200_000)
    broker = DoubleBroker(prompt=False)

    async def scenario(server: AmqpServer, broker: DoubleBroker) -> None:
        async with client(server) as publisher, client(server) as other:
            await publisher.send(method(1, "Queue.Declare", queue="q"))
            await eventually(lambda: "q" in broker.queues)
            broker.land()
            number = 50_000
            sending = asyncio.create_task(publisher.send(publish(1, "", "q", b"x" * 1_000) * number))
            await eventually(lambda: bool(server.held))
            await asyncio.sleep(0.1)
            taken = len(broker.queues["q"].ready)
            assert taken < 2_000
            await asyncio.sleep(0.05)
            assert len(broker.queues["q"].ready) == taken
            await other.send(method(1, "Basic.Qos", prefetch_count=1))
            await other.until("Basic.QosOk")
            while len(broker.queues["q"].ready) < number:
                broker.land()
                await asyncio.sleep(0)
            await sending
            while server.held:  # the last bytes may have been too many once more; the test's time limit ends this
                broker.land()
                await asyncio.sleep(0)

    run(scenario, broker)


def test_a_client_that_sends_little_does_not_wait_for_the_busy_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewindmq.engine.amqp.server, "UNDURABLE_STEP", 50_000)
    monkeypatch.setattr(rewindmq.engine.amqp.server, "UNDURABLE_HIGH", 200_000)
    broker = DoubleBroker(prompt=False)

    async def scenario(server: AmqpServer, broker: DoubleBroker) -> None:
        async with client(server) as publisher, client(server) as other:
            await publisher.send(method(1, "Queue.Declare", queue="q"))
            await eventually(lambda: "q" in broker.queues)
            broker.land()
            sending = asyncio.create_task(publisher.send(publish(1, "", "q", b"x" * 1_000) * 10_000))
            await eventually(lambda: bool(server.held))
            for _ in range(10):
                await other.send(method(1, "Basic.Qos", prefetch_count=1))
                await other.until("Basic.QosOk")
            assert len(server.held) == 1
            while not sending.done() or server.held:
                broker.land()
                await asyncio.sleep(0)

    run(scenario, broker)


@on_server
async def test_blocked_publishers_are_not_read(
    server: AmqpServer, broker: DoubleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(server) as publisher:
        await publisher.send(method(1, "Queue.Declare", queue="q"), publish(1, "", "q", b"1"))
        await eventually(lambda: "q" in broker.queues and len(broker.queues["q"].ready) == 1)
        broker.turns.blocked = "low on disk"
        for changed in broker.turns.on_blocked:
            changed()
        await publisher.send(publish(1, "", "q", b"2"))
        assert (await publisher.until("Connection.Blocked")).reason == "low on disk"
        await publisher.send(publish(1, "", "q", b"3"))
        await asyncio.sleep(0.1)
        assert len(broker.queues["q"].ready) == 1
        broker.turns.blocked = None
        for changed in broker.turns.on_blocked:
            changed()
        await publisher.until("Connection.Unblocked")
        await eventually(lambda: len(broker.queues["q"].ready) == 3)


@on_server
async def test_who_holds_most_memory_is_closed_first(server: AmqpServer, broker: DoubleBroker) -> None:
    """One that does not read what it gets is cut off; one whose message has come in part is told why."""
    held = broker.host.memory.by_kind
    async with client(server) as deaf, client(server) as partial, client(server) as idle:
        await deaf.send(method(1, "Queue.Declare", queue="q"), method(1, "Basic.Consume", queue="q", no_ack=True))
        await eventually(lambda: "q" in broker.queues)
        await idle.send(publish(1, "", "q", b"x" * 4_000_000, piece=100_000) * 5)
        await eventually(lambda: held[MemoryKind.OUTPUT] > 8_000_000)
        await idle.send(method(1, "Queue.Declare", queue="q"))
        await idle.until("Queue.DeclareOk")  # all that it sent has come in
        await partial.send(method(1, "Basic.Publish", routing_key="q") + header_frame(1, 9_000_000))
        await partial.send(raw_frame(3, 1, b"x" * 100_000) * 60)
        await eventually(lambda: held[MemoryKind.BODY] == 6_000_000)
        server.relieve()
        await eventually(lambda: held[MemoryKind.OUTPUT] == 0 and len(server.protocols) == 2)
        assert held[MemoryKind.BODY] == 6_000_000
        server.relieve()
        closed = await partial.until("Connection.Close")
        assert (closed.reply_code, held[MemoryKind.BODY]) == (506, 0)
        server.relieve()  # nobody holds much
        await idle.send(method(1, "Queue.Declare", queue="r"))
        await idle.until("Queue.DeclareOk")


def test_only_loopback_is_loopback() -> None:
    assert all(
        rewindmq.engine.amqp.server.is_loopback(address) for address in ("127.0.0.1", "127.3.2.1", "::1", "::1%lo")
    )
    assert not any(
        rewindmq.engine.amqp.server.is_loopback(address) for address in ("10.0.0.1", "fe80::1%eth0", "unknown")
    )
