"""More partitions: GET and POST /api/repartition (docs/operators/repartition.md).

POST takes {"partitions": N}. Administrators add partitions. Monitoring users see how far it is."""

from itertools import islice

from starlette.responses import Response

from rewindmq.engine.http.call import Call, bad_request, reply
from rewindmq.engine.http.listing import Item
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, MONITORING, Folds, operation
from rewindmq.engine.http.shapes.placement import Repartition, RepartitionWish
from rewindmq.engine.placement.request import ask_for, progress_of
from rewindmq.engine.runtime.loop_share import Work
from rewindmq.projections.rewind import format_time

MOST_SHOWN = 100


async def _item(call: Call) -> Item:
    """The state as JSON."""
    broker = call.broker
    progress = await progress_of(broker.repartition, Work(broker.loop_share))
    return {
        "phase": progress.phase,
        "partitions": progress.partitions,
        "placed_by": progress.placed_by,
        "wanted": progress.wanted,
        "waits_for": progress.waits_for,
        "moving": [
            {
                "vhost": vhost,
                "name": name,
                "source": f"queues-{moving.source}",
                "target": f"queues-{moving.target}",
                "since": format_time(moving.began_ms),
            }
            for (vhost, name), moving in islice(progress.moving.items(), MOST_SHOWN)
        ],
        "moved": progress.moved,
        "staying": progress.staying,
        "reasons": progress.reasons,
        "left": progress.left,
    }


@operation("Shows how far a repartition is", folds=Folds.ALL, who=MONITORING, answer=Repartition)
async def show(call: Call) -> Response:
    """Answers GET /api/repartition."""
    call.require("monitoring")
    return reply(await _item(call))


@operation(
    "Adds partitions, and places queues by their number",
    folds=Folds.ALL,
    who=ADMINISTRATOR,
    body=RepartitionWish,
    answer=Repartition,
)
async def ask(call: Call) -> Response:
    """Answers POST /api/repartition."""
    call.require()
    content = await call.body("partitions")
    partitions = content["partitions"]
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise bad_request("partitions has to be a whole number")
    await ask_for(call.broker.repartition, call.actor(), partitions)
    await call.durable()
    return reply(await _item(call))
