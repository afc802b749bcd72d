"""What counts as properties: what the AMQP door takes, with headers that can be read, in what fits into a frame."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Malformed, Unacceptable
from rewindmq.schemas.amqp.properties import MAX_PROPERTIES_BYTES, parse, problem
from rewindmq.schemas.amqp.tables import MAX_DEPTH
from rewindmq.schemas.events import Published
from rewindmq.schemas.producer import Publisher
from rewindmq.schemas.single_object import FramedDecoder
from tests.schemas.test_schemas_producer import properties


def door_takes(raw: bytes) -> bool:
    try:
        tables.parse(parse(raw).header_table())
    except Malformed:
        return False
    except Unacceptable:
        assume(False)  # an expiration that is no number is refused before all is looked at
    return True


def encoded(given_properties: dict[str, object]) -> bytes:
    _, _, event = FramedDecoder().decode(Publisher("x").record("/", "q", b"", **given_properties).value)  # type: ignore[arg-type]
    assert isinstance(event, Published)
    return event.properties


@given(given_properties=properties, data=st.data())
@settings(max_examples=400, deadline=None)
def test_the_judgement_is_the_doors(given_properties: dict[str, object], data: st.DataObject) -> None:
    raw = bytearray(encoded({name: value for name, value in given_properties.items() if name != "expiration"}))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.sampled_from([0, 1, 4, 0xFF, *b"SxFAtVDZ"]) | st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.just(len(raw)) | st.integers(0, len(raw)))]) + data.draw(st.binary(max_size=2))
    assert (problem(cut) == "") == door_takes(cut), cut.hex()


@given(raw=st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_bytes(raw: bytes) -> None:
    assert (problem(raw) == "") == door_takes(raw)


def nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = b"\x01xF" + len(table).to_bytes(4, "big") + table
    return b"\x20\x00" + len(table).to_bytes(4, "big") + table


BODY = bytes(MAX_PROPERTIES_BYTES - 13)
LARGEST = b"\x20\x00" + (len(BODY) + 7).to_bytes(4, "big") + b"\x01xx" + len(BODY).to_bytes(4, "big") + BODY


@pytest.mark.parametrize(("raw", "what"), [
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
], ids=range(19))  # fmt: skip
def test_flaws(raw: bytes, what: str) -> None:
    assert problem(raw) == what
