"""Method frames that are not hot, decoded and encoded by the fields of their method (method_fields.py). Hot methods
never come here (frames.py, consumer.py, confirms.py).

    method = decode(index, payload)      index = class id << 16 | method id; payload without those four bytes
    method.text("queue"), method.flag("durable"), method.number("prefetch_count"), method.table("arguments")
    frame = encode(channel, "Queue.DeclareOk", queue="q", message_count=0, consumer_count=0)
"""

import struct
from typing import Final

from rewindmq.engine.amqp.erlang import erlang_binary
from rewindmq.engine.amqp.method_fields import DEFINITIONS, INDEXES
from rewindmq.engine.errors import CommandInvalid, FrameError, refusal
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import PropertyError
from rewindmq.schemas.values import Argument

FRAME_HEADER: Final = struct.Struct(">BHII")

SIZES: Final = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}


class Method:
    """A decoded method. Tables stay raw until `table` is called."""

    def __init__(self, index: int, name: str, fields: dict[str, int | bool | str | bytes]) -> None:
        self.index = index
        self.name = name
        self.fields = fields

    def text(self, field: str) -> str:
        """Return a short string."""
        value = self.fields[field]
        assert isinstance(value, str)
        return value

    def raw(self, field: str) -> bytes:
        """Return a long string or a table, as bytes."""
        value = self.fields[field]
        assert isinstance(value, bytes)
        return value

    def flag(self, field: str) -> bool:
        """Return a bit."""
        return bool(self.fields[field])

    def number(self, field: str) -> int:
        """Return an integer of any size."""
        value = self.fields[field]
        assert isinstance(value, int)
        return value

    def table(self, field: str) -> tuple[Argument, ...]:
        """Return a table as the arguments of a declaration. MalformedFrame (502), PreconditionFailed (406)."""
        try:
            return tables.arguments(self.raw(field))
        except PropertyError as error:
            raise refusal(error) from None


def decode(index: int, payload: bytes) -> Method:
    """Decode a method frame. CommandInvalid (503): the method does not exist (RabbitMQ drops the socket without a
    word). FrameError (501): fields are cut short, have bytes left over, or a short string is not UTF-8."""
    definition = DEFINITIONS.get(index)
    if definition is None:
        raise CommandInvalid(f"unknown method {index >> 16}.{index & 0xFFFF}")
    name, described = definition
    fields: dict[str, int | bool | str | bytes] = {}
    pos, bit, size = 0, 0, len(payload)
    for field, domain in described:
        if domain == "bit":
            if bit == 8:
                pos, bit = pos + 1, 0
            if pos >= size:
                raise FrameError(f"cannot decode {erlang_binary(payload)}")
            fields[field] = payload[pos] >> bit & 1 == 1
            bit += 1
            continue
        if bit:
            pos, bit = pos + 1, 0
        width = SIZES.get(domain)
        start = pos
        if width is None:
            prefix = 1 if domain == "shortstr" else 4
            start = pos + prefix
            width = int.from_bytes(payload[pos:start], "big")
        pos = start + width
        if pos > size:
            raise FrameError(f"cannot decode {erlang_binary(payload)}")
        value = payload[start:pos]
        fields[field] = _short_text(value) if domain == "shortstr" else _value(domain, value)
    if pos + (bit > 0) != size:
        raise FrameError(f"cannot decode {erlang_binary(payload)}")
    return Method(index, name, fields)


def _value(domain: str, value: bytes) -> int | bytes:
    return value if domain in ("longstr", "table") else int.from_bytes(value, "big")


def _short_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise FrameError("Malformed UTF-8 in shortstr") from None


def encode(channel: int, name: str, **values: int | bool | str | bytes) -> bytes:
    """Return the whole frame of a method. Tables are given raw. Fields left out are empty, 0 or False."""
    index = INDEXES[name]
    parts: list[bytes] = []
    bits, bit = 0, 0
    for field, domain in DEFINITIONS[index][1]:
        value = values.get(field, 0)
        if domain == "bit":
            bits |= bool(value) << bit
            bit += 1
            continue
        if bit:
            parts.append(bytes((bits,)))
            bits, bit = 0, 0
        parts.append(_encode_value(domain, value))
    if bit:
        parts.append(bytes((bits,)))
    payload = b"".join(parts)
    return FRAME_HEADER.pack(1, channel, len(payload) + 4, index) + payload + b"\xce"


def _encode_value(domain: str, value: int | bool | str | bytes) -> bytes:
    width = SIZES.get(domain)
    if width is not None:
        assert isinstance(value, int)
        return value.to_bytes(width, "big")
    data = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""
    if domain == "shortstr":
        return bytes((len(data),)) + data
    return len(data).to_bytes(4, "big") + data


def short_reply_text(text: str) -> str:
    """Return a reply text as a short string: a longer one is cut at 252 bytes and ends in "...", as RabbitMQ's."""
    data = text.encode()
    return text if len(data) <= 255 else data[:252].decode("utf-8", "ignore") + "..."
