"""basic.publish: what is logged, returned, confirmed and refused."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from rewindmq.engine.amqp.consumer import with_counts
from rewindmq.engine.amqp.publish_path import FANNED_OUT
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.amqp.properties import parse
from rewindmq.schemas.events import Published
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import Wire, header_frame, method, properties, publish, raw_frame

DURABLE = properties(delivery_mode=2)  # a message whose confirm waits for the disk


@pytest.fixture
def wire() -> Wire:
    wire = Wire()
    wire.ask(1, "Queue.Declare", queue="q")
    return wire


def published(wire: Wire) -> list[Published]:
    return [event for event in wire.broker.events if isinstance(event, Published)]


def refused(wire: Wire, *frames: bytes) -> tuple[int, str]:
    last = wire.send(*frames)[-1]
    assert last.name in ("Channel.Close", "Connection.Close"), last
    assert (last.class_id, last.method_id) == (60, 40)
    return last.reply_code, last.reply_text


def test_what_is_logged(wire: Wire) -> None:
    raw = properties(content_type="text/plain", headers={"a": 1}, delivery_mode=2, priority=7, expiration="60000")
    for _ in range(2):  # the first goes frame by frame, the second is known and taken whole
        wire.send(publish(1, "", "q", b"body", raw=raw))
    for event in published(wire):
        assert (event.route.exchange, event.route.routing_key, event.route.queues) == ("", "q", ("q",))
        assert (event.properties, event.body, event.body_size) == (raw, b"body", 4)
        assert (event.expiration_ms, event.priority, event.persistent) == (60_000, 7, True)
    first, second = published(wire)
    assert first.route is second.route
    assert first.properties is second.properties


def test_plain_publish_is_transient_without_limits(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b""), publish(1, "", "q", b"", raw=properties(delivery_mode=1)))
    facts = [(e.expiration_ms, e.priority, e.persistent, e.body) for e in published(wire)]
    assert facts == [(None, None, False, b"")] * 2


@pytest.mark.parametrize("piece", [1, 7, 4088, 100_000])
def test_bodies_in_several_frames(wire: Wire, piece: int) -> None:
    content = bytes(range(256)) * 40
    wire.send(publish(1, "", "q", content, piece=piece), publish(1, "", "q", content, piece=piece))
    assert [event.body for event in published(wire)] == [content] * 2


def test_two_channels_interleave_their_frames(wire: Wire) -> None:
    wire.send(method(2, "Channel.Open"))
    one, two = (method(n, "Basic.Publish", routing_key="q") + header_frame(n, 4) for n in (1, 2))
    wire.send(one, two, *(raw_frame(3, n, b"%d%d" % (n, k)) for k in (0, 1) for n in (2, 1)))
    assert [event.body for event in published(wire)] == [b"2021", b"1011"]


def test_empty_body_frames_between(wire: Wire) -> None:
    frames = (raw_frame(3, 1, b""), raw_frame(3, 1, b"ab"), raw_frame(3, 1, b""), raw_frame(3, 1, b"c"))
    wire.send(method(1, "Basic.Publish", routing_key="q"), header_frame(1, 3), *frames)
    assert [event.body for event in published(wire)] == [b"abc"]


def test_too_large(wire: Wire) -> None:
    """Told by the header already: the body is not waited for, and ignored when it comes."""
    small = Wire(DoubleBroker(max_message_size=1000))
    small.ask(1, "Queue.Declare", queue="q")
    small.send(publish(1, "", "q", b"x" * 1000))
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    frames = method(1, "Basic.Publish", routing_key="q"), header_frame(1, 1001)
    assert small.send(*frames)[0].fields == {"reply_code": 406, "reply_text": text, "class_id": 60, "method_id": 40}
    assert small.send(raw_frame(3, 1, b"x" * 1001), method(1, "Channel.CloseOk")) == []
    assert len(published(small)) == 1
    text = "PRECONDITION_FAILED - message size 134217729 is larger than configured max size 134217728"
    assert refused(wire, method(1, "Basic.Publish", routing_key="q"), header_frame(1, 134_217_729)) == (406, text)


def test_too_large_when_the_frames_come_in_one_read() -> None:
    """A frame may be larger than the limit of messages; known method frames must not pass by it."""
    wire = Wire(DoubleBroker(max_message_size=10))
    wire.ask(1, "Queue.Declare", queue="q")
    wire.send(publish(1, "", "q", b"x" * 10))
    text = "PRECONDITION_FAILED - message size 11 is larger than configured max size 10"
    assert refused(wire, publish(1, "", "q", b"x" * 11)) == (406, text)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("abc", "no_integer"),
        ("", "no_integer"),
        ("-", "no_integer"),
        ("12x", '{leftover_string,"x"}'),
        ("1.5", '{leftover_string,".5"}'),
        (" 5", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_invalid_expiration_s043(wire: Wire, value: str, why: str) -> None:
    raw = b"\x01\x00" + bytes((len(value),)) + value.encode()
    text = f"PRECONDITION_FAILED - invalid expiration '{value}': {why}"
    assert refused(wire, publish(1, "", "q", b"x", raw=raw)) == (406, text)
    assert published(wire) == []


@pytest.mark.parametrize(("value", "ms"), [("0", 0), ("315360000000", 315_360_000_000), ("+5", 5), ("007", 7)])
def test_expiration_in_range_s036(value: str, ms: int) -> None:
    assert parse(b"\x01\x00" + bytes((len(value),)) + value.encode()).expiration_ms == ms


def test_user_id(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b"x", raw=properties(user_id="guest")))
    assert len(published(wire)) == 1
    text = "PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest'"
    assert refused(wire, publish(1, "", "q", b"x", raw=properties(user_id="root"))) == (406, text)


def test_unknown_exchange_and_what_the_route_cache_forgets(wire: Wire) -> None:
    wire.send(method(1, "Exchange.Declare", exchange="x"), method(1, "Queue.Bind", queue="q", exchange="x"))
    wire.send(publish(1, "x", "", b"1"), publish(1, "x", "", b"2"))
    wire.ask(1, "Queue.Unbind", queue="q", exchange="x")
    wire.send(publish(1, "x", "", b"3"))
    assert [event.body for event in published(wire)] == [b"1", b"2"]
    wire.ask(1, "Exchange.Delete", exchange="x")
    assert refused(wire, publish(1, "x", "", b"4")) == (404, "NOT_FOUND - no exchange 'x' in vhost '/'")


def test_mandatory_is_returned_before_its_confirm(wire: Wire) -> None:
    wire.ask(1, "Confirm.Select")
    raw = properties(message_id="m")
    said = wire.send(publish(1, "", "nowhere", b"back", mandatory=True, raw=raw), publish(1, "", "nowhere", b"gone"))
    assert [each.name for each in said] == ["Basic.Return", "Basic.Ack"]
    assert said[0].fields == {"reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "", "routing_key": "nowhere"}
    assert (said[0].body, said[0].properties.message_id) == (b"back", "m")
    assert said[1].fields == {"delivery_tag": 2, "multiple": True}


def test_headers_exchange_is_routed_by_message(wire: Wire) -> None:
    wire.send(method(1, "Queue.Bind", queue="q", exchange="amq.headers"))
    for number in (1, 2):
        wire.send(publish(1, "amq.headers", "k", b"x", raw=properties(headers={"n": number, "s": "t"})))
    routed = [call for call in wire.broker.calls if call[:2] == ("route", "amq.headers") and call[3]]
    assert [call[3] for call in routed] == [{"n": 1, "s": "t"}, {"n": 2, "s": "t"}]
    assert len(published(wire)) == 2


def test_carbon_copies() -> None:
    """CC and BCC name further routing keys; BCC is for the broker, and nobody gets to see it."""
    wire = Wire()
    for name in ("a", "b", "c", "d"):
        wire.ask(1, "Queue.Declare", queue=name)
    raw = properties(headers={"CC": ["b", "a"], "BCC": ["c"], "n": 1})
    wire.send(publish(1, "", "a", b"x", raw=raw))
    (event,) = published(wire)
    assert (event.route.routing_key, event.route.queues) == ("a", ("a", "b", "c"))
    assert event.properties == raw
    for name in ("b", "c"):
        assert wire.ask(1, "Basic.Get", queue=name).properties.headers == {"CC": ["b", "a"], "n": 1}
    (returned,) = wire.send(publish(1, "", "nobody", b"x", mandatory=True, raw=properties(headers={"BCC": ["no"]})))
    assert (returned.name, returned.properties.headers) == ("Basic.Return", {})


def test_carbon_copies_must_be_arrays(wire: Wire) -> None:
    text = 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}'
    assert refused(wire, publish(1, "", "q", b"x", raw=properties(headers={"CC": "b"}))) == (406, text)


# -- confirms ---------------------------------------------------------------------------------------------------------


def confirms(wire: Wire) -> list[tuple[str, int, bool]]:
    return [(each.name[6:], each.delivery_tag, each.multiple) for each in wire.read()]


@pytest.fixture
def slow() -> Wire:
    """A confirming channel; queues `a` and `b` lie in different partitions, nothing is durable until `land`."""
    wire = Wire(DoubleBroker(prompt=False, partitions=2))
    wire.send(*(method(1, "Queue.Declare", queue=name) for name in "ab"), method(1, "Confirm.Select"))
    wire.send(*(method(1, "Queue.Bind", queue=name, exchange="amq.topic", routing_key="k") for name in "ab"))
    wire.broker.land()
    wire.read()
    return wire


def test_one_ack_for_a_group_commit(slow: Wire) -> None:
    assert slow.send(*(publish(1, "", "a", b"x", raw=DURABLE) for _ in range(100))) == []
    slow.broker.land()
    assert confirms(slow) == [("Ack", 100, True)]
    slow.send(publish(1, "", "a", b"x", raw=DURABLE))
    slow.broker.land()
    assert confirms(slow) == [("Ack", 101, False)]


def test_refused_publishes_are_nacked_s009_s010(slow: Wire) -> None:
    slow.broker.refuse_next = 2
    slow.send(*(publish(1, "", "a", b"x", raw=DURABLE) for _ in range(5)))
    slow.broker.land()
    assert confirms(slow) == [("Nack", 1, False), ("Nack", 2, False), ("Ack", 5, True)]
    slow.broker.refuse_next = 1
    slow.send(publish(1, "", "a", b"x", raw=DURABLE))
    slow.broker.land()
    assert confirms(slow) == [("Nack", 6, False)]


def test_partitions_land_apart(slow: Wire) -> None:
    """A durable publish is confirmed at once, even while a lower number waits."""
    slow.send(*(publish(1, "", name, b"x", raw=DURABLE) for name in "abab"))
    a, b = (slow.broker.partition_of(name) for name in "ab")
    for tag in (2, 4):
        slow.connection.channels[1].confirms.confirm(tag, False)
    assert confirms(slow) == [("Ack", 2, False), ("Ack", 4, False)]
    slow.connection.channels[1].confirms.confirm(1, False)
    assert confirms(slow) == [("Ack", 1, False)]
    slow.connection.channels[1].confirms.confirm(3, False)
    assert confirms(slow) == [("Ack", 3, False)]
    assert (len(a.waiting), len(b.waiting)) == (2, 2)


def test_a_publish_to_two_partitions_waits_for_both_s010(slow: Wire) -> None:
    slow.send(publish(1, "amq.topic", "k", b"x", raw=DURABLE), publish(1, "amq.topic", "k", b"y", raw=DURABLE))
    confirm = slow.connection.channels[1].confirms.confirm
    confirm(1, False)
    confirm(2, True)
    assert confirms(slow) == []
    confirm(1, False)
    confirm(2, False)
    assert confirms(slow) == [("Nack", 2, False), ("Ack", 1, False)]


def test_unroutable_is_confirmed_at_once(slow: Wire) -> None:
    slow.send(publish(1, "", "a", b"x", raw=DURABLE))
    said = slow.send(publish(1, "", "nowhere", b"x", raw=DURABLE))
    assert [(each.name, each.fields) for each in said] == [("Basic.Ack", {"delivery_tag": 2, "multiple": False})]


def test_counters(slow: Wire) -> None:
    slow.send(publish(1, "", "a", b"x") * 3, publish(1, "amq.topic", "k", b"x"), method(2, "Channel.Open"))
    slow.broker.land()
    slow.send(publish(1, "", "no", b"x", mandatory=True), publish(1, "", "no", b"x"), publish(2, "", "a", b"x"))
    slow.send(method(1, "Channel.Close"), method(0, "Connection.Close"))
    slow.read()
    assert slow.broker.counters == {
        "channels_opened_total": 2,
        "channels_closed_total": 2,
        "global_messages_received_total": 7,
        "global_messages_received_confirm_total": 6,
        "global_messages_routed_total": 6,
        "global_messages_unroutable_dropped_total": 1,
        "global_messages_unroutable_returned_total": 1,
        "global_messages_confirmed_total": 6,
        "message_sizes_up_to_100": 7,
        "message_sizes_sum": 7,
    }


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=40), st.data())
def test_every_publish_is_told_exactly_once(publishes: list[tuple[bool, int]], data: st.DataObject) -> None:
    """Whatever the order of durability and the moments of writing: each number is acked or nacked once, rightly."""
    wire = Wire(DoubleBroker(prompt=False))
    wire.send(method(1, "Confirm.Select"))
    tracker = wire.connection.channels[1].confirms
    lanes: dict[int, list[int]] = {}
    for sequence, (_, lane) in enumerate(publishes, 1):
        lanes.setdefault(lane, []).append(sequence)
    told: dict[int, bool] = {}
    while any(lanes.values()):
        lane = data.draw(st.sampled_from([lane for lane, left in lanes.items() if left]))
        sequence = lanes[lane].pop(0)
        tracker.confirm(sequence, publishes[sequence - 1][0])
        if data.draw(st.booleans()) or not any(lanes.values()):
            for name, tag, multiple in confirms(wire):
                covered = [n for n in range(1, tag + 1) if n not in told] if multiple else [tag]
                for number in covered:
                    assert number not in told
                    told[number] = name == "Nack"
    assert told == {n: refused for n, (refused, _) in enumerate(publishes, 1)}


# -- properties -------------------------------------------------------------------------------------------------------


short = st.text(max_size=20)
header_values = st.integers(-5, 5) | short
some_properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": short,
        "content_encoding": short,
        "delivery_mode": st.sampled_from([1, 2]),
        "headers": st.dictionaries(st.text(min_size=1, max_size=9), header_values, max_size=4),
        "priority": st.integers(1, 255),
        "correlation_id": short,
        "reply_to": short,
        "expiration": st.integers(0, 10**11).map(str),
        "message_id": short,
        "app_id": short,
        "message_type": short,
        "user_id": st.text(min_size=1, max_size=9),
    },
)


@given(some_properties)
def test_properties_as_pamqp_writes_them(values: dict[str, object]) -> None:
    parsed = parse(properties(**values))
    assert parsed.priority == values.get("priority")
    assert parsed.persistent is (values.get("delivery_mode") == 2)
    assert parsed.expiration_ms == (int(str(values["expiration"])) if "expiration" in values else None)
    assert parsed.user_id == values.get("user_id")


@given(some_properties, st.integers(1, 2**40))
def test_delivery_count_is_added_or_replaced_s157(values: dict[str, Any], count: int) -> None:
    raw = with_counts(with_counts(properties(**values), 1, 0), count, 0)
    read = commands.Basic.Properties()
    read.unmarshal(int.from_bytes(raw[:2], "big"), raw[2:])
    headers = values.get("headers") or {}
    assert read.headers == {**headers, "x-delivery-count": count}
    assert read.expiration == values.get("expiration")
    assert read.content_type == (values.get("content_type") or None)
    parse(raw)


def test_what_is_delivered_again_may_have_an_expiration_that_is_no_number() -> None:
    """A service that appends to the log itself is not asked for one."""
    raw = with_counts(properties(expiration="soon", content_type="text/plain"), 1, 0)
    read = commands.Basic.Properties()
    read.unmarshal(int.from_bytes(raw[:2], "big"), raw[2:])
    assert (read.headers, read.expiration, read.content_type) == ({"x-delivery-count": 1}, "soon", "text/plain")


@given(some_properties, st.data())
def test_damaged_properties_are_refused_or_read(values: dict[str, object], data: st.DataObject) -> None:
    raw = bytearray(properties(**values))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    except PropertyError:
        return


@pytest.mark.parametrize("piece", [100_000, 2], ids=["whole", "in pieces"])
@pytest.mark.parametrize("exchange", ["amq.topic", "amq.headers", ""])
def test_a_read_of_messages_for_many_queues_is_taken_a_turn_at_a_time(exchange: str, piece: int) -> None:
    """Else a thousand of them would be a hundred thousand messages before a consumer gets the first. To the default
    exchange they go with carbon copies."""

    async def run() -> None:
        wire = Wire()
        names = [f"q{number}" for number in range(100)]
        for name in names:
            wire.ask(1, "Queue.Declare", queue=name)
            if exchange:
                wire.ask(1, "Queue.Bind", queue=name, exchange=exchange, routing_key="k")
        key, raw = ("k", b"\0\0") if exchange else (names[0], properties(headers={"CC": names[1:]}))
        bodies = [b"%03d" % number for number in range(200)] + [bytes(number) for number in range(50)]
        frames = [publish(1, exchange, key, body, raw=raw, piece=piece) for body in bodies]
        wire.push(*frames, method(1, "Queue.Declare", queue="last"))
        taken: list[int] = []
        while len(taken) < 100:
            taken.append(len({event.body for event in published(wire)}))
            if taken[-1] > len(bodies):
                break
            if len(taken) == 1:  # what comes meanwhile stands in line
                wire.push(publish(1, exchange, key, b"later", raw=raw, piece=piece))
            await asyncio.sleep(0)
        assert taken[0] == FANNED_OUT // 100
        assert max(after - before for before, after in pairwise(taken)) <= FANNED_OUT // 100
        assert [event.body for event in published(wire)] == [*bodies, b"later"]
        assert [said.name for said in wire.read()] == ["Queue.DeclareOk"]
        assert not wire.connection.gate.waiting

    asyncio.run(run())


def test_publishes_on_a_closed_channel_are_counted_and_not_kept(wire: Wire) -> None:
    wire.send(publish(1, "nowhere", "q", b"unknown exchange"))
    connection: Any = wire.connection
    counts = connection.parser.counts
    late = publish(1, "", "q", b"x" * 9_000, piece=3_000)
    wire.send(late[:-4_000])
    assert (connection.kept_bytes, counts.after_error) == (0, 0)
    wire.send(late[-4_000:], publish(1, "", "q", b""))
    assert (counts.received, counts.unknown_exchange, counts.after_error) == (3, 1, 2)
