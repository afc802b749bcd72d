"""Stories of simulated nodes that a test tells step by step."""

from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVarTuple

import pytest

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.log.simulated.shared import SharedFaults
from rewindmq.schemas.service_records import SharedDecoder
from tests.simulation.nodes_clients import Clients, broker_of
from tests.simulation.nodes_connections import Client
from tests.simulation.nodes_world import Life, World

Given = TypeVarTuple("Given")


class Story:
    """A log without faults, and nodes `a` and `b`, unless the story has others."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients = Clients(world)
        world.nodes = ["a", "b"]
        world.skew_ms = dict.fromkeys(world.nodes, 0)
        world.rocks = {world._state(node): type(next(iter(world.rocks.values())))() for node in world.nodes}
        world.history.faults = SharedFaults()

    def start(self, node: str) -> Life:
        life = self.world.loop.inside(lambda: self.world.start(node))
        self.world.loop.run(1)
        return life

    def client(self, life: Life) -> Client:
        return self.world.loop.inside(lambda: self.clients.open(life))

    def ask(
        self, client: Client, work: Callable[[Broker, *Given], Coroutine[Any, Any, object]], *given: *Given
    ) -> list[object]:
        """The answer, or the error, once there is one."""
        answers: list[object] = []

        async def wait() -> None:
            try:
                answers.append(await work(broker_of(client.life), *given))
            except AmqpError as error:
                answers.append(error)

        self.world.loop.inside(lambda: self.clients.ask(client, wait()))
        self.world.loop.run(0.1)
        return answers


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    world = World(0, tmp_path)
    with world.running():
        yield Story(world)
        assert not world.defects, world.defects[0]


def events_of(story: Story, partition: int) -> list[object]:
    """Return all events of a partition."""
    decoder = SharedDecoder()
    return [decoder.decode(value)[2] for value in story.world.history.queues[partition].values]
