"""The part of a message that routing looks at besides the routing key: its properties and headers."""

from functools import cached_property
from typing import Final

from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Malformed
from rewindmq.schemas.amqp.properties import headers_of, values

MAX_DELAY_MS: Final = 4_294_967_295  # the longest time of an Erlang timer, and so the plugin's longest delay
INTEGERS: Final = ("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint")


class Content:
    """A message's properties, read as far as routing asks. Raises Malformed if a header can't be read."""

    def __init__(self, properties: bytes) -> None:
        self.raw = properties

    @cached_property
    def entries(self) -> list[tables.Entry]:
        return headers_of(self.raw)

    @cached_property
    def headers(self) -> dict[str, object]:
        return {name: tables.untyped(kind, value) for name, kind, value in self.entries}

    def property(self, name: str) -> str | None:
        """Return a basic property as text; None if the message has none."""
        value = values(self.raw).get(name)
        if value is None:
            return None
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    @cached_property
    def delay_ms(self) -> int | None:
        """The delay in the header x-delay; None if there is none.

        The header is a number, or text that is one (rabbit_delayed_message_utils.erl `get_delay/1`)."""
        for name, kind, value in self.entries:
            if name == "x-delay":
                delay = _whole(kind, value)
                return delay if delay is not None and 0 < delay <= MAX_DELAY_MS else None
        return None


def _whole(kind: str, value: object) -> int | None:
    if kind in INTEGERS and isinstance(value, int):
        return value
    if kind in ("float", "double") and isinstance(value, float) and abs(value) <= MAX_DELAY_MS:
        return int(value)
    if kind in ("longstr", "binary") and isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        return whole_number(text)
    return None


def whole_number(text: str) -> int | None:
    """Return a whole number in decimal digits, as Erlang's `list_to_integer/1` reads one; else None."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


NO_CONTENT: Final = Content(b"\0\0")  # of a message that is routed by its routing key alone


def readable(properties: bytes) -> Content:
    """Return the content of a message in the log; no content if its properties are damaged, as it is forwarded even
    then."""
    content = Content(properties)
    try:
        content.headers  # noqa: B018  reads them
    except Malformed:
        return NO_CONTENT
    return content
