"""Defects that the simulation has found do not come back. Each is told as a short story."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rewindmq.engine.errors import NotFound
from rewindmq.engine.log.simulated.embedded import Faults, MemoryLog
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.schemas.events import Published
from tests.simulation.clients import Clients, Settings, Taker, arguments
from tests.simulation.world import PARTITIONS, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(0, tmp_path)
    world.log = MemoryLog(PARTITIONS, Faults(commit_delay_seconds=0.5), world.loop.call_later)
    with world.running():
        world.start()
        yield world


def test_b07_a_dead_letter_is_sent_when_its_death_is_durable(world: World) -> None:
    """Sent before, it could survive a crash that undid the death: the message was dead and alive, and the next dead
    letter of the same number was dropped by its target as seen, and lost."""
    broker = world.broker
    session = Clients(world).open()
    broker.queues.declare(session, "dead", False, True, False, False, ())
    given: Settings = {
        "x-max-length": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    source = broker.queues.declare(session, "q1", False, True, False, False, arguments(given))
    partition, target = broker.queues.partition_for("/", "q1"), broker.queues.partition_for("/", "dead")
    assert partition is not target
    broker.turns.end()
    world.loop.run(10)
    destination = broker.exchanges.route(session, "", "q1", None)[0]
    offset = partition.publish(
        session.actor, Published(destination.route, b"\x10\x00\x02", persistent=True, body=b"", body_size=0)
    )
    before = target.log.next_offset
    broker.turns.end()
    assert list(source.outbox) == [1]
    while partition.log.durable_offset <= offset:
        assert target.log.next_offset == before
        world.loop.run(0.001)
    world.loop.run(10)
    queue = broker.queues.get("/", "dead")
    assert queue is not None
    assert queue.messages_ready == 1
    assert not source.outbox


@pytest.mark.parametrize(
    "ask",
    [
        lambda w, s: w.broker.consumers.consume("q", Subscription(s, 1, "tag", prefetch=1), Taker(w, s, 1, False)),
        lambda w, s: w.broker.consumers.fetch(s, 1, Taker(w, s, 1, False), "q", True),
        lambda w, s: w.broker.queues.purge(s, "q"),
    ],
)
def test_s053_a_queue_that_expires_while_it_is_asked_for_is_not_found(
    world: World, ask: Callable[[World, object], object]
) -> None:
    """The timer may be late: the event itself lets the time pass. The client was told that it consumes, and no answer
    to its basic.get ever came."""
    session = Clients(world).open()
    world.broker.queues.declare(session, "q", False, True, False, False, arguments({"x-expires": 200}))
    world.broker.turns.end()
    world.skew_ms += 500
    with pytest.raises(NotFound, match="no queue 'q' in vhost '/'"):
        ask(world, session)
    world.broker.turns.end()
    assert world.broker.queues.get("/", "q") is None


def test_s053_a_queue_that_expires_while_it_is_declared_is_made_anew(world: World) -> None:
    session = Clients(world).open()
    given = arguments({"x-expires": 200})
    old = world.broker.queues.declare(session, "q", False, True, False, False, given)
    world.broker.turns.end()
    world.skew_ms += 500
    new = world.broker.queues.declare(session, "q", False, True, False, False, given)
    assert old.gone
    assert world.broker.queues.get("/", "q") is new


def test_publishing_resumes_when_rocksdbs_disk_has_room_again(world: World) -> None:
    """Held back publishers append nothing, so no group commit came that would have tried again."""
    clients = Clients(world)
    session = clients.open()
    world.broker.queues.declare(session, "q1", False, True, False, False, ())
    world.fill_disk(True)
    for _ in range(100):
        clients.publish_one(session, "", "q1", None)
        world.broker.turns.end()
        world.loop.run(1)
    assert world.broker.turns.blocked is not None
    world.fill_disk(False)
    world.loop.run(60)
    assert world.broker.turns.blocked is None
