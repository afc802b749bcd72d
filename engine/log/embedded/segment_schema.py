"""The schema of a segment's records, from its header: today's, or an older one."""

import functools
import json
from pathlib import Path

from rewindmq.engine.log.contract import CorruptLog, NewerSchema
from rewindmq.engine.log.embedded.segments import Header
from rewindmq.schemas.registry import (
    envelope_fingerprint,
    envelope_schema_json,
    fingerprint_of,
    released_schema_json,
)
from rewindmq.schemas.shapes import UnknownSchema
from rewindmq.schemas.single_object import header_of


@functools.lru_cache(maxsize=64)
def older_schema(schema_json: str) -> str | None:
    """Return the fingerprint of a segment's schema; None if it means the same as today's schema."""
    if schema_json == envelope_schema_json():
        return None
    fingerprint = fingerprint_of(json.loads(schema_json))
    return None if fingerprint == envelope_fingerprint() else fingerprint


def fingerprint_in(schema_json: str) -> str:
    """Return the fingerprint of the schema in a segment's header."""
    return older_schema(schema_json) or envelope_fingerprint()


def check_schema(header: Header, path: Path) -> None:
    """Check that this version knows the schema of the segment.

    Raises NewerSchema if it does not, CorruptLog if the header holds no schema."""
    try:
        older_schema(header.schema)
    except Exception as error:  # a damaged schema makes JSON and fastavro fail in many ways
        why = f"not a whole segment header: its schema: {type(error).__name__}: {error}"
        raise CorruptLog(path, 0, header.base_offset, why) from None
    require_known_schema(header.schema, str(path))


def require_known_schema(schema_json: str, place: str) -> None:
    """Check that this version knows the schema of the segment at `place`.

    Raises NewerSchema."""
    older = older_schema(schema_json)
    try:
        if older is not None:
            released_schema_json(older)
    except UnknownSchema as error:
        what = "a newer version of RewindMQ wrote this segment (start that version), or its header is damaged"
        raise NewerSchema(f"{place}: {what}: {error}") from None


def record_header(schema_json: str) -> bytes:
    """Return the first bytes of the records, which a segment with this schema omits."""
    return header_of(fingerprint_in(schema_json))
