"""Method frames: the table of methods, and what comes of damaged fields. pamqp, which clients use, is the judge."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from rewindmq.engine.amqp import methods
from rewindmq.engine.amqp.method_fields import DEFINITIONS, INDEXES
from rewindmq.engine.amqp.methods import SIZES
from rewindmq.engine.errors import CommandInvalid, FrameError
from rewindmq.schemas.amqp import tables

ACCESS = 30  # a class that pamqp leaves out
NAMES = st.text("az09._-", max_size=20)  # pamqp refuses names that RabbitMQ allows


def test_names_and_fields_are_pamqps() -> None:
    theirs: dict[int, Any] = {
        index: (cls.name, tuple((field, cls.amqp_type(field)) for field in cls.__slots__))  # type: ignore[attr-defined]  # the methods have it, their base class does not
        for index, cls in commands.INDEX_MAPPING.items()
    }
    assert {index: found for index, found in DEFINITIONS.items() if index >> 16 != ACCESS} == theirs
    assert len(DEFINITIONS) == 66
    assert [INDEXES[f"Access.{name}"] for name in ("Request", "RequestOk")] == [0x1E000A, 0x1E000B]


def values_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    by_domain = {
        "bit": st.booleans(),
        "shortstr": NAMES,
        "longstr": st.text(max_size=20).map(str.encode),
        "table": st.dictionaries(st.text(max_size=9), st.booleans() | st.text(max_size=9), max_size=3),
    } | {domain: st.integers(0, 256**size - 1) for domain, size in SIZES.items()}
    by_domain["longlong"] = st.integers(0, 2**63 - 1)  # pamqp reads larger delivery tags as negative numbers
    return st.fixed_dictionaries({field: by_domain[domain] for field, domain in DEFINITIONS[INDEXES[name]][1]})


VALUES = {name: values_of(name) for name in sorted(INDEXES) if not name.startswith("Access.")}


@st.composite
def some_method(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(list(VALUES)))
    return name, draw(VALUES[name])


def encoded(name: str, values: dict[str, Any]) -> bytes:
    raw = {field: tables.encode(value) if isinstance(value, dict) else value for field, value in values.items()}
    return methods.encode(7, name, **raw)


@given(some_method())
@settings(deadline=None)
def test_frames_are_read_by_pamqp_and_read_back(method: tuple[str, dict[str, Any]]) -> None:
    name, values = method
    raw = encoded(name, values)
    read = methods.decode(int.from_bytes(raw[7:11], "big"), raw[11:-1])
    assert read.name == name
    for field, value in values.items():
        assert (tables.mapping(read.raw(field)) if isinstance(value, dict) else read.fields[field]) == (
            value.encode() if isinstance(value, str) and isinstance(read.fields[field], bytes) else value
        )
    for field in ("ticket", "capabilities", "out_of_band", "known_hosts", "cluster_id", "insist"):
        values.pop(field, None)  # pamqp takes nothing else than their defaults
    raw = encoded(name, values)
    used, channel, got = frame.unmarshal(raw)
    assert (used, channel, got.name) == (len(raw), 7, name)
    for field, value in values.items():
        theirs = getattr(got, field)
        assert (theirs.encode() if isinstance(value, bytes) and isinstance(theirs, str) else theirs) == value


@given(some_method(), st.data())
@settings(deadline=None)
def test_damaged_fields_are_a_frame_error_or_read(method: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    raw = encoded(*method)
    payload = bytearray(raw[11:-1])
    for _ in range(data.draw(st.integers(0, 2)) if payload else 0):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(payload[: data.draw(st.integers(0, len(payload)))]) + data.draw(st.binary(max_size=2))
    try:
        read = methods.decode(int.from_bytes(raw[7:11], "big"), cut)
    except FrameError:
        return
    written = methods.encode(0, read.name, **read.fields)
    bits = [field for field, domain in DEFINITIONS[read.index][1] if domain == "bit"]
    assert len(written) == len(cut) + 12
    assert bits or written[11:-1] == cut


@pytest.mark.parametrize(
    ("name", "values", "frame_hex"),
    [
        (
            "Queue.Declare",
            {"queue": "q", "durable": True, "exclusive": True, "arguments": b"\x01aV"},
            "010007000000100032000a000001710600000003016156ce",
        ),
        (
            "Queue.DeclareOk",
            {"queue": "q", "message_count": 3, "consumer_count": 1},
            "0100070000000e0032000b01710000000300000001ce",
        ),
        (
            "Basic.Deliver",
            {"consumer_tag": "c", "delivery_tag": 9, "redelivered": True, "exchange": "x", "routing_key": "k"},
            "01000700000013003c003c01630000000000000009010178016bce",
        ),
        (
            "Exchange.Declare",
            {"exchange": "x", "exchange_type": "topic", "durable": True, "internal": True},
            "010007000000130028000a0000017805746f7069630a00000000ce",
        ),
        ("Access.RequestOk", {"ticket": 1}, "01000700000006001e000b0001ce"),
        ("Connection.CloseOk", {}, "01000700000004000a0033ce"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_frames_byte_for_byte(name: str, values: dict[str, Any], frame_hex: str) -> None:
    assert methods.encode(7, name, **values).hex() == frame_hex


@pytest.mark.parametrize("index", [0, 10 << 16 | 99, 30 << 16 | 12, 65535 << 16 | 65535])
def test_a_method_that_does_not_exist(index: int) -> None:
    with pytest.raises(CommandInvalid, match=f"unknown method {index >> 16}.{index & 0xFFFF}"):
        methods.decode(index, b"")
