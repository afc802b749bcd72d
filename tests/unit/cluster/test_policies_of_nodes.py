"""Policies that refuse messages wait until every node knows them (engine/cluster/awareness.py), and duties are taken
whole, on a log in memory."""

import asyncio

import pytest

from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.schemas.events import NodeAlive
from rewindmq.schemas.values import Actor
from tests.support.memory_nodes import Nodes, declare, on_nodes, session, settled
from tests.support.queues import queue_of

OPERATOR = Actor("guest", 0)
REFUSING = {"max-length": 1, "overflow": "reject-publish"}


def beat(nodes: Nodes, name: str) -> None:
    """Let a node beat twice: the second beat shows what it had folded at the first one."""
    node = nodes.node(name)
    for _ in range(2):
        alive = NodeAlive(name, node.epoch, node._awareness.metadata_offset())
        for each in nodes.brokers:
            nodes.node(each)._awareness.note_beat(alive)


@on_nodes()
async def test_a_policy_that_waited_does_not_come_back_over_a_newer_one(nodes: Nodes) -> None:
    one = await nodes.start("a")
    await nodes.start("b")
    await declare(one, session(one))
    first = asyncio.ensure_future(one.policies.set(OPERATOR, "/", "p", "^q$", REFUSING, 0, "queues"))
    await settled()
    assert not first.done(), "node b has not shown that it knows the policy"
    assert queue_of(one, "q").policy is None
    await one.policies.set(OPERATOR, "/", "p", "^q$", {"max-length": 100}, 0, "queues")
    assert queue_of(one, "q").settings.max_length == 100
    beat(nodes, "b")
    async with asyncio.timeout(5):
        await first
    await settled()
    assert queue_of(one, "q").settings.max_length == 100, "the older policy came back"


@on_nodes()
async def test_one_wait_is_enough_for_all_queues_of_a_policy(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await nodes.start("a")
    await nodes.start("b")
    who = session(one)
    for number in range(20):
        await declare(one, who, f"q{number}")
    waits: list[int] = []
    until_known = nodes.node("a").until_known

    async def counted(offset: int) -> None:
        waits.append(offset)
        await one.exchanges.declare(who, f"x{len(waits)}", "fanout", False, True, False, False, ())  # other traffic
        beat(nodes, "b")
        await until_known(offset)

    monkeypatch.setattr(nodes.node("a"), "until_known", counted)
    async with asyncio.timeout(5):
        await one.policies.set(OPERATOR, "/", "p", "^q", REFUSING, 0, "queues")
    assert len(waits) == 1
    assert all(queue_of(one, f"q{number}").settings.max_length == 1 for number in range(20))


@on_nodes()
async def test_a_new_owner_takes_the_duties_whole(nodes: Nodes) -> None:
    one = await nodes.start("a")
    two = await nodes.start("b")
    for owner in ("a", "b"):
        nodes.history.assign({partition.name: [owner] for partition in nodes.history.queues})
        await settled()
    for before, after in zip(one.partitions, two.partitions, strict=True):
        assert isinstance(after, ReadBackPartition)
        assert (before.owned, after.owned) == (False, True)
        assert after.owned_from > 0, "it would tell events that the owner of before has told"
