"""The facts that nodes tell each other, so that each of them gives the right answers without a fold.

A queue that refuses messages when it is full decides the answers to its publishers. So a node folds the partition of
such a queue before it publishes to it. A node that has paused the partition recognizes such a queue in these ways:

    it refused when the node paused     the node's own state, as it was when the node paused
    the node does not know it           the node folds the partition
    it was declared anew, and refuses   the owner of the partition says so (`QueueRefuses`, in the topic of heartbeats)
    a policy makes it refuse            the metadata log says so. The policy is applied to the queue only when each
                                        node has shown that it knows the policy (`NodeAlive.metadata_offset`)
    a policy made it refuse, and ended  the node remembers such a policy until the owners of all partitions have proven
                                        that every queue was told (policy_proofs.py)

Rules of this file
- A heartbeat's `metadata_offset`: the node had folded the metadata log up to this offset, and everything that it had
  appended by then is in the log.
- One gap remains: a queue is deleted, and declared anew as one that refuses. Until the owner of the partition says so,
  a node that has paused the partition confirms the messages that the new queue refuses, as it would have confirmed the
  messages that go with the deletion.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import NodeAlive, QueueRefuses

LOOK_SECONDS = 0.02
MOST_REFUSING = 10_000  # queues of a partition; after more of them this node folds the partition, and forgets them

Name = tuple[str, str]  # vhost and queue


class Awareness:
    """`epoch` returns this node's. `partitions` are those of queues, by name."""

    def __init__(self, topology: Topology, partitions: Sequence[ReadBackPartition], epoch: Callable[[], int]) -> None:
        self._topology = topology
        self._partitions = {partition.name: partition for partition in partitions}
        self.epoch = epoch
        self._known: dict[int, int] = {}  # by epoch: the metadata offset of the last heartbeat
        self._refusing: dict[Name, QueueRefuses] = {}
        self._noted: Counter[str] = Counter()  # how many of these are in each partition
        self._stopped = False
        self._settled = -1
        self._candidate: tuple[int, tuple[int, ...]] | None = None  # a metadata offset, and append positions of then

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def metadata_offset(self) -> int:
        """The offset for this node's next heartbeat."""
        partitions = self._partitions.values()
        if self._candidate is not None:
            offset, positions = self._candidate
            if all(each.durable_position >= at for each, at in zip(partitions, positions, strict=True)):
                self._settled = offset
                self._candidate = None
        if self._candidate is None:
            self._candidate = (self._topology.next_offset, tuple(each.append_position for each in partitions))
        return self._settled

    def note_beat(self, event: NodeAlive) -> None:
        """Note a heartbeat of any node."""
        self._known[event.epoch] = event.metadata_offset

    def is_known_everywhere(self, offset: int) -> bool:
        """Return True if every other living node has folded the metadata log up to this offset.

        Everything that such a node had appended before is then in the log."""
        nodes = self._topology.nodes
        for epoch in [epoch for epoch in self._known if epoch not in nodes]:
            del self._known[epoch]
        return all(self._known.get(epoch, -1) >= offset for epoch in nodes if epoch != self.epoch())

    async def until_known(self, offset: int) -> None:
        """Wait until `is_known_everywhere`. A node that stays silent is declared lost, and not waited for."""
        while not (self._stopped or self.is_known_everywhere(offset)):
            await asyncio.sleep(LOOK_SECONDS)

    async def until_settled(self, offset: int) -> None:
        """Wait until every node, this one included, has folded the metadata log up to this offset and has nothing older
        under way."""
        while not (self._stopped or (self.metadata_offset() >= offset and self.is_known_everywhere(offset))):
            await asyncio.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Let nobody wait any longer: the node stops."""
        self._stopped = True

    # -- queues that refuse -------------------------------------------------------------------------------------------

    def note_refusing(self, event: QueueRefuses) -> None:
        """Note what the owner of a partition says, unless this node has folded that far."""
        partition = self._partitions.get(event.partition)
        if partition is not None and event.offset >= partition.next_offset:
            self._noted[event.partition] += (event.vhost, event.queue) not in self._refusing
            self._refusing[event.vhost, event.queue] = event

    def is_refusing(self, name: Name) -> bool:
        """Return True if the queue was declared as one that refuses, at an offset that this node has not folded yet."""
        event = self._refusing.get(name)
        return event is not None and event.offset >= self._partitions[event.partition].next_offset

    def forget_folded(self) -> None:
        """Drop what this node has folded since."""
        for name in [name for name in self._refusing if not self.is_refusing(name)]:
            self._noted[self._refusing.pop(name).partition] -= 1

    def crowded(self) -> list[str]:
        """The partitions with more queues, noted here, than this node keeps in mind."""
        return [name for name, count in self._noted.items() if count > MOST_REFUSING]
