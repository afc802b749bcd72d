"""Histories in which the log gets more partitions, and queues move to them (engine/placement).

Four more steps: an operator asks for partitions; nodes that do not work with all partitions are started again; a node
hears nothing of what the others have decided; and clients publish while queues move.
"""

import random
from functools import partial

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.placement.moves import LEFT_OVER
from rewindmq.engine.placement.request import ask_for
from rewindmq.projections.topology.placement import Placement
from rewindmq.schemas.values import Actor
from tests.simulation.clients import QUEUES
from tests.simulation.nodes_clients import Clients, Step, broker_of
from tests.simulation.nodes_connections import Client
from tests.simulation.nodes_world import World

MOST = 9  # partitions
STEPS = 140

# Many messages in few queues that are deleted seldom, so that much of it moves.
REPARTITIONS = {
    "publish": 30,
    "settle": 16,
    "consume": 9,
    "fetch": 4,
    "credit": 4,
    "cancel": 2,
    "declare": 6,
    "delete": 2,
    "purge": 1,
    "bind": 3,
    "policy": 2,
    "connect": 3,
    "close": 3,
    "wait": 16,
    "kill": 2,
    "stop": 1,
    "start": 8,
    "cut": 2,
    "mend": 4,
    "owners": 4,
    "foreign": 1,
    "clock": 1,
    "exchange": 1,
    "vhost": 2,
    "hold": 4,
    "repartition": 5,
    "restart": 12,
    "deafen": 3,
    "rush": 14,
}


def moves_of(seed: int, steps: int = STEPS) -> list[Step]:
    """The seed's history with repartitions."""
    dice = random.Random(f"nodes' steps with repartitions {seed}")
    kinds = dice.choices(list(REPARTITIONS), list(REPARTITIONS.values()), k=steps)
    return [(kind, dice.getrandbits(32)) for kind in kinds]


class MovingClients(Clients):
    """Clients, and an operator who wants more partitions."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.kinds |= {
            "repartition": self.repartition,
            "restart": self.restart,
            "deafen": self.deafen,
            "rush": self.rush,
        }

    def repartition(self) -> str:
        client, more = self.idle(), self.dice.choice((1, 1, 2, 3))
        if client is None:
            return "nobody"
        wanted = min(MOST, len(broker_of(client.life).partitions) + more)
        self.ask(client, ask_for(broker_of(client.life).repartition, Actor("guest", 0), wanted))
        return f"{client.life.name} {wanted}"

    def restart(self) -> str:
        """Nodes that do not work with all partitions end, and are started again: one of them, or all."""
        world = self.world
        smaller = [life for life in world.lives.values() if len(life.machines) < len(world.history.queues)]
        if not smaller:
            return "none has to be"
        chosen = smaller if self.dice.random() < 0.3 else [self.dice.choice(smaller)]
        for life in chosen:
            if self.dice.random() < 0.3:
                world.kill(life)
            else:
                world.stop(life)
            world.start(life.node)
        return " ".join(life.name for life in chosen)

    def deafen(self) -> str:
        """A node hears no more of names that wait, nor that it was declared lost, and goes on with its clients."""
        found = [life for life in self.serving() if not life.log.is_cut]
        if not found:
            return "nobody"
        life = self.dice.choice(found)
        life.log.hold([life.log.metadata.name, life.log.nodes.name])
        return life.name

    def rush(self) -> str:
        """Clients of all nodes go on publishing for a while, each to one queue."""
        told = []
        for life in self.serving():
            client = next((each for each in self.clients if each.life is life and each.session.vhost == "/"), None)
            if client is None:
                client = self.open(life)
            key, seconds = self.dice.choice(QUEUES), self.dice.choice((0.02, 0.1, 0.3))
            for number in range(12):
                self.world.loop.call_later(number * seconds, partial(self.rushed, client, key))
            told.append(f"{life.name} {key} every {seconds} s")
        return ", ".join(told)

    def rushed(self, client: Client, key: str) -> None:
        if not (client.closed or client.asking or client.life.ended):
            self.publish_one(client, "", key, None)
            broker_of(client.life).turns.end()


def followed(placement: Placement, name: str, partition: int, queue_id: int) -> tuple[int, int]:
    """The partition and the id that the queue has now which had this id in this partition."""
    for move in placement.moves.get(("/", name), ()):
        if (move.source, move.from_id) == (partition, queue_id):
            partition, queue_id = move.target, move.to_id
    return partition, queue_id


def unmoved(broker: Broker, strays: bool = False) -> str:
    """Return the unfinished part of a repartition in words, or an empty text if there is none.

    `strays`: also report queues that stay without a reason, and messages left in partitions that queues have left."""
    placement = broker.topology.placement
    if placement.held or placement.wanted != placement.count:
        return f"queues are placed by {placement.count}, not by {placement.wanted}; held: {placement.held}"
    if placement.moving:
        return f"on their way: {placement.moving}"
    if not strays:
        return ""
    repartition = broker.repartition
    due = [name for name in placement.staying if repartition.moves.why_not_now(name) in ("", LEFT_OVER)]
    if due:
        return f"not moved: {due}"
    left = [
        f"{queue.name} in partition {index}"
        for index, _, queue_id in placement.strays()
        if (queue := broker.partitions[index].machine.by_id.get(queue_id)) is not None and not queue.gone
    ]
    return f"{', '.join(left)} left something" if left else ""
