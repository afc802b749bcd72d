"""Which messages a search wants, and that the bytes of a record never hide one of them (B-29)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewindmq.projections.history.search import Criteria
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import LAYOUT, SHORT, TABLE, join_by_name
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Route


def raw(**given: Any) -> bytes:
    encoded = {}
    for _, name, kind in LAYOUT:
        if name in given:
            value = given[name]
            if kind == SHORT:
                encoded[name] = bytes((len(value.encode()),)) + value.encode()
            elif kind == TABLE:
                encoded[name] = tables.with_length(tables.encode(value, "headers"))
    return join_by_name(encoded)


def published(properties: bytes, body: bytes = b"", queue: str = "orders", vhost: str = "/") -> Published:
    return Published(Route(vhost, "", queue, (queue,)), properties, persistent=True, body=body, body_size=len(body))


MESSAGE = published(
    raw(
        message_id="4711",
        correlation_id="c-1",
        headers={"customer": "alice", "n": 7, "yes": True, "deep": {"a": [1]}, "BCC": ["hidden"]},
    ),
    b'{"order": 4711}',
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"message_id": "4711"}, True),
        ({"message_id": "471"}, False),
        ({"correlation_id": "c-1"}, True),
        ({"correlation_id": "4711"}, False),
        ({"message_id": "4711", "correlation_id": "c-2"}, False),
        ({"header": ("customer", "alice")}, True),
        ({"header": ("customer", "Alice")}, False),
        ({"header": ("n", "7")}, True),
        ({"header": ("yes", "true")}, True),
        ({"header": ("deep", '{"a": [1]}')}, True),
        ({"header": ("alice", "customer")}, False),
        ({"header": ("BCC", '["hidden"]')}, False),
        ({"body": b"order"}, True),
        ({"body": b"Order"}, False),
        ({"message_id": "4711", "queue": "other"}, False),
        ({"message_id": "4711", "vhost": "v"}, False),
        ({"message_id": "4711", "queue": None}, True),
    ],
)
def test_b29_all_that_is_given_has_to_match(wanted: dict[str, Any], found: bool) -> None:
    assert Criteria(**{"vhost": "/", "queue": "orders"} | wanted).match(MESSAGE) is found


def test_b29_bytes_that_are_no_properties_match_by_their_body_alone() -> None:
    damaged = published(b"\xff\xff\xff", b"4711")
    assert Criteria("/", body=b"47").match(damaged)
    assert not Criteria("/", message_id="4711", body=b"47").match(damaged)


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
VALUES = st.one_of(
    TEXTS, st.integers(-(2**40), 2**40), st.booleans(), st.none(), st.sampled_from(["1", "true", "null"])
)


@given(TEXTS, TEXTS, VALUES, st.binary(max_size=30), TEXTS)
def test_b29_the_record_of_a_wanted_message_has_all_needles(
    message_id: str, name: str, value: Any, body: bytes, queue: str
) -> None:
    event = published(raw(message_id=message_id, headers={name: value}), body, queue)
    encoder = Encoder()
    record = encoder.encode(encoder.prefix(1_700_000_000_000, Actor("guest", 7)), event)
    text = value if isinstance(value, str) else json.dumps(value)
    criteria = Criteria("/", queue, message_id, None, (name, text), body[3:9] or None)
    assert criteria.match(Decoder().decode(record)[2])  # type: ignore[arg-type]
    assert all(needle in record for needle in criteria.needles())
