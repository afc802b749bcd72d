"""What dying writes into a message's headers: `x-death` and its companions (S-052, S-155; RabbitMQ 3.13's mc.erl
`record_death/4` and mc_amqpl.erl `death_table/7`).

    properties  flags | content-type | content-encoding | headers table | delivery-mode | ... | expiration | ...
    headers     key, type, value; key, type, value; ...

Rules of this file
- Pure: bytes in, bytes out; the time of death is an argument.
- What the client wrote stays byte for byte: entries are cut out, replaced and added, never decoded and encoded again
  (an encoder that picks the smallest integer type would change what a Java consumer reads).
- `x-death` is ordered by recency, one entry for each (queue, reason), counted. `x-first-death-*` never change,
  `x-last-death-*` always do. The expiration is taken away and kept as `original-expiration`.
- A death history that the client sent along counts (3.13), entries that are not such a history are ignored.
- Properties that are not what AMQP says are a ValueError, whatever is wrong with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from pamqp import decode

REJECTED = "rejected"

# Flag bit and kind of each property, in the order on the wire (AMQP 0-9-1 section 4.2.6.1).
_PROPERTIES = (
    (15, "shortstr"), (14, "shortstr"), (13, "table"), (12, "octet"), (11, "octet"), (10, "shortstr"), (9, "shortstr"),
    (8, "shortstr"), (7, "shortstr"), (6, "timestamp"), (5, "shortstr"), (4, "shortstr"), (3, "shortstr"),
    (2, "shortstr"),
)  # fmt: skip
HEADERS, _EXPIRATION = 13, 8
_FIXED_SIZES = {
    "t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "f": 4, "l": 8, "L": 8, "d": 8, "T": 8, "D": 5, "V": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Death:
    """One entry of `x-death`. `time_s`: when it first died so, seconds since the epoch."""

    queue: str
    reason: str
    exchange: str
    routing_keys: tuple[str, ...]
    count: int
    time_s: int
    original_expiration: str | None


@dataclass(frozen=True, slots=True)
class Buried:
    """A dead letter's properties, the keys that it was published with (its own, then those of its CC and BCC headers),
    and its deaths, the latest first."""

    properties: bytes
    routing_keys: tuple[str, ...]
    deaths: tuple[Death, ...]

    def cycles_into(self, queue: str) -> bool:
        """Would it go back into a queue where it died before, and no consumer rejected it since (fully automatic)?"""
        for index, death in enumerate(self.deaths):
            if death.queue == queue:
                return all(each.reason != REJECTED for each in self.deaths[: index + 1])
        return False


@lru_cache(maxsize=64)  # messages that die together are often alike: same properties, same fate, same second
def bury(properties: bytes, queue: str, reason: str, exchange: str, routing_key: str, time_s: int) -> Buried:
    """The properties of a message that was published to `exchange` with `routing_key` and died in `queue`.
    ValueError when the properties are not what AMQP says."""
    fields = split_properties(properties)
    expiration = fields.pop(_EXPIRATION, None)
    original = None if expiration is None else expiration[1:].decode("utf-8", "replace")
    headers = split_table(fields.get(HEADERS, b"\0\0\0\0"))
    history = _history(headers.get("x-death"))
    told = (routing_key, *copies_of(headers.get("CC")))  # of blind copies nobody is told
    death = Death(queue, reason, exchange, told, 1, time_s, original)
    before = next((each for each in history or () if (each.queue, each.reason) == (queue, reason)), None)
    if before is not None:
        death = Death(
            queue, reason, before.exchange, before.routing_keys, before.count + 1, before.time_s,
            before.original_expiration,
        )  # fmt: skip
    deaths = (death, *(each for each in history or () if each is not before))
    headers["x-death"] = array([_table(each) for each in deaths])
    for order in ("last",) if history is not None else ("first", "last"):
        for what, value in (("reason", reason), ("queue", queue), ("exchange", exchange)):
            headers[f"x-{order}-death-{what}"] = longstr(value)
    fields[HEADERS] = join_table(headers)
    return Buried(join_properties(fields), (*told, *copies_of(headers.get("BCC"))), deaths)


def without_blind_copies(properties: bytes) -> bytes:
    """Without the header BCC: as others may see them."""
    if b"\x03BCC" not in properties:
        return properties
    try:
        fields = split_properties(properties)
        headers = split_table(fields[HEADERS])
        del headers["BCC"]
    except (ValueError, KeyError):  # no properties at all, or it is not one of their headers
        return properties
    fields[HEADERS] = join_table(headers)
    return join_properties(fields)


# -- properties and tables, as bytes ----------------------------------------------------------------------------------


def split_properties(properties: bytes) -> dict[int, bytes]:
    """Flag bit -> the property's bytes."""
    if len(properties) < 2:
        raise ValueError(f"properties of {len(properties)} bytes have no flags")
    flags = int.from_bytes(properties[:2], "big")
    position = 2
    fields: dict[int, bytes] = {}
    for bit, kind in _PROPERTIES:
        if flags & 1 << bit:
            if kind == "shortstr":
                end = position + 1 + _byte(properties, position)
            elif kind == "table":
                end = position + 4 + _long(properties, position)
            else:
                end = position + (1 if kind == "octet" else 8)
            fields[bit] = properties[position:end]
            position = end
    if flags & 1 or position != len(properties):
        raise ValueError(f"properties of {len(properties)} bytes end at byte {position}")
    return fields


def join_properties(fields: dict[int, bytes]) -> bytes:
    flags = 0
    parts = [b""]
    for bit, _kind in _PROPERTIES:
        if bit in fields:
            flags |= 1 << bit
            parts.append(fields[bit])
    parts[0] = flags.to_bytes(2, "big")
    return b"".join(parts)


def split_table(table: bytes) -> dict[str, bytes]:
    """Key -> its type and value as bytes. A key that comes twice: the last one."""
    end = 4 + _long(table, 0)
    position = 4
    entries: dict[str, bytes] = {}
    while position < end:
        size = _byte(table, position)
        key = table[position + 1 : position + 1 + size].decode("utf-8", "surrogateescape")
        position += 1 + size
        value_end = position + 1 + _value_size(table, position)
        entries[key] = table[position:value_end]
        position = value_end
    if position != end or end != len(table):
        raise ValueError(f"a table of {len(table)} bytes ends at byte {position}")
    return entries


def join_table(entries: dict[str, bytes]) -> bytes:
    parts = []
    for key, value in entries.items():
        name = key.encode("utf-8", "surrogateescape")
        parts.append(bytes((len(name),)) + name + value)
    content = b"".join(parts)
    return len(content).to_bytes(4, "big") + content


def _value_size(data: bytes, position: int) -> int:
    """Of the value whose type stands at `position`."""
    kind = chr(_byte(data, position))
    if kind in "SxAF":
        return 4 + _long(data, position + 1)
    if kind not in _FIXED_SIZES:
        raise ValueError(f"unknown field type {kind!r} in a table")
    return _FIXED_SIZES[kind]


def _byte(data: bytes, position: int) -> int:
    if position >= len(data):
        raise ValueError("properties end too early")
    return data[position]


def _long(data: bytes, position: int) -> int:
    if position + 4 > len(data):
        raise ValueError("properties end too early")
    return int.from_bytes(data[position : position + 4], "big")


# -- x-death ----------------------------------------------------------------------------------------------------------


def _history(field: bytes | None) -> list[Death] | None:
    """The deaths before, or None when there is no list of them."""
    entries = _items(field)
    if entries is None:
        return None
    deaths = [_death(entry) for entry in entries if isinstance(entry, dict)]
    return [death for death in deaths if death is not None]


def _items(field: bytes | None) -> list[object] | None:
    """Of an array, or None if it is none that can be decoded."""
    if field is None or field[:1] != b"A":
        return None
    try:
        return list(decode.field_array(field[1:])[1])
    except Exception:  # damaged bytes make pamqp fail in many ways
        return None


def copies_of(field: bytes | None) -> list[str]:
    """Sender-selected distribution: further routing keys."""
    return [key for key in _items(field) or () if isinstance(key, str)]


def _death(entry: Mapping[str, object]) -> Death | None:
    queue, reason, exchange = entry.get("queue"), entry.get("reason"), entry.get("exchange")
    keys, count, time = entry.get("routing-keys"), entry.get("count"), entry.get("time")
    if not (isinstance(queue, str) and isinstance(reason, str) and isinstance(exchange, str)):
        return None
    if not (isinstance(keys, list) and isinstance(count, int) and isinstance(time, datetime)):
        return None
    original = entry.get("original-expiration")
    return Death(
        queue, reason, exchange, tuple(str(key) for key in keys), count, int(time.timestamp()),
        original if isinstance(original, str) else None,
    )  # fmt: skip


def _table(death: Death) -> bytes:
    entries = {
        "count": b"l" + death.count.to_bytes(8, "big", signed=True),
        "reason": longstr(death.reason),
        "queue": longstr(death.queue),
        "time": b"T" + death.time_s.to_bytes(8, "big"),
        "exchange": longstr(death.exchange),
        "routing-keys": array([longstr(key) for key in death.routing_keys]),
    }
    if death.original_expiration is not None:
        entries["original-expiration"] = longstr(death.original_expiration)
    return b"F" + join_table(entries)


def longstr(value: str) -> bytes:
    raw = value.encode()
    return b"S" + len(raw).to_bytes(4, "big") + raw


def array(items: list[bytes]) -> bytes:
    content = b"".join(items)
    return b"A" + len(content).to_bytes(4, "big") + content
