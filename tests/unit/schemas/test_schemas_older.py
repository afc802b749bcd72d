"""Records that are written under an older schema, for nodes that know no newer one (B-73)."""

from io import BytesIO
from typing import Any

import fastavro
import pytest

from rewindmq.projections.machine.rules import versions
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION, SCHEMAS, schema_of
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import PolicyApplied, Published, QueueDeclared
from rewindmq.schemas.evolution import is_unchanged
from rewindmq.schemas.older_schemas import encoder_under, of_today
from rewindmq.schemas.registry import envelope_fingerprint
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import BROKER, Actor, Route
from tests.support.other_schema import EARLIER, EARLIER_SCHEMA, LATER_EVENTS, as_of_earlier, is_later
from tests.support.samples import SAMPLES, readable_envelope

pytestmark = pytest.mark.usefixtures("earlier_schema")

PARSED = fastavro.parse_schema(EARLIER_SCHEMA, {})


def test_b73_the_newest_version_is_written_under_todays_schema() -> None:
    assert SCHEMAS[max(SCHEMAS)] == envelope_fingerprint(), "a new schema needs a row, and a machine version"
    assert max(SCHEMAS) <= MACHINE_VERSION
    assert schema_of(MACHINE_VERSION) == envelope_fingerprint()
    assert type(encoder_under(schema_of(MACHINE_VERSION))) is Encoder


def test_b73_a_version_without_a_schema_of_its_own_has_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "SCHEMAS", {1: "first", 3: "third"})
    assert [schema_of(version) for version in (1, 2, 3, 4)] == ["first", "first", "third", "third"]


def test_b73_an_older_schema_has_no_newer_event() -> None:
    encoder = encoder_under(EARLIER)
    prefix = encoder.prefix(0, BROKER)
    for _, _, event in SAMPLES.values():
        if isinstance(event, LATER_EVENTS):
            with pytest.raises(ValueError, match=f"{type(event).__name__} is not in the older schema {EARLIER}"):
                encoder.encode(prefix, event)


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if not is_later(sample)])
def test_b73_an_older_reader_reads_every_event(name: str) -> None:
    """Another library reads it under the older schema, to its end. Today's decoder gives the same as under today's."""
    timestamp_ms, actor, event = SAMPLES[name]
    older = encoder_under(EARLIER)
    value = older.encode(older.prefix(timestamp_ms, actor), event)
    assert value[:10] == b"\xc3\x01" + bytes.fromhex(EARLIER)
    record = BytesIO(value[10:])
    read: Any = fastavro.schemaless_reader(record, PARSED, None, return_record_name=True)
    assert record.read() == b""
    assert read["event"][0] == f"rewindmq.history.{type(event).__name__}"
    today = Encoder()
    same = today.encode(today.prefix(timestamp_ms, actor), as_of_earlier(event))
    for bodies in (True, False):
        ours, theirs = (readable_envelope(*SharedDecoder().decode(each, bodies)) for each in (value, same))
        assert ours == theirs


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if not is_later(sample)])
def test_b73_a_record_that_means_the_same_is_not_rewritten(name: str) -> None:
    timestamp_ms, actor, event = SAMPLES[name]
    older, today = encoder_under(EARLIER), encoder_under(envelope_fingerprint())
    record = older.encode(older.prefix(timestamp_ms, actor), event)
    changed = isinstance(event, Published | QueueDeclared | PolicyApplied)
    assert is_unchanged(record) == (not changed)
    assert of_today(record) == today.encode(today.prefix(timestamp_ms, actor), as_of_earlier(event))
    assert of_today(of_today(record)) == of_today(record)


@pytest.mark.parametrize("schema", [EARLIER, envelope_fingerprint()], ids=["earlier", "today's"])
def test_a_run_is_encoded_as_its_publishes_are(schema: str) -> None:
    """Also under a schema that lays a publish out otherwise."""
    encoder = encoder_under(schema)
    prefix = encoder.prefix(1_763_715_845_678, Actor("ann", 7))
    route = Route("/", "", "q", ("q",))
    bodies = [bytes(size) for size in (1, 63, 64, 0, 8_191, 8_192, 70_000)]
    events = [Published(route, b"\x00\x00", priority=3, body=body, body_size=len(body)) for body in bodies]
    assert encoder.encode_run(prefix, events) == [encoder.encode(prefix, event) for event in events]
