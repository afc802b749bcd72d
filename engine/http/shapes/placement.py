"""Types of the repartition of a log."""

from typing import Annotated, TypedDict


class RepartitionWish(TypedDict):
    """A repartition that is asked for."""

    partitions: Annotated[int, "The number of partitions by which queues are to be placed; it only grows"]


class QueueOnItsWay(TypedDict):
    """A queue that moves to another partition."""

    vhost: str
    name: str
    source: Annotated[str, "The partition that it leaves"]
    target: Annotated[str, "The partition to which it goes"]
    since: Annotated[str, "When it began to move"]


class Repartition(TypedDict):
    """The progress of a repartition."""

    phase: Annotated[str, "`never asked for`, `waits for nodes`, `holds names`, `moves queues` or `done`"]
    partitions: Annotated[int, "Partitions that this node works with"]
    placed_by: Annotated[int, "Queues are placed by so many partitions"]
    wanted: Annotated[int, "Queues are to be placed by so many"]
    waits_for: Annotated[list[str], "Nodes that have to be started again"]
    moving: Annotated[list[QueueOnItsWay], "At most a hundred of the queues that move now"]
    moved: Annotated[int, "So many queues have moved since the number changed"]
    staying: Annotated[int, "So many queues are still where they were"]
    reasons: Annotated[dict[str, int], "Why queues stay, and how many for each reason"]
    left: Annotated[int, "So many queues have left messages behind that consumers hold"]
