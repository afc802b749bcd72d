"""States of partitions along the history, in memory, so that moments near each other need no long fold.

    waypoints = Waypoints()
    state_at(log, snapshots, at, waypoints)      begins at the nearest snapshot or waypoint, and leaves new waypoints

Snapshots are a million events apart. A person who moves a slider asks for many moments between two of them, back and
forth. A fold leaves a waypoint every EVERY events, so that the next moment folds at most that many.

Rules of this file
- A waypoint is the state after the last event before its offset, with the clock of that event. Like a snapshot it only
  saves time.
- All waypoints together have at most MOST_BYTES, packed. The least recently used one is dropped first.
- A large state is packed more rarely, so that packing takes less time than the fold between two waypoints.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import Final

from rewindmq.projections.machine.machine import Machine

EVERY: Final = 10_000  # events: some 0.07 s of CPU
MOST_BYTES: Final = 67_108_864
BYTES_AN_EVENT: Final = 50  # of a packed state: packing these costs no more than folding one event

Packed = tuple[bytes, list[tuple[bytes, dict[int, bytes]]]]


class Waypoints:
    """The waypoints of one history."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, int], tuple[Packed, int]] = OrderedDict()  # with its bytes; last used last
        self._offsets: dict[str, list[int]] = {}  # by partition, ascending
        self._apart: dict[str, int] = {}  # events between two waypoints of a partition

    def before(self, partition: str, offset: int) -> int | None:
        """Return the offset of the nearest waypoint at or before `offset`."""
        offsets = self._offsets.get(partition, [])
        at = bisect_right(offsets, offset)
        return offsets[at - 1] if at else None

    def load(self, partition: str, offset: int) -> Machine:
        """Return the state at a waypoint."""
        key = partition, offset
        self._kept.move_to_end(key)
        head, pieces = self._kept[key][0]
        return Machine.load(partition, head, pieces)

    def next_after(self, partition: str, offset: int) -> int:
        """Return the offset at which a fold that is at `offset` should leave its next waypoint."""
        return offset + self._apart.get(partition, EVERY)

    def leave(self, machine: Machine) -> None:
        """Keep the state, if no other is near it. No time may have passed since its last event."""
        partition, offset = machine.partition, machine.next_offset
        before = self.before(partition, offset)
        if before is not None and offset - before < self._apart[partition]:
            return
        pieces = [(meta, chunks) for _, meta, chunks in machine.pieces()]
        packed = machine.head(), pieces
        size = len(packed[0]) + sum(len(meta) + sum(map(len, chunks.values())) for meta, chunks in pieces)
        self._apart[partition] = max(EVERY, size // BYTES_AN_EVENT)
        if size > self._most_bytes:
            return
        self._kept[partition, offset] = packed, size
        insort(self._offsets.setdefault(partition, []), offset)
        self._bytes += size
        while self._bytes > self._most_bytes:
            (name, gone), (_, freed) = self._kept.popitem(last=False)
            offsets = self._offsets[name]
            del offsets[bisect_left(offsets, gone)]
            self._bytes -= freed
