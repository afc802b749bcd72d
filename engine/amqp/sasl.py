"""SASL as AMQP clients use it: PLAIN (RFC 4616) and AMQPLAIN (a field table with LOGIN and PASSWORD).

Each function takes the client's response and gives user name and password; MalformedFrame (502) when it is none.
"""

from collections.abc import Callable

from engine.amqp import tables
from engine.errors import MalformedFrame


def plain(response: bytes) -> tuple[str, str]:
    """[authorization id] NUL user NUL password. RabbitMQ wants the authorization id empty."""
    parts = response.split(b"\x00")
    if len(parts) != 3 or parts[0]:
        raise MalformedFrame("response to PLAIN invalid")
    return text(parts[1]), text(parts[2])


def amqplain(response: bytes) -> tuple[str, str]:
    fields = tables.mapping(response)
    user, password = fields.get("LOGIN"), fields.get("PASSWORD")
    if user is None or password is None:
        raise MalformedFrame("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    if not isinstance(user, str) or not isinstance(password, str):
        raise MalformedFrame("AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field")
    return user, password


def text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedFrame("user name and password must be UTF-8") from None


MECHANISMS: dict[str, Callable[[bytes], tuple[str, str]]] = {"PLAIN": plain, "AMQPLAIN": amqplain}
