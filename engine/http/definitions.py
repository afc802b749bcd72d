"""Definitions over HTTP, for administrators: what the broker holds besides messages, out and in."""

import re

from starlette.responses import Response

from engine import definitions
from engine.http.call import Call, bad_request, not_found, reply
from engine.importing import Import

FILE_NAME = re.compile(r"[\w .()-]{1,128}", re.ASCII)


async def export_all(call: Call) -> Response:
    call.require()
    return as_file(call, definitions.export(call.broker))


async def export_vhost(call: Call) -> Response:
    call.require()
    vhost = call.segment("vhost")
    if vhost not in call.broker.topology.vhosts:
        raise bad_request("vhost_not_found")
    return as_file(call, definitions.export_vhost(call.broker, vhost))


def as_file(call: Call, document: definitions.Item) -> Response:
    """`?download=NAME`: browsers keep it under this name."""
    response = reply(document)
    name = call.request.query_params.get("download", "")
    if FILE_NAME.fullmatch(name):
        response.headers["content-disposition"] = f"attachment; filename={name}"
    return response


async def import_all(call: Call) -> Response:
    call.require()
    return await imported(call, None)


async def import_vhost(call: Call) -> Response:
    call.require()
    vhost = call.segment("vhost")
    if vhost not in call.broker.topology.vhosts:
        raise not_found("vhost_not_found", "not_found")
    return await imported(call, vhost)


async def imported(call: Call, vhost: str | None) -> Response:
    """All of it or, when anything is wrong, nothing; done when it is durable."""
    await Import(call.broker, call.user, await call.body(), vhost).carry_out()
    await call.durable()
    return Response(status_code=204)
