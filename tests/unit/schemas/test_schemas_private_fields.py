"""Withheld fields: each is found where a decoder and an encoder have it, and no field of bytes is forgotten."""

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewindmq.engine.keeping.seals.proof_verifier import FORMS, PREFIXES, TEXT
from rewindmq.schemas import private_fields
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Acked, Event, Published, Purged
from rewindmq.schemas.private_fields import BYTES_FORM, OPEN, TEXT_FORM, VALUE_FORM, WITHHELD, Field, WithheldFields
from rewindmq.schemas.registry import envelope_fingerprint, envelope_schema, released_in_order, schema_json
from rewindmq.schemas.shapes import UnknownSchema
from rewindmq.schemas.single_object import HEADER, header_of
from rewindmq.schemas.values import Actor, Route
from tests.support.examples import examples
from tests.support.samples import GOLDEN, SAMPLES, golden, golden_record, sample_record
from tests.support.strategies import actors, events, timestamps

TODAY = envelope_fingerprint()
COMMITMENT = bytes(range(100, 132))
WHOLE = VALUE_FORM


def types_in(schema: Any, name: str = "") -> "list[tuple[str, str, Any]]":
    """(record, field, type) of every field in a schema."""
    if isinstance(schema, list):
        return [each for branch in schema for each in types_in(branch)]
    if not isinstance(schema, dict):
        return []
    found = []
    for field in schema.get("fields", []):
        found.append((schema["name"], field["name"], field["type"]))
        found += types_in(field["type"])
    return found + types_in(schema.get("items"))


def sealed(record: bytes, field: Field | None) -> bytes:
    if field is None:
        return record
    form, start, _, end = field
    commitment = COMMITMENT.hex().encode() if form == TEXT else COMMITMENT
    return record[:start] + PREFIXES[form] + commitment + record[end:]


def encoded_again(record: bytes) -> bytes:
    """The record with commitments, by a decoder and an encoder."""
    timestamp_ms, actor, event = Decoder().decode(record)
    for kind, name in WITHHELD:
        if type(event).__name__ == kind:
            text = isinstance(getattr(event, name), str)
            given: Any = event
            event = dataclasses.replace(given, **{name: COMMITMENT.hex() if text else COMMITMENT})
    encoder = Encoder()
    return encoder.encode(encoder.prefix(timestamp_ms, actor), event)


def encoded(timestamp_ms: int, actor: Actor, event: Event) -> bytes:
    encoder = Encoder()
    return encoder.encode(encoder.prefix(timestamp_ms, actor), event)


def test_every_field_of_bytes_is_withheld_or_open() -> None:
    fields = types_in(envelope_schema())
    bare = {
        (record, name) for record, name, kind in fields if kind == "bytes" or (type(kind) is list and "bytes" in kind)
    }
    texts = {(record, name) for record, name, kind in fields if kind == "string"}
    assert bare == {each for each in WITHHELD | OPEN if each not in texts}
    assert not WITHHELD & OPEN
    assert {each for each in texts if re.search("password|secret|hash|chain|token", each[1])} <= WITHHELD | OPEN
    names = [branch["name"] for branch in private_fields.event_records(envelope_schema()["fields"][-1]["type"])]
    marked = [record for record, _ in WITHHELD]
    assert set(marked) <= set(names), "a withheld field is a field of an event itself"
    assert len(marked) == len(set(marked)), "an event has one at most"


def test_the_verifier_has_the_same_forms() -> None:
    assert [FORMS[each] for each in (BYTES_FORM, TEXT_FORM, VALUE_FORM)] == ["bytes", "text", "value"]
    assert TEXT == TEXT_FORM


@pytest.mark.parametrize("name", SAMPLES)
def test_the_field_of_each_sample_is_where_the_codec_has_it(name: str) -> None:
    record = sample_record(name)
    field = WithheldFields(TODAY).find(record, 0)
    event = SAMPLES[name][2]
    marked = [getattr(event, each) for kind, each in WITHHELD if kind == type(event).__name__]
    content = [] if field is None else [record[field[2] : field[3]]]
    assert content == [each.encode() if isinstance(each, str) else each for each in marked]
    assert sealed(record, field) == encoded_again(record)


@pytest.mark.parametrize("fingerprint", released_in_order())
def test_golden_records_of_every_schema(fingerprint: str) -> None:
    assert (GOLDEN / fingerprint).is_dir()
    fields = WithheldFields(TODAY)
    for stored in golden(fingerprint).values():
        record = golden_record(fingerprint, stored)
        field = fields.find(record, 0)
        assert field is None or field[0] != WHOLE
        before = Decoder().decode(record)[:2]
        assert Decoder().decode(sealed(record, field))[:2] == before


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(timestamps, actors, events), min_size=1, max_size=6))
def test_any_events_one_after_the_other(told: list[tuple[int, Actor, Event]]) -> None:
    fields = WithheldFields(TODAY)  # which remembers heads
    for each in told:
        for record in (encoded(*each), b"12345678" + encoded(*each)):
            start = len(record) - len(encoded(*each))
            field = fields.find(record, start)
            assert sealed(record, field)[start:] == encoded_again(record[start:])


PLAIN = Published(Route("/", "", "q", ("q",)), b"\0\0", persistent=True, body=b"a body", body_size=6)


@settings(max_examples=examples(500))
@given(st.integers(0, 1 << 42), st.integers(0, 60), st.binary(max_size=3), st.integers(0, 3))
def test_a_remembered_head_finds_the_same_field_in_any_bytes(
    timestamp_ms: int, at: int, piece: bytes, drop: int
) -> None:
    sound = encoded(1_763_715_845_678, Actor("ann", 7), PLAIN)
    for record in (sound, encoded(timestamp_ms, Actor("ann", 7), PLAIN)):
        changed = record[:at] + piece + record[at + drop :]
        fields = WithheldFields(TODAY)
        fields.find(encoded(timestamp_ms, Actor("ann", 7), PLAIN), 0)
        fields.find(sound, 0)
        assert fields.find(changed, 0) == WithheldFields(TODAY).find(changed, 0)


def test_a_head_is_not_taken_for_another_place_in_the_schema() -> None:
    """The timestamp has one byte, and the head would begin within the actor's name."""
    short = encoded(1, Actor("ann", 7), PLAIN)
    assert len(short) < len(encoded(1_763_715_845_678, Actor("ann", 7), PLAIN))
    fields = WithheldFields(TODAY)
    fields.find(short, 0)
    odd = HEADER + b"\xff\xff" + short[12:]
    assert fields.find(odd, 0) == WithheldFields(TODAY).find(odd, 0)


def test_foreign_values_are_withheld_as_a_whole() -> None:
    fields = WithheldFields(TODAY)
    ack = encoded(1_763_715_845_678, Actor("ann", 7), Acked("/", "q", 1, ((1, 2),)))
    sound = encoded(1_763_715_845_678, Actor("ann", 7), PLAIN)
    size = sound.rindex(b"\x0ca body")
    long_form = sound[:size] + b"\x8c\x00" + sound[size + 1 :]
    negative = sound[:size] + b"\x0d" + sound[size + 1 :]
    odd = Decoder().decode(long_form)[2]
    assert isinstance(odd, Published)
    assert odd.body == b"a body"
    for value in (b"", b"a", b"\xc3\x01", HEADER, header_of("00" * 8) + ack[10:], ack[:-1], ack + b"\0", sound[:-1]):
        assert fields.find(value, 0) == (WHOLE, 0, 0, len(value))
        assert fields.find(b"12345678" + value, 8) == (WHOLE, 8, 8, 8 + len(value))
    for value in (long_form, negative, sound + b"!"):
        assert fields.find(value, 0) == (WHOLE, 0, 0, len(value))
    assert fields.find(ack, 0) is None
    assert fields.find(sound, 0) == (BYTES_FORM, size, size + 1, len(sound))


def test_a_schema_that_the_sealer_did_not_know_makes_a_foreign_value(monkeypatch: pytest.MonkeyPatch) -> None:
    older = "11" * 8
    schema = schema_json(TODAY)
    monkeypatch.setattr(private_fields, "released_in_order", lambda: [older, TODAY])
    monkeypatch.setattr(private_fields, "schema_json", lambda _: schema)
    private_fields._known.cache_clear()
    private_fields._layout.cache_clear()
    try:
        old, new = (header_of(each) + sample_record("Published")[10:] for each in (older, TODAY))
        forms = {newest: [WithheldFields(newest).find(each, 0) for each in (old, new)] for newest in (older, TODAY)}
        assert [each and each[0] for each in forms[older]] == [BYTES_FORM, VALUE_FORM]
        assert [each and each[0] for each in forms[TODAY]] == [BYTES_FORM, BYTES_FORM]
        with pytest.raises(UnknownSchema):
            WithheldFields("22" * 8)
    finally:
        private_fields._known.cache_clear()
        private_fields._layout.cache_clear()


def test_an_event_without_such_a_field_is_open() -> None:
    record = encoded(5, Actor("ann", 7), Purged("/", "q"))
    assert WithheldFields(TODAY).find(record, 0) is None
