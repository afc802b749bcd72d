"""This node's own records on a log that many nodes append to, from the append until they are read back.

    send(value) -> log ......... Kafka decides the order ........ take(value): it was read back, and is durable
                   `_sent` has the records in flight

Rules of this file
- A node recognizes its own records by their bytes. They return in the order in which it sent them, so one comparison
  with the first missing record is enough. (Sessions are part of a record, so no other node writes the same bytes. The
  broker's own events, like Tick, have the same effect from any node.)
- An append position counts this node's appends.
- While a partition is paused nothing is read back; the log reports own records instead (partition_pausing.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.log.shared_contract import RecordTooLarge, SharedPartition
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import Actor

# Called when an own event was folded, with its append position, its offset and its effects.
Folded = Callable[[int, int, list[Effect]], None]
Sent = tuple[bytes, Actor, Event, Folded | None]


class OwnRecords:
    """The records that this node appended to one partition of a shared log."""

    def __init__(self, log: SharedPartition) -> None:
        self._log = log
        self._sent: deque[Sent] = deque()  # must be read back
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()  # callers of `folded`
        self.append_position = 0  # of the next record
        self.durable_position = 0  # every record below it was read back or reported
        self.by_report = False  # records are reported from now on, and need not be read back
        self.unreported = 0  # records that will be reported; all were sent before those that must be read back

    def send(self, key: bytes, value: bytes, actor: Actor, event: Event, folded: Folded | None = None) -> int:
        """Append a record; return its append position. Raises PreconditionFailed if it is too large for the log."""
        assert folded is None or not self.by_report, "only the fold has this answer"
        try:
            self._log.append(key, value)  # first, because a refused record is never read back
        except RecordTooLarge as error:
            raise PreconditionFailed(str(error)) from None
        position = self.append_position
        self.append_position = position + 1
        if self.by_report:
            self.unreported += 1
        else:
            self._sent.append((value, actor, event, folded))
        return position

    def take(self, value: bytes) -> Sent | None:
        """Return the first missing record if it is this one, now read back; None: another node's record."""
        sent = self._sent
        if not sent or sent[0][0] != value:
            return None
        self.durable_position += 1
        return sent.popleft()

    def reported(self, count: int) -> None:
        """Note that the log has this number of records that need not be read back."""
        self.unreported -= count
        self.durable_position += count

    @property
    def newest(self) -> bytes:
        """Return the bytes of the last record that must be read back."""
        return self._sent[-1][0]

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
