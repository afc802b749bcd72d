"""The part of the metadata log that each node has folded, as shown by heartbeats.

    until_known      a policy that makes queues refuse messages is applied when every other living node knows it:
                     a node that has paused a partition would confirm a message that the queue refuses
    until_settled    the end of such a policy is proven once no node has anything older in flight either
                     (policy_proofs.py)

A heartbeat's `metadata_offset`: the node had folded the metadata log up to this offset, and everything that it had
appended by then is in the log.
"""

import asyncio
from collections.abc import Callable, Sequence

from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import NodeAlive

LOOK_SECONDS = 0.02


class Awareness:
    """The metadata offsets of all living nodes. `epoch` returns this node's; `partitions` are those of queues."""

    def __init__(self, topology: Topology, partitions: Sequence[ReadBackPartition], epoch: Callable[[], int]) -> None:
        self._topology = topology
        self._partitions = partitions
        self.epoch = epoch
        self._known: dict[int, int] = {}  # by epoch: the metadata offset of the last heartbeat
        self._stopped = False
        self._settled = -1
        # a metadata offset, and the append positions at that time
        self._candidate: tuple[int, tuple[int, ...]] | None = None

    def metadata_offset(self) -> int:
        """Return the offset for this node's next heartbeat."""
        if self._candidate is not None:
            offset, positions = self._candidate
            if all(each.durable_position >= at for each, at in zip(self._partitions, positions, strict=True)):
                self._settled = offset
                self._candidate = None
        if self._candidate is None:
            self._candidate = (self._topology.next_offset, tuple(each.append_position for each in self._partitions))
        return self._settled

    def note_beat(self, event: NodeAlive) -> None:
        """Note a heartbeat of any node."""
        self._known[event.epoch] = event.metadata_offset

    def is_known_everywhere(self, offset: int) -> bool:
        """Return True if every other living node has folded the metadata log up to this offset.

        Everything that such a node had appended earlier is then in the log."""
        nodes = self._topology.nodes
        for epoch in [epoch for epoch in self._known if epoch not in nodes]:
            del self._known[epoch]
        return all(self._known.get(epoch, -1) >= offset for epoch in nodes if epoch != self.epoch())

    async def until_known(self, offset: int) -> None:
        """Wait until `is_known_everywhere`. A silent node is declared lost, which ends the wait for it."""
        while not (self._stopped or self.is_known_everywhere(offset)):
            await asyncio.sleep(LOOK_SECONDS)

    async def until_settled(self, offset: int) -> None:
        """Wait until every node, including this one, has folded the metadata log up to this offset, with nothing older
        in flight."""
        while not (self._stopped or (self.metadata_offset() >= offset and self.is_known_everywhere(offset))):
            await asyncio.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """End all waits, because the node stops."""
        self._stopped = True
