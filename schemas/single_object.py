"""The first bytes of a record, which is an Avro single object.

| C3 01 | fingerprint of the writer's schema, 8 bytes | an envelope of that schema |
|<------------------ header ------------------->|

Files of the log and of an archive are Avro container files. They have the schema once, and omit these ten bytes from
each record, which is then bare.
"""

from typing import Final

from rewindmq.schemas.registry import envelope_fingerprint
from rewindmq.schemas.shapes import UndecodableRecord

MARKER: Final = b"\xc3\x01"
HEADER_SIZE: Final = 10


def header_of(schema_fingerprint: str) -> bytes:
    """Return the first bytes of the records of this schema."""
    return MARKER + bytes.fromhex(schema_fingerprint)


HEADER: Final = header_of(envelope_fingerprint())  # of today's schema


def schema_in(record: bytes) -> str:
    """Return the fingerprint of a record's schema, which need not be a known one.

    Raises UndecodableRecord if the bytes are not a single object."""
    if not record.startswith(MARKER):
        raise UndecodableRecord(f"byte 0 of {len(record)}: not a single-object encoding, which begins with C3 01")
    if len(record) < HEADER_SIZE:
        raise UndecodableRecord(f"byte 2 of {len(record)}: the record ends within the fingerprint of its schema")
    return record[len(MARKER) : HEADER_SIZE].hex()
