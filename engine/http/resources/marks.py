"""Moments with a name: GET /api/marks, GET PUT DELETE /api/marks/{name}.

PUT takes {"note": "..."} or nothing, and gives this moment a name. A name that exists moves to this moment. The
positions are taken in one turn of the loop, and logged when all events below them are durable: so after a crash no mark
points behind the end of the log. Policymakers set and clear marks. Every user who may enter a vhost sees
them; notes, and the names of other users, only with the tag policymaker, monitoring or administrator.
"""

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, bad_request, done, not_found, reply, text
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import POLICYMAKER, Folds, operation
from rewindmq.engine.http.shapes.history import MarkView, MarkWish
from rewindmq.engine.log.contract import LogError
from rewindmq.schemas.metadata_events import MarkSet

MAX_MARKS = 10_000
MAX_NOTE_BYTES = 4_096


def visible_marks(call: Call) -> dict[str, MarkSet]:
    """Return the marks by name; none for a user who may see no vhost."""
    return call.broker.topology.marks if call.monitored_vhosts() else {}


def mark_in_path(call: Call) -> MarkSet:
    """Return the mark in the path. Raises ApiError (404)."""
    found = visible_marks(call).get(call.segment("name"))
    if found is None:
        raise not_found()
    return found


@operation("Lists the marks: moments with a name", folds=Folds.NONE, listing=MarkView)
async def list_all(call: Call) -> Response:
    """Answer GET /api/marks."""
    return await listed(call, [MarkView.of(mark, call) for _, mark in sorted(visible_marks(call).items())])


@operation("Shows a mark", folds=Folds.NONE, answer=MarkView)
async def show(call: Call) -> Response:
    """Answer GET /api/marks/{name}."""
    return reply(MarkView.of(mark_in_path(call), call))


@operation(
    "Gives this moment a name, or moves the name to it",
    folds=Folds.NONE,
    who=POLICYMAKER,
    body=MarkWish,
    answers={201: None, 204: None},
)
async def put(call: Call) -> Response:
    """Answer PUT /api/marks/{name}."""
    call.require_policymaker()
    name, note = call.segment("name"), text(await call.body(), "note", "")
    marks = call.broker.topology.marks
    if not name or name != name.strip():
        raise bad_request("a mark's name must not be empty, nor begin or end with a space")
    if len(note.encode()) > MAX_NOTE_BYTES:
        raise bad_request(f"a mark's note has at most {MAX_NOTE_BYTES} bytes")
    if name not in marks and len(marks) >= MAX_MARKS:
        raise bad_request(f"there are {MAX_MARKS} marks already: clear one")
    try:
        positions = await call.broker.history.marks.positions()
    except LogError as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    await call.durable()
    new = name not in marks
    await call.broker.history.marks.set(call.actor(), MarkSet(name, positions, note))
    await call.durable()
    return done(new)


@operation("Clears a mark", folds=Folds.NONE, who=POLICYMAKER, answers={204: None})
async def delete(call: Call) -> Response:
    """Answer DELETE /api/marks/{name}."""
    call.require_policymaker()
    await call.broker.history.marks.clear(call.actor(), mark_in_path(call).name)
    await call.durable()
    return Response(status_code=204)
