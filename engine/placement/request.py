"""Begins a repartition for an operator, and tells how far it is."""

from collections import Counter
from dataclasses import dataclass

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.placement.obstacles import why_not_repartition
from rewindmq.engine.placement.repartition import Repartition
from rewindmq.projections.topology.placement import Moving, Name
from rewindmq.schemas.placement_events import PartitionsAdded
from rewindmq.schemas.values import Actor

MOST_PARTITIONS = 1_024

# Phases
NEVER, NODES, NAMES, MOVES, DONE = "never asked for", "waits for nodes", "holds names", "moves queues", "done"


@dataclass(frozen=True, slots=True)
class RepartitionProgress:
    """The progress of a repartition.

    `partitions`: the number of partitions that this node works with. `placed_by`: the number by which queues are placed
    now. `wanted`: the number by which they are to be placed. `waits_for`: nodes that have to be started again.
    `moving`: queues on their way. `moved`: the number of queues that have moved since `placed_by` changed. `staying`:
    the number of queues that have not moved yet, and `reasons`: how many of them stay for each reason. `left`: the
    number of queues with messages, held by consumers, in the partition that they left."""

    phase: str
    partitions: int
    placed_by: int
    wanted: int
    waits_for: list[str]
    moving: dict[Name, Moving]
    moved: int
    staying: int
    reasons: dict[str, int]
    left: int


async def ask_for(to: Repartition, actor: Actor, partitions: int) -> None:
    """Add partitions to the log, so that queues are placed by so many. It goes on by itself from there.

    To ask again for the same number completes what a crash cut short. PreconditionFailed: it cannot be done, and the
    text says why. LogError: the log does not answer."""
    placement = to.topology.placement
    placed_by = placement.count or len(to.partitions)
    wanted = placement.wanted or placed_by
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise PreconditionFailed(f"a log has 1 to {MOST_PARTITIONS} partitions")
    if wanted != placed_by and partitions != wanted:
        raise PreconditionFailed(f"a repartition to {wanted} partitions is under way: wait until it is done")
    if partitions <= placed_by:
        raise PreconditionFailed(f"queues are placed by {placed_by} partitions, and their number only grows")
    try:
        obstacle = why_not_repartition(to.config)
        if obstacle:
            raise PreconditionFailed(obstacle)
        await to.keeper.add_partitions(partitions, only_ask=True)
        if wanted != partitions:
            await to.metadata.ask(actor, PartitionsAdded(placed_by, partitions))
        await to.keeper.add_partitions(partitions, only_ask=False)
    except LogError as error:
        raise PreconditionFailed(str(error)) from None


async def progress_of(repartition: Repartition, work: Work) -> RepartitionProgress:
    """Return the progress of the repartition, as this node knows it. This node folds all partitions."""
    placement, partitions = repartition.placement, repartition.partitions
    count = placement.count or len(partitions)
    wanted = placement.wanted or count
    waits_for = repartition.waits_for() if wanted != count and not placement.held else []
    since_ms = placement.earlier[-1].until_ms if placement.earlier else 0
    moved = sum([each.began_ms >= since_ms for moves in placement.moves.values() for each in moves])
    reasons: Counter[str] = Counter()
    ready = 0
    if wanted == count:
        async for name in work.over(list(placement.staying)):
            if name in placement.staying and name not in placement.moving:
                reason = repartition.moves.why_not_now(name)
                reasons[reason] += bool(reason)
                ready += not reason
    if not placement.count:
        phase = NEVER
    elif wanted != count:
        phase = NAMES if placement.held else NODES
    else:
        phase = MOVES if placement.moving or ready else DONE
    return RepartitionProgress(
        phase,
        len(partitions),
        count,
        wanted,
        waits_for,
        dict(placement.moving),
        moved,
        len(placement.staying) - len(placement.moving),
        {reason: number for reason, number in reasons.items() if reason},
        repartition.leftovers.left(),
    )
