"""Proves that every queue of a partition has received a policy's end, so that no node need remember that policy.

    a policy that made queues refuse has ended
        -> every living node has folded the metadata log up to there, and has nothing older in flight
        -> the owner of the partition has folded everything that was in the log at that time
        -> it finds no queue without its policies: proven, and reported at the end of its next round of counters
    every partition's owner has reported it -> each node forgets the policy (engine/broker/policies.py)

A node that was declared lost is not awaited, because the fold ignores its appends after its `NodeLost`. So the owner
must have folded the loss of every epoch that the metadata log has ended.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from rewindmq.engine.cluster.awareness import Awareness
from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.log.contract import LogError

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

logger = logging.getLogger(__name__)


class PolicyProofs:
    """Proofs for the partitions that this node owns. `proven`: by name, the offset of the metadata log up to which the
    partition's queues have their policies."""

    def __init__(
        self,
        broker: "Broker",
        partitions: Sequence[ReadBackPartition],
        awareness: Awareness,
        read_to_end: Callable[[], Awaitable[None]],
    ) -> None:
        self.proven: dict[str, int] = {}
        self._broker = broker
        self._partitions = partitions
        self._awareness = awareness
        self._read_to_end = read_to_end
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Forget the policies whose end all queues have received, and begin the proofs that others wait for. Called at
        each heartbeat."""
        policies = self._broker.effective_policies
        tables = [partition.counter_table for partition in self._partitions]
        policies.forget_ended(min((0 if table is None else table.policies for table in tables), default=0))
        wanted = policies.ended_below
        unproven = [each for each in self._partitions if each.owned and self.proven.get(each.name, 0) < wanted]
        if unproven and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._prove(unproven))

    def stop(self) -> None:
        """Stop proving."""
        if self._task is not None:
            self._task.cancel()

    async def _prove(self, partitions: Sequence[ReadBackPartition]) -> None:
        """Prove everything that is now true; the next heartbeat retries the rest."""
        topology = self._broker.topology
        offset = topology.next_offset
        await self._awareness.until_settled(offset)
        try:
            await self._read_to_end()
        except LogError as error:
            logger.warning("whether all queues have their policies is not known yet: %s", error)
            return
        work = Work(self._broker.host.loop_share)
        for partition in partitions:
            if topology.ended.keys() <= partition.machine.lost_epochs.keys() and await self._all_told(partition, work):
                self.proven[partition.name] = offset

    async def _all_told(self, partition: ReadBackPartition, work: Work) -> bool:
        """Return True if no queue of the partition waits for a `PolicyApplied`."""
        by_name, outstanding = partition.machine.by_name, self._broker.effective_policies.outstanding
        async for name in work.over(list(by_name)):
            queue = by_name.get(name)
            if queue is not None and outstanding(queue) is not None:
                return False
        return partition.owned and partition.current
