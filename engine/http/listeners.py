"""Closes and opens the AMQP listeners of a node for an operator. The management API stays open.

suspend, resume    no new connections are taken, until resume; open ones go on (rabbitmqctl suspend_listeners)
stop, start        the same, and all connections are closed (rabbitmqctl stop_app); queues and messages stay
"""

import logging
import os

from starlette.responses import Response

from rewindmq.engine.host.admission import Listeners
from rewindmq.engine.http.call import ApiError, Call, not_found
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, operation

logger = logging.getLogger("rewindmq")


def listeners_of(call: Call) -> Listeners:
    """Return the listeners of the node, for administrators.

    Raises ApiError (404) for another node: its own API has to be asked."""
    call.require()
    if call.segment("node") != call.broker.config.node or call.broker.host.listeners is None:
        raise not_found()
    return call.broker.host.listeners


@operation("Takes no new AMQP connections", folds=Folds.NONE, who=ADMINISTRATOR, answers={204: None})
async def suspend(call: Call) -> Response:
    """Answer POST /api/nodes/{node}/listeners/suspend."""
    listeners_of(call).suspend()
    logger.warning("user '%s' suspended the listeners: no new connections are taken", call.user)
    return Response(status_code=204)


@operation("Takes AMQP connections again", folds=Folds.NONE, who=ADMINISTRATOR, answers={204: None})
async def resume(call: Call) -> Response:
    """Answer POST /api/nodes/{node}/listeners/resume and /api/nodes/{node}/app/start."""
    listeners = listeners_of(call)
    try:
        await listeners.resume()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ApiError(503, "unavailable", f"the node cannot listen again: {reason}") from None
    logger.warning("user '%s' resumed the listeners", call.user)
    return Response(status_code=204)


@operation(
    "Closes all AMQP connections and takes no new ones", folds=Folds.NONE, who=ADMINISTRATOR, answers={204: None}
)
async def stop(call: Call) -> Response:
    """Answer POST /api/nodes/{node}/app/stop."""
    listeners = listeners_of(call)
    listeners.suspend()
    logger.warning("user '%s' stopped the application: connections are closed, no new ones are taken", call.user)
    await listeners.close_connections()
    await call.durable()
    return Response(status_code=204)
