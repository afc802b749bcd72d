"""B-54. A shovel adds x-shovelled, and changes nothing else of a message's properties."""

import pytest

from rewindmq.engine.shovel.header import with_shovelled
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import HEADERS, MAX_PROPERTIES_BYTES, join, split, split_headers
from tests.support.shovels import HARD_HEADERS, HARD_PROPERTIES

ENTRY = {"shovelled-by": "rewindmq shovel", "src-queue": "orders"}


def shovelled(properties: bytes) -> object:
    return tables.untyped("array", tables.array_items(split_headers(split(properties))["x-shovelled"]))


def test_all_else_stays_byte_for_byte() -> None:
    before = HARD_PROPERTIES
    after = with_shovelled(before, ENTRY)
    was, now = split(before), split(after)
    headers = split_headers(now)
    assert list(headers) == ["x-shovelled", *split_headers(was)]
    del headers["x-shovelled"]
    assert tables.join(headers) == HARD_HEADERS
    assert {bit: now[bit] for bit in was if bit != HEADERS} == {bit: was[bit] for bit in was if bit != HEADERS}
    assert shovelled(after) == [ENTRY]


def test_the_last_shovel_comes_first() -> None:
    once = with_shovelled(b"\0\0", ENTRY)
    assert shovelled(with_shovelled(once, {"src-queue": "next", "redelivered": True})) == [
        {"src-queue": "next", "redelivered": True},
        ENTRY,
    ]


def test_a_header_of_that_name_that_is_no_array_is_kept_in_it() -> None:
    headers = tables.with_length(tables.encode({"x-shovelled": "mine"}))
    assert shovelled(with_shovelled(join({HEADERS: headers}), ENTRY)) == [ENTRY, "mine"]


@pytest.mark.parametrize(
    "properties",
    [
        b"\x20\x00\x00\x00\x00\x09\x01",  # a table that is cut short
        b"\x00\x02",
        join({HEADERS: tables.with_length(tables.encode({"large": "x" * (MAX_PROPERTIES_BYTES - 40)}))}),
    ],
    ids=["damaged", "unknown flags", "too large"],
)
def test_properties_without_room_for_it_come_back_as_they_are(properties: bytes) -> None:
    assert with_shovelled(properties, ENTRY) == properties
