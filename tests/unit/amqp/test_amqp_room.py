"""A large publish or tx.commit waits until the log has room for it (engine/partition/flow_control.py)."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from rewindmq.engine.embedded.flow_control import DiskFlow
from rewindmq.engine.host.memory import MemoryKind
from rewindmq.engine.partition.flow_control import LARGE_BYTES, Flow
from rewindmq.schemas.events import Published
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import HEADER, Said, Wire, connection_open, method, publish, start_ok, tune_ok
from tests.support.async_tests import run_by

BODY = bytes(LARGE_BYTES)


class ScriptedFlow(Flow):
    """`room`: whether there is room. `once`: answers that come first."""

    full = False

    def __init__(self) -> None:
        super().__init__()
        self.has = False
        self.once: list[bool] = []
        self.asked: list[int] = []

    def has_room(self, size: int) -> bool:
        self.asked.append(size)
        return self.once.pop(0) if self.once else self.has


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.partition.flow_control.ROOM_SECONDS", 0.001)


def run(test: Callable[[Wire, ScriptedFlow], Coroutine[Any, Any, None]], partitions: int = 1) -> None:
    async def whole() -> None:
        broker = DoubleBroker(partitions=partitions)
        flow = broker.keeper.flow = ScriptedFlow()
        wire = Wire(broker)
        for queue in "qr":
            wire.ask(1, "Queue.Declare", queue=queue)
        await test(wire, flow)

    asyncio.run(whole())


on_wire = run_by(run, given=2)  # test(wire, flow)


def published(wire: Wire) -> list[Published]:
    return [event for event in wire.broker.events if isinstance(event, Published)]


def held(wire: Wire) -> tuple[int, int]:
    """Bytes by the memory account, and by the connection."""
    return wire.broker.host.memory.by_kind[MemoryKind.BODY], wire.connection.kept_bytes


async def settled() -> None:
    """Twenty looks for room, with what follows from each, also where the machine is busy."""
    for _ in range(20):
        await asyncio.sleep(0.001)


def bound_twice(wire: Wire) -> None:
    wire.ask(1, "Exchange.Declare", exchange="x", exchange_type="direct")
    for queue in "qr":
        wire.ask(1, "Queue.Bind", queue=queue, exchange="x", routing_key="k")


@on_wire
async def test_a_publish_waits_and_what_follows_it_too(wire: Wire, flow: ScriptedFlow) -> None:
    wire.send(publish(1, "", "q", BODY), publish(1, "", "q", b"small"))
    await settled()
    assert (published(wire), held(wire)) == ([], (LARGE_BYTES, LARGE_BYTES))
    flow.has = True
    await settled()
    assert [event.body for event in published(wire)] == [BODY, b"small"]
    assert held(wire) == (0, 0)


def test_room_is_needed_in_each_partition_and_memory_once() -> None:
    async def test(wire: Wire, flow: ScriptedFlow) -> None:
        bound_twice(wire)
        wire.send(publish(1, "x", "k", BODY))
        await settled()
        assert set(flow.asked) == {2 * LARGE_BYTES}
        assert held(wire) == (LARGE_BYTES, LARGE_BYTES)
        wire.connection.lost()
        await settled()

    run(test, partitions=2)


@on_wire
async def test_a_client_that_is_gone_holds_no_memory_and_waits_no_longer(wire: Wire, flow: ScriptedFlow) -> None:
    wire.send(publish(1, "", "q", BODY))
    await settled()
    wire.connection.lost()
    await settled()
    assert held(wire) == (0, 0)
    flow.asked.clear()
    await settled()
    assert flow.asked == [], "the wait goes on without its client"
    assert not wire.connection.gate.waiting
    flow.has = True
    await settled()
    assert published(wire) == []


@on_wire
async def test_a_connection_that_waits_can_be_closed_by_an_operator(wire: Wire, flow: ScriptedFlow) -> None:
    wire.send(publish(1, "", "q", BODY))
    await settled()
    wire.connection.force_close("an operator wants it")
    wire.send(method(0, "Connection.CloseOk"))
    await settled()
    assert wire.connection.finished, "close-ok was not read"


@pytest.mark.parametrize("once", [[], [False]])
@on_wire
async def test_a_publish_that_is_refused_does_not_wait(wire: Wire, flow: ScriptedFlow, once: list[bool]) -> None:
    flow.once, flow.has = once, bool(once)
    said = wire.send(publish(1, "missing", "q", BODY))
    await settled()
    said += wire.read()
    assert [(each.name, each.reply_code) for each in said] == [("Channel.Close", 404)]


@on_wire
async def test_there_is_room_by_the_second_look(wire: Wire, flow: ScriptedFlow) -> None:
    """`take` sees none, and the wait need not begin: the publish is taken in the same turn."""
    flow.once, flow.has = [False], True
    wire.send(publish(1, "", "q", BODY), publish(1, "", "q", b"small"))
    await settled()
    assert [event.body for event in published(wire)] == [BODY, b"small"]


@on_wire
async def test_a_publish_is_postponed_twice_when_another_one_takes_the_room(wire: Wire, flow: ScriptedFlow) -> None:
    waited = [False, False, True]  # a look by `take`, by `wait_for_room`, and when the wait ends
    flow.once, flow.has = waited * 2, True
    wire.send(publish(1, "", "q", BODY), publish(1, "", "q", b"small"))
    await settled()
    assert (flow.once, held(wire)) == ([], (0, 0))
    assert [event.body for event in published(wire)] == [BODY, b"small"]
    assert not wire.connection.gate.waiting


@on_wire
async def test_a_connection_in_flow_can_be_closed_by_an_operator(wire: Wire, flow: ScriptedFlow) -> None:
    wire.send(publish(1, "", "q", b"one"))
    flow.full = True
    wire.send(publish(1, "", "q", b"two"))
    assert (wire.connection.gate.waiting, wire.connection.link.state) == (True, "flow")
    wire.connection.force_close("an operator wants it")
    wire.send(method(0, "Connection.CloseOk"))
    assert wire.connection.finished, "close-ok was not read"
    flow.full = False
    flow.landed()
    assert [event.body for event in published(wire)] == [b"one"]


@on_wire
async def test_a_large_frame_is_no_way_around(default: Wire, flow: ScriptedFlow) -> None:
    """A client and a server may agree on frames that hold a large body whole."""
    broker = DoubleBroker(frame_max=1 << 23)
    broker.keeper.flow = flow
    wire = Wire(broker, opened=False)
    wire.send(HEADER + start_ok() + tune_ok(frame_max=1 << 23) + connection_open(), method(1, "Channel.Open"))
    wire.ask(1, "Queue.Declare", queue="q")
    for _ in range(3):
        wire.send(publish(1, "", "q", BODY, piece=1 << 22))
    await settled()
    assert published(wire) == []
    flow.has = True
    await settled()
    assert len(published(wire)) == 3


def test_a_commit_waits_with_what_it_holds_and_ends_with_its_client() -> None:
    async def test(wire: Wire, flow: ScriptedFlow) -> None:
        bound_twice(wire)
        wire.ask(1, "Tx.Select")
        wire.send(publish(1, "x", "k", BODY), method(1, "Tx.Commit"))
        await settled()
        assert set(flow.asked) == {2 * LARGE_BYTES}
        memory, kept = held(wire)
        assert memory == kept >= LARGE_BYTES
        wire.connection.lost()
        await settled()
        assert (held(wire), published(wire)) == ((0, 0), [])

    run(test, partitions=2)


@on_wire
async def test_a_commit_goes_on_when_there_is_room(wire: Wire, flow: ScriptedFlow) -> None:
    wire.ask(1, "Tx.Select")
    wire.send(publish(1, "", "q", BODY), method(1, "Tx.Commit"))
    await settled()
    flow.has = True
    said: list[Said] = []
    for _ in range(3):
        await settled()
        wire.broker.turns.end()
        said += wire.read()
    assert [each.name for each in said] == ["Connection.Unblocked", "Tx.CommitOk"]
    assert len(published(wire)) == 1


def test_acks_and_small_commits_need_no_room() -> None:
    """They go into the reserve: consumers make the room that publishers wait for."""
    log: Any = SimpleNamespace(has_room=lambda size: False, waiting_large_bytes=0)
    flow = DiskFlow(log)
    assert flow.has_room(0)
    assert not flow.has_room(LARGE_BYTES)


def said_of_blocking(said: list[Said]) -> list[tuple[str, str]]:
    return [(each.name, each.fields.get("reason", "")) for each in said]


def state(wire: Wire) -> str:
    return wire.connection.link.state


ROOM = f"the disk has no room for {LARGE_BYTES} bytes"


@on_wire
async def test_a_publisher_whose_message_waits_is_told_and_listed(wire: Wire, flow: ScriptedFlow) -> None:
    said = wire.send(publish(1, "", "q", BODY))
    await settled()
    assert said_of_blocking(said + wire.read()) == [("Connection.Blocked", ROOM)]
    assert state(wire) == "blocked"
    flow.has = True
    await settled()
    assert said_of_blocking(wire.read()) == [("Connection.Unblocked", "")]
    assert state(wire) == "running"


@on_wire
async def test_a_commit_that_waits_tells_so_too(wire: Wire, flow: ScriptedFlow) -> None:
    wire.ask(1, "Tx.Select")
    said = wire.send(publish(1, "", "q", BODY), method(1, "Tx.Commit"))
    await settled()
    assert said_of_blocking(said + wire.read()) == [("Connection.Blocked", ROOM)]
    flow.has = True
    for _ in range(100):
        await settled()
        said = wire.read()
        if said:
            break
    assert said_of_blocking(said)[0] == ("Connection.Unblocked", "")


@on_wire
async def test_a_client_that_does_not_know_the_method_is_only_listed(default: Wire, flow: ScriptedFlow) -> None:
    broker = DoubleBroker()
    broker.keeper.flow = flow
    wire = Wire(broker, opened=False)
    wire.send(HEADER + start_ok(capabilities={}) + tune_ok() + connection_open(), method(1, "Channel.Open"))
    wire.ask(1, "Queue.Declare", queue="q")
    wire.send(publish(1, "", "q", BODY))
    await settled()
    assert (wire.read(), wire.connection.link.state) == ([], "blocked")
    wire.connection.lost()
    await settled()


@pytest.mark.parametrize("first", ["room", "alarm"])
@on_wire
async def test_two_reasons_are_one_blocking_that_ends_with_the_last(wire: Wire, flow: ScriptedFlow, first: str) -> None:
    said = wire.send(publish(1, "", "q", BODY))
    wire.broker.turns.blocked = "low on memory"
    wire.connection.alarm_changed()
    wire.send(publish(1, "", "q", b"next"))
    await settled()
    assert said_of_blocking(said + wire.read()) == [("Connection.Blocked", ROOM)]
    if first == "room":
        flow.has = True
        await settled()
        assert (wire.read(), wire.connection.link.state) == ([], "blocked")
    wire.broker.turns.blocked = None
    wire.connection.alarm_changed()
    if first == "alarm":
        assert (wire.read(), wire.connection.link.state) == ([], "blocked")
        flow.has = True
    await settled()
    assert said_of_blocking(wire.read()) == [("Connection.Unblocked", "")]
    assert wire.connection.link.state == "running"
    assert [event.body for event in published(wire)] == [BODY, b"next"]


@on_wire
async def test_a_connection_that_is_closed_while_it_waits_hears_no_more_of_it(wire: Wire, flow: ScriptedFlow) -> None:
    wire.send(publish(1, "", "q", BODY))
    await settled()
    wire.read()
    wire.connection.force_close("an operator wants it")
    await settled()
    assert [each.name for each in wire.read()] == ["Connection.Close"]


@pytest.mark.parametrize("end", ["lost", "closed"])
@on_wire
async def test_a_connection_that_is_gone_waits_in_no_queue(wire: Wire, flow: ScriptedFlow, end: str) -> None:
    wire.send(publish(1, "", "q", b"one"))
    flow.full = True
    wire.send(publish(1, "", "q", b"two"))
    assert flow.waiting == 1
    if end == "lost":
        wire.connection.lost()
    else:
        wire.connection.force_close("an operator wants it")
    assert flow.waiting == 0


def test_memory_of_a_client_that_is_gone_is_free_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.partition.flow_control.ROOM_SECONDS", 60.0)

    async def test(wire: Wire, flow: ScriptedFlow) -> None:
        wire.send(publish(1, "", "q", BODY))
        await settled()
        assert held(wire) == (LARGE_BYTES, LARGE_BYTES)
        wire.connection.lost()
        await settled()
        assert held(wire) == (0, 0)

    run(test)
