"""Export and import of definitions over HTTP, for administrators."""

import pickle
import re
from functools import partial

from starlette.responses import Response

from rewindmq.engine.definitions import document as definitions
from rewindmq.engine.definitions.load import Import
from rewindmq.engine.http.bodies import MAX_DEFINITIONS_BYTES, OBJECTS_TO_TEXT, PARSED_HERE, BadBody, DefinitionsBody
from rewindmq.engine.http.browsers import stays_here
from rewindmq.engine.http.call import Call, bad_request, not_found, until_free
from rewindmq.engine.http.pieces import answer, members
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Query, operation
from rewindmq.engine.http.shapes.topology import DefinitionsDocument

DOWNLOAD = (Query("download", str, "A browser saves the answer under this name"),)


FILE_NAME = re.compile(r"[\w .()-]{1,128}", re.ASCII)


@operation(
    "Exports all definitions", folds=Folds.COUNTERS, who=ADMINISTRATOR, query=DOWNLOAD, answer=DefinitionsDocument
)
async def export_all(call: Call) -> Response:
    """Answer GET /api/definitions and /api/all-configuration."""
    call.require()
    return await as_file(call, await definitions.export(call.broker, call.work))


@operation(
    "Exports the definitions of a virtual host",
    folds=Folds.COUNTERS,
    who=ADMINISTRATOR,
    query=DOWNLOAD,
    answer=DefinitionsDocument,
)
async def export_vhost(call: Call) -> Response:
    """Answer GET /api/definitions/{vhost}."""
    call.require()
    vhost = call.segment("vhost")
    if vhost not in call.broker.topology.vhosts:
        raise bad_request("vhost_not_found")
    return await as_file(call, await definitions.export_vhost(call.broker, call.work, vhost))


async def as_file(call: Call, document: definitions.Item) -> Response:
    """Return the answer as a download, if `?download=NAME` asks for it: browsers save it under this name."""
    response = await answer(members(call.work, document))
    name = call.request.query_params.get("download", "")
    if FILE_NAME.fullmatch(name):
        response.headers["content-disposition"] = f"attachment; filename={name}"
    return response


@operation(
    "Imports definitions, all or none",
    folds=Folds.NAMED,
    act="import",
    who=ADMINISTRATOR,
    body=DefinitionsDocument,
    answers={204: None, 303: None},
)
async def import_all(call: Call) -> Response:
    """Answer POST /api/definitions and /api/all-configuration."""
    call.require()
    return await imported(call, None)


@operation(
    "Imports definitions into a virtual host, all or none",
    folds=Folds.NAMED,
    act="import",
    who=ADMINISTRATOR,
    body=DefinitionsDocument,
    answers={204: None, 303: None},
)
async def import_vhost(call: Call) -> Response:
    """Answer POST /api/definitions/{vhost}."""
    call.require()
    vhost = call.segment("vhost")
    if vhost not in call.broker.topology.vhosts:
        raise not_found("vhost_not_found", "not_found")
    return await imported(call, vhost)


async def imported(call: Call, vhost: str | None) -> Response:
    """Import the body's definitions, all or, if anything is wrong, nothing. Answers when they are durable.

    The body is JSON, or a form with the field `file`. The form's field `redirect` says where the browser goes then."""
    raw = await call.raw_body(MAX_DEFINITIONS_BYTES)
    call.hold(OBJECTS_TO_TEXT * len(raw))
    body = DefinitionsBody(raw, call.request.headers.get("content-type", ""))
    if len(raw) <= PARSED_HERE:
        found = body.answer()
        if isinstance(found, BadBody):
            raise bad_request(str(found))
    else:
        found = await call.read_elsewhere(body)
    where = None if found.redirect is None else header(found.redirect)
    document = found.rest
    async for category, chunk in call.work.over(found.chunks):
        entries = document[category]
        assert isinstance(entries, list)
        entries += pickle.loads(chunk)  # our own process made it
    await Import(call.broker, call.actor(), document, vhost, partial(until_free, call.broker)).carry_out()
    await call.durable()
    return Response(status_code=204) if where is None else Response(status_code=303, headers={"location": where})


def header(value: bytes) -> str:
    """Return an address of ours that may be in a header."""
    text = value.decode("latin-1")
    if not text.isprintable():
        raise bad_request("redirect is not an address")
    if not stays_here(text):
        raise bad_request("redirect leads to another site: give a relative address")
    return text
