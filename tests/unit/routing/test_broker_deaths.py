"""x-death and its companions, byte by byte (S-052, S-155)."""

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from pamqp import commands, decode, header

from rewindmq.engine.routing.content import readable
from rewindmq.engine.routing.death_headers import Buried, with_death
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import HEADERS, split, without_blind_copies

TIME_S = 1_700_000_000
TIME = datetime.fromtimestamp(TIME_S, UTC)


def raw(**properties: Any) -> bytes:
    return commands.Basic.Properties(**properties).marshal()


def read(properties: bytes) -> commands.Basic.Properties:
    """As a client reads it: through pamqp's content header."""
    content = header.ContentHeader()
    content.unmarshal(struct.pack(">HHQ", 60, 0, 0) + properties)
    return content.properties


def headers_of(properties: bytes) -> dict[str, Any]:
    """The headers of a message that has some."""
    headers = read(properties).headers
    assert headers is not None
    return dict(headers)


def death(properties: bytes, queue: str = "q", reason: str = "expired", exchange: str = "x", key: str = "k") -> Buried:
    return with_death(properties, queue, reason, exchange, key, TIME_S)


def test_the_first_death() -> None:
    buried = death(raw(content_type="text/plain", headers={"mine": 1}, delivery_mode=2, expiration="500", app_id="a"))
    properties = read(buried.properties)
    assert (properties.content_type, properties.delivery_mode, properties.app_id) == ("text/plain", 2, "a")
    assert properties.expiration is None
    assert properties.headers == {
        "mine": 1,
        "x-death": [
            {
                "count": 1,
                "reason": "expired",
                "queue": "q",
                "time": TIME,
                "exchange": "x",
                "routing-keys": ["k"],
                "original-expiration": "500",
            }
        ],
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "x",
        "x-last-death-reason": "expired",
        "x-last-death-queue": "q",
        "x-last-death-exchange": "x",
    }


def test_deaths_are_counted_by_queue_and_reason_the_latest_first() -> None:
    buried = death(raw(expiration="7"))
    buried = death(buried.properties, queue="r", reason="maxlen", exchange="dlx", key="k2")
    buried = death(buried.properties, exchange="dlx2", key="k3")
    headers = headers_of(buried.properties)
    assert [(each["queue"], each["reason"], each["count"]) for each in headers["x-death"]] == [
        ("q", "expired", 2),
        ("r", "maxlen", 1),
    ]
    again = headers["x-death"][0]
    assert (again["exchange"], again["routing-keys"], again["original-expiration"]) == ("x", ["k"], "7")
    assert "original-expiration" not in headers["x-death"][1]
    assert headers["x-first-death-queue"] == "q"
    assert headers["x-first-death-exchange"] == "x"
    assert headers["x-last-death-queue"] == "q"
    assert headers["x-last-death-exchange"] == "dlx2"


def test_what_the_client_wrote_stays_byte_for_byte() -> None:
    """A long stays a long: Java consumers cast."""
    entries = {
        "long": b"l" + (5).to_bytes(8, "big"),
        "float": b"f\x3f\x80\0\0",
        "void": b"V",
        "decimal": b"D\x02\0\0\0\x05",
        "bytes": b"x\0\0\0\x02ab",
        "nested": b"F\0\0\0\x04\x01at\x01",
        "array": b"A\0\0\0\x02b\x05",
    }
    content = b"".join(bytes((len(key),)) + key.encode() + value for key, value in entries.items())
    properties = b"\x20\x00" + len(content).to_bytes(4, "big") + content
    table = split(death(properties).properties)[HEADERS][4:]
    kept = tables.split(table)
    assert {key: kept[key] for key in entries} == entries
    assert kept["x-death"][:1] == b"A"
    assert decode.field_table(tables.with_length(table))[1]["long"] == 5


def test_the_types_on_the_wire_are_rabbitmqs() -> None:
    table = split(death(raw(expiration="9")).properties)[HEADERS][4:]
    entry = tables.split(tables.split(table)["x-death"][10:])  # behind the sizes of the array and of its only item
    assert {key: chr(value[0]) for key, value in entry.items()} == {
        "count": "l",
        "reason": "S",
        "queue": "S",
        "time": "T",
        "exchange": "S",
        "routing-keys": "A",
        "original-expiration": "S",
    }
    assert list(entry) == ["count", "reason", "queue", "time", "exchange", "routing-keys", "original-expiration"]


@pytest.mark.parametrize("count", [2**63 - 1, 2**63 - 2])
def test_a_client_cannot_count_deaths_beyond_what_fits(count: int) -> None:
    """An x-death of the client's own making counts, and one more must fit into a long."""
    entry = {
        "count": count,
        "reason": "expired",
        "queue": "q",
        "time": TIME,
        "exchange": "x",
        "routing-keys": ["k"],
    }
    (kept,) = headers_of(death(raw(headers={"x-death": [entry]})).properties)["x-death"]
    assert kept["count"] == (1 if count == 2**63 - 1 else 2**63 - 1)


def test_the_time_of_a_death_may_be_in_milliseconds_and_must_be_a_time() -> None:
    def times(value: int) -> list[int]:
        entry = tables.join(
            {
                "count": b"l" + bytes(7) + b"\1",
                "reason": tables.longstr("maxlen"),
                "queue": tables.longstr("other"),
                "time": b"T" + value.to_bytes(8, "big"),
                "exchange": tables.longstr(""),
                "routing-keys": tables.array([]),
            }
        )
        headers = tables.join({"x-death": tables.array([b"F" + tables.with_length(entry)])})
        return [each.time_s for each in death(b"\x20\x00" + tables.with_length(headers)).deaths]

    assert times(TIME_S) == times(TIME_S * 1000 + 999) == [TIME_S, TIME_S]
    assert times(253_402_300_800_000) == times(2**64 - 1) == [TIME_S], "no death: only the one that is added"


@pytest.mark.parametrize(
    ("history", "target", "cycle"),
    [
        ([("a", "expired")], "a", True),
        ([("a", "expired")], "b", False),
        ([("a", "rejected")], "a", False),
        ([("a", "expired"), ("b", "maxlen")], "a", True),
        ([("a", "expired"), ("b", "rejected")], "a", False),
        ([("a", "rejected"), ("b", "expired"), ("a", "expired")], "a", True),
        ([("a", "expired"), ("b", "rejected"), ("c", "delivery_limit")], "c", True),
    ],
)
def test_s155_cycles(history: list[tuple[str, str]], target: str, cycle: bool) -> None:
    """`history`: the deaths as they happened."""
    properties = raw()
    for queue, reason in history:
        buried = death(properties, queue, reason)
        properties = buried.properties
    assert buried.cycles_into(target) is cycle


def test_a_history_sent_by_the_client_counts() -> None:
    """As in 3.13 (docs/behaviours/profiles.md); entries that are no death are left out."""
    sent = {"queue": "q", "reason": "expired", "exchange": "e", "routing-keys": ["o"], "count": 4, "time": TIME}
    headers = headers_of(death(raw(headers={"x-death": [sent, {"a": 1}]})).properties)
    assert [each["count"] for each in headers["x-death"]] == [5]
    assert "x-first-death-queue" not in headers
    assert headers["x-last-death-queue"] == "q"


def test_a_header_named_x_death_that_is_no_list_is_replaced() -> None:
    headers = headers_of(death(raw(headers={"x-death": "mine"})).properties)
    assert [each["count"] for each in headers["x-death"]] == [1]
    assert headers["x-first-death-queue"] == "q"


BROKEN = [b"", b"\0", b"\x20\x00\0\0", b"\x80\x00\x05ab", b"\0\0more", b"\x20\x00\0\0\0\x03\x01a?"]


@pytest.mark.parametrize("properties", BROKEN)
def test_broken_properties_are_an_error(properties: bytes) -> None:
    with pytest.raises(ValueError, match=r"propert|table|field"):
        death(properties)


def test_a_damaged_history_is_none() -> None:
    table = b"\x07x-deathA\0\0\0\x05F\0\0\0\x09"
    headers = headers_of(death(b"\x20\x00" + len(table).to_bytes(4, "big") + table).properties)
    assert [each["count"] for each in headers["x-death"]] == [1]


def test_headers_as_far_as_they_can_be_read() -> None:
    assert readable(b"\x20\x00\0\0\0\x08\x01aA\0\0\0\x01?").headers == {}
    assert readable(raw(headers={"a": 1})).headers == {"a": 1}
    assert readable(raw(app_id="a")).headers == {}


def test_blind_copies_are_taken_out() -> None:
    with_it = raw(content_type="text/plain", headers={"a": 1, "BCC": ["x", "y"], "b": "z"}, priority=3)
    assert without_blind_copies(with_it) == raw(content_type="text/plain", headers={"a": 1, "b": "z"}, priority=3)
    for other in (raw(headers={"a": "\x03BCC"}), raw(), b"\x03BCC", b"\x20\x00\0\0\0\x05\x03BCCA"):
        assert without_blind_copies(other) == other
