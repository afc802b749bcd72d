"""Events of the metadata log about the place of queues: how many partitions there are, and which queue is in which one.

    PartitionsAdded    the log has more queue partitions; queues are placed as before
    NamesHeld          no queue is declared under a name that would be placed elsewhere, for a moment
    QueuesStay         the queues that are elsewhere than the new number says: they stay where they are
    PlacementChanged   queues are placed by the new number, but for those that stay
    QueueMoveBegan     a queue that stayed goes to its new partition; nobody uses it by name meanwhile
    QueueMoveEnded     it is there

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
    """From here on queues are placed by `partitions`, but for those that the QueuesStay since NamesHeld name."""

    partitions: int


@dataclass(frozen=True, slots=True)
class QueueMoveBegan:
    """A queue goes to the partition with this number, where its name leads to from here on.

    Nobody uses it by name until QueueMoveEnded. `queue_id`: its incarnation in the partition that it leaves. -1: there
    is no such queue there, and only the name goes."""

    vhost: str
    queue: str
    queue_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class QueueMoveEnded:
    """The queue is in its new partition, as incarnation `queue_id`. -1: it was deleted, and only the name went."""

    vhost: str
    queue: str
    queue_id: int


PlacementEvent = PartitionsAdded | NamesHeld | QueuesStay | PlacementChanged | QueueMoveBegan | QueueMoveEnded
