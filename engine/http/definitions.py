"""Definitions over HTTP, for administrators: what the broker holds besides messages, out and in."""

import codecs
import re
from email import policy
from email.parser import BytesParser

from starlette.responses import Response

from engine import definitions
from engine.http.browsers import stays_here
from engine.http.call import Call, bad_request, json_object, not_found, reply
from engine.importing import Import

BOM = codecs.BOM_UTF8  # some editors put it there
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
    """All of it or, when anything is wrong, nothing; done when it is durable. It comes as JSON, or as a form's field
    `file`, and the field `redirect` says where the browser goes then."""
    sent = call.request.headers.get("content-type", "")
    where = None
    if sent.lower().startswith("multipart/form-data"):
        fields = form_fields(sent, await call.raw_body())
        if "file" not in fields:
            raise bad_request("the form has no field file")
        document = json_object(fields["file"].removeprefix(BOM))
        where = header(fields["redirect"]) if "redirect" in fields else None
    else:
        document = await call.body()
    await Import(call.broker, call.user, document, vhost).carry_out()
    await call.durable()
    return Response(status_code=204) if where is None else Response(status_code=303, headers={"location": where})


def form_fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """multipart/form-data (RFC 7578), which is MIME."""
    parser = BytesParser(policy=policy.HTTP)
    message = parser.parsebytes(b"content-type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body)
    if not message.is_multipart() or message.defects:
        raise bad_request("the form is damaged")
    found = {}
    for part in message.iter_parts():
        name, content = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            found[name] = content
    return found


def header(value: bytes) -> str:
    """An address of ours that may stand in a header."""
    text = value.decode("latin-1")
    if not text.isprintable():
        raise bad_request("redirect is no address")
    if not stays_here(text):
        raise bad_request("redirect leads to another site: give a relative address")
    return text
