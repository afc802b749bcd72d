"""Folds the partitions that a request needs before its handler runs, as its declaration says (`Folds`).

A node may have paused partitions (cluster/partition_pausing.py). Others it folds anyhow.
"""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from rewindmq.engine.http.call import Call, until_free
from rewindmq.engine.http.reference.operation import Folds, operation_of

Handler = Callable[[Call], Awaitable[Response]]


async def fold_for(handler: Handler, call: Call) -> None:
    """Fold the partitions that the handler needs, as far as this node does not.

    A vhost that does not exist, or that the user may not see, is refused by the handler without a fold."""
    of, homes = operation_of(handler), call.broker.queues
    assert of is not None, f"{handler} declares what it folds"
    if of.folds is Folds.COUNTERS:
        await homes.enter_uncounted()
    elif of.folds is Folds.CONSUMERS:
        await homes.enter_unlisted()
    elif of.folds is Folds.QUEUE:
        await _enter(call, "queue")
    elif of.folds is Folds.DESTINATION and call.segment("kind") == "q":
        await _enter(call, "destination")
    elif of.folds is Folds.ALL:
        await homes.enter_all()


async def _enter(call: Call, segment: str) -> None:
    """Fold the partition of the queue that this segment of the path names, once the queue is there."""
    vhost, name = call.segment("vhost"), call.segment(segment)
    if vhost in call.visible_vhosts():
        await until_free(call.broker, vhost, name)
        await call.broker.homes.of(vhost, name).enter()
