"""Records as a version with an older released schema wrote them."""

import json
from io import BytesIO

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from rewindmq.schemas.registry import envelope_schema, released_schema_json


def under(schema_fingerprint: str, record: bytes) -> bytes:
    """A record of today's schema as a version with this released schema wrote it."""
    row = schemaless_reader(BytesIO(record), parse_schema(envelope_schema()), None, return_record_name=True)
    written = BytesIO()
    schemaless_writer(written, parse_schema(json.loads(released_schema_json(schema_fingerprint))), row)
    return written.getvalue()
