"""This node's own records on a log that many nodes append to, from the append until they are read back.

    send(value) -> log ......... Kafka decides the order ........ take(values): they were read back, and are durable
                   `_sent` has the records in flight

Rules of this file
- A node recognizes its own records by their bytes. They return in the order in which it sent them, so one comparison
  with the first missing record is enough. (Sessions are part of a record, so no other node writes the same bytes. The
  broker's own events, like Tick, have the same effect from any node.)
- Publishes that were sent as a run return as a run, or in parts: other nodes' records may come between, and a batch of
  the log may end anywhere.
- An append position counts this node's appends.
- While a partition is paused nothing is read back; the log reports own records instead (partition_pausing.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.log.shared_contract import RecordTooLarge, SharedPartition
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor

# Called when an own event was folded, with its append position, its offset and its effects.
Folded = Callable[[int, int, list[Effect]], None]
NO_RUN: Final[Sequence[Published]] = ()
# An own event, with its actor and what waits for its effects. Publishes that were sent as a run are in the last field,
# and the event is the first of them.
Sent = tuple[Actor, Event, Folded | None, Sequence[Published]]


class OwnRecords:
    """The records that this node appended to one partition of a shared log."""

    def __init__(self, log: SharedPartition) -> None:
        self._log = log
        self._sent: deque[tuple[list[bytes], Sent]] = deque()  # must be read back
        self._taken = 0  # records of the first run in `_sent` that were read back
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()  # callers of `folded`
        self.append_position = 0  # of the next record
        self.durable_position = 0  # every record below it was read back or reported
        self.by_report = False  # records are reported from now on, and need not be read back
        self.unreported = 0  # records that will be reported; all were sent before those that must be read back

    def send(self, key: bytes, value: bytes, actor: Actor, event: Event, folded: Folded | None = None) -> int:
        """Append a record; return its append position. Raises PreconditionFailed if it is too large for the log."""
        assert folded is None or not self.by_report, "only the fold has this answer"
        self._append(key, value)  # first, because a refused record is never read back
        self._note([value], (actor, event, folded, NO_RUN))
        return self.append_position - 1

    def send_run(self, key: bytes, values: list[bytes], actor: Actor, messages: Sequence[Published]) -> int:
        """Append publishes that differ in their bodies alone; return the append position of the last one.

        Raises as `send`; the records before the one that is too large are appended."""
        done = 0
        try:
            for value in values:
                self._append(key, value)
                done += 1
        finally:
            if done:
                self._note(values[:done], (actor, messages[0], None, messages[:done]))
        return self.append_position - 1

    def _append(self, key: bytes, value: bytes) -> None:
        try:
            self._log.append(key, value)
        except RecordTooLarge as error:
            raise PreconditionFailed(str(error)) from None

    def _note(self, values: list[bytes], sent: Sent) -> None:
        self.append_position += len(values)
        if self.by_report:
            self.unreported += len(values)
        else:
            self._sent.append((values, sent))

    def take(self, values: list[bytes], index: int, most: int = 1) -> Sent | None:
        """Return the first missing event if the record at `index` is its record, now read back; None: it is another
        node's. Of a run, the part that was read back, in the order in which it was sent: up to `most` events."""
        if not self._sent:
            return None
        missing, sent = self._sent[0]
        at = self._taken
        if missing[at] != values[index]:
            return None
        count = 1
        if len(missing) > 1:
            count = min(most, len(missing) - at)
            if values[index : index + count] != missing[at : at + count]:
                count = 1
                while missing[at + count] == values[index + count]:
                    count += 1
        self.durable_position += count
        if at + count == len(missing):
            self._sent.popleft()
            self._taken = 0
        else:
            self._taken = at + count
        if count == len(missing):
            return sent
        actor, _, folded, messages = sent
        return actor, messages[at], folded, messages[at : at + count]

    def next_among(self, values: list[bytes], index: int, end: int) -> int:
        """Return the index of the first missing record among these values; `end` if it is not among them."""
        if self._sent:
            with suppress(ValueError):
                return values.index(self._sent[0][0][self._taken], index, end)
        return end

    def reported(self, count: int) -> None:
        """Note that the log has this number of records that need not be read back."""
        self.unreported -= count
        self.durable_position += count

    @property
    def newest(self) -> bytes:
        """Return the bytes of the last record that must be read back."""
        return self._sent[-1][0][-1]

    @property
    def under_way(self) -> bool:
        """Return True if a record is in flight, or a caller waits for one."""
        return bool(self._sent or self.unreported or self._waiters)

    async def folded(self) -> None:
        """Wait until every record appended so far is in the log, and folded if it must be read back."""
        if self.durable_position < self.append_position:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((self.append_position, done))
            await done

    def tell_waiters(self) -> None:
        """Resume the callers of `folded` whose records are in the log. Call it after the fold."""
        while self._waiters and self._waiters[0][0] <= self.durable_position:
            done = self._waiters.popleft()[1]
            if not done.done():
                done.set_result(None)
