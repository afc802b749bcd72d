"""Readers of properties: an odd value takes nothing else of its message with it."""

import json
import struct
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rewindmq.engine.http.properties import properties_of
from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.history.properties import headers, json_form, properties_object
from rewindmq.projections.history.search import Criteria
from rewindmq.projections.traces.trace_context import trace_of
from rewindmq.schemas.amqp import properties, tables
from rewindmq.schemas.amqp.json_arguments import table_of, text_of
from rewindmq.schemas.events import Published
from rewindmq.schemas.json_values import json_text
from rewindmq.schemas.values import Argument, Route

Entries = list[tuple[bytes, bytes]]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OURS: Entries = [(b"customer", tables.longstr("alice")), (b"traceparent", tables.longstr(PARENT))]
NAN, INFINITY = float("nan"), float("inf")

names = st.text(max_size=8).map(str.encode) | st.binary(max_size=8)
doubles = st.floats().map(lambda value: b"d" + struct.pack(">d", value))
fixed = st.one_of(
    *(
        st.binary(min_size=size, max_size=size).map(bytes((kind,)).__add__)
        for kind, size in enumerate(tables.WIDTHS)
        if size >= 0
    )
)
texts = st.tuples(st.sampled_from([b"S", b"x"]), names).map(lambda made: made[0] + tables.with_length(made[1]))


def entries_of(entries: Entries) -> bytes:
    return b"".join(bytes((len(name),)) + name + value for name, value in entries)


def nested(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    table = st.lists(st.tuples(names, values), max_size=3).map(lambda made: b"F" + tables.with_length(entries_of(made)))
    return table | st.lists(values, max_size=3).map(tables.array)


tables_of_anything = st.lists(st.tuples(names, st.recursive(doubles | fixed | texts, nested)), max_size=5)


def message(entries: Entries, **more: bytes) -> bytes:
    """Properties as a client may publish them."""
    raw = properties.join_by_name({"headers": tables.with_length(entries_of(entries)), **more})
    return properties.parse(raw).raw


def short(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def over_http(raw: bytes) -> dict[str, Any]:
    shown: dict[str, Any] = strictly(json_text(properties_of(raw)))
    return shown


def at_a_moment(raw: bytes) -> dict[str, Any]:
    shown: dict[str, Any] = strictly(json_text(properties_object(raw)))
    return shown


def in_rows(raw: bytes) -> dict[str, bytes]:
    return {each["key"]: each["value"] for each in headers(raw) or ()}


@given(tables_of_anything, names, st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_whatever_the_broker_takes_is_read_value_by_value(
    entries: Entries, correlation_id: bytes, timestamp: int, at: int
) -> None:
    entries = entries[:at] + OURS + entries[at:]
    assume(len({text_of(name) for name, _ in entries}) == len(entries))
    assume(not {b"BCC", b"x-restored"} & {name for name, _ in entries})
    raw = message(
        entries, correlation_id=short(correlation_id), message_id=short(b"m1"), timestamp=timestamp.to_bytes(8, "big")
    )
    for shown in (over_http(raw), at_a_moment(raw)):
        assert shown["message_id"] == "m1"
        assert shown.get("correlation_id", "") == text_of(correlation_id)
        assert len(shown["headers"]) == len(entries)
    assert over_http(raw)["timestamp"] == timestamp
    for name, value in entries:
        alone, key = message([(name, value)]), text_of(name)
        assert over_http(raw)["headers"][key] == over_http(alone)["headers"][key]
        assert at_a_moment(raw)["headers"][key] == at_a_moment(alone)["headers"][key]
        assert in_rows(raw)[key] == in_rows(alone)[key]
    assert in_rows(raw)["customer"] == b"alice"
    published = Published(Route("/", "", "q", ("q",)), raw, persistent=True, body=b"", body_size=0)
    assert Criteria("/", "q", header=("customer", "alice"), message_id="m1").match(published)
    trace = trace_of(raw)
    assert trace is not None
    assert (trace.trace_id, trace.message_id) == (PARENT[3:35], "m1")
    assert trace.correlation_id == (text_of(correlation_id) or None)


def test_odd_values_are_shown() -> None:
    raw = message(
        [
            (b"\xff", tables.longstr("name")),
            (b"bytes", b"S" + tables.with_length(b"\xfe")),
            (b"nan", b"d" + struct.pack(">d", NAN)),
            (b"deep", tables.array([b"f" + struct.pack(">f", -INFINITY), b"T" + b"\xff" * 8])),
            (b"at", b"T" + (1_700_000_000_000_000).to_bytes(8, "big")),
            (b"price", b"D\x02\x00\x00\x00\x05"),
        ],
        correlation_id=short(bytes(range(0xF0, 0x100))),
        timestamp=(1_700_000_000_000_000_000).to_bytes(8, "big"),
    )
    odd = {
        "/w==": "name",
        "bytes": "/g==",
        "nan": "NaN",
        "deep": ["-Infinity", 2**64 - 1],
        "at": 1_700_000_000_000_000,
        "price": "0.05",
    }
    shown = {
        "headers": odd,
        "correlation_id": "8PHy8/T19vf4+fr7/P3+/w==",
        "timestamp": 1_700_000_000_000_000_000,
    }
    assert over_http(raw) == shown
    assert at_a_moment(raw) == shown
    rows = [(each["key"], each["value"]) for each in headers(raw) or ()]
    assert rows == [
        ("/w==", b"name"),
        ("bytes", b"\xfe"),
        ("nan", b'"NaN"'),
        ("deep", b'["-Infinity", 18446744073709551615]'),
        ("at", b"1700000000000000"),
        ("price", b'"0.05"'),
    ]


def test_a_header_that_comes_twice_is_in_two_rows() -> None:
    raw = message([(b"n", tables.longstr("a")), (b"n", tables.longstr("b"))])
    assert [each["value"] for each in headers(raw) or ()] == [b"a", b"b"]
    assert over_http(raw) == {"headers": {"n": "b"}}


@pytest.mark.parametrize(("value", "told"), [(NAN, "NaN"), (INFINITY, "Infinity"), (-INFINITY, "-Infinity")])
def test_what_json_has_not_is_text(value: float, told: str) -> None:
    assert strictly(json_text({"a": [1.5, (value,)], "b": value})) == {"a": [1.5, [told]], "b": told}
    data = b"\x01n" + b"d" + struct.pack(">d", value)
    (nested,) = tables.arguments(b"\x01tF" + tables.with_length(data))
    assert nested.value == f'{{"n":"{told}"}}'
    assert strictly(canonical_json(table_of((Argument("n", "double", value), nested)))) == {
        "n": told,
        "t": {"n": told},
    }
    older = Argument("t", "table", f'{{"n":{told}}}')  # as histories have it
    assert strictly(json_text(json_form(table_of((older,))))) == {"t": {"n": told}}


def test_arguments_and_client_properties_are_named_in_utf8() -> None:
    data = b"\x01aF" + tables.with_length(b"\x01\xffV")
    for read in (tables.arguments, tables.mapping, lambda table: tables.first_arguments(table, 1000)):
        with pytest.raises(ValueError, match="a name that is not UTF-8"):
            read(data)
