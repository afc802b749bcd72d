"""The state of a machine: queues and the indexes over them, the clock, and the deadlines.

Indexes are derived (`load` rebuilds them, and `validate` checks them). Deadlines are lazy: an entry of the heap gives
the time to check a queue, not a certain deadline. A queue remembers its earliest entry (`messages_armed_ms`,
`lease_armed_ms`), so that a head that changes a million times pushes few entries.
"""

import heapq
from enum import IntEnum
from typing import Final

from rewindmq.projections.machine.data.declaration import NO_EPOCH
from rewindmq.projections.machine.data.effects import Effect, Quarantine
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.queue import NEVER, Consumer, Limiter, Queue
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import EPOCH_SHIFT, Actor, Route

ROUTES_REMEMBERED: Final = 10_000
QUEUES_REMEMBERED: Final = 1_000_000  # in all remembered routes together
EPOCHS_REMEMBERED = 1000  # epochs of lost nodes: a node that was lost a thousand epochs ago writes no more

# Reasons of quarantine that a broker turns into replies. Each reason begins with these words (LOCKED, NODE_LOST) or
# ends with them.
LOCKED: Final = "cannot obtain exclusive access to locked"
IN_EXCLUSIVE_USE: Final = "in exclusive use"
NODE_LOST: Final = "node lost"
STREAM: Final = "stream"

DEADLINES_A_QUEUE = 8  # the heap may hold this many entries a queue, plus DEADLINES_MORE, before it is swept
DEADLINES_MORE = 1000


Holders = dict[tuple[int, int], Consumer]  # (queue_id, consumer) -> holder


class DeadlineKind(IntEnum):
    """The kinds of deadlines."""

    MESSAGES = 0  # the message at the head, or the first delayed one
    LEASE = 1  # the queue itself (x-expires)


class NewerHistory(Exception):
    """The history continues under a machine version that this code does not know.

    A fold that continued would reach another state than code that knows the version. Only this ends a fold."""

    def __init__(self, partition: str, offset: int, version: int) -> None:
        super().__init__(
            f"{partition} goes on from offset {offset} under machine version {version}, and this version of RewindMQ"
            f" knows those up to {MACHINE_VERSION}: start a newer one"
        )


class State:
    """The state of a machine. See the attributes."""

    def __init__(self, partition: str) -> None:
        self.partition = partition  # e.g. "queues-0"
        self.next_offset = 0  # the lowest offset that apply expects next; every event below it has been applied
        self.clock_ms = 0  # the largest event timestamp seen plus `ahead_ms`; 0 before the first
        self.ahead_ms = 0  # the clock's lead over the events' timestamps (ClockSet)
        self.machine_version = 1

        self.by_name: dict[tuple[str, str], Queue] = {}
        self.by_id: dict[int, Queue] = {}  # the queues of by_name, and deleted ones whose outbox is not empty
        self.owned: dict[int, dict[int, Queue]] = {}  # session -> queue_id -> its exclusive queues
        self.sessions: dict[int, Holders] = {}
        self.channels: dict[tuple[int, int], Holders] = {}  # (session, channel) -> of these, those of the channel
        self.limiters: dict[tuple[int, int], Limiter] = {}  # (session, channel)
        self.lost_epochs: dict[int, None] = {}  # epochs of lost nodes, which are over: events from them are ignored
        self.admitted: Actor | None = None  # the last actor found not to be of a lost epoch

        self.routes: dict[Route, list[Queue]] = {}  # resolved; cleared whenever a queue is added or removed

        self.deadlines: list[tuple[int, int, DeadlineKind]] = []  # heap of (time, queue_id, kind)
        self.next_deadline_ms = NEVER
        self.due_effects = (-1, 0)  # offset of the last event that let deadlines pass, and their effects; not state

        # True once a queue remembers its content. It stays true when none does any longer, because it is not state.
        self.remembers_messages = False

        self.dirty_queues: list[Queue] = []
        self.gone: list[int] = []
        self.declared = 0  # queues, since the last take_dirty

    @property
    def log_ms(self) -> int:
        """Return the clock in terms of the events' timestamps, the form for people."""
        return self.clock_ms - self.ahead_ms

    def lose_epoch(self, epoch: int) -> None:
        """Note that a node's epoch is over. Only the last EPOCHS_REMEMBERED are kept."""
        self.lost_epochs[epoch] = None
        self.admitted = None
        if len(self.lost_epochs) > EPOCHS_REMEMBERED:
            del self.lost_epochs[next(iter(self.lost_epochs))]  # in the order of their loss, not of their age

    def touch(self, queue: Queue) -> None:
        """Mark a queue that is about to change, or has changed: it will be part of the next take_dirty."""
        if not queue.dirty:
            queue.dirty = True
            self.dirty_queues.append(queue)

    def add_queue(self, queue: Queue) -> None:
        """Index a queue that was declared or loaded."""
        self.by_id[queue.queue_id] = queue
        if queue.gone:
            return
        self.by_name[(queue.vhost, queue.name)] = queue
        self.routes.clear()
        if queue.exclusive:
            self.owned.setdefault(queue.owner, {})[queue.queue_id] = queue

    def remove_queue(self, queue: Queue) -> None:
        """Remove a deleted queue; by_id keeps it as long as its outbox is not empty."""
        del self.by_name[(queue.vhost, queue.name)]
        self.routes.clear()
        if queue.exclusive:
            of_session = self.owned[queue.owner]
            del of_session[queue.queue_id]
            if not of_session:
                del self.owned[queue.owner]
        if len(queue.outbox):
            self.touch(queue)
        else:
            self.drop_queue(queue)

    def drop_queue(self, queue: Queue) -> None:
        """Forget a queue that is gone and whose outbox is empty."""
        del self.by_id[queue.queue_id]
        self.gone.append(queue.queue_id)

    def push_deadline(self, time_ms: int, queue_id: int, kind: DeadlineKind) -> None:
        """Add a deadline to the heap, which is swept when it has grown."""
        if len(self.deadlines) > DEADLINES_A_QUEUE * len(self.by_id) + DEADLINES_MORE:
            self._sweep_deadlines()
        heapq.heappush(self.deadlines, (time_ms, queue_id, kind))
        if time_ms < self.next_deadline_ms:
            self.next_deadline_ms = time_ms

    def _sweep_deadlines(self) -> None:
        """Drop stale entries, whose queue is gone or has a later entry."""
        kept: list[tuple[int, int, DeadlineKind]] = []
        for entry in self.deadlines:
            queue = self.by_id.get(entry[1])
            if queue is not None and entry[0] == (
                queue.messages_armed_ms if entry[2] is DeadlineKind.MESSAGES else queue.lease_armed_ms
            ):
                kept.append(entry)
        heapq.heapify(kept)
        self.deadlines[:] = kept  # in place, because a loop may be using it
        self.next_deadline_ms = kept[0][0] if kept else NEVER

    def arm_messages(self, queue: Queue) -> None:
        """Set a deadline for the queue's next expiring or due message."""
        expiry = queue.next_deadline_ms()
        if expiry != NONE and expiry < queue.messages_armed_ms:
            queue.messages_armed_ms = expiry
            self.push_deadline(expiry, queue.queue_id, DeadlineKind.MESSAGES)

    def index_holder(self, holder: Consumer) -> None:
        """Note a holder under its session."""
        key = holder.key
        self.sessions.setdefault(holder.session, {})[key] = holder
        self.channels.setdefault((holder.session, holder.channel), {})[key] = holder

    def holders_of(self, session: int, channel: int) -> Holders:
        """Return the holders of a channel; of a whole session if `channel` is 0."""
        return self.channels.get((session, channel), {}) if channel else self.sessions.get(session, {})

    def forget_holder(self, holder: Consumer) -> None:
        """Remove a holder that is not attached and holds nothing."""
        del holder.queue.holders[holder.consumer]
        key = holder.key
        of_session, of_channel = self.sessions[holder.session], self.channels[holder.session, holder.channel]
        del of_session[key], of_channel[key]
        if not of_session:
            del self.sessions[holder.session]
        if not of_channel:
            del self.channels[holder.session, holder.channel]
        limiter = holder.limiter
        if limiter is not None:
            limiter.members -= 1
            if limiter.members == 0:
                del self.limiters[(limiter.session, limiter.channel)]


def quarantine(state: State, event: Event, reason: str, effects: list[Effect]) -> None:
    """Report the event that is being applied as senseless."""
    effects.append(Quarantine(state.next_offset - 1, type(event).__name__, reason))


def epoch_of(actor: Actor) -> int:
    """Return the epoch of the actor's node; NO_EPOCH if unknown (for the broker itself)."""
    return actor.session >> EPOCH_SHIFT if actor.session != 0 else NO_EPOCH


def is_locked(state: State, queue: Queue, actor: Actor, event: Event, effects: list[Effect]) -> bool:
    """Quarantine the event and return True if the queue is another session's exclusive queue.

    The broker itself may use every queue. A broker checks this beforehand; but if other nodes write the same log, the
    queue may have become another session's in the meantime."""
    if not queue.exclusive or actor.session in (queue.owner, 0):
        return False
    quarantine(state, event, f"{LOCKED} queue {queue.name!r} in vhost {queue.vhost!r}", effects)
    return True
