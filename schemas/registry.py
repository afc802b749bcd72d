"""The Avro schemas of history: today's, composed from `schemas/avsc/`, and every one ever released.

- Each type has its own file, named after it. Here they are composed into one self-contained `Envelope` schema, for the
  header of container files: every type is written out at its first use and named from there on.
- A schema is identified by its CRC-64-AVRO fingerprint, the 16 hexadecimal digits of its 8 bytes in the order of the
  header of a single-object encoding (little-endian).
- A schema under which records were stored is released: a copy stays in `schemas/released/<fingerprint>.avsc` for ever,
  so that its records can be read for ever. `python -m rewindmq.schemas.registry` releases today's.
"""

import functools
import json
from importlib import resources
from pathlib import Path
from typing import Any

from rewindmq.schemas.shapes import UnknownSchema

NAMESPACE = "rewindmq.history"

# A schema in fastavro: a type's name, a union's list, or the object of a record, enum, array or annotated type.
Schema = str | list[Any] | dict[str, Any]

RELEASED = resources.files("rewindmq.schemas") / "released"


def fingerprint_of(schema: Schema) -> str:
    """Return a self-contained schema's CRC-64-AVRO fingerprint, as 16 hexadecimal digits in header order. Docs,
    defaults and logical types do not count, because they do not change the meaning of bytes."""
    from fastavro.schema import fingerprint, to_parsing_canonical_form  # here, because a broker seldom needs these 3 MB

    return str(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@functools.cache
def envelope_schema() -> dict[str, Any]:
    """Return today's envelope, self-contained, as plain JSON data. Not to be changed by the caller."""
    composed = _compose(f"{NAMESPACE}.Envelope", set())
    assert isinstance(composed, dict)
    return composed


@functools.cache
def envelope_schema_json() -> str:
    """Return today's envelope as JSON text, for `avro.schema` in the header of a container file."""
    return json.dumps(envelope_schema(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


@functools.cache
def envelope_fingerprint() -> str:
    """Return the fingerprint of today's envelope, as 16 hexadecimal digits."""
    for file in RELEASED.iterdir():  # the name of its copy has it, without fastavro
        if file.name.endswith(".avsc") and json.loads(file.read_text("utf-8")) == envelope_schema():
            return file.name.removesuffix(".avsc")
    return fingerprint_of(envelope_schema())


@functools.cache
def released_schema_json(schema_fingerprint: str) -> str:
    """Return the text of the released schema with this fingerprint. Raises UnknownSchema."""
    file = RELEASED / f"{schema_fingerprint}.avsc"
    if not schema_fingerprint.isalnum() or not file.is_file():  # only a fingerprint may become a path
        raise UnknownSchema(f"no released schema of history has the fingerprint {schema_fingerprint}")
    return file.read_text("utf-8")


@functools.cache
def schema_json(schema_fingerprint: str) -> str:
    """Return a released schema, or today's, as JSON text for the header of a container file. Raises UnknownSchema."""
    if schema_fingerprint == envelope_fingerprint():
        return envelope_schema_json()
    schema = json.loads(released_schema_json(schema_fingerprint))
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def released_in_order() -> list[str]:
    """Return the fingerprints of all released schemas, the oldest first, because each later one has more in it."""
    files = [each for each in RELEASED.iterdir() if each.name.endswith(".avsc")]
    files.sort(key=lambda each: _extent(json.loads(each.read_text("utf-8"))))
    return [each.name.removesuffix(".avsc") for each in files]


def _extent(schema: Schema) -> int:
    """Return the number of types and fields in a schema. Types and fields are only added, never removed."""
    if isinstance(schema, list):
        return sum(map(_extent, schema)) + len(schema)
    if not isinstance(schema, dict):
        return 0
    fields = schema.get("fields", [])
    below = (schema.get("items", ""), *(field["type"] for field in fields))
    return 1 + len(fields) + len(schema.get("symbols", [])) + sum(map(_extent, below))


@functools.cache
def parsed_envelope_schema() -> Schema:
    """Return today's envelope, parsed for fastavro."""
    from fastavro.schema import parse_schema

    parsed: Schema = parse_schema(envelope_schema(), named_schemas={})
    return parsed


@functools.cache
def type_schema(name: str) -> dict[str, Any]:
    """Return one of today's types as in its file, with the types it uses by name. Not to be changed by the caller."""
    file = resources.files("rewindmq.schemas") / "avsc" / f"{name}.avsc"
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schema


def _compose(schema: Schema, written: set[str]) -> Schema:
    """Return `schema` with each of our names replaced, at its first use, by its file's content."""
    if isinstance(schema, list):
        return [_compose(branch, written) for branch in schema]
    if isinstance(schema, str):
        if not schema.startswith(NAMESPACE + ".") or schema in written:
            return schema
        written.add(schema)
        return _compose(type_schema(schema.removeprefix(NAMESPACE + ".")), written)
    composed = dict(schema)
    if schema["type"] == "record":
        composed["fields"] = [field | {"type": _compose(field["type"], written)} for field in schema["fields"]]
    elif schema["type"] == "array":
        composed["items"] = _compose(schema["items"], written)
    return composed


def release() -> Path:
    """Write today's schema to its place in `schemas/released/` of the source tree; return the written file."""
    file = Path(__file__).parent / "released" / f"{envelope_fingerprint()}.avsc"
    file.write_text(json.dumps(envelope_schema(), ensure_ascii=False, indent=1, allow_nan=False) + "\n", "utf-8")
    return file


if __name__ == "__main__":
    print(release())
