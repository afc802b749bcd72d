"""Records that are written under an older schema, for nodes that know no newer one (B-73)."""

import json
from dataclasses import replace
from io import BytesIO
from typing import Any, get_args

import fastavro
import pytest

from rewindmq.projections.machine.rules.versions import (
    DEDUPLICATION,
    MACHINE_VERSION,
    OLDEST_SCHEMA,
    RELOCATION,
    SCHEMA_OF_6,
    schema_of,
)
from rewindmq.schemas.events import DeadLettersForwarded, Event, Published, QueueDeclared, QueueDrained
from rewindmq.schemas.metadata_events import NodeJoined
from rewindmq.schemas.placement_events import PlacementEvent
from rewindmq.schemas.registry import envelope_fingerprint, released_schema_json
from rewindmq.schemas.single_object import FramedDecoder, FramedEncoder, encoder_under
from rewindmq.schemas.values import BROKER
from tests.support.samples import SAMPLES, readable_envelope

PARSED = {
    fingerprint: fastavro.parse_schema(json.loads(released_schema_json(fingerprint)))
    for fingerprint in (OLDEST_SCHEMA, SCHEMA_OF_6)
}
OF_MOVES_TYPES = (*get_args(PlacementEvent), QueueDrained)  # events that came with version 7
OF_MOVES = [event for _, _, event in SAMPLES.values() if isinstance(event, OF_MOVES_TYPES)]


def test_b73_the_newest_version_is_written_under_todays_schema() -> None:
    assert schema_of(MACHINE_VERSION) == envelope_fingerprint()
    assert type(encoder_under(schema_of(MACHINE_VERSION))) is FramedEncoder
    assert {schema_of(version) for version in range(DEDUPLICATION)} == {OLDEST_SCHEMA}
    assert {schema_of(version) for version in range(DEDUPLICATION, RELOCATION)} == {SCHEMA_OF_6}


def test_b73_each_version_is_written_under_what_a_node_of_it_knows() -> None:
    """Versions 5 and 6 are those of nodes that may still run beside today's. Their schemas have no newer event."""
    assert [schema_of(version) for version in (5, 6, 7)] == [OLDEST_SCHEMA, SCHEMA_OF_6, envelope_fingerprint()]
    for fingerprint in (OLDEST_SCHEMA, SCHEMA_OF_6):
        encoder = encoder_under(fingerprint)
        prefix = encoder.prefix(0, BROKER)
        for event in OF_MOVES:
            with pytest.raises(ValueError, match=f"{type(event).__name__} is not in the older schema {fingerprint}"):
                encoder.encode(prefix, event)


def as_of(event: Event, fingerprint: str) -> Event:
    """The event without the fields that the older schema has not: none of them decides anything before its version."""
    if isinstance(event, Published):
        if fingerprint == OLDEST_SCHEMA:
            event = replace(event, route=replace(event.route, deduplication=None))
        if event.origin is not None:
            event = replace(event, origin=replace(event.origin, acquired_count=0, partition=-1))
    if isinstance(event, QueueDeclared):
        return replace(event, moved_from=None)
    if isinstance(event, DeadLettersForwarded):
        return replace(event, relocated=False)
    return replace(event, partitions=0) if isinstance(event, NodeJoined) else event


@pytest.mark.parametrize("fingerprint", [OLDEST_SCHEMA, SCHEMA_OF_6])
@pytest.mark.parametrize(
    "name", [name for name, sample in SAMPLES.items() if not isinstance(sample[2], OF_MOVES_TYPES)]
)
def test_b73_an_older_reader_reads_every_event(name: str, fingerprint: str) -> None:
    """Another library reads it under the older schema, to its end. Today's decoder gives the same as under today's."""
    timestamp_ms, actor, event = SAMPLES[name]
    older = encoder_under(fingerprint)
    value = older.encode(older.prefix(timestamp_ms, actor), event)
    assert value[:10] == b"\xc3\x01" + bytes.fromhex(fingerprint)
    record = BytesIO(value[10:])
    schema = PARSED[fingerprint]
    read: Any = fastavro.schemaless_reader(record, schema, None, return_record_name=True)
    assert record.read() == b""
    assert read["event"][0] == f"rewindmq.history.{type(event).__name__}"
    event = as_of(event, fingerprint)
    today = FramedEncoder()
    same = today.encode(today.prefix(timestamp_ms, actor), event)
    for bodies in (True, False):
        ours, theirs = (readable_envelope(*FramedDecoder().decode(each, bodies)) for each in (value, same))
        assert ours == theirs
