"""Two nodes in memory: one owns all queues, the other has only their counters."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster import partition_pausing
from rewindmq.engine.http.app import make_app
from rewindmq.engine.http.statistics import statistics
from rewindmq.engine.rewind.worker import WorkerPool
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.values import Argument
from tests.support.broker_harness import Client
from tests.support.deadlines import eventually
from tests.support.memory_nodes import Nodes, publish, session

NAMES = [next(f"q{n}" for n in range(100) if partition_of("/", f"q{n}", 2) == partition) for partition in range(2)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes beat, count and pause at once."""
    monkeypatch.setattr("rewindmq.engine.cluster.node.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("rewindmq.engine.cluster.counter_rounds.COUNT_SECONDS", 0.05)
    monkeypatch.setattr(partition_pausing, "UNUSED_SECONDS", 0.0)


@asynccontextmanager
async def http(broker: Broker, user: str = "guest") -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of a broker's management API, without sockets."""
    transport = httpx2.ASGITransport(app=make_app(broker, WorkerPool()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://a/api", auth=(user, "guest")) as api:
        yield api


def own_all(nodes: Nodes, name: str) -> None:
    """Make a node the owner of every partition."""
    nodes.history.assign({partition.name: [name] for partition in nodes.history.queues})


def paused(broker: Broker) -> list[bool]:
    """Return, for each partition, True if the node does not fold it now."""
    return [not partition.current for partition in broker.partitions]


async def story(nodes: Nodes) -> tuple[Broker, Broker]:
    """`a` owns all partitions, and has a queue with three messages in each. `b` folds none, and has their counters."""
    owner, other = await nodes.start("a", standbys=0), await nodes.start("b", standbys=0)
    for broker in (owner, other):
        statistics(broker)  # counting begins with the node
    own_all(nodes, "a")
    await eventually(lambda: all(partition.owned for partition in owner.partitions))
    who = session(owner)
    for name in NAMES:
        await owner.queues.declare(who, name, False, True, False, False, (Argument("x-max-length", "long", 50),))
        for number in range(3):
            publish(owner, who, b"%d" % number, Client(), name)
    await eventually(lambda: all(paused(other)))
    partition_pausing.UNUSED_SECONDS = 60.0  # a partition that is entered stays so; `quick` puts it back
    await eventually(lambda: counted(other, NAMES[0]) == counted(other, NAMES[1]) == 3)
    return owner, other


def counted(broker: Broker, name: str) -> int | None:
    """Return the number of a queue's ready messages by the counters that a node has of it; None if it has none."""
    table = broker.queues.partition_for("/", name).counted
    found = None if table is None else table.queues.get(("/", name))
    return None if found is None else found.messages_ready
