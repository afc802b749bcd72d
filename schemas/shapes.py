"""Converts any value of our schemas to Avro binary and back, driven by the schema: complete and exact, but slow.

A `Shape` is a schema prepared for this: the kind of value, its parts, and the class of a record. `write` makes the same
bytes as every Avro library; `read` accepts every form that the Avro specification allows (such as arrays in several
blocks) and names the byte at which anything else goes wrong.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

NULL: Final = 0
BOOLEAN: Final = 1
LONG: Final = 2
DOUBLE: Final = 3
STRING: Final = 4
BYTES: Final = 5
ENUM: Final = 6
ARRAY: Final = 7
UNION: Final = 8
RECORD: Final = 9

_PRIMITIVES: Final = {
    "null": NULL,
    "boolean": BOOLEAN,
    "long": LONG,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
}
_KIND_OF_TYPE: Final[dict[type, int]] = {
    type(None): NULL,
    bool: BOOLEAN,
    int: LONG,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
}
_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1


class UndecodableRecord(ValueError):
    """The bytes are not an envelope of a known schema; the text says at which byte and why."""


class UnknownSchema(UndecodableRecord):
    """No released schema has this fingerprint, so the data is from a newer version of RewindMQ, or from elsewhere."""


class Shape:
    """A prepared schema.

    `parts`: a record's fields, a union's branches, an array's items (one). `names`: a record's fields, an enum's
    symbols. `make` builds a record from its fields in order; None: the record is a plain tuple."""

    def __init__(
        self, kind: int, name: str, parts: "list[Shape]", names: list[str], make: Callable[..., Any] | None
    ) -> None:
        self.kind = kind
        self.name = name
        self.parts = parts
        self.names = names
        self.make = make


def shape_of(schema: Any, classes: dict[str, Callable[..., Any]], known: dict[str, Shape]) -> Shape:
    """Return the shape of a schema in plain JSON data. `classes` builds the records, by name without namespace; `known`
    holds the named types met so far."""
    if isinstance(schema, list):
        return Shape(UNION, "union", [shape_of(branch, classes, known) for branch in schema], [], None)
    if isinstance(schema, str):
        return Shape(_PRIMITIVES[schema], schema, [], [], None) if schema in _PRIMITIVES else known[schema]
    kind = schema["type"]
    if kind == "array":
        return Shape(ARRAY, "array", [shape_of(schema["items"], classes, known)], [], None)
    if kind == "enum":
        shape = Shape(ENUM, schema["name"], [], list(schema["symbols"]), None)
        known[f"{schema['namespace']}.{schema['name']}"] = shape
        return shape
    if kind == "record":
        shape = Shape(RECORD, schema["name"], [], [], classes.get(schema["name"]))
        known[f"{schema['namespace']}.{schema['name']}"] = shape
        for field in schema["fields"]:
            shape.names.append(field["name"])
            shape.parts.append(shape_of(field["type"], classes, known))
        return shape
    return shape_of(kind, classes, known)  # a primitive with a logical type: the bytes are the primitive's


# --- writing ----------------------------------------------------------------------------------------------------------


def long_bytes(value: int) -> bytes:
    """Return a long (also a length or an index): zigzag, 7 bits a byte, lowest first. ValueError beyond 64 bits."""
    if not _SMALLEST <= value <= _LARGEST:
        raise ValueError(f"{value} does not fit into an Avro long (64 bits)")
    rest = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def write(out: bytearray, shape: Shape, value: Any) -> None:
    """Append `value`. Raises ValueError if it does not fit the shape."""
    kind = shape.kind
    if kind == LONG:
        out += long_bytes(value)
    elif kind == STRING:
        text = value.encode("utf-8")
        out += long_bytes(len(text))
        out += text
    elif kind == BYTES:
        out += long_bytes(len(value))
        out += value
    elif kind == BOOLEAN:
        out.append(1 if value else 0)
    elif kind == DOUBLE:
        out += struct.pack("<d", value)
    elif kind == ENUM:
        if value not in shape.names:
            raise ValueError(f"{value!r} is none of {shape.name}'s symbols {', '.join(shape.names)}")
        out += long_bytes(shape.names.index(value))
    elif kind == ARRAY:
        if value:
            out += long_bytes(len(value))
            for item in value:
                write(out, shape.parts[0], item)
        out.append(0)
    elif kind == UNION:
        branch = _branch_for(shape, value)
        out += long_bytes(branch)
        write(out, shape.parts[branch], value)
    elif kind == RECORD and shape.make is None:
        for part, item in zip(shape.parts, value, strict=True):
            write(out, part, item)
    elif kind == RECORD:
        for part, name in zip(shape.parts, shape.names, strict=True):
            write(out, part, getattr(value, name))


def _branch_for(shape: Shape, value: Any) -> int:
    kind = _KIND_OF_TYPE.get(type(value), RECORD)
    for index, part in enumerate(shape.parts):
        if part.kind == kind and (kind != RECORD or part.make in (None, type(value))):
            return index
    raise ValueError(f"a value of type {type(value).__name__} fits none of {[part.name for part in shape.parts]}")


# --- reading ----------------------------------------------------------------------------------------------------------


class Cursor:
    """A place in a record. Every method advances it, or raises UndecodableRecord with the place and the reason."""

    def __init__(self, record: bytes, pos: int) -> None:
        self.record = record
        self.pos = pos

    def fail(self, why: str, pos: int) -> NoReturn:
        """Raise UndecodableRecord, with the place and the reason."""
        # from None, because the reader of this error does not need the exception of the codec's fast path
        raise UndecodableRecord(f"byte {pos} of {len(self.record)}: {why}") from None

    def long(self, what: str) -> int:
        """Read a long. `what` names it in errors."""
        start = self.pos
        value = shift = 0
        while True:
            if self.pos >= len(self.record):
                self.fail(f"the record ends within {what}", start)
            byte = self.record[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                self.fail(f"{what} is longer than 10 bytes", start)
        if value >> 64:
            self.fail(f"{what} does not fit into 64 bits", start)
        return value >> 1 if not value & 1 else ~(value >> 1)

    def size(self, what: str) -> int:
        """Return a length prefix."""
        start = self.pos
        size = self.long(f"the length of {what}")
        if size < 0:
            self.fail(f"{what} has the negative length {size}", start)
        return size

    def take(self, size: int, what: str) -> bytes:
        """Read `size` bytes. `what` names them in errors."""
        end = self.pos + size
        if end > len(self.record):
            self.fail(f"{what} is {size} bytes long, but the record ends after {len(self.record) - self.pos}", self.pos)
        taken = self.record[self.pos : end]
        self.pos = end
        return taken

    def text(self, what: str) -> str:
        """Read a string. `what` names it in errors."""
        text = self.take(self.size(what), what)
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not UTF-8: {error.reason}", self.pos - len(text) + error.start)


def read(cursor: Cursor, shape: Shape, what: str) -> Any:
    """Return the value at the cursor. `what` names it in errors."""
    kind = shape.kind
    start = cursor.pos
    if kind == LONG:
        return cursor.long(what)
    if kind == STRING:
        return cursor.text(what)
    if kind == BYTES:
        return cursor.take(cursor.size(what), what)
    if kind == BOOLEAN:
        byte = cursor.take(1, what)
        if byte not in (b"\x00", b"\x01"):
            cursor.fail(f"{what} is neither true (1) nor false (0) but {byte[0]}", start)
        return byte == b"\x01"
    if kind == DOUBLE:
        return struct.unpack("<d", cursor.take(8, what))[0]
    if kind == NULL:
        return None
    if kind == ENUM:
        index = cursor.long(what)
        if not 0 <= index < len(shape.names):
            cursor.fail(f"{what} has no symbol number {index}", start)
        return shape.names[index]
    if kind == ARRAY:
        return _read_array(cursor, shape, what)
    if kind == UNION:
        index = cursor.long(what)
        if not 0 <= index < len(shape.parts):
            cursor.fail(f"{what} has no branch number {index}", start)
        return read(cursor, shape.parts[index], what)
    fields = [read(cursor, part, name) for part, name in zip(shape.parts, shape.names, strict=True)]
    return tuple(fields) if shape.make is None else shape.make(*fields)


def _read_array(cursor: Cursor, shape: Shape, what: str) -> tuple[Any, ...]:
    items: list[Any] = []
    while True:
        count = cursor.long(f"the item count of {what}")
        if count == 0:
            return tuple(items)
        if count < 0:  # such a block also has its size in bytes, for readers that skip it
            cursor.size(f"a block of {what}")
            count = -count
        for _ in range(count):
            items.append(read(cursor, shape.parts[0], what))
