"""The queue machine of one log partition: `apply(event) -> effects`. Its state is a pure function of the events so far.

    machine = Machine("queues-0")
    effects: list[Effect] = []
    machine.apply(offset, timestamp_ms, actor, event, effects)     # appends to effects, returns None

Rules
- No wall clock, randomness, I/O, logging, floats, hash values, or iteration over a set. The only clock is `clock_ms`,
  the largest timestamp seen. `ClockSet` puts a fixed amount (`ahead_ms`) between timestamps and clock, so that
  timestamps may continue from another time without moving deadlines. Callers pass times in terms of timestamps.
- First time passes, then the event happens: when `clock_ms` moves past a deadline (expiry of a message at a head, queue
  lease), every deadline up to the new time is carried out, earliest first, before the event itself is applied. While a
  deadline is carried out, the clock is at that deadline.
- One door: state changes only inside `apply` (and `load`).
- A senseless event is quarantined: it makes an effect, changes nothing, and never raises. Broken invariants are
  asserts.
- Rules have versions. `MachineUpgraded` marks the offset from which a version applies. Code that does not know the
  version stops (NewerHistory).
- A node's events after its NodeLost are also quarantined: the node did not know yet.
- `Published` applies to each queue of its route in the route's order; unknown queues among them are quarantined one by
  one.
- Bodies have no effect; `event.body_size` does.

Folders and files
    state.py            queues, indexes, clock, deadlines
    events/             what each event does: publish, delivery, settlement, queues (declare, delete, policy, sessions),
                        removal, pause, relocation
    rules/              the deciding rules: settings, limits, expiry, dead_letters, deduplication, single_active,
                        profile
    data/               the data: queue, consumer, the orders of messages, remembered ids; and effects, the output
    serialization/      packing, changes since the last time, loading, digests

Persistence (see projections/store/store.py). The state is stored in pieces, so that a small change of a long queue
writes little: a `head` for the machine; for each queue a `meta` (settings, counters, consumers, unacked, outbox), and
numbered chunks with its ready messages and the ids that it remembers. Only changed chunks are written again.
    take_dirty()   the changes since the last call, packed
    pieces()       everything, for a snapshot: (queue_id, meta, chunks) of each queue; take_dirty is not disturbed
    Machine.load(partition, head, [(meta, chunks), ...])   the exact inverse of either
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from rewindmq.projections.machine import validation
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import NEVER, Queue
from rewindmq.projections.machine.events.delivery import on_attached, on_fetched, on_global_prefetch
from rewindmq.projections.machine.events.lookahead import on_credited
from rewindmq.projections.machine.events.pause import on_paused, on_resumed
from rewindmq.projections.machine.events.publish import on_published
from rewindmq.projections.machine.events.queues import (
    lease_due,
    messages_due,
    on_broker_started,
    on_cancelled,
    on_declared,
    on_deleted,
    on_forwarded,
    on_lease_renewed,
    on_node_lost,
    on_policy,
    on_purged,
    on_session_closed,
)
from rewindmq.projections.machine.events.relocation import on_drained
from rewindmq.projections.machine.events.removal import on_removed
from rewindmq.projections.machine.events.settlement import on_acked, on_nacked
from rewindmq.projections.machine.rules.deduplication import messages_left
from rewindmq.projections.machine.rules.expiry import lease_ends_ms
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.projections.machine.serialization.changes import Dirty, DirtyQueue, take_dirty
from rewindmq.projections.machine.serialization.digest import digest
from rewindmq.projections.machine.serialization.load import load
from rewindmq.projections.machine.serialization.pack import pack_head, pieces
from rewindmq.projections.machine.state import (
    NODE_LOST,
    DeadlineKind,
    NewerHistory,
    State,
    epoch_of,
    quarantine,
)
from rewindmq.schemas.clock_events import ClockSet, ClockStepped
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    CheckpointAsked,
    Checkpointed,
    ConsumerAttached,
    ConsumerCancelled,
    Credited,
    DeadLettersForwarded,
    Event,
    Fetched,
    GlobalPrefetchSet,
    LeaseRenewed,
    MachineUpgraded,
    Nacked,
    NodeLost,
    PastRead,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    QueueDrained,
    SessionClosed,
    Tick,
)
from rewindmq.schemas.operator_events import MessageRemoved, QueuePaused, QueueResumed
from rewindmq.schemas.values import Actor

__all__ = ["MACHINE_VERSION", "Dirty", "DirtyQueue", "Machine", "NewerHistory"]


def on_nothing(state: State, offset: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
    """Change nothing; only time passes, and it has already passed.

    For Tick, Checkpointed, CheckpointAsked, PastRead and ClockStepped."""


def on_clock_set(state: State, offset: int, actor: Actor, event: ClockSet, effects: list[Effect]) -> None:
    """Let the clock continue from where it is; timestamps after this event are of another time."""
    state.ahead_ms = event.ahead_ms


def on_upgraded(state: State, offset: int, actor: Actor, event: MachineUpgraded, effects: list[Effect]) -> None:
    """Apply the rules of another version from here on.

    Versions only ascend: when two owners of a partition upgrade at once, one may know less. Raises NewerHistory when
    this code does not know the version."""
    if event.machine_version > MACHINE_VERSION:
        raise NewerHistory(state.partition, offset, event.machine_version)
    if event.machine_version < 1:
        quarantine(state, event, f"there is no machine version {event.machine_version}", effects)
    elif event.machine_version > state.machine_version:
        state.machine_version = event.machine_version


HANDLERS: Final[dict[type[Any], Callable[[State, int, Actor, Any, list[Effect]], object]]] = {
    # a message goes into the queues of its route
    Published: on_published,
    # a consumer is done with messages
    Acked: on_acked,
    # a consumer gives messages back, to be requeued or dead-lettered
    Nacked: on_nacked,
    # a consumer without prefetch may take more; the lookahead of one with a prefetch changes
    Credited: on_credited,
    # basic.get
    Fetched: on_fetched,
    # a queue is created, or its lease is renewed
    QueueDeclared: on_declared,
    # a queue is deleted, if the conditions allow it
    QueueDeleted: on_deleted,
    # another policy applies to a queue
    PolicyApplied: on_policy,
    # basic.consume
    ConsumerAttached: on_attached,
    # basic.cancel
    ConsumerCancelled: on_cancelled,
    # the ready messages of a queue are removed
    Purged: on_purged,
    # an operator deletes single messages, or moves them
    MessageRemoved: on_removed,
    # a queue delivers nothing from here on
    QueuePaused: on_paused,
    # it delivers again
    QueueResumed: on_resumed,
    # time passed, and something was due
    Tick: on_nothing,
    # a connection or channel ended
    SessionClosed: on_session_closed,
    # dead letters have arrived where they belong
    DeadLettersForwarded: on_forwarded,
    # a broker's claim about its state; an audit compares it
    Checkpointed: on_nothing,
    # a node wants such claims
    CheckpointAsked: on_nothing,
    # a queue was declared again, which renews its lease
    LeaseRenewed: on_lease_renewed,
    # a client reads the past, which changes nothing
    PastRead: on_nothing,
    # a broker took over: all earlier sessions are over
    BrokerStarted: on_broker_started,
    # the rules of another version apply from here on
    MachineUpgraded: on_upgraded,
    # a channel's consumers share a limit
    GlobalPrefetchSet: on_global_prefetch,
    # a node's sessions are over, and what it writes later is ignored
    NodeLost: on_node_lost,
    # a clock differs, which changes nothing
    ClockStepped: on_nothing,
    # the clock continues from another time
    ClockSet: on_clock_set,
    # messages of a queue that moves leave for its new partition
    QueueDrained: on_drained,
}


class Machine(State):
    """The state of a partition's queues, and the only way to change it.

    `next_offset`, `clock_ms`, `machine_version`, `partition`: see state.py."""

    def apply(
        self,
        offset: int,
        timestamp_ms: int,
        actor: Actor,
        event: Event,
        effects: list[Effect],
        sizes: Sequence[int] = (),
    ) -> int:
        """Apply one event, or publishes that are alike. `offset` ascends (gaps are allowed: Kafka has them).

        `sizes`: `event` is the first of publishes at successive offsets that differ in their bodies alone, which have
        these sizes in bytes. They are applied as far as they are treated alike: go on with the next one. If there are
        several, each has the effects of its own id, and there are no others. So any cutting of a history into runs
        gives the same state, and the same effects of each message. Returns how many events were applied, at least 1."""
        if timestamp_ms > self.clock_ms or self.ahead_ms:
            clock_ms = timestamp_ms + self.ahead_ms
            if clock_ms > self.clock_ms:
                if clock_ms >= self.next_deadline_ms:
                    before = len(effects)
                    self._pass_deadlines(clock_ms, effects)
                    self.due_effects = (offset, len(effects) - before)
                    sizes = sizes[:1]  # the first event has these effects, too
                self.clock_ms = clock_ms
        first = len(effects)
        self.next_offset = offset + 1
        count = 1
        if self.lost_epochs and actor is not self.admitted:
            epoch = epoch_of(actor)
            if epoch not in self.lost_epochs:
                self.admitted = actor
            elif not isinstance(event, Published):  # its node may have confirmed it
                quarantine(self, event, f"{NODE_LOST}: epoch {epoch} is over", effects)
                return 1
        if sizes and isinstance(event, Published):
            count = on_published(self, offset, actor, event, effects, sizes)
            self.next_offset = offset + count
        elif (handler := HANDLERS.get(type(event))) is not None:
            handler(self, offset, actor, event, effects)
        else:
            quarantine(self, event, "not an event of a queue partition", effects)
        if self.remembers_messages:
            messages_left(effects, first)
        return count

    def skip(self, offset: int) -> None:
        """Pass the record at `offset`, which is not an event and changes nothing else."""
        self.next_offset = offset + 1

    def advance(self, timestamp_ms: int, effects: list[Effect]) -> None:
        """Let time pass, as a Tick at `timestamp_ms` would: for `state at T` and audits."""
        clock_ms = timestamp_ms + self.ahead_ms
        if clock_ms > self.clock_ms:
            if clock_ms >= self.next_deadline_ms:
                self._pass_deadlines(clock_ms, effects)
            self.clock_ms = clock_ms

    def _pass_deadlines(self, until_ms: int, effects: list[Effect]) -> None:
        deadlines = self.deadlines  # grows during the loop
        first = len(effects)
        while deadlines and deadlines[0][0] <= until_ms:
            time_ms, queue_id, kind = heapq.heappop(deadlines)
            if time_ms > self.clock_ms:
                self.clock_ms = time_ms
            queue = self.by_id.get(queue_id)
            if queue is None or queue.gone:
                continue
            if kind is DeadlineKind.MESSAGES:
                if queue.messages_armed_ms == time_ms:
                    queue.messages_armed_ms = NEVER
                messages_due(self, queue, effects)
            else:
                if queue.lease_armed_ms == time_ms:
                    queue.lease_armed_ms = NEVER
                lease_due(self, queue, lease_ends_ms(queue), effects)
        if self.remembers_messages:
            messages_left(effects, first)
        self.next_deadline_ms = deadlines[0][0] if deadlines else NEVER

    def time_passed_at(self, offset: int) -> int:
        """Return the number of effects of the event at `offset`, the last one applied, that came from deadlines.

        These deadlines passed before the event happened."""
        return self.due_effects[1] if self.due_effects[0] == offset else 0

    def deadline_ms(self) -> int | None:
        """Return the time of the next deadline, at which the broker appends a Tick; None if there is none.

        It may be early, never late."""
        return None if self.next_deadline_ms == NEVER else self.next_deadline_ms

    def queue(self, vhost: str, name: str) -> Queue | None:
        """Return the queue of this name; None if there is none."""
        return self.by_name.get((vhost, name))

    def queues(self) -> Iterator[Queue]:
        """Yield all queues, ordered by (vhost, name)."""
        for key in sorted(self.by_name):
            yield self.by_name[key]

    def outboxes(self) -> Iterator[Queue]:
        """Yield the queues with dead letters to forward, by queue id; deleted queues are among them."""
        for queue_id in sorted(self.by_id):
            if len(self.by_id[queue_id].outbox):
                yield self.by_id[queue_id]

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the canonical state.

        Equal states have equal digests, however they were made (folded from the beginning, from a snapshot, in another
        process, under another PYTHONHASHSEED). The clock and next_offset are not part of it."""
        return digest(self)

    def head(self) -> bytes:
        """Return the state that belongs to no queue, packed: clock, next offset, version, shared limits."""
        return pack_head(self)

    def take_dirty(self) -> Dirty:
        """Return the changes since the last call, packed."""
        return take_dirty(self)

    def pieces(self) -> Iterator[tuple[int, bytes, dict[int, bytes]]]:
        """Yield (queue id, meta, chunks) of every queue, packed. `take_dirty` is not disturbed."""
        return pieces(self)

    @staticmethod
    def load(partition: str, head: bytes, pieces: Iterable[tuple[bytes, dict[int, bytes]]]) -> "Machine":
        """Return the machine from its pieces.

        Raises ValueError when the pieces are not those of one state, NewerHistory when a newer version wrote them."""
        machine = Machine(partition)
        load(machine, head, pieces)
        return machine

    def validate(self) -> None:
        """Check every invariant and derived index by brute force. For tests.

        Raises AssertionError if one is broken."""
        validation.validate(self)
