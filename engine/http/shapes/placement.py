"""Types of the repartition of a log."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, TypedDict

from rewindmq.projections.rewind import format_time
from rewindmq.schemas.views import From, View

if TYPE_CHECKING:
    from rewindmq.engine.placement.request import RepartitionProgress
    from rewindmq.projections.topology.placement import Moving

    pass

MOST_SHOWN = 100  # queues that move
of_moving: "From[Moving]" = From()
of_progress: "From[RepartitionProgress]" = From()


class RepartitionWish(TypedDict):
    """A repartition that is asked for."""

    partitions: Annotated[int, "The number of partitions by which queues are to be placed; it only grows"]


class MovingQueueView(View):
    """A queue that moves to another partition."""

    vhost: str
    name: str
    source: Annotated[str, "The partition that it leaves"] = of_moving(lambda moving: f"queues-{moving.source}")
    target: Annotated[str, "The partition to which it goes"] = of_moving(lambda moving: f"queues-{moving.target}")
    since: Annotated[str, "When it began to move"] = of_moving(lambda moving: format_time(moving.began_ms))


class RepartitionView(View):
    """The progress of a repartition."""

    phase: Annotated[str, "`never asked for`, `waits for nodes`, `holds names`, `moves queues` or `done`"]
    partitions: Annotated[int, "Partitions that this node works with"]
    placed_by: Annotated[int, "Number of partitions by which queues are placed"]
    wanted: Annotated[int, "Number of partitions by which queues are to be placed"]
    waits_for: Annotated[list[str], "Nodes that have to be started again"]
    moving: Annotated[list[MovingQueueView], "At most a hundred of the queues that move now"] = of_progress(
        lambda progress: [
            MovingQueueView.of(moving, vhost=vhost, name=name)
            for (vhost, name), moving in islice(progress.moving.items(), MOST_SHOWN)
        ]
    )
    moved: Annotated[int, "So many queues have moved since the number changed"]
    staying: Annotated[int, "So many queues are still where they were"]
    reasons: Annotated[dict[str, int], "Why queues stay, and how many for each reason"]
    left: Annotated[int, "So many queues have left messages behind that consumers hold"]
