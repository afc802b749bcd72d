"""A schema of another version, for tests of what happens when there is one: today's, without what a later one brought.

No such schema was ever released. `released` lets this program know it for a while."""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from rewindmq.schemas import registry
from rewindmq.schemas.events import EVENT_TYPES, Event, PolicyApplied, Published, QueueDeclared
from rewindmq.schemas.registry import envelope_schema, envelope_schema_json, fingerprint_of
from rewindmq.schemas.single_object import HEADER_SIZE, header_of
from rewindmq.schemas.values import Actor

LATER_EVENTS = EVENT_TYPES[-3:]  # and Explained, which is the last of the union
LATER_FIELDS = {
    ("Published", "priority"),  # it stands before the body
    ("QueueDeclared", "operator_policy"),
    ("PolicyApplied", "operator_policy"),
    ("Route", "deduplication"),
}


def earlier(later_fields: Collection[tuple[str, str]] = LATER_FIELDS) -> dict[str, Any]:
    """Today's envelope without these fields, given by record and name, and without the last events."""

    def less(schema: Any) -> Any:
        if isinstance(schema, list):
            return [less(branch) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        found = dict(schema)
        if "items" in schema:
            found["items"] = less(schema["items"])
        if "fields" in schema:
            kept = [each for each in schema["fields"] if (schema["name"], each["name"]) not in later_fields]
            found["fields"] = [each | {"type": less(each["type"])} for each in kept]
        return found

    schema = json.loads(envelope_schema_json())
    del schema["fields"][-1]["type"][-len(LATER_EVENTS) - 1 :]
    made: dict[str, Any] = less(schema)
    return made


EARLIER_SCHEMA = earlier()
EARLIER_JSON = json.dumps(EARLIER_SCHEMA)
EARLIER = fingerprint_of(EARLIER_SCHEMA)


@contextmanager
def released(directory: Path, schema: dict[str, Any] = EARLIER_SCHEMA) -> Iterator[None]:
    """Let there be two released schemas, this one and today's."""
    for each in (schema, envelope_schema()):
        (directory / f"{fingerprint_of(each)}.avsc").write_text(json.dumps(each), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "RELEASED", directory)
        yield


def is_later(sample: tuple[int, Actor, Event]) -> bool:
    """Return True if the earlier schema cannot hold the event, or its actor's reason."""
    return isinstance(sample[2], LATER_EVENTS) or sample[1].reason != ""


def as_of_earlier(event: Event) -> Event:
    """The event without the fields that the earlier schema has not."""
    if isinstance(event, Published):
        return replace(event, priority=None, route=replace(event.route, deduplication=None))
    return replace(event, operator_policy=None) if isinstance(event, QueueDeclared | PolicyApplied) else event


def under(schema: dict[str, Any], record: bytes) -> bytes:
    """A record of today's schema as a writer under this one would have written it."""
    row = fastavro.schemaless_reader(
        BytesIO(record[HEADER_SIZE:]), fastavro.parse_schema(envelope_schema(), {}), None, return_record_name=True
    )
    written = BytesIO()  # fields that the schema does not have are left out
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema, {}), row)
    return header_of(fingerprint_of(schema)) + written.getvalue()
