"""Erases subjects, and lists erasures and expired bodies. These paths are our own, for administrators.

DELETE /api/subjects/{subject} (with ?reason=..., or {"reason": ...}), GET /api/erasures, and
GET /api/expired-bodies.
"""

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, bad_request, text
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Query, operation
from rewindmq.engine.http.shapes.access import ErasureView, ExpiredDayView, HeldByView
from rewindmq.engine.http.shapes.basics import ReasonWish
from rewindmq.projections.rewind import format_time

MAX_REASON = 4_096


@operation(
    "Erases a subject: its keys are destroyed",
    folds=Folds.NONE,
    act="erase",
    who=ADMINISTRATOR,
    query=(Query("reason", str, "Why; the history keeps it"),),
    body=ReasonWish,
    answers={204: None},
)
async def erase(call: Call) -> Response:
    """Answer DELETE /api/subjects/{subject}.

    204: the keys are destroyed, and the history says so. 404: the subject has none. After a failure the same request
    goes on where the first one was."""
    call.require()
    subject = call.segment("subject")
    reason = call.own_reason(call.request.query_params.get("reason") or text(await call.body(), "reason", ""))
    if len(reason) > MAX_REASON:
        raise bad_request(f"a reason has at most {MAX_REASON} characters")
    try:
        await call.broker.history.erasures.erase(call.actor(), subject, reason)
    except OSError as error:
        raise ApiError(500, "key_error", f"not erased, ask again: {error}") from None
    await call.durable()
    return Response(status_code=204)


@operation("Lists the erasures", folds=Folds.NONE, who=ADMINISTRATOR, listing=ErasureView)
async def list_erasures(call: Call) -> Response:
    """Answer GET /api/erasures, in the order of the erasures. `offset`: of the metadata log."""
    call.require()
    return await listed(call, call.broker.topology.erasures, ErasureView.of)


@operation(
    "Lists the days of bodies: kept, held back by queues, expired",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    listing=ExpiredDayView,
)
async def list_expired_bodies(call: Call) -> Response:
    """Answer GET /api/expired-bodies: the days of keys, the oldest first.

    `state`: kept; due; held (by `queues`, with their numbers of messages when the broker looked); expired (`time` and
    `offset` of the last event that says so). `keys`: those that are not destroyed."""
    call.require()
    expiry, expired = call.broker.history.expiry, call.broker.topology.history.expired_days
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
            ExpiredDayView(
                day=day,
                state=state,
                keys=len(keys),
                time=None if end is None else format_time(end.time_ms),
                offset=None if end is None else end.offset,
                queues=[HeldByView.of(each) for each in held],
            )
        )
    return await listed(call, days)
