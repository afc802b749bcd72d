"""The newest batches of one partition, in memory, for the workers that follow it closely.

    durable, dropped | durable, here ........ | not durable yet
                     first                    ready              next        numbers of batches

A worker that is further behind reads the files. Bytes are bounded: the oldest durable batches go.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that were appended at one time. `payload`: as they came from a worker (wire_frames.py)."""

    first: int
    count: int
    time_ms: int
    payload: bytes

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.first + self.count


class Tail:
    """`end`: the offset behind all batches; `most_bytes`: of payloads of durable batches."""

    def __init__(self, end: int, most_bytes: int) -> None:
        self.durable_end = end
        self.first = self.ready = self.next = 0
        self.by_number: dict[int, Batch] = {}
        self._most = most_bytes
        self._bytes = 0

    def add(self, batch: Batch) -> None:
        """Add a batch that is not durable yet."""
        self.by_number[self.next] = batch
        self.next += 1
        self._bytes += len(batch.payload)

    def landed(self, durable_end: int) -> bool:
        """All below `durable_end` is durable. Returns whether a whole batch became so."""
        before = self.ready
        while self.ready < self.next and (end := self.by_number[self.ready].end) <= durable_end:
            self.durable_end = end
            self.ready += 1
        return self.ready > before

    def trim(self) -> None:
        """Drop the oldest durable batches, if there are too many bytes. Those that follow closely have been served."""
        while self._bytes > self._most and self.first < self.ready:
            self._bytes -= len(self.by_number.pop(self.first).payload)
            self.first += 1

    def number_at(self, offset: int) -> int | None:
        """The number of the batch that begins at `offset`; None: it is not here, or not the beginning of one."""
        if offset == self.durable_end:
            return self.ready
        for number in range(self.ready - 1, self.first - 1, -1):
            first = self.by_number[number].first
            if first <= offset:
                return number if first == offset else None
        return None
