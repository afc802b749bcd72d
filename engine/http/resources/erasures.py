"""Erases subjects, and lists erasures and expired bodies. These paths are our own, for administrators.

DELETE /api/subjects/{subject} (with ?reason=..., or {"reason": ...}), GET /api/erasures, and
GET /api/expired-bodies.
"""

from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, bad_request, text
from rewindmq.engine.http.listing import Item, listed
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Query, operation
from rewindmq.engine.http.shapes.access import Erasure, ExpiredDay
from rewindmq.engine.http.shapes.basics import Why
from rewindmq.projections.rewind import format_time

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker

MAX_REASON = 4_096


@operation(
    "Erases a subject: its keys are destroyed",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    query=(Query("reason", str, "Why; the history keeps it"),),
    body=Why,
    answers={204: None},
)
async def erase(call: Call) -> Response:
    """Answers DELETE /api/subjects/{subject}.

    204: the keys are destroyed, and the history says so. 404: the subject has none. After a failure the same request
    goes on where the first one was."""
    call.require()
    subject = call.segment("subject")
    reason = call.request.query_params.get("reason") or text(await call.body(), "reason", "")
    if len(reason) > MAX_REASON:
        raise bad_request(f"a reason has at most {MAX_REASON} characters")
    try:
        await call.broker.erasures.erase(call.actor(), subject, reason)
    except OSError as error:
        raise ApiError(500, "key_error", f"not erased, ask again: {error}") from None
    await call.durable()
    return Response(status_code=204)


@operation("Lists the erasures", folds=Folds.NONE, who=ADMINISTRATOR, listing=Erasure)
async def list_erasures(call: Call) -> Response:
    """Answers GET /api/erasures, in the order of the erasures. `offset`: of the metadata log."""
    call.require()
    return await listed(
        call,
        [
            {
                "subject": each.subject,
                "key_ids": list(each.key_ids),
                "time": format_time(each.time_ms),
                "user": each.user,
                "reason": each.reason,
                "offset": each.offset,
            }
            for each in call.broker.topology.erasures
        ],
    )


def expiry_item(broker: "Broker") -> Item:
    """The days whose bodies are kept, held back and expired, in numbers, for the node's status."""
    expiry, expired = broker.expiry, broker.topology.history.expired_days
    return {
        "keep_days": expiry.keep_days,
        "expired_days": len(expired),
        "last_expired": max(expired, default=None),
        "held": [
            {"day": day, "vhost": each.name[0], "queue": each.name[1], "messages": each.messages}
            for day, held in sorted(expiry.held.items())
            for each in held
        ],
        "problem": expiry.problem,
    }


@operation(
    "Lists the days of bodies: kept, held back by queues, expired",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    listing=ExpiredDay,
)
async def list_expired_bodies(call: Call) -> Response:
    """Answers GET /api/expired-bodies: the days of keys, the oldest first.

    `state`: kept; due; held (by `queues`, with their numbers of messages when the broker looked); expired (`time` and
    `offset` of the last event that says so). `keys`: those that are not destroyed."""
    call.require()
    expiry, expired = call.broker.expiry, call.broker.topology.history.expired_days
    due = expiry.due_days()
    days = []
    for day in sorted(set(expiry.days) | set(expired)):
        keys, end = expiry.days.get(day, ()), expired.get(day)
        held = expiry.held.get(day, [])
        if keys:
            state = "held" if held else "due" if day in due else "kept"
        elif end is not None:
            state = "expired"
        else:
            continue  # its keys were all erased with their subjects
        days.append(
            {
                "day": day,
                "state": state,
                "keys": len(keys),
                "time": None if end is None else format_time(end.time_ms),
                "offset": None if end is None else end.offset,
                "queues": [{"vhost": each.name[0], "queue": each.name[1], "messages": each.messages} for each in held],
            }
        )
    return await listed(call, days)
