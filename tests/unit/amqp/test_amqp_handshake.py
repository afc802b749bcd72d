"""From the protocol header to connection.open-ok, and every way in which it fails."""

import asyncio
from collections.abc import Callable

import pytest

from rewindmq.engine.amqp.connection_state import ConnectionState
from rewindmq.engine.identity.grants import Identity
from rewindmq.schemas.amqp import tables
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import (
    HANDSHAKE,
    HEADER,
    Wire,
    connection_open,
    method,
    publish,
    raw_frame,
    start_ok,
    tune_ok,
)


def test_the_whole_handshake() -> None:
    wire = Wire(opened=False)
    (start,) = wire.send(HEADER)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == "PLAIN AMQPLAIN"
    assert start.server_properties["product"] == "RabbitMQ"  # kombu and others choose what to do by these two
    assert start.server_properties["version"] == "3.13.7"
    assert start.server_properties["information"].startswith("RewindMQ ")
    assert start.server_properties["rewindmq_atomic_commits"] is True
    assert start.server_properties["capabilities"] == {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }
    (tune,) = wire.send(start_ok())
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)
    assert wire.send(tune_ok(heartbeat=7)) == []
    (opened,) = wire.send(connection_open())
    assert opened.name == "Connection.OpenOk"
    assert wire.connection.handshake.heartbeat_seconds == 7
    assert wire.connection.session is not None
    assert wire.connection.session.user == "guest"
    assert wire.connection.handshake.client_properties["product"] == "wire"


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x0a\x00", b"AMQP\x00\x01\x00\x00", b"GET / HT", b"\x00" * 8])
def test_another_protocol_is_answered_with_ours_and_closed(header: bytes) -> None:
    wire = Wire(opened=False)
    wire.connection.receive(header + b"more")
    assert b"".join(wire.connection.take_output()) == HEADER
    assert wire.connection.finished
    assert wire.send(HANDSHAKE) == []


def test_amqplain() -> None:
    wire = Wire(opened=False)
    response = tables.encode({"LOGIN": "guest", "PASSWORD": "guest"})
    said = wire.send(HEADER, method(0, "Connection.StartOk", mechanism="AMQPLAIN", response=response, locale="en_US"))
    assert [each.name for each in said] == ["Connection.Start", "Connection.Tune"]


def closed(wire: Wire, *frames: bytes, state: ConnectionState = ConnectionState.CLOSING) -> tuple[int, str]:
    """Send these frames, and return the code and the text of the connection.close that answers them."""
    last = wire.send(*frames)[-1]
    assert last.name == "Connection.Close"
    assert wire.connection.state is state
    return last.reply_code, last.reply_text


REFUSED = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."


def test_wrong_password_is_told_to_clients_that_ask() -> None:
    assert closed(Wire(opened=False), HEADER, start_ok(password="wrong")) == (403, REFUSED)


def test_the_log_itself_says_why_a_login_was_refused(caplog: pytest.LogCaptureFixture) -> None:
    closed(Wire(opened=False), HEADER, start_ok(password="wrong"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "login of 'guest' refused: " in line
    assert "logfile" not in line


def test_wrong_password_without_the_capability_just_closes() -> None:
    wire = Wire(opened=False)
    said = wire.send(HEADER, start_ok(password="wrong", capabilities={}))
    assert [each.name for each in said] == ["Connection.Start"]
    assert wire.connection.finished


def test_guest_only_from_loopback() -> None:
    assert closed(Wire(opened=False, loopback=False), HEADER, start_ok()) == (403, REFUSED)


@pytest.mark.parametrize(("users", "refused"), [((), False), (("other",), False), (("other", "guest"), True)])
def test_users_who_come_from_loopback_only(users: tuple[str, ...], refused: bool) -> None:
    wire = Wire(DoubleBroker(loopback_users=users), opened=False, loopback=False)
    (said,) = wire.send(HEADER, start_ok())[1:]
    assert said.name == ("Connection.Close" if refused else "Connection.Tune")


def test_unknown_mechanism() -> None:
    frame = method(0, "Connection.StartOk", mechanism="EXTERNAL", locale="en_US")
    assert closed(Wire(opened=False), HEADER, frame) == (
        503,
        "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'",
    )


@pytest.mark.parametrize("response", [b"guest", b"\x00guest", b"x\x00guest\x00guest", b"\x00\xff\x00guest", b""])
def test_bad_plain_response(response: bytes) -> None:
    frame = method(0, "Connection.StartOk", mechanism="PLAIN", response=response, locale="en_US")
    assert closed(Wire(opened=False), HEADER, frame)[0] == 502


@pytest.mark.parametrize("table", [{}, {"LOGIN": "guest"}, {"LOGIN": 1, "PASSWORD": "guest"}])
def test_bad_amqplain_response(table: dict[str, object]) -> None:
    frame = method(0, "Connection.StartOk", mechanism="AMQPLAIN", response=tables.encode(table), locale="en_US")
    assert closed(Wire(opened=False), HEADER, frame)[0] == 502


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"frame_max": 100}, "negotiated frame_max = 100 is lower than the minimum allowed value (4096)"),
        ({"frame_max": 131_073}, "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ({"frame_max": 0}, "negotiated frame_max = 0 is higher than the maximum allowed value (131072)"),
        ({"channel_max": 0}, "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
        ({"channel_max": 2048}, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
    ],
)
def test_tune_ok_out_of_range(values: dict[str, int], text: str) -> None:
    assert closed(Wire(opened=False), HEADER, start_ok(), tune_ok(**values)) == (530, "NOT_ALLOWED - " + text)


def test_unknown_vhost() -> None:
    frames = (HEADER, start_ok(), tune_ok(), connection_open("nowhere"))
    assert closed(Wire(opened=False), *frames) == (530, "NOT_ALLOWED - vhost nowhere not found")


def test_method_in_the_wrong_state() -> None:
    text = "CHANNEL_ERROR - unexpected method in connection state starting"
    assert closed(Wire(opened=False), HEADER, connection_open(), state=ConnectionState.CLOSED) == (504, text)


def test_channel_frame_before_open_is_unexpected() -> None:
    frame = method(1, "Channel.Open")
    text = "UNEXPECTED_FRAME - type 1, all octets = <<0,20,0,10,0>>"
    assert closed(Wire(opened=False), HEADER, start_ok(), frame, state=ConnectionState.CLOSED) == (505, text)


def test_frames_before_the_vhost_is_open_may_have_4096_bytes() -> None:
    code, text = closed(Wire(opened=False), HEADER, start_ok(), tune_ok(), raw_frame(1, 0, b"\x00" * 4097))
    assert (code, text) == (501, "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,4097,4088}")


def test_frames_before_tuning_may_have_4096_bytes() -> None:
    code, text = closed(Wire(opened=False), HEADER, raw_frame(1, 0, b"\x00" * 4097))
    assert (code, text) == (501, "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,4097,4088}")


def test_client_closes() -> None:
    wire = Wire()
    assert wire.ask(0, "Connection.Close", reply_code=200, reply_text="bye").name == "Connection.CloseOk"
    assert wire.connection.finished
    assert ("close_session", 1) in wire.broker.calls


def test_after_close_nothing_but_close_ok_is_listened_to() -> None:
    wire = Wire()
    wire.connection.force_close("shutdown")
    (said,) = wire.read()
    assert (said.reply_code, said.reply_text, said.class_id, said.method_id) == (
        320,
        "CONNECTION_FORCED - shutdown",
        0,
        0,
    )
    assert wire.send(method(1, "Queue.Declare", queue="q"), method(2, "Channel.Open"), raw_frame(8, 0, b"")) == []
    assert wire.broker.queues.by_name == {}
    assert not wire.connection.finished
    assert wire.send(method(0, "Connection.CloseOk")) == []
    assert wire.connection.finished


def test_simultaneous_close() -> None:
    wire = Wire()
    wire.connection.force_close("shutdown")
    wire.read()
    assert wire.ask(0, "Connection.Close", reply_code=200).name == "Connection.CloseOk"
    assert wire.connection.finished


def test_session_can_be_closed_by_the_broker() -> None:
    wire = Wire()
    session = wire.connection.session
    assert session is not None
    assert session.close is not None
    session.close("Closed via management")
    (said,) = wire.read()
    assert said.reply_text == "CONNECTION_FORCED - Closed via management"


def test_channel_max() -> None:
    wire = Wire(opened=False)
    wire.send(HEADER, start_ok(), tune_ok(channel_max=2), connection_open())
    wire.send(*(method(number, "Channel.Open") for number in (5, 9)))
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert closed(wire, method(1, "Channel.Open")) == (530, text)


def test_update_secret() -> None:
    assert Wire().ask(0, "Connection.UpdateSecret", new_secret=b"x", reason="y").name == "Connection.UpdateSecretOk"


def test_heartbeats() -> None:
    """A heartbeat goes out when nothing else did; a peer that is silent for 2.5 intervals is dead."""
    wire = Wire()
    connection = wire.connection
    connection.check_heartbeat(wrote=True)  # what came during the handshake
    assert wire.read_raw() == b""
    assert connection.check_heartbeat(wrote=False)
    assert wire.read_raw() == b"\x08\x00\x00\x00\x00\x00\x00\xce"
    wire.send(raw_frame(8, 0, b""))
    assert [connection.check_heartbeat(True) for _ in range(6)] == [True] * 5 + [False]


def test_blocked_publishers_are_told_once_and_not_read() -> None:
    async def run() -> None:
        broker = DoubleBroker()
        wire, idle = Wire(broker), Wire(broker)
        wire.send(method(1, "Queue.Declare", queue="q"), method(1, "Basic.Publish", routing_key="q"))
        wire.send(b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + b"\x00" * 10 + b"\xce")
        broker.turns.blocked = "low on disk"
        for connection in (wire.connection, idle.connection):
            connection.alarm_changed()
        said = wire.send(publish(1, "", "q", b"x"), publish(1, "", "q", b"y"))
        assert [(each.name, each.fields) for each in said] == [("Connection.Blocked", {"reason": "low on disk"})]
        assert (wire.connection.reads_socket(), idle.connection.reads_socket()) == (False, True)
        assert len(broker.queues["q"].ready) == 1  # what came before
        broker.turns.blocked = None
        for connection in (wire.connection, idle.connection):
            connection.alarm_changed()
        assert [each.name for each in wire.read()] == ["Connection.Unblocked"]
        await asyncio.sleep(0)
        assert len(broker.queues["q"].ready) == 3
        assert wire.connection.reads_socket()
        assert idle.read() == []

    asyncio.run(run())


def waiting_login(ending: Callable[[Wire], object], password: str = "guest") -> Wire:
    """A whole handshake in one read, and `ending` happens while the password is verified."""

    async def whole() -> Wire:
        wire = Wire(opened=False)
        verified = asyncio.Event()
        real = wire.broker.access.control.authenticate

        async def authenticate(user: str, password: str, host: str) -> Identity:
            await verified.wait()
            who: Identity = await real(user, password, host)
            return who

        wire.broker.access.control.authenticate = authenticate
        frames = HEADER + start_ok(password=password) + tune_ok() + connection_open()
        assert [each.name for each in wire.send(frames)] == ["Connection.Start"]
        ending(wire)
        verified.set()
        for _ in range(5):
            await asyncio.sleep(0)
        return wire

    return asyncio.run(whole())


def test_what_comes_while_a_password_is_verified_waits() -> None:
    wire = waiting_login(lambda wire: wire.send(method(1, "Channel.Open")))
    assert [each.name for each in wire.read()] == ["Connection.Tune", "Connection.OpenOk", "Channel.OpenOk"]


def test_a_wrong_password_that_had_to_be_verified() -> None:
    wire = waiting_login(lambda wire: None, password="wrong")
    (close,) = wire.read()
    assert (close.reply_code, close.reply_text) == (403, REFUSED)


def test_a_client_that_goes_while_its_password_is_verified() -> None:
    for password in ("guest", "wrong"):
        wire = waiting_login(lambda wire: wire.connection.lost(), password)
        assert wire.read() == []
        assert (wire.connection.state, wire.connection.session) == (ConnectionState.CLOSED, None)


def test_a_broker_that_stops_while_a_password_is_verified() -> None:
    wire = waiting_login(lambda wire: wire.connection.force_close("shutdown"))
    (close,) = wire.read()
    assert close.reply_code == 320
    assert (wire.connection.state, wire.connection.session) == (ConnectionState.CLOSING, None)
