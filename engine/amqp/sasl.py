"""SASL as AMQP clients use it: PLAIN (RFC 4616), AMQPLAIN (a field table with LOGIN and PASSWORD), and EXTERNAL (the
client's certificate, where the TLS listener allows that).

A client's response becomes a `SaslLogin`. MalformedFrame (502): it is none.
"""

from dataclasses import dataclass

from rewindmq.engine.errors import MalformedFrame, refusal
from rewindmq.engine.tls import TlsPeer
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import PropertyError


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """A user name and a password. `password` None: the client has shown a certificate instead."""

    user: str
    password: str | None


def offered(tls: TlsPeer | None) -> tuple[str, ...]:
    """Return the mechanisms that a client may choose from."""
    return ("PLAIN", "AMQPLAIN", "EXTERNAL") if tls is not None and tls.external else ("PLAIN", "AMQPLAIN")


def decode(mechanism: str, response: bytes, tls: TlsPeer | None) -> SaslLogin:
    """Return the login in a response to one of the offered mechanisms."""
    if mechanism == "EXTERNAL":
        return SaslLogin("" if tls is None or tls.user is None else tls.user, None)
    return plain(response) if mechanism == "PLAIN" else amqplain(response)


def plain(response: bytes) -> SaslLogin:
    """Return the login in a response to PLAIN: [authorization id] NUL user NUL password.

    RabbitMQ wants the id empty."""
    parts = response.split(b"\x00")
    if len(parts) != 3 or parts[0]:
        raise MalformedFrame("response to PLAIN invalid")
    return SaslLogin(text(parts[1]), text(parts[2]))


def amqplain(response: bytes) -> SaslLogin:
    """Return the login in a response to AMQPLAIN."""
    try:
        fields = tables.mapping(response)
    except PropertyError as error:
        raise refusal(error) from None
    user, password = fields.get("LOGIN"), fields.get("PASSWORD")
    if user is None or password is None:
        raise MalformedFrame("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    if not isinstance(user, str) or not isinstance(password, str):
        raise MalformedFrame("AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field")
    return SaslLogin(user, password)


def text(value: bytes) -> str:
    """UTF-8 as text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedFrame("user name and password must be UTF-8") from None
