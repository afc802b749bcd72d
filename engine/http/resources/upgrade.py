"""An operator finalizes an upgrade: POST /api/upgrade/finalize (docs/operators/upgrading.md)."""

from starlette.responses import Response

from rewindmq.engine.broker.upgrade import OlderNodes, finalize
from rewindmq.engine.http.call import ApiError, Call, reply
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, operation
from rewindmq.engine.http.shapes.node import FinalizedUpgrade


@operation(
    "Lets the history follow the newest machine version that the nodes know",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    answer=FinalizedUpgrade,
    errors=(409,),
)
async def finalize_upgrade(call: Call) -> Response:
    """Answers POST /api/upgrade/finalize."""
    call.require()
    try:
        before = await finalize(call.broker, call.actor())
    except OlderNodes as error:
        raise ApiError(409, "older_nodes", str(error)) from None
    await call.durable()
    return reply({"before": before, "after": call.broker.topology.machine_version})
