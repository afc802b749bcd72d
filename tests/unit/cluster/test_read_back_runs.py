"""Publishes that differ in their bodies alone, on a log in memory: a node sends them as a run, and folds together what
comes back of it."""

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.log.shared_contract import RecordTooLarge
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session, Subscription
from rewindmq.projections.machine.data.effects import Deliver
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import BROKER, Actor
from tests.support.broker_harness import Client, args
from tests.support.memory_nodes import PERSISTENT, Nodes, declare, on_nodes, publish, session, settled
from tests.support.queues import queue_of


class Watching(Client):
    """A consumer that notes how many messages its node was given at once, and a publisher of runs."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[int] = []

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published | None) -> None:
        super().deliver(partition, effect, message_id, message)
        if message_id == effect.message_ids[0]:
            self.together.append(len(effect.message_ids))

    def confirm_run(self, first: int, count: int) -> None:
        self.confirms += [(sequence, False) for sequence in range(first, first + count)]


def publish_run(broker: Broker, actor: Actor, who: Session, bodies: list[bytes], confirms: Watching) -> None:
    [to] = broker.exchanges.route(who, "", "q", None)
    messages = [Published(to.route, PERSISTENT, persistent=True, body=each, body_size=len(each)) for each in bodies]
    assert to.partition.takes_runs
    last = to.partition.publish_run(actor, messages)
    to.partition.await_run_durable(last, confirms, len(confirms.confirms) + 1, len(bodies))


async def consuming(broker: Broker) -> Watching:
    client = Watching()
    await broker.consumers.consume("q", Subscription(session(broker), 1, "tag", prefetch=50), client, lambda *_: None)
    await settled()
    return client


@pytest.mark.parametrize("consumer", ["a", "b"])
@on_nodes()
async def test_a_run_is_folded_together_at_every_node(nodes: Nodes, consumer: str) -> None:
    first, second = await nodes.start("a"), await nodes.start("b")
    who = session(first)
    await declare(first, who)
    await settled()
    client, confirms = await consuming(first if consumer == "a" else second), Watching()
    bodies = [b"1", b"22", b"x" * 200, b"4"]
    publish_run(first, who.actor, who, bodies, confirms)
    await settled()
    assert client.bodies == bodies
    assert client.together == [4]
    assert confirms.confirms == [(1, False), (2, False), (3, False), (4, False)]


@on_nodes()
async def test_a_run_comes_back_in_parts(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node's record is between, and time passes."""
    first, second = await nodes.start("a"), await nodes.start("b")
    who = session(first)
    await declare(first, who)
    await settled()
    client, confirms = await consuming(first), Watching()
    log = nodes.log("a").queues[first.queues.partition_for("/", "q").index]
    monkeypatch.setattr(log, "send", lambda: None)
    publish_run(first, who.actor, who, [b"1", b"2", b"3", b"4", b"5"], confirms)
    log.land(2)
    publish(second, session(second), b"of the other", Client())
    await settled()
    assert confirms.confirms == []
    log.land(1)
    nodes.now_ms += 1
    log.land(2)
    await settled()
    assert client.bodies == [b"1", b"2", b"of the other", b"3", b"4", b"5"]
    assert client.together == [2, 1, 1, 2]
    assert confirms.confirms == [(number, False) for number in range(1, 6)]


@on_nodes()
async def test_a_refused_message_of_a_run_is_told_to_its_publisher(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the refusal comes back before the rest of the run."""
    broker = await nodes.start("a")
    who, confirms = session(broker), Watching()
    limited = args(**{"x-max-length": 2, "x-overflow": "reject-publish"})
    await broker.queues.declare(who, "q", False, True, False, False, limited)
    await settled()
    partition = broker.queues.partition_for("/", "q")
    log = nodes.log("a").queues[partition.index]
    monkeypatch.setattr(log, "send", lambda: None)
    publish_run(broker, who.actor, who, [b"1", b"2", b"3", b"4", b"5"], confirms)
    log.land(3)
    await settled()
    assert confirms.confirms == []
    log.land(2)
    await settled()
    assert confirms.confirms == [(1, False), (2, False), (3, True), (4, True), (5, True)]
    assert queue_of(broker, "q").messages_ready == 2


@on_nodes()
async def test_alike_records_of_two_nodes_are_told_apart(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own publishes name no session, so those of two nodes may differ in their bodies alone."""
    brokers = [await nodes.start("a"), await nodes.start("b")]
    await declare(brokers[0], session(brokers[0]))
    await settled()
    index = brokers[0].queues.partition_for("/", "q").index
    logs = [nodes.log(name).queues[index] for name in ("a", "b")]
    confirms = [Watching(), Watching()]
    for name, log, broker, each in zip("ab", logs, brokers, confirms, strict=True):
        monkeypatch.setattr(log, "send", lambda: None)
        publish_run(broker, BROKER, session(broker), [b"1", name.encode()], each)
    logs[1].land(2)
    logs[0].land(2)
    await settled()
    for broker, each in zip(brokers, confirms, strict=True):
        assert each.confirms == [(1, False), (2, False)]
        assert queue_of(broker, "q").messages_ready == 4


@on_nodes()
async def test_a_record_that_is_too_large_ends_a_run(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier ones are in the log, and a later one is still recognized."""
    broker = await nodes.start("a")
    who, confirms = session(broker), Watching()
    await declare(broker, who)
    await settled()
    log = nodes.log("a").queues[broker.queues.partition_for("/", "q").index]
    append = log.append

    def limited(key: bytes, value: bytes) -> None:
        if value.endswith(b"huge"):
            raise RecordTooLarge("too large")
        append(key, value)

    monkeypatch.setattr(log, "append", limited)
    with pytest.raises(PreconditionFailed):
        publish_run(broker, who.actor, who, [b"1", b"2", b"huge", b"4"], confirms)
    assert publish(broker, who, b"later", confirms) == 1
    await settled()
    assert confirms.confirms == [(1, False)]
    assert queue_of(broker, "q").messages_ready == 3
