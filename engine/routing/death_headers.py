"""The headers of a dead letter: `x-death` and its companions (S-052, S-155).

They are those of RabbitMQ 3.13 (mc.erl `record_death/4`, mc_amqpl.erl `death_table/7`).

    properties  flags | content-type | content-encoding | headers table | delivery-mode | ... | expiration | ...
    headers     key, type, value; key, type, value; ...

Rules of this file
- Pure: bytes in, bytes out; the time of death is an argument.
- The client's own headers stay byte for byte: entries are cut out, replaced and added, never decoded and encoded again
  (an encoder that picks the smallest integer type would change the type that a Java consumer reads).
- `x-death` is ordered by recency, one entry for each (queue, reason), counted. `x-first-death-*` never change,
  `x-last-death-*` always do. The expiration is taken away and kept as `original-expiration`.
- A death history that the client sent along counts (3.13), entries that are not such a history are ignored.
- Any error in the properties is a ValueError.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.properties import EXPIRATION, HEADERS, copies_of, join, join_headers, split, split_headers

REJECTED: Final = "rejected"
MOST_COUNTED: Final = 2**63 - 1  # deaths: one more must fit into a `long`
YEAR_2106: Final = 0xFFFF_FFFF  # in seconds; some clients send milliseconds: a later time is read as milliseconds
YEAR_10000_MS: Final = 253_402_300_800_000


@dataclass(frozen=True, slots=True)
class Death:
    """One entry of `x-death`. `time_s`: the time of the first such death, seconds since the epoch."""

    queue: str
    reason: str
    exchange: str
    routing_keys: tuple[str, ...]
    count: int
    time_s: int
    original_expiration: str | None


@dataclass(frozen=True, slots=True)
class Buried:
    """A dead letter's properties, keys and deaths.

    The keys are those that it was published with: its own, then those of its CC and BCC headers. The deaths are in
    order, the latest first."""

    properties: bytes
    routing_keys: tuple[str, ...]
    deaths: tuple[Death, ...]

    def cycles_into(self, queue: str) -> bool:
        """Return True if the letter died in this queue before, and no consumer has rejected it since."""
        for index, death in enumerate(self.deaths):
            if death.queue == queue:
                return all(each.reason != REJECTED for each in self.deaths[: index + 1])
        return False


@lru_cache(maxsize=64)  # messages that die together are often alike: same properties, same fate, same second
def with_death(properties: bytes, queue: str, reason: str, exchange: str, routing_key: str, time_s: int) -> Buried:
    """Return the properties of a message that was published to `exchange` with `routing_key` and died in `queue`.

    Raises ValueError if the properties are not valid AMQP."""
    fields = split(properties)
    expiration = fields.pop(EXPIRATION, None)
    original = None if expiration is None else expiration[1:].decode("utf-8", "replace")
    headers = split_headers(fields)
    history = _history(headers.get("x-death"))
    keys = (routing_key, *copies_of(headers.get("CC")))  # without the blind copies
    death = Death(queue, reason, exchange, keys, 1, time_s, original)
    before = next((each for each in history or () if (each.queue, each.reason) == (queue, reason)), None)
    if before is not None:
        death = Death(
            queue,
            reason,
            before.exchange,
            before.routing_keys,
            before.count + 1,
            before.time_s,
            before.original_expiration,
        )
    deaths = (death, *(each for each in history or () if each is not before))
    headers["x-death"] = tables.array([_table(each) for each in deaths])
    for order in ("last",) if history is not None else ("first", "last"):
        for what, value in (("reason", reason), ("queue", queue), ("exchange", exchange)):
            headers[f"x-{order}-death-{what}"] = tables.longstr(value)
    fields[HEADERS] = join_headers(headers)
    return Buried(join(fields), (*keys, *copies_of(headers.get("BCC"))), deaths)


# -- x-death ----------------------------------------------------------------------------------------------------------


def _history(field: bytes | None) -> list[Death] | None:
    """Return the earlier deaths; None if the headers have no list of them."""
    items = tables.array_items(field)
    if items is None:
        return None
    deaths = [_death(cast(list[tables.Entry], value)) for kind, value in items if kind == "table"]
    return [death for death in deaths if death is not None]


def _death(entries: list[tables.Entry]) -> Death | None:
    types = {name: kind for name, kind, _ in entries}
    entry = {name: tables.untyped(kind, value) for name, kind, value in entries}
    queue, reason, exchange = entry.get("queue"), entry.get("reason"), entry.get("exchange")
    keys, count, time = entry.get("routing-keys"), entry.get("count"), entry.get("time")
    if not (isinstance(queue, str) and isinstance(reason, str) and isinstance(exchange, str)):
        return None
    if not (isinstance(keys, list) and isinstance(count, int) and isinstance(time, int)):
        return None
    if types["count"] == "timestamp" or count >= MOST_COUNTED or types["time"] != "timestamp" or time >= YEAR_10000_MS:
        return None
    original = entry.get("original-expiration")
    return Death(
        queue,
        reason,
        exchange,
        tuple(str(key) for key in keys),
        count,
        time if time <= YEAR_2106 else time // 1000,
        original if isinstance(original, str) else None,
    )


def _table(death: Death) -> bytes:
    entries = {
        "count": b"l" + death.count.to_bytes(8, "big", signed=True),
        "reason": tables.longstr(death.reason),
        "queue": tables.longstr(death.queue),
        "time": b"T" + death.time_s.to_bytes(8, "big"),
        "exchange": tables.longstr(death.exchange),
        "routing-keys": tables.array([tables.longstr(key) for key in death.routing_keys]),
    }
    if death.original_expiration is not None:
        entries["original-expiration"] = tables.longstr(death.original_expiration)
    return b"F" + join_headers(entries)
