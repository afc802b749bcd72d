"""Counts the publishes of a session as they come, and again where they are logged or end.

The session's `SessionCounted` events say it, and the audit compares them with the log. So it finds a publish that came
and has no event, whatever lost it.
"""

from collections.abc import Callable

from rewindmq.engine.errors import NotFound
from rewindmq.engine.partition.partition import Partition
from rewindmq.schemas.access_events import SessionCounted
from rewindmq.schemas.values import CountedPartition


class PublishCounts:
    """The numbers of `SessionCounted`. `unfinished` is reduced when a publish is logged. `events`: by partition."""

    __slots__ = (
        "after_error",
        "copies",
        "counted",
        "events",
        "grouped",
        "received",
        "refused",
        "unfinished",
        "unknown_exchange",
    )

    def __init__(self) -> None:
        self.received = 0
        self.refused = 0
        self.unknown_exchange = 0
        self.after_error = 0
        self.unfinished = 0
        self.grouped = 0
        self.copies = 0
        self.events: dict[Partition, int] = {}
        self.counted = 0  # `steps` when the session was last counted

    @property
    def steps(self) -> int:
        """A number that grows with every step of a publish."""
        gone = self.refused + self.unknown_exchange + self.after_error + self.grouped
        return self.received + gone + sum(self.events.values())

    def logged(self, partition: Partition, count: int = 1) -> None:
        """Count events in a partition (hot)."""
        self.events[partition] = self.events.get(partition, 0) + count

    def logged_copy(self, partition: Partition) -> None:
        """Count one of several events of a publish. When all are logged, `copies` is reduced by 1."""
        self.logged(partition)
        self.copies += 1

    def refuse(self, error: Exception) -> None:
        """Count a publish that came whole and was refused."""
        if isinstance(error, NotFound):
            self.unknown_exchange += 1
        else:
            self.refused += 1

    def of(self, session_id: int, below: Callable[[Partition], int]) -> SessionCounted:
        """Return the event that says these numbers. `below`: the offset behind the session's events in a partition."""
        self.counted = self.steps
        return SessionCounted(
            session_id,
            received=self.received,
            refused=self.refused,
            unknown_exchange=self.unknown_exchange,
            after_error=self.after_error,
            unfinished=self.unfinished,
            grouped=self.grouped,
            copies=self.copies,
            partitions=tuple(CountedPartition(each.index, below(each), events) for each, events in self.events.items()),
        )
