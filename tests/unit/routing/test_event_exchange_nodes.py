"""The event exchange of nodes that share a log: each event comes once, from the node that appended its cause."""

from typing import Any

from rewindmq.engine.broker.broker import Broker
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import headers_of
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Route
from tests.support.broker_harness import Client, args
from tests.support.memory_nodes import PERSISTENT, Nodes, declare, on_nodes, publish, session, settled
from tests.support.queues import queue_of

EVENTS = "amq.rewindmq.event"
NAMES = ("q0", "q1", "queue 2", "queue 3", "orders", "mails")


def heard(broker: Broker) -> list[tuple[str, dict[str, Any]]]:
    """The events in the queue "heard", which stay there, but for those of its own bindings."""
    queue, partition = queue_of(broker, "heard"), broker.queues.partition_for("/", "heard")
    found = []
    for message_id in queue.ready_ids():
        message = partition.message(queue.queue_id, message_id)
        headers: Any = {name: tables.untyped(kind, value) for name, kind, value in headers_of(message.properties)}
        if headers.get("destination_name") != "heard":
            found.append((message.route.routing_key, headers))
    return found


async def listen(broker: Broker) -> None:
    who = session(broker)
    await declare(broker, who, "heard")
    for key in ("queue.#", "message.#", "ack.#", "policy.#"):
        await broker.exchanges.bind(who, EVENTS, "queue", "heard", key, ())
    await settled()


async def bounded(broker: Broker, name: str) -> None:
    await broker.queues.declare(session(broker), name, False, True, False, False, args(x_max_length=1))


@on_nodes()
async def test_b36_each_event_comes_once_whichever_node_caused_it(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await listen(a)
    assert {a.homes.of("/", name).index for name in NAMES} == {0, 1}
    for number, name in enumerate(NAMES):
        await bounded((a, b)[number % 2], name)
    await settled()
    assert {partition.owned for partition in (*a.partitions, *b.partitions)} == {True, False}
    for name in NAMES:
        for broker in (a, b, a):
            assert publish(broker, session(broker), b"m", Client(), name) == 1
            await settled()
    for broker in (a, b):
        name = f"of-{broker.config.node}"
        await broker.policies.set(Actor("guest", 0), "/", name, "^none$", {"max-length": 3}, 0, "queues")
    await settled()
    for broker in (a, b):
        told = heard(broker)
        keys = [key for key, _ in told]
        assert sorted(keys) == sorted(
            ["queue.created" for _ in NAMES]
            + [f"message.dropped.{name}" for name in NAMES for _ in range(2)]
            + ["policy.set"] * 2
        )
        places = [(headers["partition"], headers["offset"]) for _, headers in told]
        assert len(set(places)) == len(places)


@on_nodes()
async def test_b36_a_new_owner_tells_what_follows_and_nothing_twice(nodes: Nodes) -> None:
    a, b = await nodes.start("a"), await nodes.start("b")
    await listen(a)
    for name in NAMES:
        await bounded(a, name)
        for _ in range(2):
            publish(b, session(b), b"m", Client(), name)
    await settled()
    before = [key for key, _ in heard(a)]
    assert len(before) == 12
    nodes.brokers.pop("b").close()
    await settled()
    assert all(partition.owned for partition in a.partitions)
    assert [key for key, _ in heard(a)] == before
    for name in NAMES:
        publish(a, session(a), b"m", Client(), name)
    await settled()
    assert sorted(key for key, _ in heard(a)[12:]) == sorted(f"message.dropped.{name}" for name in NAMES)
    again = await nodes.start("c")
    await settled()
    assert len(heard(again)) == 18


@on_nodes()
async def test_b36_the_owner_tells_what_a_service_caused_and_nothing_twice(nodes: Nodes) -> None:
    """Of records that no node appended, an owner tells those behind a record that it appended as the owner."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await listen(a)
    await bounded(a, "q")
    await settled()
    partitions: list[Any] = [broker.queues.partition_for("/", "q") for broker in (a, b)]
    owner, other = sorted(partitions, key=lambda partition: not partition.owned)
    log = next(each for each in nodes.history.queues if each.name == owner.name)
    encoder = Encoder()

    def produce() -> None:
        message = Published(Route("/", "", "q", ("q",)), PERSISTENT, persistent=True, body=b"m", body_size=1)
        log.put(b"/q", encoder.encode(encoder.prefix(nodes.now_ms, Actor("service", 0)), message))

    for _ in range(2):
        produce()
    await settled()
    told = ["queue.created", "message.dropped.q"]
    assert [key for key, _ in heard(a)] == told
    assert heard(a)[1][1]["user_who_performed_action"] == "service"
    owner.owned = False
    nodes.log(other.node).hold([other.name])
    produce()
    await settled()
    other.own()
    nodes.log(other.node).hold([])
    await settled()
    assert (queue_of(a, "q").maxlen, queue_of(b, "q").maxlen, [key for key, _ in heard(a)]) == (2, 2, told)
    produce()
    await settled()
    assert [key for key, _ in heard(a)] == [*told, "message.dropped.q"]
