"""Deliveries as bytes, credit windows, and the server's choices about reading and writing."""

import pytest

from rewindmq.engine.amqp.consumer import MAX_WINDOW, MIN_WINDOW, SHARED_WINDOW, AmqpConsumer
from rewindmq.engine.broker.consumers import CREDIT_WINDOW
from rewindmq.schemas.events import Credited
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import HEADER, Wire, connection_open, method, properties, publish, start_ok, tune_ok


@pytest.fixture
def wire() -> Wire:
    wire = Wire()
    wire.ask(1, "Queue.Declare", queue="q")
    return wire


def credits(wire: Wire) -> list[int]:
    return [event.credit for event in wire.broker.events if isinstance(event, Credited)]


def test_deliveries_carry_route_properties_and_body(wire: Wire) -> None:
    """Alternating routes, properties and sizes: what is kept from the last delivery must not leak into the next."""
    wire.ask(1, "Queue.Bind", queue="q", exchange="amq.topic", routing_key="k")
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="c", no_ack=True)
    raws = [properties(), properties(message_id="m", headers={"n": 1})]
    sent = [(("amq.topic", "k") if n % 2 else ("", "q"), raws[n // 2 % 2], b"x" * (n % 3)) for n in range(24)]
    frames = [publish(1, *route, body, raw=raw) for route, raw, body in sent]
    said = wire.send(*frames, *frames)
    assert [each.delivery_tag for each in said] == list(range(1, 49))
    got = [((each.exchange, each.routing_key), each.properties.marshal(), each.body) for each in said]
    assert got == sent + sent
    assert {(each.channel, each.consumer_tag, each.redelivered) for each in said} == {(1, "c", False)}


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 8176, 10_000])
def test_bodies_are_cut_at_the_clients_frame_max(size: int) -> None:
    wire = Wire(opened=False)
    wire.send(HEADER, start_ok(), tune_ok(frame_max=4096), connection_open(), method(1, "Channel.Open"))
    wire.send(method(1, "Queue.Declare", queue="q"), method(1, "Basic.Consume", queue="q", no_ack=True))
    content = bytes(n % 251 for n in range(size))
    for frames in (publish(1, "", "q", content, piece=4000), publish(1, "", "q", content, piece=4000)):
        wire.connection.receive(frames)
        wire.broker.turns.end()
        data = wire.read_raw()
        lengths, pos = [], 0
        while pos < len(data):
            length = int.from_bytes(data[pos + 3 : pos + 7], "big")
            lengths.append(length + 8)
            pos += length + 8
        assert max(lengths) <= 4096
        assert content in b"".join(data[i:] for i in [0]) or size > 4088
    wire.send(publish(1, "", "q", content, piece=4000), method(1, "Basic.Get", queue="q"))


def test_large_bodies_come_back_whole(wire: Wire) -> None:
    content = bytes(n % 251 for n in range(400_000))
    wire.send(publish(1, "", "q", content), publish(1, "", "q", content))
    assert wire.ask(1, "Basic.Get", queue="q", no_ack=True).body == content
    said = wire.send(method(1, "Basic.Consume", queue="q", no_ack=True))
    assert said[1].body == content
    assert wire.send(publish(1, "", "nowhere", content, mandatory=True))[0].body == content


def test_delivery_count_travels_in_a_header_s157(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b"m", raw=properties(headers={"n": 1})), publish(1, "", "q", b"m"))
    queue = wire.broker.queues["q"]
    queue.ready = [(n, message, True, n + 2) for n, message, _, _ in queue.ready]
    said = wire.ask(1, "Basic.Get", queue="q")
    assert said.properties.headers == {"n": 1, "x-delivery-count": 2}
    delivered = wire.send(method(1, "Basic.Consume", queue="q"), publish(1, "", "q", b"m"))
    assert [each.properties.headers for each in delivered[1:]] == [{"x-delivery-count": 3}, None]
    assert [each.redelivered for each in delivered[1:]] == [True, False]


@pytest.mark.parametrize("no_ack", [True, False])
def test_credit_comes_in_windows(wire: Wire, no_ack: bool) -> None:
    """A consumer without prefetch gets more when half of its window is used, one event a window, not one a message."""
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="c", no_ack=no_ack)
    frame = publish(1, "", "q", b"m")
    half = CREDIT_WINDOW // 2
    assert len(wire.send(frame * (half - 1))) == half - 1
    assert credits(wire) == []
    assert len(wire.send(frame)) == 1
    assert credits(wire) == [SHARED_WINDOW - half]
    assert len(wire.send(frame * 5_000)) == 5_000
    assert len(credits(wire)) <= 22  # one for each half of a window


def test_the_window_is_large_where_nobody_else_waits(wire: Wire) -> None:
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="c", no_ack=True)
    wire.send(publish(1, "", "q", b"m"))
    consumer = wire.connection.channels[1].consumers["c"]
    assert isinstance(consumer, AmqpConsumer)
    assert consumer.more_credit(shared=False) == MAX_WINDOW - CREDIT_WINDOW + 1
    assert consumer.more_credit(shared=True) == 0
    consumer.credit = 0
    assert consumer.more_credit(shared=True) == SHARED_WINDOW


def test_large_messages_get_a_small_window(wire: Wire) -> None:
    """About WINDOW_BYTES in flight, and never less than MIN_WINDOW messages."""
    wire.ask(1, "Basic.Consume", queue="q", no_ack=True)
    wire.push(publish(1, "", "q", b"x" * 80_000) * 10)  # of 16; 8 MiB hold 104
    assert credits(wire) == [98]
    large = publish(1, "", "q", b"x" * 1_000_000)
    wire.push(large * 60)  # 44 are left, more than 8 MiB of these
    assert credits(wire) == [98]
    wire.push(large * 40)
    assert credits(wire) == [98, MIN_WINDOW - 4]


def test_nobody_is_sent_many_large_messages_before_their_size_is_known(wire: Wire) -> None:
    wire.push(publish(1, "", "q", b"x" * 1_000_000) * 30)
    wire.connection.output.congested = True
    _, *deliveries = wire.send(method(1, "Basic.Consume", queue="q", consumer_tag="c", no_ack=True))
    assert len(deliveries) == 16


def test_a_congested_socket_gets_no_credit(wire: Wire) -> None:
    wire.ask(1, "Basic.Consume", queue="q", no_ack=True)
    wire.connection.output.congested = True
    assert len(wire.send(publish(1, "", "q", b"m") * 3_000)) == CREDIT_WINDOW
    wire.connection.output.congested = False
    assert len(wire.read()) == 3_000 - CREDIT_WINDOW


def test_prefetch_needs_no_credit(wire: Wire) -> None:
    wire.send(method(1, "Basic.Qos", prefetch_count=5_000), method(1, "Basic.Consume", queue="q"))
    assert len(wire.send(publish(1, "", "q", b"m") * 2_500)) == 2_500
    assert credits(wire) == []


def test_cancelled_consumers_are_given_no_credit(wire: Wire) -> None:
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="c", no_ack=True)
    wire.send(publish(1, "", "q", b"m") * CREDIT_WINDOW, method(1, "Basic.Cancel", consumer_tag="c"))
    assert credits(wire) == []


def test_competing_consumers_on_two_connections() -> None:
    broker = DoubleBroker()
    one, two = Wire(broker), Wire(broker)
    one.ask(1, "Queue.Declare", queue="q")
    for wire in (one, two):
        wire.ask(1, "Basic.Consume", queue="q", no_ack=True)
    got = [each.body for each in one.send(*(publish(1, "", "q", b"%d" % n) for n in range(4)))]
    assert (got, [each.body for each in two.read()]) == ([b"0", b"2"], [b"1", b"3"])
