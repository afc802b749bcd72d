"""Counts the bytes that the broker holds for clients at this moment, in one place.

    body         parts of a publish that is not complete          output   bytes that wait in a socket's write buffer
    transaction  publishes that wait for tx.commit                http     a request's body, an answer being made
    undurable    received, and not durable yet                    past     messages that readers of the past hold here
    unwritten    bodies that RocksDB will get                     letter   bodies of dead letters on their way
    unacked      bookkeeping of unacked deliveries                connection   connections, channels and consumers

A part of the broker that holds bytes for a client tells this account when it takes them and when it lets them go.
Four kinds have no such calls: `engine/broker/alarms.py` counts them once a second.

    resident at the last look
    |<---- rest ---->|<---- held then ---->|
    |<---- rest ---->|<---- held now ------------->|       used = rest + held now

Once a second the broker asks the kernel how much memory the process has (resident). The held bytes change faster, so
`used_bytes` is the kernel's figure plus the change of the held bytes since then.

Three answers follow:
- Work that can be refused (an HTTP answer, a reader of the past) asks `room` first. Without room it is refused.
- At `limit_bytes` (`--vm-memory-high-watermark`) publishers are held back, and consumers go on. `on_high` says so.
- At `full`, well above the limit, clients get no new connections, channels, consumers, queues or bindings.
"""

from collections.abc import Callable
from enum import Enum

from rewindmq.engine.errors import ResourceError

REFUSABLE_SHARE = 16  # 1/16 of the limit is for work that asks `room`, even if the rest is used
LEAST_REFUSABLE_BYTES = 65_536  # that work always has this much: enough for the request that raises the limit
FULL = 1.5  # times the limit
LEAST_FULL_BYTES = 536_870_912  # a limit below the broker's own needs must not shut clients out


class MemoryKind(Enum):
    """The purpose for which bytes are held. The value is its name in listings and metrics."""

    BODY = "body"
    TRANSACTION = "transaction"
    UNDURABLE = "undurable"
    UNWRITTEN = "unwritten"
    UNACKED = "unacked"
    OUTPUT = "output"
    CONNECTION = "connection"
    HTTP = "http"
    PAST = "past"

    __hash__ = object.__hash__  # Enum's own is a Python function; members are equal to themselves only


def do_nothing() -> None:
    """Do nothing, for an account without a listener."""


class MemoryAccount:
    """Counts held bytes by kind, in one loop and one thread.

    It calls `on_high` when `used_bytes` grows above the limit, once until the next `looked`."""

    def __init__(self, limit_bytes: int, machine_bytes: int = 1 << 62) -> None:
        self.limit_bytes = limit_bytes  # more `used_bytes` than this block publishers
        self.machine_bytes = machine_bytes  # the most that the process may have
        self.rest_bytes = 0  # memory of the process that is not held for clients
        self.held_bytes = 0  # the sum over all kinds
        self.by_kind: dict[MemoryKind, int] = dict.fromkeys(MemoryKind, 0)
        self._on_high = do_nothing
        self._high_reported = False

    def start(self, on_high: Callable[[], None]) -> None:
        """Call `on_high` from now on. Its owner is made with the account, and so after it."""
        self._on_high = on_high

    def take(self, kind: MemoryKind, size: int) -> None:
        """Count `size` more bytes as held."""
        self.by_kind[kind] += size
        self.held_bytes += size
        if self.rest_bytes + self.held_bytes > self.limit_bytes and not self._high_reported:
            self._high_reported = True
            self._on_high()

    def give_back(self, kind: MemoryKind, size: int) -> None:
        """Count `size` bytes as no longer held."""
        self.by_kind[kind] -= size
        self.held_bytes -= size

    def change(self, kind: MemoryKind, before: int, after: int) -> None:
        """Change the bytes of one holder from `before` to `after`."""
        if after > before:
            self.take(kind, after - before)
        else:
            self.give_back(kind, before - after)

    def room(self, size: int) -> bool:
        """Say whether refusable work may take `size` more bytes.

        Above the limit such work still has a small share, because an operator must be able to look."""
        if self.used_bytes + size <= self.limit_bytes:
            return True
        refusable = self.by_kind[MemoryKind.HTTP] + self.by_kind[MemoryKind.PAST]
        return refusable + size <= max(self.limit_bytes // REFUSABLE_SHARE, LEAST_REFUSABLE_BYTES)

    @property
    def used_bytes(self) -> int:
        """The memory of the process, as far as it is known now."""
        return self.rest_bytes + self.held_bytes

    @property
    def high(self) -> bool:
        """Return True if the process uses more memory than the limit."""
        return self.used_bytes > self.limit_bytes

    @property
    def full(self) -> bool:
        """Return True if the broker must also refuse work that makes it larger without a publish."""
        return self.used_bytes > self.full_bytes

    @property
    def full_bytes(self) -> int:
        """The bound of `full`: 1.5 times the limit, or half way from the limit to the machine's memory if that is
        less."""
        half_way = (self.limit_bytes + self.machine_bytes) // 2
        return max(self.limit_bytes, min(half_way, max(int(self.limit_bytes * FULL), LEAST_FULL_BYTES)))

    def check(self) -> None:
        """Raise ResourceError (506) if the broker must not become larger."""
        if self.full:
            raise ResourceError(f"low on memory: {self.used_bytes} bytes are used, the limit is {self.limit_bytes}")

    def looked(self, resident_bytes: int, counted: dict[MemoryKind, int]) -> None:
        """Take a new measurement: the memory of the process, and the bytes of the kinds in `counted`.

        `on_high` may be called again."""
        for kind, size in counted.items():
            self.held_bytes += size - self.by_kind[kind]
            self.by_kind[kind] = size
        self.rest_bytes = max(0, resident_bytes - self.held_bytes)
        self._high_reported = False
