"""Events of the metadata log about the placement of queues: the number of partitions, and the partition of each queue.

    PartitionsAdded    the log has more queue partitions; queues are placed as before
    NamesHeld          no queue is declared under a name that would be placed elsewhere, for a moment
    QueuesStay         the queues that the new number would place elsewhere stay where they are
    PlacementChanged   queues are placed by the new number, except those that stay
    QueueMoveBegan     a queue that stayed moves to its new partition; nobody uses it by name meanwhile
    QueueMoveEnded     it has arrived

The fold is projections/topology/placement.py. Rules as in `events.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The log has `partitions` queue partitions from here on. `before`: the number by which queues are placed."""

    before: int
    partitions: int


@dataclass(frozen=True, slots=True)
class NamesHeld:
    """From here on no queue is declared under a name that `partitions` would put elsewhere, until PlacementChanged."""

    partitions: int


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue's vhost and name."""

    vhost: str
    queue: str


@dataclass(frozen=True, slots=True)
class QueuesStay:
    """These queues stay in the partition with this number, although the new number would place them elsewhere."""

    partition: int
    queues: tuple[QueueName, ...]


@dataclass(frozen=True, slots=True)
class PlacementChanged:
    """From here on queues are placed by `partitions`, except those in the QueuesStay since NamesHeld."""

    partitions: int


@dataclass(frozen=True, slots=True)
class QueueMoveBegan:
    """A queue moves to the partition with this number, to which its name leads from here on.

    Nobody uses it by name until QueueMoveEnded. `queue_id`: its incarnation in the partition that it leaves. -1: there
    is no such queue there, and only the name moves."""

    vhost: str
    queue: str
    queue_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class QueueMoveEnded:
    """The queue is in its new partition, as incarnation `queue_id`. -1: it was deleted, and only the name moved."""

    vhost: str
    queue: str
    queue_id: int


PlacementEvent = PartitionsAdded | NamesHeld | QueuesStay | PlacementChanged | QueueMoveBegan | QueueMoveEnded
