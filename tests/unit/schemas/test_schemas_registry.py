"""The schema files: complete, documented, released; and what evolution may do with them."""

import dataclasses
import io
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import fastavro
import pytest

from rewindmq.schemas import evolution, registry
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.events import EVENT_TYPES, Acked, BrokerStarted, Checkpointed, Published
from rewindmq.schemas.evolution import upgraded
from rewindmq.schemas.placement_events import QueueName
from rewindmq.schemas.registry import (
    RELEASED,
    envelope_fingerprint,
    envelope_schema,
    envelope_schema_json,
    fingerprint_of,
    parsed_envelope_schema,
    released_schema_json,
)
from rewindmq.schemas.shapes import UnknownSchema, shape_of
from rewindmq.schemas.single_object import unwrap, wrap
from rewindmq.schemas.values import (
    Actor,
    Argument,
    Deduplication,
    Encryption,
    MovedFrom,
    Origin,
    Policy,
    Route,
    SeenLetters,
    SeenRestored,
)
from tests.support.records import avro_rows
from tests.support.samples import GOLDEN, SAMPLES, readable, sample_bytes

AVSC = {
    Path(file.name).stem: json.loads(file.read_text("utf-8"))
    for file in (resources.files("rewindmq.schemas") / "avsc").iterdir()
}
PARTS = (
    Actor,
    Argument,
    Deduplication,
    Policy,
    Route,
    Origin,
    Encryption,
    MovedFrom,
    SeenLetters,
    SeenRestored,
    QueueName,
)
ALL_RELEASED = [Path(file.name).stem for file in RELEASED.iterdir() if file.name.endswith(".avsc")]


# --- complete and documented ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*EVENT_TYPES, *PARTS], ids=lambda cls: cls.__name__)
def test_every_class_has_a_file_with_its_fields_in_its_order(cls: type) -> None:
    fields = [field.name for field in dataclasses.fields(cls)]
    if cls is Published:
        assert fields.pop() == "body_size"  # it follows from the rest, and is not stored
    assert [field["name"] for field in AVSC[cls.__name__]["fields"]] == fields


def test_there_is_no_file_without_a_class() -> None:
    without_class = {"Envelope", "MessageRange", "Position", "NackMethod", "DestinationType"}
    assert set(AVSC) == {cls.__name__ for cls in (*EVENT_TYPES, *PARTS)} | without_class


@pytest.mark.parametrize("name", AVSC)
def test_every_type_and_every_field_is_documented(name: str) -> None:
    schema = AVSC[name]
    assert (schema["name"], schema["namespace"]) == (name, "rewindmq.history")
    for documented in (schema, *schema.get("fields", [])):
        assert len(documented["doc"]) >= 10, documented["name"]
        assert documented["doc"].endswith("."), documented["name"]


def test_the_readme_lists_every_event() -> None:
    readme = (resources.files("rewindmq.schemas") / "README.md").read_text("utf-8")
    assert [cls.__name__ for cls in EVENT_TYPES if f"`{cls.__name__}`" not in readme] == []


def test_two_fields_stand_last_for_ever() -> None:
    assert [field["name"] for field in AVSC["Envelope"]["fields"]] == ["timestamp", "actor", "event"]
    assert AVSC["Published"]["fields"][-1]["name"] == "body"


def test_the_union_is_in_the_order_of_event_types() -> None:
    assert AVSC["Envelope"]["fields"][-1]["type"] == [f"rewindmq.history.{cls.__name__}" for cls in EVENT_TYPES]


# --- released ---------------------------------------------------------------------------------------------------------


def test_todays_schema_is_released() -> None:
    """A change of the schema files is a new release: python -m rewindmq.schemas.registry, python -m
    tests.support.samples."""
    assert json.loads(released_schema_json(envelope_fingerprint())) == envelope_schema()


@pytest.mark.parametrize("fingerprint", ALL_RELEASED)
def test_a_released_schema_is_what_it_was(fingerprint: str) -> None:
    assert fingerprint_of(json.loads(released_schema_json(fingerprint))) == fingerprint


@pytest.mark.parametrize("fingerprint", ALL_RELEASED)
def test_evolution_keeps_to_the_rules(fingerprint: str) -> None:
    released = json.loads(released_schema_json(fingerprint))
    shape_of(released, {}, {})  # made of kinds of types that we can judge
    old, new = _types(released), _types(envelope_schema())
    assert list(new["Envelope"]["event"]["type"])[: len(old["Envelope"]["event"]["type"])] == list(
        old["Envelope"]["event"]["type"]
    ), "an index of the union is for ever"
    for name, fields in old.items():
        assert [field for field in new[name] if field in fields] == list(fields), f"{name}: a field went or moved"
        added = [field for field in new[name] if field not in fields]
        assert all("default" in new[name][field] for field in added), f"{name}: a new field needs a default"


def _types(schema: Any) -> dict[str, dict[str, Any]]:
    """The fields of every record in a composed schema, the union's branches as names."""
    found: dict[str, dict[str, Any]] = {}

    def visit(part: Any) -> Any:
        if isinstance(part, list):
            return [visit(branch) for branch in part]
        if isinstance(part, dict) and part["type"] == "record":
            found[part["name"]] = {field["name"]: {**field, "type": visit(field["type"])} for field in part["fields"]}
            return f"{part['namespace']}.{part['name']}"
        return visit(part["items"]) if isinstance(part, dict) and part["type"] == "array" else part

    visit(schema)
    return found


# --- fingerprints -----------------------------------------------------------------------------------------------------


def crc_64_avro(data: bytes) -> int:
    """The algorithm as the Avro specification gives it."""
    empty = 0xC15D213AA4D7A795
    crc = empty
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (empty if crc & 1 else 0)
    return crc


def test_the_fingerprint_is_crc_64_avro_of_the_canonical_form() -> None:
    assert crc_64_avro(b'"int"') == 0x7275D51A3F395C8F  # from the specification's own test data
    canonical = fastavro.schema.to_parsing_canonical_form(envelope_schema())
    assert bytes.fromhex(envelope_fingerprint()) == crc_64_avro(canonical.encode()).to_bytes(8, "little")


# --- single objects and older schemas ---------------------------------------------------------------------------------


def test_a_single_object_begins_with_marker_and_fingerprint() -> None:
    data = wrap(b"record")
    assert data == b"\xc3\x01" + bytes.fromhex(envelope_fingerprint()) + b"record"
    assert unwrap(data) == b"record"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "byte 0 of 0: not a single-object encoding"),
        (b"\xc3\x02" + bytes(9), "byte 0 of 11: not a single-object encoding"),
        (b"\xc3\x01abc", "byte 2 of 5: the record ends within the fingerprint"),
        (b"\xc3\x01" + bytes(8), "no released schema of history has the fingerprint 0000000000000000"),
    ],
)
def test_what_is_no_single_object_of_ours_is_refused(data: bytes, error: str) -> None:
    with pytest.raises(UndecodableRecord, match=error):
        unwrap(data)


def test_a_fingerprint_is_never_a_path() -> None:
    with pytest.raises(UnknownSchema):
        upgraded(b"", f"../released/{envelope_fingerprint()}")


ADDED = {("Published", "priority"), ("QueueDeclared", "operator_policy"), ("PolicyApplied", "operator_policy")}


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A schema as it might have stood before today's, as if it had been released: without the last three events,
    without `priority` (which stands before `body`) and `operator_policy`."""
    caches = (registry.released_schema_json, evolution._writers_envelope)
    schema = json.loads(envelope_schema_json())
    union = schema["fields"][2]["type"]
    del union[-3:]
    for event in union:
        event["fields"] = [field for field in event["fields"] if (event["name"], field["name"]) not in ADDED]
    (tmp_path / f"{fingerprint_of(schema)}.avsc").write_text(json.dumps(schema))
    monkeypatch.setattr(registry, "RELEASED", tmp_path)
    for cache in caches:
        cache.cache_clear()
    yield schema
    for cache in caches:
        cache.cache_clear()


def written_under(schema: dict[str, Any], name: str) -> bytes:
    """The sample as a writer of that schema would have written it."""
    envelope = fastavro.schemaless_reader(
        io.BytesIO(unwrap(sample_bytes(name))), parsed_envelope_schema(), None, return_record_name=True
    )
    out = io.BytesIO()  # fields that the schema does not have are left out
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, {}), envelope)
    return out.getvalue()


NEWER = (
    "MarkDeleted",
    "ClockStepped",
    "ClockSet",
    "HistoryTrimmed",
    "HistoryForked",
    "BodiesExpired",
    "SessionOpened",
    "LoginRefused",
    "AccessRefused",
    "MessageRemoved",
    "MessageRemoved-moved",
    "QueuePaused",
    "QueueResumed",
    "QueueRefuses",
    "Published-deduplicated",
    "Published-relocated",
    "QueueDeclared-moved",
    "QueueDrained",
    "DeadLettersForwarded-relocated",
    "NodeJoined-partitions",
    "PartitionsAdded",
    "NamesHeld",
    "QueuesStay",
    "PlacementChanged",
    "QueueMoveBegan",
    "QueueMoveEnded",
)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in NEWER])
def test_a_record_of_an_older_schema_is_read_through_resolution(older: dict[str, Any], name: str) -> None:
    old_record = written_under(older, name)
    data = b"\xc3\x01" + bytes.fromhex(fingerprint_of(older)) + old_record
    expected = readable(SAMPLES[name][2])
    expected |= {field: None for cls, field in ADDED if cls == type(SAMPLES[name][2]).__name__}
    timestamp_ms, actor, event = Decoder().decode(unwrap(data))
    assert (timestamp_ms, actor) == SAMPLES[name][:2]
    assert type(event) is type(SAMPLES[name][2])
    assert readable(event) == expected


def test_new_fields_take_their_defaults(older: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every kind that a default can have: also of kinds that no event has yet, so these are made up."""
    defaults: dict[str, dict[str, Any]] = {
        "QueueDeclared": {"semantics": "rabbitmq-2.0", "owner": 9, "durable": True},
        "UserSet": {"tags": ["old", "school"]},
        "Published": {"properties": "\x00\xff"},
    }
    for event in older["fields"][2]["type"]:
        gone = defaults.get(event["name"], {})
        event["fields"] = [field for field in event["fields"] if field["name"] not in gone]
    fingerprint = fingerprint_of(older)
    assert isinstance(registry.RELEASED, Path)
    (registry.RELEASED / f"{fingerprint}.avsc").write_text(json.dumps(older))

    def with_defaults(name: str) -> dict[str, Any]:
        schema = registry.type_schema(name)
        made_up = defaults.get(name, {})
        return {
            "fields": [
                field | {"default": made_up[field["name"]]} if field["name"] in made_up else field
                for field in schema["fields"]
            ]
        }

    monkeypatch.setattr(evolution, "type_schema", with_defaults)
    for sample, expected in (
        ("QueueDeclared-exclusive", defaults["QueueDeclared"] | {"operator_policy": None}),
        ("UserSet", defaults["UserSet"]),
        ("Published", {"properties": {"hex": "00ff"}}),
    ):
        event = Decoder().decode(upgraded(written_under(older, sample), fingerprint))[2]
        assert readable(event) == readable(SAMPLES[sample][2]) | expected


def test_fields_added_since_the_first_release_have_their_defaults() -> None:
    first = GOLDEN / "eb53715f947334ad"
    claim = Decoder().decode(unwrap((first / "Checkpointed.bin").read_bytes()))[2]
    assert claim == Checkpointed(123_456, "ab" * 32, "", False)
    started = Decoder().decode(unwrap((first / "BrokerStarted.bin").read_bytes()))[2]
    assert started == BrokerStarted("rewindmq@host", "0.1.0", 1, False)


def test_damaged_records_of_an_older_schema_are_refused(older: dict[str, Any]) -> None:
    fingerprint = fingerprint_of(older)
    record = written_under(older, "QueueDeclared")
    for length in range(len(record)):
        with pytest.raises(UndecodableRecord, match=rf"byte \d+ of {length}: "):
            upgraded(record[:length], fingerprint)
    with pytest.raises(UndecodableRecord, match="goes on for 1 bytes"):
        upgraded(record + b"\x00", fingerprint)


# --- any Avro tool ----------------------------------------------------------------------------------------------------


def test_a_container_file_is_read_by_its_own_header() -> None:
    file = io.BytesIO()
    envelope: dict[str, Any] = {
        "timestamp": 1_763_715_845_678,
        "actor": {"user": "guest", "session": 7},
        "event": (
            "rewindmq.history.Acked",
            {"vhost": "/", "queue": "jfk", "consumer": 5, "messages": [{"first": 1, "last": 3}]},
        ),
    }
    fastavro.writer(file, json.loads(envelope_schema_json()), [envelope], codec="null", sync_marker=b"s" * 16)
    file.seek(0)
    rows = avro_rows(file)
    assert rows[0]["event"] == envelope["event"][1]
    assert rows[0]["timestamp"].isoformat() == "2025-11-21T09:04:05.678000+00:00"
    block = file.getvalue()[file.getvalue().index(b"s" * 16) + 16 : -16]
    assert Decoder().decode(block[2:])[2] == Acked("/", "jfk", 5, ((1, 3),))  # behind count and size, a byte each
