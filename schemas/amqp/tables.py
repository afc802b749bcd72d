"""AMQP field tables, with the types of their values.

RabbitMQ's errors and listings tell a `long` from a `signedint`, and history keeps the type.

    name (short string) | type octet | value ...        types and sizes: RabbitMQ's table of AMQP 0-9-1 errata

`l` and `L` are both signed 64 bits. A table that is cut short, nested too deep or has an unknown type is Malformed.
A name may be any bytes in a message's headers. Anything stored in history by name must have a name in UTF-8.
In the parameters of this file `data` from `pos` to `end` holds a table's entries, without the four bytes of their
length.
"""

import struct
from collections.abc import Mapping
from datetime import datetime
from typing import Final, cast

from rewindmq.schemas.amqp.errors import Malformed, Unacceptable
from rewindmq.schemas.json_values import json_text
from rewindmq.schemas.values import Argument, ArgumentValue

# Nesting is bounded, because a frame full of nested tables must not exhaust the stack.
MAX_DEPTH: Final = 32
# The bounds of a declaration over HTTP also apply over AMQP. A frame has room for 65,000 nameless arguments, and a
# declaration with them took 0.27 s.
MAX_ARGUMENTS: Final = 1_024
MAX_VALUES: Final = 20_000  # including nested ones
MAX_TIMESTAMP: Final = 2**63 - 1  # the limit of history and most clients

# type octet -> (RabbitMQ's name, packing) for values of a fixed size
FIXED: Final[dict[int, tuple[str, struct.Struct]]] = {
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

TOO_DEEP: Final = f"field table nested deeper than {MAX_DEPTH}"
NO_NAME: Final = "field table cut short in a name"
NOT_UTF8: Final = "field table with a name that is not UTF-8"


# -- reading ----------------------------------------------------------------------------------------------------------


def parse(data: bytes) -> list[Entry]:
    """Return the entries of a table (`data`, without a length prefix), in order. `name_bytes` restores a name."""
    return _table(data, 0, len(data), 0)


def name_bytes(name: str) -> bytes:
    """Return the bytes of a name from `parse` or `split`."""
    return name.encode("utf-8", "surrogateescape")


def _named(data: bytes) -> list[Entry]:
    """Return the entries of a table. Raises Malformed if one of the names, also of a nested one, is not UTF-8."""
    check(data, 0, len(data), names=True)
    return parse(data)


def arguments(data: bytes) -> tuple[Argument, ...]:
    """Return a table in history's form: nested tables and arrays become JSON text.

    Raises Unacceptable for too many arguments or values, and for a timestamp that does not fit (the year would have 12
    digits)."""
    entries = _named(data)
    require_few(len(entries))
    if sum(_count(kind, value) for _, kind, value in entries) > MAX_VALUES:
        raise Unacceptable(f"the arguments have more than {MAX_VALUES} values")
    given = [Argument(name, kind, _flat(kind, value)) for name, kind, value in entries]
    for each in given:
        if each.type == "timestamp" and isinstance(each.value, int) and each.value > MAX_TIMESTAMP:
            raise Unacceptable(f"invalid arg '{each.name}': timestamp {each.value} is larger than {MAX_TIMESTAMP}")
    return tuple(given)


def first_arguments(data: bytes, most_bytes: int) -> tuple[Argument, ...]:
    """Return the first entries of a table in the form of `arguments`, up to `most_bytes` together, without timestamps
    that do not fit."""
    found: list[Argument] = []
    for name, kind, value in _named(data):
        flat = _flat(kind, value)
        most_bytes -= len(name) + len(flat if isinstance(flat, str | bytes) else str(flat))
        if most_bytes < 0:
            break
        if kind != "timestamp" or (isinstance(flat, int) and flat <= MAX_TIMESTAMP):
            found.append(Argument(name, kind, flat))
    return tuple(found)


def require_few(count: int) -> None:
    """Raise Unacceptable if a declaration has so many arguments that reading them would delay the broker."""
    if count > MAX_ARGUMENTS:
        raise Unacceptable(f"there are {count} arguments, more than {MAX_ARGUMENTS}")


def _count(kind: str, value: object) -> int:
    """Return the number of values in a typed value, including itself."""
    if kind == "table":
        return 1 + sum(_count(k, v) for _, k, v in cast(list[Entry], value))
    if kind == "array":
        return 1 + sum(_count(k, v) for k, v in cast(list[Typed], value))
    return 1


def mapping(data: bytes) -> dict[str, object]:
    """Return a table as plain, untyped Python values (client properties). Raises Malformed as `arguments` does."""
    return {name: untyped(kind, value) for name, kind, value in _named(data)}


def array_items(field: bytes | None) -> list[Typed] | None:
    """Return the values of an array. `field`: a value, its type first. None for another type or damaged bytes."""
    if field is None or field[:1] != b"A":
        return None
    try:
        end, _, values = _value(field, 0, len(field), 0)
    except Malformed:
        return None
    return cast(list[Typed], values) if end == len(field) else None


def untyped(kind: str, value: object) -> object:
    """Return a typed value as a plain Python value."""
    if kind == "table":
        return {name: untyped(k, v) for name, k, v in cast(list[Entry], value)}
    if kind == "array":
        return [untyped(k, v) for k, v in cast(list[Typed], value)]
    return value


def _flat(kind: str, value: object) -> ArgumentValue:
    if kind in ("table", "array"):
        return json_text(untyped(kind, value), sort_keys=True, separators=(",", ":"), default=_json)
    return cast(ArgumentValue, value)


def _json(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode("latin-1")


def _table(data: bytes, pos: int, end: int, depth: int) -> list[Entry]:
    if depth > MAX_DEPTH:
        raise Malformed(TOO_DEEP)
    entries: list[Entry] = []
    while pos < end:
        stop = pos + 1 + data[pos]
        if stop >= end:
            raise Malformed(NO_NAME)
        name = data[pos + 1 : stop].decode("utf-8", "surrogateescape")
        pos, kind, value = _value(data, stop, end, depth)
        entries.append((name, kind, value))
    return entries


def _array(data: bytes, pos: int, end: int, depth: int) -> list[Typed]:
    if depth > MAX_DEPTH:
        raise Malformed(TOO_DEEP)
    values: list[Typed] = []
    while pos < end:
        pos, kind, value = _value(data, pos, end, depth)
        values.append((kind, value))
    return values


def _value(data: bytes, pos: int, end: int, depth: int) -> tuple[int, str, object]:
    """Read the value whose type octet is at `pos`: (position after it, type name, value)."""
    kind = data[pos]
    pos += 1
    fixed = FIXED.get(kind)
    if fixed is not None:
        name, packed = fixed
        if pos + packed.size > end:
            raise Malformed(f"field table cut short in a {name}")
        return pos + packed.size, name, packed.unpack_from(data, pos)[0]
    if kind == ord("t"):
        if pos >= end:
            raise Malformed("field table cut short in a bool")
        return pos + 1, "bool", data[pos] != 0
    if kind == ord("V"):
        return pos, "void", None
    if kind == ord("D"):
        if pos + 5 > end:
            raise Malformed("field table cut short in a decimal")
        return pos + 5, "decimal", f"{int.from_bytes(data[pos + 1 : pos + 5], 'big')}e-{data[pos]}"
    if kind not in b"SxFA":
        raise Malformed(f"field table with unknown type {kind}")
    if pos + 4 > end:
        raise Malformed("field table cut short in a length")
    start = pos + 4
    stop = start + int.from_bytes(data[pos:start], "big")
    if stop > end:
        raise Malformed("field table cut short in a value")
    if kind == ord("S"):
        return stop, "longstr", text(data[start:stop])
    if kind == ord("x"):
        return stop, "binary", data[start:stop]
    if kind == ord("F"):
        return stop, "table", _table(data, start, stop, depth + 1)
    return stop, "array", _array(data, start, stop, depth + 1)


def text(data: bytes) -> str | bytes:
    """Return a long string: text if it is UTF-8, otherwise the bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


# -- writing ----------------------------------------------------------------------------------------------------------


def encode(table: Mapping[str, object], where: str = "arguments") -> bytes:
    """Return the bytes of a table, without its length. Raises Unacceptable for a value that AMQP cannot hold.

    A value is None, bool, int (64 bits), float, str, bytes, datetime, list or Mapping. `where`: the plural name of the
    table in errors."""
    return _encode_table(where, table, 0)


def _encode_table(where: str, table: Mapping[str, object], depth: int) -> bytes:
    parts = []
    for name, value in table.items():
        data = utf8(f"a name in {where}", name, 255)
        parts.append(bytes((len(data),)) + data + _encode_value(f"{where}[{name!r}]", value, depth))
    return b"".join(parts)


def _encode_value(where: str, value: object, depth: int) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise Unacceptable(f"{where} is {value}, which does not fit into 64 bits")
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + with_length(utf8(where, value))
    if isinstance(value, bytes):
        return b"x" + with_length(value)
    if isinstance(value, datetime):
        return b"T" + seconds("timestamp", value).to_bytes(8, "big")
    if not isinstance(value, list | Mapping):
        raise Unacceptable(f"{where} is of type {type(value).__name__}, for which AMQP has none")
    depth += 1
    if depth > MAX_DEPTH:
        raise Unacceptable(f"{where.partition('[')[0]} are nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        return array([_encode_value(f"{where}[{n}]", each, depth) for n, each in enumerate(value)])
    return b"F" + with_length(_encode_table(where, value, depth))


def utf8(where: str, value: object, most: int = 2**32 - 1) -> bytes:
    """Return a str as UTF-8, at most `most` bytes. `where`: its name in errors. Raises Unacceptable."""
    if not isinstance(value, str):
        raise Unacceptable(f"{where} must be a str, not {type(value).__name__}")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise Unacceptable(f"{where} is not Unicode text (it holds half a surrogate pair)") from None
    if len(data) > most:
        raise Unacceptable(f"{where} is {len(data)} bytes long, more than {most}")
    return data


def seconds(where: str, value: object) -> int:
    """Return a timestamp in seconds since 1970, from a number or a datetime with a time zone. Raises Unacceptable."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise Unacceptable(f"{where} needs a time zone: which moment it is depends on it")
        value = int(value.timestamp())
    return whole(where, value, MAX_TIMESTAMP)


def whole(where: str, value: object, most: int) -> int:
    """Return a whole number from 0 to `most`. Raises Unacceptable."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise Unacceptable(f"{where} is a whole number from 0 to {most}, not {value!r}")
    return value


def with_length(data: bytes) -> bytes:
    """Return the bytes preceded by their length: a long string, a table or an array."""
    return len(data).to_bytes(4, "big") + data


def longstr(value: str) -> bytes:
    """Return a long string as a value of a table, its type first."""
    return b"S" + with_length(value.encode())


def array(items: list[bytes]) -> bytes:
    """Return an array as a value of a table, its type first. `items`: each with its type first."""
    return b"A" + with_length(b"".join(items))


# -- taking raw tables apart, without making values -------------------------------------------------------------------


def split(data: bytes) -> dict[str, bytes]:
    """Return type and value as bytes, by name. If a name is repeated, the last one counts.

    `join` restores names that are not UTF-8."""
    pos, end = 0, len(data)
    entries: dict[str, bytes] = {}
    while pos < end:
        at = pos + 1 + data[pos]
        after = entry_end(data, pos, end)
        entries[data[pos + 1 : at].decode("utf-8", "surrogateescape")] = data[at:after]
        pos = after
    return entries


def join(entries: Mapping[str, bytes]) -> bytes:
    """Return a table from its parts, as returned by `split`."""
    parts = []
    for name, value in entries.items():
        data = name_bytes(name)
        parts.append(bytes((len(data),)) + data + value)
    return b"".join(parts)


def entry_end(data: bytes, pos: int, end: int) -> int:
    """Return the end of the entry (name and value) at `pos`. Raises Malformed if it does not fit before `end`."""
    pos += 1 + data[pos]
    if pos >= end:
        raise Malformed(NO_NAME)
    return value_end(data, pos, end)


def value_end(data: bytes, pos: int, end: int) -> int:
    """Return the end of the value whose type octet is at `pos`. Raises Malformed if it does not fit before `end`."""
    kind = data[pos]
    pos += 1
    size = WIDTHS[kind]
    if size < 0:
        if size == -2:
            raise Malformed(f"field table with unknown type {kind}")
        size = 4 + int.from_bytes(data[pos : pos + 4], "big")
    pos += size
    if pos > end:
        raise Malformed("field table cut short in a value")
    return pos


def check(data: bytes, pos: int, end: int, depth: int = 0, names: bool = False) -> None:
    """Raise Malformed for damaged entries, also in nested tables, because a consumer must not get a damaged table.

    `names`: a name that is not UTF-8 also counts as damage."""
    if depth > MAX_DEPTH:
        raise Malformed(TOO_DEEP)
    while pos < end:
        at = pos + 1 + data[pos]
        if at >= end:
            raise Malformed(NO_NAME)
        if names and isinstance(text(data[pos + 1 : at]), bytes):
            raise Malformed(NOT_UTF8)
        pos = value_end(data, at, end)
        if data[at] in NESTED:
            _check_nested(data, at, pos, depth + 1, names)


def _check_nested(data: bytes, pos: int, end: int, depth: int, names: bool) -> None:
    """Check the table or array whose type octet is at `pos`."""
    if data[pos] == TABLE:
        check(data, pos + 5, end, depth, names)
        return
    if depth > MAX_DEPTH:
        raise Malformed(TOO_DEEP)
    pos += 5
    while pos < end:
        at = pos
        pos = value_end(data, pos, end)
        if data[at] in NESTED:
            _check_nested(data, at, pos, depth + 1, names)


def _widths() -> list[int]:
    widths = [-2] * 256  # -2: no such type; -1: a 4-byte length comes first
    for kind, (_, packed) in FIXED.items():
        widths[kind] = packed.size
    widths[ord("t")], widths[ord("V")], widths[ord("D")] = 1, 0, 5
    for kind in b"SxFA":
        widths[kind] = -1
    return widths


WIDTHS: Final = _widths()
TABLE: Final = ord("F")
NESTED: Final = (TABLE, ord("A"))
