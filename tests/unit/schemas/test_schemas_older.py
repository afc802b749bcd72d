"""Records that are written under an older schema, for nodes that know no newer one (B-73)."""

import json
from dataclasses import replace
from io import BytesIO
from typing import Any

import fastavro
import pytest

from rewindmq.projections.machine.rules.versions import DEDUPLICATION, MACHINE_VERSION, OLDEST_SCHEMA, schema_of
from rewindmq.schemas.events import Published
from rewindmq.schemas.registry import envelope_fingerprint, released_schema_json
from rewindmq.schemas.single_object import FramedDecoder, FramedEncoder, encoder_under
from tests.support.samples import SAMPLES, readable_envelope

OLDER = encoder_under(OLDEST_SCHEMA)
OLDER_SCHEMA = fastavro.parse_schema(json.loads(released_schema_json(OLDEST_SCHEMA)))


def test_b73_the_newest_version_is_written_under_todays_schema() -> None:
    assert schema_of(MACHINE_VERSION) == envelope_fingerprint()
    assert type(encoder_under(schema_of(MACHINE_VERSION))) is FramedEncoder
    assert {schema_of(version) for version in range(DEDUPLICATION)} == {OLDEST_SCHEMA}


@pytest.mark.parametrize("name", SAMPLES)
def test_b73_an_older_reader_reads_every_event(name: str) -> None:
    """Another library reads it under the older schema, to its end. Today's decoder gives the same as under today's."""
    timestamp_ms, actor, event = SAMPLES[name]
    value = OLDER.encode(OLDER.prefix(timestamp_ms, actor), event)
    assert value[:10] == b"\xc3\x01" + bytes.fromhex(OLDEST_SCHEMA)
    record = BytesIO(value[10:])
    read: Any = fastavro.schemaless_reader(record, OLDER_SCHEMA, None, return_record_name=True)
    assert record.read() == b""
    assert read["event"][0] == f"rewindmq.history.{type(event).__name__}"
    if isinstance(event, Published):
        event = replace(event, route=replace(event.route, deduplication=None))
    today = FramedEncoder()
    same = today.encode(today.prefix(timestamp_ms, actor), event)
    for bodies in (True, False):
        ours, theirs = (readable_envelope(*FramedDecoder().decode(each, bodies)) for each in (value, same))
        assert ours == theirs
