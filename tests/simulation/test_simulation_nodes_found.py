"""Defects that the simulation of several nodes has found do not come back. Each is told as a short story."""

from typing import Any

import pytest

from rewindmq.engine.errors import NotFound
from rewindmq.engine.log.simulated.shared import SharedFaults
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import NodeLost, PolicyApplied, Tick
from rewindmq.schemas.metadata_events import ExchangeDeleted, NodeJoined, PolicyCleared, PolicySet, VhostDeleted
from rewindmq.schemas.values import BROKER, Actor, Policy
from tests.simulation.clients import Settings, arguments
from tests.simulation.nodes_clients import broker_of
from tests.simulation.nodes_connections import Taker
from tests.simulation.nodes_story import Story, events_of


def put(story: Story, partition: int, event: Any) -> None:
    """As another node would."""
    encoder = Encoder()
    log = story.world.history.partitions[partition]
    story.world.loop.inside(lambda: log.put(b"", encoder.encode(encoder.prefix(1, BROKER), event)))


@pytest.mark.parametrize("skew_ms", [5_000, -5_000])
def test_a_clock_that_is_seconds_off_is_worth_one_tick(story: Story, skew_ms: int) -> None:
    """A node whose clock is ahead of the log's sent Ticks before their time, and approached the difference by a
    sixteenth with each: more than a hundred of them for every deadline."""
    life = story.start("a")
    client = story.client(life)
    given = arguments({"x-message-ttl": 1_000})
    story.ask(client, lambda broker: broker.queues.declare(client.session, "q1", False, True, False, False, given))
    index = broker_of(life).queues.partition_for("/", "q1").index
    story.world.skew_ms["a"] += skew_ms
    for _ in range(5):
        story.world.loop.inside(lambda: story.clients.publish_one(client, "", "q1", None))
        story.world.loop.inside(broker_of(life).turns.end)
        story.world.loop.run(20)
    queue = broker_of(life).queues.get("/", "q1")
    assert queue is not None
    assert queue.messages_ready == 0
    assert 5 <= sum(isinstance(event, Tick) for event in events_of(story, index)) <= 7


def test_a_clock_never_compared_with_the_logs_is_worth_one_tick(story: Story) -> None:
    life = story.start("a")
    client = story.client(life)
    given = arguments({"x-message-ttl": 1_000})
    story.ask(client, lambda broker: broker.queues.declare(client.session, "q1", False, True, False, False, given))
    index = broker_of(life).queues.partition_for("/", "q1").index
    story.world.loop.inside(lambda: story.clients.publish_one(client, "", "q1", None))
    story.world.skew_ms["b"] = 5_000
    story.world.loop.inside(lambda: story.world.kill(life))
    story.start("b")
    story.world.loop.run(20)
    assert sum(isinstance(event, Tick) for event in events_of(story, index)) <= 4


def test_a_binding_to_an_exchange_that_another_node_deleted_is_refused(story: Story) -> None:
    """It was: the fold drops a binding from an exchange that is gone, and the client published into nothing."""
    client = story.client(story.start("a"))
    name = "events"
    assert story.ask(
        client, lambda broker: broker.exchanges.declare(client.session, name, "fanout", False, True, False, False, ())
    ) == [None]
    story.ask(client, lambda broker: broker.queues.declare(client.session, "q1", False, True, False, False, ()))
    put(story, 0, ExchangeDeleted("/", name))
    [refused] = story.ask(client, lambda broker: broker.exchanges.bind(client.session, name, "queue", "q1", "", ()))
    assert isinstance(refused, NotFound)
    assert refused.text == "no exchange 'events' in vhost '/'"


def test_the_first_user_is_made_if_the_first_node_died_before(story: Story) -> None:
    """Only the node of the very first event saw to it."""
    put(story, 0, NodeJoined("dead", "", 1, ""))
    client = story.client(story.start("a"))
    assert client.session.user == "guest"


def test_a_node_that_is_lost_before_it_knows_that_it_joined_joins_again(story: Story) -> None:
    """It read that it had joined and that it was lost in one go, and went on in a life that was over: where the
    partitions knew that already, nothing told it so, and what it confirmed was ignored by every fold."""
    life = story.start("a")
    world = story.world
    joining = world.loop.inside(lambda: world.start("b"))
    world.loop.run(0)
    joining.log.cut(True)  # its NodeJoined waits
    world.loop.run(0.5)
    epoch = world.history.metadata.next_offset
    while joining.log.metadata.under_way:
        world.loop.inside(lambda: joining.log.metadata.land(1))
    for partition in (0, 2, 3, 4):
        put(story, partition, NodeLost("b", epoch, "lapsed"))
    world.loop.run(1)
    world.loop.inside(lambda: joining.log.cut(False))
    world.loop.run(3)
    assert joining.serves
    assert joining.broker is not None
    assert joining.broker.keeper.epoch > epoch
    assert joining.broker.keeper.epoch in broker_of(life).topology.nodes


def test_refusals_that_nobody_asks_for_any_more_are_forgotten(story: Story) -> None:
    """Duties went while an at-least-once letter was on its way: what its target said to it was kept for ever."""
    life = story.start("a")
    client = story.client(life)
    given: Settings = {
        "x-queue-type": "quorum",
        "x-message-ttl": 10,
        "x-dead-letter-exchange": "",
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-routing-key": "q2",
    }
    declared: dict[str, Settings] = {"q2": {}, "q1": given}
    for name, settings in declared.items():
        story.ask(
            client,
            lambda broker, name, settings: broker.queues.declare(
                client.session, name, False, True, False, False, arguments(settings)
            ),
            name,
            settings,
        )
    story.world.history.faults = SharedFaults(append_seconds=0.5)
    story.world.loop.inside(lambda: story.clients.publish_one(client, "", "q1", None))
    target = broker_of(life).queues.partition_for("/", "q2")
    for _ in range(500):
        if not target._refusals:
            story.world.loop.run(0.01)
    assert target._refusals
    story.world.history.assign({partition.name: [] for partition in story.world.history.queues})
    story.world.loop.run(5)
    assert not target._refusals


def test_who_is_gone_while_time_passes_gets_no_consumer(story: Story) -> None:
    """A deadline is due and its Tick on its way, for which basic.consume waits; meanwhile the connection ends. The
    consumer was attached behind the end of its session, and held messages for ever."""
    life = story.start("a")
    client = story.client(life)
    given = arguments({"x-message-ttl": 1_000})
    story.ask(client, lambda broker: broker.queues.declare(client.session, "q1", False, True, False, False, given))
    story.world.history.assign({partition.name: [] for partition in story.world.history.queues})
    story.world.loop.run(0.1)
    story.world.loop.inside(lambda: story.clients.publish_one(client, "", "q1", None))
    story.world.loop.run(3)
    machine = broker_of(life).queues.partition_for("/", "q1").machine
    assert machine.deadline_ms() is not None

    def consume_and_go() -> None:
        taker = Taker(client, 1, False)
        story.clients.ask(
            client,
            broker_of(life).consumers.consume(
                "q1", Subscription(client.session, 1, "tag", prefetch=1), taker, taker.belongs
            ),
        )

    story.world.history.faults = SharedFaults(append_seconds=0.5)
    story.world.loop.inside(consume_and_go)
    story.world.loop.inside(client.ends)
    story.world.loop.run(5)
    assert machine.deadline_ms() is None
    assert not machine.sessions


# -- an owner that has read further in one partition than in the other ------------------------------------------------


def test_an_owner_that_is_behind_unbinds_no_queue_unknown_to_it(story: Story) -> None:
    """It knew the binding, and not yet the queue: after three looks it was taken for one that is gone."""
    owner, other = story.start("a"), story.start("b")
    names = [partition.name for partition in story.world.history.queues]
    story.world.history.assign({name: ["a"] for name in names})
    owner.log.hold(names)
    client = story.client(other)
    story.ask(client, lambda broker: broker.queues.declare(client.session, "q1", False, True, False, False, ()))
    story.ask(client, lambda broker: broker.exchanges.bind(client.session, "amq.fanout", "queue", "q1", "", ()))
    story.world.loop.run(8)
    owner.log.hold(())
    story.world.loop.run(8)
    assert broker_of(owner).router.route("/", "amq.fanout", "", None)


def test_an_owner_that_is_behind_keeps_the_queues_of_an_unknown_vhost(story: Story) -> None:
    owner, other = story.start("a"), story.start("b")
    story.world.history.assign({partition.name: ["a"] for partition in story.world.history.queues})
    owner.log.hold([story.world.history.metadata.name])
    client = story.client(other)
    story.ask(client, lambda broker: broker.vhosts.create(Actor("guest", 0), "v", ""))
    story.ask(
        client, lambda broker: broker.access.users.set_permissions(Actor("guest", 0), "v", "guest", ".*", ".*", ".*")
    )
    guest = story.world.loop.inside(lambda: story.clients.open(other, "v"))
    story.ask(guest, lambda broker: broker.queues.declare(guest.session, "q1", False, True, False, False, ()))
    broker_of(owner).router.queues_changed()  # it has a reason to look
    story.world.loop.run(8)
    owner.log.hold(())
    story.world.loop.run(8)
    assert broker_of(owner).queues.get("v", "q1") is not None
    story.ask(client, lambda broker: broker.metadata.ask(BROKER, VhostDeleted("v")))
    story.world.loop.run(8)
    assert broker_of(other).queues.get("v", "q1") is None


def test_an_owner_that_is_behind_does_not_put_a_policy_back(story: Story) -> None:
    """It knew the queue with its new policy, and not yet the policy: it applied the one of before, whose limits are
    others."""
    owner, other = story.start("a"), story.start("b")
    story.world.history.assign({partition.name: ["a"] for partition in story.world.history.queues})
    client = story.client(other)
    story.ask(client, lambda broker: broker.queues.declare(client.session, "q1", False, True, False, False, ()))
    story.ask(client, lambda broker: broker.policies.set(Actor("guest", 0), "/", "p", "q", {"max-length": 1}, 0, "all"))
    owner.log.hold([story.world.history.metadata.name])
    story.ask(client, lambda broker: broker.policies.set(Actor("guest", 0), "/", "p", "q", {"max-length": 9}, 0, "all"))
    broker_of(owner).router.queues_changed()  # it has a reason to look
    for _ in range(5):
        story.world.loop.inside(lambda: story.clients.publish_one(client, "", "q1", None))
    story.world.loop.run(8)
    queue = broker_of(other).queues.get("/", "q1")
    assert queue is not None
    assert (queue.settings.max_length, queue.messages_ready) == (9, 5)


# -- a node that has paused a partition, and policies that come and go ------------------------------------------------


@pytest.mark.parametrize("seconds", [0.5, 700])
def test_a_node_heeds_a_cleared_policy_until_every_queue_was_told(story: Story, seconds: float) -> None:
    """The node had paused the queue's partition when the policy was applied and cleared, so it took the queue for one
    that refuses nothing. The queue refused until it was told of the policy's end, which may take its owner any time."""
    story.world.standbys = {"a": 0, "b": 0}
    owner, other = story.start("a"), story.start("b")
    story.world.history.assign({partition.name: ["a"] for partition in story.world.history.queues})
    filler, client = story.client(owner), story.client(other)
    story.ask(filler, lambda broker: broker.queues.declare(filler.session, "q1", False, True, False, False, ()))
    home = broker_of(other).queues.partition_for("/", "q1")
    story.ask(client, lambda broker: home.enter())
    story.world.loop.inside(lambda: story.clients.publish_one(filler, "", "q1", None))
    story.world.loop.run(30)
    assert not home.current
    logs = story.world.history.partitions
    metadata, queues = logs.index(story.world.history.metadata), logs.index(story.world.history.queues[home.index])
    owner.log.hold([logs[metadata].name])  # else it applies what is set
    definition = '{"max-length":1,"overflow":"reject-publish"}'
    policy = Policy("p", definition, logs[metadata].next_offset)
    put(story, metadata, PolicySet("/", "p", "q1", definition, 0, "all"))
    story.world.loop.run(0.5)
    put(story, queues, PolicyApplied("/", "q1", policy, None))
    put(story, metadata, PolicyCleared("/", "p"))
    story.world.loop.run(seconds)
    publish = story.world.loop.inside(lambda: story.clients.publish_one(client, "", "q1", None))
    story.world.loop.run(3)
    assert publish.answers == {0: True}
    assert broker_of(other).effective_policies.ended_below
    owner.log.hold(())
    story.world.loop.run(30)
    publish = story.world.loop.inside(lambda: story.clients.publish_one(client, "", "q1", None))
    story.world.loop.run(3)
    assert publish.answers == {0: False}
    assert not broker_of(other).effective_policies.ended_below, "every queue was told"


def test_a_node_whose_beats_do_not_come_back_confirms_nothing(story: Story) -> None:
    """It heard of its publishes, and not of itself: it was declared lost, and went on confirming. A queue could have
    moved to another partition meanwhile, and what it confirmed was nowhere."""
    story.world.standbys = {"a": 0, "b": 0}
    owner, other = story.start("a"), story.start("b")
    story.world.history.assign({partition.name: ["a"] for partition in story.world.history.queues})
    filler, client = story.client(owner), story.client(other)
    story.ask(filler, lambda broker: broker.queues.declare(filler.session, "q1", False, True, False, False, ()))
    home = broker_of(other).queues.partition_for("/", "q1")
    story.ask(client, lambda broker: home.enter())
    story.world.loop.run(30)
    assert not home.current
    history = story.world.history
    other.log.hold([history.metadata.name, history.nodes.name])
    story.world.loop.run(20)
    publish = story.world.loop.inside(lambda: story.clients.publish_one(client, "", "q1", None))
    story.world.loop.inside(broker_of(other).turns.end)
    story.world.loop.run(5)
    assert publish.answers == {}
    other.log.hold(())
    story.world.loop.run(5)
    assert (publish.answers, client.closed) == ({}, True)
