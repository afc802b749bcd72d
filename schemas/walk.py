"""Finds the end of each record in a block of a container file, without decoding it.

An Avro block is its records concatenated, without lengths between them, so the only way to split it is to walk over
every field. The schema is compiled once into a flat program (nested records are inlined), and one loop runs over it:

    LONG     an int or long              BYTES   a length and that many bytes   FIXED   a known number of bytes
    BOOLEAN  one byte, 0 or 1            ENUM    the index of a symbol          UNION   an index and that branch
    ARRAY    blocks of items

Bytes that cannot be the binary of the schema raise MalformedRecord. Text is not checked for UTF-8; our schemas have no
maps.
"""

import functools
import json
from typing import Any, Final

LONG: Final = 0
BYTES: Final = 1
FIXED: Final = 2
BOOLEAN: Final = 3
ENUM: Final = 4
UNION: Final = 5
ARRAY: Final = 6

# A program: pairs of an operation and its operand (a size, a number of symbols, branch programs, an item's program).
Program = list[tuple[int, Any]]

_PRIMITIVES: Final[dict[str, Program]] = {
    "null": [],
    "int": [(LONG, None)],
    "long": [(LONG, None)],
    "bytes": [(BYTES, None)],
    "string": [(BYTES, None)],
    "boolean": [(BOOLEAN, None)],
    "float": [(FIXED, 4)],
    "double": [(FIXED, 8)],
}


class MalformedRecord(ValueError):
    """The bytes at this place cannot be a record of the schema."""


@functools.lru_cache(maxsize=64)
def compile_schema(schema_json: str) -> Program:
    """Return the program of a self-contained schema, from its JSON text."""
    return _compile(json.loads(schema_json), {}, "")


def compile_fields(fields: list[Any], named: dict[str, Program]) -> Program:
    """Return the program of successive fields of a record. `named`: the types compiled so far, by name."""
    program: Program = []
    for field in fields:
        program.extend(_compile(field["type"], named, ""))
    return program


def number_at(data: bytes, position: int) -> tuple[int, int]:
    """Return a long, length or index in zigzag form, and the position after it. Raises IndexError, MalformedRecord."""
    first = data[position]
    return (first, position + 1) if first < 128 else _long_tail(data, position + 1, first)


def record_lengths(program: Program, data: bytes, count: int) -> list[int]:
    """Return the lengths of the `count` records that make up `data` exactly. Raises MalformedRecord."""
    lengths = []
    position = 0
    try:
        for _ in range(count):
            end = skip(program, data, position)
            lengths.append(end - position)
            position = end
    except IndexError:
        raise MalformedRecord(f"the data ends inside record {len(lengths)}") from None
    if position != len(data):
        raise MalformedRecord(f"{count} records end at byte {position}, the data at byte {len(data)}")
    return lengths


def skip(program: Program, data: bytes, position: int) -> int:
    """Return the position after the value at `position`. An IndexError or a position past the end: too short data."""
    for operation, argument in program:
        if operation == BYTES:
            length = data[position]
            position += 1
            if length >= 128:
                length, position = _long_tail(data, position, length)
            if length & 1:
                raise MalformedRecord(f"a negative length before byte {position}")
            position += length >> 1
        elif operation == LONG:
            while data[position] >= 128:
                position += 1
            position += 1
        elif operation == UNION:
            at, index = position, data[position]
            position += 1
            if index >= 128:
                index, position = _long_tail(data, position, index)
            if index & 1 or index >> 1 >= len(argument):
                raise MalformedRecord(f"no branch of the union at byte {at}")
            branch = argument[index >> 1]
            if branch:
                position = skip(branch, data, position)
        elif operation == BOOLEAN:
            if data[position] > 1:
                raise MalformedRecord(f"not a boolean at byte {position}")
            position += 1
        elif operation == FIXED:
            position += argument
        elif operation == ENUM:
            index = data[position]
            if index & 129 or index >> 1 >= argument:
                raise MalformedRecord(f"no symbol of the enum at byte {position}")
            position += 1
        else:
            position = _skip_items(argument, data, position)
    return position


def _skip_items(item: Program, data: bytes, position: int) -> int:
    """Return the position after an array.

    An array is blocks: a count and that number of items. A negative count is followed by a size in bytes."""
    while True:
        count = data[position]
        position += 1
        if not count:
            return position
        if count >= 128:
            count, position = _long_tail(data, position, count)
        if count & 1:
            size = data[position]
            position += 1
            if size >= 128:
                size, position = _long_tail(data, position, size)
            if size & 1:
                raise MalformedRecord(f"a negative size before byte {position}")
            position += size >> 1
            continue
        for _ in range(count >> 1):
            position = skip(item, data, position)
            if position > len(data):
                raise IndexError


def _long_tail(data: bytes, position: int, first: int) -> tuple[int, int]:
    """Return the rest of a variable-length number in zigzag form, and the position after it."""
    value = first & 127
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise MalformedRecord(f"a number of more than 64 bits before byte {position}")


def _compile(schema: Any, named: dict[str, Program], namespace: str) -> Program:
    if isinstance(schema, list):
        return [(UNION, [_compile(branch, named, namespace) for branch in schema])]
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        return named[schema if "." in schema or not namespace else f"{namespace}.{schema}"]
    kind = schema["type"]
    if kind == "array":
        return [(ARRAY, _compile(schema["items"], named, namespace))]
    if kind not in ("record", "enum", "fixed"):
        return _compile(kind, named, namespace)  # an annotated type, as {"type": "long", "logicalType": ...}
    name = schema["name"]
    if "." in name:
        namespace = name.rpartition(".")[0]
    else:
        namespace = schema.get("namespace", namespace)
        name = f"{namespace}.{name}" if namespace else name
    program: Program = []
    named[name] = program  # before its fields, because a record may contain itself
    if kind == "record":
        for field in schema["fields"]:
            program.extend(_compile(field["type"], named, namespace))
    elif kind == "enum":
        assert len(schema["symbols"]) < 64, "a symbol's index is read as one byte"
        program.append((ENUM, len(schema["symbols"])))
    else:
        program.append((FIXED, schema["size"]))
    return program
