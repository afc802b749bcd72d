"""Streams in the simulation: readers beside everything else that happens, faults and crashes.

Each reader, in each life of the broker, finds the same message under the same number. It reads in the order of the
numbers, without a gap except where retention cut. The fold of the streams is judged as that of all queues.
"""

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session, Subscription
from rewindmq.engine.rewind.reader import Reader
from rewindmq.projections.machine.data.effects import Deliver
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.stream import first_number
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import parse
from rewindmq.schemas.events import Published
from tests.simulation.clients import DEAD, Clients, arguments
from tests.simulation.history import STEPS, WEIGHTS
from tests.simulation.judge import judge
from tests.simulation.world import World

SEEDS = range(40)
STREAMS: dict[str, dict[str, bool | int | str]] = {
    "s0": {"x-queue-type": "stream"},
    "s1": {"x-queue-type": "stream", "x-max-length-bytes": 60},
    "s2": {"x-queue-type": "stream", "x-max-age": "1s"},
}
MORE = {"read": 10, "go on": 16, "leave": 2}


class StreamTaker:
    """Reads a stream: every message is held against what anybody found under its number."""

    def __init__(self, clients: "Readers", session: Session, channel: int) -> None:
        self.clients = clients
        self.session = session
        self.channel = channel
        self.reader: Reader | None = None
        self.congested = False
        self.relief: list[Callable[[], None]] = []
        self.unsettled = 0
        self.last = -1
        self.ended = False

    def moved(self, partition: Partition, queue: Queue) -> None:
        raise AssertionError("no queue moves here")

    def reads_by(self, reader: Reader) -> None:
        self.reader = reader

    def when_relieved(self, callback: Callable[[], None]) -> None:
        self.relief.append(callback)

    def deliver(self, partition: Partition, effect: Deliver, message_id: int, message: Published) -> None:
        self.clients.world.passed("deliver")
        assert not self.congested
        number = int(str(tables.mapping(parse(message.properties).header_table())["x-stream-offset"]))
        assert message_id < partition.durable_offset, "read before it was durable"
        assert self.last < 0 or number == max(self.last + 1, first_number(effect.queue)), "out of order"
        assert self.clients.found.setdefault((effect.queue.name, number), message.body) == message.body
        self.last = number
        self.unsettled += 1
        self.clients.world.witness.counts["read"] += 1

    def cancelled(self) -> None:
        self.ended = True


class Readers(Clients):
    def __init__(self, world: World) -> None:
        self.found: dict[tuple[str, int], bytes] = {}
        self.readers: list[StreamTaker] = []
        super().__init__(world)
        self.kinds |= {"read": self.read, "go on": self.go_on, "leave": self.leave}

    def prepare(self) -> None:
        session = self.open()
        broker = self.world.broker
        for name, given in STREAMS.items():
            broker.queues.declare(session, name, False, True, False, False, arguments(given))
            for exchange in ("amq.fanout", "amq.topic"):
                broker.exchanges.bind(session, exchange, "queue", name, "#", ())
        broker.turns.end()
        self.world.loop.run(10)
        super().prepare()

    def meet(self) -> None:
        super().meet()
        self.readers = []

    def read(self) -> str:
        session, name = self.dice.choice(self.sessions), self.dice.choice(list(STREAMS))
        start = self.dice.choice(("first", "first", "last", "next", "1m", self.dice.randrange(40)))
        taker = StreamTaker(self, session, self.dice.choice((1, 2)))
        prefetch = self.dice.choice((1, 3, 100))
        asked = arguments({"x-stream-offset": start})
        subscription = Subscription(session, taker.channel, "tag", prefetch=prefetch, arguments=asked)
        self.world.broker.consumers.consume(name, subscription, taker)
        self.readers.append(taker)
        return f"{name} from {start}, prefetch {prefetch}"

    def go_on(self) -> str:
        if not self.readers:
            return "nobody"
        taker = self.dice.choice(self.readers)
        assert taker.reader is not None
        if taker.congested or self.dice.random() < 0.2:
            taker.congested = not taker.congested
            relief, taker.relief = taker.relief, []
            for callback in relief:
                callback()
        settled, taker.unsettled = taker.unsettled, 0
        taker.reader.credited(settled)
        return f"{settled} settled{', congested' if taker.congested else ''}"

    def leave(self) -> str:
        if not self.readers:
            return "nobody"
        taker = self.readers.pop(self.dice.randrange(len(self.readers)))
        assert taker.reader is not None
        reader = taker.reader
        if not reader.over:
            self.world.broker.consumers.cancel(taker.session, reader.partition, reader.queue, reader.consumer_id)
        return f"{reader.queue.name}"

    def heal_and_drain(self) -> None:
        """In a last life everything of every stream is read; then the streams go, and the rest is drained."""
        world = self.world
        world.disarm()
        world.restart(healed=True)
        session = self.open()
        for name in STREAMS:
            queue = world.broker.queues.get("/", name)
            taker = StreamTaker(self, session, 1)
            asked = arguments({"x-stream-offset": "first"})
            world.broker.consumers.consume(
                name, Subscription(session, 1, "tag", prefetch=10_000, arguments=asked), taker
            )
            world.broker.turns.end()
            world.loop.run(1)
            assert taker.last == queue.published - 1 or queue.messages_ready == 0
            world.broker.queues.delete(session, name, False, False)
            world.broker.turns.end()
            world.loop.run(1)
            assert taker.ended
        world.broker.sessions.close(session)
        super().heal_and_drain()


@pytest.mark.long(seed=SEEDS[12:])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_number_means_one_message_whatever_happens(seed: int) -> None:
    dice = random.Random(f"streams {seed}")
    weights = WEIGHTS | MORE
    history = [(kind, dice.getrandbits(32)) for kind in dice.choices(list(weights), list(weights.values()), k=STEPS)]
    directory = Path(tempfile.mkdtemp(prefix="simulation-"))
    world = World(seed, directory)
    try:
        with world.running():
            world.start()
            clients = Readers(world)
            clients.prepare()
            for number, step in enumerate(history):
                clients.do(step)
                if number % 8 == 0:
                    world.claim_live()
                    world.validate()
                assert not world.defects, world.defects[0]
            clients.heal_and_drain()
            world.claim_live()
            world.stop()
            for account in judge(world.log, world.witness, DEAD, True):
                account.count(world.witness)
            assert not world.defects, world.defects[0]
    except BaseException as error:
        error.add_note("\n".join(world.witness.trace))
        raise
    finally:
        shutil.rmtree(directory)
    assert world.witness.counts["read"] > 0
