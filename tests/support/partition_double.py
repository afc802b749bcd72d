"""A partition for tests of one part of the broker: it has a machine, and what a test gives it besides.

Compiled code takes it for a partition, as it inherits from that class.
"""

from typing import Any

from rewindmq.engine.partition.partition import Deliveries, Partition
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor


class PartitionDouble(Partition):
    """It has no log and no effects. `appended`: how many events a test says that it has."""

    def __init__(self, index: int = 0) -> None:
        self.index, self.appended = index, 0
        self.current = True
        self.deliveries = Deliveries(self)
        self.machine = Machine(f"queues-{index}")

    def knows(self, queue: Queue) -> None:
        """From now on the machine finds this queue."""
        self.machine.by_name[queue.vhost, queue.name] = queue

    @property
    def append_position(self) -> int:
        return self.appended

    durable_position = next_offset = durable_offset = undone_below = append_position

    def append(self, actor: Actor, event: Event) -> int:
        raise NotImplementedError

    def publish(self, actor: Actor, message: Published) -> int:
        raise NotImplementedError

    async def ask(self, actor: Actor, event: Event, folded: Any = None) -> list[Effect]:
        raise NotImplementedError
