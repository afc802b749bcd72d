"""The records that services make: read by an AMQP library, by the broker's own parser, and by the decoder."""

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import header

from rewindmq.engine.http.properties import properties_of
from rewindmq.schemas import producer
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import join_by_name, parse, problem
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.producer import Publisher
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import Actor, Origin, Route
from tests.support.examples import examples
from tests.support.strategies import producer_properties

MOMENT = datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC)


def event_of(value: bytes) -> tuple[Actor, Published]:
    _, actor, event = SharedDecoder().decode(value)
    assert isinstance(event, Published)
    return actor, event


@given(given_properties=producer_properties, body=st.binary(max_size=200))
@settings(max_examples=examples(300), deadline=None)
def test_what_was_given_is_what_the_broker_reads(given_properties: dict[str, Any], body: bytes) -> None:
    record = Publisher("billing").record("/", "orders", body, **given_properties)
    assert (record.topic, record.key) == ("rewindmq.queues", b"//orders")
    actor, event = event_of(record.value)
    assert actor == Actor("billing", 0)
    route = event.route
    assert (route.vhost, route.exchange, route.routing_key, route.queues) == ("/", "", "orders", ("orders",))
    assert (event.body, event.body_size, event.origin, event.encryption) == (body, len(body), None, None)
    assert problem(event.properties) == ""
    parsed = parse(event.properties)  # the AMQP door takes them, and decides by the same
    assert (parsed.expiration_ms, parsed.priority) == (event.expiration_ms, event.priority)
    assert parsed.persistent == event.persistent == (given_properties.get("delivery_mode", 2) == 2)
    headers = given_properties.get("headers")
    if headers is not None:
        assert tables.mapping(parsed.header_table()) == headers
    shown = dict(properties_of(event.properties))
    expected = {"delivery_mode": 2} | given_properties
    if "expiration" in expected:
        expected["expiration"] = str(expected["expiration"])
    assert {name: shown[name] for name in shown if name != "headers"} == {
        name: value for name, value in expected.items() if name != "headers"
    }


def test_an_amqp_client_reads_every_property() -> None:
    record = Publisher("billing", "other").record(
        "ünï",
        "größe",
        b"body",
        content_type="text/plain",
        content_encoding="gzip",
        headers={"a": 1, "b": -(2**40), "c": 1.1, "d": "ü", "e": [True, None, {"x": MOMENT}], "f": ""},
        delivery_mode=1,
        priority=9,
        correlation_id="c-1",
        reply_to="back",
        expiration="60000",
        message_id="m-1",
        timestamp=MOMENT,
        type="order",
        app_id="app",
    )
    assert (record.topic, record.key.decode()) == ("other.queues", "ünï/größe")
    event = event_of(record.value)[1]
    assert (event.expiration_ms, event.priority, event.persistent) == (60_000, 9, False)
    frame = header.ContentHeader()
    frame.unmarshal(struct.pack(">HHQ", 60, 0, 4) + event.properties)
    got = frame.properties
    assert (got.content_type, got.content_encoding, got.delivery_mode, got.priority) == ("text/plain", "gzip", 1, 9)
    assert (got.correlation_id, got.reply_to, got.expiration, got.message_id) == ("c-1", "back", "60000", "m-1")
    assert (got.timestamp, got.message_type, got.app_id) == (MOMENT, "order", "app")
    assert got.headers == {"a": 1, "b": -(2**40), "c": 1.1, "d": "ü", "e": [True, None, {"x": MOMENT}], "f": ""}


def test_whole_numbers_and_others_have_one_type_each_whatever_their_value() -> None:
    event = event_of(Publisher("billing").record("/", "q", b"", headers={"n": 1, "m": 2**40, "x": 1.0}).value)[1]
    entries = tables.parse(parse(event.properties).header_table())
    assert [(name, kind) for name, kind, _ in entries] == [("n", "long"), ("m", "long"), ("x", "double")]


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"vhost": ""}, "vhost must not be empty"),
        ({"queue": "q" * 256}, "queue is 256 bytes long, more than 255"),
        ({"queue": "\ud800"}, "queue is not Unicode text (it holds half a surrogate pair)"),
        ({"queue": b"q"}, "queue must be a str, not bytes"),
        ({"body": "text"}, "the body must be bytes, not str"),
        ({"delivery_mode": 3}, "delivery_mode is 1 (transient) or 2 (persistent), not 3"),
        ({"delivery_mode": None}, "delivery_mode is 1 (transient) or 2 (persistent), not None"),
        ({"priority": 256}, "priority is a whole number from 0 to 255, not 256"),
        ({"priority": True}, "priority is a whole number from 0 to 255, not True"),
        ({"expiration": -1}, "expiration is a whole number from 0 to 315360000000, not -1"),
        ({"expiration": "1s"}, "expiration is a whole number from 0 to 315360000000, not '1s'"),
        ({"expiration": 1.5}, "expiration is a whole number from 0 to 315360000000, not 1.5"),
        ({"expiration": 315_360_000_001}, "expiration is a whole number from 0 to 315360000000, not 315360000001"),
        ({"timestamp": datetime(2026, 1, 1)}, "timestamp needs a time zone: which moment it is depends on it"),
        ({"timestamp": 1.5}, "timestamp is a whole number from 0 to 9223372036854775807, not 1.5"),
        ({"content_type": "x" * 256}, "content_type is 256 bytes long, more than 255"),
        ({"message_id": 7}, "message_id must be a str, not int"),
        ({"headers": [1]}, "headers must be a mapping, not list"),
        ({"headers": {"CC": ["a"]}}, "headers: CC asks for further routing, and nothing is routed here"),
        ({"headers": {"n" * 256: 1}}, "a name in headers is 256 bytes long, more than 255"),
        ({"headers": {"a": [1, 2**63]}}, "headers['a'][1] is 9223372036854775808, which does not fit into 64 bits"),
        ({"headers": {"a": {1, 2}}}, "headers['a'] is of type set, for which AMQP has none"),
        ({"headers": {"a\nb": {1}}}, "headers['a\\nb'] is of type set, for which AMQP has none"),
        ({"headers": deep(40)}, "headers are nested deeper than 32"),
        ({"headers": {"a": "x" * 131_040}}, "properties of 131054 bytes; at most 131052 fit into a frame"),
    ],
)
def test_what_amqp_has_no_room_for_is_one_clear_line(arguments: dict[str, Any], error: str) -> None:
    publisher = Publisher("billing")
    call: dict[str, Any] = {"vhost": "/", "queue": "q", "body": b"b"} | arguments
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        publisher.record(**call)
    assert str(caught.value) == error


@pytest.mark.parametrize("service", ["", "s" * 256])
def test_a_service_has_a_name(service: str) -> None:
    with pytest.raises(ValueError, match="service"):
        Publisher(service)


def test_routes_that_are_remembered_are_bounded() -> None:
    publisher = Publisher("billing")
    for number in range(10_000):
        record = publisher.record("/", f"q{number}", b"")
        assert record.key == f"//q{number}".encode()
        assert event_of(record.value)[1].route.queues == (f"q{number}",)
    assert len(publisher._routes) <= producer.ROUTES


def forged(actor: Actor, origin: Origin | None = None, **properties: bytes) -> Published:
    """Return the event that a reader decodes from a record that was appended with these properties."""
    encoder, raw = Encoder(), join_by_name(properties)
    event = Published(Route("/", "", "q", ("q",)), raw, persistent=True, origin=origin, body=b"", body_size=0)
    _, _, found = SharedDecoder().decode(encoder.encode(encoder.prefix(0, actor), event))
    assert isinstance(found, Published)
    return found


SERVICE, CLIENT = Actor("billing", 0), Actor("ann", 7)
RESTORED = tables.with_length(tables.encode({"x-restored": {"id": 1}, "kept": 1}, "headers"))
KEPT = tables.with_length(tables.encode({"kept": 1}, "headers"))
RESTORATION = Origin("/", "q", queue_id=1, message_id=2, reason="restored", sequence=1, restore="name")


def test_b47_no_service_makes_a_message_look_restored() -> None:
    for actor in (SERVICE, CLIENT):  # an appender may claim any user and session
        assert forged(actor, headers=RESTORED).properties == join_by_name({"headers": KEPT})
    assert forged(SERVICE, RESTORATION, headers=RESTORED).properties == join_by_name({"headers": RESTORED})
    record = Publisher("billing").record("/", "q", b"", headers={"x-restored": {"id": 1}, "kept": 1})
    assert b"x-restored" not in event_of(record.value)[1].properties
    twice = RESTORED[4:] + RESTORED[4:]
    assert b"x-restored" not in forged(SERVICE, headers=tables.with_length(twice)).properties


def test_b47_a_service_says_no_other_user_than_itself() -> None:
    assert forged(SERVICE, user_id=b"\x05admin", type=b"\x01t").properties == join_by_name({"type": b"\x01t"})
    honest = join_by_name({"user_id": b"\x07billing"})
    assert forged(SERVICE, user_id=b"\x07billing").properties == honest
    impersonated = join_by_name({"user_id": b"\x05admin"})  # a broker let the client do it
    assert forged(CLIENT, user_id=b"\x05admin").properties == impersonated
    assert forged(SERVICE, RESTORATION, user_id=b"\x05admin").properties == impersonated


def test_b47_damaged_properties_are_read_as_they_are() -> None:
    encoder = Encoder()
    for raw in (b"", b"\x00", b"\x20\x10\x00", b"\xff\xff\x0ax-restored"):
        event = Published(Route("/", "", "q", ("q",)), raw, persistent=True, body=b"", body_size=0)
        found = SharedDecoder().decode(encoder.encode(encoder.prefix(0, SERVICE), event))[2]
        assert isinstance(found, Published)
        assert found.properties == raw
