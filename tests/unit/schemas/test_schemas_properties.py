"""Properties: what counts as such (what the AMQP door takes, with headers that can be read, in what fits into a frame),
and that taking them apart and putting them together changes nothing. pamqp, which clients use, is the judge."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic

from rewindmq.schemas.amqp import properties as codec
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Malformed, PropertyError, Unacceptable
from rewindmq.schemas.amqp.properties import MAX_PROPERTIES_BYTES, parse, problem
from rewindmq.schemas.amqp.tables import MAX_DEPTH
from rewindmq.schemas.events import Published
from rewindmq.schemas.producer import Publisher
from rewindmq.schemas.service_records import SharedDecoder
from tests.support.examples import examples
from tests.support.strategies import producer_properties


def door_takes(raw: bytes) -> bool:
    try:
        tables.mapping(parse(raw).header_table())  # a service has to name its headers in UTF-8
    except Malformed:
        return False
    except Unacceptable:
        assume(False)  # an expiration that is no number is refused before all is looked at
    return True


def encoded(given_properties: dict[str, Any]) -> bytes:
    _, _, event = SharedDecoder().decode(Publisher("x").record("/", "q", b"", **given_properties).value)
    assert isinstance(event, Published)
    return event.properties


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    raw = bytearray(encoded({name: value for name, value in draw(producer_properties).items() if name != "expiration"}))
    for _ in range(draw(st.integers(0, 3))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(
            st.sampled_from([0, 1, 4, 0xFF, *b"SxFAtVDZ"]) | st.integers(0, 255)
        )
    return bytes(raw[: draw(st.just(len(raw)) | st.integers(0, len(raw)))]) + draw(st.binary(max_size=2))


@given(raw=damaged())
@settings(max_examples=examples(400), deadline=None)
def test_the_judgement_is_the_doors(raw: bytes) -> None:
    assert (problem(raw) == "") == door_takes(raw), raw.hex()


def attempt(call: Callable[[Any], Any], raw: object) -> Any:
    """Return the result of the call, or the text of its PropertyError."""
    try:
        return call(raw)
    except PropertyError as error:
        return str(error)


@given(raw=damaged() | st.binary(max_size=40))
@settings(max_examples=examples(400), deadline=None)
def test_all_take_the_same_bytes_for_properties(raw: bytes) -> None:
    refusal, parts, found = attempt(parse, raw), attempt(codec.split, raw), attempt(codec.values, raw)
    if isinstance(parts, str):
        assert parts == found
        assert isinstance(refusal, str)
        assert problem(raw)
        assert codec.without_blind_copies(raw) == raw
        return
    assert codec.join(parts) == raw
    assert [codec.NAMES[bit] for bit in parts] == list(found)
    headers = attempt(codec.split_headers, parts)
    if isinstance(headers, str):
        assert isinstance(refusal, str)
    elif headers:
        joined = codec.join_headers(headers)
        assert codec.split_headers({codec.HEADERS: joined}) == headers
        assert joined == parts[codec.HEADERS] or len(joined) < len(parts[codec.HEADERS]), (
            "but for a name that came twice"
        )


@given(given_properties=producer_properties)
@settings(max_examples=examples(200), deadline=None)
def test_values_are_those_that_pamqp_reads(given_properties: dict[str, object]) -> None:
    given_properties.pop("timestamp", None)  # pamqp takes large ones for milliseconds
    raw = encoded(given_properties)
    theirs = Basic.Properties()
    theirs.unmarshal(int.from_bytes(raw[:2], "big"), raw[2:])
    found = codec.values(raw)
    if "headers" in found:
        table = found.pop("headers")
        assert isinstance(table, bytes)
        assert tables.mapping(table) == theirs.headers
    read = {name: value if isinstance(value, int) else value.decode() for name, value in found.items()}
    assert read == {name: getattr(theirs, "message_type" if name == "type" else name) for name in read}


@given(raw=st.binary(max_size=40))
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes(raw: bytes) -> None:
    assert (problem(raw) == "") == door_takes(raw)


def nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = b"\x01xF" + len(table).to_bytes(4, "big") + table
    return b"\x20\x00" + len(table).to_bytes(4, "big") + table


BODY = bytes(MAX_PROPERTIES_BYTES - 13)
LARGEST = b"\x20\x00" + (len(BODY) + 7).to_bytes(4, "big") + b"\x01xx" + len(BODY).to_bytes(4, "big") + BODY


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"\x00\x00", ""),
        (b"\x10\x00\x02", ""),
        (b"", f"0 bytes of properties; they are 2 to {MAX_PROPERTIES_BYTES}"),
        (b"\x10", f"1 bytes of properties; they are 2 to {MAX_PROPERTIES_BYTES}"),
        (b"\x00\x01", "properties with unknown flags"),
        (b"\x80\x00", "properties cut short"),
        (b"\x80\x00\x05abc", "properties cut short"),
        (b"\x10\x00", "properties cut short"),
        (b"\x00\x40\x00\x00", "properties cut short"),
        (b"\x10\x00\x02xy", "properties with 2 bytes left over"),
        (b"\x20\x00\x00\x00\x00\x09", "properties cut short"),
        (b"\x20\x00\x00\x00\x00\x03\x01aZ", "headers that are no table"),
        (b"\x20\x00\x00\x00\x00\x08\x01aS\x00\x00\x00\x09b", "headers that are no table"),
        (b"\x20\x00\x00\x00\x00\x03\x01\xffV", "headers that are no table"),
        (nested(MAX_DEPTH), ""),
        (nested(MAX_DEPTH + 1), "headers that are no table"),
        (nested(5_000), "headers that are no table"),
        (LARGEST, ""),
        (bytes(MAX_PROPERTIES_BYTES + 1), f"{MAX_PROPERTIES_BYTES + 1} bytes of properties; they are 2 to 131052"),
    ],
    ids=range(19),
)
def test_flaws(raw: bytes, what: str) -> None:
    assert problem(raw) == what
