"""Publishers wait while enough of their node is on its way into a log that is read back
(engine/cluster/flow_control.py)."""

from functools import partial
from types import SimpleNamespace
from typing import Any

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.amqp.frames import PAUSE_CHECK_BYTES
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.cluster.flow_control import EVENTS_A_SECOND, LEAST_EVENTS, RoundTripFlow
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method, publish
from tests.support.memory_nodes import Nodes, on_nodes, settled
from tests.support.queues import queue_of

ONE = publish(1, "", "q", b"0000")
MANY = 2_000
# of a read, what may be taken beyond the limit before the next look
ONE_CHECK = PAUSE_CHECK_BYTES // len(ONE) + 1


def numbered(first: int, count: int) -> bytes:
    return b"".join(publish(1, "", "q", b"%04d" % number) for number in range(first, first + count))


def bodies_of(said: list[Said]) -> list[bytes]:
    return [each.body for each in said if each.name == "Basic.Deliver" and each.body is not None]


async def start(nodes: Nodes) -> Broker:
    broker = await nodes.start("a")
    assert isinstance(broker.keeper.flow, RoundTripFlow)
    broker.keeper.flow.learn(0.0001)  # however busy this machine is
    return broker


async def open_channel(broker: Broker, *methods: bytes) -> Connection:
    """With a channel 1 and the queue q; answers to `methods` are passed over."""
    connection = Connection(broker, "client:1", True, IdleSocket())
    declare = method(1, "Queue.Declare", queue="q")
    said = await say(broker, connection, HANDSHAKE + method(1, "Channel.Open") + b"".join(methods) + declare)
    while "Queue.DeclareOk" not in [each.name for each in said]:  # the password is verified in a thread
        said += await say(broker, connection, b"")
    return connection


async def say(broker: Broker, connection: Connection, frames: bytes) -> list[Said]:
    connection.receive(frames)
    broker.turns.end()
    await settled()
    return decoded(b"".join(connection.take_output()))


def under_way(broker: Broker) -> int:
    return sum(partition.append_position - partition.durable_position for partition in broker.partitions)


@on_nodes()
async def test_a_publisher_waits_and_a_consumer_does_not(nodes: Nodes) -> None:
    """S-136."""
    broker = await start(nodes)
    publisher = await open_channel(broker, method(1, "Confirm.Select"))
    consumer = await open_channel(broker, method(1, "Basic.Qos", prefetch_count=10))
    await say(broker, consumer, method(1, "Basic.Consume", queue="q", consumer_tag="c"))
    await say(broker, publisher, numbered(0, 10))
    assert len(decoded(b"".join(consumer.take_output()))) == 10
    nodes.log("a").cut(True)
    await say(broker, publisher, numbered(10, MANY))
    assert LEAST_EVENTS <= under_way(broker) <= LEAST_EVENTS + ONE_CHECK
    assert publisher.gate.waiting
    assert publisher.session is not None
    assert publisher.session.link is not None
    assert publisher.session.link.state == "flow"
    before = under_way(broker)
    await say(broker, consumer, method(1, "Basic.Ack", delivery_tag=5, multiple=True))
    assert under_way(broker) == before + 1, "an ack waited behind publishes"
    await say(broker, publisher, numbered(10 + MANY, 5))
    assert under_way(broker) == before + 1
    nodes.log("a").cut(False)
    while queue_of(broker, "q").messages_ready < MANY:
        await settled()
    assert (publisher.gate.waiting, publisher.session.link.state) == (False, "running")
    got = await say(
        broker,
        consumer,
        method(1, "Basic.Qos", prefetch_count=0)
        + method(1, "Basic.Consume", queue="q", consumer_tag="rest", no_ack=True),
    )
    while (
        len(bodies := [each.body for each in got if each.name == "Basic.Deliver" and each.body is not None]) < MANY + 5
    ):
        await settled()
        consumer.grant_credit()
        broker.turns.end()
        got += decoded(b"".join(consumer.take_output()))
    assert sorted(bodies) == [b"%04d" % number for number in range(10, MANY + 15)]
    assert bodies[-5:] == [b"%04d" % number for number in range(MANY + 10, MANY + 15)], "their order was lost"


@on_nodes()
async def test_publishers_wait_in_turn_and_one_that_goes_is_passed_over(nodes: Nodes) -> None:
    broker = await start(nodes)
    first, second = [await open_channel(broker) for _ in range(2)]
    nodes.log("a").cut(True)
    await say(broker, first, numbered(0, MANY))
    sent = under_way(broker)
    await say(broker, second, publish(1, "", "q", b"its first"))
    assert under_way(broker) == sent + 1, "who has not published yet is not known as a publisher"
    await say(broker, second, publish(1, "", "q", b"its second"))
    assert under_way(broker) == sent + 1
    first.lost()
    broker.turns.end()
    nodes.log("a").cut(False)
    await settled()
    assert queue_of(broker, "q").messages_ready == sent + 2, "a client that is gone published"
    assert not second.gate.waiting


@on_nodes()
async def test_who_waits_is_told_that_publishing_is_held_back(nodes: Nodes) -> None:
    broker = await start(nodes)
    publisher = await open_channel(broker)
    broker.turns.on_blocked.append(publisher.alarm_changed)
    nodes.log("a").cut(True)
    assert await say(broker, publisher, numbered(0, MANY)) == []
    broker.turns.problem("log", "Kafka is away")
    before = publisher.link.state
    assert before == "blocked"
    broker.turns.problem("log", None)
    said = await say(broker, publisher, b"")
    assert [each.name for each in said] == ["Connection.Blocked", "Connection.Unblocked"]
    nodes.log("a").cut(False)
    while queue_of(broker, "q").messages_ready < MANY:
        await settled()
    assert publisher.link.state == "running"


def test_a_log_that_is_far_away_has_more_under_way() -> None:
    partition: Any = SimpleNamespace(append_position=LEAST_EVENTS, durable_position=0)
    flow = RoundTripFlow([partition])

    def full() -> bool:
        return flow.full

    assert full()
    flow.learn(1.0)
    assert not full()
    partition.append_position = EVENTS_A_SECOND
    assert full()
    flow.learn(2.0)
    assert full(), "a round trip that is slow because there is much to do makes no room for more"
    partition.append_position -= 1
    calls: list[str] = []

    def again(name: str) -> None:
        calls.append(name)
        flow.wait(lambda: again(name))
        partition.append_position += name == "b"

    for name in "abc":
        flow.wait(partial(again, name))

    flow.landed()
    assert calls == ["a", "b"]
    partition.durable_position = partition.append_position
    flow.landed()
    assert calls == ["a", "b", "c", "a", "b"]
