"""A broker that folds only what it reads back, on a log in memory: what goes wrong between asking and reading."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rewindmq.engine.amqp.channel import Channel
from rewindmq.engine.amqp.channel_methods import basic_consume
from rewindmq.engine.amqp.consumer_timeout import time_out_deliveries
from rewindmq.engine.amqp.methods import Method
from rewindmq.engine.amqp.output import ChannelOutput, Output
from rewindmq.engine.amqp.publish_path import SharedState
from rewindmq.engine.cluster.partition_pausing import PausedPartitions
from rewindmq.engine.config import Config
from rewindmq.engine.errors import ConnectionForced, NotFound, PreconditionFailed
from rewindmq.engine.http.app import make_app
from rewindmq.engine.http.shapes.queues import QueueView
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.shared_contract import RecordTooLarge
from rewindmq.engine.log.simulated.shared import MemorySharedPartition
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.engine.process import open_broker
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.projections.machine.machine import HANDLERS, Machine
from rewindmq.projections.replay import recover
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Nacked, NodeLost, Published, QueueDeleted
from rewindmq.schemas.metadata_events import VhostDeleted
from rewindmq.schemas.values import BROKER, Actor
from tests.support.amqp_wire import IdleSocket
from tests.support.broker_harness import Client, args
from tests.support.memory_nodes import Nodes, declare, on_nodes, publish, session, settled
from tests.support.queues import queue_of


@on_nodes()
async def test_a_publish_of_a_lost_node_counts(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    who, confirms = session(broker), Client()
    await declare(broker, who)
    nodes.log("a").cut(True)
    publish(broker, who, b"too late", confirms)
    partition = broker.queues.partition_for("/", "q")
    epoch = nodes.node("a").epoch
    lost = Encoder()
    record = lost.encode(lost.prefix(nodes.now_ms, BROKER), NodeLost("a", epoch, "lapsed"))
    next(each for each in nodes.history.queues if each.name == partition.name).put(b"", record)
    nodes.log("a").cut(False)
    await settled()
    assert queue_of(broker, "q").messages_ready == 1
    assert confirms.confirms == [(1, False)]


@on_nodes()
async def test_a_queue_whose_declarer_went_away_is_routed_to(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    who = session(broker)
    assert publish(broker, who, b"unroutable", Client()) == 0
    asking = asyncio.ensure_future(declare(broker, who))
    await asyncio.sleep(0)
    asking.cancel()  # an HTTP request that is given up
    await settled()
    assert broker.queues.get("/", "q") is not None
    assert publish(broker, who, b"routable", Client()) == 1


@on_nodes()
async def test_what_is_larger_than_a_record_may_be_holds_nothing_up(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await nodes.start("a")
    log = nodes.log("a").metadata
    with monkeypatch.context() as patched:
        patched.setattr(log, "append", lambda key, value: _too_large())
        with pytest.raises(PreconditionFailed):
            await broker.vhosts.create(Actor("guest", 0), "huge", "x")
    async with asyncio.timeout(5):
        await broker.vhosts.create(Actor("guest", 0), "small", "x")
    assert "small" in broker.topology.vhosts


def _too_large() -> None:
    raise RecordTooLarge("too large")


@on_nodes()
async def test_a_node_whose_fold_failed_folds_and_stores_nothing_more(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await nodes.start("a")
    other = await nodes.start("b")
    who = session(broker)
    await declare(broker, who)
    partition = broker.queues.partition_for("/", "q")
    good = partition.machine.next_offset

    whole = HANDLERS[Published]

    def half(machine: Machine, *event: Any) -> None:
        if machine is partition.machine:
            raise AssertionError("a defect")
        whole(machine, *event)

    monkeypatch.setitem(HANDLERS, Published, half)
    publish(other, session(other), b"1", Client())
    with caplog.at_level(logging.CRITICAL, "rewindmq.engine.cluster.node"):
        await settled()
    assert [str(error) for error in nodes.failures] == ["a defect"]
    monkeypatch.undo()
    publish(other, session(other), b"2", Client())
    await settled()
    assert partition.machine.next_offset == good + 1, "it folded on with an event missing"
    broker.close()
    store = StateStore.open(tmp_path / "a" / "state")
    assert store.applied_offset(partition.name) <= good, "a broken state was stored"
    store.close()


@on_nodes()
async def test_what_was_half_done_is_found_by_who_gets_the_duties_later(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    await broker.vhosts.create(Actor("guest", 0), "v", "")
    await broker.access.users.set_permissions(Actor("guest", 0), "v", "guest", ".*", ".*", ".*")
    await declare(broker, broker.sessions.open("guest", "v", "test", {}))
    nodes.history.assign({each.name: [] for each in nodes.history.queues})
    await settled()
    await broker.metadata.ask(BROKER, VhostDeleted("v"))  # and the node that did it died
    node = nodes.node("a")
    for _ in range(3):
        node._look_after()
    nodes.history.assign({each.name: ["a"] for each in nodes.history.queues})
    await settled()
    for _ in range(4):
        node._look_after()
        await settled()
    assert broker.queues.get("v", "q") is None


@on_nodes()
async def test_a_consumer_is_told_that_its_queue_went_in_the_same_moment(nodes: Nodes) -> None:
    """Attached and gone within one batch: consume-ok, then basic.cancel, and no error after these."""
    broker = await nodes.start("a")
    who, client = session(broker), Client()
    await declare(broker, who)
    attached: list[Any] = []
    nodes.log("a").cut(True)
    consuming = asyncio.ensure_future(
        broker.consumers.consume(
            "q", Subscription(who, 1, "tag", prefetch=1), client, lambda *given: attached.append(given)
        )
    )
    await asyncio.sleep(0)
    broker.queues.partition_for("/", "q").append(BROKER, QueueDeleted("/", "q", if_unused=False, if_empty=False))
    nodes.log("a").cut(False)
    await settled()
    assert (len(attached), client.cancellations) == (1, 1)
    assert consuming.exception() is None


@on_nodes()
async def test_ids_are_never_used_twice_while_the_next_epoch_begins(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rewindmq.engine.broker.open_sessions.EPOCH_IDS", 8)
    broker = await nodes.start("a")
    epoch = nodes.node("a").epoch
    ids = []
    for _ in range(12):
        try:
            ids.append(session(broker).session_id)
        except ConnectionForced:
            break
    assert ids == [epoch << 24 | count for count in range(1, 8)]
    await settled()
    assert session(broker).session_id == nodes.node("a").epoch << 24 | 1
    assert nodes.node("a").epoch > epoch


@on_nodes()
async def test_a_data_directory_is_of_one_kind_of_log(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    open_broker(Config(data=tmp_path / "a")).close()
    with pytest.raises(LogError, match="holds an embedded log"):
        await nodes.start("a")
    await nodes.start("b")
    nodes.brokers["b"].close()
    with pytest.raises(LogError, match="holds the state of a node on Kafka"):
        open_broker(Config(data=tmp_path / "b"))


@on_nodes()
async def test_a_heartbeat_follows_whatever_goes_wrong_with_one(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    await nodes.start("a")
    node = nodes.node("a")
    before = node._timer
    with monkeypatch.context() as patched:
        patched.setattr(PausedPartitions, "look", lambda *_: _too_large())
        with pytest.raises(LogError):
            node._beat()
    assert node._timer is not before
    assert node._timer is not None
    assert not node._timer.cancelled()


@on_nodes()
async def test_nothing_is_done_for_a_session_of_a_lost_life(nodes: Nodes) -> None:
    """As of an HTTP request, which has no connection that could be closed."""
    broker = await nodes.start("a")
    who = session(broker)
    await declare(broker, who)
    nodes.node("a").renew_epoch()
    asked = [broker.queues.purge(who, "q"), broker.queues.delete(who, "q", False, False), declare(broker, who, "r")]
    for problem in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(problem, ConnectionForced)


@on_nodes()
async def test_a_node_joins_when_it_has_caught_up(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every partition: what another node has done may be asked for here as soon as clients may come."""
    broker = await nodes.start("a")
    await declare(broker, session(broker))
    held = broker.queues.partition_for("/", "q").name
    monkeypatch.setattr("rewindmq.engine.cluster.start.recover", lambda log, store: recover(_Empty(log), store))
    waiting = MemorySharedPartition.waiting

    def lagging(partition: MemorySharedPartition) -> int:
        return 0 if late and (partition.name, partition._log.node) == (held, "b") else waiting(partition)

    late = True
    monkeypatch.setattr(MemorySharedPartition, "waiting", lagging)
    starting = asyncio.ensure_future(nodes.start("b"))
    await settled()
    assert "b" not in nodes.brokers, "clients may come, and what is there is not seen"
    late = False
    nodes.log("b").fetch()
    assert (await starting).queues.get("/", "q") is not None


@on_nodes()
async def test_a_body_missing_in_the_store_is_asked_of_the_log_in_time(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await nodes.start("a")
    who = session(broker)
    queue = await declare(broker, who)
    publish(broker, who, b"m", Client())
    await settled()
    partition = broker.queues.partition_for("/", "q")
    [message_id] = queue.ready_ids()
    partition.projector.forget(queue.queue_id, [message_id])
    nodes.log("a").cut(True)
    with pytest.raises(LogError, match="does not say"):
        partition.message(queue.queue_id, message_id)
    nodes.log("a").cut(False)
    assert partition.message(queue.queue_id, message_id).body == b"m"
    assert "missing in the state store" in caplog.text


class _Empty:
    """A partition as it was when nothing was in it."""

    next_offset = 0

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Any]:
        return iter(())


@on_nodes()
async def test_s053_a_declaration_does_not_bring_back_a_queue_that_goes(nodes: Nodes) -> None:
    first, second = await nodes.start("a"), await nodes.start("b")
    one, two = session(first), session(second)
    lease = args(**{"x-expires": 60_000})
    await first.queues.declare(one, "q", False, True, False, False, lease)
    await settled()
    deleting = asyncio.ensure_future(first.queues.delete(one, "q", False, False))
    await asyncio.sleep(0)  # it is on its way
    with pytest.raises(NotFound):  # the second node sees the queue still
        await second.queues.declare(two, "q", False, True, False, False, lease)
    await deleting
    await settled()
    assert (first.queues.get("/", "q"), second.queues.get("/", "q")) == (None, None)


@on_nodes()
async def test_an_overdue_delivery_goes_to_a_consumer_at_another_node(nodes: Nodes) -> None:
    """Profile rabbitmq-4.3: on a log that is read back the cancelling takes a while."""
    first, second = await nodes.start("a"), await nodes.start("b")
    who, other, client = session(first), session(second), Client()
    later = args(**{"x-queue-type": "quorum", "x-semantics": "rabbitmq-4.3"})
    await first.queues.declare(who, "q", False, True, False, False, later)
    socket = IdleSocket()
    channel = Channel(
        SharedState(first, who, True, socket.wake, lambda reason: None), ChannelOutput(Output(socket.wake), 1, 4_096)
    )
    fields: dict[str, int | bool | str | bytes] = {
        "consumer_tag": "slow",
        "queue": "q",
        "no_ack": False,
        "exclusive": False,
        "nowait": False,
        "arguments": b"",
    }
    await basic_consume(channel, Method(0, "Basic.Consume", fields))
    publish(first, who, b"1", Client())
    await settled()
    assert list(channel.settlement.unacked) == [1]
    await second.consumers.consume("q", Subscription(other, 1, "tag", prefetch=1), client, lambda *_: None)
    await time_out_deliveries(channel, 0.0)
    assert not channel.settlement.returned
    await time_out_deliveries(channel, 1_800.0)
    await settled()
    assert (client.bodies, channel.settlement.unacked, channel.consumers) == ([b"1"], {}, {})
    assert queue_of(first, "q").consumer_count() == 1
    said = channel.output.parts[-1]
    assert isinstance(said, bytes)
    assert b"\0\x3c\0\x1e" in said  # basic.cancel
    channel.settle(1, False, None)  # too late, and no error
    channel.end_of_read()


@pytest.mark.parametrize("locator", ["min-masters", "random"])
@on_nodes()
async def test_s086_an_exclusive_queue_lives_at_the_node_of_its_connection(nodes: Nodes, locator: str) -> None:
    """A locator does not count, nor the node that is asked. S-083: it goes with the connection."""
    first, second = await nodes.start("a"), await nodes.start("b")
    who = session(second)
    located = args(**{"x-queue-master-locator": locator})
    await second.queues.declare(who, "q", False, False, True, False, located)
    await settled()
    for broker in (first, second):
        shown = QueueView.shown(broker, broker.queues.partition_for("/", "q"), queue_of(broker, "q"), head=False)
        assert shown.node == "b"
    second.sessions.close(who)
    await settled()
    assert (first.queues.get("/", "q"), second.queues.get("/", "q")) == (None, None)


@pytest.mark.parametrize("type", ["classic", "quorum"])
@on_nodes()
async def test_s109_a_single_active_consumer_is_one_of_all_nodes(nodes: Nodes, type: str) -> None:
    brokers = [await nodes.start("a"), await nodes.start("b")]
    sessions = [session(broker) for broker in brokers]
    single = args(**{"x-single-active-consumer": True, "x-queue-type": type})
    await brokers[0].queues.declare(sessions[0], "q", False, True, False, False, single)
    await settled()
    clients = [Client(), Client()]
    for broker, who, client in zip(brokers, sessions, clients, strict=True):
        await broker.consumers.consume("q", Subscription(who, 1, "tag", prefetch=1), client, lambda *_: None)
    for body in (b"1", b"2"):
        publish(brokers[1], sessions[1], body, Client())
    await settled()
    assert [client.bodies for client in clients] == [[b"1"], []]
    brokers[0].sessions.close(sessions[0])
    await settled()
    assert [client.bodies for client in clients] == [[b"1"], [b"1"]]


@pytest.mark.parametrize("strategy", ["at-most-once", "at-least-once"])
@on_nodes()
async def test_a_dead_letter_that_the_log_does_not_take_holds_up_only_itself(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    broker = await nodes.start("a")
    nodes.history.assign({each.name: ["a"] for each in nodes.history.queues})
    who = session(broker)
    await declare(broker, who, "dead")
    dying = args(
        **{
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
            "x-overflow": "reject-publish",
            "x-dead-letter-strategy": strategy,
        }
    )
    await broker.queues.declare(who, "q", False, True, False, False, dying)
    publish(broker, who, b"huge", Client())
    publish(broker, who, b"small", Client())
    await settled()
    target, log = broker.queues.partition_for("/", "dead"), nodes.log("a")
    shared = next(each for each in log.queues if each.name == target.name)
    append = shared.append
    monkeypatch.setattr(shared, "append", lambda key, value: _too_large() if b"huge" in value else append(key, value))
    got = Client()
    for _ in range(2):
        _, queue, holder = await broker.consumers.fetch(who, 1, got, "q", False)
    partition = broker.queues.partition_for("/", "q")
    ids = [message_id for message_id, _, _ in got.fetches]
    held = tuple((message_id, message_id) for message_id in ids)
    partition.append(who.actor, Nacked("/", "q", holder, held, False, "reject"))
    await settled()
    dead = queue_of(broker, "dead")
    if strategy == "at-most-once":
        assert dead.messages_ready == 1
        assert not queue.outbox
    else:
        assert dead.messages_ready == 0
        assert len(queue.outbox) == 2
        monkeypatch.setattr(shared, "append", append)
        nodes.now_ms += 1_001
        broker.turns.time_passed()
        await settled()
        assert dead.messages_ready == 2


@on_nodes()
async def test_http_does_not_wait_for_ever_and_what_it_asked_for_is_done_later(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await nodes.start("a")
    transport = httpx2.ASGITransport(app=make_app(broker, WorkerPool()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://a/api", auth=("guest", "guest")) as api:
        assert (await api.put("/queues/%2F/q", json={"durable": True})).status_code == 201
        monkeypatch.setattr("rewindmq.engine.http.call.DURABLE_SECONDS", 0.05)
        monkeypatch.setattr(
            "rewindmq.engine.log.simulated.shared.PATIENCE_SECONDS", 3_600
        )  # else publishing is blocked
        nodes.log("a").cut(True)
        answers = [
            await api.put("/queues/%2F/later", json={"durable": True}),
            await api.put("/vhosts/later"),
            await api.put("/policies/%2F/later", json={"pattern": "q", "definition": {"max-length": 7}}),
            await api.post("/queues/%2F/q/get", json={"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
            await api.post(
                "/exchanges/%2F/amq.default/publish",
                json={"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"},
            ),
        ]
        assert [answer.status_code for answer in answers] == [503] * 5, answers[-1].text
        assert not broker.sessions.by_id
        nodes.log("a").cut(False)
        await settled()
        assert broker.queues.get("/", "later") is not None
        assert "later" in broker.topology.vhosts
        assert ("/", "later") in broker.topology.policies
        assert queue_of(broker, "q").messages_ready == 1
        assert queue_of(broker, "q").messages_unacked == 0
