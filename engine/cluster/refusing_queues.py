"""The queues that refuse messages when full, in partitions that this node has paused.

Such a queue decides the answers to its publishers, so a node folds the queue's partition before it publishes to it. A
node that has paused the partition recognizes the queue in these ways:

    it refused when the node paused     by the node's own state at that time
    the node does not know it           the node folds the partition
    it was declared anew, and refuses   by its partition's owner (`QueueRefuses`, in the topic of heartbeats)
    a policy makes it refuse            by the metadata log. The policy is applied to the queue only when each node has
                                        shown that it knows the policy (awareness.py)
    a policy made it refuse, and ended  the node remembers such a policy until the owners of all partitions have proven
                                        that every queue has received the end (policy_proofs.py)

One gap remains: a queue is deleted, and declared anew as a refusing one. Until the partition's owner reports that, a
node that has paused the partition confirms messages that the new queue refuses, as it would have confirmed messages
that end with the deletion.
"""

from collections import Counter
from collections.abc import Mapping

from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.schemas.events import QueueRefuses

MOST_REFUSING = 10_000  # queues of a partition; after more of them this node folds the partition, and forgets them

Name = tuple[str, str]  # vhost and queue


class RefusingQueues:
    """The refusing queues, as reported by the owners of their partitions. `partitions`: by name."""

    def __init__(self, partitions: Mapping[str, ReadBackPartition]) -> None:
        self._partitions = partitions
        self._refusing: dict[Name, QueueRefuses] = {}
        self._noted: Counter[str] = Counter()  # the number of these in each partition

    def note(self, event: QueueRefuses) -> None:
        """Note the report of a partition's owner, unless this node has folded that far."""
        partition = self._partitions.get(event.partition)
        if partition is not None and event.offset >= partition.next_offset:
            self._noted[event.partition] += (event.vhost, event.queue) not in self._refusing
            self._refusing[event.vhost, event.queue] = event

    def __contains__(self, name: Name) -> bool:
        """Return True if the queue was declared as a refusing one, at an offset that this node has not yet folded."""
        event = self._refusing.get(name)
        return event is not None and event.offset >= self._partitions[event.partition].next_offset

    def forget_folded(self) -> None:
        """Drop the queues whose declarations this node has since folded."""
        for name in [name for name in self._refusing if name not in self]:
            self._noted[self._refusing.pop(name).partition] -= 1

    def crowded(self) -> list[str]:
        """Return the partitions with more refusing queues than this node remembers."""
        return [name for name, count in self._noted.items() if count > MOST_REFUSING]
