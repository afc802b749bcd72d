"""The JSON that Spark's commands print with `--format json`: rows and objects. docs/outputs/ is made of this table.

Rows are those of the tables, with the texts of the data dictionary (dictionary.py). Reports are the classes that the
commands print.
"""

from functools import partial

import pyarrow as pa

from rewindmq.schemas.json_schemas import LIST, JsonOutput, Schema, Schemas, object_of, output
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.watch import BatchReport
from rewindmq.spark_replay.columns import some_of
from rewindmq.spark_replay.dictionary import TABLES, Table, text_of

# By the type of a column, as `plain` (projections/history/properties.py) writes a value.
TYPES: dict[pa.DataType, Schema] = {
    columns.TEXT: {"type": "string"},
    columns.LONG: {"type": "integer"},
    columns.INT: {"type": "integer"},
    columns.FLOAT: {"type": "number"},
    columns.BOOL: {"type": "boolean"},
    columns.TIME: {"type": "string", "format": "date-time"},
}
# JSON in the table, decoded in the output.
DECODED: Schema = {name: {"type": "object"} for name in ("arguments", "effective_policy_definition")}


def column(kind: pa.DataType) -> Schema:
    """Return the schema of a value of a column that is not null."""
    if pa.types.is_struct(kind):
        return object_of({each.name: _nullable(column(each.type)) for each in kind})
    if pa.types.is_list(kind):
        return {"type": "array", "items": column(kind.value_type)}
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": column(kind.item_type)}
    return TYPES[kind]


def _nullable(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def _columns(table: Table, shown: pa.Schema) -> Schema:
    """Return the columns of a table, each with its text."""
    return {each.name: _nullable(column(each.type)) | {"description": text_of(table, each.name)} for each in shown}


def _row(name: str, more: Schema, shown: pa.Schema | None, _: Schemas) -> Schema:
    """Return a row of a table. `shown`: the columns that it has here, None: all; `more`: those of a sum."""
    table = TABLES[name]
    return object_of(_columns(table, table.columns if shown is None else shown) | more)


def rows(
    name: str, table: str, when: str = "", shown: pa.Schema | None = None, more: Schema | None = None
) -> JsonOutput:
    """Return the output of rows of a table, in an array."""
    title = f"Rows: {TABLES[table].row}" if more is None else f"Sums of rows: {TABLES[table].row}"
    return JsonOutput(name=name, title=title, of=partial(_row, table, more or {}, shown), form=LIST, when=when)


def _queue(messages: bool, _: Schemas) -> Schema:
    """Return a queue at a moment; with `messages` its messages, too."""
    queue = _columns(TABLES["queues"], TABLES["queues"].columns) | DECODED
    queue["name"] = {"type": "string", "description": "The queue again, as rabbitmqctl calls it"}
    queue["moment"] = {"type": "string", "description": "Where several were asked for: which one"}
    if messages:
        queue["messages_total"] = queue["messages"]
        queue["messages"] = {"type": "array", "items": _message(), "description": "Its messages, in order"}
    return object_of(queue, optional=("moment",))


def _message() -> Schema:
    shown = [each for each in columns.MESSAGES if each.name not in ("properties", "body")]
    found = _columns(TABLES["messages"], pa.schema(shown))
    found["properties"] = {
        "type": ["object", "string"],
        "description": "Properties by AMQP's names, without absent ones; base64 of bytes that are no properties",
    }
    found["body"] = {"type": "string"}
    found["body_encoding"] = {"enum": ["utf-8", "base64"]}
    return object_of(found)


def _finding(schemas: Schemas) -> Schema:
    """Return a finding, with its advice."""
    schemas.of(Finding)
    found = schemas.by_name.pop("Finding")
    added: Schema = {
        "checked": {"type": "boolean", "description": "Whether anything was compared"},
        "severity": {"type": "string", "description": "How bad it is; empty where the check holds"},
        "hint": {"type": "string", "description": "What to do first; empty where the check holds"},
    }
    return object_of(found["properties"] | added, text=found["description"])


def _summed(name: str, *keys: str, what: str, of: str, when: str = "") -> JsonOutput:
    """Return the output of sums over rows of a table, by some of its columns."""
    total: Schema = {what: {"type": "integer", "description": of}}
    table = TABLES[name]
    return rows(f"spark-{name}-sum", name, when, some_of(table.columns, *keys), total)


FINDINGS = JsonOutput(name="spark-finding", title="The findings of checks", of=_finding, form=LIST)
HISTORY = rows("spark-outcome", "history")
FATES = _summed("fates", "candidate", "vhost", "queue", "before", "after", what="messages", of="How many messages")
CHANGES = ("vhost", "queue", "outcome", "rule", "user")

# By command.
OUTPUTS: dict[str, tuple[JsonOutput, ...]] = {
    "state-at": (
        JsonOutput(name="spark-queue", title="Queues at a moment", of=partial(_queue, False), form=LIST),
        JsonOutput(
            name="spark-queue-with-messages",
            title="Queues at a moment, with their messages",
            of=partial(_queue, True),
            form=LIST,
            when="--messages",
        ),
    ),
    "history": (HISTORY,),
    "biography": (HISTORY,),
    "diff": (
        rows("spark-change", "diff"),
        _summed("diff", *CHANGES, what="change", of="Messages that came, less those that left", when="--summary"),
    ),
    "slo": (rows("spark-slo", "slo"),),
    "what-if": (
        FATES,
        rows("spark-fate", "fates", "--show fates"),
        rows("spark-depth", "depths", "--show depth"),
        rows("spark-assumption", "assumptions", "--show assumptions"),
    ),
    "audit": (FINDINGS,),
    "verify": (FINDINGS,),
    "watch": (output("spark-batch", "A batch of a watch", BatchReport),),
}
