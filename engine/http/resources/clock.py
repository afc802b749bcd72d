"""The time in the log beside the wall clock: GET /api/clock, POST /api/clock/repair (docs/operators/clocks.md).

Monitoring users may see it. Administrators may set the time in the log to the wall clock.
"""

from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, reply
from rewindmq.engine.http.listing import Item
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, MONITORING, Folds, operation
from rewindmq.engine.http.shapes.node import Clock, ClockRepair
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.rewind import format_time

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker


def clock_item(broker: "Broker") -> Item:
    """The clocks as JSON.

    `difference_ms`: the time in the log less this machine's wall clock; where partitions differ (on Kafka), the largest
    difference. `queues_ahead_ms`: how far the clock of a partition's queues is ahead of the time in the log."""
    watch = broker.clock_watch
    differences = {partition.name: watch.difference_ms(partition) for partition in broker.partitions}
    return {
        "wall_time": format_time(watch.clock.wall_ms()),
        "difference_ms": max(differences.values(), key=abs),
        "partitions": [
            {
                "partition": partition.name,
                "log_time": format_time(partition.log_ms()),
                "difference_ms": differences[partition.name],
                "queues_ahead_ms": partition.machine.ahead_ms,
            }
            for partition in broker.partitions
        ],
    }


@operation("Shows the time in the log beside the wall clock", folds=Folds.NONE, who=MONITORING, answer=Clock)
async def show(call: Call) -> Response:
    """Answers GET /api/clock."""
    call.require("monitoring")
    return reply(clock_item(call.broker))


@operation("Sets the time in the log to the wall clock", folds=Folds.NONE, who=ADMINISTRATOR, answer=ClockRepair)
async def repair(call: Call) -> Response:
    """Answers POST /api/clock/repair."""
    call.require()
    try:
        before_ms, after_ms = call.broker.clock_watch.repair(call.actor())
    except LogError as error:
        raise ApiError(503, "service_unavailable", f"the time in the log was not set: {error}") from None
    await call.durable()
    return reply({"before": format_time(before_ms), "after": format_time(after_ms), "moved_ms": after_ms - before_ms})
