"""The alarms of memory and disk on a broker without sockets, and what connections hold, in every way that it ends."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rewindmq.engine.broker.alarms
from rewindmq.engine.amqp.consumer import SHARED_WINDOW
from rewindmq.engine.host.memory import MemoryAccount, MemoryKind
from rewindmq.engine.host.watermarks import Limit
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import Wire, header_frame, method, properties, publish, raw_frame
from tests.support.broker_harness import Harness

LIMIT = 1_000_000_000


class Measured(Harness):
    """On a machine that has as much memory and room as a test says."""

    resident = 200_000_000
    free = 10_000_000_000


class Clients:
    """The AMQP server, as the alarms know it."""

    def __init__(self, relieve: Callable[[], object] = lambda: None) -> None:
        self._relieve = relieve

    def relieve(self) -> None:
        self._relieve()

    def grant_credit(self) -> None:
        """Nobody waits."""


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Measured]:
    settings = {"vm_memory_high_watermark": Limit(absolute=LIMIT), "disk_free_limit": Limit(absolute=1_000)}
    with Measured(tmp_path, **settings) as harness:
        harness.broker.host.alarms.resident = lambda: harness.resident
        yield harness


@pytest.fixture(autouse=True)
def disk(h: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.broker.alarms.shutil.disk_usage", lambda path: SimpleNamespace(free=h.free))


def look(h: Measured) -> str | None:
    """Why publishing is held back, after a look."""
    h.in_loop(h.broker.host.alarms.look)
    blocked: str | None = h.broker.turns.blocked
    return blocked


# -- when -------------------------------------------------------------------------------------------------------------


def test_memory_ends_where_there_is_more_room_than_where_it_began(h: Measured) -> None:
    changes: list[str | None] = []
    h.broker.turns.on_blocked.append(lambda: changes.append(h.broker.turns.blocked))
    for resident in (LIMIT, LIMIT + 1, LIMIT - 1, int(LIMIT * 0.96), int(LIMIT * 0.94), int(LIMIT * 0.96)):
        h.resident = resident
        look(h)
    assert changes == ["low on memory", None]
    assert h.broker.host.alarms.in_effect() == []


def test_disk_ends_where_there_is_more_room_than_where_it_began(h: Measured) -> None:
    found = []
    for free in (1_000, 999, 1_001, 1_049, 1_051):
        h.free = free
        found.append(look(h))
    assert found == [None, "low on disk", "low on disk", "low on disk", None]


def test_both_are_told_as_rabbitmq_tells_them(h: Measured) -> None:
    h.resident, h.free = LIMIT + 1, 1
    assert look(h) == "low on memory & disk"
    assert [name for name, _ in h.broker.host.alarms.in_effect()] == ["memory", "disk"]
    h.resident = 1
    assert look(h) == "low on disk"


def test_a_log_that_cannot_be_written_is_an_alarm_beside_these(h: Measured) -> None:
    h.broker.turns.problem("log", "the log can't be written: x")
    h.resident = LIMIT + 1
    assert look(h) == "the log can't be written: x"
    assert [name for name, _ in h.broker.host.alarms.in_effect()] == ["memory", "disk"]
    h.broker.turns.problem("log", None)
    assert h.broker.turns.blocked == "low on memory"


def test_freed_memory_is_given_back_before_publishers_are_held_back(
    h: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, trimmed = threading.Event(), []

    def trim() -> None:
        trimmed.append(h.resident)
        given.set()

    monkeypatch.setattr(rewindmq.engine.broker.alarms, "give_memory_back", trim)
    h.resident = int(LIMIT * 0.89)
    assert look(h) is None
    h.resident = int(LIMIT * 0.91)
    assert look(h) is None
    assert given.wait(60)
    assert look(h) is None
    assert trimmed == [int(LIMIT * 0.91)]  # not at each look


def test_what_clients_hold_is_seen_between_two_looks(h: Measured) -> None:
    async def scenario() -> None:
        h.broker.host.alarms.start(Clients())
        h.broker.host.alarms.resident = lambda: h.resident
        h.resident = LIMIT + 1  # what the kernel would say
        h.broker.host.memory.take(MemoryKind.BODY, LIMIT)
        assert h.broker.turns.blocked is None  # not in the middle of what took it
        await asyncio.sleep(0)
        assert h.broker.turns.blocked == "low on memory"

    h.loop.run_until_complete(scenario())


def test_nothing_is_looked_at_after_the_end(h: Measured) -> None:
    h.in_loop(lambda: h.broker.host.alarms.start(Clients()))
    assert h.in_loop(h.broker.host.alarms.resident) > 10_000_000
    h.in_loop(h.broker.host.alarms.stop)
    h.broker.host.alarms.resident = lambda: LIMIT + 1
    assert look(h) is None


def test_limits_can_be_set_while_it_runs(h: Measured) -> None:
    h.in_loop(lambda: h.broker.host.alarms.set_memory_limit(Limit(absolute=1)))
    assert h.broker.turns.blocked == "low on memory"
    h.in_loop(lambda: h.broker.host.alarms.set_memory_limit(Limit(1.0)))
    assert h.broker.turns.blocked is None
    assert h.broker.host.memory.limit_bytes == h.broker.host.memory.machine_bytes
    h.in_loop(lambda: h.broker.host.alarms.set_disk_limit(Limit(absolute=h.free + 1)))
    assert h.broker.turns.blocked == "low on disk"


def test_the_disk_is_looked_at_more_often_where_it_could_be_full_soon(h: Measured) -> None:
    alarms = h.broker.host.alarms
    look(h)
    assert alarms._next_look() == 1.0
    h.free = 1_000 + 125_000_000
    look(h)
    assert alarms._next_look() == 0.5
    h.free = 1_001
    look(h)
    assert alarms._next_look() == 0.1


def test_only_what_would_end_the_alarm_is_given_up_and_not_at_once(h: Measured) -> None:
    now, relieved = 1_000.0, []
    alarms = h.broker.host.alarms
    alarms.clock = lambda: now
    h.in_loop(lambda: alarms.start(Clients(lambda: relieved.append(now))))
    alarms.resident = lambda: h.resident
    h.broker.host.memory.take(MemoryKind.BODY, 100_000_000)
    h.resident = int(LIMIT * 1.2)  # 100 MB of bodies are not the reason
    for _ in range(15):
        now += 1.0
        look(h)
    assert relieved == []
    h.resident = int(LIMIT * 1.01)
    now += 1.0
    look(h)
    assert relieved == [now]
    h.resident = 1  # it helped, and the next one comes at once
    now += 1.0
    look(h)
    h.resident = int(LIMIT * 1.01)
    now += 1.0
    look(h)
    assert relieved == [now - 2.0, now]
    h.resident = 1
    look(h)
    now += 60.0
    h.resident = int(LIMIT * 1.01)
    look(h)
    assert len(relieved) == 2  # a new alarm


# -- what is counted --------------------------------------------------------------------------------------------------


def held(broker: DoubleBroker, kind: MemoryKind) -> int:
    memory: MemoryAccount = broker.host.memory
    assert memory.held_bytes == sum(memory.by_kind.values())
    return memory.by_kind[kind]


def begun(size: int, *pieces: bytes, channel: int = 1) -> bytes:
    frames = method(channel, "Basic.Publish", routing_key="q") + header_frame(channel, size)
    return frames + b"".join(raw_frame(3, channel, piece) for piece in pieces)


@pytest.mark.parametrize("end", ["rest", "wrong method", "connection.close", "lost", "wrong frame", "too long"])
def test_bodies_that_have_not_come_whole(end: str) -> None:
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"))
    wire.send(begun(10_000, b"x" * 4_000, b"y" * 2_000))
    assert held(wire.broker, MemoryKind.BODY) == wire.connection.kept_bytes == 6_000
    if end == "rest":
        wire.send(raw_frame(3, 1, b"z" * 4_000))
        assert len(wire.broker.queues["q"].ready[0][1].body) == 10_000
    elif end == "wrong method":
        wire.send(method(1, "Basic.Publish", routing_key="q"))  # 505 closes the connection
    elif end == "connection.close":
        wire.connection.force_close("x")
    elif end == "lost":
        wire.connection.lost()
    elif end == "wrong frame":
        wire.send(raw_frame(3, 1, b"z", end=b"!"))
    else:
        wire.send(raw_frame(3, 1, b"z" * 4_001))
    assert held(wire.broker, MemoryKind.BODY) == wire.connection.kept_bytes == 0


@pytest.mark.parametrize("end", ["commit", "rollback", "channel.close", "lost"])
def test_transactions(end: str) -> None:
    async def scenario() -> None:
        wire = Wire()
        wire.send(method(1, "Queue.Declare", queue="q"), method(1, "Tx.Select"))
        for _ in range(3):
            wire.send(publish(1, "", "q", b"x" * 1_000))
        assert held(wire.broker, MemoryKind.TRANSACTION) == wire.connection.kept_bytes == 3 * 1_500
        if end == "lost":
            wire.connection.lost()
        else:
            names = {"commit": "Tx.Commit", "rollback": "Tx.Rollback", "channel.close": "Channel.Close"}
            more = {"reply_code": 200, "reply_text": "", "class_id": 0, "method_id": 0}
            wire.send(method(1, names[end], **(more if end == "channel.close" else {})))
            await asyncio.sleep(0)
        assert held(wire.broker, MemoryKind.TRANSACTION) == wire.connection.kept_bytes == 0

    asyncio.run(scenario())


def test_a_transaction_of_empty_messages_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.amqp.transactions.MAX_BYTES", 10_000)

    async def scenario() -> None:
        wire = Wire()
        wire.send(method(1, "Queue.Declare", queue="q"), method(1, "Tx.Select"))
        (said,) = wire.send(publish(1, "", "q", b"") * 21)
        assert (said.name, said.reply_code) == ("Connection.Close", 506)
        assert held(wire.broker, MemoryKind.TRANSACTION) == 0

    asyncio.run(scenario())


def test_unacked_deliveries_connections_and_channels_are_counted(h: Measured) -> None:
    session = h.session()
    h.declare(session, "q")
    h.publish(session, "", "q", b"x")
    h.settle()
    look(h)
    assert h.broker.host.memory.by_kind[MemoryKind.CONNECTION] >= rewindmq.engine.broker.alarms.CONNECTION_BYTES
    channel: Any = SimpleNamespace(settlement=SimpleNamespace(unacked=dict.fromkeys(range(7))))
    session.channels[1] = channel
    look(h)
    assert h.broker.host.memory.by_kind[MemoryKind.UNACKED] == 7 * rewindmq.engine.broker.alarms.UNACKED_BYTES
    assert h.broker.host.memory.used_bytes == h.resident
    session.channels.clear()


# -- what is done -----------------------------------------------------------------------------------------------------


def test_a_connection_amid_a_message_is_held_back_and_goes_on_later() -> None:
    wire = Wire()
    consumer = Wire(wire.broker)
    wire.send(method(1, "Queue.Declare", queue="q"), begun(10_000, b"x" * 4_000))
    wire.broker.turns.blocked = "low on memory"
    for connection in (wire.connection, consumer.connection):
        connection.alarm_changed()
    assert [(each.name, each.reason) for each in wire.read()] == [("Connection.Blocked", "low on memory")]
    assert (wire.connection.gate.blocked, consumer.connection.gate.blocked) == (True, False)
    wire.broker.turns.blocked = None
    wire.connection.alarm_changed()
    assert [each.name for each in wire.send(raw_frame(3, 1, b"x" * 6_000))] == ["Connection.Unblocked"]
    assert len(wire.broker.queues["q"].ready) == 1


def test_what_came_with_the_blocking_publish_waits_for_the_alarms_end() -> None:
    async def run() -> None:
        wire = Wire()
        one, two = publish(1, "", "q", b"1"), publish(1, "", "q", b"2")
        wire.send(method(1, "Queue.Declare", queue="q"), publish(1, "", "q", b"0"))
        queue = wire.broker.queues["q"]
        wire.broker.turns.blocked = "low on memory"
        wire.connection.alarm_changed()
        assert [each.name for each in wire.send(one + two + two[:9])] == ["Connection.Blocked"]
        wire.connection.yield_turn()  # others have had their turn, too
        await asyncio.sleep(0)
        assert [message.body for _, message, _, _ in queue.ready] == [b"0"]
        wire.broker.turns.blocked = None
        wire.connection.alarm_changed()
        await asyncio.sleep(0)
        assert [each.name for each in wire.send(two[9:])] == ["Connection.Unblocked"]
        assert [message.body for _, message, _, _ in queue.ready] == [b"0", b"1", b"2", b"2"]

    asyncio.run(run())


def test_what_channels_remember_is_forgotten() -> None:
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"))
    for number in range(100):
        wire.send(publish(1, "", "q", b"x", raw=properties(correlation_id=str(number))))
    (channel,) = wire.connection.channels.values()
    assert len(channel.parsed) == 100
    wire.broker.turns.blocked = "low on memory"
    wire.connection.alarm_changed()
    assert (channel.parsed, channel.publish_memo) == ({}, {})


def test_who_holds_most_is_told_and_its_close_ok_is_read() -> None:
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"), begun(10_000, b"x" * 4_000))
    wire.broker.turns.blocked = "low on memory"
    wire.connection.alarm_changed()
    wire.read()
    wire.connection.close_for_memory()
    (said,) = wire.read()
    assert (said.name, said.reply_code) == ("Connection.Close", 506)
    assert said.reply_text.startswith("RESOURCE_ERROR - low on memory: 4000 bytes of messages")
    assert not wire.connection.gate.blocked
    wire.send(raw_frame(3, 1, b"x" * 6_000), method(0, "Connection.CloseOk"))
    assert wire.connection.finished


def test_a_connection_that_is_held_back_can_be_closed_by_an_operator() -> None:
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"), begun(10_000, b"x" * 4_000))
    wire.broker.turns.blocked = "low on memory"
    wire.connection.alarm_changed()
    wire.read()
    wire.connection.force_close("an operator wants it")
    assert wire.connection.reads_socket(), "close-ok is not read"
    assert [each.name for each in wire.read()] == ["Connection.Close"]
    wire.send(raw_frame(3, 1, b"x" * 6_000), method(0, "Connection.CloseOk"))
    assert wire.connection.finished


def test_an_alarm_says_nothing_to_a_connection_that_is_closing() -> None:
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"), publish(1, "", "q", b"x"))
    wire.connection.link.in_flow = True  # it waits for flow control
    wire.connection.force_close("an operator wants it")
    wire.read()
    wire.broker.turns.blocked = "low on memory"
    wire.connection.alarm_changed()
    assert wire.read() == []
    assert not wire.connection.gate.blocked


GROWTH = {
    "Queue.Declare": {"queue": "r"},
    "Exchange.Declare": {"exchange": "e", "exchange_type": "fanout"},
    "Queue.Bind": {"queue": "q", "exchange": "amq.topic"},
    "Basic.Consume": {"queue": "q"},
    "Exchange.Bind": {"destination": "amq.topic", "source": "amq.headers"},
    "Channel.Open": {},
}


@pytest.mark.parametrize(("name", "values"), GROWTH.items())
def test_far_above_the_limit_nothing_grows(name: str, values: dict[str, Any]) -> None:
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"))
    memory = wire.broker.host.memory
    memory.take(MemoryKind.HTTP, memory.full_bytes + 1)
    said = wire.ask(2 if name == "Channel.Open" else 1, name, **values)
    assert (said.name, said.reply_code) == ("Connection.Close", 506)
    assert "low on memory" in said.reply_text
    assert [each.name for each in Wire(wire.broker, opened=True).read()] == []
    memory.give_back(MemoryKind.HTTP, memory.by_kind[MemoryKind.HTTP])
    assert Wire(wire.broker).ask(1, "Queue.Declare", queue="r").name == "Queue.DeclareOk"


def test_far_above_the_limit_acks_and_gets_go_on() -> None:
    wire = Wire()
    wire.send(method(1, "Queue.Declare", queue="q"), publish(1, "", "q", b"1"))
    memory = wire.broker.host.memory
    memory.take(MemoryKind.HTTP, memory.full_bytes + 1)
    assert wire.ask(1, "Basic.Get", queue="q").name == "Basic.GetOk"
    assert wire.send(method(1, "Basic.Ack", delivery_tag=1)) == []


def test_consumers_without_prefetch_or_acks_wait_while_memory_is_low() -> None:
    wire = Wire()
    memory = wire.broker.host.memory
    wire.send(method(1, "Queue.Declare", queue="q"))
    memory.take(MemoryKind.HTTP, memory.limit_bytes + 1)
    number = 5_000
    for _ in range(number // 100):
        wire.send(publish(1, "", "q", b"x") * 100)
    got = len(wire.send(method(1, "Basic.Consume", queue="q"))) - 1
    for _ in range(10):
        got += len(wire.send(b"\x08\x00\x00\x00\x00\x00\x00\xce"))
    assert SHARED_WINDOW < got < 2 * SHARED_WINDOW
    got += len(wire.send(method(1, "Basic.Ack", delivery_tag=got, multiple=True)))
    for _ in range(5):  # what a look does: it acked
        wire.connection.grant_credit()
        got += len(wire.send(b"\x08\x00\x00\x00\x00\x00\x00\xce"))
    assert 2 * SHARED_WINDOW < got < number
    memory.give_back(MemoryKind.HTTP, memory.by_kind[MemoryKind.HTTP])
    for _ in range(20):
        wire.connection.grant_credit()
        got += len(wire.send(b"\x08\x00\x00\x00\x00\x00\x00\xce"))
    assert got == number
