"""The OpenAPI document (3.1) of the HTTP API, made of its routes and of the declarations of their handlers.

Path, method and the names in a path are those of the route. What every request of a kind may meet (an unknown login, a
name that does not exist, a body that is too large) is added here; the rest is in the declarations (operation.py).
"""

import json
import re
from collections.abc import Iterable

from starlette.routing import Route

from rewindmq.engine.config import RABBITMQ_VERSION, VERSION
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Media, Operation, Query, operation_of
from rewindmq.engine.http.shapes.basics import ErrorView
from rewindmq.schemas.json_schemas import Schema, Schemas

OPENAPI = "3.1.0"
NAME_IN_PATH = re.compile(r"\{(\w+)\}")
DESCRIPTION = f"""\
RabbitMQ's management API ({RABBITMQ_VERSION}), with its paths, JSON and texts, and RewindMQ's own paths for the past.

A name in a path is percent-encoded: `/api/queues/%2F/q` is the queue `q` of the virtual host `/`. A name has at most
255 bytes. A request has HTTP Basic, a bearer token of the identity provider, or the cookie of `POST /api/login`. An
answer to a change comes when the change is durable. Later versions may add fields, so take those that you
know.
"""

# The names in paths.
NAMES = {
    "component": "A component of runtime parameters, such as operator_policy",
    "destination": "A queue or an exchange",
    "exchange": "An exchange; amq.default is the default one",
    "file": "A file beside a partition of the log: a base, a seal, or the opening of a seal",
    "key": "The properties_key of a binding",
    "kind": "q: the destination is a queue; e: an exchange",
    "limit": "vm_memory_high_watermark or disk_free_limit",
    "message": "A message: PARTITION:ID, or its id",
    "name": "Its name",
    "node": "A node; below /quorum/ a broker of Kafka's",
    "partition": "A partition of the log, such as queues-0",
    "password": "A password",
    "protocol": "A protocol, such as amqp",
    "queue": "A queue",
    "subject": "A subject: what a header of its messages says",
    "unit": "days, weeks, months or years",
    "user": "A user",
    "vhost": "A virtual host",
}
NUMBERS = {
    "id": "A message id",
    "port": "A port",
    "position": "From 1 on",
    "within": "A number of units",
}

LISTING = (
    Query("columns", str, "Only these fields, with commas between them; a dot leads into an object"),
    Query("sort", str, "A field; a dot leads into an object"),
    Query("sort_reverse", bool, "The last first"),
    Query("page", int, "From 1 on; without it all are listed"),
    Query("page_size", int, "At most 500; the default is 100"),
    Query("name", str, "With a page: names that contain this text"),
    Query("use_regex", bool, "With a page: `name` is a regular expression"),
)

REASON = Query("X-Reason", str, "Why; the history keeps it, and a client whose connection is closed gets it")

ERRORS = {
    400: "The request makes no sense, or a name in it does not exist",
    401: "The login is not known, or the user lacks a right",
    403: "Another site sent the request, the node is read-only, or it wants a reason",
    404: "A name in the path does not exist",
    408: "The body did not come in time",
    409: "The state of the queue does not allow it, or the leader refuses the follower",
    410: "The records are no longer here",
    413: "The body is too large",
    429: "The user has too many such requests under way",
    500: "The history is damaged, or a defect: see the broker's log",
    501: "Kafka's own tool has to do it",
    503: "Not now: the log cannot be written, or memory is full",
}
DONE = {200: "Done", 201: "Made", 204: "Done", 303: "Done; the form named this address"}


def document(routes: Iterable[object]) -> Schema:
    """Return the document of all routes that have a declaration."""
    schemas = Schemas("#/components/schemas/")
    paths: dict[str, Schema] = {}
    for route in routes:
        found = operation_of(route.endpoint) if isinstance(route, Route) else None
        if isinstance(route, Route) and found is not None:
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(route.path, {})[method.lower()] = _operation(schemas, route.path, method, found)
    error = schemas.of(ErrorView)
    refusals = {
        str(status): {"description": text, "content": {"application/json": {"schema": error}}}
        for status, text in ERRORS.items()
    }
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "RewindMQ",
            "version": VERSION,
            "description": DESCRIPTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"basic": []}, {"bearer": []}],
        "tags": [{"name": name} for name in sorted({_tag(path) for path in paths})],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.by_name.items())),
            "responses": refusals,
            "parameters": {f"path_{name}": _in_path(name) for name in (*NAMES, *NUMBERS)}
            | {f"listing_{each.name}": _parameter(schemas, each, "query") for each in LISTING},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


def document_text(routes: Iterable[object]) -> bytes:
    """Return the document as JSON."""
    return json.dumps(document(routes), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _tag(path: str) -> str:
    """Return the group of a path: its first name below /api."""
    return path.removeprefix("/api").strip("/").split("/")[0].removesuffix(".json")


def _operation(schemas: Schemas, path: str, method: str, of: Operation) -> Schema:
    """Return an operation of a path."""
    words = re.findall(r"\w+", path.removeprefix("/api").replace("-", "_"))
    item: Schema = {"operationId": "_".join([method.lower(), *words]), "summary": of.summary, "tags": [_tag(path)]}
    if of.who:
        more = "" if of.who == ADMINISTRATOR else f" or {ADMINISTRATOR}"
        item["description"] = f"For users with the tag {of.who}{more}."
        item["x-user-tag"] = of.who
    if not of.login:
        item["security"] = []
    parameters = [_shared("path", name) for name in NAME_IN_PATH.findall(path)]
    parameters += [_parameter(schemas, each, "header") for each in of.headers]
    if method != "GET" and of.login:
        parameters.append(_parameter(schemas, REASON, "header"))
    parameters += [_parameter(schemas, each, "query") for each in of.query]
    if of.listing is not None:
        parameters += [_shared("listing", each.name) for each in LISTING]
    elif of.columns:
        parameters.append(_shared("listing", "columns"))
    if parameters:
        item["parameters"] = parameters
    if of.body is not None:
        schema = schemas.of(of.body)
        required = bool(getattr(of.body, "__required_keys__", True))
        item["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    item["responses"] = _answers(schemas, path, method, of)
    return item


def _shared(where: str, name: str) -> Schema:
    """Return a reference to a parameter that many operations have."""
    return {"$ref": f"#/components/parameters/{where}_{name}"}


def _in_path(name: str) -> Schema:
    """Return a name in a path."""
    kind, text = ("integer", NUMBERS[name]) if name in NUMBERS else ("string", NAMES[name])
    return {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": kind}}


def _parameter(schemas: Schemas, each: Query, where: str) -> Schema:
    """Return a parameter of the query string or a header."""
    found = {"name": each.name, "in": where, "description": each.text, "schema": schemas.of(each.kind)}
    return found | ({"required": True} if each.required else {})


def _answers(schemas: Schemas, path: str, method: str, of: Operation) -> Schema:
    """Return the answers by status: those that are declared, and those of every such request."""
    statuses = {403, 500, 503, *of.errors}
    if of.login:
        statuses.add(401)
    if of.query or of.listing is not None:
        statuses.add(400)
    if "{" in path:
        statuses |= {400, 404}
    if of.body is not None:
        statuses |= {400, 413, 429}
    answers: Schema = {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses}
    for status, kind in of.answers.items():
        answers[str(status)] = _answer(schemas, of, status, kind)
    return dict(sorted(answers.items()))


def _answer(schemas: Schemas, of: Operation, status: int, kind: object) -> Schema:
    """Return a declared answer."""
    if isinstance(kind, Media):
        return {"description": kind.text, "content": {kind.name: {"schema": {"type": "string"}}}}
    if of.listing is not None:
        schema = _listing(schemas.of(of.listing))
    elif kind is None:
        return {"description": DONE[status]}
    else:
        schema = schemas.of(kind)
    if status in ERRORS:
        schema = {"anyOf": [schema, schemas.of(ErrorView)]}
    text = DONE.get(status) or ERRORS[status]
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _listing(entry: Schema) -> Schema:
    """Return a listing: as a whole, or with `page` a page of it."""
    counts = ("total_count", "item_count", "filtered_count", "page", "page_size", "page_count")
    whole = {"type": "array", "items": entry}
    fields: Schema = {name: {"type": "integer"} for name in counts}
    page = {"type": "object", "properties": fields | {"items": whole}, "required": [*counts, "items"]}
    return {"anyOf": [whole, page]}
