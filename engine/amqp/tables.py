"""AMQP field tables with their types kept: RabbitMQ tells a `long` from a `signedint` in its errors and listings, and
history keeps the type, so the tables of declarations and bindings are read here and not by a library that drops it.

    name (short string) | type octet | value ...        types and sizes: RabbitMQ's table of AMQP 0-9-1 errata

`l` and `L` are both signed 64 bits. A table that is cut short or has an unknown type raises MalformedFrame (502).
"""

import json
import struct
from typing import cast

from rewindmq.engine.errors import MalformedFrame, PreconditionFailed
from rewindmq.schemas.events import Argument, ArgumentValue

# Nesting is bounded: a frame full of nested tables must not exhaust the stack.
MAX_DEPTH = 32

# type octet -> (RabbitMQ's name, how it is packed) for values of a fixed size
FIXED: dict[int, tuple[str, struct.Struct]] = {
    ord("b"): ("byte", struct.Struct(">b")),
    ord("B"): ("unsignedbyte", struct.Struct(">B")),
    ord("s"): ("short", struct.Struct(">h")),
    ord("u"): ("unsignedshort", struct.Struct(">H")),
    ord("I"): ("signedint", struct.Struct(">i")),
    ord("i"): ("unsignedint", struct.Struct(">I")),
    ord("l"): ("long", struct.Struct(">q")),
    ord("L"): ("long", struct.Struct(">q")),
    ord("f"): ("float", struct.Struct(">f")),
    ord("d"): ("double", struct.Struct(">d")),
    ord("T"): ("timestamp", struct.Struct(">Q")),
}

# A value with its type. The value of a table is a list of entries, that of an array a list of typed values.
Typed = tuple[str, object]
Entry = tuple[str, str, object]


def parse(data: bytes) -> list[Entry]:
    """The entries of a table, `data` without its length prefix, in order."""
    return _table(data, 0, len(data), 0)


def arguments(data: bytes) -> tuple[Argument, ...]:
    """A table as history keeps it: nested tables and arrays become JSON text. PreconditionFailed for a timestamp that
    does not fit in there: the year would have 12 digits."""
    given = [Argument(name, kind, _flat(kind, value)) for name, kind, value in parse(data)]
    for each in given:
        if each.type == "timestamp" and isinstance(each.value, int) and each.value >= 2**63:
            raise PreconditionFailed(f"invalid arg '{each.name}': timestamp {each.value} is larger than {2**63 - 1}")
    return tuple(given)


def mapping(data: bytes) -> dict[str, object]:
    """A table as plain Python values, without types (client properties, headers for a headers exchange)."""
    return {name: plain(kind, value) for name, kind, value in parse(data)}


def plain(kind: str, value: object) -> object:
    if kind == "table":
        return {name: plain(k, v) for name, k, v in cast(list[Entry], value)}
    if kind == "array":
        return [plain(k, v) for k, v in cast(list[Typed], value)]
    return value


def _flat(kind: str, value: object) -> ArgumentValue:
    if kind in ("table", "array"):
        return json.dumps(plain(kind, value), sort_keys=True, separators=(",", ":"), default=_json)
    return cast(ArgumentValue, value)


def _json(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode("latin-1")


def _table(data: bytes, pos: int, end: int, depth: int) -> list[Entry]:
    if depth > MAX_DEPTH:
        raise MalformedFrame(f"field table nested deeper than {MAX_DEPTH}")
    entries: list[Entry] = []
    while pos < end:
        stop = pos + 1 + data[pos]
        if stop >= end:
            raise MalformedFrame("field table cut short in a name")
        try:
            name = data[pos + 1 : stop].decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedFrame("field table with a name that is not UTF-8") from None
        pos, kind, value = _value(data, stop, end, depth)
        entries.append((name, kind, value))
    return entries


def _array(data: bytes, pos: int, end: int, depth: int) -> list[Typed]:
    if depth > MAX_DEPTH:
        raise MalformedFrame(f"field table nested deeper than {MAX_DEPTH}")
    values: list[Typed] = []
    while pos < end:
        pos, kind, value = _value(data, pos, end, depth)
        values.append((kind, value))
    return values


def _value(data: bytes, pos: int, end: int, depth: int) -> tuple[int, str, object]:
    """The value whose type octet is at `pos`: (position behind it, type name, value)."""
    kind = data[pos]
    pos += 1
    fixed = FIXED.get(kind)
    if fixed is not None:
        name, packed = fixed
        if pos + packed.size > end:
            raise MalformedFrame(f"field table cut short in a {name}")
        return pos + packed.size, name, packed.unpack_from(data, pos)[0]
    if kind == ord("t"):
        if pos >= end:
            raise MalformedFrame("field table cut short in a bool")
        return pos + 1, "bool", data[pos] != 0
    if kind == ord("V"):
        return pos, "void", None
    if kind == ord("D"):
        if pos + 5 > end:
            raise MalformedFrame("field table cut short in a decimal")
        return pos + 5, "decimal", f"{int.from_bytes(data[pos + 1 : pos + 5], 'big')}e-{data[pos]}"
    if kind not in b"SxFA":
        raise MalformedFrame(f"field table with unknown type {kind}")
    if pos + 4 > end:
        raise MalformedFrame("field table cut short in a length")
    start = pos + 4
    stop = start + int.from_bytes(data[pos:start], "big")
    if stop > end:
        raise MalformedFrame("field table cut short in a value")
    if kind == ord("S"):
        return stop, "longstr", text(data[start:stop])
    if kind == ord("x"):
        return stop, "binary", data[start:stop]
    if kind == ord("F"):
        return stop, "table", _table(data, start, stop, depth + 1)
    return stop, "array", _array(data, start, stop, depth + 1)


def text(data: bytes) -> str | bytes:
    """A long string: text when it is UTF-8, else the bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def encode(table: dict[str, object]) -> bytes:
    """A table without its length prefix. Values: bool, int (64 bits), float, str, bytes, dict, list, None."""
    parts = [_short(name) + _encode_value(value) for name, value in table.items()]
    return b"".join(parts)


def _short(name: str) -> bytes:
    data = name.encode()
    return bytes((len(data),)) + data


def _encode_value(value: object) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + _long(value.encode())
    if isinstance(value, bytes):
        return b"x" + _long(value)
    if isinstance(value, dict):
        return b"F" + _long(encode(value))
    if isinstance(value, list):
        return b"A" + _long(b"".join(_encode_value(item) for item in value))
    raise TypeError(f"no AMQP type for {type(value).__name__}")


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


# -- walking over raw tables, without making values -------------------------------------------------------------------


def entry_end(data: bytes, pos: int, end: int) -> int:
    """Where the entry (name and value) that begins at `pos` ends. MalformedFrame when it does not fit before `end`."""
    pos += 1 + data[pos]
    if pos >= end:
        raise MalformedFrame("field table cut short in a name")
    return value_end(data, pos, end)


def value_end(data: bytes, pos: int, end: int) -> int:
    """The same for a value, whose type octet is at `pos`."""
    kind = data[pos]
    pos += 1
    size = WIDTHS[kind]
    if size < 0:
        if size == -2:
            raise MalformedFrame(f"field table with unknown type {kind}")
        size = 4 + int.from_bytes(data[pos : pos + 4], "big")
    pos += size
    if pos > end:
        raise MalformedFrame("field table cut short in a value")
    return pos


def check(data: bytes, pos: int, end: int, depth: int = 0) -> None:
    """Walk over a table's entries, nested ones too: who consumes must not get what is wrong. MalformedFrame."""
    if depth > MAX_DEPTH:
        raise MalformedFrame(f"field table nested deeper than {MAX_DEPTH}")
    while pos < end:
        at = pos + 1 + data[pos]
        pos = entry_end(data, pos, end)
        if data[at] in NESTED:
            _check_nested(data, at, pos, depth + 1)


def _check_nested(data: bytes, pos: int, end: int, depth: int) -> None:
    """The table or array whose type octet is at `pos`."""
    if data[pos] == TABLE:
        check(data, pos + 5, end, depth)
        return
    if depth > MAX_DEPTH:
        raise MalformedFrame(f"field table nested deeper than {MAX_DEPTH}")
    pos += 5
    while pos < end:
        at = pos
        pos = value_end(data, pos, end)
        if data[at] in NESTED:
            _check_nested(data, at, pos, depth + 1)


def _widths() -> list[int]:
    widths = [-2] * 256  # -2: no such type; -1: a 4-byte length comes first
    for kind, (_, packed) in FIXED.items():
        widths[kind] = packed.size
    widths[ord("t")], widths[ord("V")], widths[ord("D")] = 1, 0, 5
    for kind in b"SxFA":
        widths[kind] = -1
    return widths


WIDTHS = _widths()
TABLE = ord("F")
NESTED = (TABLE, ord("A"))
