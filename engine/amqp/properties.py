"""Content properties as raw bytes: what a publish decides by is parsed out, the rest travels untouched.

    flags (2 bytes, the last bit says that more follow) | the values of the flagged properties, in this order:
    15 content_type  14 content_encoding  13 headers (table)  12 delivery_mode  11 priority  10 correlation_id
    9 reply_to  8 expiration  7 message_id  6 timestamp  5 type  4 user_id  3 app_id  2 cluster_id

Equal bytes mean equal properties, so a connection keeps what it parsed (`Parsed`, bounded) and most publishes cost one
dictionary look-up. The bytes of `Parsed` are shared by all messages that have them.
"""

from rewindmq.engine.amqp import tables
from rewindmq.engine.broker import direct_reply
from rewindmq.engine.errors import MalformedFrame, PreconditionFailed

MAX_EXPIRY_MS = 315_360_000_000  # ten years (S-036)

PSEUDO_QUEUE = direct_reply.PSEUDO_QUEUE.encode()
SHORT, TABLE, OCTET, TIMESTAMP = 0, 1, 2, 3
HEADERS, DELIVERY_MODE, PRIORITY, REPLY_TO, EXPIRATION, USER_ID = 13, 12, 11, 9, 8, 4
# (flag bit, kind) in the order of the wire
LAYOUT = (
    (15, SHORT), (14, SHORT), (HEADERS, TABLE), (DELIVERY_MODE, OCTET), (PRIORITY, OCTET), (10, SHORT),
    (REPLY_TO, SHORT), (EXPIRATION, SHORT), (7, SHORT), (6, TIMESTAMP), (5, SHORT), (USER_ID, SHORT), (3, SHORT),
    (2, SHORT),
)  # fmt: skip


class Parsed:
    """Properties that decide something. `headers`: where the headers table's entries lie in `raw` (-1: none)."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.expiration_ms: int | None = None
        self.priority: int | None = None
        self.persistent = False
        self.user_id: str | None = None
        self.direct_reply_at = -1  # where a reply_to lies that is the pseudo queue for direct replies
        self.headers = -1
        self.headers_end = -1
        self.sender_selected = False  # CC or BCC among the headers
        self.subject: str | None = None  # under whose key the body is to be encrypted (engine/erasure/encryption.py)
        self.by_hand = False  # one of these two: not for the short way

    def header_table(self) -> bytes:
        return self.raw[self.headers : self.headers_end] if self.headers >= 0 else b""


def parse(raw: bytes) -> Parsed:
    """MalformedFrame (502) when the bytes are no properties; PreconditionFailed (406) for an expiration that is not a
    number of milliseconds (S-043)."""
    parsed = Parsed(raw)
    size = len(raw)
    if size < 2:
        raise MalformedFrame("content properties cut short")
    flags = raw[0] << 8 | raw[1]
    if flags & 3:
        raise MalformedFrame("content properties with unknown flags")
    pos = 2
    for bit, kind in LAYOUT:
        if not flags >> bit & 1:
            continue
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
            raise MalformedFrame("content properties cut short")
        if bit == DELIVERY_MODE:
            parsed.persistent = raw[start] == 2
        elif bit == HEADERS:
            _look_at_headers(parsed, start, pos)
        elif bit == PRIORITY:
            parsed.priority = raw[start]
        elif bit == EXPIRATION:
            parsed.expiration_ms = expiration(raw[start:pos])
        elif bit == REPLY_TO:
            if raw[start:pos] == PSEUDO_QUEUE:
                parsed.direct_reply_at = start
        elif bit == USER_ID:
            parsed.user_id = raw[start:pos].decode("utf-8", "replace")
    if pos != size:
        raise MalformedFrame("content properties with bytes left over")
    return parsed


def _look_at_headers(parsed: Parsed, start: int, end: int) -> None:
    raw = parsed.raw
    tables.check(raw, start, end)
    parsed.headers = start
    parsed.headers_end = end
    parsed.sender_selected = raw.find(b"\x02CC", start, end) >= 0 or raw.find(b"\x03BCC", start, end) >= 0
    parsed.by_hand = parsed.sender_selected


def expiration(value: bytes) -> int:
    """The property `expiration`: decimal digits, 0 to ten years, else PreconditionFailed with RabbitMQ's reason."""
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
    raise PreconditionFailed(f"invalid expiration '{text}': {why}")


def carbon_copies(parsed: Parsed) -> list[str]:
    """Routing keys out of the headers CC and BCC (sender-selected distribution). PreconditionFailed when one of them is
    not an array."""
    keys: list[str] = []
    entries = tables.parse(parsed.header_table())
    for wanted in ("CC", "BCC"):
        for name, kind, value in entries:
            if name != wanted:
                continue
            if kind != "array":
                raise PreconditionFailed(f'invalid message: {{unacceptable_type_in_header,"{wanted}",{kind}}}')
            assert isinstance(value, list)
            keys += [key for kind, key in value if kind == "longstr" and isinstance(key, str)]
    return keys


def without_header(parsed: Parsed, name: bytes) -> bytes:
    """The properties without one of their headers; a table that is left empty stays."""
    raw = parsed.raw
    pos, end = parsed.headers, parsed.headers_end
    while pos < end:
        after = tables.entry_end(raw, pos, end)
        if raw[pos + 1 : pos + 1 + raw[pos]] == name:
            length = (end - parsed.headers) - (after - pos)
            return raw[: parsed.headers - 4] + length.to_bytes(4, "big") + raw[parsed.headers : pos] + raw[after:]
        pos = after
    return raw


def with_reply_queue(parsed: Parsed, name: str) -> bytes:
    """The properties with the requester's reply queue instead of the pseudo queue (engine/broker/direct_reply.py)."""
    raw, at = parsed.raw, parsed.direct_reply_at
    told = name.encode()
    return raw[: at - 1] + bytes((len(told),)) + told + raw[at + len(PSEUDO_QUEUE) :]


def with_counts(raw: bytes, delivery_count: int, acquired_count: int) -> bytes:
    """The properties with header x-delivery-count (S-157), and of profile rabbitmq-4.3 x-acquired-count; without those
    that are 0."""
    if delivery_count:
        raw = with_long(raw, b"x-delivery-count", delivery_count)
    return with_long(raw, b"x-acquired-count", acquired_count) if acquired_count else raw


def with_long(raw: bytes, name: bytes, value: int) -> bytes:
    """The properties with a header of type long, which replaces one that is there."""
    return with_entry(raw, name, b"l" + value.to_bytes(8, "big"))


def with_entry(raw: bytes, name: bytes, value: bytes) -> bytes:
    """The properties with that header, which replaces one that is there. `value`: as in a table, its type first."""
    before, behind = around(raw, name, value[:1], len(value) - 1)
    return before + value[1:] + behind


def around(raw: bytes, name: bytes, kind: bytes, value_size: int) -> tuple[bytes, bytes]:
    """What stands before and behind the value of that header, in the properties that have it."""
    entry = bytes((len(name),)) + name + kind
    size = len(entry) + value_size
    parsed = parse(raw)
    if parsed.headers < 0:
        flags = (raw[0] | 0x20) << 8 | raw[1]
        at = 2
        for bit in (15, 14):
            if flags >> bit & 1:
                at += 1 + raw[at]
        return flags.to_bytes(2, "big") + raw[2:at] + size.to_bytes(4, "big") + entry, raw[at:]
    raw = without_header(parsed, name)
    start = parsed.headers
    length = int.from_bytes(raw[start - 4 : start], "big")
    end = start + length
    return raw[: start - 4] + (length + size).to_bytes(4, "big") + raw[start:end] + entry, raw[end:]
