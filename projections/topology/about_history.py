"""The changes to the history itself: trims of its beginning, branches, bodies made unreadable."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rewindmq.schemas.metadata_events import BodiesExpired, HistoryForked, HistoryTrimmed


@dataclass(frozen=True, slots=True)
class Erasure:
    """A `SubjectErased`, with its offset, its time, and the user who asked for it."""

    offset: int
    time_ms: int
    user: str
    subject: str
    key_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Floor:
    """The last `HistoryTrimmed` of a partition, with its offset in the metadata log, its time, and the user."""

    at: int
    time_ms: int
    user: str
    event: HistoryTrimmed


@dataclass(frozen=True, slots=True)
class Fork:
    """A `HistoryForked`, with its offset, its time, and the user."""

    at: int
    time_ms: int
    user: str
    event: HistoryForked

    def __str__(self) -> str:
        positions = ", ".join(f"{name} at offset {offset}" for name, offset in self.event.positions)
        source = f" of {self.event.source}" if self.event.source else ""
        return (
            f"this history is a fork{source} as of {self.event.moment}: it branched from {self.event.parent[:16]}... at"
            f" offset {self.at} of metadata-0, {positions}; since then it is {self.event.identity[:16]}..."
        )


@dataclass(frozen=True, slots=True)
class ExpiredDay:
    """The last `BodiesExpired` of a day, with its offset in the metadata log, and its time."""

    offset: int
    time_ms: int


@dataclass(slots=True)
class AboutHistory:
    """The state of these changes. `floors` by partition; a floor only rises. `forks`: the last identifies this history.
    `expired_days` by day: its keys were destroyed."""

    floors: dict[str, Floor] = field(default_factory=dict)
    forks: list[Fork] = field(default_factory=list)
    expired_days: dict[str, ExpiredDay] = field(default_factory=dict)

    def apply(
        self, offset: int, timestamp_ms: int, user: str, event: HistoryTrimmed | HistoryForked | BodiesExpired
    ) -> None:
        """Apply an event of the metadata log."""
        if isinstance(event, HistoryTrimmed):
            before = self.floors.get(event.partition)
            if before is None or before.event.offset < event.offset:
                self.floors[event.partition] = Floor(offset, timestamp_ms, user, event)
        elif isinstance(event, HistoryForked):
            self.forks.append(Fork(offset, timestamp_ms, user, event))
        else:
            self.expired_days[event.day] = ExpiredDay(offset, timestamp_ms)

    def for_digest(self) -> dict[str, Any]:
        """Return the state for the topology's digest."""
        return {
            "floors": [asdict(self.floors[name].event) for name in sorted(self.floors)],
            "forks": [asdict(fork.event) for fork in self.forks],
            "expired_days": {day: expired.offset for day, expired in self.expired_days.items()},
        }
