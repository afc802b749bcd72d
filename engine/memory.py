"""Memory under way: the bytes that the broker holds for clients at this moment, counted in one place.

    body      parts of a publish that has not come whole          output    bytes that wait in a socket's write buffer
    unacked   bookkeeping of deliveries that are out              http      a request's body, an answer being made
    past      readers of the past: what they hold in this process

Every part of the broker that holds bytes for a client tells this account when it takes them and when it lets them go.
Two answers follow from the sum:
- Work that can be refused (an HTTP answer, a reader of the past) asks `room` first, and is refused when there is none.
- Publishers are held back at a watermark (`vm_memory_high_watermark`), and consumers go on.
"""

from enum import Enum


class Kind(Enum):
    """What the bytes are held for. The value is the name in listings and metrics."""

    BODY = "body"
    UNACKED = "unacked"
    OUTPUT = "output"
    HTTP = "http"
    PAST = "past"


class MemoryAccount:
    """Bytes under way by kind. One loop, one thread."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes  # of `held_bytes`, above which publishers are held back
        self.held_bytes = 0  # the sum over all kinds
        self.by_kind: dict[Kind, int] = dict.fromkeys(Kind, 0)

    def take(self, kind: Kind, size: int) -> None:
        """`size` more bytes are held."""
        self.by_kind[kind] += size
        self.held_bytes += size

    def give_back(self, kind: Kind, size: int) -> None:
        """`size` bytes that were taken are held no longer."""
        self.by_kind[kind] -= size
        self.held_bytes -= size

    def room(self, size: int) -> bool:
        """Whether `size` more bytes fit below the limit. Work that can be refused asks before it takes them."""
        return self.held_bytes + size <= self.limit_bytes
