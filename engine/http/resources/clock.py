"""The time in the log beside the wall clock: GET /api/clock, POST /api/clock/repair (docs/operators/clocks.md).

Monitoring users may see it. Administrators may set the time in the log to the wall clock.
"""

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, reply
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, MONITORING, Folds, operation
from rewindmq.engine.http.shapes.node import ClockRepairView, ClockView
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.rewind import format_time


@operation("Shows the time in the log beside the wall clock", folds=Folds.NONE, who=MONITORING, answer=ClockView)
async def show(call: Call) -> Response:
    """Answer GET /api/clock."""
    call.require("monitoring")
    return reply(ClockView.of(call.broker))


@operation("Sets the time in the log to the wall clock", folds=Folds.NONE, who=ADMINISTRATOR, answer=ClockRepairView)
async def repair(call: Call) -> Response:
    """Answer POST /api/clock/repair."""
    call.require()
    try:
        before_ms, after_ms = call.broker.host.clock_watch.repair(call.actor())
    except LogError as error:
        raise ApiError(503, "service_unavailable", f"the time in the log was not set: {error}") from None
    await call.durable()
    return reply(
        ClockRepairView(before=format_time(before_ms), after=format_time(after_ms), moved_ms=after_ms - before_ms)
    )
