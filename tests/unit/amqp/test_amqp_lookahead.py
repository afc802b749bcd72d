"""The lookahead of a consumer over AMQP, at nodes that fold only what they read back (engine/amqp/lookahead.py)."""

import pytest

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.amqp.lookahead import LookaheadConsumer
from rewindmq.engine.amqp.output import KEPT_BYTES
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.http.statistics import depth_of
from rewindmq.projections.machine.data.queue import Queue
from tests.support.amqp_wire import HANDSHAKE, IdleSocket, Said, decoded, method, publish
from tests.support.memory_nodes import Nodes, on_nodes, settled
from tests.support.queues import queue_of

PREFETCH = 50
TYPES = pytest.mark.parametrize("type", ["classic", "quorum"])


class Client:
    """A connection with one channel, and the deliveries that its client has."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = Connection(broker, "client:1", True, IdleSocket())
        self.deliveries: list[Said] = []  # all that came
        self.settled = 0
        self.prefetch = PREFETCH
        self.names: list[str] = []  # of all other methods

    async def say(self, frames: bytes = b"", awaited: str | None = None) -> None:
        """Send these, and take what the broker says, until it has said the method that is awaited."""
        self.connection.receive(frames)
        self.broker.turns.end()
        while True:
            await settled()
            for each in decoded(b"".join(self.connection.take_output())):
                if each.name == "Basic.Deliver":
                    self.deliveries.append(each)
                else:
                    self.names.append(each.name)
            assert len(self.deliveries) - self.settled <= self.prefetch, "a client has more than its prefetch"
            if awaited is None or awaited in self.names:
                self.names.clear()
                return

    async def ack(self, count: int) -> None:
        self.settled += count
        await self.say(method(1, "Basic.Ack", delivery_tag=self.settled, multiple=True))

    @property
    def bodies(self) -> list[int]:
        return [int(each.body or b"") for each in self.deliveries]


async def opened(broker: Broker) -> Client:
    client = Client(broker)
    await client.say(HANDSHAKE + method(1, "Channel.Open"), "Channel.OpenOk")
    return client


async def consuming(
    broker: Broker, type: str = "classic", prefetch: int = PREFETCH, arguments: dict[str, object] | None = None
) -> Client:
    client = await opened(broker)
    client.prefetch = prefetch
    kind = {"x-queue-type": type} | (arguments or {})
    await client.say(method(1, "Queue.Declare", queue="q", durable=True, arguments=kind), "Queue.DeclareOk")
    await client.say(method(1, "Basic.Qos", prefetch_count=prefetch), "Basic.QosOk")
    await client.say(method(1, "Basic.Consume", queue="q", consumer_tag="c"), "Basic.ConsumeOk")
    return client


async def published(client: Client, first: int, count: int) -> None:
    await client.say(b"".join(publish(1, "", "q", b"%d" % number) for number in range(first, first + count)))


async def with_lookahead(broker: Broker, type: str = "classic") -> Client:
    """A client that has settled a prefetch since the last look. 500 messages were published."""
    client = await consuming(broker, type)
    await published(client, 0, 500)
    await settle_fast(client)
    assert lookahead(broker) == PREFETCH
    assert client.bodies == list(range(len(client.bodies)))
    return client


async def settle_fast(client: Client) -> None:
    for _ in range(2):
        await client.ack(PREFETCH)
    await look(client)


async def look(client: Client) -> None:
    """Let the consumer look at what was settled. No time passes for it by itself."""
    consumer = client.connection.channels[1].consumers["c"]
    if isinstance(consumer, LookaheadConsumer):
        consumer.look()
    await client.say()


@pytest.fixture(autouse=True)
def looks_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.amqp.lookahead.LOOK_SECONDS", 3_600.0)


def lookahead(broker: Broker) -> int:
    return sum(holder.lookahead for holder in queue_of(broker, "q").holders.values())


def held(queue: Queue) -> int:
    return sum(len(holder.held) for holder in queue.holders.values())


@TYPES
@on_nodes()
async def test_a_fast_client_gets_the_next_messages_before_its_ack_is_read_back(nodes: Nodes, type: str) -> None:
    broker = await nodes.start("a")
    client = await with_lookahead(broker, type)
    nodes.log("a").cut(True)
    had = len(client.deliveries)
    await client.ack(30)
    assert len(client.deliveries) == had + 30
    await client.ack(30)
    assert len(client.deliveries) == had + PREFETCH, "the lookahead is as large as the prefetch"
    nodes.log("a").cut(False)
    while len(client.deliveries) < 500:
        await client.ack(len(client.deliveries) - client.settled)
    assert client.bodies == list(range(500))
    assert not any(each.redelivered for each in client.deliveries)


@TYPES
@on_nodes()
async def test_a_client_that_stops_settling_loses_its_lookahead(nodes: Nodes, type: str) -> None:
    broker = await nodes.start("a")
    client = await with_lookahead(broker, type)
    queue, had = queue_of(broker, "q"), len(client.deliveries)
    assert held(queue) == 2 * PREFETCH
    ready = {"messages": 400, "messages_ready": 350, "messages_unacknowledged": 50}
    assert depth_of([queue]) == ready, "to a user what is in the lookahead is ready"
    assert [each.unacked for each in queue.consumers()] == [PREFETCH]
    for _ in range(3):
        await look(client)
    assert (lookahead(broker), held(queue), len(client.deliveries)) == (0, PREFETCH, had)
    assert depth_of([queue]) == ready
    while len(client.deliveries) < 500:
        await client.ack(len(client.deliveries) - client.settled)
    assert client.bodies == list(range(500))
    assert not any(each.redelivered for each in client.deliveries)


@TYPES
@pytest.mark.parametrize("end", ["cancel", "channel", "connection", "lost"])
@on_nodes()
async def test_what_was_not_sent_comes_back_as_it_was(nodes: Nodes, type: str, end: str) -> None:
    broker = await nodes.start("a")
    client = await with_lookahead(broker, type)
    queue, had = queue_of(broker, "q"), len(client.deliveries)
    if end == "cancel":
        await client.say(method(1, "Basic.Cancel", consumer_tag="c"), "Basic.CancelOk")
        assert (len(client.deliveries), held(queue)) == (had, PREFETCH)
        await client.ack(PREFETCH)
    elif end == "channel":
        await client.say(method(1, "Channel.Close", reply_code=200), "Channel.CloseOk")
    elif end == "connection":
        await client.say(method(0, "Connection.Close", reply_code=200), "Connection.CloseOk")
    else:
        client.connection.lost()
        broker.turns.end()
    await settled()
    assert (len(client.deliveries), held(queue)) == (had, 0)
    other = await consuming(broker, type, prefetch=500)
    await other.say()
    first = had if end == "cancel" else had - PREFETCH
    assert other.bodies == list(range(first, 500))
    assert [each.redelivered for each in other.deliveries] == [number < had for number in other.bodies]
    counted = [(each.properties.headers or {}).get("x-delivery-count") for each in other.deliveries]
    assert counted == [1 if number < had and type == "quorum" else None for number in other.bodies]


@TYPES
@on_nodes()
async def test_another_consumer_at_another_node_ends_it(nodes: Nodes, type: str) -> None:
    here, there = await nodes.start("a"), await nodes.start("b")
    client = await consuming(here, type)
    await published(client, 0, 2 * PREFETCH)
    await client.say()
    await settle_fast(client)
    await published(client, 2 * PREFETCH, 2 * PREFETCH)
    assert held(queue_of(here, "q")) == 2 * PREFETCH
    had = len(client.deliveries)
    other = await consuming(there, type)
    assert (lookahead(here), len(other.deliveries)) == (0, 0)
    await look(client)
    await other.say()
    assert other.bodies == list(range(had, had + PREFETCH))
    assert not any(each.redelivered for each in other.deliveries)
    await settle_fast(client)
    assert lookahead(here) == 0


@pytest.mark.parametrize("arguments", [{"x-max-priority": 3}, {"x-single-active-consumer": True}])
@on_nodes()
async def test_some_queues_have_none(nodes: Nodes, arguments: dict[str, object]) -> None:
    broker = await nodes.start("a")
    client = await consuming(broker, arguments=arguments)
    await published(client, 0, 500)
    await settle_fast(client)
    assert lookahead(broker) == 0


@on_nodes()
async def test_neither_has_a_small_prefetch_nor_a_shared_one(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    small = await consuming(broker, prefetch=PREFETCH - 1)
    await published(small, 0, 500)
    for _ in range(3):
        await small.ack(PREFETCH - 1)
    await look(small)
    assert lookahead(broker) == 0
    await small.say(method(1, "Channel.Close", reply_code=200), "Channel.CloseOk")
    await small.say(method(1, "Channel.Open") + method(1, "Queue.Purge", queue="q"), "Queue.PurgeOk")
    client = await with_lookahead(broker)
    await client.say(method(1, "Basic.Qos", prefetch_count=PREFETCH, **{"global_": True}), "Basic.QosOk")
    await look(client)
    assert (lookahead(broker), held(queue_of(broker, "q"))) == (0, PREFETCH)


@on_nodes()
async def test_a_purge_leaves_the_lookahead_and_a_deleted_queue_nothing(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    client = await with_lookahead(broker)
    had = len(client.deliveries)
    await client.say(method(1, "Queue.Purge", queue="q"), "Queue.PurgeOk")
    await client.ack(PREFETCH)
    assert client.bodies == list(range(had + PREFETCH))
    consumer = client.connection.channels[1].consumers["c"]
    await client.say(method(1, "Queue.Delete", queue="q"), "Queue.DeleteOk")
    assert isinstance(consumer, LookaheadConsumer)
    consumer.look()
    await client.say()
    assert len(client.deliveries) == had + PREFETCH


@on_nodes()
async def test_requeued_messages_come_after_the_lookahead(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    client = await with_lookahead(broker)
    had = len(client.deliveries)
    client.settled += PREFETCH
    await client.say(method(1, "Basic.Recover", requeue=True), "Basic.RecoverOk")
    assert client.bodies[had:] == list(range(had, had + PREFETCH))
    await client.ack(PREFETCH)
    assert client.bodies[had + PREFETCH :] == list(range(had - PREFETCH, had))
    assert all(each.redelivered for each in client.deliveries[had + PREFETCH :])


@on_nodes()
async def test_a_large_body_waits_in_the_store(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    client = await consuming(broker)
    await published(client, 0, 3 * PREFETCH)
    await settle_fast(client)
    large = [b"%d" % number + b" " * KEPT_BYTES for number in range(3 * PREFETCH, 4 * PREFETCH)]
    await client.say(b"".join(publish(1, "", "q", body) for body in large))
    consumer = client.connection.channels[1].consumers["c"]
    assert isinstance(consumer, LookaheadConsumer)
    assert [message for _, _, _, message in consumer.lookahead] == [None] * PREFETCH
    await client.ack(PREFETCH)
    assert [each.body for each in client.deliveries[-PREFETCH:]] == large


@on_nodes()
async def test_a_consumer_of_a_stream_reads_on(nodes: Nodes) -> None:
    broker = await nodes.start("a")
    client = await consuming(broker, "stream")
    await published(client, 0, 3 * PREFETCH)
    while len(client.deliveries) < 3 * PREFETCH:
        await client.ack(len(client.deliveries) - client.settled)
    assert client.bodies == list(range(3 * PREFETCH))
