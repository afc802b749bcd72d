"""Takes single messages out of a queue: they are deleted, or moved. And pauses a queue.

    DELETE /api/queues/{vhost}/{queue}/messages/{id}      deletes one message; ?reason=TEXT
    POST   /api/queues/{vhost}/{queue}/messages/remove    {"messages": [ids], "reason": "..."}
    POST   /api/queues/{vhost}/{queue}/messages/move      the same, and {"to": "queue"}, or
                                                          {"exchange": "...", "routing_key": "..."}
    PUT    /api/queues/{vhost}/{queue}/pause              {"reason": "..."}, or no body; as LavinMQ
    PUT    /api/queues/{vhost}/{queue}/resume             as LavinMQ

An id is the offset of the message's publish, as `find` and the queue at a moment show it. A request names at most
MOST_REMOVED messages. A POST answers with the messages that left, and with the reason of each that stayed. A DELETE
answers 404 if the message is not in the queue, 409 if a consumer has it. 409 is also the answer to a move that has no
way: nothing left then.
"""

from starlette.responses import Response

from rewindmq.engine.broker.removals import Removal, has_arrived
from rewindmq.engine.errors import NotImplementedByBroker, PreconditionFailed
from rewindmq.engine.http.bodies import MAX_VALUES
from rewindmq.engine.http.call import (
    ApiError,
    Call,
    bad_request,
    in_time,
    natural,
    not_found,
    reply,
    short,
    text,
)
from rewindmq.projections.machine.events.removal import MOST_REMOVED
from rewindmq.projections.rules.internal_queues import is_delay_queue
from rewindmq.schemas.json_values import Json

MOST_REASON = 1_000  # letters


async def delete(call: Call) -> Response:
    """Answers DELETE .../messages/{id}."""
    queue = queue_of(call)
    message_id = natural(call.segment("id"))
    if message_id is None:
        raise bad_request("a message id is a whole number")
    reason = reason_in({"reason": call.request.query_params.get("reason", "")})
    removal = await _remove(call, queue, [message_id], reason)
    if removal.stayed:
        why = f"message {message_id} stays in queue '{queue}': {removal.stayed[message_id]}"
        if removal.held:
            raise ApiError(409, "conflict", why)
        raise not_found(f"message {message_id} is not in queue '{queue}'", "not_found")
    return Response(status_code=204)


async def remove(call: Call) -> Response:
    """Answers POST .../messages/remove."""
    queue = queue_of(call)
    content = await call.body("messages", most_values=MOST_REMOVED + MAX_VALUES)
    removal = await _remove(call, queue, ids_in(content), reason_in(content))
    return reply({"removed": removal.left, "stayed": stayed_in(removal)})


async def move(call: Call) -> Response:
    """Answers POST .../messages/move."""
    queue = queue_of(call)
    content = await call.body("messages", most_values=MOST_REMOVED + MAX_VALUES)
    ids, reason, (exchange, routing_key) = ids_in(content), reason_in(content), way_in(content)
    if call.broker.turns.blocked is not None:
        raise bad_request(f"publishing is blocked: {call.broker.turns.blocked}")
    try:
        async with call.session(call.vhost) as session, in_time():
            removal = await call.broker.removals.move(session, queue, ids, exchange, routing_key, reason)
    except (PreconditionFailed, NotImplementedByBroker) as error:
        raise ApiError(409, "conflict", error.text) from None
    await call.durable()
    return reply({"moved": removal.left, "arrived": await has_arrived(removal), "stayed": stayed_in(removal)})


async def pause(call: Call) -> Response:
    """Answers PUT .../pause."""
    queue = call.queue()
    reason = reason_in(await call.body())
    async with call.session(queue.vhost) as session:
        await call.broker.queues.pause(session, queue.name, reason)
    await call.durable()
    return Response(status_code=204)


async def resume(call: Call) -> Response:
    """Answers PUT .../resume."""
    queue = call.queue()
    async with call.session(queue.vhost) as session:
        await call.broker.queues.resume(session, queue.name)
    await call.durable()
    return Response(status_code=204)


async def _remove(call: Call, queue: str, ids: list[int], reason: str) -> Removal:
    try:
        async with call.session(call.vhost) as session, in_time():
            removal = await call.broker.removals.remove(session, queue, ids, reason)
    except (PreconditionFailed, NotImplementedByBroker) as error:
        raise ApiError(409, "conflict", error.text) from None
    await call.durable()
    return removal


def queue_of(call: Call) -> str:
    """The queue in the path; that of a delayed exchange may be named, too. Raises ApiError (404)."""
    name = call.segment("queue")
    if not is_delay_queue(name):
        return call.queue_named(call.vhost, name).name
    if call.broker.queues.get(call.vhost, name) is None:
        raise not_found()
    return name


def ids_in(content: dict[str, Json]) -> list[int]:
    """The message ids of a body. Raises ApiError (400)."""
    ids = content["messages"]
    if not isinstance(ids, list) or not ids:
        raise bad_request("messages is a list of message ids")
    if len(ids) > MOST_REMOVED:
        raise bad_request(f"at most {MOST_REMOVED} messages at a time")
    found = [each for each in ids if isinstance(each, int) and not isinstance(each, bool) and each >= 0]
    if len(found) < len(ids):
        raise bad_request("a message id is a whole number")
    return found


def reason_in(content: dict[str, Json]) -> str:
    """The reason of a body, or "". Raises ApiError (400)."""
    reason = text(content, "reason", "")
    if len(reason) > MOST_REASON:
        raise bad_request(f"the reason is longer than {MOST_REASON} letters")
    return reason


def way_in(content: dict[str, Json]) -> tuple[str, str]:
    """The exchange and routing key of a body. Raises ApiError (400)."""
    if ("to" in content) == ("exchange" in content):
        raise bad_request("give either to, the name of a queue, or exchange with routing_key")
    if "to" in content:
        return "", short("to", text(content, "to", ""))
    return short("exchange", text(content, "exchange", "")), short("routing_key", text(content, "routing_key", ""))


def stayed_in(removal: Removal) -> list[dict[str, object]]:
    """The messages that stayed, as JSON."""
    return [{"message": message_id, "reason": why} for message_id, why in removal.stayed.items()]
