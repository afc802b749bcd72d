"""Repartition on a log that nodes share, in memory: nodes are started again, owners change in the middle."""

import asyncio

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster.node import ClusterKeeper
from rewindmq.engine.cluster.silences import Silences
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.simulated.shared import MemorySharedLog
from rewindmq.engine.placement import leftover_queues
from rewindmq.engine.placement.repartition import Repartition
from rewindmq.engine.placement.request import DONE, NODES, ask_for, progress_of
from rewindmq.engine.placement.step_barrier import StepBarrier
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.placement import Moving
from rewindmq.schemas.events import NodeLost, Published, QueueDeclared, QueueDeleted
from rewindmq.schemas.metadata_events import NodeJoined
from rewindmq.schemas.placement_events import NamesHeld, PartitionsAdded, PlacementChanged
from rewindmq.schemas.values import BROKER, EPOCH_SHIFT, Actor, Route
from tests.support.broker_harness import Client
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, declare, on_nodes, publish, session, settled

SECONDS = 20
NAMES = [f"queue-{number}" for number in range(8)]
MOVING = [name for name in NAMES if partition_of("/", name, 2) != partition_of("/", name, 5)]


async def phase(broker: Broker) -> str:
    return (await progress_of(broker.repartition, Work(broker.host.loop_share))).phase


async def until_done(broker: Broker) -> None:
    async with asyncio.timeout(SECONDS):
        while await phase(broker) != DONE:
            await asyncio.sleep(0.005)


async def again(nodes: Nodes, name: str) -> Broker:
    """Start a node again."""
    nodes.brokers[name].close()
    await settled()
    return await nodes.start(name)


async def filled(broker: Broker) -> None:
    who = session(broker)
    for name in NAMES:
        await declare(broker, who, name)
        for number in range(3):
            publish(broker, who, f"{name} {number}".encode(), Client(), name)
    await settled()


def queue_at(broker: Broker, name: str) -> Queue | None:
    home = broker.topology.placement.home("/", name, len(broker.partitions))
    return broker.partitions[home].machine.queue("/", name)


def check(broker: Broker, count: int = 5) -> None:
    """Every queue is where the number puts it, with all of its messages in order."""
    for name in NAMES:
        home = partition_of("/", name, count)
        assert broker.topology.placement.home("/", name, 0) == home
        queue = broker.partitions[home].machine.queue("/", name)
        assert queue is not None, name
        projector = broker.partitions[home].projector
        bodies = [projector.message(queue.queue_id, each).body for each in queue.ready_ids()]
        assert bodies == [f"{name} {number}".encode() for number in range(3)], name


def same_everywhere(*brokers: Broker) -> None:
    digests = [[each.machine.digest() for each in broker.partitions] for broker in brokers]
    topologies = [broker.topology.digest() for broker in brokers]
    assert digests == [digests[0]] * len(brokers)
    assert topologies == [topologies[0]] * len(brokers)


@on_nodes()
async def test_b76_b77_queues_move_when_all_nodes_were_started_again(nodes: Nodes) -> None:
    one, two = await nodes.start("a"), await nodes.start("b")
    await filled(one)
    await ask_for(two.repartition, BROKER, 5)
    await settled()
    one = await again(nodes, "a")
    assert (len(one.partitions), len(two.partitions)) == (5, 2)
    assert one.repartition.waits_for() == two.repartition.waits_for() == ["b"]
    assert await phase(one) == NODES
    two = await again(nodes, "b")
    await until_done(one)
    await eventually(
        lambda: one.repartition.leftovers.left() + two.repartition.leftovers.left() == 0, "strays stay for ever"
    )
    await settled()
    check(one)
    check(two)
    same_everywhere(one, two)
    assert not nodes.failures


STEPS = [
    "_place_anew",
    "moves.begin",
    "moves.end",
    "moves._declare",
    "moves._declaration",
    "moves._drain",
    "barrier.durable",
    "barrier.all_know",
]


@pytest.mark.long(step=set(STEPS) - {"_place_anew", "moves.begin", "moves._drain"})
@pytest.mark.parametrize("step", STEPS)
@on_nodes()
async def test_b77_another_node_goes_on_where_the_mover_died(
    nodes: Nodes, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await nodes.start("a")
    await filled(one)
    await nodes.start("b")
    await ask_for(one.repartition, BROKER, 5)
    dead: list[str] = []
    start = Repartition.start

    def doomed(self: Repartition) -> None:
        part, _, name = step.rpartition(".")
        owner = getattr(self, part) if part else self
        real = getattr(owner, name)

        def dies(*given: object) -> object:
            """The node that gets here first dies in the middle of it."""
            if not dead:
                dead.append(self.config.node)
                nodes.log(self.config.node).kill()
                self.stop()
            return real(*given)

        monkeypatch.setattr(owner, name, dies)
        start(self)

    monkeypatch.setattr(Repartition, "start", doomed)
    monkeypatch.setattr("rewindmq.engine.cluster.node.BEAT_SECONDS", 0.02)
    await again(nodes, "b")
    await again(nodes, "a")
    await eventually(lambda: bool(dead), f"no node came to {step}")
    left = "a" if dead == ["b"] else "b"
    broker = nodes.brokers[left]
    nodes.node(left).silences = Silences(0.1)
    nodes.history.rebalance()
    nodes.brokers[dead[0]].repartition.stop()
    await until_done(broker)
    await settled()
    check(broker)
    assert not nodes.failures


@on_nodes()
async def test_two_owners_at_once_do_no_harm(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await nodes.start("a")
    await filled(one)
    await nodes.start("b")
    await ask_for(one.repartition, BROKER, 5)
    await again(nodes, "b")
    nodes.history.assign({each.name: ["a", "b"] for each in nodes.history.queues})
    monkeypatch.setattr(nodes.history, "rebalance", lambda: None)
    one = await again(nodes, "a")
    nodes.history.assign({each.name: ["a", "b"] for each in nodes.history.queues})
    await until_done(one)
    await settled()
    check(one)
    check(nodes.brokers["b"])
    same_everywhere(one, nodes.brokers["b"])


@on_nodes()
async def test_b76_partitions_that_a_cut_short_command_did_not_add_are_added(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nodes that are started again find no more partitions, and are waited for once more."""
    one = await nodes.start("a")
    await filled(one)
    real = MemorySharedLog.add_partitions

    async def cut_short(self: MemorySharedLog, partitions: int, only_ask: bool) -> None:
        if not only_ask:
            raise LogError("the log does not answer")

    monkeypatch.setattr(MemorySharedLog, "add_partitions", cut_short)
    with pytest.raises(PreconditionFailed, match="the log does not answer"):
        await ask_for(one.repartition, BROKER, 5)
    monkeypatch.setattr(MemorySharedLog, "add_partitions", real)
    one = await again(nodes, "a")
    await eventually(lambda: len(nodes.history.queues) == 5, "the partitions are not added")
    one = await again(nodes, "a")
    await until_done(one)
    check(one)


@on_nodes()
async def test_b77_what_a_lost_node_declares_at_the_last_moment_is_listed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it. But until a partition has its end, what it sends counts."""
    one, name = await nodes.start("a"), MOVING[0]
    await ask_for(one.repartition, BROKER, 5)
    epoch = await one.metadata.ask(BROKER, NodeJoined("slow", "0.1", MACHINE_VERSION, "", 5))
    await one.metadata.ask(BROKER, NodeLost("slow", epoch, "lapsed"))
    monkeypatch.setattr(ClusterKeeper, "_append_ended", lambda *_: None)
    with monkeypatch.context() as patched:
        patched.setattr(Repartition, "start", lambda _: None)
        one = await again(nodes, "a")
    one.repartition.start()
    await asyncio.sleep(0.1)
    assert (one.topology.placement.held, one.topology.placement.count) == (True, 2)
    declared = QueueDeclared(
        "/",
        name,
        type="classic",
        durable=True,
        exclusive=False,
        auto_delete=False,
        owner=0,
        arguments=(),
        semantics="rabbitmq-3.13",
    )
    one.partitions[partition_of("/", name, 2)].append(Actor("guest", (epoch << EPOCH_SHIFT) + 1), declared)
    for partition in one.partitions:
        for ended, node in one.topology.ended.items():
            partition.append(BROKER, NodeLost(node, ended, "lapsed"))
    await until_done(one)
    assert queue_at(one, name) is not None, "the queue is where nobody finds it"


@on_nodes()
async def test_a_node_that_was_lost_meanwhile_ends_and_says_why(nodes: Nodes) -> None:
    one, two = await nodes.start("a"), await nodes.start("b")
    for broker in (one, two):
        broker.repartition.stop()
    for event in (PartitionsAdded(2, 5), NamesHeld(5)):
        await one.metadata.ask(BROKER, event)
    assert nodes.failures == []
    one.metadata.append(BROKER, PlacementChanged(5))
    one.turns.end()
    await eventually(lambda: len(nodes.failures) == 2, "nodes go on with partitions that do not suffice")
    assert {str(each) for each in nodes.failures} == {
        "queues are placed by 5 partitions now, and this node works with the 2 that it found when it started:"
        " start it again"
    }
    nodes.failures.clear()


@on_nodes()
async def test_a_queue_declared_anew_while_its_move_begins_moves(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await nodes.start("a")
    await filled(one)
    await ask_for(one.repartition, BROKER, 5)
    name = MOVING[0]
    real = StepBarrier.all_know

    async def meanwhile(self: StepBarrier) -> None:
        """As a node does that has not folded that the name waits."""
        placement = self._topology.placement
        moving: Moving | None = placement.moving.get(("/", name))
        if moving is not None and queue_before.queue_id == moving.from_id:
            source = self._partitions[moving.source]
            await source.ask(BROKER, deleted)
            await source.ask(BROKER, declared)
        await real(self)

    deleted = QueueDeleted("/", name, False, False)
    declared = QueueDeclared(
        "/",
        name,
        type="classic",
        durable=True,
        exclusive=False,
        auto_delete=False,
        owner=0,
        arguments=(),
        semantics="rabbitmq-3.13",
    )
    found = queue_at(one, name)
    assert found is not None
    queue_before = found
    monkeypatch.setattr(StepBarrier, "all_know", meanwhile)
    one = await again(nodes, "a")
    await until_done(one)
    now = queue_at(one, name)
    assert now is not None
    assert now.messages_ready == 0
    assert one.partitions[partition_of("/", name, 5)].machine.queue("/", name) is now
    await eventually(lambda: one.repartition.leftovers.left() == 0, "the queue stays in its old partition")


@on_nodes()
async def test_names_held_twice_list_the_same_queues(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await nodes.start("a")
    await filled(one)
    await ask_for(one.repartition, BROKER, 5)
    real = Repartition._place_anew

    async def twice(self: Repartition) -> None:
        await self.metadata.ask(BROKER, NamesHeld(5))
        await real(self)

    monkeypatch.setattr(Repartition, "_place_anew", twice)
    one = await again(nodes, "a")
    await until_done(one)
    check(one)


@on_nodes()
async def test_b77_what_a_consumer_holds_follows_when_it_is_given_back(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await nodes.start("a"), await nodes.start("b")
    await filled(one)
    await ask_for(one.repartition, BROKER, 5)
    two = await again(nodes, "b")
    name, who, client = MOVING[0], session(two), Client()
    await declare(two, who, name)
    old = two.partitions[partition_of("/", name, 2)]
    await two.consumers.fetch(who, 1, client, name, False)
    await settled()
    assert [body for _, body, _ in client.fetches] == [f"{name} 0".encode()]
    one = await again(nodes, "a")
    await until_done(two)
    queue = queue_at(two, name)
    assert queue is not None
    assert queue.messages_ready == 2
    await eventually(lambda: two.repartition.leftovers.left() == 1, "queues that are empty leave something behind")
    two.sessions.close(who)  # its end gives back what it holds
    two.turns.end()
    await eventually(lambda: two.repartition.leftovers.left() + one.repartition.leftovers.left() == 0, "the rest stays")
    assert queue.messages_ready == 3
    assert [each.redelivered for each in queue.messages()] == [False, False, True]
    assert old.machine.queue("/", name) is not None, "a publish of a lost node may be on its way to it"
    late = Published(Route("/", "", name, (name,)), b"\0\0", persistent=True, body=b"late", body_size=4)
    old.append(who.actor, late)
    await eventually(lambda: queue.messages_ready == 4, "what came late does not follow")
    monkeypatch.setattr(leftover_queues, "STAY_SECONDS", 0.0)
    await eventually(lambda: old.machine.queue("/", name) is None, "an empty queue stays in its old partition for ever")
