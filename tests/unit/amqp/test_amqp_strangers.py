"""Clients that have not opened a vhost, over real sockets: only the next step of the handshake is taken from them."""

import asyncio
import logging

import pytest

from rewindmq.engine.amqp import server as amqp_server
from rewindmq.engine.amqp.handshake import MOST_EARLY_HEARTBEATS
from rewindmq.engine.amqp.server import AmqpProtocol, AmqpServer
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_sockets import client, on_server, run
from tests.support.amqp_wire import (
    HANDSHAKE,
    HEADER,
    connection_open,
    header_frame,
    method,
    publish,
    raw_frame,
    start_ok,
    tune_ok,
)

STATES = {
    "starting": [HEADER],
    "tuning": [HEADER, start_ok()],
    "opening": [HEADER, start_ok(), tune_ok()],
}
HEARTBEAT = raw_frame(8, 0, b"")
FRAMES = {
    "heartbeat": HEARTBEAT,
    "heartbeat of a channel": raw_frame(8, 1, b""),
    "header": header_frame(0, 1),
    "body": raw_frame(3, 0, b"x"),
    "body of a channel": raw_frame(3, 1, b""),
    "unknown type": raw_frame(9, 0, b""),
    "too short for a method": raw_frame(1, 0, b"\x00"),
    "channel.open": method(1, "Channel.Open"),
    "close-ok": method(0, "Connection.CloseOk"),
    "blocked": method(0, "Connection.Blocked", reason="x"),
    "open": connection_open(),
    "tune-ok": tune_ok(),
    "start-ok": start_ok(),
}
NEXT = {"starting": "start-ok", "tuning": "tune-ok", "opening": "open"}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", FRAMES)
def test_anything_but_the_next_step_ends_the_connection(
    state: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    if NEXT[state] == kind or (state, kind) == ("opening", "heartbeat"):
        return
    caplog.set_level(logging.WARNING)

    async def scenario(server: AmqpServer, broker: DoubleBroker) -> None:
        async with client(server, *STATES[state]) as socket:
            await socket.until({"starting": "Connection.Start"}.get(state, "Connection.Tune"))
            await socket.send(FRAMES[kind] + HEARTBEAT * 1_000)
            said = await socket.until("Connection.Close")
            assert said.reply_code in (501, 504, 505)
            assert await socket.reader.read() == b"", "no close-ok is awaited"
        while server.protocols:
            await asyncio.sleep(0)
        assert len(caplog.records) == 1

    run(scenario)


@on_server
async def test_a_client_may_close_in_any_state(server: AmqpServer, broker: DoubleBroker) -> None:
    for frames in STATES.values():
        async with client(server, *frames, method(0, "Connection.Close", reply_code=200)) as socket:
            assert (await socket.until("Connection.CloseOk")).channel == 0


@on_server
async def test_heartbeats_after_tune_ok_are_taken_if_they_are_few(server: AmqpServer, broker: DoubleBroker) -> None:
    """Java's client begins its timer there."""
    early = [*STATES["opening"], HEARTBEAT * MOST_EARLY_HEARTBEATS]
    async with client(server, *early, connection_open(), HEARTBEAT * 1_000, method(1, "Channel.Open")) as socket:
        await socket.until("Connection.OpenOk")
        await socket.until("Channel.OpenOk")
    async with client(server, *early, HEARTBEAT) as socket:
        assert (await socket.until("Connection.Close")).reply_code == 505
        assert await socket.reader.read() == b""


def test_a_socket_is_read_once_in_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: dict[int, int] = {}  # large ones, by turn
    turn = 0
    data_received = AmqpProtocol.data_received

    def count(protocol: AmqpProtocol, data: bytes) -> None:
        if len(data) >= amqp_server.LARGE_READ:
            reads[turn] = reads.get(turn, 0) + 1
        data_received(protocol, data)

    monkeypatch.setattr(AmqpProtocol, "data_received", count)

    async def scenario(server: AmqpServer, broker: DoubleBroker) -> None:
        nonlocal turn

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        async with client(
            server, HANDSHAKE, method(1, "Channel.Open"), method(1, "Queue.Declare", queue="q")
        ) as socket:
            await socket.until("Queue.DeclareOk")
            body = bytes(20_000_000)
            await socket.send(publish(1, "", "q", body), method(1, "Queue.Declare", queue="q"))
            await socket.until("Queue.DeclareOk")
            assert broker.events[-1].body == body
        counting.cancel()

    run(scenario)
    assert sum(reads.values()) > 10
    assert max(reads.values()) == 1
