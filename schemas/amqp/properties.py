"""A message's properties, as in a content header (AMQP 0-9-1, 4.2.6.1) and in the log.

The few properties that have an effect are parsed. The bytes are passed on unchanged.

    flags, 2 bytes (the two lowest are never set) | the values of the flagged properties, in the order of LAYOUT

Equal bytes mean equal properties, so a channel remembers parsed ones, and most publishes cost one dictionary look-up.
Messages with the same properties share the bytes in `ParsedProperties`.

    parse       judges the properties of a client's publish, and reads those with an effect
    problem     judges the properties of a record that a service itself appended to the log
    split/join  take properties apart by flag bit, each value unchanged, and put them together
    values      the properties by name, for people and for programs
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Malformed, Unacceptable

MAX_EXPIRY_MS: Final = 315_360_000_000  # ten years (S-036)
# A header frame of the usual size (131,072), without its own 8 and 12 bytes: no more can be sent to a consumer.
MAX_PROPERTIES_BYTES: Final = 131_052

SHORT: Final = 0
TABLE: Final = 1
OCTET: Final = 2
TIMESTAMP: Final = 3
# The flag bits, from the highest down.
CONTENT_TYPE: Final = 15
CONTENT_ENCODING: Final = 14
HEADERS: Final = 13
DELIVERY_MODE: Final = 12
PRIORITY: Final = 11
CORRELATION_ID: Final = 10
REPLY_TO: Final = 9
EXPIRATION: Final = 8
MESSAGE_ID: Final = 7
TIME: Final = 6
TYPE: Final = 5
USER_ID: Final = 4
APP_ID: Final = 3
CLUSTER_ID: Final = 2
# (flag bit, RabbitMQ's name, kind) in the order of the wire
LAYOUT: Final = (
    (CONTENT_TYPE, "content_type", SHORT),
    (CONTENT_ENCODING, "content_encoding", SHORT),
    (HEADERS, "headers", TABLE),
    (DELIVERY_MODE, "delivery_mode", OCTET),
    (PRIORITY, "priority", OCTET),
    (CORRELATION_ID, "correlation_id", SHORT),
    (REPLY_TO, "reply_to", SHORT),
    (EXPIRATION, "expiration", SHORT),
    (MESSAGE_ID, "message_id", SHORT),
    (TIME, "timestamp", TIMESTAMP),
    (TYPE, "type", SHORT),
    (USER_ID, "user_id", SHORT),
    (APP_ID, "app_id", SHORT),
    (CLUSTER_ID, "cluster_id", SHORT),
)
NAMES: Final = {bit: name for bit, name, _ in LAYOUT}
KINDS: Final = {bit: kind for bit, _, kind in LAYOUT}
PREFIXES: Final = (1, 4, 0, 0)  # bytes before the value, by kind: its length
WIDTHS: Final = {OCTET: 1, TIMESTAMP: 8}


class ParsedProperties:
    """The properties that have an effect.

    `headers`: position of the headers table's entries in `raw` (-1: none). `reply_to_at`: position of `reply_to`."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.expiration_ms: int | None = None
        self.priority: int | None = None
        self.persistent = False
        self.user_id: str | None = None
        self.reply_to: bytes | None = None
        self.reply_to_at = -1
        self.headers = -1
        self.headers_end = -1
        self.sender_selected = False  # CC or BCC among the headers

    def header_table(self) -> bytes:
        """Return the entries of the headers table."""
        return self.raw[self.headers : self.headers_end] if self.headers >= 0 else b""


# -- reading ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _flagged(flags: int) -> tuple[tuple[int, int], ...]:
    """Return (flag bit, kind) of each property in the flags."""
    return tuple((bit, kind) for bit, _, kind in LAYOUT if flags >> bit & 1)


def walk(raw: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """Find the values: (flag bit, start, end) of each, without its length, and the end of the last one.

    That end is len(raw) if the bytes are properties, and 0 if there are unknown flags. A value that extends past the
    bytes is left out."""
    size = len(raw)
    found: list[tuple[int, int, int]] = []
    if size < 2:
        return found, 2
    flags = raw[0] << 8 | raw[1]
    if flags & 3:
        return found, 0
    pos = 2
    for bit, kind in _flagged(flags):
        start = pos
        if kind == SHORT:
            start = pos + 1
            pos = start + raw[pos] if pos < size else size + 1
        elif kind == TABLE:
            start = pos + 4
            pos = start + int.from_bytes(raw[pos:start], "big")
        else:
            pos += 1 if kind == OCTET else 8
        if pos > size:
            break
        found.append((bit, start, pos))
    return found, pos


def require_whole(raw: bytes, end: int) -> None:
    """Raise Malformed unless `walk` reached the end of the bytes."""
    if end == len(raw):
        return
    if end == 0:
        raise Malformed("content properties with unknown flags")
    raise Malformed("content properties cut short" if end > len(raw) else "content properties with bytes left over")


def problem(raw: bytes) -> str:
    """Return the fault in properties that a service itself appended, in words for people; "" if there is none.

    A channel judges the properties that its client publishes, but services' records pass no channel. A consumer that
    gets damaged properties loses its connection again and again, because the message returns to its queue each time."""
    size = len(raw)
    if size < 2 or size > MAX_PROPERTIES_BYTES:
        return f"{size} bytes of properties; they are 2 to {MAX_PROPERTIES_BYTES}"
    found, end = walk(raw)
    for bit, start, stop in found:
        if bit == HEADERS:
            try:
                tables.check(raw, start, stop, names=True)
            except Malformed:
                return "headers that are no table"
    if end == size:
        return ""
    if end == 0:
        return "properties with unknown flags"
    return "properties cut short" if end > size else f"properties with {size - end} bytes left over"


def parse(raw: bytes) -> ParsedProperties:
    """Read the properties that have an effect. A header x-restored is removed, because no client may set it.

    Raises Malformed if the bytes are not properties, and Unacceptable if the expiration is not a number of milliseconds
    (S-043)."""
    raw = without_restored(raw)
    parsed = ParsedProperties(raw)
    found, last = walk(raw)
    for bit, start, end in found:
        if bit == DELIVERY_MODE:
            parsed.persistent = raw[start] == 2
        elif bit == HEADERS:
            _read_headers(parsed, start, end)
        elif bit == PRIORITY:
            parsed.priority = raw[start]
        elif bit == EXPIRATION:
            parsed.expiration_ms = expiration(raw[start:end])
        elif bit == REPLY_TO:
            parsed.reply_to = raw[start:end]
            parsed.reply_to_at = start
        elif bit == USER_ID:
            parsed.user_id = raw[start:end].decode("utf-8", "replace")
    if last != len(raw):
        require_whole(raw, last)
    return parsed


def _read_headers(parsed: ParsedProperties, start: int, end: int) -> None:
    raw = parsed.raw
    tables.check(raw, start, end)
    parsed.headers = start
    parsed.headers_end = end
    parsed.sender_selected = raw.find(b"\x02CC", start, end) >= 0 or raw.find(b"\x03BCC", start, end) >= 0


def expiration(value: bytes) -> int:
    """Return the property `expiration` in milliseconds: decimal digits, 0 to ten years.

    Raises Unacceptable for any other value, with RabbitMQ's reason."""
    text = value.decode("utf-8", "replace")
    digits = text[1:] if text[:1] in ("+", "-") else text
    count = 0
    while count < len(digits) and digits[count] in "0123456789":
        count += 1
    if count == 0:
        why = "no_integer"
    elif count < len(digits):
        why = f'{{leftover_string,"{digits[count:]}"}}'
    else:
        number = int(text)
        if 0 <= number <= MAX_EXPIRY_MS:
            return number
        why = f"{{value_negative,{number}}}" if number < 0 else f"{{value_too_large,{number}}}"
    raise Unacceptable(f"invalid expiration '{text}': {why}")


def values(raw: bytes) -> dict[str, int | bytes]:
    """Return the properties by name. Raises Malformed.

    An octet or a timestamp is a number, a short string its bytes, the headers the bytes of their table's entries."""
    found, end = walk(raw)
    require_whole(raw, end)
    return {
        NAMES[bit]: raw[start:stop] if KINDS[bit] in (SHORT, TABLE) else int.from_bytes(raw[start:stop], "big")
        for bit, start, stop in found
    }


def headers_of(raw: bytes) -> list[tables.Entry]:
    """Return the headers, with the types of their values. Raises Malformed."""
    table = values(raw).get("headers", b"")
    assert isinstance(table, bytes)
    return tables.parse(table)


# -- taken apart and put together -------------------------------------------------------------------------------------


def split(raw: bytes) -> dict[int, bytes]:
    """Return each property's bytes, with their length if the wire has it, by flag bit. Raises Malformed."""
    found, end = walk(raw)
    require_whole(raw, end)
    return {bit: raw[start - PREFIXES[KINDS[bit]] : stop] for bit, start, stop in found}


def join(fields: Mapping[int, bytes]) -> bytes:
    """Return properties from their parts, as returned by `split`."""
    flags = 0
    parts = [b""]
    for bit, _, _ in LAYOUT:
        if bit in fields:
            flags |= 1 << bit
            parts.append(fields[bit])
    parts[0] = flags.to_bytes(2, "big")
    return b"".join(parts)


def join_by_name(fields: Mapping[str, bytes | None]) -> bytes:
    """Return properties from their parts by RabbitMQ's names, as `join` does. None is left out."""
    return join({bit: value for bit, name, _ in LAYOUT if (value := fields.get(name)) is not None})


def split_headers(fields: Mapping[int, bytes]) -> dict[str, bytes]:
    """Return the headers by name (tables.py `split`), from the parts of `split`. Empty without headers."""
    return tables.split(fields[HEADERS][4:]) if HEADERS in fields else {}


def join_headers(headers: Mapping[str, bytes]) -> bytes:
    """Return the property `headers`, for `join`."""
    return tables.with_length(tables.join(headers))


# -- sender-selected distribution -------------------------------------------------------------------------------------


def carbon_copies(parsed: ParsedProperties) -> list[str]:
    """Return the routing keys in the headers CC and BCC of a client's publish.

    Raises Unacceptable if one of the two is not an array."""
    keys: list[str] = []
    entries = tables.parse(parsed.header_table())
    for wanted in ("CC", "BCC"):
        for name, kind, value in entries:
            if name != wanted:
                continue
            if kind != "array":
                raise Unacceptable(f'invalid message: {{unacceptable_type_in_header,"{wanted}",{kind}}}')
            assert isinstance(value, list)
            keys += _keys(value)
    return keys


def copies_of(header: bytes | None) -> list[str]:
    """Return the routing keys in one of these headers, from `split_headers`. Empty if it cannot be read."""
    return _keys(tables.array_items(header) or [])


def _keys(items: list[tables.Typed]) -> list[str]:
    return [key for kind, key in items if kind == "longstr" and isinstance(key, str)]


def without_blind_copies(raw: bytes) -> bytes:
    """Return the properties without the header BCC, which consumers do not see."""
    return _without_header(raw, "BCC") if b"\x03BCC" in raw else raw


def without_restored(raw: bytes) -> bytes:
    """Return the properties without the header x-restored, which only a restoration sets."""
    return _without_header(raw, "x-restored") if b"\x0ax-restored" in raw else raw


def without_other_user(raw: bytes, user: str) -> bytes:
    """Return the properties without the property user_id, unless it names this user."""
    try:
        fields = split(raw)
    except Malformed:
        return raw
    if fields[USER_ID][1:] == user.encode():
        return raw
    del fields[USER_ID]
    return join(fields)


def _without_header(raw: bytes, name: str) -> bytes:
    try:
        fields = split(raw)
        headers = split_headers(fields)
        del headers[name]
    except (Malformed, KeyError):  # not properties, or it is not one of their headers
        return raw
    return join(fields | {HEADERS: join_headers(headers)})


# -- one property or header inserted -----------------------------------------------------------------------------------


def with_reply_to(parsed: ParsedProperties, name: str) -> bytes:
    """Return the properties with this `reply_to` instead of their own."""
    assert parsed.reply_to is not None
    raw, at = parsed.raw, parsed.reply_to_at
    value = name.encode()
    return raw[: at - 1] + bytes((len(value),)) + value + raw[at + len(parsed.reply_to) :]


def with_long(raw: bytes, name: bytes, value: int) -> bytes:
    """Return the properties with a header of type long, which replaces an existing one."""
    return with_entry(raw, name, b"l" + value.to_bytes(8, "big"))


def with_entry(raw: bytes, name: bytes, value: bytes) -> bytes:
    """Return the properties with this header, which replaces one of its name. `value`: its type first."""
    before, behind = around(raw, name, value[:1], len(value) - 1)
    return before + value[1:] + behind


def around(raw: bytes, name: bytes, kind: bytes, value_size: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the value of a header, in the properties that have it. Raises Malformed."""
    entry = bytes((len(name),)) + name + kind
    size = len(entry) + value_size
    found, last = walk(raw)
    require_whole(raw, last)
    at = 2  # where the headers belong if there are none yet
    for bit, start, end in found:
        if bit == HEADERS:
            entries = _without_entry(raw, start, end, name)
            length = (len(entries) + size).to_bytes(4, "big")
            return raw[: start - 4] + length + entries + entry, raw[end:]
        if bit > HEADERS:
            at = end
    flags = (raw[0] | 0x20) << 8 | raw[1]
    return flags.to_bytes(2, "big") + raw[2:at] + size.to_bytes(4, "big") + entry, raw[at:]


def _without_entry(raw: bytes, start: int, end: int, name: bytes) -> bytes:
    """Return the table's entries without the first one of that name."""
    pos = start
    while pos < end:
        after = tables.entry_end(raw, pos, end)
        if raw[pos + 1 : pos + 1 + raw[pos]] == name:
            return raw[start:pos] + raw[after:end]
        pos = after
    return raw[start:end]
