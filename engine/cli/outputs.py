"""The JSON that commands print with `--format json`: which types, and how. docs/outputs/ is made of this table.

Where a broker answers, the types are those of the HTTP API. An event and an effect have a schema for each kind, made of
the classes of the history and of the machine. The listings of --formatter are rabbitmqctl's, and have none.
"""

import typing
from dataclasses import fields
from typing import Any

from rewindmq.engine.cli.shapes import ArchiveLine, CheckedProof, EventLine, Setting
from rewindmq.engine.http.shapes.history import ChangeSumView, ChangeView, FoundMessageView, OutcomeView, WhatIfView
from rewindmq.engine.http.shapes.topology import DefinitionsDocument
from rewindmq.engine.keeping.seals.proof_verifier import Proven
from rewindmq.projections.machine import describe
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.traces.spans import Span
from rewindmq.schemas.events import EVENT_TYPES
from rewindmq.schemas.json_schemas import LINES, LIST, OBJECT, JsonOutput, Schema, Schemas, name_of, object_of, output

QUEUE: Schema = {"vhost": {"type": "string"}, "queue": {"type": "string"}, "queue_id": {"type": "integer"}}


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _with_events(schemas: Schemas, kind: type) -> Schema:
    """Return the schema of an object with an event: `fields` are those of the event's type."""
    name = name_of(kind)
    schemas.of(kind)
    found = schemas.by_name.pop(name)
    found["allOf"] = [_if("event", each, {"properties": {"fields": _event(schemas, each)}}) for each in EVENT_TYPES]
    return found


def _if(name: str, kind: type, then: Schema) -> Schema:
    """Return a rule for the objects whose field `name` names the class. A class of a later version has no rule."""
    return {"if": {"properties": {name: {"const": kind.__name__}}}, "then": then}


def _event(schemas: Schemas, kind: Any) -> Schema:
    """Return a reference to the schema of the fields of an event."""
    hints = typing.get_type_hints(kind)
    properties = {name: schemas.of(hints[name]) for name in describe.field_names(kind)}
    schemas.by_name[kind.__name__] = object_of(properties, text=_first_line(kind))
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _effect(schemas: Schemas, kind: Any) -> Schema:
    """Return a reference to the schema of an effect."""
    hints = typing.get_type_hints(kind)
    properties: Schema = {"effect": {"type": "string"}}
    for each in fields(kind):
        properties |= QUEUE if hints[each.name] is Queue else {each.name: schemas.of(hints[each.name])}
    schemas.by_name[kind.__name__] = object_of(properties, text=_first_line(kind))
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _event_line(schemas: Schemas) -> Schema:
    """Return a line of `events`."""
    found = _with_events(schemas, EventLine)
    kinds = [_if("effect", each, _effect(schemas, each)) for each in typing.get_args(Effect)]
    found["properties"]["effects"]["items"] |= {"allOf": kinds}
    return found


def _checked_proof(schemas: Schemas) -> Schema:
    """Return the answer of `check_proof`."""
    return _with_events(schemas, CheckedProof)


OUTCOME = output("outcome", "An outcome of an event", OutcomeView)
VERIFIER = "proof_verifier.py"  # a separate program

# By command.
OUTPUTS: dict[str, tuple[JsonOutput, ...]] = {
    "config": (output("setting", "The settings of a broker", Setting, LIST),),
    "find": (output("found-message", "A message that was found", FoundMessageView),),
    "history": (OUTCOME,),
    "biography": (OUTCOME,),
    "diff": (
        output("change", "A message that came or left", ChangeView),
        output("change-sum", "How many messages came or left", ChangeSumView, when="--summary"),
    ),
    "what_if": (output("what-if", "A queue as it was and as it would have been", WhatIfView, OBJECT),),
    "spans": (output("span", "A span of a message", Span),),
    "events": (JsonOutput(name="event", title="A record of the log", of=_event_line, form=LINES),),
    "check_proof": (JsonOutput(name="checked-proof", title="A proof that holds", of=_checked_proof, form=OBJECT),),
    "archive_status": (output("archived-partition", "How far partitions are archived", ArchiveLine, LIST),),
    "export_definitions": (output("definitions", "All but the messages of a broker", DefinitionsDocument, OBJECT),),
    VERIFIER: (output("verified-proof", "A proof that holds", Proven, OBJECT),),
}
