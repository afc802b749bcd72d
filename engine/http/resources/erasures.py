"""Erases subjects, and lists erasures. These paths are our own, for administrators.

DELETE /api/subjects/{subject} (with ?reason=..., or {"reason": ...}) and GET /api/erasures.
"""

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, bad_request, text
from rewindmq.engine.http.listing import listed
from rewindmq.projections.rewind import format_time

MAX_REASON = 4_096


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
        await call.broker.erasures.erase(call.user, subject, reason)
    except OSError as error:
        raise ApiError(500, "key_error", f"not erased, ask again: {error}") from None
    await call.durable()
    return Response(status_code=204)


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
