"""More partitions: GET and POST /api/repartition (docs/operators/repartition.md).

POST takes {"partitions": N}. Administrators add partitions. Monitoring users see how far it is."""

from starlette.responses import Response

from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.http.call import Call, bad_request, reply
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, MONITORING, Folds, operation
from rewindmq.engine.http.shapes.placement import RepartitionView, RepartitionWish
from rewindmq.engine.placement.request import ask_for, progress_of


async def view_of(call: Call) -> RepartitionView:
    """Return the state of the repartition."""
    return RepartitionView.of(await progress_of(call.broker.repartition, Work(call.broker.host.loop_share)))


@operation("Shows how far a repartition is", folds=Folds.ALL, who=MONITORING, answer=RepartitionView)
async def show(call: Call) -> Response:
    """Answer GET /api/repartition."""
    call.require("monitoring")
    return reply(await view_of(call))


@operation(
    "Adds partitions, and places queues by their number",
    folds=Folds.ALL,
    who=ADMINISTRATOR,
    body=RepartitionWish,
    answer=RepartitionView,
)
async def ask(call: Call) -> Response:
    """Answer POST /api/repartition."""
    call.require()
    content = await call.body("partitions")
    partitions = content["partitions"]
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise bad_request("partitions has to be a whole number")
    await ask_for(call.broker.repartition, call.actor(), partitions)
    await call.durable()
    return reply(await view_of(call))
