"""Waits until a step of a repartition is durable, and every node knows it. Then the next one may follow.

A step that follows sooner could leave a message in no queue, or in two."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rewindmq.engine.partition.lifecycle import Nodes
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition

STEP_SECONDS = 0.01  # between two looks
LOST_SECONDS = 30.0  # that a step waits for the end of lost nodes
LOST_LATELY = 20  # nodes whose end has to be in all partitions. Far more than are lost at once


async def until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is so, for a limited time. Returns whether it is."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not is_so():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(STEP_SECONDS)
    return True


class StepBarrier:
    """Waits for the log, and for the other nodes.

    `enter_all` makes this node fold all partitions, `when_durable` calls back when all that was appended is durable,
    `end_turn` ends a turn."""

    def __init__(
        self,
        metadata: Metadata,
        partitions: Sequence[Partition],
        nodes: Nodes,
        enter_all: Callable[[], Awaitable[None]],
        when_durable: Callable[[Callable[[], None]], None],
        end_turn: Callable[[], None],
    ) -> None:
        self._topology = metadata.topology
        self._partitions = partitions
        self._nodes = nodes
        self.enter_all = enter_all
        self._when_durable = when_durable
        self.end_turn = end_turn

    async def all_know(self) -> None:
        """Wait until every node goes by the metadata log up to here, and this node has all that they did before."""
        await self.durable()
        await self._nodes.until_known(self._topology.next_offset)
        await self.enter_all()
        await until(self._are_lost_nodes_over, LOST_SECONDS)
        for partition in self._partitions:
            await partition.folded()
        await self.read_to_end()

    def _are_lost_nodes_over(self) -> bool:
        """Return True if no partition takes anything more from nodes that were lost lately, for which nobody waited."""
        lately = list(self._topology.ended)[-LOST_LATELY:]
        return all(epoch in each.machine.lost_epochs for each in self._partitions for epoch in lately)

    async def read_to_end(self) -> None:
        """Fold all that the log has by now: this node may have stood still, and another one has gone on."""
        if self._nodes.read_to_end is not None:
            await self._nodes.read_to_end()

    async def durable(self) -> None:
        """End the turn, and wait until all that was appended is durable."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._when_durable(lambda: None if durable.done() else durable.set_result(None))
        self.end_turn()
        await durable
