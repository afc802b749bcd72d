"""Field tables keep their types; damage is an error, never an exception of another kind."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode as pamqp_decode

from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Malformed, Unacceptable
from rewindmq.schemas.values import Argument


def entry(name: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + kind + value


@pytest.mark.parametrize(
    ("kind", "raw", "type_", "value"),
    [
        (b"t", b"\x01", "bool", True),
        (b"b", b"\xff", "byte", -1),
        (b"B", b"\xff", "unsignedbyte", 255),
        (b"s", b"\xff\xfe", "short", -2),
        (b"u", b"\xff\xfe", "unsignedshort", 65534),
        (b"I", b"\xff\xff\xff\xff", "signedint", -1),
        (b"i", b"\xff\xff\xff\xff", "unsignedint", 2**32 - 1),
        (b"l", b"\xff" * 8, "long", -1),
        (b"L", b"\xff" * 8, "long", -1),
        (b"f", b"\x3f\x80\x00\x00", "float", 1.0),
        (b"d", b"\x3f\xf0" + b"\x00" * 6, "double", 1.0),
        (b"T", b"\x00" * 7 + b"\x05", "timestamp", 5),
        (b"D", b"\x02\x00\x00\x00\x07", "decimal", "7e-2"),
        (b"V", b"", "void", None),
        (b"S", b"\x00\x00\x00\x02hi", "longstr", "hi"),
        (b"S", b"\x00\x00\x00\x01\xff", "longstr", b"\xff"),
        (b"x", b"\x00\x00\x00\x01\x07", "binary", b"\x07"),
    ],
)
def test_every_type_has_rabbitmqs_name(kind: bytes, raw: bytes, type_: str, value: Any) -> None:
    data = entry(b"x-arg", kind, raw)
    assert tables.arguments(data) == (Argument("x-arg", type_, value),)
    tables.check(data, 0, len(data))


def test_nested_tables_and_arrays_become_json() -> None:
    data = tables.encode({"t": {"b": 1, "a": [True, "x", None]}, "l": [b"\x01"]})
    assert [(a.name, a.type, a.value) for a in tables.arguments(data)] == [
        ("t", "table", '{"a":[true,"x",null],"b":1}'),
        ("l", "array", '["\\u0001"]'),
    ]


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=20), plain_values, max_size=5))
def test_encoded_tables_read_back_here_and_by_pamqp(table: dict[str, object]) -> None:
    data = tables.encode(table)
    assert tables.mapping(data) == table
    tables.check(data, 0, len(data))
    used, value = pamqp_decode.field_table(len(data).to_bytes(4, "big") + data)
    assert used == len(data) + 4
    assert value == table


@given(st.dictionaries(st.text(max_size=10), plain_values, max_size=4), st.data())
def test_damaged_tables_are_malformed_or_read(table: dict[str, object], data: st.DataObject) -> None:
    raw = bytearray(tables.encode(table))
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    refusals = []
    for read in (tables.arguments, tables.mapping, lambda d: tables.check(d, 0, len(d))):
        try:
            read(cut)
        except Malformed as error:
            refusals.append(str(error))
    names = "field table with a name that is not UTF-8"  # to walk over a table takes no notice of them
    assert len(refusals) in (0, 3) or names in refusals, refusals


def test_deep_nesting_is_refused_not_followed() -> None:
    data = b""
    for _ in range(2_000):
        data = entry(b"a", b"F", len(data).to_bytes(4, "big") + data)
    for read in (tables.parse, lambda d: tables.check(d, 0, len(d))):
        with pytest.raises(Malformed, match="nested deeper than 32"):
            read(data)


def test_unknown_type() -> None:
    for read in (tables.parse, lambda d: tables.check(d, 0, len(d))):
        with pytest.raises(Malformed, match="unknown type 113"):
            read(entry(b"a", b"q", b""))


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
def test_a_timestamp_that_history_cannot_hold_is_refused_as_an_argument(value: int) -> None:
    with pytest.raises(Unacceptable, match=rf"invalid arg 'a': timestamp {value} is larger than {2**63 - 1}"):
        tables.arguments(b"\x01aT" + value.to_bytes(8, "big"))
    assert tables.arguments(b"\x01aT" + (2**63 - 1).to_bytes(8, "big"))[0].value == 2**63 - 1
    assert tables.mapping(b"\x01aT" + value.to_bytes(8, "big")) == {"a": value}, "a message's header is nobody's event"
