"""Owners that leave work undone, or do it too late, harm no queue that moves. Nodes run on a shared log in memory."""

import pytest

from rewindmq.engine.cluster.node import ClusterKeeper
from rewindmq.engine.cluster.repair import LOOKS_BEFORE_REPAIR
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.events import NodeLost, QueueDeleted, Tick
from rewindmq.schemas.placement_events import QueueMoveBegan
from rewindmq.schemas.values import BROKER, Argument
from tests.support.broker_harness import Client
from tests.support.memory_nodes import Nodes, declare, on_nodes, publish, session, settled
from tests.support.moving_clients import Q
from tests.support.repartition import PARTITIONS, Steps

DIES_AT_ONCE = (
    Argument("x-max-length", "signedint", 0),
    Argument("x-dead-letter-exchange", "longstr", ""),
    Argument("x-dead-letter-routing-key", "longstr", Q),
)


@on_nodes(PARTITIONS)
async def test_b77_a_lost_owner_sends_no_dead_letters_to_where_a_queue_was(nodes: Nodes) -> None:
    """Nobody waits for it before a queue moves. Its letter and that of the next owner would be in two partitions."""
    one, two = await nodes.start("a"), await nodes.start("b")
    steps, who = Steps(one, two), session(one)
    await steps.add()
    await declare(one, who, Q)
    await one.queues.declare(who, "source", False, True, False, False, DIES_AT_ONCE)
    await steps.change()
    source = one.queues.partition_for("/", "source")
    nodes.history.assign({source.name: ["a", "b"]})  # for a moment both are
    log = nodes.log("b")
    log.hold([log.metadata.name, log.nodes.name])
    lost = NodeLost("b", nodes.node("b").epoch, "lapsed")
    await one.metadata.ask(BROKER, lost)
    for partition in one.partitions:
        partition.append(BROKER, lost)
    one.turns.end()
    await settled()
    _, left = steps.queue(Q)
    target = partition_of("/", Q, PARTITIONS)
    await steps.log(QueueMoveBegan("/", Q, left.queue_id, target))  # waits for nobody: b will be lost once more
    moved = await steps.end(Q)
    for body in (b"0", b"1"):
        publish(one, who, body, Client(), "source")
        one.turns.end()
        await settled()
    assert (moved.messages_ready, left.messages_ready) == (2, 0)
    nodes.history.assign({source.name: ["b"]})
    publish(one, who, b"2", Client(), "source")
    one.turns.end()
    await settled()
    assert (moved.messages_ready, left.messages_ready) == (2, 0)
    log.hold([])
    await settled()
    assert (moved.messages_ready, left.messages_ready) == (3, 0), "it forwards nothing when it is back"


@on_nodes(PARTITIONS)
async def test_b77_bindings_of_a_queue_gone_end_where_the_name_went_without_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number in them is of the old partition, and says nothing about how far the new one was read."""
    broker = await nodes.start("a")
    steps, who = Steps(broker), session(broker)
    await steps.add()
    old = broker.queues.partition_for("/", Q)
    for _ in range(50):
        await old.ask(BROKER, Tick())
    await declare(broker, who, Q)
    await declare(broker, who, "stays")
    for name in (Q, "stays"):
        await broker.exchanges.bind(who, "amq.fanout", "queue", name, "", ())
    with monkeypatch.context() as patched:
        patched.setattr(ClusterKeeper, "queue_gone", lambda *_: None)  # the owner dies
        await old.ask(BROKER, QueueDeleted("/", Q, if_unused=False, if_empty=False))
        broker.turns.end()
    await steps.change()
    new = broker.queues.partition_for("/", Q)
    assert new.machine.next_offset < old.machine.next_offset - 40
    for _ in range(LOOKS_BEFORE_REPAIR):
        assert list(broker.topology.bindings_to("/", "queue", Q))
        nodes.node("a")._look_after()
    await settled()
    assert not list(broker.topology.bindings_to("/", "queue", Q))
    assert list(broker.topology.bindings_to("/", "queue", "stays"))
