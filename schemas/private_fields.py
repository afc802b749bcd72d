"""The fields of history that a copy may omit and still prove: bodies, and hashes of secrets or of whole records.

    fields = WithheldFields(newest)              the schemas up to this one
    fields.find(record, 0)                       the one such field of a record, or None

A seal has a commitment instead of each such field (engine/keeping/seals/commitments.py). So the marks below are for
ever, like the schemas: the mark of a released field never changes, and a new field gets its mark before its release.

A value is one of our events if it begins with C3 01 and the fingerprint of a schema up to `newest`, if the schema's
lengths, counts and branches lead from there to its last byte in the way of walk.py, and if the length of the withheld
field has its shortest form. Any other value is withheld as a whole.
"""

import functools
import json
from dataclasses import dataclass
from typing import Any, Final

from rewindmq.schemas.own_form import Surprise, route_end, size_end, varint
from rewindmq.schemas.registry import envelope_fingerprint, released_in_order, schema_json
from rewindmq.schemas.shapes import UnknownSchema
from rewindmq.schemas.single_object import HEADER, HEADER_SIZE, header_of
from rewindmq.schemas.walk import BYTES, MalformedRecord, Program, compile_fields, number_at, skip

# (event, field): at most one of an event, and none within another record.
WITHHELD: Final = frozenset({("Published", "body"), ("UserSet", "password_hash"), ("HistoryTrimmed", "chain")})
# (record, field): the other fields of bytes.
OPEN: Final = frozenset({("Published", "properties"), ("Encryption", "nonce"), ("Argument", "value")})

BYTES_FORM: Final = 0  # the forms of a withheld field
TEXT_FORM: Final = 1
VALUE_FORM: Final = 2  # not a field, but a whole value

_REASON: Final[Program] = [(BYTES, None)]
_PLAIN: Final = (b"\0\0\0\0\0", b"\0\0\1\0\0")  # no expiration, priority, origin, encryption; transient and persistent


# A withheld field in a record: its form, the position of its length, and the positions of its content's beginning and
# end. It is not a class, because every sealed record makes one.
Field = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Event:
    """An event's program, or the programs before and after its withheld field. `form` -1: it has none."""

    before: Program
    form: int = -1
    behind: Program | None = None


@dataclass(frozen=True, slots=True)
class _Layout:
    """A schema of the envelope. `head`: the program before its event. `explained`: the number of the event that is a
    reason and another event (`Explained.avsc`); -1: the schema has none."""

    head: Program
    events: list[_Event]
    explained: int


class WithheldFields:
    """A finder of the withheld fields of many records.

    It remembers the head of the last message, up to its event. The next one usually has the same, and then needs no
    walk if it is a plain message."""

    def __init__(self, newest: str) -> None:
        """Know the schemas up to the one with fingerprint `newest`. Raises UnknownSchema."""
        self._layouts = {header_of(each): _layout(each) for each in _known(newest)}
        self._head: bytes | None = None  # of a message of today's schema, from its twelfth byte up to its event
        self._route: bytes | None = None  # of the last plain message: equal bytes end at the same place

    def find(self, record: bytes, start: int) -> Field | None:
        """Return the withheld field of a record whose value begins at `start`; None: it is an event without one."""
        at = start + HEADER_SIZE
        try:
            head = self._head
            if head is not None and record.startswith(head, at + 2) and record[at] & record[at + 1] & 0x80:
                found = self._plain(record, start, at + 2 + len(head))
                if found is not None:
                    return found
            layout = self._layouts.get(record[start:at])
            if layout is not None:
                return self._walked(record, start, at, layout)
        except (IndexError, MalformedRecord):
            pass
        return VALUE_FORM, start, start, len(record)

    def _plain(self, record: bytes, start: int, pos: int) -> Field | None:
        """Return the body of a plain message in our encoder's form whose event begins at `pos`; None: walk the record.

        In this record and the one with the head, the first two bytes mean that the timestamp continues, and all bytes
        from there to `pos` are equal, so a walk is at the same place in the schema at `pos`."""
        if not record.startswith(HEADER, start):
            return None
        try:
            route = self._route
            if route is not None and record.startswith(route, pos):
                pos += len(route)
            else:
                end = route_end(record, pos)
                self._route = record[pos:end]
                pos = end
            pos = size_end(record, pos)
            if record[pos : pos + 5] not in _PLAIN:
                return None
            length = pos + 5
            size, begin = varint(record, length)
        except (IndexError, Surprise):
            return None
        end = begin + size
        if end != len(record) or size < 0 or not _is_shortest(record, length, begin):
            return None
        return BYTES_FORM, length, begin, end

    def _walked(self, record: bytes, start: int, at: int, layout: _Layout) -> Field | None:
        index, pos = number_at(record, skip(layout.head, record, at))
        explained = index == layout.explained << 1
        if explained:
            index, pos = number_at(record, skip(_REASON, record, pos))
        if index & 1 or index >> 1 >= len(layout.events) or (explained and index == layout.explained << 1):
            raise MalformedRecord(f"no event before byte {pos}")
        if index == 0 and not explained and record.startswith(HEADER, start) and record[at] & record[at + 1] & 0x80:
            self._head = record[at + 2 : pos]
        event, found = layout.events[index >> 1], None
        pos = skip(event.before, record, pos)
        if event.behind is not None:
            length = pos
            size, begin = number_at(record, length)
            if size & 1 or not _is_shortest(record, length, begin):
                raise MalformedRecord(f"no length before byte {begin}, or not in its shortest form")
            pos = begin + (size >> 1)
            found = event.form, length, begin, pos
            pos = skip(event.behind, record, pos)
        if pos != len(record):
            raise MalformedRecord(f"the record ends before byte {pos}, or goes on behind it")
        return found


def _is_shortest(record: bytes, length: int, begin: int) -> bool:
    """Return True if the length between these places has no excess byte, so that its field alone determines it."""
    return record[begin - 1] != 0 or begin == length + 1


@functools.cache
def _known(newest: str) -> tuple[str, ...]:
    """Return the fingerprints of the schemas up to `newest`. Raises UnknownSchema."""
    today = envelope_fingerprint()
    order = [*(each for each in released_in_order() if each != today), today]
    if newest not in order:
        raise UnknownSchema(f"no released schema of history has the fingerprint {newest}")
    return tuple(order[: order.index(newest) + 1])


@functools.cache
def _layout(fingerprint: str) -> _Layout:
    timestamp, actor, event = json.loads(schema_json(fingerprint))["fields"]
    named: dict[str, Program] = {}
    head = compile_fields([timestamp, actor], named)
    branches = event_records(event["type"])
    names = [branch["name"] for branch in branches]
    explained = names.index("Explained") if "Explained" in names else -1
    events = [_event(branch, named) if branch["name"] != "Explained" else _Event([]) for branch in branches]
    return _Layout(head, events, explained)


def event_records(union: list[Any]) -> list[dict[str, Any]]:
    """Return the records of the envelope's union. A record that is new since `Explained` is written out there, and the
    union has its name."""
    written = [branch for branch in union if isinstance(branch, dict)]
    within = [each for branch in written if branch["name"] == "Explained" for each in branch["fields"][1]["type"]]
    by_name = {f"{each['namespace']}.{each['name']}": each for each in within if isinstance(each, dict)}
    return [by_name[branch] if isinstance(branch, str) else branch for branch in union]


def _event(schema: dict[str, Any], named: dict[str, Program]) -> _Event:
    fields = schema["fields"]
    marked = [number for number, field in enumerate(fields) if (schema["name"], field["name"]) in WITHHELD]
    if not marked:
        return _Event(compile_fields(fields, named))
    [number] = marked
    form = TEXT_FORM if fields[number]["type"] == "string" else BYTES_FORM
    before = compile_fields(fields[:number], named)
    return _Event(before, form, compile_fields(fields[number + 1 :], named))
