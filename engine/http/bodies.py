"""Parse bodies of requests, a large one in a separate process.

The parser of JSON cannot be interrupted, and all clients would wait for it.

    up to PARSED_HERE bytes   read in the loop
    above                     read in a process (engine/rewind/worker.py); its answer has at most MAX_VALUES values
    definitions               come back in chunks, each a millisecond's work to unpack
"""

import codecs
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from email import policy
from email.parser import BytesParser

from rewindmq.schemas.json_values import Json, UnfitJson, require_sane

MAX_BODY_BYTES = 10_485_760  # RabbitMQ 3.13's max_http_body_size
MAX_DEFINITIONS_BYTES = 20_000_000  # RabbitMQ 4.x has this for all
MAX_VALUES = 20_000  # of a body, or of an entry of definitions
PARSED_HERE = 65_536
VALUES_AT_ONCE = 2_000  # of a chunk of definitions
OBJECTS_TO_TEXT = 5  # bytes that a document takes in memory, for each byte of its text
BOM = codecs.BOM_UTF8  # some editors put it there


class BadBody(Exception):
    """The body is refused. The text says why, for people."""


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A body for the process that reads large bodies: it answers with an object, or with the refusal."""

    raw: bytes
    most_values: int

    def answer(self) -> "dict[str, Json] | BadBody":
        """Parse the body, in the process that reads large bodies."""
        try:
            return json_object(self.raw, self.most_values)
        except BadBody as error:
            return error


@dataclass(frozen=True, slots=True)
class Definitions:
    """Definitions as they came back from the process.

    `chunks`: (category, some of its entries, pickled). `rest`: the parts that are not lists of entries. `redirect`: the
    field of a form."""

    rest: dict[str, Json]
    chunks: list[tuple[str, bytes]]
    redirect: bytes | None


@dataclass(frozen=True, slots=True)
class DefinitionsBody:
    """A body of definitions, as JSON or as a form, for the process that reads large bodies."""

    raw: bytes
    content_type: str

    def answer(self) -> Definitions | BadBody:
        """Parse the document, in the process that reads large bodies."""
        try:
            return definitions_from(self.raw, self.content_type)
        except BadBody as error:
            return error


def json_object(raw: bytes, most_values: int | None = MAX_VALUES) -> dict[str, Json]:
    """Return the object that a body is; an empty body is an empty object. Raises BadBody."""
    try:
        content = json.loads(raw) if raw.strip() else {}
        marks = raw.count(b",") + raw.count(b"[") + raw.count(b"{")  # one for each value but the first, and in texts
        if most_values is not None and marks >= most_values:
            require_few(content, most_values, "the body")
        require_sane(content, 0)
    except UnfitJson as error:
        raise BadBody(str(error)) from None
    except (ValueError, RecursionError):
        raise BadBody("not_json") from None
    if not isinstance(content, dict):
        raise BadBody("not_json")
    return content


def require_few(value: Json, most: int, what: str) -> None:
    """Raise BadBody if there are too many values in it."""
    if values_in(value) > most:
        raise BadBody(f"{what} has more than {most} values")


def values_in(value: Json) -> int:
    """Return the number of values in it, containers included."""
    count, stack = 0, [value]
    while stack:
        each = stack.pop()
        count += 1
        if isinstance(each, list):
            stack += each
        elif isinstance(each, dict):
            stack += each.values()
    return count


def definitions_from(raw: bytes, content_type: str) -> Definitions:
    """Return the definitions in a document. Raises BadBody."""
    redirect = None
    if content_type.lower().startswith("multipart/form-data"):
        fields = form_fields(content_type, raw)
        if "file" not in fields:
            raise BadBody("the form has no field file")
        raw, redirect = fields["file"].removeprefix(BOM), fields.get("redirect")
    document = json_object(raw, None)
    lists = {category: entries for category, entries in document.items() if isinstance(entries, list)}
    rest: dict[str, Json] = {category: [] if category in lists else value for category, value in document.items()}
    require_few(rest, MAX_VALUES, "the document's head")
    chunks = [
        (category, pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL))
        for category, entries in lists.items()
        for chunk in chunks_of(category, entries)
    ]
    return Definitions(rest, chunks, redirect)


def chunks_of(category: str, entries: list[Json]) -> Iterator[list[Json]]:
    """Yield some entries at a time: VALUES_AT_ONCE values, or a single larger entry."""
    chunk: list[Json] = []
    size = 0
    for entry in entries:
        values = values_in(entry)
        if values > MAX_VALUES:
            raise BadBody(f"an entry of {category} has more than {MAX_VALUES} values")
        if chunk and size + values > VALUES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += values
    if chunk:
        yield chunk


def form_fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """Return the fields of multipart/form-data (RFC 7578), which is MIME. Raises BadBody."""
    parser = BytesParser(policy=policy.HTTP)
    message = parser.parsebytes(b"content-type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body)
    if not message.is_multipart() or message.defects:
        raise BadBody("the form is damaged")
    found = {}
    for part in message.iter_parts():
        name, content = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            found[name] = content
    return found
