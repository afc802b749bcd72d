"""Memory under way: the bytes that the broker holds for clients at this moment, counted in one place.

    body         parts of a publish that has not come whole       output   bytes that wait in a socket's write buffer
    transaction  publishes that wait for tx.commit                http     a request's body, an answer being made
    undurable    received, and not durable yet                    past     readers of the past: what they hold here
    unwritten    bodies that RocksDB is to get                 letter   bodies of dead letters on their way
    unacked      bookkeeping of deliveries that are out           connection   connections, channels and consumers

Every part of the broker that holds bytes for a client tells this account when it takes them and when it lets them go.
The last four kinds are not told message by message: `engine/broker/alarms.py` counts them once a second.

    resident at the last look
    |<---- rest ---->|<---- held then ---->|
    |<---- rest ---->|<---- held now ------------->|       used = rest + held now

The kernel is asked once a second how much memory the process has (resident). What clients hold changes faster than
that, so `used_bytes` is that figure with the change of the held bytes since.

Three answers follow:
- Work that can be refused (an HTTP answer, a reader of the past) asks `room` first, and is refused when there is none.
- Publishers are held back at `limit_bytes` (`--vm-memory-high-watermark`), and consumers go on. `on_high` says so.
- At `full`, well above the limit, clients get no new connections, channels, consumers, queues or bindings.
"""

from collections.abc import Callable
from enum import Enum

from rewindmq.engine.errors import ResourceError

REFUSABLE_SHARE = 16  # one part in so many of the limit is for work that asks `room`, also when the rest is used up
LEAST_REFUSABLE_BYTES = 65_536  # it has that much in any case: enough for the request that raises the limit
FULL = 1.5  # times the limit
LEAST_FULL_BYTES = 536_870_912  # a limit that is lower than what the broker needs must not shut clients out


class Kind(Enum):
    """What the bytes are held for. The value is the name in listings and metrics."""

    BODY = "body"
    TRANSACTION = "transaction"
    UNDURABLE = "undurable"
    UNWRITTEN = "unwritten"
    LETTER = "letter"
    UNACKED = "unacked"
    OUTPUT = "output"
    CONNECTION = "connection"
    HTTP = "http"
    PAST = "past"

    __hash__ = object.__hash__  # Enum's own is a Python function; members are equal to themselves only


def do_nothing() -> None:
    """For an account that nobody listens to."""


class MemoryAccount:
    """Bytes under way by kind. One loop, one thread. `on_high` is called when `used_bytes` grows above the limit, once
    until the next `looked`."""

    def __init__(
        self, limit_bytes: int, machine_bytes: int = 1 << 62, on_high: Callable[[], None] = do_nothing
    ) -> None:
        self.limit_bytes = limit_bytes  # of `used_bytes`, above which publishers are held back
        self.machine_bytes = machine_bytes  # what the process may have at most
        self.rest_bytes = 0  # what the process has beside what it holds for clients
        self.held_bytes = 0  # the sum over all kinds
        self.by_kind: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._on_high = on_high
        self._told_high = False

    def take(self, kind: Kind, size: int) -> None:
        """`size` more bytes are held."""
        self.by_kind[kind] += size
        self.held_bytes += size
        if self.rest_bytes + self.held_bytes > self.limit_bytes and not self._told_high:
            self._told_high = True
            self._on_high()

    def give_back(self, kind: Kind, size: int) -> None:
        """`size` bytes that were taken are held no longer."""
        self.by_kind[kind] -= size
        self.held_bytes -= size

    def change(self, kind: Kind, before: int, after: int) -> None:
        """A holder that had taken `before` bytes has `after` now."""
        if after > before:
            self.take(kind, after - before)
        else:
            self.give_back(kind, before - after)

    def room(self, size: int) -> bool:
        """Whether `size` more bytes may be taken by work that can be refused. Above the limit that work still has a
        small share of it: an operator must be able to look."""
        if self.used_bytes + size <= self.limit_bytes:
            return True
        refusable = self.by_kind[Kind.HTTP] + self.by_kind[Kind.PAST]
        return refusable + size <= max(self.limit_bytes // REFUSABLE_SHARE, LEAST_REFUSABLE_BYTES)

    @property
    def used_bytes(self) -> int:
        """Of the process, as far as it is known now."""
        return self.rest_bytes + self.held_bytes

    @property
    def high(self) -> bool:
        return self.used_bytes > self.limit_bytes

    @property
    def full(self) -> bool:
        """What makes the broker larger without a publish is refused, too: half as much again as the limit is used, or
        half of what is between the limit and the machine's end."""
        return self.used_bytes > self.full_bytes

    @property
    def full_bytes(self) -> int:
        half_way = (self.limit_bytes + self.machine_bytes) // 2
        return max(self.limit_bytes, min(half_way, max(int(self.limit_bytes * FULL), LEAST_FULL_BYTES)))

    def check(self) -> None:
        """ResourceError (506) when the broker must not become larger."""
        if self.full:
            raise ResourceError(f"low on memory: {self.used_bytes} bytes are used, the limit is {self.limit_bytes}")

    def looked(self, resident_bytes: int, counted: dict[Kind, int]) -> None:
        """The process has so much memory, and the kinds that are `counted` hold so much. `on_high` may be called
        again."""
        for kind, size in counted.items():
            self.held_bytes += size - self.by_kind[kind]
            self.by_kind[kind] = size
        self.rest_bytes = max(0, resident_bytes - self.held_bytes)
        self._told_high = False
