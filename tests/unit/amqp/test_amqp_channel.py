"""Methods of a channel: what is asked of the broker, what is answered, and RabbitMQ's errors to the letter."""

from typing import Any

import pytest

from rewindmq.engine.amqp.connection_state import ConnectionState
from rewindmq.schemas.events import Acked, Nacked
from rewindmq.schemas.values import Argument
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import Said, Wire, header_frame, method, properties, publish, raw_frame


@pytest.fixture
def wire() -> Wire:
    wire = Wire()
    wire.ask(1, "Queue.Declare", queue="q", durable=True)
    return wire


def names(said: list[Said]) -> list[str]:
    return [each.name for each in said]


def channel_error(wire: Wire, *frames: bytes) -> tuple[int, str, int, int]:
    """channel.close after these frames: code, text, class and method; the connection lives on."""
    last = wire.send(*frames)[-1]
    assert (last.name, last.channel) == ("Channel.Close", 1)
    assert wire.connection.state is ConnectionState.RUNNING
    assert ("close_channel", 1) in wire.broker.calls
    assert wire.send(publish(1, "", "q", b"ignored"), method(1, "Queue.Declare", queue="ignored")) == []
    assert "ignored" not in wire.broker.queues
    assert wire.send(method(1, "Channel.CloseOk")) == []
    assert names(wire.send(method(1, "Channel.Open"))) == ["Channel.OpenOk"]
    return last.reply_code, last.reply_text, last.class_id, last.method_id


def connection_error(wire: Wire, *frames: bytes) -> tuple[int, str, int, int]:
    last = wire.send(*frames)[-1]
    assert (last.name, last.channel) == ("Connection.Close", 0)
    return last.reply_code, last.reply_text, last.class_id, last.method_id


# -- declarations -----------------------------------------------------------------------------------------------------


def test_declare_passes_everything_on_and_answers_when_durable() -> None:
    wire = Wire(DoubleBroker(prompt=False))
    arguments = {"x-max-length": 7, "x-overflow": "reject-publish"}
    flags = {"durable": True, "exclusive": False, "auto_delete": True}
    assert wire.send(method(1, "Queue.Declare", queue="q", arguments=arguments, **flags)) == []
    typed = (Argument("x-max-length", "long", 7), Argument("x-overflow", "longstr", "reject-publish"))
    assert wire.broker.calls[-1] == ("declare_queue", "q", False, True, False, True, typed)
    wire.broker.land()
    (said,) = wire.read()
    assert said.fields == {"queue": "q", "message_count": 0, "consumer_count": 0}


def test_replies_of_a_channel_keep_their_order_behind_a_durable_one() -> None:
    """Other channels are not held up, and deliveries of this one come after their consume-ok."""
    wire = Wire(DoubleBroker(prompt=False))
    wire.send(method(2, "Channel.Open"))
    said = wire.send(
        method(1, "Queue.Declare", queue="q"),
        publish(1, "", "q", b"m"),
        method(1, "Basic.Qos", prefetch_count=1),
        method(1, "Queue.Declare", queue="r"),
        method(1, "Basic.Consume", queue="q", consumer_tag="c"),
        method(2, "Basic.Qos", prefetch_count=1),
    )
    assert [(each.channel, each.name) for each in said] == [(2, "Basic.QosOk")]
    wire.broker.land()
    in_order = ["Queue.DeclareOk", "Basic.QosOk", "Queue.DeclareOk", "Basic.ConsumeOk", "Basic.Deliver"]
    assert names(wire.read()) == in_order


def test_nowait_is_not_answered(wire: Wire) -> None:
    assert (
        wire.send(
            method(1, "Queue.Declare", queue="n", nowait=True),
            method(1, "Exchange.Declare", exchange="x", nowait=True),
            method(1, "Queue.Bind", queue="n", exchange="x", routing_key="k", nowait=True),
            method(1, "Exchange.Bind", destination="x", source="amq.topic", nowait=True),
            method(1, "Exchange.Unbind", destination="x", source="amq.topic", nowait=True),
            method(1, "Confirm.Select", nowait=True),
            method(1, "Basic.Consume", queue="n", consumer_tag="c", nowait=True),
            method(1, "Basic.Cancel", consumer_tag="c", nowait=True),
            method(1, "Queue.Purge", queue="n", nowait=True),
            method(1, "Queue.Delete", queue="n", nowait=True),
            method(1, "Exchange.Delete", exchange="x", nowait=True),
        )
        == []
    )


def test_every_answer_has_its_method(wire: Wire) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("Exchange.Declare", {"exchange": "x", "exchange_type": "topic", "durable": True}),
        ("Exchange.Bind", {"destination": "x", "source": "amq.topic", "routing_key": "k"}),
        ("Exchange.Unbind", {"destination": "x", "source": "amq.topic", "routing_key": "k"}),
        ("Queue.Bind", {"queue": "q", "exchange": "x", "routing_key": "k"}),
        ("Queue.Unbind", {"queue": "q", "exchange": "x", "routing_key": "k"}),
        ("Queue.Purge", {"queue": "q"}),
        ("Basic.Qos", {"prefetch_count": 3}),
        ("Basic.Consume", {"queue": "q", "consumer_tag": "c"}),
        ("Basic.Cancel", {"consumer_tag": "c"}),
        ("Basic.Recover", {"requeue": True}),
        ("Confirm.Select", {}),
        ("Queue.Delete", {"queue": "q"}),
        ("Exchange.Delete", {"exchange": "x"}),
    ]
    for name, fields in asked:
        assert wire.ask(1, name, **fields).name == name + "Ok"
    assert wire.ask(1, "Channel.Flow", active=True).fields == {"active": True}


def test_passive_declare_of_a_missing_queue_s069(wire: Wire) -> None:
    found = channel_error(wire, method(1, "Queue.Declare", queue="nope", passive=True))
    assert found == (404, "NOT_FOUND - no queue 'nope' in vhost '/'", 50, 10)


def test_passive_exchange_declare(wire: Wire) -> None:
    assert wire.ask(1, "Exchange.Declare", exchange="amq.topic", passive=True).name == "Exchange.DeclareOk"
    found = channel_error(wire, method(1, "Exchange.Declare", exchange="nope", passive=True))
    assert found == (404, "NOT_FOUND - no exchange 'nope' in vhost '/'", 40, 10)


def test_empty_name_means_the_last_declared_queue_s064(wire: Wire) -> None:
    wire.ask(1, "Queue.Declare", queue="")
    wire.ask(1, "Queue.Bind", queue="", exchange="amq.topic", routing_key="")
    assert wire.broker.calls[-1] == ("bind", "amq.topic", "queue", "amq.gen-1", "amq.gen-1", ())
    wire.ask(1, "Queue.Bind", queue="", exchange="amq.topic", routing_key="k")
    assert wire.broker.calls[-1] == ("bind", "amq.topic", "queue", "amq.gen-1", "k", ())
    wire.ask(1, "Queue.Bind", queue="q", exchange="amq.topic", routing_key="")
    assert wire.broker.calls[-1] == ("bind", "amq.topic", "queue", "q", "", ())
    wire.ask(1, "Basic.Consume", queue="")
    *_, consumed = wire.broker.calls
    assert consumed[1] == "amq.gen-1"
    assert wire.ask(1, "Queue.Purge", queue="").name == "Queue.PurgeOk"
    assert wire.ask(1, "Basic.Get", queue="").name == "Basic.GetEmpty"


@pytest.mark.parametrize("name", ["Queue.Bind", "Queue.Delete", "Queue.Purge", "Basic.Get", "Basic.Consume"])
def test_empty_name_without_a_declaration_s064(name: str) -> None:
    assert channel_error(Wire(), method(1, name))[:2] == (404, "NOT_FOUND - no previously declared queue")


# -- consuming and settling -------------------------------------------------------------------------------------------


def test_get(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b"one", raw=properties(message_id="m1")), publish(1, "", "q", b"two"))
    said = wire.ask(1, "Basic.Get", queue="q")
    assert said.fields == {
        "delivery_tag": 1,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "message_count": 1,
    }
    assert (said.body, said.properties.message_id) == (b"one", "m1")
    assert wire.ask(1, "Basic.Get", queue="q", no_ack=True).body == b"two"
    wire.send(method(1, "Basic.Ack", delivery_tag=1))
    assert wire.broker.events[-1] == Acked("/", "q", 2, ((0, 0),))
    assert wire.ask(1, "Basic.Get", queue="q").name == "Basic.GetEmpty"


def test_get_is_answered_before_what_comes_after_it(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b"m"))
    said = wire.send(method(1, "Basic.Get", queue="q"), method(1, "Basic.Qos", prefetch_count=1))
    assert names(said) == ["Basic.GetOk", "Basic.QosOk"]


def test_prefetch_and_acks_in_one_event_a_read(wire: Wire) -> None:
    wire.send(*(publish(1, "", "q", b"m%d" % n) for n in range(6)))
    wire.ask(1, "Basic.Qos", prefetch_count=3)
    said = wire.send(method(1, "Basic.Consume", queue="q", consumer_tag="c"))
    assert [each.fields.get("delivery_tag") for each in said] == [None, 1, 2, 3]
    assert wire.broker.calls[-1] == ("consume", "q", "c", False, False, 3, 0, ())
    acks = [method(1, "Basic.Ack", delivery_tag=tag) for tag in (3, 1)]
    said = wire.send(*acks)
    assert wire.broker.events[-1] == Acked("/", "q", 2, ((0, 0), (2, 2)))
    assert [each.delivery_tag for each in said] == [4, 5]
    wire.send(method(1, "Basic.Ack", delivery_tag=5, multiple=True))
    assert wire.broker.events[-1] == Acked("/", "q", 2, ((1, 1), (3, 4)))


def test_ack_tag_0_multiple_means_all(wire: Wire) -> None:
    wire.send(*(publish(1, "", "q", b"m") for _ in range(3)), method(1, "Basic.Consume", queue="q"))
    wire.send(method(1, "Basic.Ack", delivery_tag=0, multiple=True))
    assert wire.broker.events[-1] == Acked("/", "q", 2, ((0, 2),))
    assert wire.send(method(1, "Basic.Ack", delivery_tag=0, multiple=True)) == []


@pytest.mark.parametrize(
    ("name", "fields", "ids"),
    [
        ("Basic.Ack", {"delivery_tag": 1}, (60, 80)),
        ("Basic.Ack", {"delivery_tag": 9}, (60, 80)),
        ("Basic.Ack", {"delivery_tag": 0}, (60, 80)),
        ("Basic.Ack", {"delivery_tag": 9, "multiple": True}, (60, 80)),
        ("Basic.Ack", {"delivery_tag": 1, "multiple": True}, (60, 80)),
        ("Basic.Nack", {"delivery_tag": 9, "multiple": True, "requeue": True}, (60, 120)),
        ("Basic.Reject", {"delivery_tag": 1}, (60, 90)),
    ],
)
def test_unknown_delivery_tag_s099(wire: Wire, name: str, fields: dict[str, Any], ids: tuple[int, int]) -> None:
    """Tag 1 was acked already; what was settled before the bad one stays settled."""
    wire.send(*(publish(1, "", "q", b"m") for _ in range(3)), method(1, "Basic.Consume", queue="q"))
    frames = method(1, "Basic.Ack", delivery_tag=1), method(1, name, **fields)
    text = f"PRECONDITION_FAILED - unknown delivery tag {fields['delivery_tag']}"
    assert channel_error(wire, *frames) == (406, text, *ids)
    assert Acked("/", "q", 2, ((0, 0),)) in wire.broker.events


def test_nack_reject_recover_events(wire: Wire) -> None:
    wire.send(*(publish(1, "", "q", b"m") for _ in range(8)), method(1, "Basic.Consume", queue="q"))
    wire.send(
        method(1, "Basic.Nack", delivery_tag=2, multiple=True),
        method(1, "Basic.Ack", delivery_tag=3),
        method(1, "Basic.Reject", delivery_tag=4),
        method(1, "Basic.Reject", delivery_tag=5),
    )
    assert wire.broker.events[-3:] == [
        Nacked("/", "q", 2, ((0, 1),), False, "nack"),
        Acked("/", "q", 2, ((2, 2),)),
        Nacked("/", "q", 2, ((3, 4),), False, "reject"),
    ]
    said = wire.send(method(1, "Basic.Nack", delivery_tag=6, requeue=True), method(1, "Basic.Recover", requeue=True))
    assert wire.broker.events[-2:] == [
        Nacked("/", "q", 2, ((5, 5),), True, "nack"),
        Nacked("/", "q", 2, ((6, 7),), True, "recover"),
    ]
    assert [(each.name, each.fields.get("redelivered")) for each in said] == [
        ("Basic.RecoverOk", None),
        *[("Basic.Deliver", True)] * 3,
    ]


def test_requeues_keep_their_order(wire: Wire) -> None:
    """Message ids ascend within an event, so a requeue of an older message begins another event."""
    wire.send(*(publish(1, "", "q", b"m") for _ in range(3)), method(1, "Basic.Consume", queue="q"))
    wire.send(*(method(1, "Basic.Nack", delivery_tag=tag, requeue=True) for tag in (2, 3, 1)))
    nacked = [event.messages for event in wire.broker.events if isinstance(event, Nacked)]
    assert nacked == [((1, 2),), ((0, 0),)]


def test_acks_are_logged_before_a_publish_that_follows(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b"m"), method(1, "Basic.Consume", queue="q"))
    wire.send(method(1, "Basic.Ack", delivery_tag=1), publish(1, "", "q", b"n"))
    assert [type(event).__name__ for event in wire.broker.events[-2:]] == ["Acked", "Published"]


def test_recover_async_is_not_answered(wire: Wire) -> None:
    assert wire.send(method(1, "Basic.RecoverAsync", requeue=True)) == []


def test_cancel_comes_after_the_deliveries_before_it(wire: Wire) -> None:
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="c")
    said = wire.send(publish(1, "", "q", b"m"), method(1, "Basic.Cancel", consumer_tag="c"), publish(1, "", "q", b"n"))
    assert names(said) == ["Basic.Deliver", "Basic.CancelOk"]
    wire.send(method(1, "Basic.Ack", delivery_tag=1))
    assert wire.broker.events[-1] == Acked("/", "q", 2, ((0, 0),))


def test_cancel_of_an_unknown_consumer_is_answered(wire: Wire) -> None:
    assert wire.ask(1, "Basic.Cancel", consumer_tag="nobody").fields == {"consumer_tag": "nobody"}


def test_consumer_cancel_notify_and_acks_of_a_queue_that_is_gone(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b"m"), method(1, "Basic.Consume", queue="q", consumer_tag="c"))
    said = wire.send(method(1, "Queue.Delete", queue="q"))
    assert [(each.name, each.fields) for each in said] == [
        ("Queue.DeleteOk", {"message_count": 0}),
        ("Basic.Cancel", {"consumer_tag": "c", "nowait": True}),
    ]
    before = len(wire.broker.events)
    assert wire.send(method(1, "Basic.Ack", delivery_tag=1)) == []
    assert len(wire.broker.events) == before
    wire.ask(1, "Queue.Declare", queue="q")
    assert wire.ask(1, "Basic.Consume", queue="q", consumer_tag="c").name == "Basic.ConsumeOk"


def test_consumer_tags_s099(wire: Wire) -> None:
    tags = {wire.ask(1, "Basic.Consume", queue="q").consumer_tag for _ in range(3)}
    assert len(tags) == 3
    assert all(tag.startswith("amq.ctag-") and len(tag) == 31 for tag in tags)
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="c")
    found = connection_error(wire, method(1, "Basic.Consume", queue="q", consumer_tag="c"))
    assert found == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'", 60, 20)


def test_global_qos(wire: Wire) -> None:
    """Beside each consumer's own; told when it changes; a basic.qos that is not global lifts it."""
    wire.ask(1, "Basic.Qos", prefetch_count=5, global_=True)
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="c")
    assert wire.broker.calls[-1][5:7] == (0, 5)
    wire.ask(1, "Basic.Qos", prefetch_count=5, global_=True)
    assert wire.broker.calls[-1][0] == "consume"
    wire.ask(1, "Basic.Qos", prefetch_count=6, global_=True)
    assert wire.broker.calls[-1] == ("set_global_prefetch", 1, 6)
    wire.ask(1, "Basic.Qos", prefetch_count=4)
    assert wire.broker.calls[-1] == ("set_global_prefetch", 1, 0)
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="d")
    *_, consumed = wire.broker.calls
    assert consumed[5:7] == (4, 0)
    wire.ask(1, "Basic.Qos", prefetch_count=9, global_=True)
    wire.ask(1, "Basic.Consume", queue="q", consumer_tag="e")
    *_, consumed = wire.broker.calls
    assert consumed[5:7] == (4, 9)


def test_closing_a_channel_settles_and_returns(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b"m"), method(1, "Basic.Consume", queue="q"))
    said = wire.send(method(1, "Basic.Ack", delivery_tag=1), method(1, "Channel.Close", reply_code=200))
    assert names(said) == ["Channel.CloseOk"]
    assert wire.broker.events[-1] == Acked("/", "q", 2, ((0, 0),))
    assert wire.broker.calls[-1] == ("close_channel", 1)
    assert names(wire.send(method(1, "Channel.Open"))) == ["Channel.OpenOk"]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "found"),
    [
        (method(1, "Basic.Qos", prefetch_size=9), (540, "NOT_IMPLEMENTED - prefetch_size!=0 (9)", 60, 10)),
        (method(1, "Basic.Recover"), (540, "NOT_IMPLEMENTED - requeue=false", 60, 110)),
        (method(1, "Basic.RecoverAsync"), (540, "NOT_IMPLEMENTED - requeue=false", 60, 100)),
        (method(1, "Channel.Flow"), (540, "NOT_IMPLEMENTED - active=false", 20, 20)),
        (publish(1, "", "q", b"x", immediate=True), (540, "NOT_IMPLEMENTED - immediate=true", 60, 40)),
        (method(1, "Channel.Open"), (504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10)),
        (method(2, "Basic.Qos"), (504, "CHANNEL_ERROR - expected 'channel.open'", 60, 10)),
        (method(1, "Basic.ConsumeOk"), (503, "COMMAND_INVALID - unimplemented method", 60, 21)),
        (raw_frame(1, 1, b"\x00\x3c\x00\xff"), (503, "COMMAND_INVALID - unknown method 60.255", 60, 255)),
        (raw_frame(1, 1, b"\x00\x32\x00\x0a\x00"), (501, "FRAME_ERROR - cannot decode <<0>>", 50, 10)),
        (raw_frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x09x"), (501, "FRAME_ERROR - cannot decode <<0,0,9,120>>", 60, 40)),
        (
            raw_frame(1, 1, b"\x00\x32\x00\x0a\x00\x00\x01\xff\x00\x00\x00\x00\x00"),
            (501, "FRAME_ERROR - Malformed UTF-8 in shortstr", 50, 10),
        ),
    ],
)
def test_hard_errors_s040_s099(wire: Wire, frame: bytes, found: tuple[int, str, int, int]) -> None:
    assert connection_error(wire, frame) == found


@pytest.mark.parametrize("name", ["Tx.Commit", "Tx.Rollback"])
def test_not_transactional(wire: Wire, name: str) -> None:
    assert channel_error(wire, method(1, name))[:2] == (406, "PRECONDITION_FAILED - channel is not transactional")


def test_tx_on_a_confirming_channel_s099(wire: Wire) -> None:
    wire.ask(1, "Confirm.Select")
    text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
    assert channel_error(wire, method(1, "Tx.Select"))[:2] == (406, text)


EXPECTED_METHOD = "UNEXPECTED_FRAME - expected method frame, got non method frame instead"
EXPECTED_HEADER = "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
PUBLISH = method(1, "Basic.Publish", routing_key="q")


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ((raw_frame(3, 1, b"x"),), (505, EXPECTED_METHOD)),
        ((header_frame(1, 1),), (505, EXPECTED_METHOD)),
        ((raw_frame(3, 7, b"x"),), (505, EXPECTED_METHOD)),
        ((PUBLISH, raw_frame(3, 1, b"x")), (505, EXPECTED_HEADER)),
        ((PUBLISH, method(1, "Basic.Ack", delivery_tag=1)), (505, EXPECTED_HEADER)),
        ((PUBLISH, PUBLISH), (505, EXPECTED_HEADER)),
        (
            (PUBLISH, header_frame(1, 1, class_id=50)),
            (505, "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead"),
        ),
        (
            (PUBLISH, header_frame(1, 1), header_frame(1, 1)),
            (505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead"),
        ),
        (
            (PUBLISH, header_frame(1, 1), method(1, "Basic.Qos")),
            (505, "UNEXPECTED_FRAME - expected content body, got non content body frame instead"),
        ),
        (
            (PUBLISH, header_frame(1, 3), raw_frame(3, 1, b"four")),
            (501, "FRAME_ERROR - content body of 4 bytes where 3 were announced"),
        ),
        ((PUBLISH, header_frame(1, 1, b"\x00")), (501, "FRAME_ERROR - type 2, all octets = ")),
        ((PUBLISH, header_frame(1, 0, b"\x00\x01")), (502, "SYNTAX_ERROR - content properties with unknown flags")),
        ((PUBLISH, header_frame(1, 0, b"\x80\x00\x05ab")), (502, "SYNTAX_ERROR - content properties cut short")),
        ((PUBLISH, header_frame(1, 0, b"\x00\x00ab")), (502, "SYNTAX_ERROR - content properties with bytes left over")),
        ((raw_frame(8, 1, b""),), (505, "UNEXPECTED_FRAME - type 8, all octets = <<>>")),
        ((raw_frame(8, 0, b"x"),), (501, 'FRAME_ERROR - type 8, all octets = <<"x">>: unknown_frame')),
        ((raw_frame(4, 1, b"\x01\x02"),), (501, "FRAME_ERROR - type 4, all octets = <<1,2>>: unknown_frame")),
        ((raw_frame(1, 1, b"ab"),), (501, 'FRAME_ERROR - type 1, all octets = <<"ab">>: unknown_frame')),
        ((raw_frame(3, 0, b"x"),), (505, 'UNEXPECTED_FRAME - type 3, all octets = <<"x">>')),
    ],
)
def test_frames_out_of_place(wire: Wire, frames: tuple[bytes, ...], found: tuple[int, str]) -> None:
    code, text, _, _ = connection_error(wire, *frames)
    assert (code, text[: len(found[1])]) == found


def test_lost_place_in_the_stream(wire: Wire) -> None:
    """A wrong frame end, or a frame over frame_max: 501, and nothing after it is read."""
    bad = raw_frame(3, 1, b"0123456789abcdefgh", end=b"\x00")
    text = 'FRAME_ERROR - type 3, first 16 octets = <<"0123456789abcdef">>: {invalid_frame_end_marker,0}'
    assert connection_error(wire, bad, method(1, "Queue.Declare", queue="later"))[:2] == (501, text)
    assert "later" not in wire.broker.queues
    assert wire.connection.parser.deaf


def test_frame_max_with_rabbitmqs_allowance() -> None:
    """Payloads may have frame_max bytes, 8 more than they should."""
    wire = Wire()
    wire.ask(1, "Queue.Declare", queue="q")
    for size in (131_064, 131_072):
        wire.send(publish(1, "", "q", b"x" * size, piece=200_000))
    assert [len(entry[1].body) for entry in wire.broker.queues["q"].ready] == [131_064, 131_072]
    found = connection_error(wire, publish(1, "", "q", b"x" * 131_073, piece=200_000))
    assert found[:2] == (501, "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,131073,131064}")


def test_defects_of_ours_close_one_connection_with_541(
    wire: Wire, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(wire.broker.queues, "purge", broken)
    code, text, _, _ = connection_error(wire, method(1, "Queue.Purge", queue="q"))
    assert (code, text) == (541, "INTERNAL_ERROR - an error in the broker, see its log")
    assert "ZeroDivisionError" in caplog.text
