"""No node says that there is no such thing before it has read to the end of the log (engine/partition/certainty.py).

Node a makes something; nothing of it has arrived at node b when a client of b asks for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.amqp.connection_state import ConnectionState
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import NotFound
from rewindmq.engine.http.app import make_app
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.simulated.shared import MemorySharedLog
from rewindmq.engine.partition.certainty import Certainty
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.schemas.values import Actor
from tests.support.amqp_clients import WireClient, opened
from tests.support.amqp_wire import (
    HEADER,
    IdleSocket,
    Said,
    connection_open,
    method,
    properties,
    publish,
    start_ok,
    tune_ok,
)
from tests.support.memory_nodes import Nodes, on_nodes, run, settled
from tests.support.queues import queue_of

TOPIC = {"exchange": "x", "exchange_type": "topic"}


def late(nodes: Nodes, is_late: bool = True) -> None:
    """Nothing arrives at node b, or all of it does."""
    log = nodes.log("b")
    log.hold([partition.name for partition in log.partitions] if is_late else [])


async def made_at_a(client: WireClient) -> None:
    """A queue with a message, an exchange, and a binding."""
    said = await client.said(
        method(1, "Queue.Declare", queue="q")
        + publish(1, "", "q", b"1")
        + method(1, "Exchange.Declare", **TOPIC)
        + method(1, "Queue.Bind", queue="q", exchange="x", routing_key="k")
    )
    assert [each.name for each in said] == ["Queue.DeclareOk", "Exchange.DeclareOk", "Queue.BindOk"]


def messages(broker: Broker) -> int:
    queue = broker.queues.get("/", "q")
    return -1 if queue is None else queue.messages_ready + queue.messages_unacked


RAW = properties(delivery_mode=2)
# What a client of node b sends, what it is told, and how many messages the queue has after it (-1: there is none).
ASKED: dict[str, tuple[bytes, list[str], int]] = {
    "declare passively": (method(1, "Queue.Declare", queue="q", passive=True), ["Queue.DeclareOk"], 1),
    "declare with the wrong arguments": (method(1, "Queue.Declare", queue="q", durable=True), ["Channel.Close"], 1),
    "delete": (method(1, "Queue.Delete", queue="q"), ["Queue.DeleteOk"], -1),
    "purge": (method(1, "Queue.Purge", queue="q"), ["Queue.PurgeOk"], 0),
    "get": (method(1, "Basic.Get", queue="q", no_ack=True), ["Basic.GetOk"], 0),
    "consume": (method(1, "Basic.Consume", queue="q"), ["Basic.ConsumeOk", "Basic.Deliver"], 1),
    "bind": (method(1, "Queue.Bind", queue="q", exchange="x", routing_key="2"), ["Queue.BindOk"], 1),
    "unbind": (
        method(1, "Queue.Unbind", queue="q", exchange="x", routing_key="k") + publish(1, "x", "k", b"2", raw=RAW),
        ["Queue.UnbindOk"],
        1,
    ),
    "exchange, passively": (method(1, "Exchange.Declare", passive=True, **TOPIC), ["Exchange.DeclareOk"], 1),
    "delete exchange": (
        method(1, "Exchange.Delete", exchange="x") + publish(1, "x", "k", b"2", raw=RAW),
        ["Exchange.DeleteOk", "Channel.Close"],
        1,
    ),
    "bind exchange": (
        method(1, "Exchange.Bind", source="x", destination="amq.fanout")
        + method(1, "Exchange.Unbind", source="x", destination="amq.fanout"),
        ["Exchange.BindOk", "Exchange.UnbindOk"],
        1,
    ),
    "publish": (publish(1, "", "q", b"2", raw=RAW), [], 2),
    "publish to an exchange": (publish(1, "x", "k", b"2", raw=RAW), [], 2),
    "publish twice, mandatory": (2 * publish(1, "x", "k", b"2", raw=RAW, mandatory=True), [], 3),
    "publish, confirmed": (
        method(1, "Confirm.Select") + publish(1, "x", "k", b"2", raw=RAW),
        ["Confirm.SelectOk", "Basic.Ack"],
        2,
    ),
    "publish in a transaction": (
        method(1, "Tx.Select") + publish(1, "x", "k", b"2", raw=RAW) + method(1, "Tx.Commit"),
        ["Tx.SelectOk", "Tx.CommitOk"],
        2,
    ),
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_another_node_has_just_made_is_there_for_clients_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    frames, told, left = ASKED[asked]

    async def test(nodes: Nodes) -> None:
        here, there = await nodes.start("a"), await nodes.start("b")
        maker, client = await opened(here), await opened(there)
        late(nodes)
        await made_at_a(maker)
        said = await client.said(frames)
        assert {each.name for each in said} <= {"Tx.SelectOk", "Confirm.SelectOk"}, "it was answered from what b knew"
        late(nodes, False)
        said += await client.said(b"")
        said += await client.said(b"")
        assert [each.name for each in said] == told
        assert messages(here) == messages(there) == left
        for each in said:
            if each.name in ("Queue.DeleteOk", "Queue.PurgeOk"):
                assert each.message_count == 1
            if each.name == "Channel.Close":
                assert each.reply_code == (404 if "exchange" in asked else 406)
        for mine in (maker, client):
            mine.connection.lost()

    run(test, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("password", "vhost", "state"),
    [
        ("right", "new", "running"),
        ("wrong", "new", "closing"),
        ("right", "none", "closing"),
    ],
)
@on_nodes()
async def test_a_user_whom_another_node_has_just_made_may_log_in(
    nodes: Nodes, password: str, vhost: str, state: str
) -> None:
    here, there = await nodes.start("a"), await nodes.start("b")
    late(nodes)
    await here.vhosts.create(Actor("guest", 0), "new", "")
    await here.access.users.set(Actor("guest", 0), "ann", "right", ())
    await here.access.users.set_permissions(Actor("guest", 0), "new", "ann", ".*", ".*", ".*")
    connection = Connection(there, "client:1", True, IdleSocket())
    connection.receive(HEADER + start_ok("ann", password) + tune_ok() + connection_open(vhost))
    for _ in range(3):
        await settled()
    assert connection.state is ConnectionState.STARTING
    late(nodes, False)
    async with asyncio.timeout(10):
        while connection.state.value != state:
            await asyncio.sleep(0.01)
    connection.lost()


HTTP: dict[str, tuple[str, str, dict[str, Any] | None, int]] = {
    "show": ("GET", "/queues/%2F/q", None, 200),
    "get": ("POST", "/queues/%2F/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, 200),
    "delete": ("DELETE", "/queues/%2F/q", None, 204),
    "purge": ("DELETE", "/queues/%2F/q/contents", None, 204),
    "show exchange": ("GET", "/exchanges/%2F/x", None, 200),
    "bind": ("POST", "/bindings/%2F/e/x/q/q", {"routing_key": "2"}, 201),
    "show binding": ("GET", "/bindings/%2F/e/x/q/q/k", None, 200),
    "unbind": ("DELETE", "/bindings/%2F/e/x/q/q/k", None, 204),
    "publish": (
        "POST",
        "/exchanges/%2F/x/publish",
        {"properties": {}, "routing_key": "k", "payload": "2", "payload_encoding": "string"},
        200,
    ),
    "of a new vhost": ("GET", "/queues/new", None, 200),
    "of a new user": ("GET", "/users/ann", None, 200),
    "permissions": ("PUT", "/permissions/new/ann", {"configure": "", "write": "", "read": ""}, 204),
}


@pytest.mark.parametrize("asked", HTTP)
def test_over_http_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    verb, path, content, status = HTTP[asked]

    async def test(nodes: Nodes) -> None:
        here, there = await nodes.start("a"), await nodes.start("b")
        maker = await opened(here)
        late(nodes)
        await made_at_a(maker)
        await here.vhosts.create(Actor("guest", 0), "new", "")
        await here.access.users.set(Actor("guest", 0), "ann", "right", ("administrator",))
        await here.access.users.set_permissions(Actor("guest", 0), "new", "ann", ".*", ".*", ".*")
        auth = ("ann", "right") if "new" in asked else ("guest", "guest")
        transport = httpx2.ASGITransport(app=make_app(there, WorkerPool()))
        async with httpx2.AsyncClient(transport=transport, base_url="http://b/api", auth=auth) as api:
            asking = asyncio.ensure_future(api.request(verb, path, json=content))
            await settled()
            assert not asking.done()
            late(nodes, False)
            answer = await asking
            assert answer.status_code == status, answer.text
            if asked == "publish":
                assert answer.json() == {"routed": True}
            if asked == "get":
                assert [each["payload"] for each in answer.json()] == ["1"]
        maker.connection.lost()

    run(test, tmp_path, monkeypatch)


LISTS = ("/api/queues", "/api/exchanges", "/api/overview", "/api/nodes", "/metrics", "/metrics/per-object")


@pytest.mark.parametrize("path", LISTS)
@on_nodes()
async def test_a_list_says_what_its_node_has_read_and_does_not_wait(nodes: Nodes, path: str) -> None:
    """It says of nothing that it is missing. A node that Kafka is away from can still be watched."""
    here, there = await nodes.start("a"), await nodes.start("b")
    maker = await opened(here)
    late(nodes)
    await made_at_a(maker)
    nodes.log("b").cut(True)
    async with asking(there, "guest", "guest") as client:
        answer = await asyncio.wait_for(client.get(path), 10)
    assert answer.status_code == 200
    assert here.queues.get("/", "q") is not None
    assert there.queues.get("/", "q") is None
    nodes.log("b").cut(False)
    maker.connection.lost()


@pytest.mark.parametrize(("password", "status"), [("right", 200), ("wrong", 401)])
@on_nodes()
async def test_a_login_to_metrics_is_refused_only_when_the_log_says_so(
    nodes: Nodes, password: str, status: int
) -> None:
    here, there = await nodes.start("a"), await nodes.start("b")
    late(nodes)
    await here.access.users.set(Actor("guest", 0), "ann", "right", ("monitoring",))
    async with asking(there, "ann", password) as client:
        answer = asyncio.ensure_future(client.get("/metrics"))
        await settled()
        assert not answer.done()
        late(nodes, False)
        assert (await answer).status_code == status


def asking(broker: Broker, user: str, password: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=make_app(broker, WorkerPool()))
    return httpx2.AsyncClient(transport=transport, base_url="http://b", auth=(user, password))


@on_nodes()
async def test_presence_is_told_at_once_and_absence_when_the_log_says_so(nodes: Nodes) -> None:
    here = await nodes.start("a")
    client = await opened(here)
    await client.said(method(1, "Queue.Declare", queue="q"))
    nodes.log("a").cut(True)
    said = await client.said(method(1, "Queue.Declare", queue="q", passive=True))
    assert [each.name for each in said] == ["Queue.DeclareOk"]
    assert await client.said(method(2, "Queue.Declare", queue="r", passive=True)) == []
    nodes.log("a").cut(False)
    async with asyncio.timeout(10):
        while not said or said[-1].name != "Channel.Close":
            said = await client.said(b"")
    assert (said[-1].channel, said[-1].reply_code) == (2, 404)
    client.connection.lost()


@on_nodes()
async def test_a_flood_of_misses_costs_one_question_to_the_log_at_a_time(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = await nodes.start("a")
    clients = [await opened(here) for _ in range(20)]
    questions = under_way = most = 0
    ask = MemorySharedLog.read_to_end

    async def counted(self: MemorySharedLog) -> None:
        nonlocal questions, under_way, most
        questions, under_way = questions + 1, under_way + 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        await ask(self)
        under_way -= 1

    monkeypatch.setattr(MemorySharedLog, "read_to_end", counted)
    flood = method(1, "Confirm.Select") + 500 * publish(1, "", "nowhere", b"x")
    for client in clients:
        client.connection.receive(flood)
    here.turns.end()
    found: dict[WireClient, list[Said]] = {client: [] for client in clients}
    async with asyncio.timeout(10):
        while not all(said and confirmed(said) == 500 for said in found.values()):
            for client in clients:
                found[client] += await client.said(b"")
    assert most == 1
    assert questions <= 2, "all of it came before the first question"
    for client in clients:
        client.connection.lost()


def confirmed(said: list[Said]) -> int:
    return max((each.delivery_tag for each in said if each.name == "Basic.Ack"), default=0)


@on_nodes()
async def test_a_letter_is_not_dropped_for_want_of_a_binding_that_was_just_made(nodes: Nodes) -> None:
    here, there = await nodes.start("a"), await nodes.start("b")
    client = await opened(here)
    log = nodes.log("b")
    nodes.history.assign({partition.name: ["b"] for partition in log.queues})
    await settled()
    log.hold([log.metadata.name])
    dying = {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "k", "x-message-ttl": 0}
    await made_at_a(client)
    await client.said(
        method(1, "Queue.Declare", queue="dying", arguments=dying)
        + publish(1, "", "dying", b"2", raw=properties(delivery_mode=2))
    )
    for _ in range(3):
        await settled()
    assert messages(here) == 1
    log.hold([])
    async with asyncio.timeout(10):
        while messages(here) != 2:
            await settled()
    assert queue_of(there, "dying").messages_dlx == 0
    client.connection.lost()


async def _never() -> None:
    raise NotFound("no queue 'q' in vhost '/'")


def test_the_log_is_asked_again_until_it_says_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.partition.certainty.AGAIN_SECONDS", 0.001)
    answers: list[Exception | None] = [LogError("away"), LogError("away"), None]

    async def read_to_end() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    async def test(attempt: Callable[[], Awaitable[None]]) -> None:
        certainty = Certainty(read_to_end, lambda: 1)
        heard = certainty.begun
        with pytest.raises(NotFound):
            await certainty.assured(attempt, certainty.wait)
        assert (answers, certainty.covers(heard), certainty.covers(certainty.begun)) == ([], True, False)

    asyncio.run(test(_never))


@on_nodes()
async def test_an_exchange_is_unused_only_if_nobody_has_just_bound_it(nodes: Nodes) -> None:
    here, there = await nodes.start("a"), await nodes.start("b")
    maker, client = await opened(here), await opened(there)
    await maker.said(method(1, "Exchange.Declare", **TOPIC))
    late(nodes)
    await made_at_a(maker)
    assert await client.said(method(1, "Exchange.Delete", exchange="x", if_unused=True)) == []
    late(nodes, False)
    (said,) = await client.said(b"")
    assert (said.name, said.reply_code) == ("Channel.Close", 406)
    assert ("/", "x") in here.topology.exchanges
    for mine in (maker, client):
        mine.connection.lost()
