"""A client for tests without sockets: frames in, the connection's answers out, read by pamqp (not by our own code)."""

from typing import Any

from pamqp import base, body, commands, frame, header

from rewindmq.engine.amqp import methods
from rewindmq.engine.amqp.connection import Connection
from rewindmq.schemas.amqp import tables
from tests.support.amqp_double import DoubleBroker

HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {"consumer_cancel_notify": True, "connection.blocked": True, "authentication_failure_close": True}


def method(channel: int, name: str, **values: Any) -> bytes:
    if isinstance(values.get("arguments"), dict):
        values["arguments"] = tables.encode(values["arguments"])
    return methods.encode(channel, name, **values)


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + end


def properties(**values: Any) -> bytes:
    return commands.Basic.Properties(**values).marshal()


def header_frame(channel: int, size: int, raw: bytes = b"\x00\x00", class_id: int = 60) -> bytes:
    payload = class_id.to_bytes(2, "big") + b"\x00\x00" + size.to_bytes(8, "big") + raw
    return raw_frame(2, channel, payload)


def publish(
    channel: int,
    exchange: str,
    key: str,
    content: bytes,
    mandatory: bool = False,
    immediate: bool = False,
    raw: bytes = b"\x00\x00",
    piece: int = 100_000,
) -> bytes:
    name = "Basic.Publish"
    frames = method(channel, name, exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate)
    frames += header_frame(channel, len(content), raw)
    for start in range(0, len(content), piece):
        frames += raw_frame(3, channel, content[start : start + piece])
    return frames


def start_ok(user: str = "guest", password: str = "guest", capabilities: dict[str, object] | None = None) -> bytes:
    announced = CAPABILITIES if capabilities is None else capabilities
    client = tables.encode({"product": "wire", "capabilities": dict(announced)})
    response = f"\x00{user}\x00{password}".encode()
    return method(0, "Connection.StartOk", client_properties=client, mechanism="PLAIN", response=response, locale="en")


def tune_ok(channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 60) -> bytes:
    return method(0, "Connection.TuneOk", channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)


def connection_open(vhost: str = "/") -> bytes:
    return method(0, "Connection.Open", virtual_host=vhost)


HANDSHAKE = HEADER + start_ok() + tune_ok() + connection_open()


class Said:
    """One answer of the connection: a method, with its content if it has one."""

    def __init__(self, channel: int, name: str, fields: dict[str, Any]) -> None:
        self.channel, self.name, self.fields = channel, name, fields
        self.properties: Any = None
        self.body: bytes | None = None

    def __getattr__(self, field: str) -> Any:
        return self.fields[field]

    def __repr__(self) -> str:
        return f"{self.channel}:{self.name}{self.fields}" + ("" if self.body is None else f" {self.body!r}")


def decoded(data: bytes) -> list[Said]:
    said: list[Said] = []
    while data:
        used, channel, got = frame.unmarshal(data)
        data = data[used:]
        if isinstance(got, header.ContentHeader):
            said[-1].properties, said[-1].body = got.properties, b""
        elif isinstance(got, body.ContentBody):
            assert said[-1].body is not None, "a body without its header"
            said[-1].body += got.value
        else:
            fields = dict(got) if isinstance(got, base.Frame) and len(got.__slots__) else {}
            said.append(Said(channel, got.name, fields))
    return said


class IdleSocket:
    """The socket of a connection whose output a test takes itself. It counts the calls."""

    def __init__(self) -> None:
        self.woken = 0
        self.reading_changes = 0

    def wake(self) -> None:
        self.woken += 1

    def reading_changed(self) -> None:
        self.reading_changes += 1

    def admit(self) -> None:
        """Admit everybody."""

    def opened(self) -> None:
        """Check no heartbeats: there are none."""


class Wire:
    """A connection with a broker double behind it. `opened`: the handshake is done and channel 1 is open."""

    def __init__(self, broker: DoubleBroker | None = None, opened: bool = True, loopback: bool = True) -> None:
        self.broker = broker or DoubleBroker()
        self.socket = IdleSocket()
        self.connection = Connection(self.broker, "127.0.0.1:1", loopback, self.socket)  # type: ignore[arg-type]  # a double
        if opened:
            self.send(HANDSHAKE, method(1, "Channel.Open"))

    def send(self, *frames: bytes) -> list[Said]:
        """Send the bytes as one socket read. Returns the answers."""
        self.connection.receive(b"".join(frames))
        self.broker.turns.end()
        return self.read()

    def push(self, *frames: bytes) -> int:
        """Send as `send`, but only count the bytes of the answers."""
        self.connection.receive(b"".join(frames))
        self.broker.turns.end()
        return len(self.read_raw())

    def read(self) -> list[Said]:
        return decoded(self.read_raw())

    def read_raw(self) -> bytes:
        data = b""
        while True:
            data += b"".join(self.connection.take_output())
            if not self.connection.grant_credit():
                return data
            self.broker.turns.end()

    def ask(self, channel: int, name: str, **values: Any) -> Said:
        """Call a method that has exactly one answer."""
        said = self.send(method(channel, name, **values))
        assert len(said) == 1, said
        return said[0]
