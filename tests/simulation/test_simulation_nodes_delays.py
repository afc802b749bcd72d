"""Delayed messages on a shared log: hidden queues and their exchanges are in two logs, which nodes read one by one."""

from typing import Any

from rewindmq.engine.routing.content import Content
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import ExchangeDeclared, ExchangeDeleted
from rewindmq.schemas.values import BROKER
from tests.simulation.clients import PERSISTENT, arguments
from tests.simulation.nodes_clients import broker_of
from tests.simulation.nodes_connections import Client
from tests.simulation.nodes_story import Story, events_of
from tests.simulation.nodes_world import Life

EXCHANGE = "later"
HIDDEN = "amq.delayed.later"
TYPE = arguments({"x-delayed-type": "fanout"})


def declare(story: Story, client: Client) -> list[object]:
    return story.ask(
        client,
        lambda broker: broker.exchanges.declare(
            client.session, EXCHANGE, "x-delayed-message", False, True, False, False, TYPE
        ),
    )


def bind(story: Story, client: Client, queue: str = "q1") -> None:
    story.ask(client, lambda broker: broker.queues.declare(client.session, queue, False, True, False, False, ()))
    story.ask(client, lambda broker: broker.exchanges.bind(client.session, EXCHANGE, "queue", queue, "", ()))


def send(story: Story, client: Client, body: bytes, delay_ms: int) -> None:
    """As engine/amqp does."""

    def publish() -> None:
        broker = broker_of(client.life)
        headers = b"\x07x-delayl" + delay_ms.to_bytes(8, "big")
        raw = b"\x30\x00" + len(headers).to_bytes(4, "big") + headers + PERSISTENT[2:]
        (destination,) = broker.exchanges.route(client.session, EXCHANGE, "", Content(raw))
        assert destination.delay_ms == delay_ms
        destination.partition.publish(
            client.session.actor,
            Published(destination.route, raw, expiration_ms=delay_ms, persistent=True, body=body, body_size=len(body)),
        )
        broker.turns.end()

    story.world.loop.inside(publish)
    story.world.loop.run(0.1)


def came(story: Story, life: Life, queue: str = "q1") -> list[bytes]:
    """Bodies of what was published into the queue, by the log."""
    index = broker_of(life).queues.partition_for("/", queue).index
    return [each.body for each in events_of(story, index) if isinstance(each, Published) and queue in each.route.queues]


def assign(story: Story, node: str) -> None:
    story.world.history.assign({partition.name: [node] for partition in story.world.history.queues})


def hidden(life: Life) -> Any:
    return broker_of(life).queues.get("/", HIDDEN)


def test_one_node_publishes_another_forwards_and_one_may_die(story: Story) -> None:
    first, second = story.start("a"), story.start("b")
    assign(story, "a")
    client = story.client(second)
    declare(story, client)
    bind(story, client)
    send(story, client, b"soon", 2_000)
    send(story, client, b"later", 30_000)
    story.world.loop.run(5)
    assert came(story, second) == [b"soon"]
    story.world.loop.inside(lambda: story.world.kill(first))
    assign(story, "b")
    story.world.loop.run(60)
    assert came(story, second) == [b"soon", b"later"]
    queue = broker_of(second).queues.get("/", "q1")
    assert queue is not None
    assert queue.messages_ready == 2
    assert hidden(second).messages_delayed == 0
    assert not hidden(second).outbox


def test_deleted_and_declared_anew_at_another_node_it_is_empty(story: Story) -> None:
    first, second = story.start("a"), story.start("b")
    assign(story, "a")
    one, other = story.client(first), story.client(second)
    declare(story, other)
    send(story, other, b"old", 2_000)
    story.ask(other, lambda broker: broker.exchanges.delete(other.session, EXCHANGE, False))
    story.world.loop.run(1)
    assert hidden(first) is None
    declare(story, one)
    bind(story, one)
    send(story, other, b"new", 2_000)
    story.world.loop.run(10)
    assert came(story, first) == [b"new"]


def test_what_a_node_left_half_done_is_mended(story: Story) -> None:
    """It died between the exchange and its queue; another one between the end of the exchange and that of the queue."""
    life = story.start("a")
    assign(story, "a")
    log = story.world.history.metadata

    def tell(event: Any) -> None:
        encoder = Encoder()
        story.world.loop.inside(lambda: log.put(b"", encoder.encode(encoder.prefix(1, BROKER), event)))
        story.world.loop.run(10)

    tell(
        ExchangeDeclared(
            "/", EXCHANGE, type="x-delayed-message", durable=True, auto_delete=False, internal=False, arguments=TYPE
        )
    )
    assert hidden(life) is not None
    tell(ExchangeDeleted("/", EXCHANGE))
    assert hidden(life) is None


def test_an_owner_that_is_behind_keeps_the_queue_of_an_unknown_exchange(story: Story) -> None:
    owner, other = story.start("a"), story.start("b")
    assign(story, "a")
    owner.log.hold([story.world.history.metadata.name])
    client = story.client(other)
    declare(story, client)
    bind(story, client)
    send(story, client, b"m", 20_000)
    story.world.loop.inside(broker_of(owner).router.queues_changed)  # it has a reason to look
    story.world.loop.run(8)
    owner.log.hold(())
    story.world.loop.run(30)
    assert came(story, other) == [b"m"]
