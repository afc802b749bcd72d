"""Finds the events that follow the last word of a stopped broker in a partition.

A broker on an embedded log that stops cleanly ends each queue partition with a `Checkpointed` that is `final`. The next
event is the `BrokerStarted` of the next broker. Events between these two were written by a broker that was killed while
it stopped, or by another program. No seal covers them yet, and their hash chain can be made anew. So they are reported
by name.

A stopping broker has already closed its clients' sessions. After its last word it forwards dead letters, notes their
arrival, claims a state for a due snapshot, and drops the hidden queue of a deleted exchange. Any other event is `odd`:
no broker wrote it.

    words = CleanStops()
    for offset, _, actor, event in events_of(log): words.see(offset, actor, event)
    words.end(log.next_offset)
    for behind in words.found: ...
"""

from dataclasses import dataclass

from rewindmq.projections.rules.internal_queues import is_delay_queue
from rewindmq.schemas.events import BrokerStarted, Checkpointed, DeadLettersForwarded, Event, Published, QueueDeleted
from rewindmq.schemas.values import BROKER, Actor


@dataclass(frozen=True, slots=True)
class Behind:
    """The events from offset `first` to `end` (exclusive), which follow the final checkpoint at offset `final`.

    `odd`: the offset of the first event that no broker writes while it stops; -1: there is none."""

    final: int
    first: int
    end: int
    odd: int = -1

    def __str__(self) -> str:
        why = "it was killed while it stopped, or they were written by another"
        if self.odd >= 0:
            why = f"another wrote them, for no broker that stops writes an event like the one at offset {self.odd}"
        return (
            f"offsets {self.first} to {self.end - 1} stand behind the last word of a broker that stopped (its final "
            f"checkpoint at offset {self.final}), before the next start: {why}"
        )


class CleanStops:
    """Collects the events after last words. It takes a partition's events in order, from any offset on.

    Records that cannot be decoded may be left out."""

    def __init__(self) -> None:
        self.found: list[Behind] = []
        self.count = 0
        self.final = -1  # offset of a final checkpoint that no start has followed yet; -1: there is none
        self.odd = -1  # offset of the first odd event after it; -1: there is none

    @property
    def waiting(self) -> bool:
        """Return True if the last word of a broker has been seen, and no start has followed it yet."""
        return self.final >= 0

    def see(self, offset: int, actor: Actor, event: Event) -> None:
        """Take the event at this offset, the next one of the partition."""
        kind = type(event)
        if kind is BrokerStarted:
            self.end(offset)
        elif kind is Checkpointed and event.final:  # type: ignore[union-attr]
            if self.odd >= 0:
                self.end(offset)
            self.final = offset  # the events between two final checkpoints were due at the stop
            self.count += 1
        elif self.final >= 0 and self.odd < 0 and not _due_at_stop(actor, event):
            self.odd = offset

    def end(self, offset: int) -> None:
        """Note that the next start is at this offset, or that the log ends there."""
        behind = self.behind(offset)
        if behind is not None:
            self.found.append(behind)
        self.final = self.odd = -1

    def behind(self, end: int) -> Behind | None:
        """Return the events after the last final checkpoint, if the log ends at this offset; None if there are none."""
        if -1 < self.final < end - 1:
            return Behind(self.final, self.final + 1, end, self.odd)
        return None


def _due_at_stop(actor: Actor, event: Event) -> bool:
    if actor != BROKER:
        return False
    if isinstance(event, Published):
        return event.origin is not None and not event.origin.restore
    if isinstance(event, QueueDeleted):
        return is_delay_queue(event.queue)
    return isinstance(event, DeadLettersForwarded | Checkpointed)
