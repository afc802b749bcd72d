"""A repartition from 2 to 4 partitions, step by step: the events that the owner of the first partition would append.

steps = Steps(broker)                # its log has 4 partitions, and no queue yet
await steps.add()                    # queues are placed by 2 from here on
await steps.change()                 # names are held, listed, and placed by 4
await steps.begin("q")               # q is held
await steps.end("q")                 # it is declared where it goes, its messages follow, and its name is free
"""

import asyncio
from collections.abc import Iterator

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.placement.leftover_queues import letters_of
from rewindmq.engine.placement.request import DONE, progress_of
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.events.relocation import moved_from
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.events import MetadataEvent, QueueDeclared, QueueDrained
from rewindmq.schemas.placement_events import (
    NamesHeld,
    PartitionsAdded,
    PlacementChanged,
    QueueMoveBegan,
    QueueMoveEnded,
    QueueName,
    QueuesStay,
)
from rewindmq.schemas.values import BROKER
from tests.support.deadlines import eventually

BEFORE, PARTITIONS = 2, 4
WAIT_SECONDS = 20


def movable_names() -> Iterator[str]:
    """Yields names that 4 partitions place elsewhere than 2."""
    number = 0
    while True:
        number += 1
        if partition_of("/", f"q{number}", BEFORE) != partition_of("/", f"q{number}", PARTITIONS):
            yield f"q{number}"


async def until_done(broker: Broker) -> None:
    """Let the broker go on by itself until nothing moves any more."""
    broker.repartition.start()
    async with asyncio.timeout(WAIT_SECONDS):
        while (await progress_of(broker.repartition, Work(broker.host.loop_share))).phase != DONE:
            await asyncio.sleep(0.005)


class Steps:
    """`broker`: of the node that appends the events; it folds all partitions. `others`: of other nodes. None of them
    goes on by itself."""

    def __init__(self, broker: Broker, *others: Broker) -> None:
        for each in (broker, *others):
            each.repartition.stop()
        self.broker = broker
        self.placement = broker.topology.placement

    async def log(self, event: MetadataEvent) -> None:
        """Append an event to the metadata log, and wait until this node has folded it."""
        await self.broker.metadata.ask(BROKER, event)
        self.broker.turns.end()

    async def add(self) -> None:
        await self.log(PartitionsAdded(BEFORE, PARTITIONS))

    async def hold(self) -> None:
        """Hold the names that go elsewhere."""
        await self.log(NamesHeld(PARTITIONS))

    async def place(self) -> None:
        """Place queues by the new number. Those that are there stay."""
        for partition in self.broker.partitions[:BEFORE]:
            stay = [
                QueueName(*name)
                for name in partition.machine.by_name
                if partition_of(*name, PARTITIONS) != partition.index
            ]
            await self.log(QueuesStay(partition.index, tuple(stay)))
        await self.log(PlacementChanged(PARTITIONS))

    async def change(self) -> None:
        await self.hold()
        await self.place()

    def queue(self, name: str) -> tuple[Partition, Queue]:
        """A queue that stays, with its partition."""
        partition = self.broker.partitions[self.placement.staying["/", name]]
        queue = partition.machine.queue("/", name)
        assert queue is not None
        return partition, queue

    async def begin(self, name: str) -> None:
        _, queue = self.queue(name)
        await self.log(QueueMoveBegan("/", name, queue.queue_id, partition_of("/", name, PARTITIONS)))
        await self.broker.nodes.until_known(self.broker.topology.next_offset)

    async def declare(self, name: str) -> Queue:
        """Declare a queue that moves in its new partition."""
        source, queue = self.queue(name)
        target = self.broker.homes.of("/", name)
        await eventually(lambda: queue.consumer_count() == 0)
        await target.ask(
            BROKER,
            QueueDeclared(
                "/",
                name,
                type=queue.type,
                durable=queue.durable,
                exclusive=queue.exclusive,
                auto_delete=queue.auto_delete,
                owner=queue.owner,
                arguments=queue.arguments,
                semantics=queue.semantics,
                policy=queue.policy,
                operator_policy=queue.operator_policy,
                moved_from=moved_from(source.index, queue),
            ),
        )
        found = target.machine.queue("/", name)
        assert found is not None
        return found

    async def send(self, name: str, count: int) -> None:
        """Send messages after a queue that moves, and wait until they are there."""
        source, queue = self.queue(name)
        await source.ask(BROKER, QueueDrained("/", name, queue.queue_id, count))
        self.broker.turns.end()
        await eventually(lambda: not letters_of(queue))

    async def drain(self, name: str) -> Queue:
        """Declare a queue that moves in its new partition, and send its messages after it."""
        found = await self.declare(name)
        _, queue = self.queue(name)
        while queue.messages_ready:
            await self.send(name, 10)
        return found

    async def end(self, name: str) -> Queue:
        queue = await self.drain(name)
        await self.log(QueueMoveEnded("/", name, queue.queue_id))
        return queue
