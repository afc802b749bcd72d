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
from rewindmq.schemas.events import EVENT_TYPES, Acked, Published
from rewindmq.schemas.evolution import read_older
from rewindmq.schemas.placement_events import QueueName
from rewindmq.schemas.registry import (
    RELEASED,
    envelope_fingerprint,
    envelope_schema,
    envelope_schema_json,
    fingerprint_of,
    released_in_order,
    released_schema_json,
)
from rewindmq.schemas.shapes import UnknownSchema, shape_of
from rewindmq.schemas.single_object import HEADER, HEADER_SIZE, header_of, schema_in
from rewindmq.schemas.values import (
    Actor,
    Argument,
    CountedPartition,
    Deduplication,
    Encryption,
    MovedFrom,
    Origin,
    Policy,
    Route,
    SeenLetters,
    SeenRestored,
    Unrouted,
    UnroutedLetter,
)
from tests.support.other_schema import (
    EARLIER,
    EARLIER_SCHEMA,
    as_of_earlier,
    earlier,
    is_later,
    released,
    under,
)
from tests.support.records import avro_rows
from tests.support.samples import SAMPLES, readable, sample_record

AVSC = {
    Path(file.name).stem: json.loads(file.read_text("utf-8"))
    for file in (resources.files("rewindmq.schemas") / "avsc").iterdir()
}
PARTS = (
    Actor,
    Argument,
    CountedPartition,
    Deduplication,
    Policy,
    Route,
    Origin,
    Encryption,
    MovedFrom,
    SeenLetters,
    SeenRestored,
    Unrouted,
    UnroutedLetter,
    QueueName,
)
EXPLAINED = "rewindmq.history.Explained"
ALL_RELEASED = [Path(file.name).stem for file in RELEASED.iterdir() if file.name.endswith(".avsc")]


# --- complete and documented ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*EVENT_TYPES, *PARTS], ids=lambda cls: cls.__name__)
def test_every_class_has_a_file_with_its_fields_in_its_order(cls: type) -> None:
    fields = [field.name for field in dataclasses.fields(cls)]
    if cls is Published:
        assert fields.pop() == "body_size"  # it follows from the rest, and is not stored
    if cls is Actor:
        assert fields.pop() == "reason"  # it is stored in Explained
    assert [field["name"] for field in AVSC[cls.__name__]["fields"]] == fields


def test_there_is_no_file_without_a_class() -> None:
    without_class = {"Envelope", "Explained", "MessageRange", "Position", "NackMethod", "DestinationType"}
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
    union = AVSC["Envelope"]["fields"][-1]["type"]
    assert [each for each in union if each != EXPLAINED] == [f"rewindmq.history.{cls.__name__}" for cls in EVENT_TYPES]


def test_an_event_with_a_reason_has_the_number_that_it_has_without_one() -> None:
    union = AVSC["Envelope"]["fields"][-1]["type"]
    explained = AVSC["Explained"]["fields"][-1]["type"]
    assert ["null" if each == EXPLAINED else each for each in union] == explained


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
    assert sample_record("Tick").startswith(HEADER)
    assert HEADER == b"\xc3\x01" + bytes.fromhex(envelope_fingerprint()) == header_of(envelope_fingerprint())
    assert schema_in(sample_record("Tick")) == envelope_fingerprint()
    assert len(HEADER) == HEADER_SIZE


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
        Decoder().decode(data)


def test_a_fingerprint_is_never_a_path() -> None:
    with pytest.raises(UnknownSchema):
        registry.released_schema_json(f"../released/{envelope_fingerprint()}")


@pytest.fixture
def older(tmp_path: Path) -> Iterator[str]:
    """The fingerprint of a schema from before today's, as if it had been released."""
    with released(tmp_path):
        yield EARLIER


def written_under_older(name: str) -> bytes:
    return under(EARLIER_SCHEMA, sample_record(name))


OF_OLDER = [name for name, sample in SAMPLES.items() if not is_later(sample)]


@pytest.mark.parametrize("name", OF_OLDER)
def test_a_record_of_an_older_schema_is_read_through_resolution(older: str, name: str) -> None:
    record = written_under_older(name)
    assert schema_in(record) == older
    timestamp_ms, actor, event = Decoder().decode(record)
    assert (timestamp_ms, actor) == SAMPLES[name][:2]
    assert type(event) is type(SAMPLES[name][2])
    assert readable(event) == readable(as_of_earlier(SAMPLES[name][2]))
    assert readable(read_older(record)) == readable((timestamp_ms, actor, event))
    assert Decoder().timestamp_ms(record) == timestamp_ms
    without = readable(event) | ({"body": {"hex": ""}} if isinstance(event, Published) else {})
    assert readable(Decoder().decode(record, False)[2]) == without


def test_released_schemas_are_ordered_by_what_is_in_them(older: str) -> None:
    assert released_in_order() == [older, envelope_fingerprint()]


def test_new_fields_take_their_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every kind that a default can have: also of kinds that no event has yet, so these are made up."""
    defaults: dict[str, dict[str, Any]] = {
        "QueueDeclared": {"semantics": "rabbitmq-2.0", "owner": 9, "durable": True},
        "UserSet": {"tags": ["old", "school"]},
        "Published": {"properties": "\x00\xff"},
    }

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
    schema = earlier({(record, field) for record, fields in defaults.items() for field in fields})
    with released(tmp_path, schema):
        for sample, expected in (
            ("QueueDeclared-exclusive", defaults["QueueDeclared"]),
            ("UserSet", defaults["UserSet"]),
            ("Published", {"properties": {"hex": "00ff"}}),
        ):
            event = Decoder().decode(under(schema, sample_record(sample)))[2]
            assert readable(event) == readable(SAMPLES[sample][2]) | expected


def test_damaged_records_of_an_older_schema_are_refused(older: str) -> None:
    record = written_under_older("QueueDeclared")
    for length in range(len(record)):
        with pytest.raises(UndecodableRecord, match=rf"byte \d+ of {length}: "):
            Decoder().decode(record[:length])
    with pytest.raises(UndecodableRecord, match="goes on for 1 bytes"):
        Decoder().decode(record + b"\x00")


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
    bare = block[2:]  # behind count and size, a byte each
    assert Decoder().decode(HEADER + bare)[2] == Acked("/", "jfk", 5, ((1, 3),))
