"""Sessions that end with many queues: the queues go in slices, so that other work gets a turn in between.

    few queues     SessionClosed, which deletes them
    many           ConsumerCancelled for its consumers of other queues, then QueueDeleted for each exclusive queue, and
                   SessionClosed last

Rules of this file
- From the end of the session on no client of this node meets one of these queues. They are in no listing, and what
  names one deletes it first (`Queues.entered`).
- A crash in between loses nothing: the next BrokerStarted, or NodeLost, deletes the exclusive queues that are left. A
  durable auto-delete queue whose consumer had not left in the log stays, as after a crash before the session's end.
- Consumers go before the exclusive queues, because messages for them would wait that long. Auto-delete queues go with
  their last consumer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rewindmq.engine.host.eager import begin
from rewindmq.engine.host.slices import CHANGED_TOGETHER, Pace, in_slices
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Attachment, Session
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.events import ConsumerCancelled, QueueDeleted

MOST_AT_ONCE: Final = CHANGED_TOGETHER  # queues that go with one SessionClosed


class Departures:
    """The sessions that are on their way out. `written`: as `Turns.written`."""

    def __init__(self, written: Callable[[], Awaitable[None]]) -> None:
        self._written = written
        self.leaving: dict[int, tuple[Session, Callable[[], None]]] = {}  # by session id
        self._over = asyncio.Event()
        self._over.set()
        self._stopped = False

    def start(self, session: Session, log_end: Callable[[], None]) -> None:
        """End what belongs to a session that was closed, and log its end."""
        own = {
            partition: list(partition.machine.owned.get(session.session_id, {}).values())
            for partition in session.owns_queues_in
        }
        owned = [(partition, queue) for partition, queues in own.items() for queue in queues]
        others = [each for each in session.attachments.values() if each.queue.owner != session.session_id]
        ending = len(owned) + sum(each.queue.auto_delete for each in others)
        if ending <= MOST_AT_ONCE or session.channel or self._stopped:
            log_end()
            return
        self.leaving[session.session_id] = session, log_end
        self._over.clear()
        begin(self._leave(session, others, owned))

    async def _leave(
        self, session: Session, others: Sequence[Attachment], owned: Sequence[tuple[Partition, Queue]]
    ) -> None:
        pace = Pace(self._written)
        async for each in in_slices(others):
            queue = each.queue
            if each.consumer_id in queue.consuming:
                each.partition.append(session.actor, ConsumerCancelled(queue.vhost, queue.name, each.consumer_id))
                await pace.changed()
        async for partition, queue in in_slices(owned):
            if not queue.gone:
                partition.append(session.actor, QueueDeleted(queue.vhost, queue.name, if_unused=False, if_empty=False))
                await pace.changed()
        self._end(session)
        await self._written()

    def _end(self, session: Session) -> None:
        leaving = self.leaving.pop(session.session_id, None)
        if leaving is not None:
            leaving[1]()
        if not self.leaving:
            self._over.set()

    def owner_of(self, queue: Queue | None) -> Session | None:
        """Return the session with which the queue is going; None if it stays."""
        leaving = self.leaving.get(queue.owner) if queue is not None and queue.exclusive else None
        return None if leaving is None else leaving[0]

    async def over(self) -> None:
        """Wait until no session is on its way out."""
        await self._over.wait()

    def stop(self) -> None:
        """Log the ends of all sessions now: the broker stops."""
        self._stopped = True
        for session, _ in list(self.leaving.values()):
            self._end(session)
