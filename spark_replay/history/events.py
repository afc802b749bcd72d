"""Makes events into rows of the table EVENTS (columns.py).

A field that has a column of its name goes there; every other field goes, as JSON, into `detail`. So a new event type or
field appears without a change here. Password hashes are left out: people pass the table around.
"""

import base64
from dataclasses import fields, is_dataclass
from typing import Any

from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.history.properties import headers
from rewindmq.schemas.events import EVENT_TYPES, Event, Published
from rewindmq.schemas.reasons import why
from rewindmq.schemas.values import Actor

# event field -> column, where the field means the same as the column
_COLUMN_OF = {
    name: name
    for name in (
        "vhost",
        "queue",
        "exchange",
        "routing_key",
        "consumer",
        "messages",
        "requeue",
        "method",
        "credit",
        "expiration_ms",
        "priority",
        "persistent",
        "properties",
        "body",
    )
} | {"body_size": "size"}
_SECRET = "password_hash"

# per event type: (attribute, column) pairs, and the attributes that go into `detail`
_COLUMNS: dict[type, list[tuple[str, str]]] = {}
_DETAILS: dict[type, list[str]] = {}
for _type in EVENT_TYPES:
    _names = [field.name for field in fields(_type) if field.name != "route"]
    _COLUMNS[_type] = [(name, _COLUMN_OF[name]) for name in _names if name in _COLUMN_OF]
    _DETAILS[_type] = [name for name in _names if name not in _COLUMN_OF and name != _SECRET]


class EventTable:
    """Collects rows and hands them out as Arrow batches. Columns that a row does not set are null."""

    def __init__(self, schema: Any, partition: str) -> None:
        self.schema = schema
        self.partition = partition
        self.rows = 0
        self.columns: dict[str, list[Any]] = {name: [] for name in schema.names}

    def add(self, offset: int, timestamp_ms: int, actor: Actor, event: Event, record: bytes) -> None:
        """Add the row of an event."""
        row: dict[str, Any] = {
            "partition": self.partition,
            "offset": offset,
            "timestamp": timestamp_ms * 1000,
            "user": actor.user,
            "session": actor.session,
            "why": why(actor, event) or None,
            "event": type(event).__name__,
            "record": record,
        }
        for attribute, column in _COLUMNS[type(event)]:
            row[column] = getattr(event, attribute)
        if isinstance(event, Published):
            route = event.route
            row["vhost"] = route.vhost
            row["exchange"] = route.exchange
            row["routing_key"] = route.routing_key
            row["queues"] = route.queues
            if "headers" in self.columns:
                row["headers"] = headers(event.properties)
        elif row.get("messages"):
            row["messages"] = [{"first": first, "last": last} for first, last in row["messages"]]
        row["detail"] = detail(event)
        self._append(row)

    def add_undecodable(self, offset: int, problem: str, record: bytes) -> None:
        """Add a record that cannot be decoded: as the event `Undecodable`."""
        row = {"partition": self.partition, "offset": offset, "event": "Undecodable", "record": record}
        self._append(row | {"detail": canonical_json({"reason": problem})})

    def _append(self, row: dict[str, Any]) -> None:
        for name, values in self.columns.items():
            values.append(row.get(name))
        self.rows += 1

    def take(self) -> Any:
        """Return the collected rows as a record batch; the table is empty after it."""
        import pyarrow as pa

        arrays = [pa.array(self.columns[field.name], field.type) for field in self.schema]
        self.columns = {name: [] for name in self.schema.names}
        self.rows = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def detail(event: Event) -> str | None:
    """Canonical JSON of the fields without a column; None when all of them are empty."""
    values = {name: _plain(getattr(event, name)) for name in _DETAILS[type(event)]}
    values = {name: value for name, value in values.items() if value not in (None, [])}
    return canonical_json(values) if values else None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value
