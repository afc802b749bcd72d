"""The counters of queues of one partition, in the memory of the log's process: the last record of each key.

They begin empty when the log's process starts: owners publish all of them again. The last removals are kept, too, for a
worker that was not told of them at once.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from rewindmq.engine.log.served.wire_frames import COUNTED, PLACE, encode_entries, frame

REMOVALS: Final = 10_000


class CounterStore:
    """`number`: of the partition of counters."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.next_offset = 0
        self._records: dict[int, tuple[int, bytes, bytes | None]] = {}  # by offset, ascending: time, key, value
        self._offsets: dict[bytes, int] = {}  # by key
        self._removed: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, time_ms: int, entries: Sequence[tuple[bytes, bytes | None]]) -> int:
        """Add records. Returns the offset of the first."""
        first = self.next_offset
        for key, value in entries:
            self._forget(key)
            self._records[self.next_offset] = time_ms, key, value
            self._offsets[key] = self.next_offset
            if value is None:
                self._removed.append((self.next_offset, key))
            self.next_offset += 1
        while len(self._removed) > REMOVALS:
            offset, key = self._removed.popleft()
            if self._offsets.get(key) == offset:
                self._forget(key)
        return first

    def _forget(self, key: bytes) -> None:
        before = self._offsets.pop(key, None)
        if before is not None:
            del self._records[before]

    def frames_from(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yields the records from `offset` on as frames, each with the offset behind it."""
        for at, (time_ms, key, value) in list(self._records.items()):
            if at >= offset:
                yield at + 1, frame(COUNTED, self.number, PLACE.pack(at, time_ms), encode_entries([(key, value)]))
